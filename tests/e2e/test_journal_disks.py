"""Journal disks: logs and metadata are on them, data is not, and what is acknowledged survives whatever becomes of them."""

import json
import pathlib
import shutil

from lib import harness, libnfs
from lib.worlds import WorldTest, content

MOVED_SECONDS_MAX = 180
REFUSED = 4


class JournalDisks(WorldTest):
    def add(self, server, name, *flags, check=True):
        return server.cairn("disk", "add", server.root / name, "--role", "journal", *flags, check=check)

    def disks(self, server):
        listed = json.loads(server.cairn("disk", "list", "--json").stdout)["disks"]
        return {pathlib.Path(disk["label"]).name: disk for disk in listed}

    def wait_until_all_is_on(self, server, names):
        """What metadata is worked with, and the end of the log, are on these disks alone."""

        def is_so():
            disks = self.disks(server)
            logs = {name for name, disk in disks.items() if disk["logs"] > 0}
            states = {name for name, disk in disks.items() if disk["states"] > 0}
            return logs == set(names) and states <= set(names)

        harness.wait_until(is_so, MOVED_SECONDS_MAX, f"metadata is on {names}")

    def shards_on(self, folder):
        return [path for path in pathlib.Path(folder).glob("shards/*/*") if path.is_file()]

    def test_metadata_goes_to_them_and_data_does_not(self):
        server = self.server(4)
        kept = {f"/file{number}": content(number, 3_000_000) for number in range(4)}
        with libnfs.Mount(server.libnfs_url()) as mount:
            for name, data in kept.items():
                mount.write_file(name, data)
        names = ["fast0", "fast1", "fast2"]
        for name in names:
            self.add(server, name)
        self.wait_until_all_is_on(server, names)
        self.assertEqual({name: self.disks(server)[name]["role"] for name in names}, dict.fromkeys(names, "journal"))
        more = {f"/more{number}": content(50 + number, 3_000_000) for number in range(4)}
        with libnfs.Mount(server.libnfs_url()) as mount:
            for name, data in more.items():
                mount.write_file(name, data)
        for name in names:
            self.assertEqual(self.shards_on(server.root / name), [], name)
        kept |= more
        self.assertEqual(self.disks(server)["fast0"]["shards"], 0)

        # They are looked for at the next start, and are what it was.
        server.kill()
        server.start()
        self.wait_until_all_is_on(server, names)
        self.check(server, kept)

        # Two of three may go, with all that was acknowledged: the data disks take over.
        late = content(99, 2_000_000)
        with libnfs.Mount(server.libnfs_url()) as mount:
            mount.write_file("/late", late)
        kept["/late"] = late
        server.kill()
        for name in names[:2]:
            shutil.rmtree(server.root / name)
        server.start()
        self.check(server, kept)
        self.assertEqual(self.disks(server)["fast0"]["state"], "missing")

        # One is replaced in its role.
        server.cairn("disk", "replace", self.disks(server)["fast0"]["id"], server.root / "fast3")
        self.assertEqual(self.disks(server)["fast3"]["role"], "journal")
        self.check(server, kept)
        self.assertEqual(self.shards_on(server.root / "fast3"), [])

    def check(self, server, files):
        with libnfs.Mount(server.libnfs_url()) as mount:
            for name, data in files.items():
                self.assertEqual(mount.read_file(name), data, name)

    def test_one_is_drained_and_the_last_data_disk_stays(self):
        server = self.server(1)
        data = content(7, 2_000_000)
        with libnfs.Mount(server.libnfs_url()) as mount:
            mount.write_file("/file", data)
        self.add(server, "fast")
        disk = self.disks(server)
        self.wait_until_all_is_on(server, ["fast", next(name for name in disk if name != "fast")])
        data_disk = next(entry["id"] for name, entry in disk.items() if name != "fast")
        for words in (("drain", data_disk), ("remove", data_disk), ("remove", data_disk, "--force")):
            refused = server.cairn("disk", *words, check=False)
            self.assertEqual(refused.returncode, REFUSED, words)
        self.assertIn("data", refused.stderr)
        server.cairn("disk", "drain", disk["fast"]["id"])
        drained = lambda: self.disks(server)["fast"]["state"] == "drained"
        harness.wait_until(drained, MOVED_SECONDS_MAX, "the journal disk is drained")
        server.cairn("disk", "remove", disk["fast"]["id"])
        self.check(server, {"/file": data})
        server.kill()
        server.start()
        self.check(server, {"/file": data})

    def test_wrong_arguments(self):
        server = self.server(1)
        with_size = self.add(server, "fast", "--size", "1GiB", check=False)
        self.assertEqual(with_size.returncode, 2)
        self.assertIn("--role cache", with_size.stderr)
        unknown = server.cairn("disk", "add", server.root / "fast", "--role", "tape", check=False)
        self.assertEqual(unknown.returncode, 2)
        self.add(server, "fast")
        again = self.add(server, "fast", check=False)
        self.assertEqual(again.returncode, REFUSED)
        self.assertIn("already", again.stderr)

    def test_without_them_metadata_goes_to_a_disk_that_is_said_to_be_fast(self):
        server = self.server(3)
        data = content(3, 2_000_000)
        with libnfs.Mount(server.libnfs_url()) as mount:
            mount.write_file("/file", data)
        fast = next(disk for disk in self.disks(server).values() if disk["states"] == 0)
        server.cairn("disk", "set", fast["id"], "--media", "ssd")

        def has_moved():
            states = {disk["id"] for disk in self.disks(server).values() if disk["states"] > 0}
            return states == {fast["id"]}

        harness.wait_until(has_moved, MOVED_SECONDS_MAX, "the state is on the fast disk")
        self.check(server, {"/file": data})
        server.kill()
        server.start()
        harness.wait_until(has_moved, MOVED_SECONDS_MAX, "the state is on the fast disk after a start")
        self.check(server, {"/file": data})
