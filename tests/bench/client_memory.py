"""Does `cairn bench` keep its memory flat? Runs the four corners on a server here and watches the resident memory.

    scripts/bench-client-memory [--minutes 60] [--depths LIST]

The minutes are shared by the phases: four for each depth. Prints what the program held in each phase, draining out
the phase's first tenth, in which connections and buffers are made. Ends with 1 if a phase grew by more than
10 MB from its first half to its second, or ended with more than twice the memory of the first phase.
"""

import argparse
import json
import pathlib
import subprocess
import threading
import time

from lib import harness

CORNER_COUNT = 4
SAMPLE_SECONDS = 1.0
# Buffers of a few hundred KiB come and go with how busy the machine is, and the allocator keeps them a while.
GROWTH_MB_MAX = 10.0
TIMES_MAX = 2.0


class Watch(threading.Thread):
    """Resident memory of a process over time."""

    def __init__(self, pid):
        super().__init__(daemon=True)
        self.pid = pid
        self.samples = []
        self.ended = threading.Event()

    def run(self):
        while not self.ended.wait(SAMPLE_SECONDS):
            try:
                self.samples.append((time.monotonic(), harness.resident_bytes(self.pid) / 1e6))
            except (OSError, StopIteration, IndexError):
                return

    def between(self, start, end):
        return [megabytes for at, megabytes in self.samples if start <= at <= end]


def highest(values):
    return max(values, default=float("nan"))


def measure(server, minutes, depths, result):
    """What each phase held: its name and the samples of its halves."""
    seconds = max(1, round(minutes * 60 / (CORNER_COUNT * len(depths))))
    command = [harness.cairn_path(), "bench", "four-corners", server.url(), "--working-set", "256MiB", "--ramp", "0s",
               "--runtime", f"{seconds}s", "--jobs", "2", "--depths", ",".join(map(str, depths)), "-o", result]
    program = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    watch = Watch(program.pid)
    watch.start()
    phases, lines = [], []
    for line in program.stdout or ():
        now = time.monotonic()
        lines.append(line)
        name, colon, _ = line.partition(": ")
        if colon and " depth " in name:
            start, middle = now - seconds * 0.9, now - seconds * 0.45
            phases.append((name, watch.between(start, middle), watch.between(middle, now)))
    status = program.wait()
    watch.ended.set()
    if status != 0 or len(phases) != CORNER_COUNT * len(depths):
        raise harness.Failure(f"cairn bench ended with {status} after {len(phases)} phases:\n{''.join(lines[-20:])}")
    return seconds, phases


def depth_list(text):
    """`64,1` as numbers."""
    return [int(depth) for depth in text.split(",")]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--depths", type=depth_list, default=[1],
                        metavar="LIST", help="as `cairn bench four-corners --depths` (default 1)")
    arguments = parser.parse_args()
    depths = arguments.depths
    with harness.scratch("bench-client-memory-") as root, harness.Server(pathlib.Path(root)) as server:
        result = pathlib.Path(root) / "result.json"
        seconds, phases = measure(server, arguments.minutes, depths, result)
        operations = sum(phase["operations"] for phase in json.loads(result.read_text())["phases"])
    print(f"{len(phases)} phases of {seconds} s, {operations:,} requests; most resident memory of `cairn bench`, MB:\n")
    print("| phase | first half | second half |\n|---|---|---|")
    is_flat = True
    for name, first, second in phases:
        is_flat &= not highest(second) > highest(first) + GROWTH_MB_MAX
        print(f"| {name} | {highest(first):.1f} | {highest(second):.1f} |")
    is_flat &= not phases[-1][2] or phases[-1][2][-1] <= TIMES_MAX * highest(phases[0][1] + phases[0][2])
    print(f"\nbench-client-memory: {'flat' if is_flat else 'NOT flat'}")
    return 0 if is_flat else 1
