"""NFS, S3 and iSCSI clients that turn to another node when one does not answer, and know what they must see.

Owns: one client each with objects of its own, its patience, which node it talks to, how long it waited, what it was refused. Must not
know: how nodes are disturbed, how many of them may be.

A client has one request under way. It sends the request until that is answered: NFS under the number that it had, as kernels do,
the others as a new request. An old connection is left open or reset, as a host with several paths and a mount by name do. A client
whose connection is cut turns with a reset: TCP would send again, minutes later, what is left in an open one.
"""

import contextlib
import hashlib
import http.client
import random
import socket
import struct
import threading
import time
import urllib.parse
import xml.etree.ElementTree as ElementTree
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from lib import iscsi, rawnfs, s3
from lib.cells import CELL_LEN_BYTES, Ledger, Objects, Whole, Wrong

# Until a client turns to another node. After two seconds no node executes what it has read; before that a client which leaves its
# connection open has to keep the number of its call, as only NFS has one.
PATIENCE_SECONDS = (1.2, 2.5, 2.5, 3.5)
SAFE_TO_LEAVE_SECONDS = 2.5
CONNECT_SECONDS_MAX = 1.0
# A node that says nothing but "not now" for so long is left, as by an operator who looks.
NOT_NOW_SECONDS_MAX = 5
PACE_SECONDS_MAX = 0.3
# What a client waits for longer is a pause that it notes.
PAUSE_SECONDS_MIN = 0.5
LEFT_OPEN_COUNT_MAX = 6
# Of what a client sent and heard, to be read beside the logs of nodes when something was wrong.
HISTORY_COUNT_MAX = 3000
RESET_AT_CLOSE = struct.pack("ii", 1, 0)
RUNS_OF_CELLS = (1, 1, 3, 8, 8, 16, 64, 128, 200)


class Later(Exception):
    """The server says that it cannot now."""


class Refused(Exception):
    """The server says something that the rules do not allow."""


class Ended(Exception):
    """Nobody wants the answer any more."""


@dataclass
class Pause:
    """A request that took long: when, how often it was sent, what came meanwhile."""

    begun: float
    ended: float
    client: str
    protocol: str
    volume: str
    met: tuple[str, ...]

    @property
    def seconds(self):
        return self.ended - self.begun


@dataclass
class Place:
    """Where clients of a volume are: its nodes, what they share."""

    volume: str
    nodes: list[str]
    # Host and port of a protocol at a node.
    address: Callable[[str, str], tuple[str, int]]
    objects: Objects
    # Whether nodes are cut off from clients just now.
    clients_are_cut: Callable[[], bool]
    # What clients of this volume read of one another, by protocol.
    shared: dict[str, list] = field(default_factory=lambda: {"nfs": [], "s3": [], "iscsi": []})


class Roamer(threading.Thread):
    protocol = ""
    # After "not now", and after a node that refuses connections.
    RETRY_SECONDS = 0.2

    def __init__(self, place, index, seed, source):
        super().__init__(daemon=True)
        self.place, self.index, self.source = place, index, source
        self.client = f"{self.protocol}{index} of {place.volume}"
        self.rng = random.Random(f"{seed} {self.client}")
        self.patience_seconds = self.rng.choice(PATIENCE_SECONDS)
        self.leaves_open = self.rng.random() < 0.6
        self.at = self.rng.choice(place.nodes)
        # The first ends its work, the second also what it waits for.
        self.ended, self.given_up = threading.Event(), threading.Event()
        self.failure: Exception | None = None
        self.answers_count = self.turns_count = 0
        self.pauses: list[Pause] = []
        self.refusals: list[tuple[float, str]] = []
        self.not_now: Counter[str] = Counter()
        self.waits_since: float | None = None
        self.history: deque[str] = deque(maxlen=HISTORY_COUNT_MAX)
        # A request that was sent before without an answer, and now as a new one: nobody knows what the first did.
        self.is_anew = False
        self.connection: Any = None
        self.left_open: list[Any] = []

    # Its life.

    def run(self):
        try:
            self.prepare()
            while not self.ended.is_set():
                self.step()
                self.ended.wait(self.rng.uniform(0, PACE_SECONDS_MAX))
        except Ended:
            pass
        except Exception as failure:  # noqa: BLE001
            self.failure = failure
        finally:
            self.drop(leave=False)

    def prepare(self):
        """Makes its objects."""
        raise NotImplementedError

    def step(self):
        raise NotImplementedError

    def check_all(self):
        """Reads all of its objects."""
        raise NotImplementedError

    def verify(self, node):
        """Compares everything, by way of this node; for the time when its thread is not there."""
        self.drop(leave=False)
        self.at = node
        self.check_all()
        self.drop(leave=False)

    # Requests.

    def note(self, what):
        now = time.time()
        self.history.append(f"{time.strftime('%H:%M:%S', time.gmtime(now))}.{int(now % 1 * 1000):03} {self.at} {what}")

    def answered(self, attempt, what):
        """What `attempt` returns, once it returns; it is called again after whatever a client outlives."""
        begun = self.waits_since = time.monotonic()
        met: list[str] = []
        not_now_since = None
        self.is_anew = False
        was_sent = False
        while True:
            self.note(what)
            try:
                answer = attempt()
                break
            except Later as later:
                self.not_now[str(later)] += 1
                self.note(f"{what}: {later}")
                self.is_anew = self.is_anew or was_sent
                self.renew()
                met.append(f"{later} ({self.at})")
                not_now_since = not_now_since or time.monotonic()
                if time.monotonic() - not_now_since > NOT_NOW_SECONDS_MAX:
                    not_now_since = None
                    self.turn()
                self.given_up.wait(self.RETRY_SECONDS)
            except Refused as refused:
                self.refusals.append((time.monotonic(), f"{self.client}, {what} at {self.at}: {refused}"))
                met.append(f"{refused} ({self.at})")
                self.is_anew = self.is_anew or was_sent
                self.renew()
                self.turn()
                self.given_up.wait(self.RETRY_SECONDS)
            except (OSError, http.client.HTTPException) as error:
                was_sent = True
                self.note(f"{what}: {error!r}")
                met.append(f"{type(error).__name__} ({self.at})")
                self.turn()
                if not isinstance(error, TimeoutError):
                    self.given_up.wait(self.RETRY_SECONDS)
            if self.given_up.is_set():
                raise Ended
        now = time.monotonic()
        self.waits_since = None
        self.answers_count += 1
        self.note(f"{what}: done")
        if now - begun > PAUSE_SECONDS_MIN:
            self.pauses.append(Pause(begun, now, f"{self.client}, {what}", self.protocol, self.place.volume, tuple(met)))
        return answer

    def renew(self):
        """The request gets another number, where it has one."""

    def turn(self):
        """To another node, as whoever knows several does."""
        may_leave = self.protocol == "nfs" or self.patience_seconds >= SAFE_TO_LEAVE_SECONDS
        leave = self.leaves_open and may_leave and not self.place.clients_are_cut()
        self.note(f"turns, and {'leaves its connection open' if leave else 'resets its connection'}")
        self.drop(leave)
        self.at = self.rng.choice([node for node in self.place.nodes if node != self.at])
        self.turns_count += 1

    def drop(self, leave):
        if self.connection is None:
            return
        connection, self.connection = self.connection, None
        stream = self.stream(connection)
        if stream is None:
            return
        if leave:
            self.left_open.append(stream)
            if len(self.left_open) > LEFT_OPEN_COUNT_MAX:
                self.left_open.pop(0).close()
            return
        with contextlib.suppress(OSError):
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_AT_CLOSE)
        stream.close()

    def stream(self, connection):
        """The socket of a connection."""
        raise NotImplementedError

    def address(self):
        return self.place.address(self.at, self.protocol)

    def run_of_cells(self, cells_count):
        """Some cells of an object: the first, and how many."""
        count = min(self.rng.choice(RUNS_OF_CELLS), cells_count)
        return self.rng.randrange(cells_count - count + 1), count

    def where(self):
        return f"{self.client} at {self.at}"


class NfsRoamer(Roamer):
    """Files that are written in place, and names that come and go, in a folder of its own."""

    protocol = "nfs"
    FILES_CELLS: tuple[int, ...] = (64, 256, 256, 2048)
    NAMES_COUNT_MAX = 6
    # Reads of a whole file.
    READ_CELLS_MAX = 256

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.number = self.rng.getrandbits(30)
        self.folder_name = f"client{self.index}"
        self.root = self.folder = None
        self.files: list[tuple[Ledger, bytes]] = []
        # Names that must be there with their handles, and names that must not be.
        self.names: dict[str, bytes] = {}
        self.gone: set[str] = set()
        self.names_made = 0

    def stream(self, connection):
        return connection.socket

    def renew(self):
        self.number += 1

    def peer(self):
        if self.connection is None:
            host, port = self.address()
            # Who does not let a client in at once is not there; who does has its patience.
            self.connection = rawnfs.Peer(port, source=self.source, answer_seconds_max=CONNECT_SECONDS_MAX, host=host)
            self.connection.socket.settimeout(self.patience_seconds)
        # The call goes out under this number, also when it goes out again.
        self.connection.xid = self.number - 1
        return self.connection

    def ask(self, what, call, allowed=()):
        """Status and results of a call, once a server says that it is done or that it cannot be."""

        def attempt():
            answer = call(self.peer())
            status, *results = answer if isinstance(answer, tuple) else (answer,)
            if status == rawnfs.JUKEBOX:
                raise Later("NFS3ERR_JUKEBOX")
            if status != rawnfs.OK and status not in allowed:
                raise Refused(f"NFS status {status}")
            return status, *results

        def checked():
            try:
                return attempt()
            except rawnfs.Denied as denied:
                # A server that has nothing to say closes the connection.
                raise Refused(f"the call was {denied}") from denied

        self.number += 1
        return self.answered(checked, what)

    def prepare(self):
        _, self.root = self.ask("MOUNT", lambda peer: peer.mount(f"/{self.place.volume}"))
        status, self.folder = self.ask("MKDIR", lambda peer: peer.mkdir(self.root, self.folder_name), (17,))
        if status:
            _, self.folder = self.ask("LOOKUP", lambda peer: peer.lookup(self.root, self.folder_name))
        for index, cells_count in enumerate(self.FILES_CELLS):
            name = f"file{index}"
            _, handle, _ = self.ask("CREATE", lambda peer, name=name: peer.create(self.folder, name))
            ledger = Ledger(self.place.objects, f"/{self.place.volume}/{self.folder_name}/{name}", cells_count)
            self.files.append((ledger, handle))
            self.place.shared["nfs"].append((ledger, handle))
            self.names[name] = handle

    def step(self):
        kind = self.rng.choices(("write", "unstable", "read", "other", "names"), (40, 12, 24, 12, 12))[0]
        if kind == "write":
            self.write(*self.rng.choice(self.files))
        elif kind == "unstable":
            self.write_unstable(*self.rng.choice(self.files))
        elif kind == "read":
            self.read(*self.rng.choice(self.files))
        elif kind == "other":
            self.read(*self.rng.choice(self.place.shared["nfs"]))
        else:
            self.change_names()

    def write(self, ledger, handle):
        first, count = self.run_of_cells(ledger.cells_count)
        counter, data = ledger.begin(first, count)
        self.write_stable(handle, first, data)
        ledger.acknowledge(first, count, counter)

    def write_stable(self, handle, first, data):
        offset = first * CELL_LEN_BYTES
        while data:
            piece, at = data, offset
            _, taken, is_stable, _ = self.ask("WRITE", lambda peer: peer.write_some(handle, piece, at, rawnfs.FILE_SYNC))
            if not is_stable or not 0 < taken <= len(piece):
                raise Wrong(f"{self.where()}: a stable WRITE of {len(piece)} bytes took {taken}, stable: {is_stable}")
            data, offset = data[taken:], offset + taken

    def write_unstable(self, ledger, handle):
        """A few writes and a COMMIT; what a server forgot meanwhile is written once more."""
        ledger.begin_unstable()
        pieces, verifiers = [], set()
        for _ in range(self.rng.randrange(1, 4)):
            first, count = self.run_of_cells(ledger.cells_count)
            counter, data = ledger.begin(first, count)
            pieces.append((first, count, counter, data))
            done = 0
            while done < len(data):
                rest, at = data[done:], first * CELL_LEN_BYTES + done
                _, taken, _, verifier = self.ask("WRITE", lambda peer, rest=rest, at=at: peer.write_some(handle, rest, at, rawnfs.UNSTABLE))
                if not 0 < taken <= len(rest):
                    raise Wrong(f"{self.where()}: a WRITE of {len(rest)} bytes took {taken}")
                verifiers.add(verifier)
                done += taken
        _, verifier = self.ask("COMMIT", lambda peer: peer.commit(handle))
        if verifiers != {verifier}:
            for first, _, _, data in pieces:
                self.write_stable(handle, first, data)
        ledger.end_unstable()
        for first, count, counter, _ in pieces:
            ledger.acknowledge(first, count, counter)

    def read(self, ledger, handle, run=None):
        first, count = run or self.run_of_cells(ledger.cells_count)
        before = ledger.before(first, count)
        pieces, wanted, offset = [], count * CELL_LEN_BYTES, first * CELL_LEN_BYTES
        is_end = False
        while wanted and not is_end:
            at, left = offset, wanted
            _, piece, is_end = self.ask("READ", lambda peer: peer.read_some(handle, at, left))
            if not piece and not is_end:
                raise Wrong(f"{self.where()}: a READ of {left} bytes gave none, and says that there are more")
            pieces.append(piece)
            offset, wanted = offset + len(piece), wanted - len(piece)
        ledger.check(first, b"".join(pieces), before, self.where())

    def change_names(self):
        made = [name for name in self.names if not name.startswith("file")]
        kind = self.rng.choice(("make", "rename", "remove", "list", "look"))
        if kind == "list":
            self.check_names()
        elif kind == "look":
            self.look(self.rng.choice([*self.names, *sorted(self.gone)[-4:]]))
        elif not made or (kind == "make" and len(made) < self.NAMES_COUNT_MAX):
            name = self.new_name()
            _, handle, _ = self.ask("CREATE", lambda peer: peer.create(self.folder, name))
            self.names[name] = handle
        elif kind == "rename":
            name, to = self.rng.choice(made), self.new_name()
            # An answer that says "not now" may hide that the call before it was done: its number is not the same.
            status, *_ = self.ask("RENAME", lambda peer: peer.rename(self.folder, name, self.folder, to), (rawnfs.NOENT,))
            self.must_be_ok(status, f"RENAME {name}")
            self.names[to] = self.names.pop(name)
            self.gone.add(name)
        else:
            name = self.rng.choice(made)
            status, *_ = self.ask("REMOVE", lambda peer: peer.remove(self.folder, name), (rawnfs.NOENT,))
            self.must_be_ok(status, f"REMOVE {name}")
            del self.names[name]
            self.gone.add(name)

    def must_be_ok(self, status, what):
        if status != rawnfs.OK and not self.is_anew:
            self.refusals.append((time.monotonic(), f"{self.where()}: {what} of what is there was answered with NFS status {status}"))

    def new_name(self):
        self.names_made += 1
        return f"name{self.names_made}"

    def look(self, name):
        status, *found = self.ask("LOOKUP", lambda peer: peer.lookup(self.folder, name), (rawnfs.NOENT,))
        if name in self.names:
            if status or found[0] != self.names[name]:
                raise Wrong(f"{self.where()}: {name} in /{self.place.volume}/{self.folder_name} is lost: status {status}, {found}")
        elif status == rawnfs.OK:
            raise Wrong(f"{self.where()}: {name} in /{self.place.volume}/{self.folder_name} is back again")

    def check_names(self):
        _, found = self.ask("READDIR", lambda peer: peer.names(self.folder))
        if sorted(found) != sorted(self.names):
            lost, back = sorted(self.names.keys() - set(found)), sorted(set(found) - self.names.keys())
            raise Wrong(f"{self.where()}: /{self.place.volume}/{self.folder_name}: lost {lost}, should not be there {back}")

    def check_all(self):
        for ledger, handle in self.files:
            for first in range(0, ledger.cells_count, self.READ_CELLS_MAX):
                self.read(ledger, handle, (first, min(self.READ_CELLS_MAX, ledger.cells_count - first)))
        self.check_names()
        for name in self.names:
            self.look(name)


class S3Roamer(Roamer):
    """Objects that are put, put again, deleted and listed."""

    protocol = "s3"
    KEYS_COUNT = 10
    SIZES_CELLS = (1, 8, 60, 200, 600, 4000)
    SIZES_WEIGHTS = (5, 6, 6, 5, 3, 1)

    def __init__(self, place, index, seed, source, bucket, keys):
        super().__init__(place, index, seed, source)
        self.bucket, self.keys = bucket, keys
        self.mine: list[tuple[str, Whole]] = []

    def stream(self, connection):
        return connection.sock

    def request(self, method, path, body=b""):
        """Status, headers and body of the answer."""
        host, port = self.address()
        if self.connection is None:
            connection = http.client.HTTPConnection(host, port, timeout=CONNECT_SECONDS_MAX, source_address=(self.source, 0))
            connection.connect()
            connection.sock.settimeout(self.patience_seconds)
            self.connection = connection
        headers, _ = s3.Signer(port, self.keys, host).sign(method, path)
        self.connection.request(method, path, body or None, headers)
        answer = self.connection.getresponse()
        data = answer.read()
        if answer.will_close:
            self.connection.close()
            self.connection = None
        return answer.status, answer.headers, data

    def ask(self, method, path, body=b"", allowed=(200, 204)):
        def attempt():
            status, headers, data = self.request(method, path, body)
            if status == 503:
                code = data.partition(b"<Code>")[2].partition(b"</Code>")[0].decode(errors="replace")
                raise Later(f"503 {code}")
            if status not in allowed:
                raise Refused(f"status {status}: {data[:300]!r}")
            return status, headers, data

        return self.answered(attempt, f"{method} {path.partition('?')[0]}")

    def path(self, key):
        return f"/{self.bucket}/{key}"

    def prepare(self):
        for number in range(self.KEYS_COUNT):
            key = f"client{self.index}-{number}"
            self.mine.append((key, Whole(self.place.objects, f"object {key} of {self.place.volume}")))
        self.place.shared["s3"] += self.mine

    def step(self):
        kind = self.rng.choices(("put", "delete", "get", "other", "list"), (44, 8, 26, 16, 6))[0]
        key, whole = self.rng.choice(self.mine)
        if kind == "put":
            counter, data = whole.begin(self.rng.choices(self.SIZES_CELLS, self.SIZES_WEIGHTS)[0])
            self.note(f"{key} is put as state {counter}")
            self.ask("PUT", self.path(key), data)
            whole.acknowledge(counter)
        elif kind == "delete":
            counter, _ = whole.begin(None)
            self.ask("DELETE", self.path(key))
            whole.acknowledge(counter)
        elif kind == "list":
            self.check_list()
        else:
            self.get(*(self.rng.choice(self.place.shared["s3"]) if kind == "other" else (key, whole)))

    def get(self, key, whole):
        before = whole.before()
        status, headers, data = self.ask("GET", self.path(key), allowed=(200, 404))
        if status == 200 and headers["ETag"].strip('"') != hashlib.md5(data).hexdigest():
            raise Wrong(f"{self.where()}: {key} of {self.place.volume} has {len(data)} bytes and the ETag of others: {headers['ETag']}")
        whole.check(data if status == 200 else None, before, self.where())

    def check_list(self):
        # Only this client changes them.
        prefix = urllib.parse.quote(f"client{self.index}-", safe="")
        _, _, data = self.ask("GET", f"/{self.bucket}?list-type=2&prefix={prefix}")
        found = {element.text or "" for element in ElementTree.fromstring(data).iter() if element.tag.endswith("}Key")}
        wanted = {key for key, whole in self.mine if whole.is_there()}
        if found != wanted:
            raise Wrong(f"{self.where()}: the list lacks {sorted(wanted - found)} and has {sorted(found - wanted)} too much")

    def check_all(self):
        for key, whole in self.mine:
            self.get(key, whole)
        self.check_list()


class IscsiRoamer(Roamer):
    """A host that has a part of a LUN for itself, and looks at the parts of others."""

    protocol = "iscsi"
    PART_CELLS = 4096
    READ_CELLS_MAX = 512
    # NOT READY, UNIT ATTENTION and ABORTED COMMAND: initiators send the command again.
    REPEATED_KEYS = (2, 6, 0xB)
    # Of the login's status: the initiator did something wrong. All else is "not now".
    WRONG_CLASS = 2

    def __init__(self, place, index, seed, source, target, initiator):
        super().__init__(place, index, seed, source)
        self.target, self.initiator = target, initiator
        self.first = index * self.PART_CELLS
        self.ledger = Ledger(place.objects, f"part {index} of the LUN of {place.volume}", self.PART_CELLS)
        self.mine = self.first, self.ledger

    def stream(self, connection):
        return connection.stream

    def session(self):
        if self.connection is None:
            session = iscsi.Session(
                self.address(), self.initiator, self.target, timeout_seconds=self.patience_seconds, source=self.source
            )
            self.connection = session
            session.clear_attentions()
        return self.connection

    def ask(self, what, command):
        def attempt():
            try:
                return command(self.session())
            except iscsi.LoginRefused as refused:
                text = "a login was refused with {}/{}".format(*refused.args)
                raise (Refused if refused.args[0] == self.WRONG_CLASS else Later)(text) from refused
            except iscsi.Busy as busy:
                raise Later("BUSY") from busy
            except iscsi.CommandFailed as failed:
                raise (Later if failed.key in self.REPEATED_KEYS else Refused)(str(failed)) from failed

        return self.answered(attempt, what)

    def prepare(self):
        self.place.shared["iscsi"].append(self.mine)

    def step(self):
        kind = self.rng.choices(("write", "read", "other"), (55, 30, 15))[0]
        first, ledger = self.rng.choice(self.place.shared["iscsi"]) if kind == "other" else self.mine
        at, count = self.run_of_cells(self.PART_CELLS)
        if kind == "write":
            counter, data = ledger.begin(at, count)
            self.ask("WRITE", lambda session: session.write((first + at) * CELL_LEN_BYTES, data))
            ledger.acknowledge(at, count, counter)
        else:
            self.read(first, ledger, at, count)

    def read(self, first, ledger, at, count):
        before = ledger.before(at, count)
        data = self.ask("READ", lambda session: session.read((first + at) * CELL_LEN_BYTES, count * CELL_LEN_BYTES))
        if len(data) != count * CELL_LEN_BYTES:
            raise Wrong(f"{self.where()}: a READ of {count} cells gave {len(data)} bytes")
        ledger.check(at, data, before, self.where())

    def check_all(self):
        for at in range(0, self.PART_CELLS, self.READ_CELLS_MAX):
            self.read(*self.mine, at, min(self.READ_CELLS_MAX, self.PART_CELLS - at))
