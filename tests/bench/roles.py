"""Measures what journal disks and read caches gain, on disks that are slowed down to what hard disks and cloud SSDs do.

    scripts/bench-roles [--rounds N] [--seconds N] [--write]

As root. Each disk is a file system on a loop device, slowed down by a control group (blkio, cgroup v1): a hard disk does 120 operations
and 150 MB per second each way, an SSD 3,000 and 125 MB. The pool is four hard disks with 2+2.

*Journal*: files are created, and 4 KiB are written and made safe, by 16 clients: without and with three SSDs as journal disks.
*Cache*: 64 KiB are read at random places, by 16 clients: of a set that fits the cache and of one that is ten times as large, all
alike and by Zipf's law, with and without an SSD as a read cache. Each round has a new pool; --write puts the table into
docs/results/performance.md.
"""

import argparse
import bisect
import concurrent.futures
import contextlib
import itertools
import json
import os
import pathlib
import random
import statistics
import subprocess
import threading
import time

from bench.nfs import report
from lib import document, harness, libnfs

HARD_DISK = {"iops": 120, "bps": 150_000_000}
SSD = {"iops": 3000, "bps": 125_000_000}
GROUPS = pathlib.Path("/sys/fs/cgroup/blkio")
HARD_DISKS, JOURNALS, CLIENTS = 4, 3, 16
REQUEST_BYTES, SMALL_BYTES = 64 << 10, 4 << 10
DISK_BYTES = 4 << 30
CACHE_BYTES = 512 << 20
#: A set that fits: with what is lost to rounding and to pieces that come twice.
SMALL_SET_BYTES = CACHE_BYTES * 3 // 4
LARGE_SET_BYTES = CACHE_BYTES * 5
#: The constant of YCSB.
ZIPF = 0.99
WARM_READS = 4
#: So often as long as a measurement.
WARM_TIMES = 6
FLAGS = ["--memory-limit", "256MiB"]


def run(*argv):
    return subprocess.run(list(map(str, argv)), check=True, capture_output=True, text=True).stdout.strip()


class Slowed(contextlib.ExitStack):
    """File systems on loop devices, and the group that slows what the processes in it do to them."""

    def __init__(self, root):
        super().__init__()
        self.root = root
        self.group = GROUPS / f"cairn-bench-{os.getpid()}"
        if not (GROUPS / "blkio.throttle.read_bps_device").exists():
            raise harness.Failure(f"{GROUPS} is not the blkio group of cgroup v1: disks cannot be slowed down here")
        self.group.mkdir()
        self.callback(self.group.rmdir)

    def disk(self, name, rates):
        image, folder = self.root / f"{name}.img", self.root / name
        with image.open("wb") as file:
            file.truncate(DISK_BYTES)
        device = run("losetup", "--find", "--show", "--direct-io=on", image)
        self.callback(run, "losetup", "--detach", device)
        run("mkfs.ext4", "-q", "-E", "lazy_itable_init=0,lazy_journal_init=0", device)
        folder.mkdir()
        run("mount", "-o", "noatime", device, folder)
        self.callback(run, "umount", "--lazy", folder)
        number = os.stat(device).st_rdev
        for what in ("read", "write"):
            for kind, rate in rates.items():
                file = self.group / f"blkio.throttle.{what}_{kind}_device"
                file.write_text(f"{os.major(number)}:{os.minor(number)} {rate}")
        return folder / "data"

    def hold(self, pid):
        (self.group / "cgroup.procs").write_text(str(pid))


class Pool:
    def __init__(self, slowed, root):
        self.server = harness.Server(root, HARD_DISKS, FLAGS)
        self.server.disks = [slowed.disk(f"hard{number}", HARD_DISK) for number in range(HARD_DISKS)]
        self.slowed = slowed

    def __enter__(self):
        self.server.start()
        self.slowed.hold(self.server.process.pid)
        return self

    def __exit__(self, *_):
        self.server.stop()
        # The group and the file systems go after it.
        self.server.kill()

    def restart(self):
        self.server.stop()
        self.server.start()
        self.slowed.hold(self.server.process.pid)

    def mount(self):
        return libnfs.Mount(self.server.libnfs_url())


def rate(pool, seconds, work):
    """How often per second CLIENTS do something: `work` makes it for a mount and a number."""
    ended = threading.Event()

    def client(number):
        done = 0
        with pool.mount() as mount:
            step = work(mount, number)
            while not ended.is_set():
                step()
                done += 1
        return done

    with concurrent.futures.ThreadPoolExecutor(CLIENTS) as clients:
        begun = time.monotonic()
        counts = [clients.submit(client, number) for number in range(CLIENTS)]
        ended.wait(seconds)
        ended.set()
        total = sum(count.result() for count in counts)
        return total / (time.monotonic() - begun)


def creates(tag):
    def work(mount, number):
        mount.mkdir(f"/create-{tag}-{number}")
        names = itertools.count()
        return lambda: mount.write_file(f"/create-{tag}-{number}/{next(names)}", b"")

    return work


def safe_writes(tag):
    def work(mount, number):
        file = mount.open(f"/safe-{tag}-{number}", os.O_RDWR | os.O_CREAT)
        offsets = itertools.count(0, SMALL_BYTES)

        def step():
            file.write(next(offsets) % (64 << 20), os.urandom(SMALL_BYTES))
            file.sync()

        return step

    return work


def measure_journal(slowed, root, seconds):
    found = {}
    with Pool(slowed, root) as pool:
        for name in ("without", "with"):
            if name == "with":
                for number in range(JOURNALS):
                    folder = slowed.disk(f"journal{number}", SSD)
                    pool.server.cairn("disk", "add", folder, "--role", "journal")
                fast = lambda: pool_is_on(pool, "journal")
                harness.wait_until(fast, 120, "metadata is on the journal disks")
            for what, work in (("files created", creates(name)), ("4 KiB written and made safe", safe_writes(name))):
                found[what, name] = rate(pool, seconds, work)
    return found


def pool_is_on(pool, role):
    disks = json.loads(pool.server.cairn("disk", "list", "--json").stdout)["disks"]
    return all(disk["role"] == role for disk in disks if disk["logs"] + disk["states"] > 0)


class Places:
    """Which request of a set comes next."""

    def __init__(self, set_bytes, skew):
        self.count = set_bytes // REQUEST_BYTES
        self.order = list(range(self.count))
        random.Random(7).shuffle(self.order)
        weights = [1 / (rank + 1) ** skew for rank in range(self.count)]
        self.sums = list(itertools.accumulate(weights))

    def reader(self, path):
        def work(mount, number):
            file = mount.open(path)
            rng = random.Random(number * 7919 + time.monotonic_ns())

            def step():
                at = bisect.bisect_left(self.sums, rng.random() * self.sums[-1])
                offset = self.order[min(at, self.count - 1)] * REQUEST_BYTES
                if len(file.read(offset, REQUEST_BYTES)) != REQUEST_BYTES:
                    raise harness.Failure(f"{path} is shorter than it was written")

            return step

        return work

    def read_through(self, pool, path, times):
        """Each request so often, in no order."""

        def client(number):
            with pool.mount() as mount, mount.open(path) as file:
                for _ in range(times):
                    for at in self.order[number::CLIENTS]:
                        file.read(at * REQUEST_BYTES, REQUEST_BYTES)

        with concurrent.futures.ThreadPoolExecutor(CLIENTS) as clients:
            list(clients.map(client, range(CLIENTS)))


SETS = {
    "fits": (SMALL_SET_BYTES, 0.0),
    "five times the cache, all alike": (LARGE_SET_BYTES, 0.0),
    f"five times the cache, Zipf {ZIPF}": (LARGE_SET_BYTES, ZIPF),
}


def raw_rate(slowed, folder, seconds):
    """What the SSD itself gives for the same requests."""
    folder.mkdir(exist_ok=True)
    path = folder / "raw"
    size = CACHE_BYTES // 2
    argv = ["fio", "--name=raw", f"--filename={path}", f"--size={size}", f"--bs={REQUEST_BYTES}", "--direct=1", "--ioengine=libaio",
            f"--iodepth={CLIENTS}", "--rw=randread", "--output-format=json", "--time_based", f"--runtime={seconds}"]
    # Written before it is slowed down.
    with path.open("wb") as file:
        for _ in range(size >> 20):
            file.write(os.urandom(1 << 20))
        os.fsync(file.fileno())
    program = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, preexec_fn=lambda: slowed.hold(os.getpid()))
    output, _ = program.communicate()
    path.unlink()
    return json.loads(output)["jobs"][0]["read"]["iops"]


def measure_cache(slowed, root, seconds):
    found = {}
    folder = slowed.disk("fast", SSD)
    found["the SSD itself", "with"] = raw_rate(slowed, folder.parent / "raw", seconds)
    with Pool(slowed, root) as pool:
        block = os.urandom(1 << 20)
        with pool.mount() as mount:
            for name, size in (("/small", SMALL_SET_BYTES), ("/large", LARGE_SET_BYTES)):
                with mount.open(name, os.O_RDWR | os.O_CREAT) as file:
                    for offset in range(0, size, len(block)):
                        file.write(offset, block[offset >> 20 & 0xFF :] + block[: offset >> 20 & 0xFF])
                    file.sync()
        for name in ("without", "with"):
            pool.restart()
            if name == "with":
                pool.server.cairn("disk", "add", folder, "--role", "cache", "--size", f"{CACHE_BYTES >> 20}MiB")
            for what, (size, skew) in SETS.items():
                path = "/small" if size == SMALL_SET_BYTES else "/large"
                places = Places(size, skew)
                if name == "with":
                    # As after a while: what comes a second time is kept.
                    if path == "/small":
                        places.read_through(pool, path, WARM_READS)
                    else:
                        rate(pool, WARM_TIMES * seconds, places.reader(path))
                found[what, name] = rate(pool, seconds, places.reader(path))
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=int, default=20)
    parser.add_argument("--write", action="store_true", help="write the table into docs/results/performance.md")
    options = parser.parse_args()
    if os.geteuid() != 0:
        raise harness.Failure("this mounts file systems and makes a control group: run it as root")
    rounds = []
    for number in range(options.rounds):
        found: dict[tuple[str, str], float] = {}
        for measure in (measure_journal, measure_cache):
            with harness.scratch("roles-") as root, Slowed(root) as slowed:
                found |= measure(slowed, root, options.seconds)
        print(f"bench-roles: round {number + 1}: {found}", flush=True)
        rounds.append(found)
    lines = [
        f"Measured {report.today()}, medians of {options.rounds} rounds of {options.seconds} s, {CLIENTS} clients, on {os.cpu_count()} CPUs.", "",
        "| operations per second | without | with | times (rounds) |", "|---|---|---|---|",
    ]
    for what in dict.fromkeys(what for what, _ in rounds[0]):
        cells = [what]
        for name in ("without", "with"):
            rates = [found[what, name] for found in rounds if (what, name) in found]
            cells.append(f"{statistics.median(rates):,.0f}" if rates else "-")
        both = all((what, "without") in found for found in rounds)
        cells.append(report.ratio_text([found[what, "with"] / found[what, "without"] for found in rounds]) if both else "-")
        lines.append(f"| {' | '.join(cells)} |")
    text = "\n".join(lines)
    print(text)
    if options.write:
        document.write("bench-roles", text)
