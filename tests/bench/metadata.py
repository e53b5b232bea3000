"""Measures what it costs that the metadata of a cluster's volume is on slow disks while its log is on fast ones.

    scripts/bench-metadata [--files N] [--slow-ms MS] [--rounds N]

A cluster of one node with a data disk and a journal disk; each operation on the data disk takes so many milliseconds longer (a library that
is loaded before the C library, as in tests/e2e/test_faulty_disks.py). First the maintenance window is closed, which keeps the state of the
volume on the data disk; then the window is taken away, and the state moves to the journal disk. In both places it is measured how many empty
files a second eight clients make, and, after a restart, when nothing of the metadata is in memory, how long it takes until the volume is served
and how many of these files a second the clients get the attributes of, in random order. What is printed is JSON.
"""

import argparse
import concurrent.futures
import contextlib
import datetime
import json
import os
import pathlib
import random
import statistics
import time

from e2e.test_faulty_disks import build_faults
from lib import harness, libnfs
from lib.cluster import Cluster

NODE = "node1"
WORKERS = 8
MOVED_SECONDS_MAX = 300


def closed_window():
    day = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(days=3)
    return f"{('mon', 'tue', 'wed', 'thu', 'fri', 'sat', 'sun')[day.weekday()]}:00:00-01:00"


def disks_with(cluster, what):
    listed = json.loads(cluster.cairn(NODE, "disk", "list", "--json").stdout)["disks"]
    return {disk["label"] for disk in listed if disk[what] > 0}


def restart(cluster):
    """Stops the node and starts it again; returns the seconds from then until its volume is served."""
    cluster.stop(NODE)
    begun = time.monotonic()
    cluster.start_nodes(NODE)

    def serves():
        with contextlib.suppress(Exception), libnfs.Mount(cluster.url(NODE)) as mount:
            mount.stat("/")
            return True

    harness.wait_until(serves, MOVED_SECONDS_MAX, "the volume", poll_seconds=0.02)
    return time.monotonic() - begun


def in_parallel(cluster, work):
    """Seconds that clients take for `work(client, mount)` side by side."""

    def one(client):
        with libnfs.Mount(cluster.url(NODE)) as mount:
            work(client, mount)

    begun = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(WORKERS) as clients:
        list(clients.map(one, range(WORKERS)))
    return time.monotonic() - begun


def measured(cluster, name, files, prefix):
    """One round: `name` is of its files; `prefix` is that of the folder that the state has to be in."""
    each = files // WORKERS

    def make(client, mount):
        mount.mkdir(f"/{name}-{client}")
        for number in range(each):
            mount.write_file(f"/{name}-{client}/{number}", b"")

    def look(client, mount):
        numbers = list(range(each))
        random.Random(client).shuffle(numbers)
        for number in numbers:
            mount.stat(f"/{name}-{client}/{number}")

    found = {"creates_per_second": round(each * WORKERS / in_parallel(cluster, make))}
    found["start_seconds"] = round(restart(cluster), 2)
    found["cold_stats_per_second"] = round(each * WORKERS / in_parallel(cluster, look))
    places, logs = disks_with(cluster, "states"), disks_with(cluster, "logs")
    if not all("fast" in log for log in logs):
        raise harness.Failure(f"the log is on {logs}")
    if not places or not all(place.startswith(str(prefix)) for place in places):
        raise harness.Failure(f"the state is on {places}, and not on {prefix}")
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--files", type=int, default=20_000)
    parser.add_argument("--slow-ms", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with harness.scratch("metadata-") as root:
        rules, config = root / "faults", root / "threads.toml"
        rules.write_text("")
        config.write_text('disk_io = "threads"\n')
        os.environ |= {"LD_PRELOAD": str(build_faults(root)), "CAIRN_FAULTS": str(rules)}
        with Cluster(root / "cluster", 1, netns="no", serve_flags=["--config", str(config)]) as cluster:
            cluster.cairn(NODE, "scrub", "schedule", "--window", closed_window())
            slow = {path.parent for path in (cluster.folder / NODE).glob("*/pool")}
            cluster.cairn(NODE, "disk", "add", str(root / "fast"), "--role", "journal")
            # A new term begins a file of the log on the journal disk: only the state is on the slow one then.
            restart(cluster)
            rules.write_text("".join(f"slow {folder}/ {options.slow_ms}\n" for folder in sorted(slow)))
            rounds: dict[str, list[dict]] = {}
            for where, prefix in (("on the slow disk", cluster.folder), ("on the journal disk", root / "fast")):
                founds = rounds[where] = []
                for number in range(options.rounds):
                    founds.append(measured(cluster, f"{prefix.name}{number}", options.files, prefix))
                cluster.cairn(NODE, "scrub", "schedule", "--clear")
                is_fast = lambda: disks_with(cluster, "states") == {str(root / "fast")}
                harness.wait_until(is_fast, MOVED_SECONDS_MAX, "the state on the journal disk")
        medians = {
            where: {key: statistics.median(found[key] for found in founds) for key in founds[0]} for where, founds in rounds.items()
        }
        version = json.loads((pathlib.Path(__file__).resolve().parents[2] / "console" / "openapi.json").read_text())["info"]["version"]
        settings = {"files": options.files, "slow_ms": options.slow_ms, "rounds": options.rounds, "cpus": os.cpu_count(), "version": version}
        print(json.dumps({"settings": settings, "medians": medians, "rounds": rounds}, indent=2))
