"""Writable clones of whole volumes: `cairn volume clone`, used over NFS by libnfs, over restarts and kill -9."""

import json
import os
import random
import threading
import time
import urllib.error
import urllib.request

from lib import harness, libnfs
from lib.worlds import WorldTest, content

FREED_SECONDS_MAX = 180
# At most, whatever the size of the volume, with the start of the command.
CLONE_SECONDS_MAX = 5
FILES = 40
MOVED_FILES = 24
KILLED_ROUNDS = 3
# What a deletion takes, with the start of the command.
KILL_SECONDS_MAX = 0.25
FILE_LEN_BYTES = 4_000_000
CHANGES = 25


class VolumeClones(WorldTest):
    def cloned(self, source, name, *flags):
        view = self.world.cairn("volume", "clone", source, name, "--json", *flags).stdout
        self.world.cairn("export", "set", name, "--client", "127.0.0.1/32", "--squash", "none")
        return json.loads(view)

    def mount(self, name):
        port = self.world.port
        return libnfs.Mount(f"nfs://127.0.0.1/{name}?nfsport={port}&mountport={port}&version=3")

    def shown(self, name):
        return json.loads(self.world.cairn("volume", "show", name, "--json").stdout)

    def snapshots(self, name):
        listed = json.loads(self.world.cairn("snapshot", "list", name, "--json").stdout)
        return {view["name"]: view for view in listed["snapshots"]}

    def refused(self, *arguments):
        run = self.world.cairn(*arguments, check=False)
        self.assertNotEqual(run.returncode, 0, run.stdout)
        return run.stderr

    def stored_bytes(self, name="main"):
        return self.world.metrics()[f'cairn_volume_stored_bytes{{volume="{name}"}}']

    def test_a_clone_is_a_volume_of_its_own(self):
        self.world = self.server(1)
        old, new = content(1, 3_000_000), content(2, 2_000_000)
        with libnfs.Mount(self.world.libnfs_url()) as main:
            main.mkdir("/d")
            main.mkdir("/d/deep")
            main.write_file("/d/a", old)
            main.write_file("/d/deep/b", b"small")
            main.symlink("deep/b", "/d/link")
            main.chmod("/d/a", 0o640)
            for number in range(FILES):
                main.write_file(f"/f{number}", content(number, 20_000))
            # What is in the journal alone is stored when a snapshot wants it.
            self.world.cairn("snapshot", "create", "main", "flushed")
            self.world.cairn("snapshot", "delete", "main", "flushed")
            stored = self.stored_bytes()
            began = time.monotonic()
            view = self.cloned("main", "test")
            with self.measured():
                self.assertLess(time.monotonic() - began, CLONE_SECONDS_MAX)
            self.assertEqual(view["clone_of"]["volume"], "main")
            source = self.shown("main")
            self.assertEqual((view["used_bytes"], view["inodes"]), (source["used_bytes"], source["inodes"]))
            self.assertEqual(self.stored_bytes(), stored)
            self.assertIn("main@clone.", self.world.cairn("volume", "list").stdout)
            self.assertIn("main@clone.", self.world.cairn("volume", "show", "test").stdout)
            with self.mount("test") as test:
                self.assertEqual(sorted(test.names("/d")), ["a", "deep", "link"])
                self.assertEqual(test.read_file("/d/a"), old)
                self.assertEqual(test.readlink("/d/link"), "deep/b")
                self.assertEqual(test.stat("/d/a").mode & 0o777, 0o640)
                # Neither sees what becomes of the other.
                test.write_file("/d/new", new)
                with test.open("/d/a", flags=os.O_RDWR) as handle:
                    handle.write(1_000_000, b"in the clone")
                    handle.sync()
                test.unlink("/d/deep/b")
                test.rename("/d/deep", "/moved")
                main.write_file("/f0", b"in the source")
                main.unlink("/f1")
                changed = old[:1_000_000] + b"in the clone" + old[1_000_012:]
                self.assertEqual(test.read_file("/d/a"), changed)
                self.assertEqual(main.read_file("/d/a"), old)
                self.assertEqual(main.read_file("/d/deep/b"), b"small")
                self.assertEqual(test.read_file("/f0"), content(0, 20_000))
                self.assertEqual(test.read_file("/f1"), content(1, 20_000))
                self.assertEqual(sorted(test.names("/d")), ["a", "link", "new"])
                self.assertNotIn("new", main.names("/d"))

                # It has snapshots of its own, and clones of these.
                self.world.cairn("snapshot", "create", "test", "then")
                self.assertNotIn("then", self.snapshots("main"))
                test.write_file("/d/a", new)
                self.assertEqual(test.read_file("/d/.snapshot/then/a"), changed)
                self.assertEqual(test.read_file("/.snapshot/then/f1"), content(1, 20_000))
                self.cloned("test@then", "second")
                with self.mount("second") as second:
                    self.assertEqual(second.read_file("/d/a"), changed)
                    self.assertEqual(second.names("/moved"), [])
                    second.write_file("/d/a", b"of the second")
                    self.assertEqual(second.read_file("/f1"), content(1, 20_000))
                self.assertEqual(test.read_file("/.snapshot/then/d/a"), changed)
            for restart in (self.world.restart, self.killed):
                restart()
                with self.mount("test") as test, self.mount("second") as second:
                    self.assertEqual(test.read_file("/d/a")[: len(new)], new)
                    self.assertEqual(test.read_file("/d/.snapshot/then/a"), changed)
                    self.assertEqual(second.read_file("/d/a")[:13], b"of the second")
                    self.assertEqual(sorted(second.names("/")), sorted(test.names("/")))
                self.assertEqual(self.shown("second")["clone_of"], {"volume": "test", "snapshot": "then"})

        # A snapshot stays as long as a volume needs it, and says which; a volume goes, and leaves others what they need.
        self.assertIn("clones", self.refused("snapshot", "delete", "test", "then"))
        self.assertEqual(self.snapshots("test")["then"]["clones"], ["second"])
        self.world.cairn("volume", "delete", "test", "--force", "--yes")
        self.assertIn("no volume", self.refused("volume", "show", "test"))
        origin = {"volume": "test", "snapshot": "then", "deleted": True}
        self.assertEqual(self.shown("second")["clone_of"], origin)
        with self.mount("second") as second:
            self.assertEqual(second.read_file("/d/a")[:13], b"of the second")
            self.assertEqual(second.read_file("/f1"), content(1, 20_000))
        self.world.cairn("volume", "delete", "second", "--force", "--yes")
        harness.wait_until(lambda: not self.snapshots("main"), FREED_SECONDS_MAX, "the snapshots of the clones to go")
        with libnfs.Mount(self.world.libnfs_url()) as main:
            self.assertEqual(main.read_file("/d/a"), old)
            self.assertEqual(main.read_file("/d/deep/b"), b"small")
            self.assertEqual(main.read_file(f"/f{FILES - 1}"), content(FILES - 1, 20_000))

        def is_freed():
            return self.stored_bytes() <= stored

        harness.wait_until(is_freed, FREED_SECONDS_MAX, "the space of the clones to be free")
        self.world.cairn("volume", "delete", "main", "--force", "--yes")

    def changed(self, rng, name, count):
        """Overwrites parts of files of a volume, and of what it should hold."""
        with self.mount(name) as mount:
            for _ in range(count):
                path = rng.choice(sorted(self.held[name]))
                new = rng.randbytes(rng.choice([100, 50_000, 400_000]))
                at = rng.randrange(FILE_LEN_BYTES - len(new))
                with mount.open(path, flags=os.O_RDWR) as handle:
                    handle.write(at, new)
                    handle.sync()
                old = self.held[name][path]
                self.held[name][path] = old[:at] + new + old[at + len(new) :]

    def check_all(self):
        for name, files in self.held.items():
            with self.mount(name) as mount:
                for path, data in files.items():
                    self.assertEqual(mount.read_file(path), data, f"{name}{path}")

    def scrub(self, *arguments):
        return json.loads(self.world.cairn("scrub", *arguments, "--json").stdout)

    def test_what_is_shared_is_whole_whatever_moves_and_goes(self):
        self.world = self.server(4)
        rng = random.Random(5)
        self.held: dict[str, dict] = {"main": {}}
        with self.mount("main") as main:
            for number in range(MOVED_FILES):
                self.held["main"][f"/f{number}"] = content(number, FILE_LEN_BYTES)
                main.write_file(f"/f{number}", content(number, FILE_LEN_BYTES))
        for source, name in (("main", "first"), ("first", "second")):
            self.cloned(source, name)
            self.held[name] = dict(self.held[source])
            self.changed(rng, name, CHANGES)
            self.changed(rng, "main", CHANGES)
        self.check_all()
        for name, step in (("main", 2), ("first", 3)):
            with self.mount(name) as mount:
                for number in range(0, MOVED_FILES, step):
                    mount.unlink(f"/f{number}")
                    del self.held[name][f"/f{number}"]
        # All that is on a disk moves, also what snapshots and clones alone refer to.
        disk = self.world.disks[0]
        self.world.cairn("disk", "drain", disk)

        def is_drained():
            disks = json.loads(self.world.cairn("disk", "list", "--json").stdout)["disks"]
            return next(view["state"] for view in disks if view["label"] == str(disk)) == "drained"

        harness.wait_until(is_drained, FREED_SECONDS_MAX, "the draining of a disk")
        self.check_all()
        self.killed()
        self.check_all()
        self.scrub("start", "--rate", "0")
        harness.wait_until(lambda: self.scrub("status")["stage"] == "done", FREED_SECONDS_MAX, "the end of a scrub")
        self.assertEqual(self.scrub("status")["wrong_bytes"], 0)
        for name in ("second", "first"):
            self.world.cairn("volume", "delete", name, "--force", "--yes")
            del self.held[name]
            self.check_all()
        # In the end there is what the source has, and no byte more: its bytes cannot be compressed.
        left = sum(len(data) for data in self.held["main"].values())
        harness.wait_until(lambda: self.stored_bytes() == left, FREED_SECONDS_MAX, "the space of the clones to be free")
        self.check_all()

    def killed(self):
        self.world.kill()
        self.world.start()

    def test_what_is_not_possible_says_so(self):
        self.world = self.server(1)
        with libnfs.Mount(self.world.libnfs_url()) as main:
            main.write_file("/a", b"bytes")
        self.world.cairn("snapshot", "create", "main", "before")
        self.cloned("main@before", "test")
        for arguments, complaint in (
            (("volume", "clone", "main", "test"), "already"),
            (("volume", "clone", "main", "main"), "already"),
            (("volume", "clone", "nothing", "new"), "no volume"),
            (("volume", "clone", "main@nothing", "new"), "no such snapshot"),
            (("volume", "clone", "main@a/b", "new"), "is not a snapshot name"),
            (("volume", "clone", "../x", "new"), "not a volume name"),
            (("volume", "set", "test", "--compression", "zstd"), "shares the settings of"),
            (("volume", "set", "test", "--size-limit", "1GiB"), "shares the settings of"),
            (("snapshot", "delete", "main", "before"), "clones"),
            (("snapshot", "restore", "main", "--volume", "before"), "clones"),
            (("snapshot", "diff", "test", "before"), "clone"),
            (("lun", "create", "test/disk", "--size", "1GiB"), "is a clone"),
            (("quota", "set", "test/d", "--hard", "1GiB"), "clone"),
            (("volume", "delete", "test", "--yes"), "exported"),
        ):
            self.assertIn(complaint, self.refused(*arguments), arguments)
        self.assertEqual(self.posted("main", {"name": "by-rest", "snapshot": "before"}), 201)
        self.assertEqual(self.posted("main", {"name": "by-rest"}), 409)
        self.assertEqual(self.posted("main", {"name": "a/b"}), 400)
        self.assertEqual(self.posted("none", {"name": "x"}), 404)
        # One that is renamed or locked stays what clones began from.
        self.world.cairn("snapshot", "rename", "main", "before", "after")
        self.assertEqual(self.shown("test")["clone_of"], {"volume": "main", "snapshot": "after"})
        with self.mount("test") as test:
            self.assertEqual(test.read_file("/a"), b"bytes")
        self.world.cairn("volume", "delete", "by-rest", "--yes")
        self.world.cairn("volume", "delete", "test", "--force", "--yes")

        def deleted():
            return self.world.cairn("snapshot", "delete", "main", "after", check=False).returncode == 0

        harness.wait_until(deleted, FREED_SECONDS_MAX, "the snapshot to be nobody's")

    def names(self):
        listed = json.loads(self.world.cairn("volume", "list", "--json").stdout)
        return {view["name"] for view in listed["volumes"]}

    def test_a_volume_goes_before_its_clones(self):
        self.world = self.server(2)
        old, new = content(1, 3_000_000), content(2, 3_000_000)
        with libnfs.Mount(self.world.libnfs_url()) as main:
            main.mkdir("/d")
            main.write_file("/d/a", old)
            main.write_file("/d/b", new)
        self.world.cairn("snapshot", "create", "main", "monday")
        self.cloned("main@monday", "first")
        with self.mount("first") as first:
            first.unlink("/d/b")
            first.write_file("/d/b", b"of the first")
        self.cloned("first", "second")
        self.cloned("main", "third")
        with self.mount("main") as main:
            main.write_file("/own", content(3, 3_000_000))
        with self.mount("second") as second:
            second.write_file("/d/c", b"of the second")

        # What is locked is not deleted.
        self.world.cairn("snapshot", "lock", "main", "monday")
        self.assertIn("monday of the volume is locked", self.refused("volume", "delete", "main", "--force", "--yes"))
        self.world.cairn("snapshot", "unlock", "main", "monday")
        self.assertIn("exported", self.refused("volume", "delete", "main", "--yes"))
        self.world.cairn("volume", "delete", "main", "--force", "--yes")

        def check():
            with self.mount("first") as first, self.mount("second") as second, self.mount("third") as third:
                for mount, b in ((first, b"of the first"), (second, b"of the first"), (third, new)):
                    self.assertEqual(mount.read_file("/d/a"), old)
                    self.assertEqual(mount.read_file("/d/b"), b)
                self.assertEqual(second.read_file("/d/c"), b"of the second")

        self.assertEqual(self.names(), {"first", "second", "third"})
        with self.assertRaises(OSError):
            self.mount("main")
        origin = {"volume": "main", "snapshot": "monday", "deleted": True}
        self.assertEqual(self.shown("first")["clone_of"], origin)
        self.assertIn("main@monday (deleted)", self.world.cairn("volume", "list").stdout)
        self.assertIn("main@monday (deleted)", self.world.cairn("volume", "show", "first").stdout)
        self.assertEqual(self.shown("second")["clone_of"]["volume"], "first")

        # Its name is free at once, and the new one has nothing to do with it.
        self.world.cairn("volume", "create", "main")
        self.world.cairn("export", "set", "main", "--client", "127.0.0.1/32", "--squash", "none")
        with self.mount("main") as main:
            self.assertEqual(main.names("/"), [])
            main.write_file("/other", b"of another")
        self.assertNotIn("clone_of", self.shown("main"))
        self.assertEqual(self.shown("first")["clone_of"], origin)

        # The earliest clone speaks for the store: settings hold for all in it, and metrics are told under its name.
        self.world.cairn("volume", "set", "first", "--compression", "zstd")
        self.assertEqual([self.shown(name)["compression"] for name in ("first", "third", "main")], ["zstd:3", "zstd:3", "lz4"])
        self.assertIn('of volume "first"', self.refused("volume", "set", "second", "--compression", "lz4"))
        self.assertIn("cannot have a size limit", self.refused("volume", "set", "first", "--size-limit", "1GiB"))
        shared = len(old) + len(new)

        def is_freed():
            return shared <= self.stored_bytes("first") < shared + 10_000

        harness.wait_until(is_freed, FREED_SECONDS_MAX, "the space of what only the deleted volume had")
        self.assertLess(self.stored_bytes("main"), 4096)
        for restart in (self.world.restart, self.killed):
            restart()
            check()
            self.assertEqual(self.shown("first")["compression"], "zstd:3")
            self.assertEqual(self.shown("first")["clone_of"], origin)
        self.scrub("start", "--rate", "0")
        harness.wait_until(lambda: self.scrub("status")["stage"] == "done", FREED_SECONDS_MAX, "the end of a scrub")
        self.assertEqual(self.scrub("status")["wrong_bytes"], 0)

        # One in the middle, and the others with the store.
        self.world.cairn("volume", "delete", "first", "--force", "--yes")
        with self.mount("second") as second:
            self.assertEqual(second.read_file("/d/b"), b"of the first")
            self.assertEqual(second.read_file("/d/a"), old)
        self.world.cairn("volume", "set", "second", "--compression", "lz4")
        self.world.cairn("volume", "delete", "third", "--force", "--yes")
        self.killed()
        with self.mount("second") as second:
            self.assertEqual(second.read_file("/d/a"), old)
            self.assertEqual(second.read_file("/d/c"), b"of the second")
        self.world.cairn("volume", "delete", "second", "--force", "--yes")
        self.assertEqual(self.names(), {"main"})
        series = [name for name in self.world.metrics() if name.startswith("cairn_volume_stored_bytes")]
        self.assertEqual(series, ['cairn_volume_stored_bytes{volume="main"}'])
        self.killed()
        with self.mount("main") as main:
            self.assertEqual(main.read_file("/other"), b"of another")

    def test_a_kill_at_any_step_of_deletions(self):
        self.world = self.server(2)
        rng = random.Random(11)
        with libnfs.Mount(self.world.libnfs_url()) as main:
            main.write_file("/keep", b"of another store")
        for turn in range(KILLED_ROUNDS):
            source = f"v{turn}-0"
            self.world.cairn("volume", "create", source)
            self.world.cairn("export", "set", source, "--client", "127.0.0.1/32", "--squash", "none")
            self.held = {source: {f"/f{number}": rng.randbytes(FILE_LEN_BYTES // 8) for number in range(4)}}
            with self.mount(source) as mount:
                for path, data in self.held[source].items():
                    mount.write_file(path, data)
                mount.mkdir("/many")
                for number in range(FILES):
                    mount.write_file(f"/many/{number}", b"small")
            for number in range(1, 4):
                of, name = rng.choice(sorted(self.held)), f"v{turn}-{number}"
                self.cloned(of, name)
                self.held[name] = dict(self.held[of])
                for volume in (of, name):
                    path, data = rng.choice(sorted(self.held[volume])), rng.randbytes(30_000)
                    with self.mount(volume) as mount:
                        mount.unlink(path)
                        mount.write_file(path, data)
                        self.held[volume][path] = data
            while self.held:
                gone = rng.choice(sorted(self.held))
                words = ("volume", "delete", gone, "--force", "--yes")
                deleting = threading.Thread(target=self.world.cairn, args=words, kwargs={"check": False})
                deleting.start()
                # The moment is the fault.
                time.sleep(rng.uniform(0, KILL_SECONDS_MAX))
                self.killed()
                deleting.join()
                if gone in self.names():
                    self.world.cairn(*words)
                del self.held[gone]
                self.assertEqual(self.names(), {"main", *self.held})
                self.check_all()
                for name in self.held:
                    with self.mount(name) as mount:
                        self.assertEqual(len(mount.names("/many")), FILES)
            with libnfs.Mount(self.world.libnfs_url()) as main:
                self.assertEqual(main.read_file("/keep"), b"of another store")

    def posted(self, source, body):
        request = urllib.request.Request(
            f"{self.world.ready['admin']['url']}/api/v1/volumes/{source}/volume-clones",
            data=json.dumps(body).encode(),
            headers={
                "Content-Type": "application/json",
                "Authorization": f"Bearer {self.world.token_path.read_text().strip()}",
            },
        )
        try:
            with urllib.request.urlopen(request, timeout=FREED_SECONDS_MAX) as answer:
                return answer.status
        except urllib.error.HTTPError as error:
            return error.code
