"""The prose of pages, messages and comments keeps the rules of docs/style, which Vale checks.

    prose-check           says which rules are broken, and where
    prose-check --all     suggestions as well: long sentences, clauses that a noun could replace

Messages are the texts in quotes in crates, tests aside, and the descriptions of the admin API. Comments are checked in
all crates.
"""

import json
import pathlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = ["*.md", "docs/**/*.md"]
OPENAPI = "console/openapi.json"
# .vale.ini gives this name its rules.
TEXTS = "texts.txt"
SKIPPED = re.compile(r"/(examples|tests|benches)/|(^|/)(build|tests)\.rs$|_tests\.rs$|^crates/testing/")
TESTS = re.compile(r"^#\[cfg\(test\)\]\nmod \w+ \{", re.MULTILINE)
# A comment, a character or a text in quotes: the first two are passed over, as they may have a quote in them.
TEXT = re.compile(r"""//[^\n]*|'(?:\\.|[^\\'\n])'|"((?:\\.|[^"\\])*)\"""", re.DOTALL)
COMMENT = re.compile(r"\s*//[/!]?(.*)")
WORD = re.compile(r"[A-Za-z]{2,}")
MESSAGE_WORDS_MIN = 3
# Names of fields, commands and files are not prose.
CODE = re.compile(r"`[^`]*`")


def messages_of(code: str) -> Iterator[tuple[int, str]]:
    """The messages of a source file: `(line, text)`, each text on one line."""
    tests = TESTS.search(code)
    for found in TEXT.finditer(code[: tests.start()] if tests else code):
        text = found.group(1)
        if not text or len(WORD.findall(text)) < MESSAGE_WORDS_MIN:
            continue
        text = re.sub(r"\\\n\s*", "", text).replace(r"\"", '"')
        text = re.sub(r"\\n|\s+", " ", re.sub(r"\{[^{}]*\}", "X", text))
        yield code.count("\n", 0, found.start()) + 1, text.strip()


def comments_of(code: str) -> Iterator[tuple[int, str]]:
    """The comments of a source file: `(line, text)`, each paragraph of a comment on one line, without examples of code."""
    words: list[str] = []
    begun, is_example = 0, False
    for number, line in enumerate([*code.splitlines(), ""], start=1):
        comment = COMMENT.match(line)
        text = comment.group(1).strip() if comment else ""
        if text.startswith("```"):
            is_example = not is_example
        if text and not is_example and not text.startswith("```"):
            begun = begun if words else number
            words.append(text)
        elif words:
            yield begun, " ".join(words)
            words = []
        is_example = is_example and comment is not None


def descriptions_of(document: object) -> Iterator[str]:
    """All `description`s and `summary`s of an OpenAPI document."""
    if isinstance(document, dict):
        for key, value in document.items():
            if key in ("description", "summary") and isinstance(value, str):
                yield value
            else:
                yield from descriptions_of(value)
    elif isinstance(document, list):
        for value in document:
            yield from descriptions_of(value)


def texts() -> list[tuple[str, str]]:
    """`(place, text)` of all comments and messages, in the order of their places."""
    found = []
    for path in sorted(ROOT.glob("crates/**/*.rs")):
        name = path.relative_to(ROOT).as_posix()
        if "/target/" in name:
            continue
        code = path.read_text()
        found += [(f"{name}:{line}", text) for line, text in comments_of(code)]
        if not SKIPPED.search(name):
            found += [(f"{name}:{line}", text) for line, text in messages_of(code)]
    described = sorted(set(descriptions_of(json.loads((ROOT / OPENAPI).read_text()))))
    return found + [(OPENAPI, " ".join(text.split())) for text in described]


def alerts(vale: pathlib.Path, level: str, paths: list[str]) -> list[tuple[str, int, str]]:
    """`(path, line, message)` of each rule that is broken."""
    command = [str(vale), "--config", ".vale.ini", "--minAlertLevel", level, "--no-exit", "--output", "JSON", *paths]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"prose-check: vale failed: {(done.stderr or done.stdout).strip()}")
    return [
        (path, alert["Line"], f"{alert['Message']} ({alert['Check']})")
        for path, found in json.loads(done.stdout).items()
        for alert in found
    ]


def main() -> None:
    wanted = sys.argv[1:]
    if wanted not in ([], ["--all"]):
        sys.exit("prose-check: it takes nothing, or --all")
    level = "suggestion" if wanted else "error"
    vale = pathlib.Path(subprocess.run([ROOT / "scripts/setup", "prose"], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()) / "vale"
    pages = [path.relative_to(ROOT).as_posix() for pattern in PAGES for path in ROOT.glob(pattern)]
    problems = [f"{path}:{line}: {message}" for path, line, message in alerts(vale, level, sorted(pages))]
    gathered = texts()
    with tempfile.TemporaryDirectory() as folder:
        page = pathlib.Path(folder, TEXTS)
        # A paragraph each: text N is on line 2 N + 1. Plain text, so that no markup in one hides others.
        page.write_text("".join(f"{CODE.sub('X', text)}\n\n" for _, text in gathered))
        for _, line, message in alerts(vale, level, [str(page)]):
            place, text = gathered[(line - 1) // 2]
            problems.append(f"{place}: {message}: {text}")
    for problem in problems:
        print(f"prose-check: {problem}", file=sys.stderr)
    if problems and not wanted:
        sys.exit(1)
    print(f"prose-check: {len(pages)} pages, {len(gathered)} comments and messages")
