"""Runs the tests of one file and says what became of them: one_file RESULT.json TEST...

Owns: the count of the tests, and the time that each took. Must not know: which files there are, what runs beside it.
"""

import json
import pathlib
import resource
import subprocess
import sys
import time
import unittest

from lib import harness

# What a test raises that waited in vain: it may pass when nothing runs beside it.
LATE = (harness.Late, TimeoutError, subprocess.TimeoutExpired)
# Of what a test raised, in the line that names it.
ERROR_LEN_MAX = 400


class TimedResult(unittest.TextTestResult):
    """Also keeps how long each test took, and which failed in another way than by waiting in vain."""

    seconds: dict[str, float]
    wrong: set[str]
    begun: float

    def startTestRun(self):
        super().startTestRun()
        self.seconds = {}
        self.wrong = set()

    def addError(self, test, err):
        super().addError(test, err)
        if not issubclass(err[0], LATE):
            self.wrong.add(failed_test(test))

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self.wrong.add(failed_test(test))

    def addSubTest(self, test, subtest, err):
        super().addSubTest(test, subtest, err)
        if err and not issubclass(err[0], LATE):
            self.wrong.add(failed_test(test))

    def addUnexpectedSuccess(self, test):
        super().addUnexpectedSuccess(test)
        self.wrong.add(test.id())

    def startTest(self, test):
        super().startTest(test)
        self.begun = time.monotonic()

    def stopTest(self, test):
        super().stopTest(test)
        self.seconds[test.id()] = time.monotonic() - self.begun


def main():
    path, *names = sys.argv[1:]
    runner = unittest.TextTestRunner(resultclass=TimedResult,  # type: ignore[arg-type]
        verbosity=1)
    # A failed test counts once, also when several of its subtests failed.
    done = unittest.main(module=None, argv=["unittest", *names], testRunner=runner, exit=False).result
    assert isinstance(done, TimedResult)
    failed = {failed_test(test) for test, _ in [*done.failures, *done.errors]}
    failed |= {test.id() for test in done.unexpectedSuccesses}
    errors = {failed_test(test): last_line(trace) for test, trace in [*done.failures, *done.errors]}
    result = {
        "passed": max(done.testsRun - len(done.skipped) - len(failed), 0),
        "failed": sorted(failed),
        "late": sorted(failed - done.wrong),
        "errors": errors,
        "skipped": [f"{test.id()}: {reason}" for test, reason in done.skipped],
        "seconds": done.seconds,
        "cpu_seconds": cpu_seconds(),
    }
    pathlib.Path(path).write_text(json.dumps(result))
    sys.exit(0 if done.wasSuccessful() and done.testsRun else 1)


def cpu_seconds():
    """Of this process and of the servers that it started and waited for."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def last_line(trace):
    """What was raised: the last line of a trace that is not indented."""
    lines = [line for line in trace.splitlines() if line and not line[0].isspace()]
    return lines[-1][:ERROR_LEN_MAX] if lines else "nothing was said"


def failed_test(test):
    return getattr(test, "test_case", test).id()


if __name__ == "__main__":
    main()
