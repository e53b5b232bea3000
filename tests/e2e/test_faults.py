"""Faults of processes, machines and networks under load: nothing acknowledged is lost, clients go on by themselves.

The short form of `make test-faults`, over libnfs and with calls made by hand. Each fault strikes when all load has
got somewhere since the last one.
"""

import contextlib
import errno
import os
import re
import resource
import signal
import struct
import unittest

from lib import faults, harness, libnfs, rawnfs
from lib.load import Load
from lib.worlds import WorldTest, content

LOADS_COUNT = 3
# Each load has so much more acknowledged before the next fault, and after the last.
STEP_COUNT = 40
# Each waits for a disk that may take seconds for it.
STEP_SECONDS_MAX = 240
END_SECONDS_MAX = 90
KILLS_COUNT = 10
STOP_SECONDS = 2
DESCRIPTORS_COUNT = 200
SMALL_DISK_LEN_BYTES = 512 << 20
PIECE_LEN_BYTES = 1 << 20
STATE_LEN_BYTES = 20 << 20
# Space that is there again is noticed by looking now and then.
ROOM_SECONDS_MAX = 90
CONNECTIONS_COUNT = 100
# File descriptors that data files leave.
FILES_SPARE_COUNT = 32
# What libnfs makes of NFS3ERR_NOSPC: the second for writes.
FULL = (errno.ENOSPC, errno.EFAULT)
# Of one reason, however long it lasts.
LOG_LINES_MAX = 3


class FaultTest(WorldTest):
    def loads(self, port, first=0):
        url = f"nfs://127.0.0.1/main?nfsport={port}&mountport={port}&version=3"
        self.running = [Load(url, first + index) for index in range(LOADS_COUNT)]
        for load in self.running:
            load.start()

    def go_on(self):
        """Waits until every load has got further from where it is now."""
        wanted = [load.acknowledged_count + STEP_COUNT for load in self.running]

        def further():
            for load in self.running:
                if load.failure:
                    raise load.failure
            return all(load.acknowledged_count >= count for load, count in zip(self.running, wanted))

        harness.wait_until(further, STEP_SECONDS_MAX, "that all load goes on")

    def verify(self, server):
        """Ends the load and compares everything, now and after one more kill -9."""
        for load in self.running:
            load.end(END_SECONDS_MAX)
        for _ in range(2):
            with libnfs.Mount(server.libnfs_url()) as mount:
                for load in self.running:
                    self.assertGreater(load.verify(mount), 0)
            faults.kill(server)
        self.assertEqual(server.stop(), 0)


class Processes(FaultTest):
    def check_kills(self, disks, count):
        server = self.server(disks)
        self.loads(server.port)
        for _ in range(count):
            self.go_on()
            faults.kill(server)
        self.go_on()
        self.verify(server)

    def test_killed_on_one_disk(self):
        self.check_kills(1, KILLS_COUNT)

    def test_killed_on_six_disks(self):
        self.check_kills(6, KILLS_COUNT // 2)

    def test_stopped(self):
        server = self.server(1)
        self.loads(server.port)
        for _ in range(2):
            self.go_on()
            faults.stop(server, STOP_SECONDS)
        self.go_on()
        self.verify(server)

    def test_out_of_address_space(self):
        server = self.server(1)
        self.loads(server.port)
        self.go_on()
        # It ends, however that is called, and does not live on in part.
        self.assertNotEqual(faults.out_of_address_space(server), 0)
        server.start()
        self.go_on()
        self.verify(server)

    def test_out_of_memory(self):
        if not faults.has_memory_groups():
            self.skipTest("needs root and memory cgroups")
        server = self.server(1)
        self.loads(server.port)
        self.go_on()
        faults.out_of_memory(server)
        self.go_on()
        self.verify(server)

    def test_out_of_file_descriptors(self):
        server = self.server(2)
        self.loads(server.port)
        self.go_on()
        with rawnfs.Peer(server.port) as peer, contextlib.ExitStack() as waiting:
            _, root = peer.mount("/main")
            with faults.descriptors_left(server, 0):
                for _ in range(CONNECTIONS_COUNT):
                    late = rawnfs.Peer(server.port)
                    waiting.enter_context(late.socket)
                refused = lambda: "cannot accept connections" in server.log_path.read_text()
                harness.wait_until(refused, STEP_SECONDS_MAX, "a connection that is not taken")
                # Who is connected is served, with data that was open.
                status, _ = peer.getattr(root)
                self.assertEqual(status, rawnfs.OK)
                file = peer.create(root, "without-descriptors")[1]
                self.assertEqual(peer.write(file, b"content"), rawnfs.OK)
            # Who waited is served now.
            self.assertEqual(late.mount("/main")[0], rawnfs.OK)
            self.go_on()
        lines = re.findall(".*descriptor.*|.*Too many open files.*", server.log_path.read_text())
        self.assertLessEqual(len(lines), LOG_LINES_MAX, lines)
        states = lambda: [disk["state"] for disk in server.status()["disks"]]
        harness.wait_until_equal(states, ["ok"] * 2, STEP_SECONDS_MAX, "the states of disks")
        self.verify(server)

    def test_files_leave_descriptors_for_metadata(self):
        server = self.server(1)
        self.loads(server.port)
        self.go_on()
        waits = lambda: "no file descriptor left" in server.log_path.read_text()
        with faults.descriptors_left(server, FILES_SPARE_COUNT):
            used_count = len(os.listdir(f"/proc/{server.pid}/fd"))
            harness.wait_until(waits, STEP_SECONDS_MAX, "a file that waits for a descriptor")
            self.assertLess(len(os.listdir(f"/proc/{server.pid}/fd")), used_count + FILES_SPARE_COUNT // 2)
        self.go_on()
        self.verify(server)

    def test_connections_leave_descriptors_for_files(self):
        server = self.server(1)
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (DESCRIPTORS_COUNT, DESCRIPTORS_COUNT))
        with contextlib.ExitStack() as held:
            for _ in range(DESCRIPTORS_COUNT):
                held.enter_context(rawnfs.Peer(server.port).socket)
            refused = lambda: server.metrics()["cairn_nfs_connections_refused_total"] > 0
            # The admin API still gets one of those that are spared, and so do files.
            harness.wait_until(refused, STEP_SECONDS_MAX, "a connection that is refused")
            self.assertLess(len(os.listdir(f"/proc/{server.pid}/fd")), DESCRIPTORS_COUNT - 50)

    @unittest.skipUnless(os.getuid() == 0, "needs root for a file system of its own")
    def test_full_disk(self):
        folder = self.scratch / "pool"
        folder.mkdir()
        disk = self.enterContextHere(faults.small_disk(folder / "disk0", SMALL_DISK_LEN_BYTES))
        server = self.enterContextHere(harness.Server(folder, 1))
        self.loads(server.port)
        self.go_on()
        stopped = self.running
        with rawnfs.Peer(server.port) as peer, contextlib.ExitStack() as held:
            _, root = peer.mount("/main")
            file = peer.create(root, "big")[1]
            held.enter_context(faults.filled(disk))
            piece = content("big", PIECE_LEN_BYTES)
            written = (peer.write(file, piece, offset=at) for at in range(0, SMALL_DISK_LEN_BYTES, PIECE_LEN_BYTES))
            self.assertEqual(next(status for status in written if status != rawnfs.OK), rawnfs.NOSPC)
            for load in stopped:
                # Told, too, and none waits.
                load.join(STEP_SECONDS_MAX)
                self.assertIn(getattr(load.failure, "errno", None), FULL, load.failure)
            # What is there can be read and removed.
            with libnfs.Mount(server.libnfs_url()) as mount:
                for load in stopped:
                    load.verify(mount)
                mount.unlink("/big")
        with rawnfs.Peer(server.port) as peer:
            has_room = lambda: peer.create(root, "room")[0] == rawnfs.OK
            harness.wait_until(has_room, ROOM_SECONDS_MAX, "the return of the space")
        self.loads(server.port, first=LOADS_COUNT)
        self.go_on()
        with libnfs.Mount(server.libnfs_url()) as mount:
            for load in stopped:
                load.verify(mount)
        self.verify(server)
        server.start()
        with libnfs.Mount(server.libnfs_url()) as mount:
            for load in stopped:
                load.verify(mount)

    @unittest.skipUnless(os.getuid() == 0, "needs root to mount")
    def test_what_is_on_a_file_system_that_turned_read_only_can_be_read(self):
        server = self.server(1)
        path = self.scratch / "file"
        path.write_bytes(content("file", PIECE_LEN_BYTES))
        server.cairn("cp", "-q", path, server.url("file"))
        server.restart()
        (disk,) = server.disks
        with faults.read_only(disk):
            self.assertEqual(server.cairn("cat", server.url("file"), text=False).stdout, path.read_bytes())

    @unittest.skipUnless(os.getuid() == 0, "needs root for a file system of its own")
    def test_a_volume_that_finds_no_space_leaves_nothing(self):
        folder = self.scratch / "pool"
        folder.mkdir()
        disk = self.enterContextHere(faults.small_disk(folder / "disk0", SMALL_DISK_LEN_BYTES))
        server = self.enterContextHere(harness.Server(folder, 1))
        volumes = lambda: sorted(os.listdir(disk / "volumes"))
        before = volumes()
        free_len_bytes = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize
        with open(disk / "of-somebody-else", "wb") as file:
            # Room for the state of the metadata, and none for a file of its log.
            os.posix_fallocate(file.fileno(), 0, free_len_bytes - STATE_LEN_BYTES)
        refused = server.cairn("volume", "create", "second", check=False)
        # As for each answer 409: the state of the server does not allow it now.
        self.assertEqual(refused.returncode, 4, refused.stderr)
        self.assertIn("no space left", refused.stderr)
        self.assertEqual(volumes(), before)
        (disk / "of-somebody-else").unlink()
        server.cairn("volume", "create", "second")
        self.assertEqual(len(volumes()), len(before) + 1)


class Networks(FaultTest):
    def check(self, strike):
        server = self.server(1)
        network = self.enterContextHere(faults.Network(server))
        self.loads(network.port)
        for _ in range(3):
            self.go_on()
            strike(network)
        self.go_on()
        self.verify(server)
        return server

    def test_connections_are_cut(self):
        self.check(lambda network: network.cut())

    def test_replies_are_lost(self):
        self.check(lambda network: network.lose_replies(STEP_SECONDS_MAX))

    def test_calls_come_late(self):
        def strike(network):
            with network.late():
                self.go_on()

        self.check(strike)


class Repeated(WorldTest):
    """Calls that come twice, over connections that the client gave up and over new ones."""

    def test_what_came_while_the_server_stood_still_is_done_once(self):
        server = self.server(1)
        with rawnfs.Peer(server.port) as old, rawnfs.Peer(server.port) as new:
            _, root = old.mount("/main")
            for name in ("to-rename", "to-remove", "to-write", "to-cut"):
                old.create(root, name)
            handles = {name: old.lookup(root, name)[1] for name in ("to-write", "to-cut")}
            old.write(handles["to-cut"], b"0123456789")
            entry = lambda text: rawnfs.opaque(root) + rawnfs.opaque(text)
            write = struct.pack(">QII", 0, 3, 2) + rawnfs.opaque(b"old")
            calls = [
                (14, entry(b"to-rename") + entry(b"renamed")),
                (12, entry(b"to-remove")),
                (9, entry(b"made") + struct.pack(">6I", 0, 0, 0, 0, 0, 0)),
                (8, entry(b"exclusive") + struct.pack(">I", 2) + b"verifier"),
                (7, rawnfs.opaque(handles["to-write"]) + write),
                (2, rawnfs.opaque(handles["to-cut"]) + struct.pack(">IIIIQIII", 0, 0, 0, 1, 1, 0, 0, 0)),
            ]
            server.process.send_signal(signal.SIGSTOP)
            try:
                for peer in (old, new):
                    peer.xid = 1000
                    for procedure, arguments in calls:
                        peer.send(rawnfs.NFS, 3, procedure, arguments)
            finally:
                server.process.send_signal(signal.SIGCONT)
            # Answers come in any order.
            answers = [sorted(peer.record() for _ in calls) for peer in (new, old)]
            self.assertEqual(answers[0], answers[1])
            for answer in answers[0]:
                self.assertEqual(struct.unpack(">I", answer[24:28])[0], rawnfs.OK, answer)
            # Once more, after newer ones: nothing is undone.
            self.assertEqual(new.write(handles["to-write"], b"new"), rawnfs.OK)
            self.assertEqual(new.write(handles["to-cut"], b"abcdefghij"), rawnfs.OK)
            with rawnfs.Peer(server.port) as late:
                late.xid = 1000
                for procedure, arguments in calls:
                    late.send(rawnfs.NFS, 3, procedure, arguments)
                self.assertEqual(sorted(late.record() for _ in calls), answers[0])
        with libnfs.Mount(server.libnfs_url()) as mount:
            self.assertEqual(mount.read_file("/to-write"), b"new")
            self.assertEqual(mount.read_file("/to-cut"), b"abcdefghij")
            names = ["exclusive", "made", "renamed", "to-cut", "to-write"]
            self.assertEqual(mount.names("/"), names)
