"""What the end-to-end tests share: content that tells where it belongs, trees to copy, damage to disks."""

import contextlib
import hashlib
import json
import os
import pathlib
import random
import unittest

from lib import harness

BLOCK_LEN_BYTES = 4096
# Of a disk that answers again.
TAKEN_SECONDS_MAX = 120
SCRUB_SECONDS_MAX = 180
SETTLED_SECONDS_MAX = 60


def content(seed, len_bytes):
    """Bytes that no compression shrinks and that only this seed gives."""
    return random.Random(seed).randbytes(len_bytes)


def make_tree(root, seed=1):
    """A small tree with all that a copy must keep: depth, links, holes, modes, odd names, empty files."""
    rng = random.Random(seed)
    root = pathlib.Path(root)
    for folder_index in range(8):
        folder = root / f"folder {folder_index}" / "deep" / "deeper"
        folder.mkdir(parents=True)
        for file_index in range(12):
            len_bytes = rng.choice([0, 1, 511, 4096, 4097, 70_000, 300_000])
            (folder / f"file-{file_index}").write_bytes(rng.randbytes(len_bytes))
    (root / "big").write_bytes(rng.randbytes(9 * 1024 * 1024 + 17))
    (root / "text").write_text("a line that compresses well\n" * 20_000)
    (root / "odd \n name ü").write_text("odd")
    (root / "run.sh").write_text("#!/bin/sh\n")
    (root / "run.sh").chmod(0o750)
    (root / "link").symlink_to("folder 0/deep")
    (root / "dangling").symlink_to("nowhere")
    with open(root / "sparse", "wb") as sparse:
        sparse.seek(5 * 1024 * 1024)
        sparse.write(b"end")
    return root


def digest_tree(root):
    """Path, kind, mode and content of everything below a folder."""
    found: dict[str, tuple] = {}
    for folder, directories, files in os.walk(root):
        for name in directories + files:
            path = os.path.join(folder, name)
            key = os.path.relpath(path, root)
            if os.path.islink(path):
                found[key] = ("link", os.readlink(path))
            elif os.path.isdir(path):
                found[key] = ("directory", os.stat(path).st_mode)
            else:
                with open(path, "rb") as file:
                    digest = hashlib.file_digest(file, "sha256") if hasattr(hashlib, "file_digest") else None
                    digest = digest.hexdigest() if digest else hashlib.sha256(file.read()).hexdigest()
                found[key] = ("file", os.stat(path).st_mode, os.stat(path).st_size, digest)
    return found


def flip_bits(disk, wanted, count_max):
    """Flips one bit in up to `count_max` places where a disk holds one of the `wanted` blocks.

    Looks for the content itself, so that it needs to know nothing of the format. Returns how many.
    """
    wanted = set(wanted)
    flipped_count = 0
    for path in sorted(path for path in pathlib.Path(disk).rglob("*") if path.is_file()):
        if path.stat().st_size < BLOCK_LEN_BYTES:
            continue
        with open(path, "r+b") as file:
            offset = 0
            while chunk := file.read(256 * BLOCK_LEN_BYTES):
                for at in range(0, len(chunk), BLOCK_LEN_BYTES):
                    if flipped_count < count_max and chunk[at : at + BLOCK_LEN_BYTES] in wanted:
                        flipped = bytearray(chunk[at : at + BLOCK_LEN_BYTES])
                        flipped[BLOCK_LEN_BYTES // 2] ^= 0x10
                        file.seek(offset + at)
                        file.write(flipped)
                        flipped_count += 1
                offset += len(chunk)
                file.seek(offset)
    return flipped_count


def blocks(data):
    """The whole blocks of some content."""
    whole = len(data) // BLOCK_LEN_BYTES * BLOCK_LEN_BYTES
    return [data[at : at + BLOCK_LEN_BYTES] for at in range(0, whole, BLOCK_LEN_BYTES)]


class WorldTest(unittest.TestCase):
    """A test with a scratch folder and servers that are gone when it ends."""

    def setUp(self):
        self.scratch = self.enterContextHere(harness.scratch("e2e-"))

    def enterContextHere(self, manager):
        # unittest has enterContext only from Python 3.11 on; Ubuntu 22.04 has 3.10.
        entered = manager.__enter__()
        self.addCleanup(manager.__exit__, None, None, None)
        return entered

    def server(self, disks, flags=(), name="pool"):
        root = self.scratch / name
        root.mkdir()
        return self.enterContextHere(harness.Server(root, disks, flags))

    def settle(self, server):
        """Waits until a server is well, if it comes to that soon: before more disks are lost, those that were silent get what they missed."""
        with contextlib.suppress(harness.Late):
            server.await_well(SETTLED_SECONDS_MAX)

    def join(self, threads, seconds, what):
        """Waits for the end of threads."""
        for thread in threads:
            thread.join(seconds)
            if thread.is_alive():
                raise harness.Late(f"{what} did not end within {seconds} s")

    @contextlib.contextmanager
    def measured(self):
        """What is measured in here may be off because of what runs beside it: that is late, and no wrong answer."""
        try:
            yield
        except self.failureException as error:
            raise harness.Late(str(error)) from error


class DisksTest(WorldTest):
    """A test in which disks go and come back."""

    def disks(self, server):
        """The disks by the names of their folders, and the rebuild."""
        listed = json.loads(server.cairn("disk", "list", "--json").stdout)
        return {disk["label"].rpartition("/")[2]: disk for disk in listed["disks"]}, listed["rebuild"]

    def wait_for(self, server, name, state, seconds):
        look = lambda: self.disks(server)[0][name]["state"] == state
        harness.wait_until(look, seconds, f"{name} being {state}")

    def take_back(self, server, disk):
        """By the command, unless the disk comes back by itself before that is tried again."""

        def is_used():
            retried = server.cairn("disk", "retry", disk, check=False)
            return retried.returncode == 0 or self.disks(server)[0][disk.name]["state"] != "failed"

        harness.wait_until(is_used, TAKEN_SECONDS_MAX, "that the disk is taken back")

    def no_wrong_bytes(self, server):
        """A scrub finds no damage, and no disk is blamed for any."""
        server.cairn("scrub", "start", "--rate", "0")
        status = lambda: json.loads(server.cairn("scrub", "status", "--json").stdout)
        harness.wait_until(lambda: status()["stage"] == "done", SCRUB_SECONDS_MAX, "the end of a scrub")
        self.assertEqual(status()["wrong_bytes"], 0)
        disks, _ = self.disks(server)
        self.assertEqual({disk["checksum_errors"] for disk in disks.values()}, {0})
