"""Load over libnfs that goes on through whatever happens to the server, and remembers what was acknowledged."""

import contextlib
import errno
import os
import threading
import time

from lib import harness, libnfs
from lib.worlds import content

BLOCK_LEN_BYTES = 24_000  # no multiple of anything, so that blocks share pages, records and rows
BLOCKS_PER_FILE = 64
NAMES_EVERY_BLOCKS = 4
NAMES_KEPT = 3
MOUNT_SECONDS_MAX = 60
# It takes a reset within microseconds: more than this is no accident.
GIVEN_UP_COUNT_MAX = 3


class Load(threading.Thread):
    """Writes blocks, and makes, renames and removes files, one after the other, each stable when answered.

    libnfs sends a call again after it lost its connection. Over a restart of the server nobody knows
    that such a call was done before: an error which says just that is counted, and is no failure. Where libnfs gives up
    its mount, the load mounts again and goes on.
    """

    def __init__(self, url, index):
        super().__init__(daemon=True)
        self.url, self.index = url, index
        self.folder = f"/load{index}"
        self.ended = threading.Event()
        self.failure = None
        # Blocks acknowledged, by file; names there with the block they hold; names not there any more.
        self.blocks, self.there, self.gone = {}, {}, set()
        self.files_count = self.acknowledged_count = self.repeated_count = self.given_up_count = 0
        # When the last call was answered, and the longest time between two answers.
        self.acknowledged_at, self.pause_seconds = None, 0.0

    def block(self, path, index):
        return content(f"{path} {index}", BLOCK_LEN_BYTES)

    def run(self):
        try:
            mount = libnfs.Mount(self.url)
            while not self.goes_on_with(mount):
                self.given_up_count += 1
                if self.given_up_count > GIVEN_UP_COUNT_MAX:
                    raise harness.Failure(f"libnfs gave up {self.given_up_count} mounts of one load")
                mount = harness.wait_until(self.mounted, MOUNT_SECONDS_MAX, "a mount in place of one that libnfs gave up")
        except Exception as failure:
            self.failure = failure

    def goes_on_with(self, mount):
        """Works until the end; false if libnfs gives the mount up before."""
        with mount, contextlib.suppress(libnfs.GaveUp):
            if not self.acknowledged_count:
                self.once(lambda: mount.mkdir(self.folder))
            while not self.ended.is_set():
                self.fill_file(mount, f"{self.folder}/file{self.files_count}")
                self.files_count += 1
        return self.ended.is_set()

    def mounted(self):
        with contextlib.suppress(OSError):
            return libnfs.Mount(self.url)

    def acknowledge(self):
        now = time.monotonic()
        if self.acknowledged_at is not None:
            self.pause_seconds = max(self.pause_seconds, now - self.acknowledged_at)
        self.acknowledged_at = now
        self.acknowledged_count += 1

    def once(self, change):
        try:
            change()
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.EEXIST):
                raise
            self.repeated_count += 1
        self.acknowledge()

    def fill_file(self, mount, path):
        # libnfs does not write again what a server forgot, so everything is written stable.
        with mount.open(path, os.O_CREAT | os.O_RDWR | os.O_SYNC) as file:
            for index in range(self.blocks.get(path, 0), BLOCKS_PER_FILE):
                if self.ended.is_set():
                    return
                file.write(index * BLOCK_LEN_BYTES, self.block(path, index))
                self.blocks[path] = index + 1
                self.acknowledge()
                if index % NAMES_EVERY_BLOCKS == 0:
                    self.change_names(mount, path, index)

    def change_names(self, mount, path, index):
        first, second = f"{path}-{index}", f"{path}-{index}.renamed"
        with mount.open(first, os.O_CREAT | os.O_RDWR | os.O_SYNC) as file:
            file.write(0, self.block(path, index)[:100])
        self.once(lambda: mount.rename(first, second))
        self.gone.add(first)
        self.there[second] = (path, index)
        if len(self.there) > NAMES_KEPT:
            oldest = next(iter(self.there))
            del self.there[oldest]
            self.once(lambda: mount.unlink(oldest))
            self.gone.add(oldest)

    def end(self, seconds_max):
        self.ended.set()
        self.join(seconds_max)
        if self.failure:
            raise AssertionError(f"the load did not go on by itself: {self.failure}")
        if self.is_alive():
            raise harness.Late(f"the load did not end within {seconds_max} s")

    def verify(self, mount):
        """Compares everything that was acknowledged; returns how many bytes that are."""
        verified_bytes = 0
        for path, count in self.blocks.items():
            data = mount.read_file(path)
            # One more may have been written and not acknowledged.
            blocks_count = len(data) / BLOCK_LEN_BYTES
            assert count <= blocks_count <= count + 1, f"{path} has {blocks_count} blocks instead of {count}"
            for index in range(count):
                got = data[index * BLOCK_LEN_BYTES : (index + 1) * BLOCK_LEN_BYTES]
                assert got == self.block(path, index), f"{path}: block {index} is not what was written"
            verified_bytes += count * BLOCK_LEN_BYTES
        names = {f"{self.folder}/{name}" for name in mount.names(self.folder)}
        assert not self.there.keys() - names, f"lost: {self.there.keys() - names}"
        assert not self.gone & names, f"back again: {self.gone & names}"
        for name, (path, index) in self.there.items():
            got = mount.read_file(name)
            assert got == self.block(path, index)[:100], f"{name} is not what was written"
            verified_bytes += len(got)
        return verified_bytes
