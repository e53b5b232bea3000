"""A file that was overwritten in small pieces: it is read in order with few reads, and written anew in order once its reader has ended."""

import os
import random

from lib import harness, libnfs
from lib.worlds import WorldTest, content

MIB = 1 << 20
BLOCK_BYTES = 4096
BLOCKS = 4096
# Blocks between two COMMITs, all over the file.
COMMIT_BLOCKS = 512
# The space of a disk without a limit is that of its file system, which others use too.
DISK_MIB = 1024
# It begins some seconds after the last reader, and makes way for whatever else the machine does.
JOINED_SECONDS_MAX = 180


class Overwrites(WorldTest):
    def metric(self, name):
        return self.world.metrics()[f'{name}{{volume="main"}}']

    def read_all(self):
        with libnfs.Mount(self.world.libnfs_url()) as mount:
            return mount.read_file("/file")

    def test_small_extents_are_joined_for_a_reader_in_order(self):
        self.world = self.server(3, ["--disk-size-limit", f"{DISK_MIB}MiB"])
        data = bytearray(content("before", BLOCKS * BLOCK_BYTES))
        numbers = list(range(BLOCKS))
        random.Random(48).shuffle(numbers)
        with libnfs.Mount(self.world.libnfs_url()) as mount:
            mount.write_file("/file", bytes(data))
            with mount.open("/file", os.O_RDWR) as file:
                for nth, number in enumerate(numbers, 1):
                    at = number * BLOCK_BYTES
                    block = content(f"block {number}", BLOCK_BYTES)
                    data[at : at + BLOCK_BYTES] = block
                    file.write(at, block)
                    if nth % COMMIT_BLOCKS == 0:
                        file.sync()
        self.world.restart()
        self.assertEqual(self.metric("cairn_joined_bytes_total"), 0)
        self.assertTrue(self.read_all() == data)
        self.assertGreater(self.world.metrics()["cairn_store_merged_reads_total"], 0)
        harness.wait_until(
            lambda: self.metric("cairn_joined_bytes_total") >= MIB, JOINED_SECONDS_MAX, "small extents to be joined"
        )
        self.assertTrue(self.read_all() == data)
        self.world.kill()
        self.world.start()
        self.assertTrue(self.read_all() == data)
