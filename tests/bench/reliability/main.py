"""Measures recovery after kill -9, reads with disks gone, rebuild and scrub; writes docs/results/reliability.md.

    scripts/bench-reliability [--quick] [--only PART,...] [--rounds N]

`make bench-reliability` installs and builds what it needs first. Needs root and 12 GB of disk. A whole run of three rounds takes
about ten minutes on two processors; each part by itself at most four. Results: target/bench/reliability.json, where each
part replaces what an earlier run left of it, and from there the tables between the marks in docs/results/reliability.md.
"""

import argparse
import json
import os
import shutil
import subprocess
import time

from bench.nfs import load as loads
from bench.reliability import degraded, pool, rebuild, recovery, report
from lib import document, harness

PARTS = {
    "recovery": recovery.run,
    "degraded": degraded.run,
    "rebuild": rebuild.run_idle,
    "rebuild-clients": rebuild.run_rebuild,
    "scrub-clients": rebuild.run_scrub,
}
MIB = 1 << 20
SIZES = {
    "seconds": 2,
    "size": 384 * MIB,
    "files": 4000,
    "rebuild_size": 768 * MIB,
    "write_size": 512 * MIB,
    "create_files": 12_000,
    "recovery_size": 64 * MIB,
    "recovery_files": 500_000,
    "recovery_unstable": [16 * MIB, 128 * MIB],
    "recovery_journal": [16 * MIB, 64 * MIB, 192 * MIB],
    "recovery_names": [10_000, 100_000],
}
SIZES_QUICK = SIZES | {
    "seconds": 1,
    "size": 32 * MIB,
    "files": 200,
    "rebuild_size": 64 * MIB,
    "write_size": 64 * MIB,
    "create_files": 500,
    "recovery_size": 16 * MIB,
    "recovery_unstable": [4 * MIB],
    "recovery_journal": [4 * MIB],
    "recovery_names": [1000],
}
NEEDED_BYTES = 12_000_000_000
ROUNDS = 3


def say(text):
    print(f"bench-reliability: {text}", flush=True)


def commit():
    argv = ["git", "-C", str(harness.REPOSITORY), "describe", "--always", "--dirty"]
    return subprocess.run(argv, capture_output=True, text=True).stdout.strip() or "unknown"


def check_installed():
    if os.geteuid() != 0:
        raise harness.Failure("emptying the page cache needs root")
    if not shutil.which("fio"):
        raise harness.Failure("fio is not installed: run `scripts/setup bench`")


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one round of small sizes, to see that everything runs; nothing is kept")
    parser.add_argument("--only", metavar="PART,...", default=",".join(PARTS), help=f"some of: {', '.join(PARTS)}")
    parser.add_argument("--rounds", type=int, help=f"{ROUNDS} unless --quick")
    options = parser.parse_args()
    options.only = [part.strip() for part in options.only.split(",")]
    unknown = [part for part in options.only if part not in PARTS]
    if unknown:
        parser.error(f"there is no {unknown[0]}; there are {', '.join(PARTS)}")
    options.rounds = options.rounds or (1 if options.quick else ROUNDS)
    return options


def main():
    options = parse_arguments()
    check_installed()
    load, sizes = loads.own(), SIZES_QUICK if options.quick else SIZES
    pool.free_or_fail(NEEDED_BYTES, "the measurements")
    file = harness.target_dir() / "bench" / "reliability.json"
    parts = {}
    if file.exists() and not options.quick:
        parts = json.loads(file.read_text())
    for name in options.only:
        part = {
            "date": time.strftime("%Y-%m-%d"),
            "cpu": harness.cpu_name(),
            "commit": commit(),
            "load_average": os.getloadavg()[0],
            "rounds": options.rounds,
            "sizes": sizes,
        }
        part["result"] = PARTS[name](load, options.rounds, sizes, say)
        parts[name] = part
        if not options.quick:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(parts, indent=1))
    text = report.document(parts)
    print(text)
    if options.quick:
        say(f"{document.RELIABILITY_PATH} is left as it is: this was not a whole run")
    elif len(parts) < len(PARTS):
        say(f"{document.RELIABILITY_PATH} is left as it is: not all parts were ever measured")
    else:
        document.write("bench-reliability", text, document.RELIABILITY_PATH)
