"""The end-to-end tests: real servers, libnfs and our own client.

    scripts/test-e2e [--jobs N] [TEST...]    all, or some: test_files, test_disks.Disks.test_a_lost_disk_is_replaced

Files of tests run side by side, each in a process: as many as there are processors (--jobs, or E2E_JOBS), and beside
them those that mostly wait. What a file printed appears when it has ended; that of files that failed comes last.

A test that failed runs again when all others have ended, alone: see tests/lib/again.py. One that waited in vain and passes then counts
as passed, and the end of the output names it; from three on the run fails. A wrong answer stands.
"""

import argparse
import ast
import concurrent.futures
import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

from lib import again, harness

TESTS = pathlib.Path(__file__).parent
SLOWEST_TESTS_COUNT = 10
# Those that take longest start first.
LONGEST = ("test_faulty_disks", "test_tiers", "test_faults", "test_classes", "test_disks", "test_damage", "test_space")
# Mostly wait, for disks that hang, servers that stand still and rates that are low (a fifth of their time is processor
# time): they run beside the others.
WAITING = ("test_faulty_disks", "test_faults", "test_frozen_disks", "test_tiers")
WAITING_JOBS = 5
# Files that would take longer than a minute: the tests of each are divided among so many processes.
PARTS = {
    "test_faulty_disks": 12, "test_tiers": 4, "test_classes": 4, "test_disks": 4,
    "test_directory_protection": 2, "test_iscsi": 2, "test_scrub": 2, "test_snapshots": 2, "test_space": 3,
}  # fmt: skip


@dataclasses.dataclass
class Done:
    """What became of one job."""

    name: str
    output: str
    seconds: float
    cpu_seconds: float
    passed: int
    failed: list[again.Failed]
    skipped: list[str]
    test_seconds: dict[str, float]


@dataclasses.dataclass(frozen=True)
class Job:
    """What one process runs."""

    name: str
    tests: tuple[str, ...]

    @property
    def file(self):
        return self.tests[0].partition(".")[0]


def all_jobs():
    return [job for path in sorted(TESTS.glob("test_*.py")) for job in jobs_of(path)]


def jobs_of(path):
    """One file as a job, or as several."""
    count = PARTS.get(path.stem, 1)
    if count == 1:
        return [Job(path.stem, (path.stem,))]
    tests = tests_of(path)
    return [Job(f"{path.stem} ({index + 1} of {count})", tuple(tests[index::count])) for index in range(count)]


def tests_of(path):
    """The names of all tests of a file, without importing it."""
    classes = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.ClassDef)]
    return [
        f"{path.stem}.{class_.name}.{function.name}"
        for class_ in classes
        for function in class_.body
        if isinstance(function, ast.FunctionDef) and function.name.startswith("test_")
    ]


def rank(job):
    return LONGEST.index(job.file) if job.file in LONGEST else len(LONGEST)


class Run:
    """All files of one call, and the processes that run now."""

    def __init__(self):
        self.processes = set()
        self.ended = False

    def one(self, job):
        begun = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            result_path = pathlib.Path(folder) / "result.json"
            argv = [sys.executable, "-m", "e2e.one_file", str(result_path), *(f"e2e.{test}" for test in job.tests)]
            environment = os.environ | {"PYTHONPATH": str(TESTS.parent), "PYTHONDONTWRITEBYTECODE": "1"}
            if self.ended:
                raise harness.Failure("ended")
            process = subprocess.Popen(
                argv, cwd=harness.REPOSITORY, env=environment, text=True, stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            )
            self.processes.add(process)
            output, _ = process.communicate()
            self.processes.discard(process)
            found = json.loads(result_path.read_text()) if result_path.exists() else {}
        failed = [again.Failed(**one) for one in found.get("failed", [])]
        if process.returncode and not failed:
            failed = [again.Failed(job.name, f"ended with {process.returncode} before its tests did", False)]
        seconds = time.monotonic() - begun
        return Done(
            name=job.name, output=output, seconds=seconds, cpu_seconds=found.get("cpu_seconds", 0.0),
            passed=found.get("passed", 0), failed=failed, skipped=found.get("skipped", []),
            test_seconds=found.get("seconds", {}),
        )

    def all(self, jobs, busy_count):
        """Yields each file when it has ended."""
        jobs = sorted(jobs, key=lambda job: (rank(job), job.name))
        with (
            concurrent.futures.ThreadPoolExecutor(busy_count) as busy,
            concurrent.futures.ThreadPoolExecutor(WAITING_JOBS) as waiting,
        ):
            try:
                futures = [(waiting if job.file in WAITING else busy).submit(self.one, job) for job in jobs]
                for future in concurrent.futures.as_completed(futures):
                    yield future.result()
            except BaseException:
                self.ended = True
                for process in list(self.processes):
                    process.terminate()
                raise

    def again(self, results):
        """Runs tests that failed once more, each alone; those that it pardons count as passed."""
        # Others are no tests: a file that cannot be imported, a class that cannot be set up.
        origins = {one.name: done for done in results for one in done.failed if one.name.startswith("e2e.")}

        def run_alone(one):
            test = one.name.removeprefix("e2e.")
            print(f"== {test}: failed, once more alone: {one.error}", flush=True)
            alone = self.one(Job(f"{test} (alone)", (test,)))
            print(alone.output, flush=True)
            return bool(alone.passed) and not alone.failed

        found = again.run_again([one for done in results for one in done.failed if one.name in origins], run_alone)
        for name in found.pardoned:
            done = origins[name]
            print(f"== {done.name}: what it printed beside others:\n{done.output}")
            done.failed = [one for one in done.failed if one.name != name]
            done.passed += 1
        return found


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=int(os.environ.get("E2E_JOBS") or os.cpu_count() or 1))
    parser.add_argument("tests", nargs="*", metavar="TEST")
    return parser.parse_args()


def summary(results, reruns, seconds):
    """Prints what all files came to; returns whether all passed."""
    for done in results:
        if done.failed:
            print(f"== {done.name}: FAILED\n{done.output}")
    print("== each file: seconds, and seconds of processor time")
    for done in sorted(results, key=lambda done: -done.seconds):
        counts = f"{done.passed} passed, {len(done.failed)} failed, {len(done.skipped)} skipped"
        print(f"{done.seconds:7.1f} s {done.cpu_seconds:7.1f} s  {done.name}: {counts}")
    tests = {name: taken for done in results for name, taken in done.test_seconds.items()}
    print("== the slowest tests")
    for name, taken in sorted(tests.items(), key=lambda item: -item[1])[:SLOWEST_TESTS_COUNT]:
        print(f"{taken:7.1f} s  {name}")
    for skipped in (line for done in results for line in done.skipped):
        print(f"NOT TESTED: {skipped}")
    failed = [one for done in results for one in done.failed]
    for one in failed:
        print(f"FAILED {one.name}: {one.error}")
    for line in reruns.lines():
        print(line)
    print(f"end-to-end tests: {len(results)} processes, {seconds:.0f} s")
    passed_count = sum(done.passed for done in results)
    print(f"{passed_count} passed, {len(failed)} failed", flush=True)
    return bool(passed_count) and not failed and reruns.is_well()


def main():
    options = parse_arguments()
    # Fails at once, not once for each test.
    print(f"end-to-end tests of {harness.cairn_path()}", flush=True)
    begun = time.monotonic()
    results = []
    jobs = [Job(name, (name,)) for name in options.tests] or all_jobs()
    run = Run()
    for done in run.all(jobs, max(1, options.jobs)):
        results.append(done)
        word = "FAILED, its output comes last" if done.failed else "ok"
        print(f"== {done.name}: {word} ({done.seconds:.0f} s)\n{'' if done.failed else done.output}", end="", flush=True)
    reruns = run.again(results)
    return 0 if summary(results, reruns, time.monotonic() - begun) else 1
