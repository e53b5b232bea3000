"""Disks whose file systems another program fills: the server starts on them, and goes on by itself when there is room."""

import contextlib
import errno
import hashlib
import os
import pathlib
import subprocess
import unittest
from typing import Any

from lib import harness, libnfs, s3
from lib.worlds import WorldTest, content

MIB = 1024 * 1024
DISKS = 6
# In memory. Each log file takes 32 MiB of three of them, and up to four are there.
DISK_MIB = 224
FILE_LEN_BYTES = 2 * MIB
# Files that stay, and files that are deleted while the disks are full: the latter are alone in their segments.
KEPT_COUNT = 3
DOOMED_COUNT = 6
# What deleting the latter gives back at least: less than they take, for the log goes on meanwhile.
FREED_BYTES_MIN = 4 * MIB
# Kills while there is no room: each start has less than the one before.
KILLS_COUNT = 4
BALLAST_COUNT = 4
# What a client sees when there is room again, on a busy machine.
WRITES_SECONDS_MAX = 30
WELL_SECONDS_MAX = 180
SERVED_SECONDS_MAX = 30
FREED_SECONDS_MAX = 120


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

    def free_bytes(self):
        stats = [os.statvfs(folder) for folder in self.folders]
        return sum(stat.f_bavail * stat.f_frsize for stat in stats)

    def ballast(self):
        """The files of each disk that keep room for a start."""
        folders = [folder / "ballast" for folder in self.folders]
        return [sorted(folder.iterdir()) if folder.is_dir() else [] for folder in folders]


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

    def filled_pool(self, flags=()):
        root = self.scratch / "pool"
        disks = FileSystems([root / f"disk{index}" for index in range(DISKS)])
        self.addCleanup(disks.close)
        return disks, self.enterContextHere(harness.Server(root, DISKS, flags, wrapper=disks.wrapper))

    def start_without_room(self, disks, server):
        server.kill()
        # Others had what was kept for it.
        for pieces in disks.ballast():
            for piece in pieces:
                piece.unlink()
        disks.fill()
        server.start()

    def write_files(self, server, prefix, count):
        files = {f"/{prefix}{index}": content(f"{prefix} {index}", FILE_LEN_BYTES) for index in range(count)}
        with libnfs.Mount(server.libnfs_url()) as mount:
            for name, data in files.items():
                mount.write_file(name, data)
        return files

    def is_read(self, mount, files):
        for name, data in files.items():
            self.assertTrue(mount.read_file(name) == data, name)
        self.assertEqual({name.lstrip("/") for name in files}, set(mount.names("/")))

    def goes_on(self, server, disks, files):
        """There is room again: nobody does anything, and all is as it was."""

        def writes():
            try:
                with libnfs.Mount(server.libnfs_url()) as mount:
                    mount.write_file("/after", content("after", FILE_LEN_BYTES))
            except OSError:
                return False
            return True

        harness.wait_until(writes, WRITES_SECONDS_MAX, "room for writes")
        files["/after"] = content("after", FILE_LEN_BYTES)
        harness.wait_until(server.is_well, WELL_SECONDS_MAX, "a pool without warnings")
        is_kept = lambda: all(len(pieces) == BALLAST_COUNT for pieces in disks.ballast())
        harness.wait_until(is_kept, WELL_SECONDS_MAX, "the room that is kept on full disks")
        with self.mounted(server) as mount:
            self.is_read(mount, files)

    def is_refused(self, mount, server):
        """A change is refused at once, and whoever is only read says so."""
        with self.assertRaises(OSError) as refused:
            mount.write_file("/new", content("new", FILE_LEN_BYTES))
        self.assertEqual(refused.exception.errno, errno.ENOSPC)
        warnings = {warning["kind"]: warning for warning in server.status()["warnings"]}
        self.assertNotIn("volume_not_served", warnings)
        if told := warnings.get("volume_read_only"):
            self.assertEqual(told["volume"], "main")
            self.assertIn("read-only until its disks have room", told["message"])
            self.assertTrue(told["next"])

    def test_a_killed_server_reads_and_deletes_on_full_disks(self):
        disks, server = self.filled_pool()
        kept = self.write_files(server, "kept", KEPT_COUNT)
        # What is killed first: the disks are full before the server is, or while it is away.
        for order in ("fill first", "kill first", "fill first"):
            with self.subTest(order):
                # What is written by another start is in other segments.
                server.kill()
                server.start()
                doomed = self.write_files(server, "doomed", DOOMED_COUNT)
                harness.wait_until(server.is_well, WELL_SECONDS_MAX, "a pool without warnings")
                is_kept = lambda: all(len(pieces) == BALLAST_COUNT for pieces in disks.ballast())
                harness.wait_until(is_kept, WELL_SECONDS_MAX, "the room that is kept on full disks")
                if order == "fill first":
                    disks.fill()
                    server.kill()
                    # Also what the pool gave back meanwhile.
                    disks.fill()
                else:
                    server.kill()
                    disks.fill()
                server.start()
                with self.mounted(server) as mount:
                    self.is_read(mount, kept | doomed)
                    for name in doomed:
                        mount.unlink(name)
                    self.is_read(mount, kept)
                freed = lambda: disks.free_bytes() >= FREED_BYTES_MIN
                harness.wait_until(freed, FREED_SECONDS_MAX, "room that deleting gives back")
                disks.empty()
                self.goes_on(server, disks, kept)

    def test_reads_go_on_however_often_a_server_is_killed_on_full_disks(self):
        disks, server = self.filled_pool()
        files = self.write_files(server, "kept", KEPT_COUNT)
        harness.wait_until(server.is_well, WELL_SECONDS_MAX, "a pool without warnings")
        for _ in range(KILLS_COUNT):
            # The other program takes what the server gives up for its start, too.
            disks.fill()
            server.kill()
            disks.fill()
            server.start()
            with self.mounted(server) as mount:
                self.is_read(mount, files)
                self.is_refused(mount, server)
                self.is_read(mount, files)
        disks.empty()
        self.goes_on(server, disks, files)
        server.restart()
        with libnfs.Mount(server.libnfs_url()) as mount:
            self.is_read(mount, files)

    def test_without_any_room_a_key_is_refused_and_changes_say_why(self):
        port = harness.next_port()
        disks, server = self.filled_pool(["--listen-s3", f"127.0.0.1:{port}"])
        server.cairn("bucket", "create", "photos", "--uid", 1000, "--gid", 100)
        keys, other = (s3.Keys(server, uid=1000, gid=100) for _ in range(2))

        def status(method, key, body=b""):
            signer, path = s3.Signer(port, key), "/photos/there"
            headers, _ = signer.sign(method, path, hashlib.sha256(body).hexdigest())
            return signer.send(method, path, headers | {"content-length": str(len(body))}, body)[0]

        self.assertEqual(status("PUT", keys, b"1"), 200)
        harness.wait_until(server.is_well, WELL_SECONDS_MAX, "a pool without warnings")
        self.start_without_room(disks, server)
        harness.wait_until(lambda: status("GET", keys) == 200, SERVED_SECONDS_MAX, "that objects are read")
        self.assertIn("volume_read_only", [warning["kind"] for warning in server.status()["warnings"]])
        # Refused at once, and nobody is told that this is stored.
        revoke = ["s3", "key", "revoke", keys.id]
        for _ in range(2):
            told = server.cairn(*revoke, check=False)
            self.assertNotEqual(told.returncode, 0)
            self.assertIn("not stored", told.stderr)
            self.assertIn("restarts", told.stderr)
            self.assertEqual((status("GET", keys), status("GET", other)), (403, 200))
        for words in (
            ["volume", "create", "more"], ["bucket", "create", "more"], ["s3", "key", "create", "--uid", 1, "--gid", 1],
            ["snapshot", "create", "main", "now"],
        ):
            with self.subTest(words):
                told = server.cairn(*words, check=False)
                self.assertNotEqual(told.returncode, 0)
                self.assertIn("no space", told.stderr)
                self.assertIn("cairn status", told.stderr)
                self.assertNotIn("the server's log has details", told.stderr)
        # There is room again: the server finishes what was asked of it, for good.
        disks.empty()
        is_gone = lambda: keys.id not in server.cairn("s3", "key", "list", "--json").stdout
        harness.wait_until(is_gone, WELL_SECONDS_MAX, "that the key is removed")
        server.restart()
        harness.wait_until(lambda: status("GET", other) == 200, SERVED_SECONDS_MAX, "that objects are read")
        self.assertEqual(status("GET", keys), 403)

    def test_a_start_without_any_room_serves_reads(self):
        disks, server = self.filled_pool()
        files = self.write_files(server, "kept", KEPT_COUNT)
        harness.wait_until(server.is_well, WELL_SECONDS_MAX, "a pool without warnings")
        self.start_without_room(disks, server)
        with self.mounted(server) as mount:
            self.is_read(mount, files)
            self.is_refused(mount, server)
        disks.empty()
        self.goes_on(server, disks, files)
