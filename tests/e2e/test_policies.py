"""Policies of directories: `cairn policy`, what is stored how, and data that is converted under load and over kill -9."""

import json
import os
import random
import urllib.error

from lib import harness, libnfs
from lib.background import Background
from lib.worlds import WorldTest

MIB = 1 << 20
CONVERTED_SECONDS_MAX = 120
FLUSHED_SECONDS_MAX = 30
FILES = 8
FILE_BYTES = 6 * MIB
# One piece of what the load writes.
PIECE_BYTES = 40_000


def text(seed, len_bytes):
    """Bytes that zstd makes much smaller than lz4 does."""
    words = [random.Random(seed).randbytes(5).hex().encode() for _ in range(64)]
    picks = random.Random(seed + 1)
    line = b" ".join(picks.choice(words) for _ in range(len_bytes // 11 + 2))
    return line[:len_bytes]


class Load(Background):
    """Overwrites pieces of files and remembers what was answered, until it is told to stop."""

    def __init__(self, url, files):
        super().__init__()
        self.url, self.files = url, files
        self.writes = 0
        self.failure = None

    def work(self):
        picks = random.Random(7)
        try:
            with libnfs.Mount(self.url) as mount:
                while not self.stopping.is_set():
                    name = picks.choice(sorted(self.files))
                    at = picks.randrange(FILE_BYTES - PIECE_BYTES)
                    piece = picks.randbytes(PIECE_BYTES)
                    with mount.open(name, os.O_WRONLY) as file:
                        file.write(at, piece)
                        file.sync()
                    self.files[name][at : at + PIECE_BYTES] = piece
                    self.writes += 1
        except Exception as error:  # noqa: BLE001 - told by the test's own thread
            self.failure = error


class Policies(WorldTest):
    def policy(self, place):
        return json.loads(self.world.cairn("policy", "show", place, "--json").stdout)

    def status(self):
        return json.loads(self.world.cairn("policy", "status", "main", "--json").stdout)

    def refused(self, *arguments):
        run = self.world.cairn("policy", *arguments, check=False)
        self.assertNotEqual(run.returncode, 0)
        return run.stderr

    def stored_bytes(self):
        dirty = lambda: self.world.metrics()['cairn_volume_dirty_bytes{volume="main"}']
        harness.wait_until(lambda: dirty() == 0, FLUSHED_SECONDS_MAX, "the flush")
        return self.world.metrics()['cairn_volume_stored_bytes{volume="main"}']

    def converted(self):
        harness.wait_until(lambda: self.status()["state"] == "done", CONVERTED_SECONDS_MAX, "the data to be converted")
        return self.status()

    def test_what_directories_say(self):
        self.world = self.server(1)
        cairn = self.world.cairn
        with libnfs.Mount(self.world.libnfs_url()) as mount:
            mount.mkdir("/a")
            mount.mkdir("/a/deep")
            mount.write_file("/file", b"bytes")
            self.assertIn("no directory", cairn("policy", "list", "main").stdout)
            cairn("policy", "set", "main/a", "--compression", "zstd:3", "--dedupe", "on")
            cairn("policy", "set", "main/a/deep", "--compression", "off")
            deep = self.policy("main/a/deep")
            self.assertEqual(deep["policy"], {"compression": "none", "dedupe": None, "access_pattern": None, "media": None, "protection": None})
            self.assertEqual((deep["in_force"]["compression"], deep["in_force"]["dedupe"]), ("none", "on"))
            cairn("policy", "set", "main/a", "--dedupe", "inherit", "--access-pattern", "random")
            said = self.policy("main/a")["policy"]
            self.assertEqual(said, {"compression": "zstd:3", "dedupe": None, "access_pattern": "random", "media": None, "protection": None})
            self.assertIn("zstd:3", cairn("policy", "list", "main").stdout)

            # New data follows its directory, wherever that is by now.
            before = self.stored_bytes()
            mount.write_file("/a/packed", text(1, 4 * MIB))
            packed = self.stored_bytes() - before
            mount.write_file("/a/deep/plain", text(2, 4 * MIB))
            self.assertGreater(self.stored_bytes() - before - packed, 4 * MIB - 1)
            self.assertLess(packed, 3 * MIB)
            mount.rename("/a/deep", "/deep")
            self.assertEqual(self.policy("main/deep")["in_force"]["dedupe"], "off")
            self.assertEqual(self.policy("main/deep")["policy"]["compression"], "none")

            self.world.kill()
            self.world.start()
        with libnfs.Mount(self.world.libnfs_url()) as mount:
            self.assertEqual(self.policy("main/a")["policy"], said)
            metrics = self.world.metrics()
            self.assertEqual(metrics['cairn_volume_policies{volume="main"}'], 2)
            self.assertEqual(metrics['cairn_volume_apply_running{volume="main"}'], 0)
            cairn("policy", "clear", "main/a")
            self.assertEqual(self.policy("main/a")["in_force"]["compression"], "lz4")
            self.world.cairn("rm", "-r", self.world.url("deep"))
            self.assertIn("no directory", cairn("policy", "list", "main").stdout)

            self.assertIn("no policy", self.refused("clear", "main/a"))
            self.assertIn("no directory", self.refused("set", "main/nothing", "--dedupe", "on"))
            self.assertIn("is not a directory", self.refused("set", "main/file", "--dedupe", "on"))
            self.assertIn("volume's settings", self.refused("set", "main", "--dedupe", "on"))
            self.assertIn("no setting is given", self.refused("set", "main/a"))
            self.assertIn("says nothing", self.refused("set", "main/a", "--dedupe", "inherit"))
            self.assertIn("zstd:19", self.refused("set", "main/a", "--compression", "zip"))
            self.assertIn("has had no conversion", self.refused("status", "main"))
            self.assertIn("no data", self.refused("cancel", "main"))
            with self.assertRaises(urllib.error.HTTPError) as raised:
                self.world.get("/api/v1/volumes/main/policy?where=/a")
            self.assertEqual(raised.exception.code, 400)

    def test_data_is_converted_under_load_and_over_kills(self):
        self.world = self.server(3)
        cairn = self.world.cairn
        files = {}
        with libnfs.Mount(self.world.libnfs_url()) as mount:
            mount.mkdir("/a")
            for number in range(FILES):
                files[f"/a/{number}"] = bytearray(text(number // 2, FILE_BYTES))
                mount.write_file(f"/a/{number}", bytes(files[f"/a/{number}"]))
            mount.write_file("/beside", text(99, FILE_BYTES))
        cairn("snapshot", "create", "main", "before")
        before = {name: bytes(data) for name, data in files.items()}
        cairn("policy", "set", "main/a", "--compression", "zstd:3", "--dedupe", "verify")
        with Load(self.world.libnfs_url(), files) as load:
            cairn("policy", "apply", "main/a")
            self.assertIn("already", self.refused("apply", "main"))
            converted = self.converted()
        self.assertIsNone(load.failure)
        self.assertGreater(load.writes, 0)
        self.assertGreater(converted["shared_bytes"], 0)
        self.assertGreater(converted["rewritten_bytes"], 0)
        self.assertLess(converted["stored_bytes_after"], converted["stored_bytes_before"])
        self.assert_files(files, before)

        # Killed in its middle, it goes on.
        cairn("policy", "set", "main/a", "--compression", "off", "--dedupe", "off", "--access-pattern", "random")
        cairn("policy", "apply", "main")
        self.world.kill()
        self.world.start()
        self.assertIn(self.status()["state"], ("running", "done"))
        converted = self.converted()
        self.assertGreaterEqual(converted["files"], FILES + 1)
        self.assert_files(files, before)

        cairn("policy", "clear", "main/a")
        cairn("policy", "apply", "main")
        cancelled = cairn("policy", "cancel", "main", check=False)
        state = self.status()["state"]
        self.assertEqual(state, "cancelled" if cancelled.returncode == 0 else "done")

        def is_all_done():
            done = json.loads(cairn("policy", "apply", "main/a", "--wait", "--json").stdout)
            self.assertEqual((done["state"], done["path"]), ("done", "/a"))
            # What a collection moved meanwhile is left to the next run.
            return done["left"] == 0

        harness.wait_until(is_all_done, CONVERTED_SECONDS_MAX, "a run that leaves nothing")
        again = json.loads(cairn("policy", "apply", "main/a", "--wait", "--json").stdout)
        self.assertEqual(again["rewritten_bytes"], 0)
        self.assert_files(files, before)
        cairn("snapshot", "delete", "main", "before")
        cairn("scrub", "start", "--rate", "0")
        scrub = lambda: json.loads(cairn("scrub", "status", "--json").stdout)
        harness.wait_until(lambda: scrub()["stage"] == "done", CONVERTED_SECONDS_MAX, "the end of a scrub")
        self.assertEqual((scrub()["wrong_bytes"], scrub()["damaged"]), (0, 0))

    def assert_files(self, files, before):
        with libnfs.Mount(self.world.libnfs_url()) as mount:
            for name, data in files.items():
                self.assertEqual(mount.read_file(name), bytes(data), name)
                self.assertEqual(mount.read_file(f"/.snapshot/before{name}"), before[name], name)
            self.assertEqual(mount.read_file("/beside"), text(99, FILE_BYTES))
