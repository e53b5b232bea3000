"""Much data and many files: memory while they are made and listed, and a restart after kill -9 under load.

Owns: the steps, the aims.
Must not know: NFS-Ganesha; how results are shown.
"""

import os
import shutil
import signal
import subprocess
import time

from lib import harness

CONNECTIONS = 4
MEMORY_LIMIT_BYTES = 2 << 30
MEMORY_AIM_BYTES = MEMORY_LIMIT_BYTES * 12 // 10
RESTART_SECONDS_AIM = 2.0
# How long the load runs before the server is killed.
LOAD_SECONDS = 4
# More than it gets done until then.
LOAD_FILES = 1_000_000
# What must be free per byte of data: it is there while some of it is written again.
SPACE_FACTOR = 2.5


def peak_bytes(server):
    return harness.resident_bytes(server.pid, "VmHWM")


def list_files(server, sizes):
    """Lists every directory; how many names there were."""
    count = 0
    for index in range(CONNECTIONS):
        argv = [str(harness.cairn_path()), "ls", server.url(f"nfsload-d{index}")]
        done = subprocess.run(argv, check=True, capture_output=True, env=server.environment())
        count += done.stdout.count(b"\n")
    if count != CONNECTIONS * sizes["scale_files"]:
        raise harness.Failure(f"{count} files are listed, {CONNECTIONS * sizes['scale_files']} were made")
    return count


def operations(server):
    """NFS requests answered so far."""
    counts = server.metrics().items()
    return sum(value for name, value in counts if name.startswith("cairn_nfs_request_duration_seconds_count"))


def kill_under_load(load, server, sizes):
    """kill -9 while small durable writes and creates go on; the operations a second until then."""
    loads = [
        load.spawn(server, f"randwrite conns=2 sync=1 bs=4096 secs=60 size={sizes['scale_size']}"),
        # The first four directories have files, which are refused; the next four get new ones.
        load.spawn(server, f"create conns={2 * CONNECTIONS} files={LOAD_FILES}"),
    ]
    before, start = operations(server), time.monotonic()
    try:
        time.sleep(LOAD_SECONDS)
        if any(one.poll() is not None for one in loads):
            raise harness.Failure("a load ended before the server was killed")
        rate = (operations(server) - before) / (time.monotonic() - start)
        server.kill()
    finally:
        for one in loads:
            # The load forks, and its children wait for the server.
            if one.poll() is None:
                os.killpg(one.pid, signal.SIGKILL)
            one.wait()
    return rate


def restart(server):
    """Seconds until the server says that it is ready, and until a file's attributes were read."""
    start = time.monotonic()
    server.start()
    ready = time.monotonic() - start
    server.cairn("stat", server.url("nfsload-f0"))
    return {"ready_seconds": ready, "answered_seconds": time.monotonic() - start}


def run(load, start, sizes, say):
    """`start` gives a new server in a folder."""
    total_bytes = CONNECTIONS * sizes["scale_size"]
    with harness.scratch("scale-") as root:
        if shutil.disk_usage(root).free < SPACE_FACTOR * total_bytes:
            raise harness.Failure(f"less than {SPACE_FACTOR * total_bytes / 1e9:.0f} GB are free for the part `scale`")
        server = start(root)
        result = {"bytes": total_bytes, "peak_bytes": {"started": peak_bytes(server)}}
        try:
            for step, arguments in [
                ("written", f"seqwrite conns={CONNECTIONS} size={sizes['scale_size']}"),
                ("created", f"create conns={CONNECTIONS} depth=16 files={sizes['scale_files']}"),
            ]:
                result[step] = load.run(server, arguments)
                result["peak_bytes"][step] = peak_bytes(server)
                say(f"{step}: peak {result['peak_bytes'][step] / 1e6:,.0f} MB")
            begin = time.monotonic()
            result["files"] = list_files(server, sizes)
            result["list_seconds"] = time.monotonic() - begin
            result["peak_bytes"]["listed"] = peak_bytes(server)
            result["ops_per_s_when_killed"] = kill_under_load(load, server, sizes)
            result["restart"] = restart(server)
            result["peak_bytes"]["restarted"] = peak_bytes(server)
        finally:
            server.kill()
    os.sync()
    return result
