"""The commands and tables of a page of docs/guide, for tests that do what it says.

Owns: which lines of a page are commands, and what the rows of its tables are. Must not know: what they do.
"""

import re

from lib import harness

FOLDER = harness.REPOSITORY / "docs" / "guide"
# A line of a block that is no output of a command, and no line of a file.
COMMAND = re.compile(r"^(?:\$ |sudo )*(?P<line>(?:cairn|mount|make|etcdctl|apt) .*)$")
INLINE = re.compile(r"`(?P<line>cairn [^`]*)`")
# "cairn cluster token     # on a node that runs"
COMMENT = re.compile(r"\s\s+#.*$|\s+#\s.*$")
# A page is prose with blocks between three backticks, or indented by four, and by more in a list.
FENCE, INDENT = "```", "    "
# "A disk: a folder" is no header of a table.
RULE = re.compile(r"^\|[-|: ]+\|$")


def normal(text):
    """A command with single spaces, on one line."""
    return " ".join(text.split())


class Page:
    """A page, or the sections of it that have these headings."""

    def __init__(self, name, *headings):
        self.name = name
        text = (FOLDER / name).read_text()
        self.text = "".join(section_of(name, text, heading) for heading in headings) if headings else text

    def commands(self):
        """The commands in blocks, as they are written, in their order."""
        found = []
        is_fenced, held = False, ""
        for line in self.text.splitlines():
            if line.strip().startswith(FENCE):
                is_fenced = not is_fenced
                continue
            if not is_fenced and not line.startswith(INDENT):
                held = ""
                continue
            held += line.strip()
            if held.endswith("\\"):
                held = held[:-1]
                continue
            match = COMMAND.match(COMMENT.sub("", held))
            held = ""
            if match:
                found.append(normal(match["line"]))
        return found

    def inline(self):
        """The commands that sentences name."""
        return [normal(match["line"]) for match in INLINE.finditer(self.text)]

    def rows(self, header):
        """The first cells of the table whose header begins with this cell."""
        lines = self.text.splitlines()
        for index, line in enumerate(lines):
            if cells(line)[:1] == [header] and RULE.match(lines[index + 1]):
                found = []
                for row in lines[index + 2 :]:
                    if not row.startswith("|"):
                        break
                    found.append(cells(row)[0])
                return found
        raise harness.Failure(f"{self.name} has no table of {header!r}")


def cells(line):
    return [cell.strip() for cell in line.strip().strip("|").split("|")] if line.startswith("|") else []


def section_of(name, text, heading):
    """A section with those below it."""
    level = len(heading) - len(heading.lstrip("#"))
    begin = re.search(rf"^{re.escape(heading)}$", text, re.M)
    if not begin:
        raise harness.Failure(f"{name} has no section {heading!r}")
    end = re.search(rf"^#{{1,{level}}} ", text[begin.end() :], re.M)
    return text[begin.start() : begin.end() + (end.start() if end else len(text))]
