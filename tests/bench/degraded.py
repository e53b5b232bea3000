"""Measures reads of a cluster of six nodes while two of them are lost, beside the same reads with all six.

    scripts/bench-degraded [--rounds N] [--mib N] [--write]

All nodes are processes of this machine, with one disk each and protection 4+2. For each reading the nodes are stopped and
started, so that nothing is in memory but what the kernel is told to drop, too. --write puts the table into
docs/results/performance.md.
"""

import argparse
import os
import pathlib
import statistics
import subprocess
import time

from bench.nfs import peers, report
from bench.peers.contenders import CLUSTER_VOLUME, CairnCluster
from lib import document, harness

FILES = 4
LOST = 2


def read_all(server, to):
    """MB/s of all files, read side by side."""
    os.sync()
    peers.DROP_CACHES.write_text("3")
    begun = time.monotonic()
    copies = [
        subprocess.Popen([str(harness.cairn_path()), "cp", server.url(f"file{number}"), str(to / f"file{number}")])
        for number in range(FILES)
    ]
    failed = [copy.wait() for copy in copies]
    seconds = time.monotonic() - begun
    if any(failed):
        raise harness.Failure("a file could not be read")
    return sum((to / f"file{number}").stat().st_size for number in range(FILES)) / 1e6 / seconds


def same(first, second):
    return subprocess.run(["cmp", first, second]).returncode == 0


def one_round(options, memory):
    """Rates with all nodes, and without two of them."""
    with harness.scratch("degraded-") as root:
        server = CairnCluster(root)
        try:
            server.start()
            source = memory / "source"
            source.write_bytes(os.urandom(options.mib << 20))
            for number in range(FILES):
                subprocess.run([str(harness.cairn_path()), "cp", str(source), server.url(f"file{number}")], check=True)
            # All at once: in order the last ones would wait for those before them.
            server.cluster.kill(*server.cluster.names)
            server.cluster.start_nodes(*server.cluster.names)
            server.await_serving()
            whole = read_all(server, memory)
            server.cluster.kill(*server.cluster.names)
            left = server.cluster.names[LOST:]
            server.cluster.start_nodes(*left)
            server.owner = server.cluster.owner(CLUSTER_VOLUME, without=server.cluster.names[:LOST])
            harness.wait_until(server.serves, 90, f"that {server.owner} serves {CLUSTER_VOLUME}")
            degraded = read_all(server, memory)
            if not all(same(source, memory / f"file{number}") for number in range(FILES)):
                raise harness.Failure("other bytes were read than were written")
            return whole, degraded
        finally:
            server.kill()


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--mib", type=int, default=256, help=f"of each of {FILES} files")
    parser.add_argument("--write", action="store_true", help="write the table into docs/results/performance.md")
    options = parser.parse_args()
    found = []
    # What is read goes to memory.
    with harness.scratch("degraded-", pathlib.Path("/dev/shm")) as memory:
        for number in range(options.rounds):
            found.append(one_round(options, memory))
            print(f"bench-degraded: round {number + 1}: {found[-1][0]:.0f} and {found[-1][1]:.0f} MB/s", flush=True)
    whole, degraded = (statistics.median(column) for column in zip(*found))
    text = "\n".join([
        f"Measured {report.today()}, {options.rounds} rounds; {FILES} files of {options.mib} MiB at a time.", "",
        "| six nodes | two of them lost | ratio (rounds) | aim |", "|---|---|---|---|",
        f"| {whole:,.0f} MB/s | {degraded:,.0f} MB/s | {report.ratio_text([two / six for six, two in found])} | 0.7 |",
    ])
    print(text)
    if options.write:
        document.write("bench-degraded", text)
