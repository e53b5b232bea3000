"""The parts of the test: cuts of one pool, cuts while a pool is made, drives that go bad.

Owns: what happens in each part, in which order. Must not know: how a part's result is reported.
"""

import time

from lib import remembered
from power import block_disks
from power.pool import SETTLE_SECONDS_MAX, STALL_SECONDS_MAX, Pool
from power.server import DRIVES_COUNT

# A pool is made by the first of these.
WRITES_BEFORE_FIRST_CUT = 1, 70
LOG_BURST_WEIGHT = 60
NOTICE_SECONDS_MAX = 240
SLOW_SECONDS = 0.5
CUT_KINDS = ("lone", "log", "lone", "volumes", "replace", "lone", "load", "log", "lone", "scrub", "drain")


def cuts(file_system):
    """Cuts of one pool that grows older."""

    def run(server, rng, options, survived=lambda cut: None):
        pool = Pool(server, rng, options.seed)
        for _ in range(rng.choice((0, 1, 2))):
            # The pool is made by then, or is not.
            pool.cut_at_start()
        pool.first_boot()
        for number in range(options.cuts):
            what = CUT_KINDS[number % len(CUT_KINDS)]
            pool.start_load(LOG_BURST_WEIGHT if what == "log" else 1)
            begun, calls_count = time.monotonic(), pool.calls_count()
            lost_before, kept_before = pool.lost_count, pool.kept_count
            pool.cut_while(what)
            calls_count = pool.calls_count() - calls_count
            lost_count, kept_count = pool.lost_count - lost_before, pool.kept_count - kept_before
            starts_cut = rng.choice((0, 0, 1, 2))
            for _ in range(starts_cut):
                pool.cut_at_start()
            server.boot()
            server.await_ready()
            pool.verify_clients()
            pool.verify_volumes()
            pool.after_cut(what)
            if number % 3 == 2:
                pool.scrub()
            if number % 4 == 3:
                # Nothing was changed since all was compared.
                pool.cut_idle()
                pool.verify_without_disks()
                server.boot()
                server.await_ready()
                pool.verify_clients()
                pool.await_settled()
            seconds = time.monotonic() - begun
            print(
                f"       cut {number + 1} ({what}): {calls_count} calls acknowledged, {lost_count} writes lost and"
                f" {kept_count} left, {starts_cut} more cuts at a start; all compared, {seconds:.0f} s", flush=True,
            )
            survived(number)
        pool.cut_idle()
        pool.verify_without_disks()
        return pool

    return file_system, run


def first_starts(file_system):
    """Cuts while a pool is made; a new one each time."""

    def run(server, rng, options):
        pool = Pool(server, rng, options.seed)
        for number in range(options.cuts):
            server.folder_name = f"cairn{number}"
            starts_cut = rng.choice((1, 1, 2))
            for _ in range(starts_cut):
                pool.cut_at_start(WRITES_BEFORE_FIRST_CUT)
            server.boot()
            server.await_ready()
            pool.await_settled()
            pool.verify_volumes()
            pool.cut_idle()
        return pool

    return file_system, run


def fault(meet, indexes=(2,), comes_back=False, retried=False):
    """Drives go bad below their file systems, while clients work and the server uses io_uring.

    `meet`: what a drive does from then on. `comes_back`: it works again later; else another one takes its place.
    `retried`: it is taken back then without a start.
    """

    def run(server, rng, options):
        pool = Pool(server, rng, options.seed)
        pool.first_boot()
        pool.start_load()
        pool.await_each()
        begun = time.monotonic()
        for index in indexes:
            meet(server.drives[index])
        states = lambda: {server.listed()[0][index]["state"] for index in indexes}
        pool.wait_while_loaded(lambda: states() == {"failed"}, NOTICE_SECONDS_MAX, "that the disks count as failed")
        noticed_seconds = time.monotonic() - begun
        problem = server.listed()[0][indexes[0]]["problem"]
        pool.await_each(STALL_SECONDS_MAX)
        gone_on_seconds = time.monotonic() - begun
        health = server.status()["health"]
        if health != "degraded":
            raise remembered.Wrong(f"with a disk that failed the status is {health}")
        if comes_back:
            for index in indexes:
                # What it was told while it hung is done now, which nobody waits for any more.
                server.drives[index].meets()
            pool.await_each()
            if retried:
                for index in indexes:
                    # It may come back by itself before.
                    taken = lambda index=index: (
                        server.cairn("disk", "retry", server.folder(index), check=False).returncode == 0
                        or server.listed()[0][index]["state"] != "failed"
                    )
                    pool.wait_while_loaded(taken, NOTICE_SECONDS_MAX, "that a disk is taken back")
                pool.wait_while_loaded(lambda: states() == {"ok"}, SETTLE_SECONDS_MAX, "that they have what they missed")
            else:
                # They missed what was written; a start takes them as they are.
                pool.cut()
                server.boot()
                server.await_ready()
                pool.verify_clients()
                pool.start_load()
        else:
            (index,) = indexes
            (new,) = set(range(DRIVES_COUNT)) - set(server.members)
            server.cairn("disk", "replace", server.folder(index), server.folder(new))
            server.members[server.members.index(index)] = new
            gone = lambda: index not in server.listed()[0]
            pool.wait_while_loaded(gone, SETTLE_SECONDS_MAX, "the rebuild")
        pool.await_each(STALL_SECONDS_MAX)
        pool.end_load()
        pool.await_settled()
        pool.verify_clients()
        pool.scrub()
        pool.cut_idle()
        pool.verify_without_disks()
        print(
            f"       noticed after {noticed_seconds:.1f} s, all clients went on after {gone_on_seconds:.1f} s:"
            f" {problem}", flush=True,
        )
        return pool

    return "ext4", run


def fails(kinds=block_disks.EVERYTHING):
    return lambda drive: drive.meets(fails=kinds)


def hangs(drive):
    drive.meets(hangs=True)


def is_slow(drive):
    drive.meets(delay_seconds=SLOW_SECONDS)


PARTS = {
    "cuts-ext4": cuts("ext4"),
    "cuts-xfs": cuts("xfs"),
    "first-starts": first_starts("ext4"),
    "fails": fault(fails()),
    "metadata-fails": fault(fails(), indexes=[0]),
    "writes-fail": fault(fails([block_disks.WRITE])),
    "flushes-fail": fault(fails([block_disks.FLUSH]), indexes=[0]),
    "hangs": fault(hangs),
    "metadata-hangs": fault(hangs, indexes=[0]),
    "slow": fault(is_slow),
    "comes-back": fault(fails(), comes_back=True),
    "answers-late": fault(hangs, comes_back=True),
    "taken-back": fault(hangs, comes_back=True, retried=True),
    "two-fail": fault(fails(), indexes=[0, 2], comes_back=True),
    "two-hang": fault(hangs, indexes=[0, 2], comes_back=True),
}
