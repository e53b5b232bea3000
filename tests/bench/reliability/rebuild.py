"""Rebuild of a lost disk: its rate beside that of the bare device, and what clients keep while it and a scrub run.

Owns: losing and replacing a disk, the bare device's way of doing the same, work of clients beside it.
Must not know: how results are shown.

Six disks are six folders of one device here. To rebuild a shard, four others are read and one is written, all on
that device. So the bare device is asked for just that: four readers, each of a fourth of the bytes read, and one
writer of the bytes written, at the same time, with O_DIRECT and requests of 1 MiB.
"""

import json
import subprocess
import time

from bench.reliability import pool
from lib import harness

FILL = "seqwrite conns=4 size={rebuild_size}"
REBUILD_SECONDS_MAX = 120
# Work of clients is done again until the rebuild got on beside it, but not more often than this.
REPEATS_MAX = 5
# A rebuild that may do next to nothing, in bytes a second.
STOPPED = ("--rebuild-rate", "1")
WORK = [
    pool.Work("seqread", "sequential read, cold", "seqread conns=4 size={rebuild_size}", True),
    pool.Work("randread", "random read 4 KiB, cold", "randread conns=4 depth=16 bs=4096 secs={seconds} size={rebuild_size}", False, flags=pool.SMALL_MEMORY),
    pool.Work("seqwrite", "sequential write with COMMIT", "seqwrite conns=4 size={write_size}", True, is_cold=False),
    pool.Work(
        "randwrite-sync", "synchronous random write 4 KiB",
        "randwrite sync=1 conns=4 depth=16 bs=4096 secs={seconds} size={write_size}", False, is_cold=False,
    ),
    pool.Work("create", "create", "create conns=4 depth=16 walk=0 files={create_files}", False, is_cold=False),
]
WORK_BY_KEY = {work.key: work for work in WORK}


def wait_rebuilt(server):
    def done():
        view = pool.rebuild(server)
        if view["errors"] or view["problems"]:
            raise harness.Failure(f"the rebuild has problems: {view['errors']} errors, {view['problems']}")
        return view["shards_moved"] and not view["shards_left"]

    harness.wait_until(done, REBUILD_SECONDS_MAX, "the end of the rebuild")


def raw(server, index, wrote_bytes):
    """MB/s of the bare device at the same: the shards of four other disks are read, as many bytes are written."""
    others = [disk for place, disk in enumerate(server.disks) if place != index][: pool.DATA_DISKS]
    lines = ["[global]", "direct=1", "ioengine=libaio", "iodepth=8", "bs=1m", "thread=1"]
    for place, disk in enumerate(others):
        names = ":".join(str(path) for path in pool.shard_files(disk))
        lines += [f"[read{place}]", "rw=read", f"io_size={wrote_bytes}", f"filename={names}"]
    written = server.root / "raw"
    lines += ["[write]", "rw=write", "fallocate=none", "end_fsync=1", f"size={wrote_bytes}", f"filename={written}"]
    job = server.root / "raw.fio"
    job.write_text("\n".join(lines) + "\n")
    done = subprocess.run(["fio", "--output-format=json", str(job)], capture_output=True, text=True)
    written.unlink(missing_ok=True)
    if done.returncode != 0:
        raise harness.Failure(f"fio failed: {done.stderr}{done.stdout[-2000:]}")
    jobs = json.loads(done.stdout)["jobs"]
    seconds = max(one["job_runtime"] for one in jobs) / 1e3
    moved = sum(one["read"]["io_bytes"] + one["write"]["io_bytes"] for one in jobs)
    if moved < (pool.DATA_DISKS + 1) * wrote_bytes * 0.99:
        raise harness.Failure(f"fio moved {moved} bytes, {pool.DATA_DISKS + 1} times {wrote_bytes} were wanted")
    return wrote_bytes / seconds / 1e6


def idle(load, number, sizes):
    """Nobody else wants anything: the whole of a lost disk."""
    index = number % pool.DISKS
    with pool.pool("rebuild-") as server:
        load.run(server, FILL.format(**sizes))
        pool.lose(server, index)
        pool.start_cold(server)
        begin, cpu = time.monotonic(), server.cpu_seconds()
        pool.replace(server, index)
        wait_rebuilt(server)
        seconds, cpu = time.monotonic() - begin, server.cpu_seconds() - cpu
        moved = pool.rebuild(server)["moved_bytes"]
        pool.stop(server)
        wrote_bytes = pool.size_of(pool.shard_files(server.disks[index]))
        rate = raw(server, index, wrote_bytes)
    return {
        "wrote_bytes": wrote_bytes,
        "moved_bytes": moved,
        "seconds": seconds,
        "mb_per_s": wrote_bytes / seconds / 1e6,
        "server_cpu_seconds": cpu,
        "raw_mb_per_s": rate,
    }


def beside(load, server, work, sizes, begin):
    """Work of clients on a fresh start, while what `begin` starts goes on."""
    if work.is_cold:
        pool.restart_cold(server)
    else:
        server.restart()
    folder = ""
    if work.key == "create":
        # Files that were not there before.
        folder = f"create-{server.pid}"
        server.make_folder(folder)
    begin()
    start = time.monotonic()
    result = load.run(server, work.arguments.format(**sizes), folder)
    return result | {"rate": work.rate(result), "wall_seconds": time.monotonic() - start}


def beside_rebuild(load, server, work, sizes):
    """Work of clients beside a rebuild, as often as it takes until some bytes were rebuilt meanwhile, or none are left.

    Part by part: whole shards are too large to say how far it got within some seconds.
    """
    runs: list[dict] = []
    worked_bytes, seconds, went_on = 0, 0.0, True
    while not runs or (worked_bytes == 0 and went_on and len(runs) < REPEATS_MAX):
        before = []
        runs.append(beside(load, server, work, sizes, lambda: before.append(pool.rebuild(server)["worked_bytes"])))
        view = pool.rebuild(server)
        worked_bytes += view["worked_bytes"] - before[0]
        seconds += runs[-1]["wall_seconds"]
        went_on = view["shards_left"] > 0
    busy = runs[-1] | {"rate": sum(run["rate"] for run in runs) / len(runs), "runs": len(runs)}
    return {"busy": busy, "went_on": went_on, "rebuilt_bytes": worked_bytes, "rebuilt_mb_per_s": worked_bytes / seconds / 1e6}


def clients_and_rebuild(load, number, sizes, say):
    """Each work with a disk lost and replaced: first the rebuild stands still, then it goes on."""
    found: dict = {}
    with pool.pool("rebuild-") as server:
        load.run(server, FILL.format(**sizes))
        for place, work in enumerate(WORK):
            say(f"rebuild beside clients, round {number + 1}: {work.title}")
            index = (number + place) % pool.DISKS
            server.flags = [*STOPPED, *work.flags]
            pool.lose(server, index)
            server.start()
            pool.replace(server, index)
            quiet = beside(load, server, work, sizes, lambda: None)
            server.flags = list(work.flags)
            found[work.key] = {"quiet": quiet} | beside_rebuild(load, server, work, sizes)
            wait_rebuilt(server)
    return found


def scrub(server, *arguments):
    server.cairn("scrub", *arguments)


def clients_and_scrub(load, number, sizes, say):
    """Each work without a scrub, with one as it comes, and with one that has no limit."""
    found: dict = {}
    modes = {"quiet": None, "default": (), "unlimited": ("--rate", "0")}
    with pool.pool("scrub-") as server:
        load.run(server, FILL.format(**sizes))
        for work in WORK:
            say(f"scrub beside clients, round {number + 1}: {work.title}")
            entry = found[work.key] = {}
            server.flags = list(work.flags)
            keys = list(modes)
            first = number % len(keys)
            for key in keys[first:] + keys[:first]:
                flags = modes[key]
                begin = (lambda: None) if flags is None else lambda: scrub(server, "start", "--restart", *(flags or ("--rate", "50MiB")))
                entry[key] = beside(load, server, work, sizes, begin)
                if flags is not None:
                    state = json.loads(server.get("/api/v1/scrub"))
                    entry[key]["went_on"] = state["stage"] == "running"
                    entry[key]["scrubbed_mb_per_s"] = state["done_bytes"] / entry[key]["wall_seconds"] / 1e6
                    if state["stage"] == "running":
                        scrub(server, "pause")
    return found


def run_idle(load, rounds, sizes, say):
    found = []
    for number in range(rounds):
        say(f"rebuild of a disk while nobody wants anything, round {number + 1} of {rounds}")
        found.append(idle(load, number, sizes))
    return {"rounds": found}


def run_rebuild(load, rounds, sizes, say):
    return {"rounds": [clients_and_rebuild(load, number, sizes, say) for number in range(rounds)]}


def run_scrub(load, rounds, sizes, say):
    return {"rounds": [clients_and_scrub(load, number, sizes, say) for number in range(rounds)]}
