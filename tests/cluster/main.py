"""The tests of clusters: real nodes, a real etcd, and clients over libnfs, all on this machine.

    scripts/test-cluster [TEST...]    all, or some: test_form, test_failures.Failures.test_the_owner_is_killed

One test at a time: each has a cluster of its own, and measures how long its clients wait. As root each node has a
network of its own; without, what needs that is not tested, and the end of the output says so.
"""

import argparse
import pathlib
import unittest

from lib import harness

TESTS = pathlib.Path(__file__).parent


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tests", nargs="*", metavar="TEST")
    options = parser.parse_args()
    print(f"tests of clusters of {harness.cairn_path()}", flush=True)
    names = options.tests or sorted(path.stem for path in TESTS.glob("test_*.py"))
    suite = unittest.defaultTestLoader.loadTestsFromNames([f"cluster.{name}" for name in names])
    done = unittest.TextTestRunner(verbosity=2).run(suite)
    for test, reason in done.skipped:
        print(f"NOT TESTED: {test.id()}: {reason}")
    failed = len(done.failures) + len(done.errors)
    print(f"{done.testsRun - failed - len(done.skipped)} passed, {failed} failed", flush=True)
    return 0 if done.wasSuccessful() and done.testsRun else 1
