"""Measures what the hops of a cluster cost: rates, and processor time of all servers for each GB.

    scripts/bench-hops [--rounds N] [--mib N] [--write]

The same files go to one server with six folders, and to six nodes with a folder each: by way of the owner of the volume, and by way of
another node, which passes calls on; both with encryption between nodes and without. All have protection 4+2, and are processes of this
machine. Each is stopped and started before the files are read, and the kernel drops what it has of them. Then 4 KiB are read at random
places of other files. --write puts the table into docs/results/performance.md.
"""

import argparse
import contextlib
import json
import os
import pathlib
import statistics
import subprocess
import time

from bench.nfs import peers, report
from bench.peers import contenders
from lib import document, harness

FILES = 4
WRITTEN, READ, SMALL = "write", "read", "4 KiB reads"
AIMS = {WRITTEN: 0.8, READ: 0.65, SMALL: 0.6}
SMALL_ARGUMENTS = ("--jobs", "4", "--depths", "16", "--working-set", "128MiB", "--runtime", "4s", "--ramp", "1s")
SMALL_FIGURE = "random read"


class OneServer:
    title = "one server, six folders"

    def __init__(self, root):
        self.server = harness.Server(root, contenders.DISKS)

    def start(self):
        self.server.start()

    def url(self, name):
        return self.server.url(name)

    def restart(self):
        self.server.stop()
        self.server.start()

    def cpu_seconds(self):
        return self.server.cpu_seconds()

    def volume_url(self):
        return self.server.url("").rstrip("/")

    def kill(self):
        self.server.kill()


class SixNodes:
    title = "six nodes, by the owner"
    flags: tuple[str, ...] = ()

    def __init__(self, root):
        self.nodes = contenders.CairnCluster(root, self.flags)

    def start(self):
        self.nodes.start()

    def node(self):
        return self.nodes.owner

    def volume_url(self):
        return f"nfs://{self.nodes.address(self.node())}/{contenders.CLUSTER_VOLUME}"

    def url(self, name):
        return f"{self.volume_url()}/{name}"

    def restart(self):
        self.nodes.restart()

    def cpu_seconds(self):
        machines = self.nodes.cluster.machines().values()
        return sum(harness.cpu_seconds(machine[key]) for machine in machines for key in ("pid", "etcd_pid") if machine[key])

    def kill(self):
        self.nodes.kill()


class ByAnother(SixNodes):
    title = "six nodes, by another"

    def node(self):
        return self.nodes.cluster.others(self.nodes.owner)[0]


class ClearByTheOwner(SixNodes):
    title = "by the owner, without encryption"
    flags = ("--internal-encryption=false",)


class ClearByAnother(ByAnother):
    title = "by another, without encryption"
    flags = ClearByTheOwner.flags


def copy_all(pairs):
    """Seconds that the copies take, side by side."""
    begun = time.monotonic()
    copies = [subprocess.Popen([str(harness.cairn_path()), "cp", str(source), str(to)]) for source, to in pairs]
    statuses = [copy.wait() for copy in copies]
    if any(statuses):
        raise harness.Failure("a file could not be copied")
    return time.monotonic() - begun


def small_reads(server, folder):
    """Reads of 4 KiB each second, and seconds of the servers' processor time for the whole run."""
    result = folder / "small.json"
    before = server.cpu_seconds()
    command = [harness.cairn_path(), "bench", "four-corners", server.volume_url(), *SMALL_ARGUMENTS, "--allow-files", "-o", result]
    subprocess.run([str(word) for word in command], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    spent = server.cpu_seconds() - before
    told = json.loads(result.read_text())
    (rate,) = (figure["value"] for figure in told["summary"] if figure["title"] == SMALL_FIGURE)
    return rate, spent


def measure(server, source, memory):
    """{what: (MB/s, processor seconds for each GB)}, and reads of 4 KiB each second."""
    names = [f"file{number}" for number in range(FILES)]
    len_bytes = FILES * source.stat().st_size
    found = {}

    def timed(what, pairs):
        before = server.cpu_seconds()
        seconds = copy_all(pairs)
        found[what] = (len_bytes / 1e6 / seconds, (server.cpu_seconds() - before) / (len_bytes / 1e9))

    timed(WRITTEN, [(source, server.url(name)) for name in names])
    server.restart()
    os.sync()
    peers.DROP_CACHES.write_text("3")
    timed(READ, [(server.url(name), memory / name) for name in names])
    for name in names:
        if subprocess.run(["cmp", source, memory / name]).returncode:
            raise harness.Failure("other bytes were read than were written")
    found[SMALL] = small_reads(server, memory)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--mib", type=int, default=256, help=f"of each of {FILES} files")
    parser.add_argument("--write", action="store_true", help="write the table into docs/results/performance.md")
    options = parser.parse_args()
    kinds: list[type[OneServer | SixNodes]] = [OneServer, SixNodes, ByAnother, ClearByTheOwner, ClearByAnother]
    found: dict[type, list[dict]] = {kind: [] for kind in kinds}
    # What is read goes to memory.
    with harness.scratch("hops-", pathlib.Path("/dev/shm")) as memory:
        source = memory / "source"
        source.write_bytes(os.urandom(options.mib << 20))
        for number in range(options.rounds):
            for kind in kinds:
                with harness.scratch("hops-") as root, contextlib.ExitStack() as ends:
                    server = kind(root)
                    ends.callback(server.kill)
                    server.start()
                    found[kind].append(measure(server, source, memory))
                    print(f"bench-hops: round {number + 1}, {kind.title}: {found[kind][-1]}", flush=True)
    lines = [
        f"Measured {report.today()}, medians of {options.rounds} rounds; {FILES} files of {options.mib} MiB at a time, on {os.cpu_count()} CPUs.", "",
        "| | write | of one server (rounds) | aim | CPU | read | of one server (rounds) | aim | CPU | 4 KiB reads | of one server (rounds) | aim |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for kind in kinds:
        cells = [kind.title]
        for what in (WRITTEN, READ, SMALL):
            rates = [measured[what][0] for measured in found[kind]]
            cpu = statistics.median(measured[what][1] for measured in found[kind])
            ratios = [rate / one[what][0] for rate, one in zip(rates, found[OneServer])]
            ratio = [report.ratio_text(ratios), str(AIMS[what])] if kind is not OneServer else ["-", "-"]
            unit = "1/s" if what == SMALL else "MB/s"
            cells += [f"{statistics.median(rates):,.0f} {unit}", *ratio] + ([] if what == SMALL else [f"{cpu:.1f} s/GB"])
        lines.append(f"| {' | '.join(cells)} |")
    text = "\n".join(lines)
    print(text)
    if options.write:
        document.write("bench-hops", text)
