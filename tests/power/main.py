"""Power cuts, and drives that fail, below the real storage: a server in a VM, on file systems on drives that forget.

    scripts/test-power [--seed N] [--cuts N] [--keep FOLDER] [PART...]
    scripts/test-power --bite [--seed N] [--cuts N] [KINDS...]

The guest's drives are block_disks.Disk: what was not flushed when qemu is killed is lost, or a part of it. Clients
outside of the guest (tests/lib/remembered.py, tests/lib/lunhost.py) know what was acknowledged. Parts: see PARTS.
--cuts: in each part with cuts. --keep: what is left of a part that failed is moved there: drives, logs.
--bite: does the test notice when syncs are left out? For each of KINDS (tests/power/forgetful.c; with + for several at
once) a server without them must fail within so many cuts.
"""

import argparse
import os
import pathlib
import random
import shutil
import time

from lib import harness, remembered, vm
from power.parts import PARTS
from power.server import GuestServer

CUTS_COUNT = 22


def run_part(name, options):
    file_system, run = PARTS[name]
    print(f"== {name}, seed {options.seed}", flush=True)
    rng = random.Random(f"{options.seed} {name}")
    begun = time.monotonic()
    with harness.scratch("power-") as root:
        with GuestServer(root, file_system) as server:
            try:
                pool = run(server, rng, options)
            except (harness.Failure, remembered.Wrong, remembered.Refused, TimeoutError) as failure:
                print(f"FAILED {name}, seed {options.seed}: {type(failure).__name__}: {failure}")
                print(server.log_tail(), flush=True)
                server.close()
                if options.keep:
                    options.keep.mkdir(parents=True, exist_ok=True)
                    shutil.move(root, options.keep / f"{name}-{options.seed}-{os.getpid()}")
                return False
    compared_bytes = sum(client.verified_bytes for client in pool.clients)
    print(
        f"ok     {name}: {pool.cuts_count} cuts, {pool.calls_count()} calls acknowledged,"
        f" {sum(client.stable_count for client in pool.clients)} stable writes and commits, {pool.lost_count} writes"
        f" lost and {pool.kept_count} left by cuts, {compared_bytes >> 20} MiB compared ({time.monotonic() - begun:.0f} s)",
        flush=True,
    )
    print(f"       {', '.join(f'{name} {value}' for name, value in sorted(pool.done.items()))}", flush=True)
    return True


BITES = ("folders+log+shards+state+pool", "folders", "log", "shards", "state", "pool")


def bite(kinds, options):
    """Whether a server without these syncs is found out."""
    file_system, run = PARTS["cuts-ext4"]
    rng = random.Random(f"{options.seed} {kinds}")
    begun = time.monotonic()
    with harness.scratch("power-") as root, GuestServer(root, file_system, kinds.replace("+", ",")) as server:
        cuts: list[int] = []
        try:
            run(server, rng, options, cuts.append)
        except (harness.Failure, remembered.Wrong, remembered.Refused) as failure:
            seconds = time.monotonic() - begun
            where = f"noticed at cut {len(cuts) + 1}, {seconds:.0f} s"
            print(f"ok     without syncs of {kinds}: {where}: {failure}\n{server.log_tail()}", flush=True)
            return True
    print(f"FAILED without syncs of {kinds}: not noticed in {len(cuts)} cuts, seed {options.seed}", flush=True)
    return False


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}; with --bite: {', '.join(BITES)}")
    parser.add_argument("--bite", action="store_true")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--cuts", type=int, default=CUTS_COUNT)
    parser.add_argument("--keep", type=pathlib.Path)
    options = parser.parse_args()
    known = set("+".join(BITES).split("+")) if options.bite else PARTS.keys()
    if unknown := set("+".join(options.parts).split("+")) - known - {""}:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    vm.qemu()
    vm.image()
    test, names = (bite, BITES) if options.bite else (run_part, PARTS)
    passed = [test(name, options) for name in options.parts or names]
    print("test-power: all passed" if all(passed) else "test-power: FAILED")
    return 0 if all(passed) else 1
