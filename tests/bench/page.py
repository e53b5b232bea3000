"""Looks at report pages in a real browser, headless: do their charts get drawn, and what do they look like?

    scripts/bench-page [--docs | --check] [RESULT.json ...]

Without results it takes the made-up ones of the tests, hostile ones among them. Pictures (light, dark, phone) and a
PDF of each page are in target/bench-page; with --check there are none, which takes seconds; with --docs the light one becomes docs/images/bench-report.png.
"""

import argparse
import pathlib
import shutil
import subprocess

from lib import harness, pages

TARGET = harness.target_dir().resolve()
OUT = TARGET / "bench-page"
HEIGHT_DOCS_PX = 1400


def make(results):
    """Writes the pages that are looked at; the first is that for the documents."""
    if results:
        page = OUT / "report.html"
        subprocess.run([harness.cairn_path(), "bench", "report", *results, "-o", page], check=True)
        return [page]
    subprocess.run(["cargo", "test", "--quiet", "--profile", "fast", "--locked", "-p", "cairn-bench", "--test", "report"],
                   cwd=harness.REPOSITORY, check=True)
    made = sorted((TARGET / "tmp").glob("report-*.html"))
    return [pathlib.Path(shutil.copy(page, OUT)) for page in made]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--docs", action="store_true", help="write docs/images/bench-report.png")
    parser.add_argument("--check", action="store_true", help="take no pictures")
    parser.add_argument("results", nargs="*", metavar="RESULT.json", type=lambda name: pathlib.Path(name).resolve())
    arguments = parser.parse_args()
    OUT.mkdir(parents=True, exist_ok=True)
    made = make(arguments.results)
    pages.check_and_look(made, OUT)
    if arguments.docs:
        pages.picture(made[0], harness.REPOSITORY / "docs/images/bench-report.png", HEIGHT_DOCS_PX)
