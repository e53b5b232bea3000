"""Reads with disks gone, beside the same reads with all there.

Owns: what is read, which disks go, how much the device is asked for.
Must not know: how results are shown.
"""

import pathlib

from bench.reliability import pool

RANDOM = "size={size} secs={seconds}"
READS = [
    pool.Work("seq", "one large file per connection, in order", "seqread conns=4 size={size}", True),
    pool.Work("rand-1m", "large files, 1 MiB at random", f"randread conns=4 depth=4 bs=1048576 {RANDOM}", True),
    pool.Work("rand-4k", "large files, 4 KiB at random", f"randread conns=4 depth=16 bs=4096 {RANDOM}", False),
    pool.Work("rand-4k-1", "large files, 4 KiB at random, one at a time", f"randread conns=1 depth=1 bs=4096 {RANDOM}", False),
    pool.Work("files", "files of 16 KiB, in order", "fileread conns=4 depth=16 bs=16384 files={files}", False),
    pool.Work("files-shuffled", "files of 16 KiB, at random", "fileread conns=4 depth=16 bs=16384 shuffle=1 files={files}", False),
]
BY_KEY = {work.key: work for work in READS}
WRITES = ["seqwrite conns=4 size={size}", "filewrite conns=4 depth=16 bs=16384 files={files}"]
LOST_MAX = 2


def lost_of(number, count):
    """Which disks are away; others in each round, and not next to each other."""
    return {(number + 3 * index) % pool.DISKS for index in range(count)}


def device_bytes(server):
    """What the process has had read from the device so far."""
    lines = pathlib.Path(f"/proc/{server.pid}/io").read_text().splitlines()
    return int(dict(line.split(": ") for line in lines)["read_bytes"])


def one(load, number, sizes, say):
    """Rates of each read by the number of disks away, and bytes that the device was asked for, per read."""
    rates: dict = {}
    with pool.pool("degraded-", flags=pool.SMALL_MEMORY) as server:
        for arguments in WRITES:
            load.run(server, arguments.format(**sizes))
        counts = list(range(LOST_MAX + 1))
        # Another one first each time.
        first = number % len(counts)
        for count in counts[first:] + counts[:first]:
            say(f"degraded, round {number + 1}: {count} disks away")
            for work in READS:
                pool.away(server, lost_of(number, count))
                before = device_bytes(server)
                result = load.run(server, work.arguments.format(**sizes))
                per_read = (device_bytes(server) - before) / result["ops"]
                found = result | {"rate": work.rate(result), "device_bytes_per_read": per_read}
                rates.setdefault(work.key, {})[str(count)] = found
    return rates


def run(load, rounds, sizes, say):
    return {"rounds": [one(load, number, sizes, say) for number in range(rounds)]}
