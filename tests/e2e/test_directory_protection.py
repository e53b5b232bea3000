"""Directories with a protection of their own: what they survive when disks are lost, over kills, garbage collection and a change of mind."""

import json
import pathlib
import shutil

from lib import harness, libnfs
from lib.worlds import WorldTest, content

MIB = 1 << 20
DONE_SECONDS_MAX = 120


class DirectoryProtection(WorldTest):
    def start(self, disks, **policies):
        """A server with a directory for each policy, by name."""
        server = self.server(disks)
        with libnfs.Mount(server.libnfs_url()) as mount:
            for name, protection in policies.items():
                mount.mkdir(f"/{name}")
                server.cairn("policy", "set", f"main/{name}", "--protection", protection)
        return server

    def write(self, server, names):
        files = {name: content(number, 2 * MIB + number) for number, name in enumerate(names)}
        with libnfs.Mount(server.libnfs_url()) as mount:
            for name, data in files.items():
                mount.write_file(name, data)
        dirty = lambda: server.metrics()['cairn_volume_dirty_bytes{volume="main"}']
        harness.wait_until(lambda: dirty() == 0, DONE_SECONDS_MAX, "the flush")
        return files

    def check(self, server, files):
        with libnfs.Mount(server.libnfs_url()) as mount:
            for name, data in files.items():
                self.assertEqual(mount.read_file(name), data, name)

    def disks(self, server):
        return json.loads(server.cairn("disk", "list", "--json").stdout)["disks"]

    def appended(self, server):
        """Bytes of records and of parity that went to the disks since the start."""
        shown = server.metrics()
        return shown["cairn_store_appended_bytes_total"], shown["cairn_store_parity_bytes_total"]

    def protections(self, server):
        shown = json.loads(server.cairn("volume", "show", "main", "--json").stdout)
        return {it["protection"]: it["layout"] for it in shown.get("directory_protections", [])}

    def stop_and_lose(self, server, count):
        """Stops the server, takes the folders of so many disks away, and starts it again."""
        server.kill()
        folders = [pathlib.Path(disk["label"]) for disk in self.known]
        for folder in folders[:count]:
            shutil.rmtree(folder)
        server.start()

    def test_a_directory_survives_more_than_its_volume(self):
        server = self.start(7, safe="4x")
        server.cairn("volume", "set", "main", "--protection", "+1n")
        self.assertEqual(self.protections(server), {"4x": "4 mirrors"})
        self.assertIn("4x (4 mirrors) survives 3 lost disks", server.cairn("volume", "show", "main").stdout)
        self.assertIn("4x", server.cairn("policy", "show", "main/safe").stdout)
        self.assertIn("4x", server.cairn("policy", "list", "main").stdout)
        files = self.write(server, ["/safe/a", "/safe/b"])
        self.settle(server)
        self.known = self.disks(server)
        self.stop_and_lose(server, 3)
        self.check(server, files)

    def test_less_is_possible_and_said(self):
        server = self.start(4, scratch="none")
        status = server.cairn("status", check=False).stdout
        self.assertIn("directories of volume main have protection none: NO REDUNDANCY", status)
        files = self.write(server, ["/kept", "/scratch/a"])
        data_before, parity_before = self.appended(server)
        self.write(server, ["/scratch/b", "/scratch/c", "/scratch/d"])
        data, parity = self.appended(server)
        # One copy, where the volume has two halves and two of parity. What was written before may be closed only now.
        self.assertGreaterEqual(data - data_before, 3 * 2 * MIB)
        self.assertLess(parity - parity_before, MIB)
        self.known = self.disks(server)
        self.check(server, files)
        # It changes its mind: what is there gets what the volume has, and survives as much.
        server.cairn("policy", "set", "main/scratch", "--protection", "inherit", "--compression", "off")
        server.cairn("policy", "apply", "main", "--wait")
        forgotten = lambda: self.protections(server) == {}
        harness.wait_until(forgotten, DONE_SECONDS_MAX, "nothing asks for it any more")
        told = lambda: "have protection none: NO REDUNDANCY" in server.cairn("status", check=False).stdout
        harness.wait_until(lambda: not told(), DONE_SECONDS_MAX, "the status does not tell of it")
        self.settle(server)
        self.stop_and_lose(server, 2)
        self.check(server, files)

    def test_disks_that_it_needs_stay(self):
        server = self.start(5, safe="5x")
        files = self.write(server, ["/safe/a", "/beside"])
        disk = self.disks(server)[0]["id"]
        refused = server.cairn("disk", "drain", disk, check=False)
        self.assertNotEqual(refused.returncode, 0)
        self.assertIn("directories of volume main", refused.stderr)
        refused = server.cairn("policy", "set", "main/safe", "--protection", "+4n", check=False)
        self.assertEqual(refused.returncode, 0, refused.stderr)
        server.cairn("policy", "apply", "main/safe", "--wait")
        # What is asked for is known after a kill, too.
        server.kill()
        server.start()
        self.assertIn("+4n", self.protections(server))
        self.check(server, files)
        server.cairn("policy", "clear", "main/safe")
        server.cairn("policy", "apply", "main", "--wait")
        harness.wait_until(lambda: self.protections(server) == {}, DONE_SECONDS_MAX, "nothing asks for it")
        server.cairn("disk", "drain", disk)
        drained = lambda: all(it["shards"] == 0 for it in self.disks(server) if it["id"] == disk)
        harness.wait_until(drained, DONE_SECONDS_MAX, "the disk is drained")
        self.check(server, files)

    def test_what_cannot_be_is_refused(self):
        server = self.start(3)
        with libnfs.Mount(server.libnfs_url()) as mount:
            mount.mkdir("/safe")
        refused = server.cairn("policy", "set", "main/safe", "--protection", "5x", check=False)
        self.assertNotEqual(refused.returncode, 0)
        self.assertIn("needs 5 disks and the pool has 3", refused.stderr)
        refused = server.cairn("policy", "set", "main/safe", "--protection", "9x", check=False)
        self.assertIn("or inherit", refused.stderr)
        self.assertIn("no directory", server.cairn("policy", "list", "main").stdout)
