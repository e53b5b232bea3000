"""Deduplication: `cairn volume set --dedupe`, and what the same bytes take a second time; over kill -9."""

import json

from lib import harness, libnfs
from lib.worlds import WorldTest, content

MIB = 1 << 20
LEN_BYTES = 64 * MIB
# The space of a disk without a limit is that of its file system, which others use too.
DISK_MIB = 1024
# Of what is appended for bytes that are written again.
GROWS_MAX = 0.05
# Of free space, which is told by whole segments: each of three disks may begin one of 8 MiB meanwhile.
USED_GROWS_MAX = 0.5
FLUSHED_SECONDS_MAX = 60
DELETED_SECONDS_MAX = 120


class Dedupe(WorldTest):
    def shown(self):
        return json.loads(self.world.cairn("volume", "show", "main", "--json").stdout)

    def metric(self, name):
        return self.world.metrics()[f'{name}{{volume="main"}}']

    def used(self, mount):
        """Bytes that are taken by what is there, once all of it is on the disks."""
        harness.wait_until(lambda: self.metric("cairn_volume_dirty_bytes") == 0, FLUSHED_SECONDS_MAX, "the flush")
        found = []

        def is_settled():
            # What files could still take is told as of a moment ago, and changes when segments are made or sealed.
            total, free = mount.space()
            found.append(total - free)
            return len(found) > 1 and found[-1] == found[-2]

        harness.wait_until(is_settled, FLUSHED_SECONDS_MAX, "the space to be counted", 0.3)
        return found[-1]

    def check(self, mode, disks):
        self.world = self.server(disks, ["--disk-size-limit", f"{DISK_MIB}MiB"], name=f"pool-{mode}")
        world = self.world
        self.assertEqual(self.shown()["dedupe"], "off")
        data, other = content(f"{mode} data", LEN_BYTES), content(f"{mode} other", MIB)
        with libnfs.Mount(world.libnfs_url()) as mount:
            mount.write_file("/off-1", other)
            mount.write_file("/off-2", other)
            self.assertEqual(self.shown()["deduplicated_bytes"], 0)
            world.cairn("volume", "set", "main", "--dedupe", mode)
            self.assertEqual(self.shown()["dedupe"], mode)
            mount.write_file("/first", data)
            used = self.used(mount)
            appended = world.metrics()["cairn_store_appended_bytes_total"]
            mount.write_file("/second", data)
            self.assertLess(self.used(mount) - used, USED_GROWS_MAX * LEN_BYTES)
            self.assertLess(world.metrics()["cairn_store_appended_bytes_total"] - appended, GROWS_MAX * LEN_BYTES)
            shown = self.shown()
            self.assertGreater(shown["deduplicated_bytes"], (1 - GROWS_MAX) * LEN_BYTES)
            self.assertEqual(self.metric("cairn_volume_deduplicated_bytes_total"), shown["deduplicated_bytes"])
            # What files hold is what they always hold.
            self.assertEqual(shown["used_bytes"], 2 * LEN_BYTES + 2 * MIB)
            self.assertIn(f"{mode};", world.cairn("volume", "show", "main").stdout)

        world.kill()
        world.start()
        self.assertEqual((self.shown()["dedupe"], self.shown()["deduplicated_bytes"]), (mode, 0))
        with libnfs.Mount(world.libnfs_url()) as mount:
            self.assertEqual(mount.read_file("/second"), data)
            mount.unlink("/first")
            mount.write_file("/third", data)
            self.assertEqual(mount.read_file("/third"), data)
        # Whoever goes first, the bytes stay for the others; and they go with the last.
        world.kill()
        world.start()
        with libnfs.Mount(world.libnfs_url()) as mount:
            self.assertEqual(mount.read_file("/second"), data)
            self.assertEqual(mount.read_file("/third"), data)
            used = self.used(mount)
            mount.unlink("/second")
            mount.unlink("/third")
            harness.wait_until(
                lambda: used - self.used(mount) > LEN_BYTES / 2, DELETED_SECONDS_MAX, "the space to come back"
            )
            self.assertEqual(mount.read_file("/off-2"), other)

    def test_the_same_bytes_take_their_room_once(self):
        self.check("on", 3)

    def test_bytes_that_are_compared_take_their_room_once(self):
        self.check("verify", 1)

    def test_it_is_set_when_a_volume_is_made(self):
        self.world = self.server(1)
        cairn = self.world.cairn
        made = json.loads(cairn("volume", "create", "other", "--dedupe", "verify", "--json").stdout)
        self.assertEqual(made["dedupe"], "verify")
        cairn("volume", "set", "other", "--dedupe", "off")
        shown = json.loads(cairn("volume", "show", "other", "--json").stdout)
        self.assertEqual(shown["dedupe"], "off")
        refused = cairn("volume", "set", "other", "--dedupe", "maybe", check=False)
        self.assertNotEqual(refused.returncode, 0)
        self.assertIn("off, on or verify", refused.stderr)
