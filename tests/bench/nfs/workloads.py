"""What is run against every server, in which order, and the ratio to NFS-Ganesha to reach.

Owns: the table of workloads, one round of them on a new server.
Must not know: how servers are started, how results are shown.
"""

import dataclasses

from bench.nfs import peers


@dataclasses.dataclass(frozen=True)
class Workload:
    key: str
    title: str
    arguments: str
    aim: float | None
    # The key whose files it works on; run first, also if it was not asked for.
    needs: str | None = None
    is_cold: bool = False
    # Runs, of which the median counts: for what takes only a fraction of a second.
    repeats: int = 1
    # The folder of its files; empty: the top.
    folder: str = ""

    @property
    def is_stream(self):
        return self.arguments.startswith("seq")

    @property
    def depth_one(self):
        return "depth=1 " in self.arguments + " "

    @property
    def connections(self):
        return 1 if "conns=1" in self.arguments else 4

    def rate(self, result):
        """MB/s of a stream, else operations a second."""
        return result["mb_per_s"] if self.is_stream else result["ops_per_s"]

    def rate_text(self, rate):
        return f"{rate:,.0f} MB/s" if self.is_stream else f"{rate:,.0f} /s"

    def cost(self, result, who):
        """CPU seconds of `who` (server or load) for a GB, or for a million operations."""
        amount = result["mb_per_s"] * result["secs"] / 1e3 if self.is_stream else result["ops"] / 1e6
        return result[f"{who}_cpu_seconds"] / amount

    def cost_text(self, cost):
        return f"{cost:.2f} /GB" if self.is_stream else f"{cost:.1f} /M"


RANDOM = "bs=4096 secs={seconds} size={size}"
# In this order on each server.
WORKLOADS = [
    Workload("seqwrite-first", "sequential write, the first thing that a new server does", "seqwrite conns=4 size={size}", None, folder="first"),
    Workload("seqwrite-new", "sequential write, new files, COMMIT in the clock", "seqwrite conns=4 size={size}", 2.5, "seqwrite-first"),
    Workload("seqwrite-again", "sequential write, overwriting", "seqwrite conns=4 size={size}", 1.0, "seqwrite-new"),
    Workload("seqread-cold", "sequential read, cold", "seqread conns=4 size={size}", 1.0, "seqwrite-new", True),
    Workload("seqread-warm", "sequential read, warm", "seqread conns=4 size={size}", 1.4, "seqread-cold", repeats=5),
    Workload("randread", "random read 4 KiB, 4 connections", f"randread conns=4 {RANDOM}", 2.0, "seqwrite-new"),
    Workload("randread-1", "random read 4 KiB, one at a time", f"randread conns=1 depth=1 {RANDOM}", 1.2, "seqwrite-new"),
    Workload("randwrite", "random write 4 KiB, COMMIT at the end", f"randwrite conns=4 {RANDOM}", 2.0, "seqwrite-new"),
    Workload("randwrite-sync", "synchronous random write 4 KiB, 4 connections", f"randwrite sync=1 conns=4 depth=16 {RANDOM}", 2.0, "seqwrite-new"),
    Workload("randwrite-sync-1", "synchronous random write 4 KiB, one at a time", f"randwrite sync=1 conns=1 depth=1 {RANDOM}", 1.0, "seqwrite-new"),
    Workload("create", "create, 4 connections (ours durable)", "create conns=4 depth=16 files={files}", 4.0),
    Workload("stat", "stat, 4 connections", "stat conns=4 depth=16 files={files}", 2.0, "create"),
    Workload("unlink", "unlink, 4 connections (ours durable)", "unlink conns=4 depth=16 files={files}", 1.2, "create"),
    Workload("create-4", "create, 4 connections, one at a time each (ours durable)", "create conns=4 depth=1 files={files_one}", 1.0, "unlink"),
    Workload("unlink-4", "unlink, 4 connections, one at a time each (ours durable)", "unlink conns=4 depth=1 files={files_one}", 1.0, "create-4"),
    Workload("create-1", "create, one at a time (ours durable)", "create conns=1 depth=1 files={files_one}", 1.0, "unlink-4"),
]
BY_KEY = {workload.key: workload for workload in WORKLOADS}
# What six disks are compared with one by.
STREAMS = ["seqwrite-first", "seqwrite-new", "seqwrite-again", "seqread-cold", "seqread-warm"]


def with_needs(keys):
    """These workloads and what they need, in the order of the table."""
    wanted = set()
    for key in keys:
        while key and key not in wanted:
            wanted.add(key)
            key = BY_KEY[key].needs
    return [workload for workload in WORKLOADS if workload.key in wanted]


def run(load, server, chosen, sizes):
    """The chosen workloads, one after the other, on a new server: results by key."""
    results = {}
    for workload in chosen:
        if workload.is_cold:
            peers.make_cold(server)
        if workload.folder:
            server.make_folder(workload.folder)
        arguments = workload.arguments.format(**sizes)
        runs = [load.run(server, arguments, workload.folder) for _ in range(workload.repeats)]
        results[workload.key] = sorted(runs, key=workload.rate)[len(runs) // 2]
    return results
