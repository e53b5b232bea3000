"""A node's internal port as somebody reaches it who has some certificate, or none: TLS, frames between nodes, certificates.

Owns: the bytes (docs/reference/wire.md and trust.md), and certificates that openssl makes. Must not know: what is tested with it.
"""

import contextlib
import json
import socket
import ssl
import struct
import subprocess
import time

from lib import s3

SHARDS, FORWARD, ISSUE, JOIN = "cairn-shards/1", "cairn-forward/1", "cairn-issue/1", "cairn-join/1"
# A listener that serves a connection says so with its first byte.
WELCOME = b"\0"
ANSWER_SECONDS_MAX = 20
HEADER_LEN_BYTES = 36
BODY_LEN_BYTES_MAX, PAYLOAD_LEN_BYTES_MAX = 4 << 20, 16 << 20
# Kinds of messages.
HELLO, WELCOMES, PING, REQUEST = 1, 2, 6, 7
# Verbs of requests.
APPEND, READ = 6, 9
# In the body of the answer to a hello: versions, ids and limits come before the list of disks.
DISKS_OFFSET = 46
# Answers to the preamble of a stream.
TERM_ENDED, BEHIND = b"\x02", b"\x03"


class Place:
    """What the folder of a node says of it: its ids, and the names in its certificate."""

    def __init__(self, cluster_folder):
        said = json.loads((cluster_folder / "cluster.json").read_text())
        self.cluster, self.node = int(said["cluster"], 16), int(said["node"], 16)
        self.address = said["internal_address"]
        member = f"member.{said['cluster']}.cairn.internal"
        self.names = [f"{said['node']}.node.{said['cluster']}.cairn.internal", member, "localhost"]


def pair(folder):
    """Certificate and key of a node, from its folder or from a copy of some of it."""
    return folder / "node.pem", folder / "node.key"


def made_certificate(folder, subject, names, signed_by=None):
    """A certificate with these names, and its key: signed by itself, or by another one with its key."""
    folder.mkdir()
    made, key, request, extensions = (folder / name for name in ("node.pem", "node.key", "request.pem", "extensions"))
    extensions.write_text(
        f"subjectAltName=IP:127.0.0.1,{','.join(f'DNS:{name}' for name in names)}\n"
        "basicConstraints=CA:FALSE\nkeyUsage=digitalSignature\nextendedKeyUsage=serverAuth,clientAuth\n"
    )
    new = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", str(key), "-subj", f"/CN={subject}"]
    run_openssl("req", "-new", *new, "-out", str(request))
    by = ["-signkey", str(key)] if signed_by is None else ["-CA", str(signed_by[0]), "-CAkey", str(signed_by[1]), "-set_serial", "4711"]
    run_openssl("x509", "-req", "-sha256", "-days", "2", "-in", str(request), "-extfile", str(extensions), *by, "-out", str(made))
    return made, key


def run_openssl(*words):
    subprocess.run(["openssl", *words], check=True, capture_output=True, stdin=subprocess.DEVNULL)


def connected(address, shown, speaks, newest=None):
    """A connection that shows a certificate with its key, or none, and believes whatever the node shows."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if shown:
        context.load_cert_chain(*shown)
    context.set_alpn_protocols([speaks])
    if newest:
        context.maximum_version = newest
    host, _, port = address.rpartition(":")
    tcp = socket.create_connection((host.strip("[]"), int(port)), ANSWER_SECONDS_MAX)
    try:
        return context.wrap_socket(tcp)
    except BaseException:
        tcp.close()
        raise


def is_served(address, shown, speaks, newest=None):
    """Whether a node serves a connection. One that does not answer at all is an error."""
    try:
        with connected(address, shown, speaks, newest) as stream:
            return stream.recv(1) == WELCOME
    except TimeoutError:
        raise
    except OSError:
        # Before TLS 1.3 has refused a certificate the client's side of the handshake is done: then it is a reset or an alert.
        return False


@contextlib.contextmanager
def served(address, shown, speaks):
    """A connection that the node serves."""
    with connected(address, shown, speaks) as stream:
        first = stream.recv(1)
        if first != WELCOME:
            raise ConnectionError(f"{address} does not serve {speaks}: {first!r}")
        yield stream


def until_end(stream, seconds):
    """What comes until the node ends a connection; none if it does not in time."""
    deadline, got = time.monotonic() + seconds, b""
    while (left := deadline - time.monotonic()) > 0:
        stream.settimeout(left)
        try:
            more = stream.recv(1 << 16)
        except TimeoutError:
            return None
        except OSError:
            return got
        if not more:
            return got
        got += more
    return None


def crc(data):
    return int.from_bytes(s3.CHECKSUMS["ChecksumCRC32C"](data), "big")


def number(value, len_bytes):
    return value.to_bytes(len_bytes, "little")


def frame(kind, body, payload=b"", identity=0, magic=b"CRNW", version=1, reserved=0, lengths=None, body_crc=None, header_crc=None):
    """A frame, any part of which may be wrong; `lengths`: what it says of body and payload."""
    body_len, payload_len = lengths or (len(body), len(payload))
    crcs = (crc(body) if body_crc is None else body_crc, crc(payload))
    head = magic + struct.pack("<HBBQIIII", version, kind, reserved, identity, body_len, payload_len, *crcs)
    return head + number(crc(head) if header_crc is None else header_crc, 4) + body + payload


def hello(cluster, own, to, versions=(1, 1)):
    return struct.pack("<HH", *versions) + number(cluster, 16) + number(own, 16) + number(to, 16)


def read_frame(stream):
    """Kind and body of the next frame, which has no payload."""
    head = exactly(stream, HEADER_LEN_BYTES)
    body_len, payload_len = struct.unpack_from("<II", head, 16)
    if payload_len:
        raise ConnectionError("a frame with a payload")
    return head[6], exactly(stream, body_len)


def exactly(stream, len_bytes):
    data = b""
    while len(data) < len_bytes:
        more = stream.recv(len_bytes - len(data))
        if not more:
            raise ConnectionError("the node closed the connection")
        data += more
    return data


def first_disk(welcome):
    """The id of the first disk that the answer to a hello lists, as it stands there."""
    (count,) = struct.unpack_from("<I", welcome, DISKS_OFFSET)
    if not count:
        raise ConnectionError("the node lists no disks")
    return welcome[DISKS_OFFSET + 4 : DISKS_OFFSET + 20]


def request(disk, verb, fields):
    return disk + bytes([verb]) + fields


def shard(volume, segment, index):
    return struct.pack("<IQB", volume, segment, index)


def preamble(service, term, revision, client=("192.0.2.9", 700), magic=b"CFW\x02"):
    """The first bytes of a stream for a client."""
    address = bytes(10) + b"\xff\xff" + socket.inet_aton(client[0])
    return magic + bytes([service]) + term.to_bytes(16, "big") + revision.to_bytes(8, "big") + address + client[1].to_bytes(2, "big")
