"""Measures the NFS engine of `cairn bench` beside nfsload (libnfs, C), on one server that holds all in memory.

    scripts/bench-engine [--quick] [--rounds N] [--load PATH-OF-nfsload.c] [--write]

The server is Cairn on a folder of /dev/shm. Each round runs both loads on each workload, the other one first each
time; what is read or written again is so once before, unmeasured. CPU time of the engine is that of the phase
alone; that of nfsload is of the whole program, which does nothing else worth mentioning. --write puts the table into
docs/results/performance.md.
"""

import argparse
import json
import pathlib
import statistics
import time

from bench.nfs import load as loads
from bench.nfs import report
from lib import document, harness

MEMORY = pathlib.Path("/dev/shm")
# Name, arguments, what one of its requests is counted in.
WORKLOADS = [
    ("sequential write 1 MiB, 4 connections", "seqwrite conns=4 depth=16 size={size}"),
    ("sequential read 1 MiB, 4 connections", "seqread conns=4 depth=16 size={size}"),
    ("random read 4 KiB, 4 connections", "randread conns=4 depth=16 bs=4096 size={size} secs={seconds}"),
    ("random write 4 KiB, 4 connections", "randwrite conns=4 depth=16 bs=4096 size={size} secs={seconds}"),
    ("random read 4 KiB, one at a time", "randread conns=1 depth=1 bs=4096 size={size} secs={seconds}"),
    ("create, 4 connections", "create conns=4 depth=16 files={files}"),
    ("stat, 4 connections", "stat conns=4 depth=16 files={files}"),
    ("unlink, 4 connections", "unlink conns=4 depth=16 files={files}"),
]
SIZES = {"size": 256 << 20, "seconds": 4, "files": 40_000}
# The engine writes its files anew, which keeps the server busy for a while after they are written.
WARM_SECONDS = 3
# What ends with its file is run again until it took so long together.
SECONDS_MIN = 3.0
SIZES_QUICK = {"size": 64 << 20, "seconds": 1, "files": 2_000}


class Engine(loads.Load):
    """The same program as our own load, with the engine in it."""

    def argv(self, server, arguments, folder=""):
        return [*super().argv(server, arguments, folder), "engine=1", f"warm={WARM_SECONDS if is_warm(arguments) else 0}"]

    def run(self, server, arguments, folder=""):
        found = super().run(server, arguments, folder)
        return found | {"load_cpu_seconds": found["cpu_secs"]}


def is_warm(arguments):
    """Reads and overwrites, whose files are there and read once before: both loads have them in the server's cache."""
    return not arguments.startswith(("create", "unlink"))


def measured(load, server, arguments):
    """Operations a second, and microseconds of CPU for each operation."""
    if load.is_libnfs and is_warm(arguments):
        start = time.monotonic()
        while time.monotonic() - start < WARM_SECONDS:
            load.run(server, arguments)
    ops, seconds, cpu_seconds = 0, 0.0, 0.0
    while not ops or (arguments.startswith("seq") and seconds < SECONDS_MIN):
        found = load.run(server, arguments)
        if found["errors"]:
            raise harness.Failure(f"{load.name} {arguments}: {found['errors']} requests failed")
        ops += found["ops"]
        seconds += found["ops"] / found["ops_per_s"]
        cpu_seconds += found["load_cpu_seconds"]
    return {"rate": ops / seconds, "cpu_us": cpu_seconds / ops * 1e6, "ops": ops}


def measure(contenders, sizes, rounds):
    results: dict = {}
    for number in range(rounds):
        with harness.scratch("bench-engine-", MEMORY) as root:
            server = harness.Server(root, flags=["--memory-limit", "6GiB"]).start()
            try:
                for name, arguments in WORKLOADS:
                    order = list(contenders.items())
                    for key, load in order if number % 2 == 0 else reversed(order):
                        cpu = server.cpu_seconds()
                        found = measured(load, server, arguments.format(**sizes))
                        found["server_cpu"] = server.cpu_seconds() - cpu
                        results.setdefault(name, {}).setdefault(key, []).append(found)
                        print(f"bench-engine: round {number + 1}, {name}, {key}: {found['rate']:.0f}/s, {found['cpu_us']:.2f} us of CPU each", flush=True)
            finally:
                server.kill()
    return results


def median(runs, value):
    return statistics.median(run[value] for run in runs)


def table(results, rounds):
    lines = [
        "| workload | engine, requests/s | nfsload | rate: engine / nfsload | CPU for each request, engine | nfsload | CPU: engine / nfsload |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, by_key in results.items():
        ours, theirs = by_key["engine"], by_key["nfsload"]
        rate = [median(runs, "rate") for runs in (ours, theirs)]
        cpu = [median(runs, "cpu_us") for runs in (ours, theirs)]
        lines.append(
            f"| {name} | {rate[0]:,.0f} | {rate[1]:,.0f} | {rate[0] / rate[1]:.2f} "
            f"| {cpu[0]:.1f} us | {cpu[1]:.1f} us | {cpu[0] / cpu[1]:.2f} |"
        )
    return "\n".join([f"Measured {report.today()}, medians of {rounds} rounds.", "", *lines])


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one round of small sizes, to see that everything runs")
    parser.add_argument("--rounds", type=int, help="4 unless --quick: the other one first in each")
    parser.add_argument("--load", type=pathlib.Path, default=loads.NFSLOAD, help="the source of nfsload")
    parser.add_argument("--write", action="store_true", help="write the table into docs/results/performance.md")
    options = parser.parse_args()
    rounds = options.rounds or (1 if options.quick else 4)
    contenders = {"engine": Engine("engine", loads.own().program, is_libnfs=False), "nfsload": loads.nfsload(options.load)}
    results = measure(contenders, SIZES_QUICK if options.quick else SIZES, rounds)
    file = harness.target_dir() / "bench" / "engine.json"
    file.write_text(json.dumps(results, indent=1))
    text = table(results, rounds)
    print(text)
    if options.write:
        document.write("bench-engine", text)
