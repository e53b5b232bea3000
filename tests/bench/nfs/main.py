"""Measures Cairn beside NFS-Ganesha, against the machine's limits and its own aims; writes docs/results/performance.md.

    scripts/bench-nfs [--quick] [--only PART,...] [--rounds N] [--load own|PATH-OF-nfsload.c]

`make bench-nfs` installs and builds what it needs first. Needs root. A whole run of three rounds takes about
six minutes on two processors, and 30 GB of disk. Results: tables between the marks in docs/results/performance.md (only after a whole run),
and target/bench/nfs.json.
"""

import argparse
import json
import os
import platform
import subprocess

from bench.nfs import load as loads
from bench.nfs import machine, peers, report, scale, workloads
from lib import document, harness

SIX_DISKS = 6
LOST_DISKS = 2
PARTS = ["six-disks", "limits", "encoder", "scale"]
SIZES = {"seconds": 5, "size": 256 << 20, "files": 5000, "files_one": 2000, "scale_size": 2560 << 20, "scale_files": 250_000}
SIZES_QUICK = {"seconds": 1, "size": 64 << 20, "files": 1000, "files_one": 500, "scale_size": 256 << 20, "scale_files": 10_000}


def say(text):
    print(f"bench-nfs: {text}", flush=True)


def one_server(load, start, chosen, sizes):
    """The workloads on a new server; on six disks also the read with two of them gone."""
    with harness.scratch("bench-") as root:
        server = start(root)
        try:
            results = workloads.run(load, server, chosen, sizes)
            if len(getattr(server, "disks", ())) == SIX_DISKS:
                peers.lose_disks(server, LOST_DISKS)
                results["degraded"] = load.run(server, workloads.BY_KEY["seqread-cold"].arguments.format(**sizes))
        finally:
            server.kill()
    os.sync()
    return results


def contenders(only):
    """Name, how to start it, workloads: what takes its turn in each round."""
    peer_keys = [key for key in workloads.BY_KEY if key in only]
    streams = workloads.STREAMS if "six-disks" in only else []
    found: list = []
    if peer_keys or streams:
        found.append(("cairn", peers.cairn, workloads.with_needs([*peer_keys, *streams])))
    if peer_keys:
        found.append(("ganesha", peers.ganesha, workloads.with_needs(peer_keys)))
    if streams:
        found.append(("cairn-six", lambda root: peers.cairn(root, SIX_DISKS), workloads.with_needs(streams)))
    return found


def measure_rounds(load, only, options, sizes, results):
    turns = contenders(only)
    for number in range(options.rounds):
        # Another one first each time: who comes after whom must not matter.
        first = number % len(turns) if turns else 0
        for name, start, chosen in turns[first:] + turns[:first]:
            say(f"round {number + 1} of {options.rounds}, {name}")
            results["rounds"].setdefault(name, []).append(one_server(load, start, chosen, sizes))
        if "limits" in only:
            say(f"round {number + 1} of {options.rounds}, the machine's limits")
            results["limits"].append(machine.limits(sizes["seconds"]))


def first_line(argv):
    done = subprocess.run(argv, capture_output=True, text=True)
    return (done.stdout.splitlines() or ["unknown"])[0]


def versions():
    return {
        "cairn": first_line([str(harness.cairn_path()), "--version"]).removeprefix("cairn "),
        "ganesha": first_line(["dpkg-query", "-W", "-f", "${Version}\n", "nfs-ganesha-vfs"]),
        "commit": first_line(["git", "-C", str(harness.REPOSITORY), "describe", "--always", "--dirty"]),
    }


def write_json(results):
    file = harness.target_dir() / "bench" / "nfs.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(results, indent=1))


def parse_only(text, all_parts):
    chosen = [part.strip() for part in text.split(",")]
    for part in chosen:
        if part not in all_parts:
            raise argparse.ArgumentTypeError(f"there is no {part}; there are {', '.join(all_parts)}")
    return chosen


def parse_arguments():
    all_parts = [*workloads.BY_KEY, *PARTS]
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one round of small sizes, to see that everything runs")
    parser.add_argument(
        "--only", type=lambda text: parse_only(text, all_parts), metavar="PART,...",
        help=f"some of: {', '.join(all_parts)}",
    )
    parser.add_argument("--rounds", type=int, help="3 unless --quick")
    parser.add_argument("--load", metavar="own|PATH", help="our own client, or the source of nfsload, as load")
    options = parser.parse_args()
    options.rounds = options.rounds or (1 if options.quick else 3)
    return options, options.only or all_parts


def main():
    options, only = parse_arguments()
    peers.check_installed()
    load, sizes = loads.choose(options.load), SIZES_QUICK if options.quick else SIZES
    results = {
        "date": report.today(),
        "machine": platform.uname()._asdict(),
        "cpu": harness.cpu_name(),
        "versions": versions(),
        "load_average": os.getloadavg()[0],
        "loads": {"name": load.name, "is_libnfs": load.is_libnfs},
        "sizes": sizes,
        "rounds": {},
        "limits": [],
        "encoder": None,
        "scale": None,
    }
    try:
        with peers.portmapper():
            measure_rounds(load, only, options, sizes, results)
        if "encoder" in only:
            say("erasure coding beside ISA-L")
            results["encoder"] = machine.encoder(options.quick)
        if "scale" in only:
            say("much data and many files")
            results["scale"] = scale.run(load, peers.cairn, sizes, say)
    finally:
        # What was measured before a failure is worth keeping.
        write_json(results)
    text = report.document(results)
    print(text)
    if options.quick or options.only:
        say(f"{document.PATH} is left as it is: this was not a whole run")
    else:
        document.write("bench-nfs", text)
