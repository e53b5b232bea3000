"""Every use of `unsafe` is in a crate that may have it, has its reason beside it, and is in SECURITY.md.

    unsafe-check          says what is wrong
    unsafe-check --list   prints the table for SECURITY.md
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Who may, and what for. All others forbid it to themselves.
ALLOWED = {
    "crates/base": "aligned buffers for O_DIRECT, received into without being cleared first",
    "crates/app/memory": "settings of both allocators and of the kernel's pages, and giving memory back, which have no safe interface",
    "crates/engine/disk": "io_uring: buffers and files that the kernel uses live until it is done",
    "crates/engine/erasure": "vector instructions of the processor, after asking whether it has them",
    "crates/edges/rpc-server": "receives a payload into an aligned buffer that is not cleared first",
    "crates/codecs/nfs": "an allocator that counts, in the tests only",
    "fuzz": "an allocator that notes how much is taken, in the tests only",
}
FORBID = "#![forbid(unsafe_code)]"
# In a comment or a text it is a word.
TEXT = re.compile(r'//[^\n]*|"(?:\\.|[^"\\\n])*"')
USE = re.compile(r"\bunsafe\b(?!_)")
# A part of it that needs no reason of its own: who calls it gives one, at the call.
DECLARATION = re.compile(r"\bunsafe\s+(?:extern\s+\"C\"\s+)?fn\b")
REASONS = ("// SAFETY:", "/// # Safety")
# How far above the reason may begin: over attributes, and over comments however long.
ABOVE = re.compile(r"^\s*(//|#\[|\S.*=$|\S.*\($|unsafe impl\b|$)")


def crates():
    for manifest in sorted([*ROOT.glob("crates/**/Cargo.toml"), ROOT / "fuzz/Cargo.toml"]):
        yield manifest.parent


def sources(crate):
    skipped = crate / "target"
    return [path for path in sorted(crate.rglob("*.rs")) if skipped not in path.parents]


def code_of(line):
    return TEXT.sub(lambda found: " " * len(found.group()), line)


def uses(path):
    """Line numbers from 0 of every use, with whether there is a reason."""
    lines = path.read_text().splitlines()
    for number, line in enumerate(lines):
        code = code_of(line)
        if not USE.search(code):
            continue
        yield number, has_reason(lines, number) or is_method_of_trait(lines, number, code)


def has_reason(lines, number):
    if any(reason in lines[number] for reason in REASONS):
        return True
    for above in reversed(lines[:number]):
        if any(reason in above for reason in REASONS):
            return True
        if not ABOVE.match(above):
            return False
    return False


def is_method_of_trait(lines, number, code):
    """Its rules are those of the trait, whose `unsafe impl` gives the reason."""
    if not DECLARATION.search(code) or not code.startswith("    "):
        return False
    opening = next((line for line in reversed(lines[:number]) if line and line[0] not in " }/#"), "")
    return opening.startswith("unsafe impl")


def roots(crate):
    return [path for name in ("lib", "main") if (path := crate / f"src/{name}.rs").exists()]


def main():
    problems, counts = [], {}
    for crate in crates():
        name = crate.relative_to(ROOT).as_posix()
        found = [(path, number, reason) for path in sources(crate) for number, reason in uses(path)]
        counts[name] = len(found)
        for path, number, reason in found:
            place = f"{path.relative_to(ROOT)}:{number + 1}"
            if name not in ALLOWED:
                problems.append(f"{place}: {name} may not use unsafe (scripts/unsafe-check has the list)")
            elif not reason:
                problems.append(f"{place}: unsafe without a comment that begins with `// SAFETY:`")
        if name in ALLOWED:
            if not found:
                problems.append(f"{name} is on the list and needs it no more")
            continue
        for root in roots(crate):
            if FORBID not in root.read_text():
                problems.append(f"{root.relative_to(ROOT)}: {FORBID} is missing")
    table = [f"| `{name}` | {why} |" for name, why in ALLOWED.items()]
    if "--list" in sys.argv[1:]:
        print("\n".join(table))
    document = (ROOT / "SECURITY.md").read_text()
    problems += [f"SECURITY.md lacks the line: {line}" for line in table if line not in document]
    for problem in problems:
        print(f"unsafe-check: {problem}", file=sys.stderr)
    if problems:
        sys.exit(1)
    used = ", ".join(f"{name} {counts[name]}" for name in ALLOWED)
    print(f"unsafe-check: every use has its reason ({used}); {len(counts) - len(ALLOWED)} crates forbid it")
