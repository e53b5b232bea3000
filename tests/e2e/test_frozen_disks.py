"""Disks whose file systems are frozen (`fsfreeze`) or turn read-only, below the server as it is shipped, with clients at work.

Real file systems do what no library can: a process that changes a frozen one sleeps in the kernel and cannot be killed, while reads
go on. A frozen file system also stops `sync` for the whole machine, so each is thawed whatever becomes of its test.
"""

import contextlib
import os
import shutil
import subprocess
import threading
import time
import unittest
from typing import Any

from e2e.test_faulty_disks import Clients
from lib import harness, libnfs
from lib.worlds import DisksTest, content

MIB = 1 << 20
DISK_COUNT = 6
# Files with holes: what is written takes room.
DISK_LEN_BYTES = 1536 * MIB
# What is asked of the program is 2 s; the machine that tests it may be busy, and asking takes a moment, too.
KNOWN_SECONDS_MAX = 10
# Longer than any disk is frozen that is not to be given up,
PATIENT_SECONDS = 60
# and for those that are: longer than the others take, see test_faulty_disks.
HANG_AFTER_SECONDS = 8
NOTICE_SECONDS_MAX = 60
RETURN_SECONDS_MAX = 180
COMMIT_BYTES = 256 * MIB
PIECE_BYTES = MIB
# Beyond the same COMMIT without a fault. With a wait for each 4 MiB it was 13 to 16 s.
COMMIT_SECONDS_MAX = 8
# After that a process of its own thaws what a test that was killed left frozen.
THAW_SECONDS = 300


class FileSystems:
    """File systems in files, mounted in a namespace that a process of its own keeps: nothing is left of them when that ends."""

    def __init__(self, folders, kind):
        self.kind = kind
        mounts = []
        for folder in folders:
            folder.mkdir(parents=True)
            image = folder.with_suffix(".image")
            with open(image, "wb") as file:
                file.truncate(DISK_LEN_BYTES)
            options = {"ext4": ["-m", "0", "-E", "lazy_itable_init=0,lazy_journal_init=0"], "xfs": []}[kind]
            subprocess.run([f"mkfs.{kind}", "-q", *options, image], check=True, capture_output=True)
            mounts.append(f"mount -o loop '{image}' '{folder}'")
        script = " && ".join([*mounts, "echo mounted", "exec cat"])
        argv = ["unshare", "--mount", "sh", "-c", script]
        pipe = subprocess.PIPE
        keeper: Any = subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=pipe)
        self.keeper = keeper
        if keeper.stdout.readline() != b"mounted\n":
            why = keeper.stderr.read().decode().strip()
            self.close()
            raise unittest.SkipTest(f"loop devices cannot be mounted here: {why}")
        self.wrapper = ["nsenter", f"--target={keeper.pid}", "--mount"]

    def close(self):
        self.keeper.stdin.close()
        self.keeper.wait()
        self.keeper.stdout.close()
        self.keeper.stderr.close()

    def run(self, *words, check=True):
        return subprocess.run([*self.wrapper, *map(str, words)], check=check, capture_output=True, text=True)

    @contextlib.contextmanager
    def frozen(self, folder):
        """Nothing is written to it until the end of the block. Reads go on."""
        guard = subprocess.Popen(
            [*self.wrapper, "sh", "-c", f"sleep {THAW_SECONDS}; exec fsfreeze --unfreeze '{folder}'"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )
        try:
            frozen = self.run("fsfreeze", "--freeze", folder, check=False)
            if frozen.returncode:
                raise unittest.SkipTest(f"file systems cannot be frozen here: {frozen.stderr.strip()}")
            yield
        finally:
            self.run("fsfreeze", "--unfreeze", folder, check=False)
            os.killpg(guard.pid, 9)
            guard.wait()

    def turn_read_only(self, folder):
        """What ext4 does of itself when it finds an error."""
        turned = self.run("mount", "-o", "remount,abort", folder, check=False)
        # The remount itself may be refused by what it did.
        options = self.run("findmnt", "--noheadings", "--output=FS-OPTIONS", folder).stdout.strip().split(",")
        if "ro" not in options and self.run("touch", folder / "touched", check=False).returncode == 0:
            raise unittest.SkipTest(f"a file system cannot be made read-only here: {turned.stderr.strip()}")


@unittest.skipUnless(os.getuid() == 0, "needs root for file systems of its own")
@unittest.skipUnless(shutil.which("fsfreeze") and shutil.which("nsenter"), "needs fsfreeze and nsenter (util-linux)")
class FrozenDisks(DisksTest):
    def file_systems(self, kind="ext4"):
        if not shutil.which(f"mkfs.{kind}"):
            self.skipTest(f"needs mkfs.{kind}")
        root = self.scratch / "pool"
        self.systems = FileSystems([root / f"disk{index}" for index in range(DISK_COUNT)], kind)
        # Of cleanups the last comes first: the server ends before, and what is frozen is thawed before that.
        self.addCleanup(self.systems.close)
        return root

    def serve(self, root, hang_after):
        config = root / "cairn.toml"
        config.write_text(f"hang_after = {hang_after}\n")
        flags = ["--config", str(config)]
        return self.enterContextHere(harness.Server(root, DISK_COUNT, flags, wrapper=self.systems.wrapper))

    def freeze(self, disk):
        """Until what this returns is closed, or the test ends."""
        held = contextlib.ExitStack()
        # Before it is frozen: whatever comes next, it is thawed.
        self.addCleanup(held.close)
        held.enter_context(self.systems.frozen(disk))
        return held

    def write(self, mount, name):
        """Writes a large file that is not durable yet; returns it open."""
        file = mount.open(name, os.O_CREAT | os.O_RDWR)
        for offset in range(0, COMMIT_BYTES, PIECE_BYTES):
            file.write(offset, self.piece)
        return file

    def commit(self, file):
        begun = time.monotonic()
        file.sync()
        return time.monotonic() - begun

    def frozen_under_load(self, kind):
        server = self.serve(self.file_systems(kind), PATIENT_SECONDS)
        self.piece = content("piece", PIECE_BYTES)
        with libnfs.Mount(server.libnfs_url()) as mount, Clients(server, self.scratch) as clients:
            clients.wait_for_more(3)
            with self.write(mount, "/without") as file:
                without = self.commit(file)
            # One with data, and the one with the metadata.
            for index in (3, 0):
                self.freeze_one(server, mount, clients, index, without)
        self.assertEqual(clients.problems, [])
        self.no_wrong_bytes(server)
        for index in (3, 0):
            with libnfs.Mount(server.libnfs_url()) as mount, mount.open(f"/frozen{index}") as file:
                for offset in range(0, COMMIT_BYTES, PIECE_BYTES):
                    self.assertTrue(file.read(offset, PIECE_BYTES) == self.piece, (index, offset))
        server.restart()
        clients.verify(sorted(clients.stored))
        self.assertEqual(clients.problems, [])

    def freeze_one(self, server, mount, clients, index, without):
        disk = server.disks[index]
        seconds: list[float] = []
        failures: list[OSError] = []

        def commits(file):
            try:
                seconds.append(self.commit(file))
            except OSError as error:
                failures.append(error)

        # Thawed before the file is closed.
        with self.write(mount, f"/frozen{index}") as file, self.freeze(disk):
            begun = time.monotonic()
            # It is asked for before anybody knows that the disk hangs.
            committing = threading.Thread(target=commits, args=(file,))
            committing.start()
            self.wait_for(server, disk.name, "unresponsive", NOTICE_SECONDS_MAX)
            known = time.monotonic() - begun
            warnings = server.status()["warnings"]
            self.join([committing], PATIENT_SECONDS, "a COMMIT")
            self.assertEqual(failures, [])
            self.assertIn("disk_troubled", [warning["kind"] for warning in warnings])
            server.await_health("degraded", NOTICE_SECONDS_MAX)
            clients.wait_for_more(3)
            # What is there is read meanwhile.
            clients.verify(sorted(clients.stored)[:5])
        self.wait_for(server, disk.name, "ok", RETURN_SECONDS_MAX)
        print(f"{self.id()}: disk{index} was known after {known:.1f} s; COMMIT of {COMMIT_BYTES // MIB} MiB took "
              f"{seconds[0]:.2f} s, {without:.2f} s without the fault; the longest wait of a client {clients.longest:.1f} s")
        with self.measured():
            self.assertLess(known, KNOWN_SECONDS_MAX)
            self.assertLess(seconds[0], 3 * without + COMMIT_SECONDS_MAX)

    def test_a_frozen_disk_of_ext4_is_known_at_once_and_holds_up_nobody(self):
        self.frozen_under_load("ext4")

    def test_a_frozen_disk_of_xfs_is_known_at_once_and_holds_up_nobody(self):
        self.frozen_under_load("xfs")

    def test_a_frozen_disk_that_is_given_up_comes_back_without_a_restart(self):
        server = self.serve(self.file_systems(), HANG_AFTER_SECONDS)
        disk = server.disks[4]
        with Clients(server, self.scratch) as clients:
            clients.wait_for_more(3)
            # By itself, and by the command.
            for asks in (False, True):
                with self.freeze(disk):
                    self.wait_for(server, disk.name, "failed", NOTICE_SECONDS_MAX)
                    self.assertIn("no answer", self.disks(server)[0][disk.name]["problem"])
                    clients.wait_for_more(3)
                    refused = server.cairn("disk", "retry", disk, check=False)
                    self.assertEqual(refused.returncode, 4, refused.stderr)
                    self.assertIn("has not answered", refused.stderr)
                if asks:
                    self.take_back(server, disk)
                self.wait_for(server, disk.name, "ok", RETURN_SECONDS_MAX)
                clients.wait_for_more(3)
        self.assertEqual(clients.problems, [])
        server.await_well()
        self.no_wrong_bytes(server)
        server.restart()
        clients.verify(sorted(clients.stored))
        self.assertEqual(clients.problems, [])

    def test_file_systems_that_turn_read_only_count_as_lost(self):
        server = self.serve(self.file_systems(), PATIENT_SECONDS)
        lost = server.disks[2:5]
        with Clients(server, self.scratch) as clients:
            clients.wait_for_more(3)
            for disk in lost[:2]:
                self.systems.turn_read_only(disk)
                # Known from a write that fails, or put out for many of them; one that was silent just before is told as that.
                told = lambda disk=disk: self.disks(server)[0][disk.name]["state"] in ("failing", "failed", "unresponsive")
                harness.wait_until(told, NOTICE_SECONDS_MAX, f"that {disk.name} counts as lost")
            server.await_health("degraded", NOTICE_SECONDS_MAX)
            clients.wait_for_more(3)
        self.assertEqual(clients.problems, [])
        self.systems.turn_read_only(lost[2])
        failed = lambda: server.status()["health"] == "failed"
        harness.wait_until(failed, NOTICE_SECONDS_MAX, "that three disks that take nothing are one too many")
        # What is on them is read nevertheless.
        clients.verify(sorted(clients.stored))
        self.assertEqual(clients.problems, [])
