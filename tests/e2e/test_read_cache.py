"""The read cache: what is read again comes from it, also after a restart, and nothing depends on it."""

import shutil
import subprocess

from lib import harness
from lib.worlds import WorldTest, content

FILES = 20
FILE_MIB = 8
#: With so little memory most of what is read does not stay in it.
FLAGS = ["--memory-limit", "256MiB", "--read-cache-size", "512MiB"]


class ReadCache(WorldTest):
    def served(self):
        self.folder = self.scratch / "fast"
        self.world = self.server(1, ["--read-cache", str(self.folder), *FLAGS])
        self.files = {f"file{number}": content(number, FILE_MIB << 20) for number in range(FILES)}
        for name, data in self.files.items():
            (self.scratch / name).write_bytes(data)
            self.world.cairn("cp", "-q", self.scratch / name, self.world.url(name))

    def read_all(self):
        for name, data in self.files.items():
            self.assertTrue(self.world.cairn("cat", self.world.url(name), text=False).stdout == data, name)

    def metric(self, name):
        return self.world.metrics()[f"cairn_read_cache_{name}"]

    def warnings(self):
        return [line for line in self.world.cairn("status").stdout.splitlines() if "read cache" in line]

    def test_what_is_read_again_comes_from_it(self):
        self.served()
        self.read_all()
        # The first time next to nothing is kept: parts of records that were read by themselves, and then as a whole.
        self.assertLess(self.metric("kept_bytes_total"), FILES * FILE_MIB << 19)
        self.read_all()
        self.assertGreater(self.metric("kept_bytes_total"), FILES * FILE_MIB << 19)
        self.read_all()
        hits = self.metric("hit_bytes_total")
        self.assertGreater(hits, FILES * FILE_MIB << 18)
        self.assertEqual(self.warnings(), [])

        # It has this after a restart, and after a kill what it had written.
        for end in (self.world.stop, self.world.kill):
            end()
            self.world.start()
            self.assertEqual(self.metric("hit_bytes_total"), 0)
            self.read_all()
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

    def test_what_cannot_be_used_is_told(self):
        refused = subprocess.run([str(harness.cairn_path()), "serve", "--data", self.scratch / "d", "--read-cache", "/x"],
                                 capture_output=True, text=True)
        self.assertEqual(refused.returncode, 2)
        self.assertIn("--read-cache-size", refused.stderr)
        for folder, size, why in [(self.scratch / "small", "1MiB", "needs"), ("/proc/nothing", "512MiB", "read cache at /proc"),
                                  (self.scratch / "large", "1000TiB", "room for")]:
            server = self.server(1, ["--read-cache", str(folder), "--read-cache-size", size], name=size)
            self.assertEqual(len(self.warnings_of(server)), 1, why)
            self.assertIn(why, server.log_tail())
            server.cairn("cp", "-q", __file__, server.url("file"))
            server.stop()

    def warnings_of(self, server):
        self.world = server
        return self.warnings()
