"""Measures how soon space comes back that nothing lives in any more.

    scripts/bench-space [--mib N] [--rounds N] [--snapshots N] [--folders N,N] [--minutes N] [--write]

A file of 256 MiB is overwritten at random places, ten times its size, on a server with one folder and on one with six. Then nobody writes, and
every 15 s the blocks are counted that the file system below gave to what is in the folders, until there are no more than 1.2 times what lives, at its
protection, and 1 GiB. On other servers the file is overwritten in small parts, with a snapshot after each, and all snapshots are deleted. A
run fails where that takes longer than ten minutes, unless --minutes says otherwise; all samples are printed. --write puts the table into
docs/results/performance.md.
"""

import argparse
import contextlib
import os
import random
import statistics
import time

from bench.nfs import report
from bench.small import BLOCK_BYTES, asked
from lib import document, harness, libnfs

MIB = 1 << 20
#: Of what lives, and what may be beside it.
AIM_TIMES = 1.2
AIM_BYTES = 1 << 30
AIM_MINUTES = 10
SAMPLE_SECONDS = 15
#: Bytes of one overwrite, and of the part of the file that is overwritten between two snapshots.
WRITE_BYTES = 128 << 10
PART_BYTES = 16 * MIB
#: What data takes, by the number of folders.
PROTECTION = {1: 1.0, 6: 1.5}
NAME = "/file"
#: Clients that read are still served at once while space is given back.
PROBE_READS = 20


def taken(folders):
    """Bytes on disks of what is in folders, while files come and go; what has several names counts once."""
    files = {}
    for folder in folders:
        for root, _, names in os.walk(folder):
            for name in names:
                with contextlib.suppress(FileNotFoundError):
                    stat = os.stat(os.path.join(root, name))
                    files[stat.st_dev, stat.st_ino] = stat.st_blocks * BLOCK_BYTES
    return sum(files.values())


class Load:
    """A file that is overwritten."""

    def __init__(self, server, len_bytes):
        self.server, self.len_bytes = server, len_bytes
        self.rng = random.Random(1)
        # No part of it is like another, and making it anew each time would take longer than writing it.
        self.noise = os.urandom(8 * MIB)

    def piece(self):
        at = self.rng.randrange(len(self.noise) - WRITE_BYTES)
        return self.noise[at : at + WRITE_BYTES]

    def write(self, count_bytes):
        """Overwrites so many bytes, or makes the file."""
        with libnfs.Mount(self.server.libnfs_url()) as mount, mount.open(NAME, os.O_CREAT | os.O_RDWR) as file:
            there = mount.stat(NAME).size
            for offset in range(there, self.len_bytes, WRITE_BYTES):
                file.write(offset, self.piece())
            for _ in range(count_bytes // WRITE_BYTES):
                file.write(self.rng.randrange(self.len_bytes // WRITE_BYTES) * WRITE_BYTES, self.piece())
            file.sync()

    def read_ms(self):
        """Milliseconds that a read at a random place takes, the median of some."""
        took = []
        with libnfs.Mount(self.server.libnfs_url()) as mount, mount.open(NAME) as file:
            for _ in range(PROBE_READS):
                begun = time.monotonic()
                file.read(self.rng.randrange(self.len_bytes // WRITE_BYTES) * WRITE_BYTES, WRITE_BYTES)
                took.append(1000 * (time.monotonic() - begun))
        return statistics.median(took)


def overwrites(load, options):
    load.write(options.rounds * load.len_bytes)


def snapshots(load, options):
    load.write(0)
    names = [f"s{number:04}" for number in range(options.snapshots)]
    for name in names:
        load.write(PART_BYTES)
        asked(load.server, "POST", "/api/v1/volumes/main/snapshots", {"name": name})
    for name in names:
        asked(load.server, "DELETE", f"/api/v1/volumes/main/snapshots/{name}")


def measure(title, work, folders, options):
    """Seconds until the aim is reached, and the cells of the table."""
    with harness.scratch("space-") as root, harness.Server(root, folders) as server:
        load = Load(server, options.mib * MIB)
        work(load, options)
        lives = load.len_bytes * PROTECTION[folders]
        aim = AIM_TIMES * lives + AIM_BYTES
        begun = time.monotonic()
        samples: list[tuple[float, int]] = []
        told, reached = 0, None
        while True:
            seconds = time.monotonic() - begun
            used = taken(server.disks)
            volume = asked(server, "GET", "/api/v1/volumes/main")
            shards = taken(disk / "shards" for disk in server.disks)
            told = max(told, volume["freeing_bytes"])
            samples.append((seconds, used))
            print(
                f"bench-space: {title}, {folders} folders, {seconds:.0f} s: {used >> 20:,} MiB, of which shards {shards >> 20:,}; "
                f"garbage {volume['garbage_bytes'] >> 20:,}, being freed {volume['freeing_bytes'] >> 20:,}; "
                f"a read {load.read_ms():.1f} ms",
                flush=True,
            )
            if used <= aim:
                reached = seconds
                break
            if seconds > 60 * options.minutes:
                break
            time.sleep(max(0, SAMPLE_SECONDS * len(samples) - (time.monotonic() - begun)))
        mib = lambda value: f"{value / MIB:,.0f} MiB"
        first = lambda at: next((used for seconds, used in samples if seconds >= at), samples[-1][1])
        cells = [title, str(folders), mib(lives), mib(samples[0][1]), mib(first(60)), mib(samples[-1][1]), mib(aim)]
        cells += [mib(told), "not" if reached is None else f"{reached:.0f} s"]
        return reached, cells


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--mib", type=int, default=256, help="of the file")
    parser.add_argument("--rounds", type=int, default=10, help="times that it is overwritten")
    parser.add_argument("--snapshots", type=int, default=300)
    parser.add_argument("--folders", default="1,6", help="of the servers, one after the other")
    parser.add_argument("--minutes", type=int, default=AIM_MINUTES, help="until it counts as failed")
    parser.add_argument("--write", action="store_true", help="write the table into docs/results/performance.md")
    options = parser.parse_args()
    folders = [int(word) for word in options.folders.split(",")]
    if unknown := set(folders) - set(PROTECTION):
        raise harness.Failure(f"--folders can be {sorted(PROTECTION)}, not {sorted(unknown)}")
    lines = [
        f"Measured {report.today()}: {options.mib} MiB, overwritten {options.rounds} times, or with {options.snapshots} snapshots that are "
        f"deleted, on {os.cpu_count()} CPUs.", "",
        "| | folders | what lives | used at the end | a minute later | at last | aim | told as being freed, at most | aim reached after |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    late = []
    for title, work in (("overwrites", overwrites), ("snapshots", snapshots)):
        for count in folders:
            reached, cells = measure(title, work, count, options)
            lines.append(f"| {' | '.join(cells)} |")
            if reached is None:
                late.append(f"{title} on {count} folders")
    text = "\n".join(lines)
    print(text)
    if options.write:
        document.write("bench-space", text)
    if late:
        raise harness.Failure(f"space did not come back within {options.minutes} minutes: {', '.join(late)}")
