"""Checks that every relative link and every #anchor in the Markdown files of the repository resolves, every `make TARGET`, and
every page that the sources and every source that the documents name."""

import pathlib
import re
import subprocess
import sys
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parents[2]
LINK = re.compile(r"!?\[[^\]]*\]\(<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\)")
REFERENCE = re.compile(r"^\[[^\]]+\]:\s+(\S+)", re.MULTILINE)
HEADING = re.compile(r"^#{1,6}\s+(.*?)\s*#*$", re.MULTILINE)
FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`[^`\n]*`")
PAGE = re.compile(r"\bdocs/[\w/-]+\.md\b")
SOURCE = re.compile(r"`(crates/[\w/.-]+)`")


def files(*patterns):
    """The files that git knows or would add."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z", *patterns]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout
    paths = [ROOT / name.decode() for name in listed.split(b"\0") if name]
    return sorted({path for path in paths if path.exists()})


def anchors(text):
    """The anchors that GitHub gives the headings of a document."""
    found: set[str] = set()
    seen: dict[str, int] = {}
    for heading in HEADING.findall(FENCE.sub("", text)):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").lower()
        slug = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        count = seen.get(slug, 0)
        seen[slug] = count + 1
        found.add(f"{slug}-{count}" if count else slug)
    return found


def problem(document, link):
    """Why a link leads nowhere, or None."""
    target, _, anchor = urllib.parse.unquote(link).partition("#")
    path = (document.parent / target).resolve() if target else document
    if not path.is_relative_to(ROOT):
        return "leads out of the repository"
    if not path.exists():
        return "there is no such file"
    if anchor and path.suffix == ".md" and anchor not in anchors(path.read_text(encoding="utf-8")):
        return "there is no such heading"
    return None


def broken_targets(texts):
    """What is wrong with the targets of the Makefile, and with those that the documents name."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z0-9-]+):", makefile, re.MULTILINE))
    for target in sorted(targets):
        done = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True)
        if done.returncode:
            yield f"Makefile: make {target}: {done.stderr.strip()}"
    for name, text in texts.items():
        for target in sorted(set(re.findall(r"`make ([a-z0-9-]+)[`\s]", text)) - targets):
            yield f"{name}: make {target}: there is no such target"


def broken_names():
    """The pages that comments and messages of the sources name, and the sources that documents name, where these are not there."""
    for name, patterns in ((PAGE, ["*.rs", "*.py", "*.ts"]), (SOURCE, ["*.md"])):
        for file in files(*patterns):
            for named in sorted(set(name.findall(file.read_text(encoding="utf-8")))):
                if not (ROOT / named).exists():
                    yield f"{file.relative_to(ROOT)}: {named}: there is no such file"


def main():
    links_count, broken_count = 0, 0
    texts = {document.relative_to(ROOT): document.read_text(encoding="utf-8") for document in files("*.md")}
    for why in [*broken_targets(texts), *broken_names()]:
        broken_count += 1
        print(why, file=sys.stderr)
    for document in files("*.md"):
        text = document.read_text(encoding="utf-8")
        prose = CODE.sub("", FENCE.sub("", text))
        for link in LINK.findall(prose) + REFERENCE.findall(prose):
            if re.match(r"[a-z][a-z0-9+.-]*:", link):
                continue
            links_count += 1
            why = problem(document, link)
            if why:
                broken_count += 1
                print(f"{document.relative_to(ROOT)}: {link}: {why}", file=sys.stderr)
    print(f"link-check: {links_count} links, {broken_count} broken")
    return 1 if broken_count else 0
