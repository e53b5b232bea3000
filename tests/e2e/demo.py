"""What Cairn is, in one minute: six disks, a real tree copied in over NFS, kill -9, two disks deleted, compared.

    scripts/demo [--source FOLDER] [--limit-mb N]

Everything happens in a scratch folder that is removed at the end.
"""

import argparse
import hashlib
import os
import pathlib
import shutil
import sys
import time

from lib import harness

DISKS_COUNT = 6
SOURCE_DEFAULT = "/usr/share"
LIMIT_MB_DEFAULT = 300
KILL_SECONDS_MAX = 60
SCRATCH_FREE_FACTOR = 4


def select(source, limit_bytes):
    """Regular files and links of a tree, whole folders at a time, up to a limit of bytes."""
    chosen, total_bytes = [], 0
    for folder, directories, names in os.walk(source):
        directories.sort()
        for name in sorted(names):
            path = pathlib.Path(folder, name)
            info = path.lstat()
            if not (path.is_symlink() or path.is_file()) or not os.access(path, os.R_OK, follow_symlinks=False):
                continue
            if total_bytes + info.st_size > limit_bytes:
                continue
            chosen.append(path)
            total_bytes += info.st_size if not path.is_symlink() else 0
    return chosen, total_bytes


def stage(source, chosen, to):
    """The chosen files as a tree of their own; hard links where the file system allows, else copies."""
    for path in chosen:
        target = to / path.relative_to(source)
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(path, target, follow_symlinks=False)
        except OSError:
            shutil.copy2(path, target, follow_symlinks=False)


def digests(root):
    """The content of each file, the target of each link."""
    found = {}
    for folder, directories, names in os.walk(root):
        for name in names + directories:
            path = pathlib.Path(folder, name)
            key = str(path.relative_to(root))
            if path.is_symlink():
                found[key] = "-> " + os.readlink(path)
            elif path.is_file():
                found[key] = hashlib.sha256(path.read_bytes()).hexdigest()
            else:
                found[key] = "folder"
    return found


class Steps:
    """Prints what is done, what it proves, and how fast it went."""

    def __init__(self):
        self.number = 0
        self.started = time.monotonic()

    def run(self, what, action, proves=None, total_bytes=None):
        self.number += 1
        print(f"{self.number}. {what} ...", flush=True)
        started = time.monotonic()
        result = action()
        seconds = time.monotonic() - started
        rate = f", {total_bytes / seconds / 1e6:,.0f} MB/s" if total_bytes else ""
        print(f"   {seconds:.2f} s{rate}{'. ' + proves if proves else ''}\n", flush=True)
        return result


def kill_while_copying(server, tree):
    """Starts a copy, and kills the server with SIGKILL once part of it has arrived."""
    before = server.status()["volumes"][0]["inodes"]
    # It cannot end well: its server goes away.
    copying = server.spawn_cairn("cp", "-r", "-q", tree, server.url("cut-off"))
    harness.wait_until(
        lambda: server.status()["volumes"][0]["inodes"] > before + 20 or copying.poll() is not None,
        KILL_SECONDS_MAX,
        "the arrival of some files",
    )
    server.kill()
    copying.kill()
    copying.wait()


def compare(want, got):
    if want != got:
        wrong = [name for name in want if got.get(name) != want[name]] + [name for name in got if name not in want]
        raise harness.Failure(f"{len(wrong)} files differ, the first is {wrong[0]!r}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--source", type=pathlib.Path, default=pathlib.Path(SOURCE_DEFAULT))
    parser.add_argument("--limit-mb", type=int, default=LIMIT_MB_DEFAULT)
    arguments = parser.parse_args()
    chosen, total_bytes = select(arguments.source, arguments.limit_mb * 1_000_000)
    with harness.scratch("demo-") as scratch:
        free_bytes = shutil.disk_usage(scratch).free
        if free_bytes < total_bytes * SCRATCH_FREE_FACTOR:
            raise harness.Failure(f"the demo needs {total_bytes * SCRATCH_FREE_FACTOR >> 20} MiB below {scratch.parent}")
        tree = scratch / "tree"
        tree.mkdir()
        stage(arguments.source, chosen, tree)
        want = digests(tree)
        print(f"{len(chosen)} files of {arguments.source}, {total_bytes / 1e6:,.0f} MB\n")
        run(scratch, tree, want, total_bytes)


def run(scratch, tree, want, total_bytes):
    steps = Steps()
    pool = scratch / "pool"
    pool.mkdir()
    server = harness.Server(pool, DISKS_COUNT)
    try:
        steps.run(
            "start Cairn on six new disks",
            server.start,
            "One command makes the pool, a volume and its export. 4+2: any two disks may go",
        )
        steps.run(
            "copy the tree in over NFS, with our own client (no mount, no root)",
            lambda: server.cairn("cp", "-r", "-q", tree, server.url("tree")),
            "Everything up to here was answered as stable",
            total_bytes,
        )
        steps.run(
            "start a second copy, and kill -9 the server in the middle of it",
            lambda: kill_while_copying(server, tree),
            "No chance to write anything more",
        )
        for disk in server.disks[1:3]:
            steps.run(f"delete {disk.name}, with all that is in it", lambda disk=disk: shutil.rmtree(disk))
        steps.run(
            "start again with the four disks that are left",
            server.start,
            "It serves at once; no check of the file system comes before. Status: "
            "two disks MISSING, reads decode around them",
        )
        print("\n".join("   " + line for line in server.cairn("status").stdout.splitlines()[:2]) + "\n")
        steps.run(
            "copy the tree out again",
            lambda: server.cairn("cp", "-r", "-q", server.url("tree"), scratch / "back"),
            "Every read of the lost disks' parts was computed from the others",
            total_bytes,
        )
        steps.run(
            "compare every file byte for byte",
            lambda: compare(want, digests(scratch / "back")),
            f"All {len(want)} are the same",
        )
        steps.run("stop", server.stop)
        print(f"done in {time.monotonic() - steps.started:.0f} s")
    except harness.Failure:
        print(f"the end of the server's log:\n{server.log_tail()}", file=sys.stderr)
        raise
    finally:
        server.kill()
