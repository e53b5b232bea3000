"""A full pool whose owner is lost: another node serves the volume within the usual time, and reads and deletes work. What is set
aside for a LUN is left free by the owners of other volumes."""

import contextlib
import errno
import json
import os
import random

from cluster.world import KILLED_PAUSE_SECONDS_MAX, ClusterTest
from lib import harness, iscsi, libnfs

MIB = 1024 * 1024
DISK_MIB = 512
FILE_BYTES = 4 * MIB
FILES_MAX = 3 * DISK_MIB * MIB // FILE_BYTES
# Each has a log, and takes its files from the same disks.
VOLUMES = [f"volume{number}" for number in range(2)]
SMALL_FILES = 20
# Written stable, in the log: more than a takeover finds room to copy when the pool is full.
STABLE_WRITES, STABLE_BYTES = 2000, 32 * 1024
# libnfs tells EFAULT of a write that it split, whatever the server said.
NO_SPACE = (errno.ENOSPC, errno.EFAULT)
# What was deleted is there again after a collection of garbage.
SPACE_BACK_SECONDS_MAX = 120
TAKEOVER_SECONDS_MAX = KILLED_PAUSE_SECONDS_MAX + 20
SERVED_SECONDS_MAX = 60
INITIATOR = "iqn.2025-11.test:host"
LUN_MIB = 32
PIECE_BYTES = 256 * 1024


class Full(ClusterTest):
    def content(self, number):
        return random.Random(number).randbytes(FILE_BYTES)

    def fill(self, cluster, node):
        """Writes files until there is no room; gives how many there are."""
        with libnfs.Mount(cluster.url(node)) as mount:
            for number in range(FILES_MAX):
                try:
                    mount.write_file(f"/file{number}", self.content(number))
                except OSError as error:
                    self.assertIn(error.errno, NO_SPACE, error)
                    # Where there is no room for the name, there is none.
                    with contextlib.suppress(FileNotFoundError):
                        mount.unlink(f"/file{number}")
                    return number
        raise harness.Failure(f"{FILES_MAX} files found room")

    def write_stable(self, cluster, node):
        block = self.content(-1)[:STABLE_BYTES]
        with libnfs.Mount(cluster.url(node)) as mount:
            with mount.open("/stable", os.O_CREAT | os.O_RDWR | os.O_SYNC) as file:
                for number in range(STABLE_WRITES):
                    file.write(number * STABLE_BYTES, block)

    def create_others(self, cluster, node):
        for volume in VOLUMES:
            cluster.cairn(node, "volume", "create", volume)
            cluster.cairn(node, "export", "set", volume, "--client", "0.0.0.0/0", "--squash", "none")
            with self.mounted(cluster, node, volume) as mount:
                for number in range(SMALL_FILES):
                    mount.write_file(f"/{number}", volume.encode())

    def mounted(self, cluster, node, volume):
        return self.mount_served(cluster, node, volume, SERVED_SECONDS_MAX)

    def check_others(self, cluster, node):
        for volume in VOLUMES:
            with self.mounted(cluster, node, volume) as mount:
                self.assertEqual(len(mount.names("/")), SMALL_FILES, volume)
                self.assertEqual(mount.read_file("/1"), volume.encode())

    def check(self, cluster, node, numbers):
        with libnfs.Mount(cluster.url(node)) as mount:
            self.assertEqual(mount.names("/"), sorted(["stable", *(f"file{number}" for number in numbers)]))
            self.assertEqual(mount.stat("/stable").size, STABLE_WRITES * STABLE_BYTES)
            for number in numbers:
                self.assertTrue(mount.read_file(f"/file{number}") == self.content(number), f"file{number}")

    def test_a_full_volume_is_served_when_its_owner_is_lost(self):
        cluster = self.cluster(3, serve_flags=["--disk-size-limit", f"{DISK_MIB}MiB"])
        owner = cluster.owner()
        self.create_others(cluster, owner)
        self.write_stable(cluster, owner)
        count = self.fill(cluster, owner)
        self.assertGreater(count, 10)
        # Each heir in turn is lost, too: nothing of what a takeover needs may be used up by the one before.
        for _ in range(2):
            owner = cluster.owner()
            cluster.kill(owner)
            heir = cluster.owner(without=(owner,))
            cluster.await_serving(heir, seconds=TAKEOVER_SECONDS_MAX)
            self.check(cluster, heir, range(count))
            self.check_others(cluster, heir)
            cluster.heal()
            cluster.await_serving(owner)
        heir = cluster.owner()
        cluster.kill(heir)
        other = cluster.others(heir)[0]
        cluster.await_serving(other, seconds=TAKEOVER_SECONDS_MAX)
        half = range(count // 2, count)
        with libnfs.Mount(cluster.url(other)) as mount:
            for number in range(count // 2):
                mount.unlink(f"/file{number}")
        self.check(cluster, other, half)
        cluster.heal()
        cluster.await_serving(heir)

        def has_room():
            try:
                with libnfs.Mount(cluster.url(other)) as mount:
                    mount.write_file("/late", self.content(0))
                    return True
            except OSError as error:
                self.assertIn(error.errno, NO_SPACE, error)
                return False

        harness.wait_until(has_room, SPACE_BACK_SECONDS_MAX, "that what was deleted gives its room back")
        with libnfs.Mount(cluster.url(heir)) as mount:
            mount.unlink("/late")
        self.check(cluster, heir, half)


class Reserved(ClusterTest):
    def fill(self, cluster, volume, round):
        """Writes new files by the owner of a volume until there is no room."""
        with libnfs.Mount(cluster.url(cluster.owner(volume), volume)) as mount:
            for number in range(FILES_MAX):
                try:
                    mount.write_file(f"/{round}-{number}", random.Random(number).randbytes(FILE_BYTES))
                except OSError as error:
                    self.assertIn(error.errno, NO_SPACE, error)
                    return
        raise harness.Failure(f"{FILES_MAX} files found room")

    def write_all(self, cluster, target, round):
        """Writes all of the LUN and reads it. Only garbage that is to be collected may have a write wait."""
        with iscsi.Session(("127.0.0.1", cluster.iscsi_port(cluster.owner())), INITIATOR, target) as session:
            session.clear_attentions()
            pieces = range(0, LUN_MIB * MIB, PIECE_BYTES)
            content = lambda at: random.Random(f"{round} {at}").randbytes(PIECE_BYTES)

            def is_written(at):
                try:
                    session.write(at, content(at))
                except iscsi.Busy:
                    return False
                return True

            for at in pieces:
                harness.wait_until(lambda: is_written(at), SPACE_BACK_SECONDS_MAX, f"byte {at}")
            for at in pieces:
                self.assertTrue(session.read(at, PIECE_BYTES) == content(at), at)

    def test_owners_of_other_volumes_leave_it_free(self):
        # The memory of the other nodes is taken off what is free, twice.
        flags = ["--disk-size-limit", f"{DISK_MIB}MiB", "--memory-limit", "256MiB"]
        cluster = self.cluster(3, netns="no", serve_flags=flags)
        cairn = lambda *words, **options: cluster.cairn(cluster.owner(), *words, **options)
        refused = cairn("lun", "create", "main/large", "--size", "2GiB", "--reserve", "full", check=False)
        self.assertNotEqual(refused.returncode, 0)
        self.assertIn("cannot be reserved", refused.stderr)
        cairn("lun", "create", "main/disk", "--size", f"{LUN_MIB}MiB", "--reserve", "full")
        cairn("igroup", "create", "main/hosts", "--initiator", INITIATOR)
        shown = json.loads(cairn("lun", "map", "main/disk", "--igroup", "hosts", "--json").stdout)
        self.assertEqual(shown["reserve"], "full")
        cairn("volume", "create", "other")
        cairn("export", "set", "other", "--client", "0.0.0.0/0", "--squash", "none")

        def move(volume, to):
            cairn("volume", "move", volume, "--to", to)
            moved = lambda: cluster.owner(volume) == to
            harness.wait_until(moved, TAKEOVER_SECONDS_MAX, f"{volume} at {to}\n{cluster.logs()}")

            def is_served():
                try:
                    with libnfs.Mount(cluster.url(to, volume)) as mount:
                        return mount.names("/") is not None
                except OSError:
                    return False

            harness.wait_until(is_served, SERVED_SECONDS_MAX, f"{volume} at {to}\n{cluster.logs()}")

        second, third = cluster.others(cluster.owner())
        if cluster.owner("other") != second:
            move("other", second)
        self.fill(cluster, "other", 1)
        self.write_all(cluster, shown["target"], 1)
        # Its next owner knows of it, and the others still do.
        move("main", third)
        self.fill(cluster, "other", 2)
        self.write_all(cluster, shown["target"], 2)
        again = json.loads(cairn("lun", "show", "main/disk", "--json").stdout)
        self.assertEqual(again["reserve"], "full")
