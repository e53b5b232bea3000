"""Measures what random overwrites of a whole file leave of its sequential read.

    scripts/bench-overwrites [--mib MIB] [--rest SECONDS] [--write]

A server with six folders and protection 4+2 gets one file of 2 GiB unless --mib says otherwise, written in order, and read in order. Then each
4 KiB of it are overwritten once, in an order of chance, by eight connections. It is read in order at once, and again after five minutes of rest
(--rest), in which the server collects garbage and joins small extents. The server is started anew before each read, so that nothing is in
memory; for the rest it stays as the read before left it. At the end, blocks all over the file are compared. --write puts the table
into docs/results/performance.md.
"""

import argparse
import concurrent.futures
import os
import random
import time

from bench.nfs import load as loads
from bench.nfs import report
from bench.peers import contenders
from lib import document, harness, libnfs

BLOCK_BYTES = 4096
CONNECTIONS = 8
REST_SECONDS = 300
CHECKED_BLOCKS = 2000
#: As the load names the file of its first connection.
FILE = "/nfsload-f0"
#: Of a fresh file's read, after the rest.
AIM = 0.6
SEED = 48
#: Bytes of chance that blocks are cut from, a prime number of bytes apart: neighbours have nothing in common.
POOL = random.Random(SEED).randbytes(1 << 20)
STRIDE = 77_777
HEADER_BYTES = 8


def block(number):
    """What a block is overwritten with; no other block is the same."""
    start = number * STRIDE % (len(POOL) - BLOCK_BYTES)
    return number.to_bytes(HEADER_BYTES, "little") + POOL[start : start + BLOCK_BYTES - HEADER_BYTES]


def overwrite_some(server, numbers):
    with libnfs.Mount(server.libnfs_url()) as mount, mount.open(FILE, os.O_RDWR) as file:
        for number in numbers:
            file.write(number * BLOCK_BYTES, block(number))
        file.sync()


def overwrite(server, len_bytes):
    """Each block once; returns the seconds that it took."""
    numbers = list(range(len_bytes // BLOCK_BYTES))
    random.Random(SEED).shuffle(numbers)
    begun = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(CONNECTIONS) as pool:
        done = [pool.submit(overwrite_some, server, numbers[part::CONNECTIONS]) for part in range(CONNECTIONS)]
        for future in done:
            future.result()
    return time.monotonic() - begun


def read_rate(load, server, len_bytes):
    """Bytes a second of one reader in order."""
    found = load.run(server, f"seqread conns=1 depth=16 size={len_bytes}")
    if found["errors"] or not found["ops"]:
        raise harness.Failure(f"reading in order: {found['errors']} of {found['ops']} requests failed")
    return len_bytes / found["ops"] * found["ops_per_s"]


def background_bytes(server):
    """What was written to segments so far, with parity, and the parts of it that collection and joining have moved."""
    metrics = server.metrics()
    return {
        "disks": metrics["cairn_store_appended_bytes_total"] + metrics["cairn_store_parity_bytes_total"],
        "collected": metrics['cairn_gc_rewritten_bytes_total{volume="main"}'],
        "joined": metrics['cairn_joined_bytes_total{volume="main"}'],
    }


def check(server, len_bytes):
    """Blocks all over the file are what they were overwritten with."""
    chosen = random.Random(SEED + 1)
    with libnfs.Mount(server.libnfs_url()) as mount, mount.open(FILE) as file:
        for _ in range(CHECKED_BLOCKS):
            number = chosen.randrange(len_bytes // BLOCK_BYTES)
            if file.read(number * BLOCK_BYTES, BLOCK_BYTES) != block(number):
                raise harness.Failure(f"block {number} of the file is not what was written")


def measure(root, len_bytes, rest_seconds):
    load = loads.own()
    with harness.Server(root, contenders.DISKS) as server:
        load.run(server, f"seqwrite conns=1 depth=16 size={len_bytes}")
        server.restart()
        fresh = read_rate(load, server, len_bytes)
        print(f"bench-overwrites: fresh {fresh / 1e6:,.0f} MB/s", flush=True)
        seconds = overwrite(server, len_bytes)
        print(f"bench-overwrites: overwritten in {seconds:.0f} s", flush=True)
        server.restart()
        before = background_bytes(server)
        at_once = read_rate(load, server, len_bytes)
        print(f"bench-overwrites: at once {at_once / 1e6:,.0f} MB/s", flush=True)
        time.sleep(rest_seconds)
        after = background_bytes(server)
        server.restart()
        rested = read_rate(load, server, len_bytes)
        print(f"bench-overwrites: after {rest_seconds} s {rested / 1e6:,.0f} MB/s", flush=True)
        check(server, len_bytes)
    moved = {part: after[part] - before[part] for part in after}
    return {"fresh": fresh, "at once": at_once, "rested": rested}, seconds, moved


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--mib", type=int, default=2048, help="of the file")
    parser.add_argument("--rest", type=int, default=REST_SECONDS, help="seconds")
    parser.add_argument("--write", action="store_true", help="write the table into docs/results/performance.md")
    options = parser.parse_args()
    len_bytes = options.mib << 20
    with harness.scratch("overwrites-") as root:
        rates, seconds, moved = measure(root, len_bytes, options.rest)
    names = {"fresh": "written in order", "at once": "overwritten, at once", "rested": f"overwritten, after {options.rest} s of rest"}
    lines = [
        f"Measured {report.today()}: a file of {options.mib:,} MiB, overwritten in {seconds:.0f} s, on {os.cpu_count()} CPUs.", "",
        "| the file | read in order | of the fresh file |", "|---|---|---|",
    ]
    lines += [f"| {names[name]} | {rate / 1e6:,.0f} MB/s | {rate / rates['fresh']:.2f} |" for name, rate in rates.items()]
    lines += [
        "",
        f"From the first read after the overwrites to the end of the rest, {moved['disks'] / 2**20:,.0f} MiB were written to disks, with parity: "
        f"{moved['joined'] / 2**20:,.0f} MiB of the file were joined, and garbage collection copied {moved['collected'] / 2**20:,.0f} MiB. "
        f"The aim is {AIM} of the fresh file.",
    ]
    text = "\n".join(lines)
    print(text)
    if options.write:
        document.write("bench-overwrites", text)
