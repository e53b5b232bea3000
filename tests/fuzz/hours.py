"""Runs every fuzz target until each has had so many hours of processor time: fuzz-hours HOURS [TARGET...]

Goes on where it stopped: what was found, and how much time each target had, is kept in a folder. The
targets take turns, the one with the least time first. Other work on the machine delays it but is not
counted, as only the user time of the fuzzers is. A target that an input breaks is not run again until
its `broken` is taken out of the state; the others go on, and the exit status is 1 at the end.
"""

import argparse
import contextlib
import datetime
import fcntl
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
FUZZ = ROOT / "fuzz"
BINARIES = FUZZ / "target/x86_64-unknown-linux-gnu/release"
INPUT_LEN_BYTES_MAX = 65536
# No input of that size may make a decoder take more than this for one thing.
ALLOCATION_MEBIBYTES_MAX = 64
# Of wall time, so on a busy machine it may be over although the input is quick: it is tried again then.
INPUT_SECONDS_MAX = 300
INPUT_CPU_SECONDS_MAX = 10
# How often it is looked how much time a fuzzer had.
LOOK_SECONDS = 0.5
INTERRUPTED = 72
TOO_SLOW = 70
# The last is of a fuzzer that was stopped before it could say so itself.
FINE = (0, INTERRUPTED, -signal.SIGINT)

COVERAGE = re.compile(rb"^#\d+\s+\w+\s+cov: (\d+) ft: (\d+) corp: ", re.MULTILINE)
EXECUTIONS = re.compile(rb"^stat::number_of_executed_units:\s+(\d+)", re.MULTILINE)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("hours", type=float, nargs="?", default=1, help="processor time for each target (default 1)")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help="only these")
    parser.add_argument("--state", type=pathlib.Path, default=FUZZ / "target/hours")
    parser.add_argument("--corpora", type=pathlib.Path, default=FUZZ / "target/corpus")
    parser.add_argument("--binaries", type=pathlib.Path, help="built already, in this folder")
    parser.add_argument("--slice", type=int, default=300, help="processor seconds of one turn (default 300)")
    parser.add_argument("--table", action="store_true", help="print what was done so far, for docs/results/fuzzing.md")
    parser.add_argument("--jobs", type=int, default=1, help="fuzzers at a time (default 1)")
    return parser.parse_intermixed_args()


def targets():
    """The names of the fuzz targets, which are the files of their bodies."""
    return sorted(path.stem for path in (FUZZ / "fuzz_targets").glob("*.rs"))


def commit():
    run = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    answer = subprocess.run(run, capture_output=True, text=True, check=False)
    return answer.stdout.strip() or "unknown"


def user_seconds(pid):
    """Time of the processor that a child had so far."""
    # The name, which may hold anything, ends with the last parenthesis.
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) / os.sysconf("SC_CLK_TCK")


class Hours:
    def __init__(self, given):
        self.given = given
        self.names = given.targets or targets()
        self.enough_seconds = given.hours * 3600
        self.lock = threading.Lock()
        self.running = set()
        self.stopping = False
        given.state.mkdir(parents=True, exist_ok=True)
        # Held to the end: two that write one state would each undo what the other counts.
        self.turnstile = open(given.state / "lock", "w")  # noqa: SIM115
        try:
            fcntl.flock(self.turnstile, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            sys.exit(f"fuzz-hours: another one counts in {given.state}")
        self.state_path = given.state / "state.json"
        self.log_path = given.state / "hours.log"
        self.state = json.loads(self.state_path.read_text()) if self.state_path.exists() else {}

    def of(self, name):
        return self.state.setdefault(name, {"cpu_seconds": 0.0, "executions": 0, "turns": 0})

    def take(self):
        """The target whose turn it is, or None when there is none."""
        with self.lock:
            open_ones = [
                name
                for name in self.names
                if name not in self.running
                and "broken" not in self.of(name)
                and self.of(name)["cpu_seconds"] < self.enough_seconds
            ]
            if not open_ones or self.stopping:
                return None
            name = min(open_ones, key=lambda name: self.of(name)["cpu_seconds"])
            self.running.add(name)
            return name

    def work(self):
        while name := self.take():
            try:
                self.turn(name)
            finally:
                with self.lock:
                    self.running.remove(name)

    def turn(self, name):
        given = self.given
        scratch, artifacts = given.corpora / name, given.state / "artifacts" / name
        for folder in (scratch, artifacts):
            folder.mkdir(parents=True, exist_ok=True)
        before = len(os.listdir(scratch))
        command = [
            given.binaries / name,
            f"-max_len={INPUT_LEN_BYTES_MAX}",
            f"-malloc_limit_mb={ALLOCATION_MEBIBYTES_MAX}",
            f"-timeout={INPUT_SECONDS_MAX}",
            f"-artifact_prefix={artifacts}/",
            "-print_final_stats=1",
            scratch,
            FUZZ / "corpus" / name,
        ]
        environment = {**os.environ, "ASAN_OPTIONS": "detect_odr_violation=0"}
        output_path = given.state / f"{name}.output"
        with open(output_path, "wb") as output:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment
            )
            used = self.watch(process)
        self.note(name, process.returncode, used.ru_utime, output_path, before)

    def watch(self, process):
        """Waits for a fuzzer, and ends it when it had its time; what it used.

        That is time of the processor: libFuzzer's own limit is of the clock, and on a busy machine it would
        be over before the corpus is read. It ends between two inputs, so that one which never ends is found.
        """
        sent = None
        while True:
            pid, status, used = os.wait4(process.pid, os.WNOHANG)
            if pid:
                process.returncode = os.waitstatus_to_exitcode(status)
                return used
            end = None
            if self.stopping:
                end = signal.SIGINT
            elif user_seconds(process.pid) >= self.given.slice:
                end = signal.SIGUSR1
            if end and end != sent:
                process.send_signal(end)
                sent = end
            time.sleep(LOOK_SECONDS)

    def note(self, name, exit_code, cpu_seconds, output_path, before):
        output = output_path.read_bytes()
        executions = EXECUTIONS.findall(output)
        coverage = COVERAGE.findall(output)
        with self.lock:
            mine = self.of(name)
            mine["cpu_seconds"] = round(mine["cpu_seconds"] + cpu_seconds, 1)
            mine["executions"] += int(executions[-1]) if executions else 0
            mine["turns"] += 1
            if coverage:
                # A turn that was interrupted may not have come to what was known before.
                for key, value in zip(("coverage", "features"), coverage[-1]):
                    mine[key] = max(mine.get(key, 0), int(value))
            found = len(os.listdir(self.given.corpora / name)) - before
            if exit_code not in FINE and not (exit_code == TOO_SLOW and self.was_only_busy(name)):
                kept = output_path.with_suffix(".broken")
                output_path.rename(kept)
                mine["broken"] = f"exit code {exit_code}: {kept}"
            self.save()
            line = (
                f"{datetime.datetime.now():%F %T} {commit()} {name}: {mine['cpu_seconds']:.0f} s of CPU, "
                f"{mine['executions']} executions, coverage {mine.get('coverage')}, "
                f"features {mine.get('features')}, new inputs {found}"
                f"{', BROKEN: ' + mine['broken'] if 'broken' in mine else ''}"
            )
            print(line, flush=True)
            with open(self.log_path, "a") as log:
                log.write(line + "\n")

    def was_only_busy(self, name):
        """Whether each input that took too long by the clock is quick by the processor's time."""
        for path in (self.given.state / "artifacts" / name).glob("timeout-*"):
            process = subprocess.Popen(
                [self.given.binaries / name, path], stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )
            _, status, used = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            if process.returncode != 0 or used.ru_utime > INPUT_CPU_SECONDS_MAX:
                return False
            path.unlink()
        return True

    def save(self):
        new = self.state_path.with_suffix(".new")
        new.write_text(json.dumps(self.state, indent=1, sort_keys=True) + "\n")
        new.rename(self.state_path)

    def stop(self, *_):
        # Those who watch the fuzzers see it; a lock may be held by who was interrupted for this.
        self.stopping = True

    def summary(self):
        width = max(map(len, self.names))
        for name in self.names:
            mine = self.of(name)
            word = "BROKEN" if "broken" in mine else "ok"
            missing = self.enough_seconds - mine["cpu_seconds"]
            if word == "ok" and missing > 0:
                word = f"{missing:.0f} s to go"
            print(
                f"{name:{width}} {mine['cpu_seconds']:8.0f} s {mine['executions']:13} executions "
                f"coverage {mine.get('coverage', 0):6}  {word}"
            )
        return any("broken" in self.of(name) for name in self.names)


def table(state_path):
    """The state as a table; a driver may be writing it."""
    print("| target | minutes of processor time | executions | coverage | result |")
    print("|---|---|---|---|---|")
    for name, mine in sorted(json.loads(state_path.read_text()).items()):
        result = "broken" if "broken" in mine else "nothing found"
        print(
            f"| `{name}` | {mine['cpu_seconds'] / 60:.1f} | {mine['executions']:,} "
            f"| {mine.get('coverage', 0):,} | {result if mine['executions'] else 'not run'} |"
        )


def build():
    # The fuzzers have a workspace and a compiler of their own; they must not share the folder of the rest.
    environment = {key: value for key, value in os.environ.items() if key != "CARGO_TARGET_DIR"}
    subprocess.run(["cargo", "+nightly", "fuzz", "build"], cwd=FUZZ, env=environment, check=True)


def give_way():
    """Makes niceness count: else Linux gives each session an equal share (sched(7), autogroup)."""
    niceness = os.nice(0)
    try:
        # With a terminal the session has other work, too, which is not as patient.
        os.close(os.open("/dev/tty", os.O_RDONLY))
    except OSError:
        # A kernel without: the niceness counts as it is.
        with contextlib.suppress(OSError):
            pathlib.Path("/proc/self/autogroup").write_text(str(niceness))


def main():
    given = arguments()
    if given.table:
        return table(given.state / "state.json")
    if given.binaries is None:
        build()
        given.binaries = BINARIES
    give_way()
    hours = Hours(given)
    unknown = set(hours.names) - set(targets())
    if unknown:
        sys.exit(f"fuzz-hours: no such target: {', '.join(sorted(unknown))}")
    signal.signal(signal.SIGINT, hours.stop)
    signal.signal(signal.SIGTERM, hours.stop)
    threads = [threading.Thread(target=hours.work) for _ in range(max(1, given.jobs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        # In pieces, so that signals are seen.
        while thread.is_alive():
            thread.join(1)
    sys.exit(1 if hours.summary() else 0)
