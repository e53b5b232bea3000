"""Lost disks, flipped bits and full disks: the same bytes or an error, and life goes on."""

import os
import shutil

from lib import harness, libnfs, rawnfs
from lib.worlds import WorldTest, blocks, content, digest_tree, flip_bits, make_tree

KILLS_OF_FULL_POOLS = 6
FLIPS_PER_DISK = 40
COPY_SECONDS_MAX = 120
SPACE_BACK_SECONDS_MAX = 120
# Of the files of the metadata's state: their end says where everything is.
TABLE_BLOCK_LEN_BYTES = 8 * 1024
TABLE_END_LEN_BYTES = 2 * 1024
# What is checked of a record at a time.
READ_LEN_BYTES = 32 * 1024


class LostDisks(WorldTest):
    def check(self, disks, lost):
        server = self.server(disks)
        tree = make_tree(self.scratch / "tree")
        server.cairn("cp", "-r", "-q", tree, server.url("tree"))
        server.kill()
        for index in lost:
            shutil.rmtree(server.disks[index])
            server.disks[index].mkdir()  # the mount point of a disk that is gone
        server.start()
        server.await_health("degraded")
        server.cairn("cp", "-r", "-q", server.url("tree"), self.scratch / "back")
        self.assertEqual(digest_tree(self.scratch / "back"), digest_tree(tree))
        # Writing goes on with the disks that are left, and is as durable as it can be.
        server.cairn("cp", "-r", "-q", tree, server.url("again"))
        server.kill()
        server.start()
        server.cairn("cp", "-r", "-q", server.url("again"), self.scratch / "again")
        self.assertEqual(digest_tree(self.scratch / "again"), digest_tree(tree))

    def test_the_first_two_of_six(self):
        self.check(6, (0, 1))

    def test_the_last_two_of_six(self):
        self.check(6, (4, 5))

    def test_one_of_two(self):
        self.check(2, (0,))

    def test_two_of_four(self):
        self.check(4, (1, 2))

    def test_three_of_six_are_refused(self):
        server = self.server(6)
        server.cairn("stat", server.url())
        server.stop()
        for index in (0, 2, 4):
            shutil.rmtree(server.disks[index])
        process = server.spawn()
        self.assertNotEqual(process.wait(harness.START_SECONDS_MAX), 0)
        for index in (0, 2, 4):
            self.assertIn(server.disks[index].name, server.log_tail())


class DisksThatComeBack(WorldTest):
    """What a disk missed while it was away must not win over what the others have."""

    def check(self, disks, away):
        server = self.server(disks)
        first = make_tree(self.scratch / "first", seed=1)
        second = make_tree(self.scratch / "second", seed=2)
        server.cairn("cp", "-r", "-q", first, server.url("first"))
        server.cairn("cp", "-r", "-q", first, server.url("gone"))
        server.kill()
        folders = server.disks
        server.disks = [disk for index, disk in enumerate(folders) if index not in away]
        server.start()
        server.cairn("cp", "-r", "-q", second, server.url("second"))
        server.cairn("rm", "-r", server.url("gone"))
        server.cairn("cp", "-q", second / "big", server.url("first/big"))
        server.kill()
        shutil.copyfile(second / "big", first / "big")
        # All are back, then others are away: the stale ones have to carry their part.
        for back in (folders, [disk for index, disk in enumerate(folders) if index not in (1, 2)]):
            server.disks = back
            server.start()
            self.assertEqual(len(server.cairn("ls", server.url()).stdout.split()), 2)
            for tree in (first, second):
                target = self.scratch / f"{tree.name}-{len(back)}"
                server.cairn("cp", "-r", "-q", server.url(tree.name), target)
                self.assertEqual(digest_tree(target), digest_tree(tree))
            self.assertEqual(server.stop(), 0)

    def test_the_first_of_six(self):
        self.check(6, (0,))

    def test_two_of_six(self):
        self.check(6, (0, 5))


class LostShards(WorldTest):
    def test_a_shard_file_that_is_gone_is_made_anew(self):
        data = content("to lose", 8 * 1024 * 1024)
        server = self.server(6)
        with libnfs.Mount(server.libnfs_url()) as mount:
            mount.write_file("/f", data)
        server.stop()
        # One of data: those of parity are read only when others are lost.
        shards = [path for disk in server.disks for path in (disk / "shards").rglob("*.00")]
        shard = max(shards, key=lambda path: path.stat().st_size)
        before = shard.read_bytes()
        shard.unlink()
        server.start()
        with libnfs.Mount(server.libnfs_url()) as mount:
            self.assertTrue(mount.read_file("/f") == data)
        rebuilt = lambda: server.metrics()["cairn_store_rebuilds_total"] > 0
        harness.wait_until(rebuilt, COPY_SECONDS_MAX, "a shard that is made anew")
        # Behind the data its footer may have another place.
        shard_len_bytes = len(data) // 4
        self.assertTrue(shard.read_bytes()[:shard_len_bytes] == before[:shard_len_bytes])


class FlippedBits(WorldTest):
    def repaired(self, server):
        return sum(value for name, value in server.metrics().items() if "repair" in name)

    def test_on_six_disks_they_are_repaired(self):
        data = content("to flip", 8 * 1024 * 1024)
        server = self.server(6)
        with libnfs.Mount(server.libnfs_url()) as mount:
            mount.write_file("/f", data)
        server.stop()
        # Two disks that hold data of the file: two others may hold its parity alone.
        flips: list = []
        for disk in server.disks:
            if len(flips) < 2:
                count = flip_bits(disk, blocks(data), FLIPS_PER_DISK)
                flips += [count] if count else []
        self.assertGreater(sum(flips), FLIPS_PER_DISK // 2)
        server.start()
        self.assertEqual(self.repaired(server), 0)
        with libnfs.Mount(server.libnfs_url()) as mount:
            self.assertTrue(mount.read_file("/f") == data)
        harness.wait_until(lambda: self.repaired(server) > 0, COPY_SECONDS_MAX, "a repair that is counted")
        self.assertGreater(sum(disk["checksum_errors"] for disk in server.status()["disks"]), 0)

    def test_on_one_disk_they_are_an_error(self):
        data = content("to flip on one", 1024 * 1024)
        server = self.server(1)
        with libnfs.Mount(server.libnfs_url()) as mount:
            mount.write_file("/f", data)
            mount.write_file("/whole", data[::-1])
        server.stop()
        self.assertEqual(flip_bits(server.disks[0], blocks(data), 1), 1)
        server.start()
        with libnfs.Mount(server.libnfs_url()) as mount:
            # libnfs makes EFAULT of any error of a READ: what the server said is asked for by hand below.
            with self.assertRaises(OSError):
                mount.read_file("/f")
            failed = server.cairn("cat", server.url("f"), check=False, text=False)
            self.assertNotEqual(failed.returncode, 0)
            self.assertIn(b"could not read", failed.stderr.lower())
            self.assertTrue(mount.read_file("/whole") == data[::-1])
        with rawnfs.Peer(server.port) as peer:
            _, root = peer.mount("/main")
            _, file = peer.lookup(root, "f")
            reads = [peer.read_bytes(file, start, READ_LEN_BYTES) for start in range(0, len(data), READ_LEN_BYTES)]
        # One bit costs the piece that it is in, and no more.
        self.assertEqual([status for status, _ in reads if status != rawnfs.OK], [rawnfs.IO])
        for start, (_, got) in zip(range(0, len(data), READ_LEN_BYTES), reads):
            self.assertIn(got, (None, data[start : start + READ_LEN_BYTES]))


class DamagedMetadata(WorldTest):
    def test_a_state_that_is_damaged_is_left_for_a_copy(self):
        """Already by the start, which reads some of it before anything is served."""
        server = self.server(2)
        tree = make_tree(self.scratch / "tree")
        server.cairn("cp", "-r", "-q", tree, server.url("tree"))
        server.stop()
        states = [state for disk in server.disks for state in (disk / "volumes").glob("*/state")]
        self.assertEqual(len(states), 1)
        for table in states[0].glob("*.sst"):
            with open(table, "r+b") as file:
                # What is in the first block is looked at before.
                for at in range(TABLE_BLOCK_LEN_BYTES, table.stat().st_size - TABLE_END_LEN_BYTES, 1024):
                    file.seek(at)
                    byte = file.read(1)[0]
                    file.seek(at)
                    file.write(bytes([byte ^ 0x10]))
        server.start()
        is_served = lambda: server.status()["health"] != "failed"
        harness.wait_until(is_served, COPY_SECONDS_MAX, "that the volume is served")
        server.cairn("cp", "-r", "-q", server.url("tree"), self.scratch / "back")
        self.assertEqual(digest_tree(self.scratch / "back"), digest_tree(tree))
        server.restart()
        server.await_well()


class FullDisk(WorldTest):
    def fill(self, mount, prefix):
        """Writes stable files until there is no space; returns how many are whole."""
        for index in range(10_000):
            try:
                mount.write_file(f"/{prefix}{index}", self.file(prefix, index))
            except OSError:
                return index
        raise AssertionError("the limit of the disk does nothing")

    def file(self, prefix, index):
        return content(f"{prefix}{index}", 8 * 1024 * 1024)

    def check(self, disks):
        server = self.server(disks, flags=["--disk-size-limit", "512MiB" if disks == 1 else "320MiB"])
        with libnfs.Mount(server.libnfs_url()) as mount:
            count = self.fill(mount, "a")
            self.assertGreater(count, 10)
            for index in range(count):
                self.assertTrue(mount.read_file(f"/a{index}") == self.file("a", index))
            more = self.scratch / "more"
            more.write_bytes(content("more", 64 * 1024 * 1024))
            refused = server.cairn("cp", "-q", more, server.url("more"), check=False)
            self.assertNotEqual(refused.returncode, 0)
            self.assertIn("no space", refused.stderr.lower())
        # A full pool starts, too, however often: each start begins another file of the log.
        for _ in range(KILLS_OF_FULL_POOLS):
            server.kill()
            server.start()
            with libnfs.Mount(server.libnfs_url()) as mount:
                self.assertTrue(mount.read_file("/a0") == self.file("a", 0))
        with libnfs.Mount(server.libnfs_url()) as mount:
            for name in mount.names("/"):
                mount.unlink(f"/{name}")

            def space_is_back():
                try:
                    with mount.open("/b", os.O_CREAT | os.O_RDWR) as file:
                        for index in range(count // 2):
                            file.write(index * 8 * 1024 * 1024, self.file("b", index))
                        file.sync()
                    return True
                except OSError:
                    return False

            harness.wait_until(space_is_back, SPACE_BACK_SECONDS_MAX, "the return of the space of deleted files")
            got = mount.read_file("/b")
            self.assertTrue(got == b"".join(self.file("b", index) for index in range(count // 2)))

    def test_one_disk(self):
        self.check(1)

    def test_six_disks(self):
        self.check(6)
