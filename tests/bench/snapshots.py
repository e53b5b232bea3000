"""Measures how long taking a snapshot takes while a volume grows, and what very many of them cost.

    scripts/bench-snapshots [--millions N] [--rounds N] [--write]

A server with six folders and protection 4+2 gets empty files from `cairn bench metadata`, as many as asked for. When the volume is
empty, and each time that it has ten times as many, snapshots are taken one after the other, through the admin API, beside the creation of more
files. Then a file is copied to two volumes in turn, and back, one of which has 1,000 snapshots. --write puts the table into docs/results/performance.md.
"""

import argparse
import os
import pathlib
import statistics
import subprocess
import time

from bench.nfs import report
from bench.peers import contenders
from bench.small import SNAPSHOTS, asked, snapshot_ms
from lib import document, harness, libnfs

JOBS = 4
DEPTH = 8
#: Steps at which it is measured, beside the last one.
STEPS = (0, 10_000, 100_000, 1_000_000)
#: Milliseconds.
AIM = 10
#: Of the throughput without snapshots.
COST_AIM = 0.97
MANY = 1000
FILE_BYTES = 64 << 20
#: The volume without snapshots, and the one with many.
NAMES = {False: "none", True: "many"}
#: A hundred files a second is no progress.
FILES_PER_SECOND_MIN = 100


def inodes(server):
    return asked(server, "GET", "/api/v1/volumes/main")["inodes"]


def grown(server, load, count, begun):
    """Waits until the volume has so many files."""
    while inodes(server) < count:
        if load.poll() is not None:
            raise harness.Failure(f"the load ended before there were {count:,} files: {load.returncode}")
        if time.monotonic() - begun > 60 + count / FILES_PER_SECOND_MIN:
            raise harness.Failure(f"there are not {count:,} files after {time.monotonic() - begun:.0f} s")
        time.sleep(0.05)


def measure(root, count):
    rows = []
    with harness.Server(root, contenders.DISKS) as server:
        # A few more, so that files are made while the last ones are measured.
        each = count // JOBS * 21 // 20
        load = subprocess.Popen(
            [
                str(harness.cairn_path()), "bench", "metadata", f"nfs://127.0.0.1:{server.port}/main", "--files", str(each), "--jobs", str(JOBS),
                "--depth", str(DEPTH), "--out", str(root / "result.json"),
            ],
            stdout=subprocess.DEVNULL,
        )
        begun = time.monotonic()
        try:
            for step in [step for step in STEPS if step < count] + [count]:
                grown(server, load, step, begun)
                there, seconds = inodes(server), time.monotonic() - begun
                median, most = snapshot_ms(server, f"at{step}-")
                rate = (inodes(server) - there) / (time.monotonic() - begun - seconds)
                rows.append((there, median, most, rate))
                print(f"bench-snapshots: {rows[-1]}", flush=True)
        finally:
            load.kill()
            load.wait()
    return rows


def volumes_in_turn(root, rounds):
    """(MB/s, processor seconds of the server for each GB) of each round: writes and reads, without snapshots and with."""
    found: dict[tuple[str, bool], list[tuple[float, float]]] = {(what, with_snapshots): [] for what in ("write", "read") for with_snapshots in (False, True)}
    with harness.scratch("snapshots-", pathlib.Path("/dev/shm")) as memory, harness.Server(root, contenders.DISKS) as server:
        source, back = memory / "source", memory / "back"
        for with_snapshots, name in NAMES.items():
            server.cairn("volume", "create", name, "--compression", "none")
            server.cairn("export", "set", name, "--client", "127.0.0.1", "--squash", "none")
            with libnfs.Mount(server.libnfs_url().replace("/main", f"/{name}")) as mount:
                for number in range(MANY if with_snapshots else 0):
                    mount.write_file("/old", os.urandom(1 << 12))
                    asked(server, "POST", f"/api/v1/volumes/{name}/snapshots", {"name": f"s{number}"})

        def timed(what, with_snapshots, pair):
            cpu, begun = server.cpu_seconds(), time.monotonic()
            server.cairn("cp", "-q", *pair)
            seconds, cpu = time.monotonic() - begun, server.cpu_seconds() - cpu
            found[what, with_snapshots].append((FILE_BYTES / 1e6 / seconds, cpu / (FILE_BYTES / 1e9)))

        for number in range(rounds):
            source.write_bytes(os.urandom(FILE_BYTES))
            for with_snapshots in (number % 2 == 0, number % 2 != 0):
                url = f"nfs://127.0.0.1:{server.port}/{NAMES[with_snapshots]}/file"
                timed("write", with_snapshots, (source, url))
                back.unlink(missing_ok=True)
                timed("read", with_snapshots, (url, back))
                if source.read_bytes() != back.read_bytes():
                    raise harness.Failure("other bytes were read than were written")
    return found


def cost_table(found):
    lines = ["| | without | with | of it (quarters of the rounds) | CPU without | CPU with |", "|---|---|---|---|---|---|"]
    for what in ("write", "read"):
        without, with_them = found[what, False], found[what, True]
        ratios = [after[0] / before[0] for before, after in zip(without, with_them)]
        low, middle, high = statistics.quantiles(ratios)
        rate = {has: statistics.median(it[0] for it in found[what, has]) for has in (False, True)}
        cpu = {has: statistics.median(it[1] for it in found[what, has]) for has in (False, True)}
        lines.append(
            f"| {what} | {rate[False]:,.0f} MB/s | {rate[True]:,.0f} MB/s | {middle:.2f} ({low:.2f} to {high:.2f}) "
            f"| {cpu[False]:.2f} s/GB | {cpu[True]:.2f} s/GB |"
        )
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--millions", type=int, default=10, help="of files")
    parser.add_argument("--rounds", type=int, default=40, help="of files that are copied to each volume in turn")
    parser.add_argument("--write", action="store_true", help="write the table into docs/results/performance.md")
    options = parser.parse_args()
    with harness.scratch("snapshots-") as root:
        found = volumes_in_turn(root, options.rounds)
    with harness.scratch("snapshots-") as root:
        rows = measure(root, options.millions * 1_000_000)
    lines = [
        f"Measured {report.today()}: {SNAPSHOTS} snapshots at each step, on {os.cpu_count()} CPUs.", "",
        "| files in the volume | a snapshot takes, median | at most | aim | files made in a second meanwhile |", "|---|---|---|---|---|",
    ]
    lines += [f"| {there:,} | {median:.1f} ms | {most:.1f} ms | {AIM} ms | {rate:,.0f} |" for there, median, most, rate in rows]
    lines += [
        "", f"Files of {FILE_BYTES >> 20} MiB, overwritten in two volumes in turn, {options.rounds} times, one with {MANY:,} snapshots.", "",
        *cost_table(found), "", f"The aim is {COST_AIM}.",
    ]
    text = "\n".join(lines)
    print(text)
    if options.write:
        document.write("bench-snapshots", text)
