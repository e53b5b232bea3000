"""kill -9 under load: what was acknowledged as stable is there, and nothing else is ever in its place."""

import os
import threading

from lib import harness, libnfs
from lib.worlds import WorldTest, content

WRITERS_COUNT = 4
BLOCK_LEN_BYTES = 24_000  # no multiple of anything, so that blocks share pages, records and rows
BLOCKS_PER_FILE_MAX = 4_000
SYNC_EVERY_BLOCKS = 7
# Each change waits for a disk that may take seconds for it.
LOAD_SECONDS_MAX = 240


class Writer(threading.Thread):
    """Appends blocks to one file, creates and removes small ones, and notes what was acknowledged."""

    def __init__(self, url, index, round_number):
        super().__init__(daemon=True)
        self.url, self.path = url, f"/writer{index}-{round_number}"
        self.blocks_stable = 0
        self.names_there, self.names_gone = set(), set()
        self.pending_name = None
        self.cut_off = False

    def block(self, index):
        return content(f"{self.path} {index}", BLOCK_LEN_BYTES)

    def run(self):
        try:
            with libnfs.Mount(self.url) as mount:
                # libnfs tries for ever to reach a server that is gone; this thread is then left behind.
                mount.mkdir(f"{self.path}.d")
                with mount.open(self.path, os.O_CREAT | os.O_RDWR) as file:
                    for index in range(BLOCKS_PER_FILE_MAX):
                        file.write(index * BLOCK_LEN_BYTES, self.block(index))
                        if index % SYNC_EVERY_BLOCKS == SYNC_EVERY_BLOCKS - 1:
                            file.sync()
                            self.blocks_stable = index + 1
                            self.change_names(mount, index)
        except OSError:
            self.cut_off = True

    def change_names(self, mount, index):
        self.pending_name = name = f"n{index}"
        mount.write_file(f"{self.path}.d/{name}", self.block(index)[:100])
        self.names_there.add(name)
        if len(self.names_there) > 3:
            self.pending_name = old = min(self.names_there)
            self.names_there.discard(old)
            mount.unlink(f"{self.path}.d/{old}")
            self.names_gone.add(old)
        self.pending_name = None


class Crash(WorldTest):
    def check(self, disks, rounds):
        server = self.server(disks)
        writers = []
        for round_number in range(rounds):
            current = [Writer(server.libnfs_url(), index, round_number) for index in range(WRITERS_COUNT)]
            writers += current
            for writer in current:
                writer.start()
            enough = (round_number + 1) * 3 * SYNC_EVERY_BLOCKS
            harness.wait_until(
                lambda: all(writer.blocks_stable >= enough for writer in current),
                LOAD_SECONDS_MAX,
                "enough load",
            )
            server.kill()
            # What the clients had noted when the server was gone; they get no further.
            noted = [(w, w.blocks_stable, set(w.names_there), set(w.names_gone), w.pending_name) for w in current]
            server.start()
            with libnfs.Mount(server.libnfs_url()) as mount:
                for writer, blocks_stable, there, gone, pending in noted:
                    self.compare(mount, writer, blocks_stable, there, gone, pending)
        server.restart()

    def compare(self, mount, writer, blocks_stable, there, gone, pending):
        data = mount.read_file(writer.path)
        self.assertGreaterEqual(len(data), blocks_stable * BLOCK_LEN_BYTES, writer.path)
        for index in range(-(-len(data) // BLOCK_LEN_BYTES)):
            got = data[index * BLOCK_LEN_BYTES : (index + 1) * BLOCK_LEN_BYTES]
            want = writer.block(index)[: len(got)]
            if index < blocks_stable:
                self.assertTrue(got == want, f"{writer.path}: stable block {index} is lost")
            else:
                # Not acknowledged: each byte was written or it was not.
                torn = all(g in (0, w) for g, w in zip(got, want))
                self.assertTrue(got == want or torn, f"{writer.path}: block {index} has other bytes")
        names = set(mount.names(f"{writer.path}.d"))
        self.assertLessEqual(there - {pending}, names, f"{writer.path}.d: names are lost")
        self.assertFalse((gone - {pending}) & names, f"{writer.path}.d: removed names are back")
        for name in there - {pending}:
            got = mount.read_file(f"{writer.path}.d/{name}")
            self.assertEqual(got, writer.block(int(name[1:]))[:100], f"{writer.path}.d/{name}")

    def test_kill_on_one_disk(self):
        self.check(1, rounds=3)

    def test_kill_on_six_disks(self):
        self.check(6, rounds=2)
