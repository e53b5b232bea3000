"""What became of tests, and what running those again that failed may change of it.

Owns: how a test failed (late, or with a wrong answer), the tests that run again, the verdict over a run.
Must not know: how tests are started, and what they test.

A test that failed runs once more, alone, when all others have ended. If it waited in vain at first and passes then, the machine was
busy: it counts as passed, and the end of the output names it. From three such tests on the run fails all the same: so many are no
accident. A wrong answer stands, whatever the second run says, for there is no busy machine that makes bytes wrong.
"""

import dataclasses
import subprocess
import time
import unittest

from lib import harness

# What a test raises that waited in vain: it may pass when nothing runs beside it.
LATE = (harness.Late, TimeoutError, subprocess.TimeoutExpired)
# So many may pass only when they are run again.
PARDONED_COUNT_MAX = 2
# If more failed, no busy machine is the cause, and running all of them one by one takes long.
AGAIN_COUNT_MAX = 8
# Of what a test raised, in the line that names it.
ERROR_LEN_MAX = 400


class Outcomes(unittest.TextTestResult):
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
        if not is_late(err[1]):
            self.wrong.add(test_name(test))

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self.wrong.add(test_name(test))

    def addSubTest(self, test, subtest, err):
        super().addSubTest(test, subtest, err)
        if err and not is_late(err[1]):
            self.wrong.add(test_name(test))

    def addUnexpectedSuccess(self, test):
        super().addUnexpectedSuccess(test)
        self.wrong.add(test.id())

    def startTest(self, test):
        super().startTest(test)
        self.begun = time.monotonic()

    def stopTest(self, test):
        super().stopTest(test)
        self.seconds[test.id()] = time.monotonic() - self.begun

    def failed(self):
        """The tests that failed: each once, also when several of its subtests did."""
        errors = {test.id(): "it passed, which was not expected" for test in self.unexpectedSuccesses}
        errors |= {test_name(test): last_line(trace) for test, trace in [*self.failures, *self.errors]}
        return [Failed(name, error, name not in self.wrong) for name, error in sorted(errors.items())]

    def passed_count(self):
        return max(self.testsRun - len(self.skipped) - len(self.failed()), 0)


@dataclasses.dataclass(frozen=True)
class Failed:
    """A test that failed: its name, what it raised, whether it only waited in vain."""

    name: str
    error: str
    is_late: bool


@dataclasses.dataclass
class Again:
    """What running tests again came to: the names of those that passed then."""

    # After they had waited in vain: they count as passed.
    pardoned: list[str] = dataclasses.field(default_factory=list)
    # After a wrong answer: they count as failed.
    wrong: list[str] = dataclasses.field(default_factory=list)

    def is_well(self):
        """Whether the run may pass, as far as these go."""
        return len(self.pardoned) <= PARDONED_COUNT_MAX

    def lines(self):
        """What the end of the output says of them."""
        told = [f"PASSED ONLY WHEN RUN AGAIN: {name}" for name in self.pardoned]
        told += [f"PASSED WHEN RUN AGAIN, BUT HAD GIVEN A WRONG ANSWER, WHICH STANDS: {name}" for name in self.wrong]
        if not self.is_well():
            told.append(f"FAILED: {len(self.pardoned)} tests passed only when run again; at most {PARDONED_COUNT_MAX} may")
        return told


def run_again(failed, run_alone):
    """Runs tests once more, one after the other. `run_alone`: takes one of them; returns whether it passed."""
    again = Again()
    if len(failed) > AGAIN_COUNT_MAX:
        return again
    for one in failed:
        if run_alone(one):
            (again.pardoned if one.is_late else again.wrong).append(one.name)
    return again


def is_late(error):
    """Whether somebody waited in vain; urllib puts an error of its own around that where it connects."""
    return isinstance(error, LATE) or isinstance(getattr(error, "reason", None), TimeoutError)


def test_name(test):
    """The name of a test, or of the test that a subtest belongs to."""
    return getattr(test, "test_case", test).id()


def last_line(trace):
    """What was raised: the last line of a trace that is not indented."""
    lines = [line for line in trace.splitlines() if line and not line[0].isspace()]
    return lines[-1][:ERROR_LEN_MAX] if lines else "nothing was said"
