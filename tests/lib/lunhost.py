"""A host on a LUN that knows, when the server dies or the power is cut, what must be there, and what may be.

Each host has a part of the LUN for itself and one command under way. The LUN has no write cache: what was answered must
be there. Of a command that had no answer, each block may be as it was, or as it was to be. `verify` compares all of it and
takes what it found for what is there now.

A host logs in again when it loses its connection, and sends the command that had no answer once more, as initiators
do, until `ended` is set.
"""

import json
import os
import random
import threading
import time

from lib import iscsi
from lib.remembered import Wrong

BLOCK_LEN_BYTES = 512
RUN_BLOCKS = (1, 1, 3, 8, 8, 60, 128, 129, 500)
RUN_WEIGHTS = (4, 4, 4, 6, 6, 3, 2, 2, 1)
# Half of the commands are about so many blocks at the start, so that they overwrite one another.
HOT_BLOCKS = 600
SHRINKS = 0.3
READ_LEN_BYTES = 1 << 20
ANSWER_SECONDS_MAX = 150
RETRY_SECONDS = 0.2
# LOGICAL UNIT NOT READY: the volume is being opened. UNIT ATTENTION: something happened, which is told once.
RETRIED_KEYS = (2, 6)
MISCOMPARE_KEY = 0xE


class Host(threading.Thread):
    """A host of `port` on 127.0.0.1 that has `len_bytes` of LUN 0 from `first_byte` on. Its state outlives its thread."""

    def __init__(self, port, index, seed, target, initiator, first_byte, len_bytes):
        super().__init__(daemon=True)
        self.given = port, index, target, initiator, first_byte, len_bytes
        self.port, self.index, self.target, self.initiator, self.first_byte, self.len_bytes = self.given
        self.rng = random.Random(f"{seed} host {index}")
        self.folder_name = f"host{index}"
        self.content = bytearray(len_bytes)
        # The command that had no answer: where, and what is there after it.
        self.pending: tuple[int, bytes] | None = None
        # It makes so many changes and no more; None: whatever it likes, until its end.
        self.changes_left = None
        self.burst_weight = 1
        self.ended = threading.Event()
        self.failure = self.lost_connection = None
        self.acknowledged_count = self.stable_count = self.verified_bytes = self.logins_count = 0
        self.session: iscsi.Session | None = None

    def next_life(self):
        """A thread with what this one knows, for the time after a cut."""
        port, index, *others = self.given
        other = Host(port, index, 0, *others)
        for name in ("rng", "content", "pending", "acknowledged_count", "stable_count", "verified_bytes", "logins_count"):
            setattr(other, name, getattr(self, name))
        return other

    def run(self):
        try:
            if self.changes_left is not None:
                for _ in range(self.changes_left):
                    self.change()
                return
            while not self.ended.is_set():
                self.step()
        except OSError as error:
            # Whoever cuts the power knows that this comes.
            self.lost_connection = error
        except Exception as error:
            self.failure = error
        finally:
            self.leave()

    def leave(self):
        if self.session:
            self.session.stream.close()
            self.session = None

    # Commands.

    def ask(self, command):
        """Runs a command on a session until it is answered, or nobody wants that any more."""
        deadline = time.monotonic() + ANSWER_SECONDS_MAX
        while True:
            try:
                if self.session is None:
                    # What answers late is not waited for longer than what is.
                    address = ("127.0.0.1", self.port)
                    self.session = iscsi.Session(
                        address, self.initiator, self.target, block_len_bytes=BLOCK_LEN_BYTES,
                        timeout_seconds=ANSWER_SECONDS_MAX,
                    )
                    self.logins_count += 1
                answer = command(self.session)
                self.acknowledged_count += 1
                return answer
            except iscsi.CommandFailed as failed:
                if failed.key not in RETRIED_KEYS or time.monotonic() > deadline:
                    raise Wrong(f"{self.folder_name}: a command failed: {failed}") from failed
            except (OSError, iscsi.LoginRefused) as error:
                self.leave()
                if self.ended.is_set() or time.monotonic() > deadline:
                    raise OSError(f"{self.folder_name}: {error!r}") from error
            if self.ended.wait(RETRY_SECONDS):
                raise OSError(f"{self.folder_name}: no answer until the end")

    def step(self):
        if self.rng.random() < 0.15:
            at, len_bytes = self.place()
            self.check(at, self.ask(lambda session: session.read(self.first_byte + at, len_bytes)))
        else:
            self.change()

    def place(self):
        """Some blocks of its part: where, and how many bytes."""
        (blocks,) = self.rng.choices(RUN_BLOCKS, RUN_WEIGHTS)
        end = self.len_bytes // BLOCK_LEN_BYTES - blocks
        block = self.rng.randrange(min(end, HOT_BLOCKS) if self.rng.random() < 0.5 else end)
        return block * BLOCK_LEN_BYTES, blocks * BLOCK_LEN_BYTES

    def change(self):
        at, len_bytes = self.place()
        kind = self.rng.choices(("write", "unmap", "same", "compare"), (12, 2, 1, 2))[0]
        if kind == "compare":
            # All of it or nothing, and only on what is there.
            len_bytes = min(len_bytes, 60 * BLOCK_LEN_BYTES)
        data = self.rng.randbytes(len_bytes)
        if kind == "unmap":
            data = bytes(len_bytes)
        elif kind == "same":
            data = self.rng.randbytes(BLOCK_LEN_BYTES) * (len_bytes // BLOCK_LEN_BYTES)
        elif self.rng.random() < SHRINKS:
            data = (data[:64] * (len_bytes // 64 + 1))[:len_bytes]
        before = bytes(self.content[at : at + len_bytes])

        def command(session):
            if kind == "write":
                session.write(self.first_byte + at, data)
            elif kind == "unmap":
                session.unmap(self.first_byte + at, len_bytes)
            elif kind == "same":
                session.write_same(self.first_byte + at, data[:BLOCK_LEN_BYTES], len_bytes // BLOCK_LEN_BYTES)
            else:
                session.compare_and_write(self.first_byte + at, before, data)

        self.pending = at, data
        try:
            self.ask(command)
        except Wrong as wrong:
            # A command that was sent twice may have been done the first time.
            done = "sense key e" in str(wrong) and self.ask(lambda session: session.read(self.first_byte + at, len_bytes)) == data
            if not done:
                raise
        self.content[at : at + len_bytes] = data
        self.pending = None
        self.stable_count += 1

    # What must be there.

    def check(self, at, found):
        wanted = bytes(self.content[at : at + len(found)])
        if found != wanted:
            where = next(index for index in range(len(found)) if found[index] != wanted[index])
            raise Wrong(
                f"{self.folder_name}: from {self.first_byte + at + where} on there is {found[where : where + 16].hex()}"
                f" instead of {wanted[where : where + 16].hex()}"
            )

    def verify(self):
        """Compares everything; for the time when its thread is not there."""
        if self.is_alive():
            raise RuntimeError("it still runs")
        self.ended.clear()
        try:
            for at in range(0, self.len_bytes, READ_LEN_BYTES):
                len_bytes = min(READ_LEN_BYTES, self.len_bytes - at)
                found = self.ask(lambda session, at=at, count=len_bytes: session.read(self.first_byte + at, count))
                self.settle(at, found)
                self.check(at, found)
                self.verified_bytes += len(found)
            self.pending = None
        finally:
            self.leave()

    def settle(self, at, found):
        """Of the command that had no answer each block may have been done."""
        if self.pending is None:
            return
        pending_at, data = self.pending
        for offset in range(max(at, pending_at), min(at + len(found), pending_at + len(data)), BLOCK_LEN_BYTES):
            block = found[offset - at : offset - at + BLOCK_LEN_BYTES]
            if block == data[offset - pending_at : offset - pending_at + BLOCK_LEN_BYTES]:
                self.content[offset : offset + BLOCK_LEN_BYTES] = block


def map_lun(server, name, size_bytes):
    """Makes a LUN of the volume `main` for a host; returns the target's name and the host's."""
    initiator = f"iqn.2025-11.test:{os.getpid()}"
    server.cairn("lun", "create", f"main/{name}", "--size", str(size_bytes))
    server.cairn("igroup", "create", "main/hosts", "--initiator", initiator)
    server.cairn("lun", "map", f"main/{name}", "--igroup", "hosts")
    shown = server.cairn("lun", "show", f"main/{name}", "--json").stdout
    return json.loads(shown)["target"], initiator
