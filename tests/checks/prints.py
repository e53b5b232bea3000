"""What programs write to a terminal goes through one of few places, which write out what would command it.

    print-check           says what is wrong

Names, paths and words of servers have any characters: escape sequences, line feeds, controls that turn text around. So nothing
prints by itself.
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Who may write to the streams, and why what it writes commands no terminal.
ALLOWED = {
    "crates/app/cli/src/print.rs": "the place of the command line: everything goes through cairn_base::printable",
    "crates/app/cli/src/serve.rs": "the log: lines go through cairn_base::printable::log_line",
    "crates/app/cli/src/plan.rs": "asks how large the terminal is",
    "crates/app/cli/src/top.rs": "asks whether it is a terminal, and how large",
    "crates/app/cli/src/bench_progress.rs": "a bar of numbers",
    "crates/app/node/src/cluster/guardian.rs": "one line, through cairn_base::printable, of a process without a log",
    "crates/clients/files/src/console.rs": "the place of the clients of files",
    "crates/clients/files/src/copy/progress.rs": "a bar of numbers",
}
# Who may write to the console of the clients of files beside `Console::line`.
WRITES = {
    "crates/clients/files/src/console.rs": "the place itself",
    "crates/clients/files/src/ls.rs": "names through show::name, JSON through cairn_base::printable, numbers",
    "crates/clients/files/src/stat.rs": "numbers and dates; names and paths go through Console::line",
    "crates/clients/files/src/cat.rs": "the bytes of a file, which are what was asked for",
    "crates/clients/files/src/copy/mod.rs": "a summary of numbers",
}
STREAM = re.compile(r"\be?print(ln)?!|\b(stdout|stderr)\(\)")
CONSOLE = re.compile(r"\bconsole\.(out|err)\b(?!_)")
# In those files: a whole URL, name or path that is put into a line as it is.
RAW = re.compile(r'\bwrite(ln)?!\([^;]*\{(url|name|path|target|key|error|why|message)[^}]*\}')
# In a comment it is a word.
COMMENT = re.compile(r"//[^\n]*")
# Tools for developers, tests, and what cargo reads.
SKIPPED = re.compile(r"/(examples|tests|benches)/|(^|/)(build|tests)\.rs$|_tests\.rs$|^crates/testing/")
TESTS = re.compile(r"^#\[cfg\(test\)\]\nmod \w+ \{", re.MULTILINE)


def code_of(text):
    tests = TESTS.search(text)
    return COMMENT.sub("", text[: tests.start()] if tests else text)


def main():
    problems, used = [], set()
    for path in sorted(ROOT.glob("crates/**/*.rs")):
        name = path.relative_to(ROOT).as_posix()
        if SKIPPED.search(name) or "/target/" in name:
            continue
        code = code_of(path.read_text())
        for pattern, allowed in ((STREAM, ALLOWED), (CONSOLE, WRITES)):
            found = pattern.search(code)
            if not found:
                continue
            used.add((name, pattern.pattern))
            if name not in allowed:
                line = code.count("\n", 0, found.start()) + 1
                problems.append(f"{name}:{line}: {found.group()} writes to a terminal: use the place for that (tests/checks/prints.py has the list)")
        if name in WRITES and not name.endswith("/console.rs") and (found := RAW.search(code)):
            line = code.count("\n", 0, found.start()) + 1
            problems.append(f"{name}:{line}: a text that somebody chose is written as it is: use Console::line")
    for pattern, allowed in ((STREAM, ALLOWED), (CONSOLE, WRITES)):
        idle = [name for name in allowed if (name, pattern.pattern) not in used and name != "crates/clients/files/src/console.rs"]
        problems += [f"{name} is on the list of tests/checks/prints.py and needs it no more" for name in idle]
    for problem in problems:
        print(f"print-check: {problem}", file=sys.stderr)
    if problems:
        sys.exit(1)
    print(f"print-check: {len(ALLOWED)} places write to a terminal")
