"""Files go in and come back the same, by libnfs and by our own commands, on one disk and on six."""

import json
import os

from lib import libnfs
from lib.worlds import WorldTest, content, digest_tree, make_tree


class Files(WorldTest):
    def check_libnfs(self, disks):
        server = self.server(disks)
        data = content("large", 5 * 1024 * 1024 + 123)
        with libnfs.Mount(server.libnfs_url()) as mount:
            mount.mkdir("/d")
            mount.write_file("/d/large", data)
            mount.write_file("/d/empty", b"")
            mount.write_file("/d/gone", b"gone")
            mount.unlink("/d/gone")
            mount.symlink("large", "/d/symbolic")
            mount.link("/d/large", "/d/hard")
            mount.rename("/d/empty", "/d/renamed")
            with mount.open("/d/sparse", os.O_CREAT | os.O_RDWR) as file:
                file.write(3 * 1024 * 1024, b"tail")
            mount.truncate("/d/sparse", 2 * 1024 * 1024)
        server.restart()
        with libnfs.Mount(server.libnfs_url()) as mount:
            self.assertEqual(mount.names("/d"), ["hard", "large", "renamed", "sparse", "symbolic"])
            self.assertEqual(mount.read_file("/d/hard"), data)
            self.assertEqual(mount.read_file("/d/symbolic"), data)
            self.assertEqual(mount.read_file("/d/renamed"), b"")
            self.assertEqual(mount.read_file("/d/sparse"), bytes(2 * 1024 * 1024))
            with self.assertRaises(FileNotFoundError):
                mount.open("/d/gone")

    def test_libnfs_on_one_disk(self):
        self.check_libnfs(1)

    def test_libnfs_on_six_disks(self):
        self.check_libnfs(6)

    def check_commands(self, disks):
        server = self.server(disks)
        tree = make_tree(self.scratch / "tree")
        server.cairn("cp", "-r", "-q", tree, server.url("tree"))
        server.restart()
        server.cairn("cp", "-r", "-q", server.url("tree"), self.scratch / "back")
        self.assertEqual(digest_tree(self.scratch / "back"), digest_tree(tree))
        listed = json.loads(server.cairn("ls", "--json", server.url("tree")).stdout)
        self.assertEqual(len(listed), len(list(tree.iterdir())))
        text = server.cairn("cat", server.url("tree/text")).stdout
        self.assertEqual(text, (tree / "text").read_text())
        server.cairn("rm", "-r", server.url("tree"))
        self.assertEqual(json.loads(server.cairn("ls", "--json", server.url()).stdout), [])
        self.assertNotEqual(server.cairn("stat", server.url("tree"), check=False).returncode, 0)

    def test_commands_on_one_disk(self):
        self.check_commands(1)

    def test_commands_on_six_disks(self):
        self.check_commands(6)

    def test_the_root_shows_the_volumes(self):
        server = self.server(1)
        listed = server.cairn("ls", f"nfs://127.0.0.1:{server.port}/").stdout.split()
        self.assertEqual(listed, ["main"])
