"""The read cache: what is read again comes from it, also after a restart, and nothing depends on it."""

import json
import shutil

from lib import harness
from lib.worlds import WorldTest, content

FILES = 40
FILE_MIB = 8
#: Of memory that is so little the record cache has 140 MiB: more than half of what is read does not stay in it.
FLAGS = ["--memory-limit", "256MiB"]
SIZE = "512MiB"
REFUSED = 4
#: What comes faster than the disk of a cache takes it is not kept: on a busy machine it takes more reads.
READS_MAX = 6
SERVED_SECONDS_MAX = 60


class ReadCache(WorldTest):
    def served(self):
        self.folder = self.scratch / "fast"
        self.world = self.server(1, FLAGS)
        self.add(self.folder)
        self.files = {f"file{number}": content(number, FILE_MIB << 20) for number in range(FILES)}
        for name, data in self.files.items():
            (self.scratch / name).write_bytes(data)
            self.world.cairn("cp", "-q", self.scratch / name, self.world.url(name))

    def add(self, folder, size=SIZE, check=True):
        return self.world.cairn("disk", "add", folder, "--role", "cache", "--size", size, check=check)

    def caches(self):
        return json.loads(self.world.cairn("disk", "list", "--json").stdout)["caches"]

    def read_all(self):
        for name, data in self.files.items():
            self.assertTrue(self.world.cairn("cat", self.world.url(name), text=False).stdout == data, name)

    def read_until(self, is_enough, what):
        """Reads all again until that was enough."""
        for _ in range(READS_MAX):
            self.read_all()
            if is_enough():
                return
        raise harness.Late(f"{what} in {READS_MAX} reads")

    def metric(self, name):
        return self.world.metrics()[f"cairn_read_cache_{name}"]

    def warnings(self):
        return [warning for warning in self.world.status()["warnings"] if warning["kind"] == "read_cache_unused"]

    def test_what_is_read_again_comes_from_it(self):
        self.served()
        self.read_all()
        # The first time next to nothing is kept: parts of records that were read by themselves, and then as a whole.
        self.assertLess(self.metric("kept_bytes_total"), FILES * FILE_MIB << 18)
        self.read_until(lambda: self.metric("kept_bytes_total") > FILES * FILE_MIB << 18, "too little was kept")

        def hits():
            before = self.metric("hit_bytes_total")
            self.read_all()
            return self.metric("hit_bytes_total") - before

        with self.measured():
            self.assertTrue(any(hits() > FILES * FILE_MIB << 18 for _ in range(READS_MAX)), "too little came from the cache")
        self.assertEqual(self.warnings(), [])

        # It has this after a restart, and after a kill what it had written.
        for end in (self.world.stop, self.world.kill):
            end()
            self.world.start()
            self.assertEqual(self.metric("hit_bytes_total"), 0)
            self.read_all()
            # The first read alone tells what outlived the end: more reads would keep it anew.
            with self.measured():
                self.assertGreater(self.metric("hit_bytes_total"), FILES * FILE_MIB << 18)

        # Everything in it is damaged.
        self.world.stop()
        for path in self.folder.glob("*/*"):
            with path.open("r+b") as file:
                for offset in range(8192, path.stat().st_size, 65_536):
                    file.seek(offset)
                    file.write(b"damaged")
        self.world.start()
        self.read_all()

        # Its folder goes while it is used.
        shutil.rmtree(self.folder)
        self.read_all()
        self.world.stop()
        self.world.start()
        self.read_all()

    def test_caches_come_and_go_while_it_serves(self):
        self.served()
        second = self.scratch / "second"
        self.add(second, "256MiB")
        self.assertEqual([cache["path"] for cache in self.caches()], [str(self.folder), str(second)])
        for _ in range(2):
            self.read_all()
        self.read_until(lambda: self.metric("hit_bytes_total") > FILES * FILE_MIB << 18, "too little came from the caches")
        # Each has its share.
        for folder in (self.folder, second):
            used = sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())
            self.assertGreater(used, 4 << 20, folder)
        self.world.kill()
        self.world.start()
        states = lambda: [cache["state"] for cache in self.caches()]
        harness.wait_until_equal(states, ["ok", "ok"], SERVED_SECONDS_MAX, "the states of caches")

        # Beside it is what is somebody else's.
        (second / "notes").write_text("not of the cache")
        self.world.cairn("disk", "remove", second)
        self.assertEqual([path.name for path in second.iterdir()], ["notes"])
        self.read_all()
        self.world.cairn("disk", "remove", self.caches()[0]["id"][:8])
        self.assertFalse(self.folder.exists())
        self.assertEqual(self.caches(), [])
        misses = self.metric("misses_total")
        self.read_all()
        self.assertEqual(self.metric("misses_total"), misses, "nothing is looked for in one")
        self.world.kill()
        self.world.start()
        self.assertEqual(self.caches(), [])

    def test_what_cannot_be_used_is_told(self):
        self.world = self.server(1, FLAGS)
        without_size = self.world.cairn("disk", "add", "/x", "--role", "cache", check=False)
        self.assertEqual(without_size.returncode, 2)
        self.assertIn("--size", without_size.stderr)
        data = self.world.disks[0]
        for folder, size, why in [
            (self.scratch / "small", "1MiB", "needs"),
            ("/proc/nothing", "512MiB", "disk_root"),
            (self.scratch / "none" / "fast", "512MiB", "create that folder"),
            (self.scratch / "large", "1000TiB", "room for"),
            (data, "512MiB", "is already a disk of the pool"),
            (f"{data}/inside", "512MiB", "are nested"),
        ]:
            refused = self.add(folder, size, check=False)
            self.assertEqual(refused.returncode, REFUSED, refused.stderr)
            self.assertIn(why, refused.stderr)
        self.assertEqual(self.caches(), [])

        fast = self.scratch / "fast"
        self.add(fast)
        for folder, role in ((fast, "cache"), (fast, "data"), (fast / "inside", "journal")):
            flags = ["--size", SIZE] if role == "cache" else []
            refused = self.world.cairn("disk", "add", folder, "--role", role, *flags, check=False)
            self.assertEqual(refused.returncode, REFUSED, refused.stderr)
            self.assertIn("read cache", refused.stderr)
        # What is gone at the next start is told, and nothing waits for it.
        self.world.stop()
        shutil.rmtree(fast)
        fast.write_text("a file where the folder was")
        self.world.start()
        self.assertEqual(len(self.warnings()), 1)
        self.assertEqual([cache["state"] for cache in self.caches()], ["not_open"])
        self.world.cairn("cp", "-q", __file__, self.world.url("file"))
        self.world.cairn("disk", "remove", fast)
        self.assertEqual(self.warnings(), [])
