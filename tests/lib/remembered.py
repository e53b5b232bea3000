"""Load of NFS calls made by hand that knows, when the power is cut, what must be there, and what may be.

Each client has a connection, a folder of its own and one call under way. What was answered as stable must be there:
writes, commits and every change of names and sizes. What was not committed, and the call that had no answer, may be
there or not. After a cut `verify` compares all of it, takes what it found for what is there now, and the load goes on
with it.
"""

import dataclasses
import random
import threading
import time

from lib import rawnfs

FILES_COUNT_MAX = 10
FOLDERS_COUNT_MAX = 4
FILE_LEN_BYTES_MAX = 3 << 20
IO_LEN_BYTES_MAX = 256 << 10
# What is written at once, and where: no multiple of anything as often as not, so that writes share pages and records.
WRITE_LENS_BYTES = (1, 100, 4096, 5000, 8192, 20_000, 65_536, 65_537, 150_000, 300_000, 1 << 20)
WRITE_WEIGHTS = (1, 2, 6, 4, 3, 3, 2, 2, 2, 1, 1)
# Small stable writes, many at once: they go into the metadata's log, which gets long by them.
BURST_PIECE_LEN_BYTES = 48_000
BURST_PIECES_COUNT_MAX = 60
BURST_WINDOW_COUNT = 12
# A volume that is opened again is not there for a moment.
RETRY_SECONDS = 0.2
# Nobody sets it.
PAUSE = threading.Event()
ANSWER_SECONDS_MAX = 150


class Wrong(Exception):
    """Something acknowledged is not there, or something is there that nobody wrote."""


class Refused(Exception):
    """The server answered a call with an error."""


@dataclasses.dataclass(eq=False)
class File:
    """What a file holds: `content` for certain, and writes that may be there or not, the last one last."""

    handle: bytes
    content: bytes = b""
    # Offset, bytes, verifier.
    unstable: list = dataclasses.field(default_factory=list)
    # What it may be instead, because a change of its length had no answer.
    cut_len_bytes: int | None = None

    def seen(self):
        """What reads give while no call is under way and the server has not forgotten anything."""
        seen = self.content
        for offset, data, _ in self.unstable:
            seen = overwritten(seen, offset, data)
        return seen

    def settle(self, count):
        """The first so many of the unstable writes are stable."""
        for offset, data, _ in self.unstable[:count]:
            self.content = overwritten(self.content, offset, data)
        del self.unstable[:count]

    def write_stable(self, offset, data):
        """It covers what was written there before, and nothing else of that becomes stable by it."""
        end = offset + len(data)
        self.content = overwritten(self.content, offset, data)
        earlier, self.unstable = self.unstable, []
        for piece in earlier:
            at, other, verifier = piece
            if at + len(other) <= offset or end <= at:
                self.unstable.append(piece)
                continue
            if at < offset:
                self.unstable.append((at, other[: offset - at], verifier))
            if at + len(other) > end:
                first = max(at, end)
                self.unstable.append((first, other[first - at :], verifier))

    def cut(self, len_bytes):
        """Makes it shorter or longer, for good."""
        self.content = self.content[:len_bytes].ljust(len_bytes, b"\0")
        earlier, self.unstable = self.unstable, []
        for at, other, verifier in earlier:
            if at < len_bytes:
                self.unstable.append((at, other[: len_bytes - at], verifier))

    def difference(self, found):
        """None if the file may hold these bytes after a crash, else what is wrong."""
        problem = self.difference_uncut(found)
        if problem and self.cut_len_bytes is not None:
            other = File(self.handle, self.content, list(self.unstable))
            other.cut(self.cut_len_bytes)
            return other.difference_uncut(found)
        return problem

    def difference_uncut(self, found):
        lens_bytes = {len(self.content)} | {offset + len(data) for offset, data, _ in self.unstable}
        if len(found) < len(self.content) or len(found) not in lens_bytes:
            return f"it has {len(found)} bytes instead of {sorted(lens_bytes)}"
        edges = {0, len(self.content), len(found)}
        for offset, data, _ in self.unstable:
            edges |= {offset, offset + len(data)}
        within = sorted(edge for edge in edges if edge <= len(found))
        for first, end in zip(within, within[1:]):
            # Past the end there were no bytes: what later ones leave open is zeros.
            may_be = [self.content[first:end] or bytes(end - first)]
            for offset, data, _ in self.unstable:
                if offset <= first and end <= offset + len(data):
                    may_be.append(data[first - offset : end - offset])
            if found[first:end] not in may_be:
                told = compare(found, may_be, first, end)
                return f"bytes {first} to {end} of {len(found)} are not what was written: {told}"
        return None


def compare(found, may_be, first, end):
    """The first byte that differs from what it must be at least, and what is there."""
    piece, wanted = found[first:end], may_be[-1]
    at = next(index for index in range(len(piece)) if piece[index] != wanted[index])
    return f"from {first + at} on there is {piece[at : at + 16].hex()} instead of {wanted[at : at + 16].hex()}"


def overwritten(content, offset, data):
    return content[:offset].ljust(offset, b"\0") + data + content[offset + len(data) :]


class Client(threading.Thread):
    """One client. Its state outlives its thread: see `next_life`."""

    def __init__(self, port, index, seed, volume="main"):
        super().__init__(daemon=True)
        self.port, self.index, self.volume = port, index, volume
        self.rng = random.Random(f"{seed} {volume} {index}")
        self.folder_name = f"client{index}"
        self.root = None
        # Path to File, or to the handle of a folder; "" is the folder of this client.
        self.files, self.folders = {}, {}
        # What both are if the change of names that had no answer was made.
        self.otherwise = None
        self.names_count = 0
        # How often it makes bursts, beside 30 other steps.
        self.burst_weight = 1
        # It makes so many changes that are stable when answered, and no more; None: whatever it likes, until its end.
        self.changes_left = None
        self.ended = threading.Event()
        self.failure = self.lost_connection = None
        self.acknowledged_count = self.stable_count = 0
        self.verified_bytes = 0

    def next_life(self):
        """A thread with what this one knows, for the time after a cut."""
        other = Client(self.port, self.index, 0, self.volume)
        kept = (
            "rng", "root", "files", "folders", "otherwise", "names_count", "acknowledged_count", "stable_count",
            "verified_bytes",
        )
        for name in kept:
            setattr(other, name, getattr(self, name))
        return other

    def run(self):
        try:
            with self.connected() as peer:
                self.begin(peer)
                while self.changes_left:
                    self.changes_left -= self.step(peer, self.stable_choices())
                if self.changes_left is not None:
                    return
                while not self.ended.is_set():
                    self.step(peer, self.choices())
                # Nobody cuts the power now: what is compared next is to be there for good.
                for path in sorted(self.files):
                    self.commit_file(peer, self.files[path])
        except (OSError, rawnfs.Denied) as error:
            # Whoever cuts the power knows that this comes.
            self.lost_connection = error
        except Exception as error:
            self.failure = error

    def connected(self):
        return rawnfs.Peer(self.port, answer_seconds_max=ANSWER_SECONDS_MAX)

    def ask(self, call, *arguments):
        """The results of a call without its status, which must be OK. The one place where all calls are made."""
        status, results = self.answered(call, *arguments)
        if status != rawnfs.OK:
            raise Refused(f"{call.__name__} was answered with {status}")
        self.acknowledged_count += 1
        return results

    def answered(self, call, *arguments):
        """Status and results of a call, which is made again as long as the server asks for that, within reason."""
        deadline = time.monotonic() + ANSWER_SECONDS_MAX
        while True:
            answer = call(*arguments)
            status, *results = answer if isinstance(answer, tuple) else (answer,)
            if status != rawnfs.JUKEBOX or time.monotonic() > deadline:
                return status, results
            PAUSE.wait(RETRY_SECONDS)

    def begin(self, peer):
        (root,) = self.ask(peer.mount, f"/{self.volume}")
        if self.root is None:
            self.root = root
        elif self.root != root:
            raise Wrong("the root has another handle")
        if not self.folders:
            if (made := self.found(peer, self.root, self.folder_name)) is None:
                (made,) = self.ask(peer.mkdir, self.root, self.folder_name)
            self.folders[""] = made

    def found(self, peer, folder, name):
        """The handle of a name, or None."""
        status, results = self.answered(peer.lookup, folder, name)
        if status == rawnfs.NOENT:
            return None
        if status != rawnfs.OK:
            raise Refused(f"lookup of {name} was answered with {status}")
        return results[0]

    # What it does.

    def step(self, peer, choices):
        """Does one of these actions; returns how many calls were answered."""
        if not self.files:
            choices = [(self.make_file, 1)]
        (action,) = self.rng.choices([action for action, _ in choices], [weight for _, weight in choices])
        calls_count = self.acknowledged_count
        action(peer)
        return min(self.acknowledged_count - calls_count, 1)

    def choices(self):
        return self.stable_choices() + [(self.write, 12), (self.read, 2), (self.burst, self.burst_weight)]

    def stable_choices(self):
        return [
            (self.make_file, 3 if len(self.files) < FILES_COUNT_MAX else 0), (self.write_stable, 8), (self.commit, 3),
            (self.cut, 2), (self.rename, 3), (self.link, 1),
            (self.remove, 2 if len(self.files) > FILES_COUNT_MAX // 2 else 0), (self.make_folder, 1),
            (self.remove_folder, 1),
        ]

    def any_file(self):
        return self.files[self.rng.choice(sorted(self.files))]

    def new_path(self):
        self.names_count += 1
        folder = self.rng.choice(sorted(self.folders))
        return f"{folder}/name{self.names_count}"

    def place(self, path):
        folder, _, name = path.rpartition("/")
        return self.folders[folder], name

    def change_names(self, files, folders, call, *arguments):
        """A call after which these are the names."""
        self.otherwise = files, folders
        results = self.ask(call, *arguments)
        self.files, self.folders, self.otherwise = files, folders, None
        return results

    def make_file(self, peer):
        path = self.new_path()
        file = File(b"")
        file.handle, _ = self.change_names(self.files | {path: file}, self.folders, peer.create, *self.place(path))
        # Some stay empty.
        if self.rng.random() < 0.9:
            self.write_to(peer, file, rawnfs.UNSTABLE if self.rng.random() < 0.5 else rawnfs.FILE_SYNC)

    def write(self, peer):
        file = self.any_file()
        for _ in range(self.rng.choice((1, 1, 2, 5))):
            self.write_to(peer, file, rawnfs.UNSTABLE)

    def write_stable(self, peer):
        self.write_to(peer, self.any_file(), rawnfs.FILE_SYNC)

    def write_to(self, peer, file, stable):
        (len_bytes,) = self.rng.choices(WRITE_LENS_BYTES, WRITE_WEIGHTS)
        end = len(file.seen())
        offset = self.rng.choice((0, end, self.rng.randrange(end + 1), self.rng.randrange(end + 1) // 4096 * 4096))
        offset = min(offset, FILE_LEN_BYTES_MAX - len_bytes)
        # Some of it can be compressed.
        data = self.rng.randbytes(len_bytes)
        if self.rng.random() < 0.3:
            data = (data[:64] * (len_bytes // 64 + 1))[:len_bytes]
        for at in range(0, len_bytes, IO_LEN_BYTES_MAX):
            piece = data[at : at + IO_LEN_BYTES_MAX]
            self.write_piece(peer, file, offset + at, piece, stable)

    def write_piece(self, peer, file, offset, data, stable):
        file.unstable.append((offset, data, None))
        count, is_stable, verifier = self.ask(peer.write_some, file.handle, data, offset, stable)
        if count != len(data):
            raise Wrong(f"{count} of {len(data)} bytes were taken")
        file.unstable.pop()
        if stable and not is_stable:
            raise Wrong("a write was to be stable, and is not")
        if is_stable:
            file.write_stable(offset, data)
            self.stable_count += 1
        else:
            file.unstable.append((offset, data, verifier))

    def burst(self, peer):
        """One stretch of a file in small stable pieces, none of which waits for the one before."""
        file = self.any_file()
        count = self.rng.randrange(1, BURST_PIECES_COUNT_MAX)
        left_bytes = FILE_LEN_BYTES_MAX - count * BURST_PIECE_LEN_BYTES
        first = min(self.rng.randrange(left_bytes), len(file.seen()))
        pieces = [
            (first + index * BURST_PIECE_LEN_BYTES, self.rng.randbytes(BURST_PIECE_LEN_BYTES)) for index in range(count)
        ]
        under_way = {index: (*piece, None) for index, piece in enumerate(pieces)}
        file.unstable.extend(under_way.values())
        again = []
        for index, (status, taken, is_stable, _) in peer.write_many(
            file.handle, pieces, rawnfs.FILE_SYNC, BURST_WINDOW_COUNT
        ):
            if status == rawnfs.JUKEBOX:
                again.append(index)
                continue
            if status != rawnfs.OK:
                raise Refused(f"a write was answered with {status}")
            self.acknowledged_count += 1
            self.settle_piece(file, under_way[index], taken, is_stable)
        for index in again:
            offset, data = pieces[index]
            count, is_stable, _ = self.ask(peer.write_some, file.handle, data, offset, rawnfs.FILE_SYNC)
            self.settle_piece(file, under_way[index], count, is_stable)

    def settle_piece(self, file, piece, count, is_stable):
        offset, data, _ = piece
        if count != len(data) or not is_stable:
            raise Wrong(f"{count} of {len(data)} bytes were taken, stable: {is_stable}")
        # Those beside it touch other bytes, so what was written before them is all that it covers.
        file.unstable = [other for other in file.unstable if other is not piece]
        file.write_stable(offset, data)
        self.stable_count += 1

    def commit(self, peer):
        self.commit_file(peer, self.any_file())

    def commit_file(self, peer, file):
        count = len(file.unstable)
        (verifier,) = self.ask(peer.commit, file.handle)
        if all(verifier == other for *_, other in file.unstable):
            file.settle(count)
            self.stable_count += 1
            return
        # By that the server says that it lost its memory. What it forgot is written once more, as it is by now.
        seen = file.seen()
        for offset, data, _ in list(file.unstable):
            self.write_piece(peer, file, offset, seen[offset : offset + len(data)], rawnfs.FILE_SYNC)

    def read(self, peer):
        path = self.rng.choice(sorted(self.files))
        file = self.files[path]
        found = self.read_all(peer, file)
        if any(verifier for *_, verifier in file.unstable):
            # A server that lost its memory meanwhile says so only at the next commit.
            if problem := file.difference(found):
                raise Wrong(f"{self.folder_name}{path}: {problem}")
        elif found != file.seen():
            raise Wrong(f"{self.folder_name}{path}: {file.difference(found)}")

    def read_all(self, peer, file):
        pieces, offset, is_end = [], 0, False
        while not is_end:
            piece, is_end = self.ask(peer.read_some, file.handle, offset, IO_LEN_BYTES_MAX)
            pieces.append(piece)
            offset += len(piece)
        return b"".join(pieces)

    def cut(self, peer):
        file = self.any_file()
        end = len(file.seen())
        len_bytes = self.rng.choice((0, self.rng.randrange(end + 1), min(end + 5000, FILE_LEN_BYTES_MAX)))
        file.cut_len_bytes = len_bytes
        self.ask(peer.truncate, file.handle, len_bytes)
        file.cut_len_bytes = None
        file.cut(len_bytes)

    def rename(self, peer):
        path = self.rng.choice(sorted(self.files))
        # To a new name, or over a file that is there.
        to = self.new_path() if self.rng.random() < 0.6 else self.rng.choice(sorted(self.files))
        if self.files[to] is self.files[path] if to in self.files else False:
            # Names of one file: nothing is done.
            return
        files = {other: file for other, file in self.files.items() if other != path} | {to: self.files[path]}
        self.change_names(files, self.folders, peer.rename, *self.place(path), *self.place(to))

    def link(self, peer):
        path = self.new_path()
        file = self.any_file()
        self.change_names(self.files | {path: file}, self.folders, peer.link, file.handle, *self.place(path))

    def remove(self, peer):
        path = self.rng.choice(sorted(self.files))
        files = {other: file for other, file in self.files.items() if other != path}
        self.change_names(files, self.folders, peer.remove, *self.place(path))

    def make_folder(self, peer):
        if len(self.folders) >= FOLDERS_COUNT_MAX:
            return
        self.names_count += 1
        path = f"/folder{self.names_count}"
        after = self.folders | {path: b""}
        (after[path],) = self.change_names(self.files, after, peer.mkdir, self.folders[""], path[1:])

    def remove_folder(self, peer):
        empty = [path for path in self.folders if path and not any(name.startswith(f"{path}/") for name in self.files)]
        if empty:
            path = self.rng.choice(sorted(empty))
            folders = {other: handle for other, handle in self.folders.items() if other != path}
            self.change_names(self.files, folders, peer.rmdir, self.folders[""], path[1:])

    # What must be there.

    def verify(self):
        """Compares everything after a cut, or after the load has ended; what is found is what is there for good."""
        with self.connected() as peer:
            (root,) = self.ask(peer.mount, f"/{self.volume}")
            if self.root is None:
                return
            if root != self.root:
                raise Wrong("the root has another handle")
            if not self.folders:
                # Nothing was answered yet.
                return
            names = self.list_names(peer)
            if self.otherwise and names != names_of(self.files, self.folders):
                self.files, self.folders = self.otherwise
            self.otherwise = None
            wanted = names_of(self.files, self.folders)
            if names != wanted:
                raise Wrong(f"{self.folder_name}: lost: {sorted(wanted - names)}, there: {sorted(names - wanted)}")
            for path in sorted(self.folders):
                if path:
                    self.folders[path] = self.same_handle(peer, path, self.folders[path])
            for path in sorted(self.files):
                file = self.files[path]
                file.handle = self.same_handle(peer, path, file.handle)
                found = self.read_all(peer, file)
                if problem := file.difference(found):
                    raise Wrong(f"{self.folder_name}{path}: {problem}")
                file.content, file.unstable, file.cut_len_bytes = found, [], None
                self.verified_bytes += len(found)

    def list_names(self, peer):
        """The paths of everything there; folders end with a slash."""
        listed = set()
        others = self.otherwise[1] if self.otherwise else {}
        for folder in sorted(self.folders.keys() | others.keys()):
            handle = self.folders[""] if not folder else self.found(peer, self.folders[""], folder[1:])
            if handle is None:
                continue
            (names,) = self.ask(peer.names, handle)
            if len(names) != len(set(names)):
                raise Wrong(f"{self.folder_name}{folder} lists a name twice: {names}")
            listed |= {f"{folder}/{name}" for name in names}
        return listed

    def same_handle(self, peer, path, handle):
        found = self.found(peer, *self.place(path))
        # Of what was made by a call without an answer nobody has heard the handle.
        if found is None or (handle and found != handle):
            raise Wrong(f"{self.folder_name}{path} has the handle {found} instead of {handle}")
        return found


def names_of(files, folders):
    return {path for path in folders if path} | set(files)
