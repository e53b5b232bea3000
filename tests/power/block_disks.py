"""Block devices for a virtual machine that do what drives do: forget at a power cut, fail, hang, are slow, come back.

Owns: the bytes of each device, in a file; which of them were not flushed yet; what is to go wrong. Speaks NBD, of which
qemu makes a drive. Must not know: file systems, what is tested with it.

A write is in the file at once, so that reads find it, and what it replaced is kept until the next flush. A power cut
puts all of that back, and then writes a part of what was not flushed again: nothing, everything, or some of the writes,
some of them in part. So nothing depends on what the machine that runs this keeps in its own page cache.

Run as a program, with a file, a socket and a length, it is one device, which does what lines of JSON tell it: `Disk`.
A process each, so that what else a test computes makes no drive seem to hang.
"""

import collections
import contextlib
import json
import os
import random
import socket
import struct
import subprocess
import sys
import threading
import time
from typing import Any

SECTOR_LEN_BYTES = 512
# What a drive keeps back at most; older writes are done for good.
CACHE_LEN_BYTES_MAX = 64 << 20
REQUEST_LEN_BYTES_MAX = 32 << 20

# https://github.com/NetworkBlockDevice/nbd/blob/master/doc/proto.md
MAGIC_SERVER, MAGIC_OPTION, MAGIC_OPTION_REPLY = 0x4E42444D41474943, 0x49484156454F5054, 0x3E889045565A9
MAGIC_REQUEST, MAGIC_REPLY = 0x25609513, 0x67446698
HANDSHAKE_FLAGS = 0b11
OPTION_ABORT, OPTION_INFO, OPTION_GO = 2, 6, 7
REPLY_ACK, REPLY_INFO, REPLY_UNSUPPORTED = 1, 3, (1 << 31) + 1
INFO_EXPORT = 0
FLAG_HAS_FLAGS, FLAG_FLUSH, FLAG_FUA = 1 << 0, 1 << 2, 1 << 3
READ, WRITE, DISCONNECT, FLUSH = 0, 1, 2, 3
EVERYTHING = READ, WRITE, FLUSH
COMMAND_FUA = 1 << 0
EIO, EINVAL = 5, 22

# How much of what was not flushed a power cut leaves.
LEAVES = ("nothing", "everything", "some", "some")


class Disk:
    """One device of `len_bytes` in the file `path`, on the socket `socket_path`, in a process of its own."""

    def __init__(self, path, socket_path, len_bytes):
        # What qemu is given.
        self.url = f"nbd:unix:{socket_path}"
        argv = [sys.executable, __file__, str(path), str(socket_path), str(len_bytes)]
        self.process: Any = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.lock = threading.Lock()
        # It answers when its socket is there.
        self.written_count()

    def ask(self, call, *arguments):
        with self.lock:
            self.process.stdin.write(json.dumps([call, arguments]) + "\n")
            self.process.stdin.flush()
            answer = self.process.stdout.readline()
        if not answer:
            raise RuntimeError(f"{self.url} has ended")
        return json.loads(answer)

    def meets(self, fails=(), hangs=False, delay_seconds=0.0):
        """From now on operations of these kinds fail, none has an answer, each takes so much longer; or it works."""
        self.ask("meets", list(fails), hangs, delay_seconds)

    def written_count(self):
        """Writes so far."""
        return self.ask("written_count")

    def await_end(self, seconds_max):
        """Waits until nobody uses it any more: what comes after that is of the next machine."""
        if not self.ask("await_end", seconds_max):
            raise TimeoutError(f"{self.url} is still in use")

    def lose_power(self, rng, leaves=None):
        """What was not flushed is lost, or a part of it. Nobody uses it. Returns lost and kept writes.

        `leaves`: one of LEAVES, if it is not this drive's own choice.
        """
        return self.ask("lose_power", rng.getrandbits(64), leaves)

    def close(self):
        # It ends when nobody is there to tell it anything.
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


class Device:
    """What such a process does."""

    def __init__(self, path, socket_path, len_bytes):
        self.path, self.socket_path, self.len_bytes = path, socket_path, len_bytes
        with open(path, "ab") as file:
            file.truncate(len_bytes)
        self.file = os.open(path, os.O_RDWR)
        # Since the last flush: offset, what was there, what was written.
        self.unflushed: collections.deque = collections.deque()
        self.unflushed_bytes = 0
        self.changed = threading.Condition()
        # Kinds of operations that fail.
        self.fails = ()
        self.hangs = self.powered = False
        self.delay_seconds = 0.0
        self.counts: collections.Counter = collections.Counter()
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(socket_path))
        self.listener.listen()
        threading.Thread(target=self.accept, daemon=True).start()

    def meets(self, fails, hangs, delay_seconds):
        with self.changed:
            self.fails, self.hangs, self.delay_seconds = fails, hangs, delay_seconds
            self.changed.notify_all()

    def accept(self):
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            with self.changed:
                self.powered = True
            with contextlib.suppress(OSError, EOFError), connection:
                if self.negotiate(connection):
                    self.serve(connection)
            with self.changed:
                self.powered = False
                self.changed.notify_all()

    def await_end(self, seconds_max):
        with self.changed:
            return self.changed.wait_for(lambda: not self.powered, seconds_max)

    def written_count(self):
        return self.counts["writes"]

    def negotiate(self, connection):
        """The handshake; false if the other side only asked."""
        connection.sendall(struct.pack(">QQH", MAGIC_SERVER, MAGIC_OPTION, HANDSHAKE_FLAGS))
        exactly(connection, 4)
        while True:
            magic, option, len_bytes = struct.unpack(">QII", exactly(connection, 16))
            if magic != MAGIC_OPTION or len_bytes > SECTOR_LEN_BYTES:
                return False
            exactly(connection, len_bytes)

            def reply(kind, data=b""):
                head = struct.pack(">QIII", MAGIC_OPTION_REPLY, option, kind, len(data))
                connection.sendall(head + data)

            if option in (OPTION_GO, OPTION_INFO):
                flags = FLAG_HAS_FLAGS | FLAG_FLUSH | FLAG_FUA
                reply(REPLY_INFO, struct.pack(">HQH", INFO_EXPORT, self.len_bytes, flags))
                reply(REPLY_ACK)
                if option == OPTION_GO:
                    return True
            elif option == OPTION_ABORT:
                reply(REPLY_ACK)
                return False
            else:
                reply(REPLY_UNSUPPORTED)

    def serve(self, connection):
        while True:
            head = exactly(connection, 28)
            magic, flags, kind, cookie, offset, len_bytes = struct.unpack(">IHHQQI", head)
            if magic != MAGIC_REQUEST or kind == DISCONNECT or len_bytes > REQUEST_LEN_BYTES_MAX:
                return
            data = exactly(connection, len_bytes) if kind == WRITE else b""
            with self.changed:
                self.changed.wait_for(lambda: not self.hangs)
                fails, delay_seconds = kind in self.fails, self.delay_seconds
            if delay_seconds:
                # It is slow because it is told to be.
                time.sleep(delay_seconds)
            error, answer = (EIO, b"") if fails else self.perform(kind, flags, offset, len_bytes, data)
            connection.sendall(struct.pack(">IIQ", MAGIC_REPLY, error, cookie) + answer)

    def perform(self, kind, flags, offset, len_bytes, data):
        """Returns the error, and what was read."""
        if offset + len_bytes > self.len_bytes:
            return EINVAL, b""
        if kind == READ:
            self.counts["reads"] += 1
            return 0, os.pread(self.file, len_bytes, offset)
        if kind == WRITE:
            self.counts["writes"] += 1
            self.write(offset, data)
            if flags & COMMAND_FUA:
                # More than is asked for, as drives may. Linux asks for none here: it flushes.
                self.flush()
            return 0, b""
        if kind == FLUSH:
            self.flush()
            return 0, b""
        return EINVAL, b""

    def write(self, offset, data):
        self.unflushed.append((offset, os.pread(self.file, len(data), offset), data))
        self.unflushed_bytes += len(data)
        os.pwrite(self.file, data, offset)
        while self.unflushed_bytes > CACHE_LEN_BYTES_MAX:
            self.unflushed_bytes -= len(self.unflushed.popleft()[2])

    def flush(self):
        self.counts["flushes"] += 1
        self.unflushed.clear()
        self.unflushed_bytes = 0

    def lose_power(self, seed, leaves):
        rng = random.Random(seed)
        leaves = leaves or rng.choice(LEAVES)
        share = rng.random()
        for offset, before, _ in reversed(self.unflushed):
            os.pwrite(self.file, before, offset)
        lost_count = kept_count = 0
        for offset, _, data in self.unflushed:
            part = kept_part(rng, leaves, share, len(data))
            for at, end in part:
                os.pwrite(self.file, data[at:end], offset + at)
            whole = part == [(0, len(data))]
            kept_count += whole
            lost_count += not whole
        self.unflushed.clear()
        self.unflushed_bytes = 0
        return lost_count, kept_count


def kept_part(rng, leaves, share, len_bytes):
    """Which bytes of a write a power cut leaves, as ranges of whole sectors."""
    if leaves == "nothing":
        return []
    if leaves == "everything" or rng.random() < share:
        return [(0, len_bytes)]
    if rng.random() < 0.5:
        return []
    sectors = range(0, len_bytes, SECTOR_LEN_BYTES)
    if rng.random() < 0.5:
        # Torn: its beginning.
        return [(0, rng.choice(sectors))]
    return [(at, at + SECTOR_LEN_BYTES) for at in sectors if rng.random() < 0.5]


def exactly(connection, len_bytes):
    data = bytearray(len_bytes)
    view, at = memoryview(data), 0
    while at < len_bytes:
        count = connection.recv_into(view[at:])
        if not count:
            raise EOFError
        at += count
    return bytes(data)


def main():
    path, socket_path, len_bytes = sys.argv[1:]
    device = Device(path, socket_path, int(len_bytes))
    for line in sys.stdin:
        call, arguments = json.loads(line)
        print(json.dumps(getattr(device, call)(*arguments)), flush=True)


if __name__ == "__main__":
    main()
