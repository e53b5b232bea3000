"""A client of etcd that is nothing but Python: what somebody with a node's certificate can do.

Owns: gRPC over TLS (HTTP/2, RFC 9113) as far as single calls need it, and the messages of etcd that tests send. Must not know: what is
tested with it. Answers are told by whether there is a message: refusals are trailers alone.
"""

import json
import socket
import ssl
import struct

ANSWER_SECONDS_MAX = 20
KV, AUTH, CLUSTER, MAINTENANCE = (f"/etcdserverpb.{name}/" for name in ("KV", "Auth", "Cluster", "Maintenance"))
# Kinds of frames, and their flags.
DATA, HEADERS, RESET, SETTINGS, PING, GOAWAY = 0, 1, 3, 4, 6, 7
END_STREAM, END_HEADERS, ACK = 1, 4, 1
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


class Lost(Exception):
    """The connection was refused, or has ended."""


def varint(number):
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def field(number, value):
    """A field of a message: bytes, or a number."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def fields(message):
    """The fields of a message with bytes in them."""
    found, at = [], 0

    def number():
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(message):
        key = number()
        if key & 7 == 0:
            number()
            continue
        length = number()
        found.append((key >> 3, message[at : at + length]))
        at += length
    return found


def header(name, value):
    """A header that no table has (RFC 7541, section 6.2.2); both are shorter than 127 bytes."""
    return b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()


def frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def members(cluster_folder):
    """The URLs of all members, for clients and for peers, as a node knows them."""
    etcd = json.loads((cluster_folder / "cluster.json").read_text())["etcd"]
    return [(member["client_url"], member["peer_url"]) for member in etcd["members"]]


def end_of_prefix(prefix):
    return prefix[:-1] + bytes([prefix[-1] + 1])


class Identity:
    """What is in a node's cluster folder; kept, whatever becomes of that. `shows`: without, it shows no certificate."""

    def __init__(self, cluster_folder, kept_in, shows=True):
        for name in ("ca.pem", "node.pem", "node.key"):
            (kept_in / name).write_bytes((cluster_folder / name).read_bytes())
        self.kept_in, self.shows = kept_in, shows

    def socket(self, url, speaks):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(self.kept_in / "ca.pem")
        if self.shows:
            context.load_cert_chain(self.kept_in / "node.pem", self.kept_in / "node.key")
        context.set_alpn_protocols([speaks])
        host, port = url.removeprefix("https://").rsplit(":", 1)
        tcp = socket.create_connection((host.strip("[]"), int(port)), ANSWER_SECONDS_MAX)
        return context.wrap_socket(tcp, server_hostname=host.strip("[]"))

    def peer_answers(self, url):
        """Whether a member takes this for another member: it tells its version."""
        try:
            with self.socket(url, "http/1.1") as stream:
                stream.sendall(b"GET /version HTTP/1.1\r\nHost: etcd\r\nConnection: close\r\n\r\n")
                answer = b""
                while more := stream.recv(4096):
                    answer += more
                return b"etcdserver" in answer
        except OSError:
            return False

    def answers(self, url):
        """Whether a member takes this for a client: it says who is a member, which needs no rights."""
        try:
            with Client(self, url) as client:
                return client.call(CLUSTER + "MemberList") is not None
        except Lost:
            return False


class Client:
    """One connection to one member."""

    def __init__(self, identity, url):
        self.stream, self.read = 1, b""
        try:
            self.socket = identity.socket(url, "h2")
            self.socket.sendall(PREFACE + frame(SETTINGS, 0, 0))
        except OSError as error:
            raise Lost(str(error)) from error

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def bytes(self, count):
        while len(self.read) < count:
            more = self.socket.recv(65536)
            if not more:
                raise Lost("closed")
            self.read += more
        taken, self.read = self.read[:count], self.read[count:]
        return taken

    def call(self, path, message=b""):
        """The answer to a call; none if it is refused."""
        try:
            return self.exchange(path, message)
        except OSError as error:
            raise Lost(str(error)) from error

    def exchange(self, path, message):
        stream, self.stream = self.stream, self.stream + 2
        heads = [(":method", "POST"), (":scheme", "https"), (":path", path), (":authority", "etcd")]
        heads += [("te", "trailers"), ("content-type", "application/grpc")]
        block = b"".join(header(name, value) for name, value in heads)
        body = b"\0" + struct.pack(">I", len(message)) + message
        self.socket.sendall(frame(HEADERS, END_HEADERS, stream, block) + frame(DATA, END_STREAM, stream, body))
        answer = b""
        while True:
            head = self.bytes(9)
            kind, flags = head[3], head[4]
            payload = self.bytes(int.from_bytes(head[:3], "big"))
            if kind in (SETTINGS, PING) and not flags & ACK:
                self.socket.sendall(frame(kind, ACK, 0, payload if kind == PING else b""))
            if kind == GOAWAY:
                raise Lost("the member goes away")
            if int.from_bytes(head[5:], "big") & 0x7FFF_FFFF != stream:
                continue
            if kind == RESET:
                raise Lost("the call was reset")
            answer += payload if kind == DATA else b""
            if flags & END_STREAM and kind in (DATA, HEADERS):
                # One byte and four of a length come before a message.
                return answer[5:] if answer else None

    def get(self, key):
        """The value of a key, none if there is no such key; `Refused` if it may not be read."""
        answer = self.call(KV + "Range", field(1, key))
        if answer is None:
            raise Refused(key)
        found = [dict(fields(kv)) for number, kv in fields(answer) if number == 2]
        return found[0].get(5, b"") if found else None

    def put(self, key, value):
        if self.call(KV + "Put", field(1, key) + field(2, value)) is None:
            raise Refused(key)

    def delete(self, key):
        if self.call(KV + "DeleteRange", field(1, key)) is None:
            raise Refused(key)

    def delete_below(self, prefix):
        if self.call(KV + "DeleteRange", field(1, prefix) + field(2, end_of_prefix(prefix))) is None:
            raise Refused(prefix)


class Refused(Exception):
    """The member answers that this may not be done."""
