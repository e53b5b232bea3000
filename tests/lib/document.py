"""The tables in the documents that programs write.

Owns: where they stand. Must not know: what is in them.
"""

from lib import harness

PATH = harness.REPOSITORY / "docs" / "results" / "performance.md"
RELIABILITY_PATH = harness.REPOSITORY / "docs" / "results" / "reliability.md"


def write(target, text, path=PATH):
    """Puts `text` between the marks of the make target that measured it."""
    marks = (f"<!-- {target}: written by `make {target}` -->", f"<!-- {target}: end -->")
    before, mark, rest = path.read_text().partition(marks[0])
    _, end, after = rest.partition(marks[1])
    if not mark or not end:
        raise harness.Failure(f"{path} has lost the marks {marks}")
    path.write_text(f"{before}{mark}\n\n{text}\n\n{end}{after}")
