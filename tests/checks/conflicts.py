"""Checks that no file that git tracks has markers of an unresolved merge conflict."""

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
# The line of equal signs alone is no sign: it underlines headings. The other three have a label after the space.
MARKER = re.compile(rb"^(?:<{7}|\|{7}|>{7})(?: |\r?$)", re.MULTILINE)


def lines_with_markers(content):
    """Numbers of the lines, from 1."""
    if b"\0" in content:
        return []
    return [content.count(b"\n", 0, found.start()) + 1 for found in MARKER.finditer(content)]


def main():
    # That the check sees them at all; built from parts, so that this file has none.
    sample = b"".join(sign * 7 + b" branch\n" for sign in (b"<", b"|", b">"))
    assert lines_with_markers(sample) == [1, 2, 3], lines_with_markers(sample)
    listed = subprocess.run(["git", "ls-files", "--cached", "-z"], cwd=ROOT, check=True, capture_output=True).stdout
    files = [ROOT / name.decode() for name in listed.split(b"\0") if name]
    marked_count = 0
    for path in files:
        if not path.is_file() or path.is_symlink():
            continue
        for number in lines_with_markers(path.read_bytes()):
            marked_count += 1
            print(f"{path.relative_to(ROOT)}:{number}: marker of a merge conflict; resolve it", file=sys.stderr)
    print(f"conflict-check: {len(files)} files, {marked_count} markers of merge conflicts")
    return 1 if marked_count else 0
