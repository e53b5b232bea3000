"""A pool of six disks that loses some of them, and how it is loaded.

Owns: servers of this program's kind, cold starts, disks that go away and come back, the loads.
Must not know: what is measured with it.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import shutil

from bench.nfs.peers import DROP_CACHES
from lib import harness

DISKS = 6
DATA_DISKS = 4
CONNECTIONS = 4
AWAY = ".away"
# So that what was read once is seldom in memory when it is read again, and little memory is touched for the first
# time, for which a virtual machine has to ask its host.
SMALL_MEMORY = ("--memory-limit", "256MiB")


@contextlib.contextmanager
def pool(prefix, disks=DISKS, flags=()):
    """A new server on so many folders, which keeps its port."""
    with harness.scratch(prefix) as root:
        server = harness.Server(root, disks, flags, port=harness.next_port())
        try:
            yield server.start()
        finally:
            server.kill()
    os.sync()


def stop(server):
    status = server.stop()
    if status != 0:
        raise harness.Failure(f"cairn serve ended with {status} after SIGTERM:\n{server.log_tail()}")


def start_cold(server):
    """Starts it, which is stopped, with nothing in the kernel's caches."""
    os.sync()
    DROP_CACHES.write_text("3")
    server.start()


def restart_cold(server):
    stop(server)
    start_cold(server)


def away(server, indexes):
    """Restarts it cold, with these disks away and all others there."""
    stop(server)
    for index, disk in enumerate(server.disks):
        gone = disk.with_name(disk.name + AWAY)
        if index in indexes and disk.exists():
            disk.rename(gone)
        elif index not in indexes and gone.exists():
            # The server makes no folder in its place: it would be a new disk.
            gone.rename(disk)
    start_cold(server)


def lose(server, index):
    """Stops it, and destroys a disk; an empty one is there instead."""
    stop(server)
    shutil.rmtree(server.disks[index])
    server.disks[index].mkdir()


def replace(server, index):
    """The empty disk takes the place of the lost one."""
    disk = str(server.disks[index])
    server.cairn("disk", "replace", disk, disk)


def rebuild(server):
    """What the server says about its rebuild."""
    return json.loads(server.get("/api/v1/rebuild"))


def shard_files(disk):
    """The shards on a disk that hold data."""
    folder = disk / "shards"
    return sorted(path for path in folder.rglob("*") if path.is_file())


def size_of(files):
    return sum(path.stat().st_size for path in files)


@dataclasses.dataclass(frozen=True)
class Work:
    """One kind of work that clients do."""

    key: str
    title: str
    arguments: str
    is_stream: bool
    is_cold: bool = True
    # Server flags that it needs.
    flags: tuple[str, ...] = ()

    def rate(self, result):
        return result["mb_per_s"] if self.is_stream else result["ops_per_s"]

    def rate_text(self, rate):
        return f"{rate:,.0f} MB/s" if self.is_stream else f"{rate:,.0f} /s"


def free_or_fail(needed_bytes, what):
    folder = pathlib.Path(os.environ.get("CAIRN_SCRATCH") or harness.target_dir() / "tmp")
    folder.mkdir(parents=True, exist_ok=True)
    if shutil.disk_usage(folder).free < needed_bytes:
        raise harness.Failure(f"less than {needed_bytes / 1e9:.0f} GB are free for {what}")
