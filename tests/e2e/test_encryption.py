"""Encryption at rest: `cairn volume create --encrypt`, `cairn key`, what is on the disks, keys that are away."""

import json
import os
import pathlib
import subprocess

from lib import harness, libnfs
from lib.worlds import WorldTest, content

FOUND_SECONDS_MAX = 60
# What a search of the disks looks for: so many bytes from some places of what was written.
NEEDLE_LEN_BYTES = 24
# In a pool file. There is another wrapped key: that of secrets.
KEY_OF_VOLUME = rb'"encryption":\s*{\s*"key"'


def needles(data):
    return [data[at : at + NEEDLE_LEN_BYTES] for at in range(0, len(data) - NEEDLE_LEN_BYTES, 150_000)]


def found(root, wanted):
    """How many of some pieces are in files below a folder."""
    there = set()
    for path in pathlib.Path(root).rglob("*"):
        if path.is_file():
            bytes_of_file = path.read_bytes()
            there |= {needle for needle in wanted if needle in bytes_of_file}
    return len(there)


class Encryption(WorldTest):
    def setUp(self):
        super().setUp()
        self.key = self.scratch / "master.key"

    def generate(self):
        made = subprocess.run([str(harness.cairn_path()), "key", "generate"], capture_output=True, text=True, check=True)
        return made.stdout.strip()

    def put_keys(self, *keys):
        text = "".join(f"{key}\n" for key in keys)
        file = self.scratch / "master.key.new"
        file.write_text(text)
        file.chmod(0o600)
        file.rename(self.key)

    def made(self, flags):
        world = self.server(3, flags)
        world.cairn("volume", "create", "secret", "--encrypt", "--compression", "none")
        world.cairn("export", "set", "secret", "--client", "127.0.0.1", "--rw", "--squash", "none")
        return world

    def mount(self, world, volume):
        return libnfs.Mount(world.libnfs_url().replace("/main", f"/{volume}"))

    def shown(self, world):
        return json.loads(world.cairn("volume", "show", "secret", "--json").stdout)

    def keys(self, world):
        return json.loads(world.cairn("key", "list", "--json").stdout)

    def test_a_volume_is_read_with_its_key_and_with_no_other(self):
        first, second = self.generate(), self.generate()
        self.put_keys(first)
        world = self.made(["--master-key-file", str(self.key)])
        self.assertEqual(self.shown(world)["encryption"]["state"], "encrypted")
        id_first = self.shown(world)["encryption"]["master_key"]
        data, small, plain = content(1, 3_000_000), content(2, 3000), content(3, 1_000_000)
        with self.mount(world, "secret") as mount:
            mount.write_file("/file", data)
            for at in range(20):
                mount.write_file(f"/small{at}", small)
        with self.mount(world, "main") as mount:
            mount.write_file("/file", plain)
        # That also flushes what is in memory.
        for volume in ("secret", "main"):
            world.cairn("snapshot", "create", volume, "before")
        self.assertEqual(found(world.root, [*needles(data), small[:NEEDLE_LEN_BYTES]]), 0)
        self.assertGreater(found(world.root, needles(plain)), 5)

        # Without the key everything else is served, and it is said what is missing.
        world.kill()
        self.key.unlink()
        world.start()
        shown = self.shown(world)
        self.assertEqual((shown["serving"], shown["encryption"]["state"]), (False, "locked"))
        self.assertIn(id_first, shown["problem"])
        self.assertIn("MISSING", world.cairn("volume", "show", "secret").stdout)
        self.assertIn("MISSING", world.cairn("key", "list").stdout)
        self.assertIn("No such file", self.keys(world)["problem"])
        self.assertEqual(world.metrics()['cairn_volume_encrypted{volume="secret",state="locked"}'], 1)
        with self.mount(world, "main") as mount:
            self.assertEqual(mount.read_file("/file"), plain)
        refused = world.cairn("volume", "create", "other", "--encrypt", check=False)
        self.assertIn("master key", refused.stderr)
        # Another one is no help, and one that others can read is none at all.
        self.put_keys(second)
        self.assertEqual(self.keys(world)["keys"][0]["current"], True)
        self.assertFalse(self.shown(world)["serving"])
        self.put_keys(first)
        self.key.chmod(0o644)
        self.assertIn("chmod 600", self.keys(world)["problem"])
        self.assertFalse(self.shown(world)["serving"])

        # It is served as soon as the key is there, without a restart.
        self.put_keys(second, first)
        harness.wait_until(lambda: self.shown(world)["serving"], FOUND_SECONDS_MAX, "the volume is served")
        with self.mount(world, "secret") as mount:
            self.assertEqual(mount.read_file("/file"), data)
            self.assertEqual(mount.read_file("/small7"), small)
            self.assertEqual(mount.read_file("/.snapshot/before/file"), data)
            mount.write_file("/file", data[::-1])

        # Its key is wrapped anew; then it needs the new one alone.
        rotated = json.loads(world.cairn("key", "rotate", "--json").stdout)
        self.assertEqual((rotated["wrapped"], rotated["failed"]), (["secret"], []))
        id_second = self.shown(world)["encryption"]["master_key"]
        self.assertNotEqual(id_first, id_second)
        self.assertIn("already", world.cairn("key", "rotate").stdout)
        self.assertEqual([key["volumes"] for key in self.keys(world)["keys"]], [["secret"], []])
        world.kill()
        self.put_keys(second)
        world.start()
        with self.mount(world, "secret") as mount:
            self.assertEqual(mount.read_file("/file"), data[::-1])
            self.assertEqual(mount.read_file("/.snapshot/before/file"), data)
        self.assertEqual([key["id"] for key in self.keys(world)["keys"]], [id_second])

        # Nobody reads it after its key is erased, whatever keys there are.
        world.cairn("volume", "erase-key", "secret", "--yes")
        shown = self.shown(world)
        self.assertEqual((shown["serving"], shown["encryption"]["state"]), (False, "erased"))
        self.assertRaises(OSError, lambda: self.mount(world, "secret").read_file("/file"))
        for folder in world.root.glob("disk*"):
            self.assertNotRegex((folder / "pool").read_bytes(), KEY_OF_VOLUME)
        self.put_keys(second, first)
        world.kill()
        world.start()
        self.assertEqual(self.shown(world)["encryption"]["state"], "erased")
        self.assertIn("was erased", self.shown(world)["problem"])
        world.cairn("volume", "delete", "secret", "--force", "--yes")
        with self.mount(world, "main") as mount:
            self.assertEqual(mount.read_file("/file"), plain)
        log = world.log_path.read_text()
        for key in (first, second):
            self.assertNotIn(key, log)

    def test_a_command_gives_the_key(self):
        self.put_keys(self.generate())
        world = self.made(["--master-key-command", f"cat {self.key}"])
        data = content(4, 200_000)
        with self.mount(world, "secret") as mount:
            mount.write_file("/file", data)
        self.assertEqual(self.keys(world)["source"], f"command cat {self.key}")
        self.key.rename(self.scratch / "elsewhere")
        world.kill()
        world.start()
        self.assertIn("No such file", self.keys(world)["problem"])
        self.assertFalse(self.shown(world)["serving"])
        os.rename(self.scratch / "elsewhere", self.key)
        harness.wait_until(lambda: self.shown(world)["serving"], FOUND_SECONDS_MAX, "the volume is served")
        with self.mount(world, "secret") as mount:
            self.assertEqual(mount.read_file("/file"), data)

    def test_a_key_stays_as_long_as_a_clone_needs_it(self):
        self.put_keys(self.generate())
        world = self.made(["--master-key-file", str(self.key)])
        data = content(5, 200_000)
        with self.mount(world, "secret") as mount:
            mount.write_file("/file", data)
        for name in ("first", "second"):
            world.cairn("volume", "clone", "secret", name)
            world.cairn("export", "set", name, "--client", "127.0.0.1/32", "--squash", "none")
        refused = world.cairn("volume", "erase-key", "secret", "--yes", check=False)
        self.assertIn("that of others, too: first, second", refused.stderr)
        world.cairn("volume", "delete", "secret", "--force", "--yes")
        world.kill()
        world.start()
        with self.mount(world, "first") as mount:
            self.assertEqual(mount.read_file("/file"), data)
        self.assertEqual([key["volumes"] for key in self.keys(world)["keys"]], [["first"]])
        refused = world.cairn("volume", "erase-key", "first", "--yes", check=False)
        self.assertIn("that of others, too: second", refused.stderr)
        world.cairn("volume", "delete", "first", "--force", "--yes")
        world.cairn("volume", "erase-key", "second", "--yes")
        self.assertRaises(OSError, lambda: self.mount(world, "second").read_file("/file"))
        for folder in world.root.glob("disk*"):
            self.assertNotRegex((folder / "pool").read_bytes(), KEY_OF_VOLUME)
        world.cairn("volume", "delete", "second", "--force", "--yes")

    def test_a_server_without_keys_says_so(self):
        world = self.server(1)
        refused = world.cairn("volume", "create", "secret", "--encrypt", check=False)
        self.assertNotEqual(refused.returncode, 0)
        self.assertIn("--master-key-file", refused.stderr)
        refused = world.cairn("key", "rotate", check=False)
        self.assertIn("no master key", refused.stderr)
        refused = world.cairn("volume", "erase-key", "main", "--yes", check=False)
        self.assertIn("not encrypted", refused.stderr)
        self.assertEqual(self.keys(world), {"source": None, "keys": []})
