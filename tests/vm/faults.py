"""Faults while real programs work through the kernel's NFS client in a VM, and others over libnfs.

    scripts/test-faults [--short | --write] [FAULT...]

For each fault one server and one VM, in which fsx, tar, git, SQLite and PostgreSQL under pgbench work at the same
time. A fault strikes when all of them have got somewhere since the last one. At the end all is unmounted, the
server is killed once more, and everything that was acknowledged is compared. Results: target/faults.json, in which
those of a fault stay until it is run again.
--short: kill -9 and the network, fewer times, without PostgreSQL; results in target/faults-short.json.
--write: puts the results into docs/results/reliability.md.
"""

import argparse
import collections
import contextlib
import dataclasses
import json
import os
import pathlib
import statistics
import time
import typing

from lib import document, faults, harness, vm

FSX_VERSION = "0.3.2"
WORKLOADS = ("fsx", "tar", "git", "sqlite", "postgres")
WORKLOADS_SHORT = WORKLOADS[:-1]
PROGRAMS = (*WORKLOADS, "libnfs")
# For its programs; it runs on the mount in the guest.
PACKAGES = {"postgres": "postgresql"}
RUN_SECONDS_MAX = 2400
# All programs have got somewhere again after a fault, in an emulated machine that they share.
RESUME_SECONDS_MAX = 400
SETUP_SECONDS_MAX = 400
LOADS_COUNT = 2
LOAD_STEP_COUNT = 20
LOAD_END_SECONDS_MAX = 60
NETWORK_WAYS_COUNT = 5
# The guest tells how far it is several times a second, if the machine lets it.
TELL_SECONDS_MAX = 60
STOP_SECONDS = 60
STALLED_SECONDS = 25
STILL_SECONDS = 10
# File descriptors that data files leave.
FILES_SPARE_COUNT = 32
# What connections leave for files, and some more.
DESCRIPTORS_COUNT = 128
CONNECTIONS_COUNT = 240
SMALL_DISK_LEN_BYTES = 1 << 30
# What a program is told of a call that was done before the server was killed and sent again afterwards.
REPEATED = ("No such file or directory", "File exists")
NO_SPACE = (
    "No space left on device", "database or disk is full", "disk I/O error", "the database system is in recovery mode",
    "server closed the connection", "the database system is not yet accepting", "could not start server", "Errno 28",
    "ENOSPC", "perhaps the backend died while processing", "unable to open database file",
    # git, of a file in a folder that it was refused.
    "Unable to create",
)


@dataclasses.dataclass
class World:
    """What a fault can reach."""

    server: harness.Server
    network: faults.Network
    folder: pathlib.Path
    guest: "Guest"
    # What a fault did beside being there, by what it was.
    counts: collections.Counter


@dataclasses.dataclass(frozen=True)
class Fault:
    name: str
    what: str
    # How often it strikes, in full and in short.
    count: int
    count_short: int
    # Returns when it is over; the number tells it which time this is.
    strike: typing.Callable[[World, int], None]
    disks: int = 1
    # What programs may be told while it is there.
    refusals: tuple = ()
    through_network: bool = False
    own_disk: bool = False
    libnfs: bool = True
    # Of the mount, beside those that all have.
    options: str = ""


def strike_stop(world, _index):
    faults.stop(world.server, STOP_SECONDS)


def strike_descriptors(world, _index):
    """Many connections take all file descriptors that they get, and more want to come."""
    from lib import rawnfs

    refused = lambda: world.server.metrics()["cairn_nfs_connections_refused_total"]
    before = refused()
    with contextlib.ExitStack() as held, faults.descriptors_left(world.server, DESCRIPTORS_COUNT):
        for _ in range(CONNECTIONS_COUNT):
            held.enter_context(rawnfs.Peer(world.server.port).socket)
        count = CONNECTIONS_COUNT - DESCRIPTORS_COUNT
        harness.wait_until(lambda: refused() - before >= count, RESUME_SECONDS_MAX, "connections that are refused")
        world.counts["connections refused"] += int(refused() - before)
        world.guest.await_progress()


def strike_no_descriptors(world, _index):
    """No data file can be opened any more, until nothing gets on for that."""
    with faults.descriptors_left(world.server, FILES_SPARE_COUNT):
        world.guest.await_standstill(STILL_SECONDS)
    told = world.server.log_path.read_text(errors="replace").count("no file descriptor left")
    if not told:
        raise harness.Failure("the server says of nothing that it found no file descriptor")


def strike_full(world, _index):
    before = world.guest.refused_count()
    with faults.filled(world.folder):
        # Who waits for the metadata's log is told nothing until there is space.
        world.guest.await_standstill(STILL_SECONDS, lambda: world.guest.refused_count() > before)
    world.counts["refused"] += world.guest.refused_count() - before


def strike_network(world, index):
    network = world.network

    def stalled():
        with network.stalled():
            time.sleep(STALLED_SECONDS)

    def down():
        with network.down():
            time.sleep(STALLED_SECONDS)

    def late():
        with network.late():
            world.guest.await_progress()

    def cut():
        world.counts["connections cut"] += network.cut()

    ways = [cut, lambda: network.lose_replies(RESUME_SECONDS_MAX), late, stalled, down]
    assert len(ways) == NETWORK_WAYS_COUNT
    ways[index % len(ways)]()


FAULTS = (
    Fault("kill", "kill -9", 12, 4, lambda world, _: faults.kill(world.server), refusals=REPEATED),
    Fault("kill-six", "kill -9, six disks", 6, 0, lambda world, _: faults.kill(world.server), disks=6,
          refusals=REPEATED),
    Fault("stop", f"SIGSTOP for {STOP_SECONDS} s", 2, 0, strike_stop),
    Fault("memory", "killed by the kernel for want of memory", 4, 0,
          lambda world, _: faults.out_of_memory(world.server), refusals=REPEATED),
    Fault("descriptors", f"{DESCRIPTORS_COUNT} file descriptors left, {CONNECTIONS_COUNT} connections that want them",
          2, 0, strike_descriptors),
    Fault("no-descriptors", f"no file descriptor left for data files, until nothing got on for {STILL_SECONDS} s", 2, 0,
          strike_no_descriptors),
    # Load over libnfs would end with its first error.
    # Without `sync` Linux takes data that the server then refuses, forgets it, and says so to a later call: until then
    # reads find what was there before, and PostgreSQL, which was told it by a write to another page, takes its next
    # fsync, which is told nothing more, for proof that the page is there.
    Fault("full", "somebody else fills the disk", 2, 0, strike_full, refusals=NO_SPACE, own_disk=True, libnfs=False,
          options="sync"),
    # libnfs 4.0 crashes when it is refused a connection again and again; tests/e2e has the rest of this with it.
    Fault("network", "connections cut; replies lost; calls late; nothing gets through for 25 s; no network for 25 s",
          10, 5, strike_network, through_network=True, libnfs=False),
)


class Guest:
    """The programs in the VM, as far as they say how far they are; and load over libnfs beside them."""

    def __init__(self, folder):
        self.folder = folder
        self.loads = []

    def start_load(self, port):
        from lib.load import Load

        url = f"nfs://127.0.0.1/main?nfsport={port}&mountport={port}&version=3"
        self.loads = [Load(url, index) for index in range(LOADS_COUNT)]
        for load in self.loads:
            load.start()

    def progress(self):
        """Each program's name to what it has done, how much more counts as going on, what it was refused."""
        return self.told()["programs"]

    def told(self):
        """What the programs said last."""
        told = None
        with contextlib.suppress(OSError, ValueError):
            told = json.loads((self.folder / "progress").read_text())
        if not told:
            return {"number": -1, "programs": None}
        failures = [failure for *_, failure in told["programs"].values() if failure]
        failures += [repr(load.failure) for load in self.loads if load.failure]
        if failures:
            raise harness.Failure("; ".join(failures))
        return told

    def first_progress(self, seconds_max):
        return harness.wait_until(self.progress, seconds_max, "the start of the programs")

    def progress_now(self):
        """What has been done by now: what was said last is of before, and the next may have been begun before."""
        last = self.told()["number"]
        is_new = lambda: self.told()["number"] >= last + 2
        harness.wait_until(is_new, TELL_SECONDS_MAX, "a word of the guest")
        return self.first_progress(TELL_SECONDS_MAX)

    def await_progress(self):
        """Waits until all go on from where they are; returns the seconds until the slowest did, and who that was."""
        begun = time.monotonic()
        wanted = {name: units + step for name, (units, step, *_) in self.progress_now().items()}
        counts = [load.acknowledged_count + LOAD_STEP_COUNT for load in self.loads]
        behind: list[str] = []

        def done():
            now = self.progress()
            if not now:
                return False
            before = behind[:]
            behind[:] = [name for name, units in wanted.items() if now.get(name, [0])[0] < units]
            behind.extend(load.folder for load, count in zip(self.loads, counts) if load.acknowledged_count < count)
            return not behind and [before]

        try:
            last = harness.wait_until(done, RESUME_SECONDS_MAX, "progress")[0]
        except harness.Failure as failure:
            raise harness.Failure(f"{failure}: {', '.join(behind)}") from failure
        return time.monotonic() - begun, ", ".join(last)

    def refused_count(self):
        return sum(told[2] for told in self.first_progress(RESUME_SECONDS_MAX).values())

    def await_standstill(self, seconds, is_enough=lambda: False):
        """Waits until nothing has got on for so long, or it is enough."""
        since: dict = {}

        def stands():
            if is_enough():
                return True
            units = {name: told[0] for name, told in (self.progress() or {}).items()}
            units |= {load.folder: load.acknowledged_count for load in self.loads}
            now = time.monotonic()
            for name, count in units.items():
                if since.get(name, (None,))[0] != count:
                    since[name] = count, now
            return all(now - at >= seconds for _, at in since.values())

        harness.wait_until(stands, RESUME_SECONDS_MAX, "that nothing gets on")


def test(fault, count, workloads, shares):
    """Runs one fault; returns its results, or None."""
    print(f"== {fault.name}: {fault.what}, {count} times", flush=True)
    problems: list[BaseException] = []
    results: dict = {}
    strikes: list[float] = []
    resumed: list[float] = []
    counts: collections.Counter = collections.Counter()
    begun = time.monotonic()
    with contextlib.ExitStack() as held:
        root = held.enter_context(harness.scratch("faults-"))
        folder = root / "disk0"
        if fault.own_disk:
            held.enter_context(faults.small_disk(folder, SMALL_DISK_LEN_BYTES))
        server = held.enter_context(harness.Server(root, fault.disks))
        network = held.enter_context(faults.Network(server))
        port = network.port if fault.through_network else server.port
        guests = []

        def conduct(requests_folder):
            guest = Guest(requests_folder)
            guests.append(guest)
            try:
                guest.first_progress(SETUP_SECONDS_MAX)
                if fault.libnfs:
                    guest.start_load(port)
                guest.await_progress()
                for index in range(count):
                    struck = time.monotonic()
                    fault.strike(World(server, network, folder, guest, counts), index)
                    strikes.append(round(time.monotonic() - struck, 1))
                    seconds, last = guest.await_progress()
                    resumed.append(round(seconds, 1))
                    print(f"       {index + 1}: all went on after {seconds:.1f} s, last {last}", flush=True)
                for load in guest.loads:
                    load.end(LOAD_END_SECONDS_MAX)
                if fault.through_network:
                    # Else the way of repeated calls was not gone.
                    answered = server.metrics()["cairn_nfs_duplicates_answered_total"]
                    counts["calls sent again that were not done again"] = int(answered)
                    if not answered and count >= NETWORK_WAYS_COUNT:
                        raise harness.Failure("no call came twice")
            except (Exception, AssertionError) as problem:
                problems.append(problem)
            finally:
                for load in guest.loads:
                    load.ended.set()
                (requests_folder / "enough").touch()

        def last_kill():
            faults.kill(server)
            if not problems:
                results.update(verify_loads(guests[0].loads, server))

        def take_results():
            results.update(json.loads((guests[0].folder / "results").read_text()))

        suite = harness.REPOSITORY / "tests" / "vm" / "guest" / "faults.py"
        status = vm.run(
            server, suite, shares, RUN_SECONDS_MAX, workloads, port=port, conduct=conduct,
            requests={"last-kill": last_kill, "done": take_results},
            environment={"REFUSALS": "|".join(fault.refusals), "OPTIONS": fault.options},
        )
        stopped = server.stop()
        if status or stopped or problems:
            print(f"FAILED {fault.name}: the programs ended with {status}, the server with {stopped}; {problems}")
            print(server.log_tail())
            return None
    seconds = round(time.monotonic() - begun)
    print(f"ok     {fault.name} ({seconds} s)", flush=True)
    return {
        "what": fault.what, "strikes": count, "seconds": seconds, "struck_seconds": strikes,
        "resumed_seconds": resumed, "programs": results, "counts": counts,
    }


def verify_loads(loads, server):
    from lib import libnfs

    if not loads:
        return {}
    with libnfs.Mount(server.libnfs_url()) as mount:
        verified_bytes = sum(load.verify(mount) for load in loads)
    calls_count = sum(load.acknowledged_count for load in loads)
    repeated_count = sum(load.repeated_count for load in loads)
    print(f"ok     libnfs: {calls_count} calls, {verified_bytes >> 20} MiB compared", flush=True)
    found = {"units": calls_count, "unit": "calls", "verified_bytes": verified_bytes, "note": f"{calls_count} calls"}
    return {"libnfs": found | {"refused": repeated_count}}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--short", action="store_true")
    form.add_argument("--write", action="store_true")
    parser.add_argument("faults", nargs="*", metavar="FAULT", help=", ".join(fault.name for fault in FAULTS))
    arguments = parser.parse_args()
    unknown = set(arguments.faults) - {fault.name for fault in FAULTS}
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}")
    vm.qemu()
    workloads = WORKLOADS_SHORT if arguments.short else WORKLOADS
    packages = os.environ.get("LINUX_CLIENT_PACKAGES", "").split()
    packages += [PACKAGES[name] for name in workloads if name in PACKAGES]
    os.environ["LINUX_CLIENT_PACKAGES"] = " ".join(packages)
    shares = {vm.cargo_tool("fsx", FSX_VERSION).parent: "/tools"}
    vm.image()
    path = harness.target_dir() / ("faults-short.json" if arguments.short else "faults.json")
    passed = True
    for fault in FAULTS:
        count = fault.count_short if arguments.short else fault.count
        if not count or (arguments.faults and fault.name not in arguments.faults):
            continue
        if needs(fault):
            print(f"test-faults: {needs(fault)}: NOT TESTED: {fault.name}")
            continue
        result = test(fault, count, workloads, shares)
        passed = passed and result is not None
        # Another run may have written it meanwhile.
        results = (json.loads(path.read_text()) if path.exists() else {}) | {fault.name: result}
        path.write_text(json.dumps({name: found for name, found in results.items() if found}, indent=1))
    results = json.loads(path.read_text()) if path.exists() else {}
    print(table(results))
    if arguments.write and passed:
        document.write("test-faults", table(results), document.RELIABILITY_PATH)
    print("test-faults: all passed" if passed else "test-faults: FAILED")
    return 0 if passed else 1


def table(results):
    """The results as a table of the page."""
    lines = [
        "| fault | times | all went on after: median, longest | operations of " + ", ".join(PROGRAMS) + " | compared |",
        "|---|---|---|---|---|",
    ]
    for fault in FAULTS:
        if not (found := results.get(fault.name)):
            continue
        programs = found["programs"]
        units = [f"{programs[name]['units']:,}" if name in programs else "-" for name in PROGRAMS]
        compared_mib = sum(program["verified_bytes"] for program in programs.values()) >> 20
        seconds = found["resumed_seconds"]
        lines.append(
            f"| {found['what']} | {found['strikes']} | {statistics.median(seconds):.0f} s, {max(seconds):.0f} s"
            f" | {', '.join(units)} | {compared_mib} MiB |"
        )
    return "\n".join(lines)


def needs(fault):
    """What is missing on this machine, if anything."""
    if fault.own_disk and os.getuid() != 0:
        return "not root"
    if fault.name == "memory" and not faults.has_memory_groups():
        return "no memory cgroups, or not root"
    return None
