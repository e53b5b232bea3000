"""The crates' arrows point down only, docs/design/crates.md shows them as they are, and `make test-core` needs Rust alone.

crates            says what is wrong
crates --write    writes the page's picture and its table anew
"""

import json
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/design/crates.md"
# From the bottom. A crate may depend on those of lower layers, and on others of its own.
LAYERS = [
    ["crates/base"],
    ["crates/formats", "crates/codecs"],
    ["crates/engine"],
    ["crates/services"],
    ["crates/app/config"],
    ["crates/edges", "crates/clients"],
    ["crates/tools"],
    ["crates/app"],
    ["crates/testing"],
]
# Packages of others that need more than Rust and a C compiler to be built: clang, and protoc.
NEEDING_MORE = {"rocksdb", "etcd-client"}
# Parts of the program for users, which a server is built without.
NOT_OF_SERVERS = {"cairn-bench", "cairn-plan"}
SERVER = "cairn-node"
CORE = re.compile(r"^CORE := ((?:.*\\\n)*.*)$", re.MULTILINE)
BEGIN, END = "<!-- begin: scripts/crates --write -->", "<!-- end -->"


def layer_of(folder):
    found = [
        (len(prefix), number)
        for number, prefixes in enumerate(LAYERS)
        for prefix in prefixes
        if folder == prefix or folder.startswith(prefix + "/")
    ]
    return max(found)[1] if found else None


def workspace():
    """What cargo says of each crate here."""
    command = ["cargo", "metadata", "--format-version=1", "--no-deps", "--offline", "--locked"]
    output = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return json.loads(output)["packages"]


def crates(packages):
    """Folder by name, and the names that each depends on; those only of tests and builds do not count."""
    folders = {
        package["name"]: str(pathlib.Path(package["manifest_path"]).parent.relative_to(ROOT))
        for package in packages
    }
    arrows = {
        package["name"]: {
            dependency["name"]
            for dependency in package["dependencies"]
            if dependency["kind"] is None and dependency["name"] in folders
        }
        for package in packages
    }
    return folders, arrows


def direct(arrows):
    """The arrows without those that others imply."""

    def below(name):
        reached = set(arrows[name])
        for next_name in arrows[name]:
            reached |= below(next_name)
        return reached

    return {
        name: {to for to in targets if not any(to in below(other) for other in targets)}
        for name, targets in arrows.items()
    }


def core_that_needs_more(packages, makefile):
    """What is wrong with the list of crates that `make test-core` tests."""
    # Those of tests and builds count: they are built, too.
    tested = {package["name"]: {it["name"] for it in package["dependencies"]} for package in packages}
    built = {
        package["name"]: {it["name"] for it in package["dependencies"] if it["kind"] != "dev"} for package in packages
    }
    core = CORE.search(makefile)
    wrong = [] if core else ["the Makefile has no list CORE for `make test-core`"]
    for name in core.group(1).replace("\\\n", " ").split() if core else []:
        name = f"cairn-{name}"
        if name not in tested:
            wrong.append(f"{name} is in CORE of the Makefile, and there is no such crate")
            continue
        reached: set[str] = set()
        rest = list(tested[name])
        while rest:
            found = rest.pop()
            if found not in reached:
                reached.add(found)
                rest += built.get(found, ())
        if more := sorted(reached & NEEDING_MORE):
            wrong.append(f"{name} is in CORE of the Makefile, and its tests need {', '.join(more)}, which need more than Rust")
    return wrong


def server_that_needs_more(arrows):
    """What is wrong with the crates that a server stands on."""
    reached: set[str] = set()
    rest = [SERVER]
    while rest:
        found = rest.pop()
        if found not in reached:
            reached.add(found)
            rest += arrows.get(found, ())
    return [f"{SERVER} needs {name}: a server is built without it" for name in sorted(reached & NOT_OF_SERVERS)]


def lines_of(folder):
    """Lines of code, without tests, comments and empty lines, as far as the text shows them."""
    total = 0
    for path in sorted((ROOT / folder / "src").rglob("*.rs")):
        if "tests" in path.relative_to(ROOT / folder).parts or path.stem == "tests":
            continue
        text = path.read_text().split("#[cfg(test)]\nmod tests {")[0]
        total += sum(bool(line.strip()) and not line.lstrip().startswith("//") for line in text.splitlines())
    return total


def short(name):
    return name.removeprefix("cairn-") if name != "cairn" else "cli"


def page_part(folders, arrows):
    names = sorted(folders, key=lambda name: (-(layer_of(folders[name]) or 0), name))
    lines = ["```mermaid", "flowchart TD"]
    for name in names:
        lines += [f"  {short(name)} --> {short(to)}" for to in sorted(direct(arrows)[name])]
    lines += ["```", "", "| crate | lines |", "|---|---|"]
    lines += [f"| `{folders[name]}` | {round(lines_of(folders[name]), -2):,} |" for name in names]
    return "\n".join(lines)


def main():
    packages = workspace()
    folders, arrows = crates(packages)
    wrong = core_that_needs_more(packages, (ROOT / "Makefile").read_text()) + server_that_needs_more(arrows)
    for name, targets in arrows.items():
        layer = layer_of(folders[name])
        if layer is None:
            wrong.append(f"{folders[name]} lies in no layer: see LAYERS in tests/checks/crates.py")
            continue
        wrong += [
            f"{folders[name]} depends on {folders[to]}, which lies above it"
            for to in sorted(targets)
            if (layer_of(folders[to]) or 0) > layer
        ]
    text = PAGE.read_text()
    part = re.compile(re.escape(BEGIN) + r"\n(.*?)\n" + re.escape(END), re.DOTALL)
    found = part.search(text)
    if not found:
        wrong.append(f"{PAGE.relative_to(ROOT)} has no part that this script writes")
    elif "--write" in sys.argv[1:]:
        new = f"{BEGIN}\n{page_part(folders, arrows)}\n{END}"
        PAGE.write_text(text[: found.start()] + new + text[found.end() :])
    else:
        arrows_of = re.compile(r"^  \S+ --> \S+$", re.MULTILINE)
        if arrows_of.findall(found.group(1)) != arrows_of.findall(page_part(folders, arrows)):
            wrong.append(f"{PAGE.relative_to(ROOT)} shows other arrows than there are: scripts/crates --write")
    for line in wrong:
        print(f"crates: {line}", file=sys.stderr)
    return bool(wrong)
