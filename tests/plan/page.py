"""Looks at the planner's pages in a real browser, headless: do their charts get drawn, and what do they look like?

    scripts/plan-page [--docs | --check] [PAGE.html ...]

Without pages it takes those of the tests, a hostile one among them. Pictures (light, dark, phone) and a PDF of each
page are in target/plan-page; with --check there are none, which takes seconds; with --docs the light one becomes
docs/images/plan-page.png.
"""

import argparse
import pathlib
import shutil
import subprocess

from lib import harness, pages

TARGET = harness.target_dir().resolve()
OUT = TARGET / "plan-page"
HEIGHT_DOCS_PX = 1500


def make(given):
    """Writes the pages that are looked at; the first is that for the documents."""
    if given:
        return given
    subprocess.run(["cargo", "test", "--quiet", "--profile", "fast", "--locked", "-p", "cairn-plan", "--test", "plan", "page::"],
                   cwd=harness.REPOSITORY, check=True)
    names = ["large", "small", "nothing", "hostile"]
    return [pathlib.Path(shutil.copy(TARGET / "tmp" / f"plan-{name}.html", OUT)) for name in names]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--docs", action="store_true", help="write docs/images/plan-page.png")
    parser.add_argument("--check", action="store_true", help="take no pictures")
    parser.add_argument("pages", nargs="*", metavar="PAGE.html", type=lambda name: pathlib.Path(name).resolve())
    arguments = parser.parse_args()
    OUT.mkdir(parents=True, exist_ok=True)
    made = make(arguments.pages)
    pages.check_and_look(made, OUT, has_pictures=not arguments.check)
    if arguments.docs:
        pages.picture(made[0], harness.REPOSITORY / "docs/images/plan-page.png", HEIGHT_DOCS_PX)
