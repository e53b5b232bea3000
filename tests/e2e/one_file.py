"""Runs the tests of one file and says what became of them: one_file RESULT.json TEST...

Owns: the count of the tests, and the time that each took. Must not know: which files there are, what runs beside it.
"""

import dataclasses
import json
import pathlib
import resource
import sys
import unittest

from lib.again import Outcomes


def main():
    path, *names = sys.argv[1:]
    runner = unittest.TextTestRunner(resultclass=Outcomes, verbosity=1)  # type: ignore[arg-type]
    done = unittest.main(module=None, argv=["unittest", *names], testRunner=runner, exit=False).result
    assert isinstance(done, Outcomes)
    result = {
        "passed": done.passed_count(),
        "failed": [dataclasses.asdict(one) for one in done.failed()],
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


if __name__ == "__main__":
    main()
