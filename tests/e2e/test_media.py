"""Kinds of disks: data lives on the kind that its volume or directory says, moves there, and is safe when the kind is full or gone."""

import json
import pathlib

from lib import harness, libnfs
from lib.worlds import WorldTest, content

MIB = 1 << 20
MOVED_SECONDS_MAX = 180
REFUSED = 4


class Media(WorldTest):
    def start(self, hdd=4, ssd=3):
        """A server with so many disks of each kind, by folder."""
        server = self.server(hdd)
        for name in self.disks(server):
            server.cairn("disk", "set", self.disks(server)[name]["id"], "--media", "hdd")
        for number in range(ssd):
            server.cairn("disk", "add", server.root / f"ssd{number}", "--media", "ssd")
        return server

    def disks(self, server):
        listed = json.loads(server.cairn("disk", "list", "--json").stdout)["disks"]
        return {pathlib.Path(disk["label"]).name: disk for disk in listed}

    def where(self, server, volume="main"):
        """Bytes on disks of what is to live on a kind, by the kind that is asked for and the one it is on."""
        shown = json.loads(server.cairn("volume", "show", volume, "--json").stdout)
        return {(it["wanted"], it["on"]): it["bytes"] for it in shown.get("media_bytes", [])}

    def wait_until_all_is_on(self, server, wanted, on):
        def is_so():
            found = {key: size for key, size in self.where(server).items() if key[0] == wanted}
            return found and set(found) == {(wanted, on)}

        harness.wait_until(is_so, MOVED_SECONDS_MAX, f"what is for {wanted} is on {on}: {self.where(server)}")

    def flushed(self, server):
        dirty = lambda: server.metrics()['cairn_volume_dirty_bytes{volume="main"}']
        harness.wait_until(lambda: dirty() == 0, MOVED_SECONDS_MAX, "the flush")

    def write(self, server, names):
        files = {name: content(number, 3 * MIB + number) for number, name in enumerate(names)}
        with libnfs.Mount(server.libnfs_url()) as mount:
            for name, data in files.items():
                mount.write_file(name, data)
        self.flushed(server)
        return files

    def check(self, server, files):
        with libnfs.Mount(server.libnfs_url()) as mount:
            for name, data in files.items():
                self.assertEqual(mount.read_file(name), data, name)

    def converted(self, server):
        server.cairn("policy", "apply", "main", "--wait")

    def test_data_lives_where_its_directory_says(self):
        server = self.start()
        server.cairn("volume", "set", "main", "--media", "hdd")
        with libnfs.Mount(server.libnfs_url()) as mount:
            mount.mkdir("/hot")
        server.cairn("policy", "set", "main/hot", "--media", "ssd")
        self.assertIn("ssd", server.cairn("policy", "show", "main/hot").stdout)
        files = self.write(server, ["/cold", "/hot/a", "/hot/b"])
        # Where a disk is silent for a moment it goes to the other kind, and moves later.
        for kind in ("hdd", "ssd"):
            self.wait_until_all_is_on(server, kind, kind)
        found = self.where(server)
        self.assertEqual(set(found), {("hdd", "hdd"), ("ssd", "ssd")})
        self.assertGreater(found["hdd", "hdd"], 3 * MIB)
        self.assertGreater(found["ssd", "ssd"], 6 * MIB)
        self.assertIn("on ssd", server.cairn("volume", "show", "main").stdout)
        self.check(server, files)

        # It changes its mind: what is there follows when it is told to, over a kill.
        server.cairn("policy", "clear", "main/hot")
        self.assertEqual(set(self.where(server)), set(found))
        self.converted(server)
        self.assertIn(("hdd", "hdd"), self.where(server))
        server.kill()
        server.start()
        self.check(server, files)
        self.wait_until_all_is_on(server, "hdd", "hdd")
        emptied = lambda: ("ssd", "ssd") not in self.where(server)
        harness.wait_until(emptied, MOVED_SECONDS_MAX, "nothing is on ssd")

    def test_data_moves_with_the_kind_of_a_disk(self):
        server = self.start(hdd=4, ssd=4)
        # Three copies, so that four disks of the kind are one more than it takes.
        server.cairn("volume", "set", "main", "--media", "ssd", "--protection", "3x")
        files = self.write(server, [f"/file{number}" for number in range(4)])
        self.wait_until_all_is_on(server, "ssd", "ssd")
        # One was said to be what it is not: what it has goes to the others, in the background.
        wrong = self.disks(server)["ssd3"]
        server.cairn("disk", "set", wrong["id"], "--media", "hdd")
        server.kill()
        server.start()
        self.wait_until_all_is_on(server, "ssd", "ssd")
        self.assertEqual(self.disks(server)["ssd3"]["media"], "hdd")
        shards = lambda: self.disks(server)["ssd3"]["shards"]
        harness.wait_until_equal(shards, 0, MOVED_SECONDS_MAX, "the shards of a disk of another kind")
        self.check(server, files)

        # And comes back with its kind. A disk that is replaced has a heir of its kind.
        server.cairn("disk", "replace", self.disks(server)["ssd0"]["id"], server.root / "ssd9")
        self.assertEqual(self.disks(server)["ssd9"]["media"], "ssd")
        gone = lambda: "ssd0" not in self.disks(server)
        harness.wait_until(gone, MOVED_SECONDS_MAX, "the replaced disk leaves")
        self.wait_until_all_is_on(server, "ssd", "ssd")
        self.check(server, files)

    def test_protection_comes_before_the_kind(self):
        server = self.start(hdd=4, ssd=1)
        server.cairn("volume", "set", "main", "--media", "ssd")
        files = self.write(server, ["/file"])
        # Two disks may be lost, which one disk of the kind cannot give.
        self.assertNotEqual(set(self.where(server)), {("ssd", "ssd")})
        self.check(server, files)
        # With two more there is a place for all of it.
        for number in (1, 2):
            server.cairn("disk", "add", server.root / f"ssd{number}", "--media", "ssd")
        self.write(server, ["/late"])
        self.converted(server)
        tolerated = lambda: server.status()["pool"]["disk_failures_tolerated"]
        harness.wait_until_equal(tolerated, 2, MOVED_SECONDS_MAX, "how many disks may be lost")
        # They leave again: nothing is lost, nothing fails.
        for number in (1, 2):
            disk = self.disks(server)[f"ssd{number}"]["id"]
            server.cairn("disk", "drain", disk)
            drained = lambda number=number: self.disks(server)[f"ssd{number}"]["state"] == "drained"
            harness.wait_until(drained, MOVED_SECONDS_MAX, "the disk is drained")
            server.cairn("disk", "remove", disk)
        self.check(server, files | self.write(server, ["/last"]))

    def test_wrong_arguments(self):
        server = self.server(1)
        for words in (
            ("volume", "set", "main", "--media", "nvme"),
            ("volume", "create", "fast", "--media", "nvme"),
        ):
            refused = server.cairn(*words, check=False)
            self.assertEqual(refused.returncode, REFUSED, words)
            self.assertIn("no disk of the pool", refused.stderr)
            self.assertIn("cairn disk set", refused.stderr)
        unknown = server.cairn("volume", "set", "main", "--media", "tape", check=False)
        self.assertEqual(unknown.returncode, 2)
        self.assertIn("hdd", unknown.stderr)
        cache = server.cairn(
            "disk", "add", server.root / "fast", "--role", "cache", "--size", "1GiB", "--media", "ssd", check=False
        )
        self.assertEqual(cache.returncode, 2)
        none = server.cairn("disk", "set", "nosuch", "--media", "ssd", check=False)
        self.assertNotEqual(none.returncode, 0)
        self.assertIn("no disk", none.stderr)
