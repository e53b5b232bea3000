"""Disks whose file systems another program fills: the server starts on them, and goes on by itself when there is room."""

import contextlib
import os
import pathlib
import subprocess
import unittest
from typing import Any

from lib import harness, libnfs
from lib.worlds import WorldTest, content

MIB = 1024 * 1024
DISKS = 3
# In memory. Each log file takes 32 MiB of it, and up to three are there.
DISK_MIB = 224
FILE_LEN_BYTES = 2 * MIB
FILES_COUNT = 8
KILLS_COUNT = 3
# What a client sees when there is room again, on a busy machine.
WRITES_SECONDS_MAX = 30
WELL_SECONDS_MAX = 180
SERVED_SECONDS_MAX = 30


class FileSystems:
    """Small file systems in memory, in a mount namespace that a process of its own keeps: a server may be killed in it."""

    def __init__(self, folders):
        user = [] if os.getuid() == 0 else ["--user", "--map-root-user"]
        for folder in folders:
            folder.mkdir(parents=True)
        mounts = [f"mount -t tmpfs -o size={DISK_MIB}m none '{folder}'" for folder in folders]
        script = " && ".join([*mounts, "echo mounted", "exec cat"])
        argv = ["unshare", *user, "--mount", "sh", "-c", script]
        keeper: Any = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.keeper = keeper
        if keeper.stdout.readline() != b"mounted\n":
            self.close()
            raise unittest.SkipTest("no mount namespaces for this user")
        self.folders = [pathlib.Path(f"/proc/{self.keeper.pid}/root{folder.absolute()}") for folder in folders]
        # Of the user's own namespace, in which it may do what it likes.
        user = ["--user", "--preserve-credentials"] if user else []
        self.wrapper = ["nsenter", f"--target={self.keeper.pid}", *user, "--mount"]

    def close(self):
        self.keeper.stdin.close()
        self.keeper.wait()
        self.keeper.stdout.close()

    def fill(self):
        """Takes all that is free, to the last block."""
        for folder in self.folders:
            with open(folder / "other", "ab") as file:
                end, step = file.tell(), 16 * MIB
                while step >= 4096:
                    try:
                        os.posix_fallocate(file.fileno(), end, step)
                        end += step
                    except OSError:
                        step //= 2

    def empty(self):
        for folder in self.folders:
            (folder / "other").unlink()


class FullDisks(WorldTest):
    def mounted(self, server):
        """A mount, once the volume is served: clients are asked to come again until then."""
        found = []

        def mounts():
            with contextlib.suppress(BlockingIOError):
                found.append(libnfs.Mount(server.libnfs_url()))
            return found

        harness.wait_until(mounts, SERVED_SECONDS_MAX, "that the volume is served")
        return found[0]

    def test_disks_that_another_program_fills(self):
        root = self.scratch / "pool"
        disks = FileSystems([root / f"disk{index}" for index in range(DISKS)])
        self.addCleanup(disks.close)
        server = self.enterContextHere(harness.Server(root, DISKS, wrapper=disks.wrapper))
        files = {f"/file{index}": content(f"file {index}", FILE_LEN_BYTES) for index in range(FILES_COUNT)}
        with libnfs.Mount(server.libnfs_url()) as mount:
            for name, data in files.items():
                mount.write_file(name, data)
        harness.wait_until(server.is_well, WELL_SECONDS_MAX, "a pool without warnings")
        for nth in range(KILLS_COUNT):
            # Also what the pool gave back meanwhile.
            disks.fill()
            server.kill()
            server.start()
            # Small disks have too little of their own for a start; it goes on by itself when there is room.
            disks.empty()
            doomed = f"/file{nth}"
            with self.mounted(server) as mount:
                for name, data in files.items():
                    self.assertTrue(mount.read_file(name) == data, name)
                mount.unlink(doomed)
                del files[doomed]

        def writes():
            try:
                with libnfs.Mount(server.libnfs_url()) as mount:
                    mount.write_file("/after", content("after", FILE_LEN_BYTES))
            except OSError:
                return False
            return True

        harness.wait_until(writes, WRITES_SECONDS_MAX, "room for writes")
        harness.wait_until(server.is_well, WELL_SECONDS_MAX, "a pool without warnings")
        # What was kept for this is there once more.
        ballast = [folder / "ballast" for folder in disks.folders]
        is_kept = lambda: all(folder.is_dir() and len(list(folder.iterdir())) == 4 for folder in ballast)
        harness.wait_until(is_kept, WELL_SECONDS_MAX, "the room that is kept on full disks")
        server.restart()
        with libnfs.Mount(server.libnfs_url()) as mount:
            for name, data in files.items():
                self.assertTrue(mount.read_file(name) == data, name)
            self.assertTrue(mount.read_file("/after") == content("after", FILE_LEN_BYTES))
