"""MOUNT and NFSv3 calls made by hand: for requests that no well-behaved client sends.

Blocking, one call at a time, each with the credential that the test wants.
"""

import random
import socket
import struct

MOUNT, NFS = 100005, 100003
ANSWER_SECONDS_MAX = 30
ANSWER_LEN_BYTES_MAX = 1 << 20

OK, PERM, NOENT, IO, ACCES, NOSPC, ROFS, STALE, BADHANDLE, JUKEBOX = 0, 1, 2, 5, 13, 28, 30, 70, 10001, 10008
UNSTABLE, FILE_SYNC = 0, 2
ATTRIBUTES_LEN_BYTES = 84
LISTING_LEN_BYTES = 32_768


def opaque(data):
    return struct.pack(">I", len(data)) + data + bytes(-len(data) % 4)


class Reader:
    """Takes XDR values from the front of an answer."""

    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, len_bytes):
        self.at += len_bytes
        assert self.at <= len(self.data), "the answer ends early"
        return self.data[self.at - len_bytes : self.at]

    def u32(self):
        return struct.unpack(">I", self.take(4))[0]

    def opaque(self):
        len_bytes = self.u32()
        data = self.take(len_bytes)
        self.take(-len_bytes % 4)
        return data


class Denied(Exception):
    """The server did not even look at the call."""


class Peer:
    """One connection, from an address and a port that the test may choose."""

    def __init__(self, port, source="127.0.0.1", source_port=0, answer_seconds_max=ANSWER_SECONDS_MAX, host="127.0.0.1"):
        self.socket = socket.create_connection((host, port), timeout=answer_seconds_max, source_address=(source, source_port))
        # Clients do so, because a server takes the same number for the same call.
        self.xid = random.getrandbits(31)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def call(self, program, version, procedure, arguments=b"", uid=0, gid=0, groups=()):
        """The results of an accepted call."""
        self.send(program, version, procedure, arguments, uid, gid, groups)
        answer = Reader(self.record())
        assert answer.u32() == self.xid
        accepted(answer)
        return answer

    def send(self, program, version, procedure, arguments=b"", uid=0, gid=0, groups=()):
        """Sends a call with the next number, and does not wait for the answer."""
        self.xid += 1
        ids = struct.pack(f">III{len(groups)}I", uid, gid, len(groups), *groups)
        credential = struct.pack(">I", 0) + opaque(b"raw") + ids
        head = struct.pack(">6I", self.xid, 0, 2, program, version, procedure)
        message = head + struct.pack(">I", 1) + opaque(credential) + struct.pack(">II", 0, 0) + arguments
        self.socket.sendall(struct.pack(">I", 0x8000_0000 | len(message)) + message)

    def record(self):
        (mark,) = struct.unpack(">I", self.exactly(4))
        assert mark & 0x8000_0000, "answers come in one fragment"
        assert mark & 0x7FFF_FFFF <= ANSWER_LEN_BYTES_MAX
        return self.exactly(mark & 0x7FFF_FFFF)

    def exactly(self, len_bytes):
        data = b""
        while len(data) < len_bytes:
            piece = self.socket.recv(len_bytes - len(data))
            if not piece:
                raise ConnectionError("the server closed the connection")
            data += piece
        return data

    def mount(self, path, **who):
        """Status, and the root handle if there is one."""
        answer = self.call(MOUNT, 3, 1, opaque(path.encode()), **who)
        status = answer.u32()
        return status, answer.opaque() if status == OK else None

    def exports(self):
        """The paths that MOUNT's EXPORT lists for this client."""
        answer, paths = self.call(MOUNT, 3, 5), []
        while answer.u32():
            paths.append(answer.opaque().decode())
            while answer.u32():
                answer.opaque()
        return paths

    def getattr(self, handle, **who):
        """Status, and mode, uid and gid."""
        answer = self.call(NFS, 3, 1, opaque(handle), **who)
        return answer.u32(), owner(answer) if answer.at < len(answer.data) else None

    def lookup(self, directory, name, **who):
        answer = self.call(NFS, 3, 3, opaque(directory) + opaque(name.encode()), **who)
        status = answer.u32()
        return status, answer.opaque() if status == OK else None

    def create(self, directory, name, mode=0o644, **who):
        """Status, handle, and mode, uid and gid of a new file."""
        unchecked = struct.pack(">6I", 0, 1, mode, 0, 0, 0) + struct.pack(">II", 0, 0)
        answer = self.call(NFS, 3, 8, opaque(directory) + opaque(name.encode()) + unchecked, **who)
        status = answer.u32()
        if status != OK:
            return status, None, None
        assert answer.u32() == 1
        handle = answer.opaque()
        assert answer.u32() == 1
        return status, handle, owner(answer)

    def remove(self, directory, name, **who):
        return self.call(NFS, 3, 12, opaque(directory) + opaque(name.encode()), **who).u32()

    def read(self, handle, **who):
        return self.call(NFS, 3, 6, opaque(handle) + struct.pack(">QI", 0, 100), **who).u32()

    def read_bytes(self, handle, offset, count, **who):
        """Status, and the bytes if there are any."""
        answer = self.call(NFS, 3, 6, opaque(handle) + struct.pack(">QI", offset, count), **who)
        status = answer.u32()
        if status != OK:
            return status, None
        if answer.u32():
            answer.take(ATTRIBUTES_LEN_BYTES)
        len_bytes, _is_end = answer.u32(), answer.u32()
        data = answer.opaque()
        assert len(data) == len_bytes
        return status, data

    def chmod(self, handle, mode, **who):
        attributes = struct.pack(">8I", 1, mode, 0, 0, 0, 0, 0, 0)
        return self.call(NFS, 3, 2, opaque(handle) + attributes, **who).u32()

    def write(self, handle, data, offset=0, **who):
        arguments = opaque(handle) + struct.pack(">QII", offset, len(data), FILE_SYNC) + opaque(data)
        return self.call(NFS, 3, 7, arguments, **who).u32()

    def write_some(self, handle, data, offset, stable, **who):
        """Status, how many bytes were taken, whether they are stable, the verifier."""
        arguments = opaque(handle) + struct.pack(">QII", offset, len(data), stable) + opaque(data)
        return written(self.call(NFS, 3, 7, arguments, **who))

    def write_many(self, handle, pieces, stable, window_count, **who):
        """Several writes under way at once; `pieces`: offset and bytes of each. Yields the place of each in `pieces`
        and what write_some returns, when it is answered.
        """
        sent: dict = {}
        left = list(enumerate(pieces))
        while left or sent:
            while left and len(sent) < window_count:
                index, (offset, data) = left.pop(0)
                arguments = opaque(handle) + struct.pack(">QII", offset, len(data), stable) + opaque(data)
                self.send(NFS, 3, 7, arguments, **who)
                sent[self.xid] = index
            answer = Reader(self.record())
            index = sent.pop(answer.u32())
            accepted(answer)
            yield index, written(answer)

    def commit(self, handle, **who):
        """Status, and the verifier."""
        answer = self.call(NFS, 3, 21, opaque(handle) + struct.pack(">QI", 0, 0), **who)
        if status := answer.u32():
            return status, None
        skip_change(answer)
        return OK, answer.take(8)

    def read_some(self, handle, offset, len_bytes, **who):
        """Status, the bytes, whether that is the end of the file."""
        answer = self.call(NFS, 3, 6, opaque(handle) + struct.pack(">QI", offset, len_bytes), **who)
        if status := answer.u32():
            return status, b"", False
        skip_attributes(answer)
        answer.u32()
        is_end = answer.u32() != 0
        return OK, answer.opaque(), is_end

    def truncate(self, handle, len_bytes, **who):
        attributes = struct.pack(">4IQ3I", 0, 0, 0, 1, len_bytes, 0, 0, 0)
        return self.call(NFS, 3, 2, opaque(handle) + attributes, **who).u32()

    def mkdir(self, directory, name, **who):
        """Status, and the handle."""
        attributes = struct.pack(">7I", 1, 0o755, 0, 0, 0, 0, 0)
        answer = self.call(NFS, 3, 9, opaque(directory) + opaque(name.encode()) + attributes, **who)
        if status := answer.u32():
            return status, None
        assert answer.u32() == 1
        return OK, answer.opaque()

    def rmdir(self, directory, name, **who):
        return self.call(NFS, 3, 13, opaque(directory) + opaque(name.encode()), **who).u32()

    def rename(self, directory, name, to_directory, to_name, **who):
        places = [opaque(part) for part in (directory, name.encode(), to_directory, to_name.encode())]
        return self.call(NFS, 3, 14, b"".join(places), **who).u32()

    def link(self, handle, directory, name, **who):
        return self.call(NFS, 3, 15, opaque(handle) + opaque(directory) + opaque(name.encode()), **who).u32()

    def names(self, directory, **who):
        """Status, and the names in a directory, without `.` and `..`."""
        names, cookie, verifier = [], 0, bytes(8)
        while True:
            arguments = opaque(directory) + struct.pack(">Q", cookie) + verifier + struct.pack(">I", LISTING_LEN_BYTES)
            answer = self.call(NFS, 3, 16, arguments, **who)
            if status := answer.u32():
                return status, []
            skip_attributes(answer)
            verifier = answer.take(8)
            while answer.u32():
                answer.take(8)
                name = answer.opaque().decode()
                (cookie,) = struct.unpack(">Q", answer.take(8))
                if name not in (".", ".."):
                    names.append(name)
            if answer.u32():
                return OK, names


def accepted(answer):
    """Takes what is before the results of a call, which must have been accepted."""
    if (answer.u32(), answer.u32()) != (1, 0):
        raise Denied("rejected")
    answer.u32()
    answer.opaque()
    if status := answer.u32():
        raise Denied(f"accept status {status}")


def written(answer):
    """Of WRITE: status, how many bytes were taken, whether they are stable, the verifier."""
    if status := answer.u32():
        return status, 0, False, None
    skip_change(answer)
    return OK, answer.u32(), answer.u32() != UNSTABLE, answer.take(8)


def skip_attributes(answer):
    """Of an object after the call, where the server tells them."""
    if answer.u32():
        answer.take(ATTRIBUTES_LEN_BYTES)


def skip_change(answer):
    """Size and times before a change, attributes after it."""
    if answer.u32():
        answer.take(24)
    skip_attributes(answer)


def owner(answer):
    """mode, uid and gid of the attributes that come next."""
    _type, mode, _links, uid, gid = (answer.u32() for _ in range(5))
    return mode & 0o7777, uid, gid
