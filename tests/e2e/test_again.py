"""What runs again when it failed, and what that may change: the rules of tests/lib/again.py."""

import io
import subprocess
import unittest
import urllib.error

from lib import harness
from lib.again import AGAIN_COUNT_MAX, PARDONED_COUNT_MAX, Failed, Outcomes, run_again


def late(index):
    return Failed(f"late{index}", "Late: it did not happen", True)


def wrong(index):
    return Failed(f"wrong{index}", "AssertionError: other bytes", False)


class RunAgain(unittest.TestCase):
    def check(self, failed, passes, pardoned, stands, is_well):
        """`passes`: the names of those that pass the second time."""
        ran = []

        def run_alone(one):
            ran.append(one.name)
            return one.name in passes

        again = run_again(failed, run_alone)
        self.assertEqual((again.pardoned, again.wrong, again.is_well()), (pardoned, stands, is_well))
        told = "\n".join(again.lines())
        for name in [*pardoned, *stands]:
            self.assertIn(name, told)
        self.assertEqual("FAILED" in told, not is_well, told)
        return ran

    def test_what_is_pardoned(self):
        names = [late(index).name for index in range(PARDONED_COUNT_MAX + 1)]
        for failed, passes, pardoned, stands, is_well in [
            ([], set(), [], [], True),
            ([late(0)], {"late0"}, ["late0"], [], True),
            # A failure twice: the caller still has it among those that failed.
            ([late(0)], set(), [], [], True),
            ([late(0), late(1)], {"late1"}, ["late1"], [], True),
            ([late(index) for index in range(PARDONED_COUNT_MAX)], set(names), names[:-1], [], True),
            ([late(index) for index in range(PARDONED_COUNT_MAX + 1)], set(names), names, [], False),
            # One of so many fails twice: what passed is few enough, what failed fails the run.
            ([late(index) for index in range(PARDONED_COUNT_MAX + 1)], set(names[1:]), names[1:], [], True),
            ([wrong(0)], {"wrong0"}, [], ["wrong0"], True),
            ([wrong(0), late(0)], {"wrong0", "late0"}, ["late0"], ["wrong0"], True),
        ]:
            with self.subTest(failed=[one.name for one in failed], passes=passes):
                self.assertEqual(self.check(failed, passes, pardoned, stands, is_well), [one.name for one in failed])

    def test_where_very_many_failed_none_runs_again(self):
        failed = [late(index) for index in range(AGAIN_COUNT_MAX + 1)]
        self.assertEqual(self.check(failed, {one.name for one in failed}, [], [], True), [])


class Sample(unittest.TestCase):
    """Tests that end in all ways. Their names keep them from being found as tests of this file."""

    def passes(self):
        pass

    def fails(self):
        self.assertEqual(1, 2)

    def raises(self):
        raise harness.Failure("no such thing")

    def is_late(self):
        raise harness.Late("it did not happen")

    def has_no_answer(self):
        raise TimeoutError

    def connects_in_vain(self):
        raise urllib.error.URLError(TimeoutError())

    def is_refused(self):
        raise urllib.error.URLError(ConnectionRefusedError())

    def runs_too_long(self):
        raise subprocess.TimeoutExpired("cairn", 1)

    def has_subtests(self):
        for error in (harness.Late("it did not happen"), AssertionError("other bytes")):
            with self.subTest():
                raise error

    def has_late_subtests(self):
        for _ in range(2):
            with self.subTest():
                raise harness.Late("it did not happen")

    @unittest.expectedFailure
    def passes_unexpectedly(self):
        pass

    def skips(self):
        self.skipTest("not here")


class WhatBecameOfTests(unittest.TestCase):
    def test_each_failure_is_late_or_wrong_and_counts_once(self):
        names = [name for name, found in vars(Sample).items() if callable(found) and not name.startswith("_")]
        suite = unittest.TestSuite(Sample(name) for name in names)
        runner = unittest.TextTestRunner(stream=io.StringIO(), resultclass=Outcomes)  # type: ignore[arg-type]
        done = runner.run(suite)
        assert isinstance(done, Outcomes)
        found = {one.name.rpartition(".")[2]: one for one in done.failed()}
        is_late = {name: one.is_late for name, one in found.items()}
        self.assertEqual(is_late, {
            "fails": False, "raises": False, "is_late": True, "has_no_answer": True, "runs_too_long": True, "connects_in_vain": True,
            "is_refused": False,
            "has_subtests": False, "has_late_subtests": True, "passes_unexpectedly": False,
        })  # fmt: skip
        self.assertEqual(len(done.failed()), len(found))
        self.assertEqual(done.passed_count(), 1)
        self.assertIn("it did not happen", found["is_late"].error)
        self.assertEqual(set(done.seconds), {f"{Sample.__module__}.Sample.{name}" for name in names})


if __name__ == "__main__":
    unittest.main()
