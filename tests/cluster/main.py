"""The tests of clusters: real nodes, a real etcd, and clients over libnfs, all on this machine.

    scripts/test-cluster [TEST...]    all, or some: test_form, test_failures.Failures.test_the_owner_is_killed

One test at a time: each has a cluster of its own, and measures how long its clients wait. As root each node has a
network of its own; without, what needs that is not tested, and the end of the output says so. Tests that failed run once
more at the end, as the end-to-end tests do: see tests/lib/again.py.
"""

import argparse
import pathlib
import unittest

from lib import again, harness

TESTS = pathlib.Path(__file__).parent


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tests", nargs="*", metavar="TEST")
    options = parser.parse_args()
    print(f"tests of clusters of {harness.cairn_path()}", flush=True)
    names = options.tests or sorted(path.stem for path in TESTS.glob("test_*.py"))
    done = run([f"cluster.{name}" for name in names])
    # Others are no tests: a file that cannot be imported, a class that cannot be set up.
    reruns = again.run_again([one for one in done.failed() if one.name.startswith("cluster.")], run_alone)
    for test, reason in done.skipped:
        print(f"NOT TESTED: {test.id()}: {reason}")
    failed = [one for one in done.failed() if one.name not in reruns.pardoned]
    for one in failed:
        print(f"FAILED {one.name}: {one.error}")
    for line in reruns.lines():
        print(line)
    print(f"{done.passed_count() + len(reruns.pardoned)} passed, {len(failed)} failed", flush=True)
    return 0 if done.testsRun and not failed and reruns.is_well() else 1


def run(names):
    """Runs tests of these names; returns what became of them."""
    suite = unittest.defaultTestLoader.loadTestsFromNames(names)
    done = unittest.TextTestRunner(verbosity=2, resultclass=again.Outcomes).run(suite)  # type: ignore[arg-type]
    assert isinstance(done, again.Outcomes)
    return done


def run_alone(one):
    print(f"== {one.name}: failed, once more: {one.error}", flush=True)
    done = run([one.name])
    return bool(done.passed_count()) and not done.failed()
