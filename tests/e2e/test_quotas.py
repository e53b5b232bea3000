"""Quotas: `cairn quota`, and what clients are told, by libnfs; over kill -9."""

import errno
import json
import os

from lib import harness, libnfs
from lib.worlds import WorldTest, content

MIB = 1 << 20
COUNTED_SECONDS_MAX = 60


class Quotas(WorldTest):
    def quota(self, place, *flags):
        return json.loads(self.world.cairn("quota", "show", place, "--json", *flags).stdout)

    def refused(self, *arguments):
        run = self.world.cairn("quota", *arguments, check=False)
        self.assertNotEqual(run.returncode, 0)
        return run.stderr

    def assert_errno(self, number, call, *arguments):
        with self.assertRaises(OSError) as raised:
            call(*arguments)
        self.assertEqual(raised.exception.errno, number, raised.exception)

    def assert_over_quota(self, call, *arguments):
        with self.assertRaises(OSError) as raised:
            call(*arguments)
        # libnfs has no number of its own for NFS3ERR_DQUOT, and says EFAULT of writes that it splits.
        is_told = "DQUOT" in str(raised.exception) or raised.exception.errno == errno.EFAULT
        self.assertTrue(is_told, raised.exception)

    def test_a_directory_has_as_much_room_as_its_quota_says(self):
        self.world = self.server(1)
        cairn = self.world.cairn
        with libnfs.Mount(self.world.libnfs_url()) as mount:
            mount.mkdir("/a")
            mount.mkdir("/a/deep")
            mount.mkdir("/b")
            mount.write_file("/a/deep/before", content(1, 3 * MIB))
            cairn("quota", "set", "main/a", "--hard", "8MiB", "--files", "5", "--advisory", "1MiB")
            harness.wait_until(
                lambda: not self.quota("main/a")["counting"], COUNTED_SECONDS_MAX, "the directory to be counted"
            )
            quota = self.quota("main/a")
            self.assertEqual((quota["used_bytes"], quota["used_files"]), (3 * MIB, 3))
            self.assertEqual(mount.space("/a/deep"), (8 * MIB, 5 * MIB))
            self.assertGreater(mount.space()[0], 8 * MIB)

            mount.write_file("/a/more", content(2, 4 * MIB))
            self.assert_over_quota(mount.write_file, "/a/most", content(3, 2 * MIB))
            self.assert_over_quota(mount.mkdir, "/a/another")
            mount.write_file("/b/beside", content(4, 9 * MIB))

            # A directory stays where it is, a file goes with what it uses if there is room.
            self.assert_errno(errno.EXDEV, mount.rename, "/a/deep", "/b/deep")
            self.assert_errno(errno.EXDEV, mount.link, "/a/more", "/b/more")
            self.assert_over_quota(mount.rename, "/b/beside", "/a/beside")
            mount.unlink("/a/most")
            mount.rename("/a/more", "/b/more")
            self.assertEqual(self.quota("main/a")["used_bytes"], 3 * MIB)

        self.world.kill()
        self.world.start()
        with libnfs.Mount(self.world.libnfs_url()) as mount:
            self.assertEqual(self.quota("main/a")["used_bytes"], 3 * MIB)
            mount.write_file("/a/again", content(5, 5 * MIB))
            self.assert_over_quota(mount.write_file, "/a/one", b"1")

            self.assertIn("/a", cairn("quota", "list", "main").stdout)
            cairn("quota", "remove", "main/a")
            mount.write_file("/a/one", content(6, 4 * MIB))
        self.assertIn("no quotas", cairn("quota", "list", "main").stdout)
        self.assertIn("no quota", self.refused("remove", "main/a"))

    def test_a_volume_grows_by_itself_up_to_its_bound(self):
        self.world = self.server(1)
        cairn = self.world.cairn

        def limits():
            (main,) = [one for one in json.loads(cairn("volume", "list", "--json").stdout)["volumes"] if one["name"] == "main"]
            return main["size_limit"], main["autogrow"]

        # Without a limit there is nothing that could grow.
        self.assertNotEqual(cairn("volume", "set", "main", "--autogrow", "128MiB", check=False).returncode, 0)
        cairn("volume", "set", "main", "--quota", "64MiB", "--autogrow", "128MiB")
        self.assertNotEqual(cairn("volume", "set", "main", "--autogrow", "32MiB", check=False).returncode, 0)
        self.assertEqual(limits(), ("64 MiB", "128 MiB"))
        with libnfs.Mount(self.world.libnfs_url()) as mount:
            mount.write_file("/a", content(1, 40 * MIB))
            self.assertEqual(limits()[0], "64 MiB")
            mount.write_file("/b", content(2, 16 * MIB))
            harness.wait_until(lambda: limits()[0] == "128 MiB", COUNTED_SECONDS_MAX, "the volume to grow")
            mount.write_file("/c", content(3, 60 * MIB))
            self.assert_over_quota(mount.write_file, "/d", content(4, 20 * MIB))
        self.assertEqual(limits(), ("128 MiB", "128 MiB"))
        cairn("volume", "set", "main", "--quota", "none")
        self.assertEqual(limits(), ("none", "none"))

    def test_overwriting_uses_nothing_more(self):
        """Bytes in memory that replace others counted twice until they were stored: `df` told of less than there is."""
        self.world = self.server(1)
        cairn = self.world.cairn
        with libnfs.Mount(self.world.libnfs_url()) as mount:
            mount.mkdir("/a")
            cairn("quota", "set", "main/a", "--hard", "32MiB")
            cairn("volume", "set", "main", "--quota", "64MiB")
            mount.write_file("/a/file", content(1, 16 * MIB))
            with mount.open("/a/file", os.O_RDWR) as file:
                for round in range(8):
                    # Not stable: they stay in memory for a while, and some are replaced there again.
                    file.write((round % 3) * 4 * MIB, content(2 + round, 6 * MIB))
                    self.assertEqual(mount.space("/a"), (32 * MIB, 16 * MIB), round)
                    self.assertEqual(mount.space("/"), (64 * MIB, 48 * MIB), round)
                    self.assertLessEqual(mount.stat("/a/file").used, 16 * MIB, round)
                    self.assertLessEqual(self.quota("main/a")["used_bytes"], 16 * MIB, round)
                # Bytes that are not there yet count from the first on.
                file.write(16 * MIB, content(20, 2 * MIB))
                self.assertEqual(mount.space("/a"), (32 * MIB, 14 * MIB))
                file.sync()
            self.assertEqual(mount.space("/a"), (32 * MIB, 14 * MIB))

    def test_users_and_the_volume(self):
        self.world = self.server(1)
        cairn = self.world.cairn
        with libnfs.Mount(self.world.libnfs_url()) as mount:
            mount.write_file("/file", content(1, 2 * MIB))
            mount.chown("/file", 7001, 7002)
            self.assertEqual(self.quota("main", "--user", "7001")["used_bytes"], 2 * MIB)
            said = cairn("quota", "set", "main", "--user", "7001", "--hard", "1MiB").stdout
            self.assertIn("bytes above the hard limit", said)
            listed = cairn("quota", "list", "main", "--users").stdout
            self.assertIn("user 7001", listed)
            cairn("quota", "set", "main", "--group", "7002", "--soft", "1MiB", "--grace", "7d")
            self.assertIn("left", cairn("quota", "show", "main", "--group", "7002").stdout)
            # The volume's own is its size limit, and the other way round.
            cairn("quota", "set", "main", "--hard", "64MiB")
            self.assertIn("64 MiB", cairn("volume", "show", "main").stdout)
            cairn("volume", "set", "main", "--quota", "32MiB")
            self.assertEqual(self.quota("main")["bytes"]["hard"], 32 * MIB)
            self.assert_over_quota(mount.write_file, "/large", content(2, 33 * MIB))
            cairn("quota", "remove", "main")
            self.assertIn("none", cairn("volume", "show", "main").stdout)

            self.assertIn("no directory", self.refused("set", "main/nothing", "--hard", "1MiB"))
            self.assertIn("is not a directory", self.refused("set", "main/file", "--hard", "1MiB"))
            self.assertIn("above the hard", self.refused("set", "main", "--hard", "1MiB", "--soft", "2MiB"))
            self.assertIn("no limit", self.refused("set", "main"))
            self.assertIn("has no user", self.refused("set", "main", "--user", "nobody-has-this", "--hard", "1MiB"))
