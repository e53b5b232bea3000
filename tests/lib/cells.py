"""Bytes that say who wrote them, where and when, and what of them a reader may see.

Owns: cells of 512 bytes, each with the number of its object, its place there and the counter of the write that put it there; of each
cell which writes were sent and which were acknowledged. Must not know: protocols, servers, what happens to them.

A cell may show the newest write that was acknowledged before the read began, or a later one that was sent before the read ended.
Once a reader has seen a write, no later read shows an earlier one. All else is wrong: older bytes, bytes of another object or
place, bytes that nobody wrote.
"""

import random
import struct
import threading
import zlib
from array import array

CELL_LEN_BYTES = 512
_HEAD = struct.Struct(">4sIIQQ")
_HEAD_LEN_BYTES = _HEAD.size + 4
_MAGIC = b"CELL"
_FILL_LEN_BYTES = CELL_LEN_BYTES - _HEAD_LEN_BYTES
# What fills cells: does not shrink, and is of this place and moment only.
_TABLE = random.Random(20261129).randbytes(1 << 16)
_STARTS_COUNT = len(_TABLE) - _FILL_LEN_BYTES
_NOTHING = bytes(CELL_LEN_BYTES)


class Wrong(Exception):
    """What a client saw and must not see; the text says where, what it should be, and what it was."""


def cell(run, number, index, counter):
    """The bytes of one cell; counter 0 is what nobody wrote yet."""
    if counter == 0:
        return _NOTHING
    head = _HEAD.pack(_MAGIC, run, number, index, counter)
    start = (number * 7919 + index * 131 + counter * 31) % _STARTS_COUNT
    return head + struct.pack(">I", zlib.crc32(head)) + _TABLE[start : start + _FILL_LEN_BYTES]


def told(data):
    """Run, object, place and counter of a cell as it says itself; none if it is not one."""
    if len(data) != CELL_LEN_BYTES:
        return None
    head = data[: _HEAD.size]
    magic, run, number, index, counter = _HEAD.unpack(head)
    whole = magic == _MAGIC and data == cell(run, number, index, counter)
    return (run, number, index, counter) if whole else None


class Objects:
    """All objects of a run: numbers are not used again, so that foreign bytes are known as whose they are."""

    def __init__(self, run):
        self.run = run
        self.lock = threading.Lock()
        self.names: list[str] = []
        self.checked_bytes = 0

    def add(self, name):
        with self.lock:
            self.names.append(name)
            return len(self.names)

    def name(self, number):
        return self.names[number - 1] if 0 < number <= len(self.names) else f"object {number}, which is none"

    def data(self, number, first, count, counter):
        return b"".join(cell(self.run, number, index, counter) for index in range(first, first + count))

    def count(self, len_bytes):
        with self.lock:
            self.checked_bytes += len_bytes

    def described(self, data):
        """What wrong bytes are."""
        if data == _NOTHING:
            return "zeros"
        found = told(data)
        if found is None:
            return f"{len(data)} bytes that nobody wrote ({data[:16].hex()}...)"
        run, number, index, counter = found
        if run != self.run:
            return f"bytes of another run ({run})"
        return f"write {counter} of cell {index} of {self.name(number)}"


class Ledger:
    """The cells of one object that is written in place: a file, or a part of a LUN. One writer, any number of readers."""

    def __init__(self, objects, name, cells_count):
        self.objects, self.name, self.cells_count = objects, name, cells_count
        self.number = objects.add(name)
        self.lock = threading.Lock()
        self.counter = 0
        # Of each cell: the write that every later read shows at least, and the newest that was sent.
        self.least, self.sent = array("Q", bytes(8 * cells_count)), array("Q", bytes(8 * cells_count))
        # Writes that a server may still forget: what a reader saw of them is no promise. Counts each such time.
        self.is_unstable, self.unstable_times = False, 0

    def begin(self, first, count):
        """The counter and the bytes of a write that is about to be sent."""
        with self.lock:
            self.counter += 1
            self.sent[first : first + count] = array("Q", [self.counter]) * count
        return self.counter, self.objects.data(self.number, first, count, self.counter)

    def begin_unstable(self):
        with self.lock:
            self.is_unstable = True
            self.unstable_times += 1

    def end_unstable(self):
        with self.lock:
            self.is_unstable = False

    def acknowledge(self, first, count, counter):
        with self.lock:
            for index in range(first, first + count):
                self.least[index] = max(self.least[index], counter)

    def before(self, first, count):
        """To be asked before a read: what it has to show at least."""
        with self.lock:
            return self.least[first : first + count], self.unstable_times, self.is_unstable

    def check(self, first, data, before, where):
        """Compares what was read; a file that ends early has zeros there."""
        least, unstable_times, was_unstable = before
        count = len(least)
        with self.lock:
            sent = self.sent[first : first + count]
            promised = not was_unstable and not self.is_unstable and unstable_times == self.unstable_times
        data = data.ljust(count * CELL_LEN_BYTES, b"\0")
        seen = array("Q", bytes(8 * count))
        for offset in range(count):
            found = data[offset * CELL_LEN_BYTES : (offset + 1) * CELL_LEN_BYTES]
            seen[offset] = self._counter(first + offset, found, least[offset], sent[offset], where)
        self.objects.count(len(data))
        if promised:
            with self.lock:
                for offset in range(count):
                    self.least[first + offset] = max(self.least[first + offset], seen[offset])

    def _counter(self, index, found, least, sent, where):
        counter = 0 if found == _NOTHING else self._own_counter(index, found)
        if counter is not None and least <= counter <= sent:
            return counter
        raise Wrong(
            f"{where}: cell {index} of {self.name} shows {self.objects.described(found)}; acknowledged or seen before is write "
            f"{least}, sent is write {sent}"
        )

    def _own_counter(self, index, found):
        said = told(found)
        return said[3] if said and said[:3] == (self.objects.run, self.number, index) else None


class Whole:
    """An object that is replaced as a whole, or removed: what is there is one of its states, never parts of two."""

    def __init__(self, objects, name):
        self.objects, self.name = objects, name
        self.number = objects.add(name)
        self.lock = threading.Lock()
        # How many cells each state has, none where nothing is there; the first is that nobody made it yet.
        self.states: list[int | None] = [None]
        self.least = 0

    def begin(self, cells_count):
        """The counter and the bytes of a state that is about to be sent; no bytes where the object is removed."""
        with self.lock:
            self.states.append(cells_count)
            counter = len(self.states) - 1
        return counter, b"" if cells_count is None else self.objects.data(self.number, 0, cells_count, counter)

    def acknowledge(self, counter):
        with self.lock:
            self.least = max(self.least, counter)

    def before(self):
        with self.lock:
            return self.least

    def is_there(self):
        with self.lock:
            return self.states[self.least] is not None

    def check(self, data, least, where):
        """Compares what was read; `data` is none where nothing is."""
        with self.lock:
            states = list(self.states)
        counter = self._state(data, states, least)
        if counter is None:
            found = "nothing" if data is None else f"{len(data)} bytes, the first are {self.objects.described(data[:CELL_LEN_BYTES])}"
            raise Wrong(
                f"{where}: {self.name} is {found}; acknowledged or seen before is state {least} ({_size(states[least])}), sent is state "
                f"{len(states) - 1} ({_size(states[-1])})"
            )
        self.objects.count(len(data or b""))
        self.acknowledge(counter)

    def _state(self, data, states, least):
        """Which state this is, of those that it may be: the earliest where several look alike."""
        for counter in range(least, len(states)):
            cells_count = states[counter]
            if cells_count is None or data is None:
                if cells_count is None and data is None:
                    return counter
            elif len(data) == cells_count * CELL_LEN_BYTES and data == self.objects.data(self.number, 0, cells_count, counter):
                return counter
        return None


def _size(cells_count):
    return "nothing" if cells_count is None else f"{cells_count * CELL_LEN_BYTES} bytes"
