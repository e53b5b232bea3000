"""The console in a real browser, headless.

    scripts/test-console [--docs] [--dist] [TEST...]     all, or some: test_console.Pages.test_a_token_lets_in

Pictures of all pages (light, dark, phone) are in target/console; with --docs some become docs/images.
With --dist the browser gets scripts and styles from console/dist, and not those that the program was built with.
"""

import argparse
import os
import pathlib
import sys
import unittest

from lib import harness

TESTS = pathlib.Path(__file__).parent
OUT = harness.target_dir().resolve() / "console"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--docs", action="store_true", help="write pictures for the documents")
    parser.add_argument("--dist", action="store_true", help="take scripts and styles from console/dist")
    parser.add_argument("tests", nargs="*", metavar="TEST")
    options = parser.parse_args()
    print(f"the console of {harness.cairn_path()}", flush=True)
    if options.docs:
        os.environ["CAIRN_CONSOLE_DOCS"] = "1"
    if options.dist:
        os.environ["CAIRN_CONSOLE_DIST"] = "1"
    names = [f"console.{name}" for name in options.tests or sorted(path.stem for path in TESTS.glob("test_*.py"))]
    done = unittest.main(module=None, argv=["test-console", *names], verbosity=2, exit=False).result
    sys.stdout.flush()
    return 0 if done.wasSuccessful() and done.testsRun else 1
