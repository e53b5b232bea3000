"""A cluster that is attacked from outside, at each node alike: through a node that does not own what is attacked nobody gets more.

What must happen is in docs/reference/threats.md. Certificates of removed nodes at etcd are in test_revocation.py, wrong CHAP secrets in
test_iscsi.py, forged tickets in test_refusals.py, and what a single server refuses in tests/e2e.
"""

import base64
import concurrent.futures
import contextlib
import datetime
import functools
import json
import pathlib
import re
import socket
import ssl
import struct
import subprocess
import time
import unittest
import urllib.error
import urllib.request

from cluster.world import ClusterTest
from lib import etcd, harness, internal, s3
from lib.faultworld import Clocks, clock_library
from lib.libnfs import Mount
from lib.rawnfs import ACCES, BADHANDLE, OK, STALE, Peer
from lib.worlds import content

# On a busy machine.
NODE_SECONDS_MAX = 240
JOIN_SECONDS_MAX = 120
# Until each node has heard of a change in the cluster's map.
HEARD_SECONDS_MAX = 30
# A first message may take 5 s, half a head 10 s, and a node that has said hello may be silent for 10 s.
END_SECONDS_MAX = 30
# Addresses of this machine: of the nodes and of those who may, and of strangers.
HERE, THERE = "127.0.0.1", "127.0.0.2"
BUCKET, THEIRS = "photos", "theirs"
OBJECT_BYTES = 40_000
# Bytes of an upload of which half is sent.
HALF_BYTES = 4 << 20
# A key that is revoked ends what is under way: it is looked at every two seconds.
REVOKED_SECONDS_MAX = 15
# Connections that hold what they may, and what the node may have in memory when they have ended.
HOLDERS_COUNT = 16
MEMORY_BYTES_MAX = 256 << 20
# More than the handshakes of strangers that an internal port has at a time.
HALVES_COUNT = 120
STRANGERS = [f"127.0.0.{last}" for last in range(2, 10)]
# For an answer, and for one while others hold what they may.
ASK_SECONDS_MAX, ANSWER_SECONDS_MAX = 60, 10
# S3 refuses signatures that are a quarter of an hour off.
SKEW_SECONDS = 20 * 60
USER, PASSWORD = "reader", "a sentence that nobody guesses"
# What a browser sends of our own pages alone.
CONSOLE = {"X-Cairn-Console": "1"}


class Keys:
    def __init__(self, cluster, node, volume):
        made = cluster.cairn(node, "s3", "key", "create", "--volume", volume, "--uid", "1000", "--gid", "100", "--json")
        self.id, self.secret = (json.loads(made.stdout)[name] for name in ("id", "secret"))


class Hostile(ClusterTest):
    def folder(self, cluster, node):
        return cluster.folder / node / "cluster"

    def place(self, cluster, node):
        return internal.Place(self.folder(cluster, node))

    def token(self, cluster, node):
        return pathlib.Path(cluster.machine(node)["token_file"]).read_text().strip()

    def pids(self, cluster):
        return {name: machine["pid"] for name, machine in cluster.machines().items()}

    def check_unharmed(self, cluster, pids):
        """The processes are those of before, and no task of them has ended by a mistake."""
        self.assertEqual(self.pids(cluster), pids)
        for node in cluster.names:
            self.assertNotIn("panicked", pathlib.Path(cluster.machine(node)["log"]).read_text(errors="replace"), node)

    def ask(self, cluster, node, method, path, body=None, **headers):
        """Status, headers and text of an answer of a node's admin API."""
        data = None if body is None else json.dumps(body).encode()
        kinds = {} if data is None else {"Content-Type": "application/json"}
        request = urllib.request.Request(cluster.machine(node)["admin"] + path, data, headers=kinds | headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=ASK_SECONDS_MAX) as answer:
                return answer.status, answer.headers, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.headers, error.read().decode()

    def password_file(self):
        path = self.scratch / "password"
        path.write_text(f"{PASSWORD}\n")
        path.chmod(0o600)
        return path

    def logged_in(self, cluster, node):
        """The cookie of a session at a node, which has just heard of the user, perhaps."""

        def session():
            person = {"user": USER, "password": PASSWORD}
            status, headers, _ = self.ask(cluster, node, "POST", "/api/v1/session", person, **CONSOLE)
            return headers["set-cookie"].partition(";")[0] if status == 200 else None

        return harness.wait_until(session, HEARD_SECONDS_MAX, f"that {USER} logs in at {node}", 1)

    def move(self, cluster, volume, to):
        if cluster.owner(volume) == to:
            return
        cluster.cairn(to, "volume", "move", volume, "--to", to)
        harness.wait_until(lambda: cluster.owner(volume) == to, NODE_SECONDS_MAX, f"that {to} owns {volume}")


class Certificates(Hostile):
    def kept(self, name, cluster_folder, shows=True):
        folder = self.scratch / f"kept-{name}"
        folder.mkdir()
        return etcd.Identity(cluster_folder, folder, shows)

    def forged(self, cluster):
        """Certificates with their keys that are none of a node of this cluster, by what is wrong with them; none: no certificate."""
        other = self.cluster(1, name="other", netns="no")
        other_folder, one = self.folder(other, "node1"), self.place(cluster, "node1")
        node = internal.pair(self.folder(cluster, "node2"))
        authority = (other_folder / "ca.pem", other_folder / "ca.key")
        made = lambda name, by: internal.made_certificate(self.scratch / name, f"{one.node:032x}", one.names, by)
        return {
            "none at all": None,
            "signed by itself": made("self", None),
            "of another cluster": internal.pair(other_folder),
            "of another cluster's authority, with the names of a node": made("foreign", authority),
            "signed by a node, with the names of another node": made("by-node", node),
        }

    def reached(self, cluster, shown, identity):
        """Where a certificate lets somebody in, of all ports of all nodes."""
        found = [
            f"{speaks} of {node}"
            for node in cluster.names
            for speaks in (internal.SHARDS, internal.FORWARD, internal.ISSUE)
            if internal.is_served(self.place(cluster, node).address, shown, speaks)
        ]
        for client, peer in etcd.members(self.folder(cluster, "node1")):
            found += [client] if identity.answers(client) else []
            found += [peer] if identity.peer_answers(peer) else []
        return found

    def test_a_certificate_that_is_none_of_the_cluster_opens_no_port(self):
        cluster = self.cluster(3, netns="no")
        pids = self.pids(cluster)
        forged = self.forged(cluster)
        own = self.folder(cluster, "node2")
        # Who tries trusts the members, so that it is they who refuse.
        trusted = own / "ca.pem"
        for number, (what, shown) in enumerate(forged.items()):
            folder = self.scratch / f"forged-{number}"
            folder.mkdir()
            for name, source in zip(("node.pem", "node.key"), shown or internal.pair(own)):
                (folder / name).write_bytes(source.read_bytes())
            (folder / "ca.pem").write_bytes(trusted.read_bytes())
            identity = self.kept(f"forged-{number}", folder, shows=shown is not None)
            self.assertEqual(self.reached(cluster, shown, identity), [], what)
        # A right one opens all of them, in the way that nodes speak.
        right = internal.pair(own)
        reached = self.reached(cluster, right, self.kept("right", own))
        self.assertEqual(len(reached), 3 * len(cluster.names) + 2 * len(etcd.members(own)), reached)
        for node in cluster.names:
            address = self.place(cluster, node).address
            self.assertFalse(internal.is_served(address, right, internal.SHARDS, newest=ssl.TLSVersion.TLSv1_2), node)
            for speaks in ("h2", "cairn-shards/2", "cairn-shards"):
                self.assertFalse(internal.is_served(address, right, speaks), f"{node} {speaks}")
        self.check_unharmed(cluster, pids)
        cluster.await_serving("node1")

    def test_a_removed_nodes_certificate_opens_no_internal_port(self):
        cluster = self.cluster(4, netns="no")
        with_member = {member["name"] for member in cluster.status()["etcd"]["members"]}
        (leaving,) = set(cluster.names) - with_member
        staying = cluster.others(leaving)
        identity = self.kept("leaving", self.folder(cluster, leaving))
        shown = internal.pair(identity.kept_in)
        addresses = [self.place(cluster, node).address for node in staying]
        spoken = (internal.SHARDS, internal.FORWARD, internal.ISSUE)
        self.assertTrue(all(internal.is_served(address, shown, internal.SHARDS) for address in addresses))
        gone, other = self.place(cluster, leaving), self.place(cluster, staying[0])
        cluster.cairn(staying[0], "node", "drain", leaving)

        def drained():
            (drain,) = [node["drain"] for node in cluster.status()["nodes"] if node["name"] == leaving]
            return drain["done"]

        harness.wait_until(drained, NODE_SECONDS_MAX, f"that {leaving} is drained")
        # One that it has when it is removed, and keeps alive.
        with internal.served(addresses[0], shown, internal.SHARDS) as stream, concurrent.futures.ThreadPoolExecutor() as pool:
            stream.sendall(internal.frame(internal.HELLO, internal.hello(gone.cluster, gone.node, other.node)))
            self.assertEqual(internal.read_frame(stream)[0], internal.WELCOMES)
            removing = pool.submit(cluster.cairn, staying[0], "node", "remove", leaving)
            begun = time.monotonic()

            def has_ended():
                with contextlib.suppress(OSError):
                    stream.sendall(internal.frame(internal.PING, b""))
                    return internal.until_end(stream, 0.5) is not None
                return True

            harness.wait_until(has_ended, NODE_SECONDS_MAX, "the end of a removed node's connection")
            print(f"\na removed node's connection ended after {time.monotonic() - begun:.1f} s", flush=True)
            removing.result()
        reached = lambda: [
            (address, speaks) for address in addresses for speaks in spoken if internal.is_served(address, shown, speaks)
        ]
        harness.wait_until(lambda: not reached(), HEARD_SECONDS_MAX, "that no node serves a removed one")
        self.assertEqual(reached(), [])

    def test_a_ticket_lets_one_in_at_whichever_nodes_it_is_shown(self):
        """At all nodes at the same time, and one of another cluster at none."""
        cluster = self.cluster(3, netns="no")
        other = self.cluster(1, name="other", netns="no")
        ticket = lambda of: of.cairn("node1", "cluster", "token").stdout.strip()
        addresses = [self.place(cluster, node).address for node in cluster.names]
        own, foreign = Ticket(ticket(cluster)), Ticket(ticket(other))
        # A token that is another cluster's, and an authority that is: the one is refused, to the other none is shown.
        for wrong in (own.changed(token=foreign.token), own.changed(fingerprint=foreign.fingerprint)):
            self.assertNotIn(0, self.joined([self.join(wrong, "stranger")]))
        joining = [self.join(own.changed(addresses=[address]), f"new{index}") for index, address in enumerate(addresses)]
        self.assertEqual(sorted(status == 0 for status in self.joined(joining)), [False, False, True])
        # Neither was used up by being shown where it is good for nothing.
        self.assertEqual(self.joined([self.join(foreign.changed(), "late")]), [0])

    def joined(self, processes):
        """How those ended that wanted to join."""
        for process in processes:
            _, said = process.communicate(timeout=JOIN_SECONDS_MAX)
            self.assertNotIn("panicked", said)
            print(f"\njoining ended with {process.returncode}: {said.strip()}", flush=True)
        return [process.returncode for process in processes]

    @functools.cached_property
    def free_ports(self):
        return harness.Ports()

    def join(self, ticket, node):
        ports = self.free_ports
        argv = [str(harness.cairn_path()), "cluster", "join", ticket, "--node", node]
        argv += ["--internal", f"{HERE}:{ports.next()}", "--external", f"{HERE}:{ports.next()}"]
        argv += ["--etcd-client-port", str(ports.next()), "--etcd-peer-port", str(ports.next())]
        folder = self.scratch / f"join-{len(list(self.scratch.glob('join-*')))}"
        folder.mkdir()
        pipe = subprocess.PIPE
        return subprocess.Popen(
            [*argv, "--cluster-dir", str(folder / "cluster")], stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True,
        )


class Ticket:
    """The parts of a ticket, as docs/reference/trust.md has them."""

    def __init__(self, text):
        coded = text.removeprefix("cairn1-")
        data = base64.urlsafe_b64decode(coded + "=" * (-len(coded) % 4))
        count, at = data[2], 3
        self.addresses = []
        for _ in range(count):
            self.addresses.append(data[at + 1 : at + 1 + data[at]].decode())
            at += 1 + data[at]
        self.fingerprint = data[at : at + 32]
        self.token = data[at + 33 : at + 33 + data[at + 32]]

    def changed(self, addresses=None, fingerprint=None, token=None):
        """The text of a ticket with other parts, and a right checksum."""
        addresses, token = addresses or self.addresses, token or self.token
        rest = bytes([len(addresses)]) + b"".join(bytes([len(one)]) + one.encode() for one in addresses)
        rest += (fingerprint or self.fingerprint) + bytes([len(token)]) + token
        whole = struct.pack(">H", len(rest) + 4) + rest
        return "cairn1-" + base64.urlsafe_b64encode(whole + struct.pack(">I", internal.crc(whole))).decode().rstrip("=")


class InternalPort(Hostile):
    """With a node's own certificate: what is on a disk or in memory of others is not at the mercy of what it says."""

    def first_messages(self, cluster, own, to, third):
        """What is no first message, by what is wrong with it."""
        right = internal.hello(cluster, own, to)
        frame = lambda body=right, kind=internal.HELLO, **wrong: internal.frame(kind, body, **wrong)
        noise = content("noise", 4096)
        return {
            "noise": noise,
            "another protocol": b"GET / HTTP/1.1\r\nHost: node\r\nAccept: */*\r\n\r\n",
            "nothing": b"",
            "half a header": frame()[:20],
            "half a body": frame()[:60],
            "no magic number": frame(magic=b"CRNX"),
            "another version of frames": frame(version=2),
            "a reserved byte": frame(reserved=1),
            "a wrong checksum of the header": frame(header_crc=0),
            "a wrong checksum of the body": frame(body_crc=1),
            "a body longer than any": frame(lengths=(internal.BODY_LEN_BYTES_MAX + 1, 0)) + noise,
            "a body as long as can be said": frame(lengths=((1 << 32) - 1, 0)) + noise,
            "a payload longer than any": frame(lengths=(len(right), internal.PAYLOAD_LEN_BYTES_MAX + 1)) + noise,
            "a payload that a hello does not have": frame(lengths=(len(right), internal.PAYLOAD_LEN_BYTES_MAX)) + noise,
            "a byte behind the message": frame(right + b"\0"),
            "a byte too few": frame(right[:-1]),
            "a kind that there is not": frame(kind=99),
            "another message": frame(b"", internal.PING),
            "an answer": frame(internal.number(0, 46), internal.WELCOMES),
            "a number of a request": frame(identity=7),
            "later versions of the protocol alone": frame(internal.hello(cluster, own, to, versions=(2, 9))),
            "versions that end before they begin": frame(internal.hello(cluster, own, to, versions=(9, 0))),
            "another cluster": frame(internal.hello(cluster ^ 1, own, to)),
            "another node": frame(internal.hello(cluster, own, to ^ 1)),
            "in the name of another node": frame(internal.hello(cluster, third, to)),
        }

    def later_messages(self, cluster, own, to, disk):
        """What no node says that has said hello."""
        right = internal.hello(cluster, own, to)
        read = internal.shard(1, 1, 0) + struct.pack("<QI", 0, (1 << 32) - 1)
        append = struct.pack("<Q", 1) + internal.shard(1, 1, 0) + struct.pack("<IQI", 1, 0, 4096)
        asked = lambda verb, fields, **wrong: internal.frame(internal.REQUEST, internal.request(disk, verb, fields), identity=1, **wrong)
        return {
            "nothing more": b"",
            "noise": content("more noise", 4096),
            "a second hello": internal.frame(internal.HELLO, right),
            "an answer": internal.frame(internal.WELCOMES, internal.number(0, 46)),
            "a request without a number": internal.frame(internal.REQUEST, internal.request(disk, 1, b"")),
            "a verb that there is not": asked(99, b""),
            "a read of 4 GiB": asked(internal.READ, read),
            "a write without its bytes": asked(internal.APPEND, append),
            "a write of other bytes than it says": asked(internal.APPEND, append, payload=bytes(8192)),
            "a write that is cut off": asked(internal.APPEND, append, payload=bytes(4096))[:-100],
            "a list that is longer than its message": asked(internal.APPEND, append[:-16] + struct.pack("<I", (1 << 32) - 1)),
        }

    def hold(self, stack, address, shown, ids, disk):
        """A connection that announces as much as a request may have, and sends some of it."""
        stream = stack.enter_context(internal.served(address, shown, internal.SHARDS))
        stream.sendall(internal.frame(internal.HELLO, internal.hello(*ids)))
        self.assertEqual(internal.read_frame(stream)[0], internal.WELCOMES)
        most = internal.PAYLOAD_LEN_BYTES_MAX
        fields = struct.pack("<Q", 1) + internal.shard(1, 1, 0) + struct.pack("<IQI", 1, 0, most)
        body = internal.request(disk, internal.APPEND, fields)
        stream.sendall(internal.frame(internal.REQUEST, body, bytes(65536), identity=1, lengths=(len(body), most)))
        return stream

    def test_what_no_node_says_ends_its_connection_and_harms_nobody(self):
        cluster = self.cluster(3, netns="no")
        pids = self.pids(cluster)
        load = self.load(cluster, cluster.names)
        attacked = cluster.owner()
        hostile, other = cluster.others(attacked)
        third = self.place(cluster, other).node
        shown = internal.pair(self.folder(cluster, hostile))
        to, own = self.place(cluster, attacked), self.place(cluster, hostile)
        ids = (to.cluster, own.node, to.node)
        ended = lambda stream, what: self.assertIsNotNone(internal.until_end(stream, END_SECONDS_MAX), what)
        for what, message in self.first_messages(*ids, third).items():
            with internal.served(to.address, shown, internal.SHARDS) as stream:
                stream.sendall(message)
                got = internal.until_end(stream, END_SECONDS_MAX)
                self.assertIsNotNone(got, what)
                # At most one frame that says why, and none that welcomes it.
                self.assertNotEqual(got[6:7], bytes([internal.WELCOMES]), what)
        with internal.served(to.address, shown, internal.SHARDS) as stream:
            stream.sendall(internal.frame(internal.HELLO, internal.hello(*ids)))
            kind, welcome = internal.read_frame(stream)
        self.assertEqual(kind, internal.WELCOMES)
        disk = internal.first_disk(welcome)
        for what, message in self.later_messages(*ids, disk).items():
            with internal.served(to.address, shown, internal.SHARDS) as stream:
                stream.sendall(internal.frame(internal.HELLO, internal.hello(*ids)) + message)
                ended(stream, what)
        load.await_progress()

        before = harness.resident_bytes(pids[attacked])
        with contextlib.ExitStack() as stack:
            holders = [self.hold(stack, to.address, shown, ids, disk) for _ in range(HOLDERS_COUNT)]
            load.await_progress()
            for stream in holders:
                ended(stream, "half a payload")
        self.assertLess(harness.resident_bytes(pids[attacked]) - before, MEMORY_BYTES_MAX)

        # Streams for clients: under a term that has ended or never was, or with news that nobody has, nothing begins.
        refused = {
            "noise": (content("stream", 47), None),
            "another version": (internal.preamble(1, 1, 0, magic=b"CFW\x03"), None),
            "a service that there is not": (internal.preamble(200, 1, 0), None),
            "half a preamble": (internal.preamble(1, 1, 0)[:20], None),
            "a term that is none": (internal.preamble(1, 0x1234_5678, 0), internal.TERM_ENDED),
            "a map to come": (internal.preamble(1, 0x1234_5678, 1 << 62), internal.BEHIND),
        }
        for what, (message, want) in refused.items():
            with internal.served(to.address, shown, internal.FORWARD) as stream:
                stream.sendall(message)
                got = internal.until_end(stream, END_SECONDS_MAX)
                self.assertEqual(got, want or b"", what)
        # Questions: one that is no question has no answer, whether a node asks or somebody who wants to join.
        for speaks, who in ((internal.ISSUE, shown), (internal.JOIN, None)):
            for what, message in {
                "a question longer than any": struct.pack(">I", (64 << 10) + 1) + bytes(4096),
                "half a question": struct.pack(">I", 1000) + b'{"token": "',
                "no JSON": struct.pack(">I", 4) + b"nope",
                "JSON within JSON": struct.pack(">I", 60_000) + b"[" * 60_000,
            }.items():
                with contextlib.suppress(ConnectionError), internal.served(to.address, who, speaks) as stream:
                    stream.sendall(message)
                    got = internal.until_end(stream, END_SECONDS_MAX)
                    self.assertIsNotNone(got, f"{speaks}: {what}")
                    self.assertNotIn(b"PRIVATE KEY", got)
                    self.assertNotIn(b"CERTIFICATE", got)
        load.await_progress()
        load.end()
        for node in cluster.names:
            self.assertGreater(load.verify(cluster.url(node)), 0)
        self.check_unharmed(cluster, pids)


class Halves(Hostile):
    def half(self, address, source, begun):
        stream = socket.create_connection(address, END_SECONDS_MAX, (source, 0))
        self.addCleanup(stream.close)
        # It may be turned away at once.
        with contextlib.suppress(ConnectionError):
            stream.sendall(begun)
        return stream

    def test_half_requests_at_one_node_keep_nobody_out(self):
        cluster = self.cluster(3, netns="no")
        attacked = cluster.owner()
        other = cluster.others(attacked)[0]
        load = self.load(cluster, cluster.names)
        parts = lambda address: (address.rpartition(":")[0].strip("[]"), int(address.rpartition(":")[2]))
        machine = cluster.machine(attacked)
        halves = {
            "internal": (parts(self.place(cluster, attacked).address), b"\x16\x03\x01\x02\x00\x01\x00"),
            "admin": (parts(machine["admin"].partition("//")[2]), b"GET /healthz HTTP/1.1\r\nHo"),
            "S3": ((HERE, cluster.s3_port(attacked)), b"PUT /photos/half HTTP/1.1\r\nHo"),
            "iSCSI": ((HERE, cluster.iscsi_port(attacked)), b"\x43\x87\0\0"),
            "NFS": ((HERE, cluster.nfs_port(attacked)), b"\x80\0"),
        }
        attack = lambda name, count: [self.half(halves[name][0], STRANGERS[index % len(STRANGERS)], halves[name][1]) for index in range(count)]
        opened = {name: attack(name, HALVES_COUNT if name in ("internal", "admin") else HALVES_COUNT // 4) for name in halves}
        # Those who may are served meanwhile: clients, administrators, and a node that comes back.
        load.await_progress()
        begun = time.monotonic()
        self.assertEqual(self.ask(cluster, attacked, "GET", "/healthz")[0], 200)
        self.assertIsNotNone(cluster.status_of(attacked))
        self.assertLess(time.monotonic() - begun, ANSWER_SECONDS_MAX)
        cluster.kill(other)
        cluster.start_nodes(other)
        cluster.await_serving(other)
        for name in ("internal", "admin"):
            opened[name] += attack(name, HALVES_COUNT)
        load.await_progress()
        connected = lambda: {node["name"] for node in cluster.status()["nodes"] if node["alive"]} == set(cluster.names)
        harness.wait_until(connected, HEARD_SECONDS_MAX, "that all nodes are there")
        # Who does not go on is cut off.
        deadline = time.monotonic() + END_SECONDS_MAX
        for name in ("internal", "admin"):
            for stream in opened[name]:
                got = internal.until_end(stream, max(deadline - time.monotonic(), 0.1))
                self.assertIsNotNone(got, f"half a request at the {name} port is waited for")
        load.end()
        for node in cluster.names:
            self.assertGreater(load.verify(cluster.url(node)), 0)


class Administration(Hostile):
    def test_what_opens_one_cluster_opens_no_other(self):
        """Tokens, sessions, access keys and handles of files."""
        cluster = self.cluster(2, netns="no")
        other = self.cluster(1, name="other", netns="no")
        for of in (cluster, other):
            of.cairn("node1", "user", "create", USER, "--role", "admin", "--password-file", self.password_file())
            of.cairn("node1", "bucket", "create", BUCKET, "--uid", "1000", "--gid", "100")
        shown = [
            {"Authorization": f"Bearer {self.token(other, 'node1')}"},
            {"Cookie": self.logged_in(other, "node1")} | CONSOLE,
        ]
        stranger = Keys(other, "node1", "main")
        with Peer(other.nfs_port("node1")) as peer:
            status, root = peer.mount("/main")
            self.assertEqual(status, OK)
        for node in cluster.names:
            for headers in shown:
                for method, path, body in (
                    ("GET", "/api/v1/status", None),
                    ("GET", "/metrics", None),
                    ("POST", "/api/v1/volumes", {"name": "two"}),
                    ("DELETE", "/api/v1/volumes/main", None),
                ):
                    status, _, text = self.ask(cluster, node, method, path, body, **headers)
                    self.assertEqual(status, 401, f"{node}: {method} {path}: {text}")
            signer = s3.Signer(cluster.s3_port(node), stranger)
            headers, _ = signer.sign("GET", f"/{BUCKET}")
            status, text = signer.send("GET", f"/{BUCKET}", headers)
            self.assertEqual((status, "<Code>InvalidAccessKeyId</Code>" in text), (403, True), f"{node}: {text}")
            with Peer(cluster.nfs_port(node)) as peer:
                self.assertIn(peer.getattr(root)[0], (BADHANDLE, STALE), node)
        self.assertEqual([volume["name"] for volume in cluster.status()["volumes"]], ["main"])
        # They are good where they are from.
        for headers in shown:
            self.assertEqual(self.ask(other, "node1", "GET", "/api/v1/status", **headers)[0], 200)

    def changes(self, document):
        """Each route that changes something, but for what is of a session of one's own."""
        for path, item in document["paths"].items():
            for method in item.keys() & {"put", "post", "patch", "delete"}:
                is_open = item[method].get("security") == [{}]
                if not is_open and not path.startswith("/api/v1/session"):
                    yield method.upper(), re.sub(r"\{[^}]*\}", "main", path)

    def test_a_viewer_changes_nothing_at_any_node(self):
        cluster = self.cluster(3, netns="no")
        cluster.cairn("node1", "user", "create", USER, "--role", "viewer", "--password-file", self.password_file())
        seen = lambda: json.dumps(
            [(volume["name"], volume["owner"]) for volume in cluster.status()["volumes"]]
            + [(node["name"], node.get("drain")) for node in cluster.status()["nodes"]]
        )
        before = seen()
        exports = lambda: cluster.cairn("node1", "export", "list", "--json").stdout
        users = lambda: re.findall(r'"(?:name|role)": *"([^"]*)"', cluster.cairn("node1", "user", "list", "--json").stdout)
        kept = exports(), users()
        basic = "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        for node in cluster.names:
            cookie = self.logged_in(cluster, node)
            status, _, text = self.ask(cluster, node, "GET", "/api/v1/openapi.json")
            self.assertEqual(status, 200)
            tried = 0
            for headers in ({"Cookie": cookie} | CONSOLE, {"Authorization": basic}):
                self.assertEqual(self.ask(cluster, node, "GET", "/api/v1/volumes", **headers)[0], 200, headers.keys())
                for method, path in self.changes(json.loads(text)):
                    tried += 1
                    status, _, answer = self.ask(cluster, node, method, path, {}, **headers)
                    self.assertEqual(status, 403, f"{node}: {method} {path}: {answer}")
                    self.assertIn("is a viewer", answer)
            self.assertGreater(tried, 80)
        self.assertEqual(seen(), before)
        self.assertEqual((exports(), users()), kept)


class Objects(Hostile):
    def of_two_volumes(self):
        """A cluster with two volumes of two owners, each with a bucket and a key; the third node owns neither."""
        cluster = self.cluster(3, netns="no")
        self.owner = cluster.owner()
        second, self.third = cluster.others(self.owner)
        cluster.cairn(self.owner, "volume", "create", "two")
        self.move(cluster, "two", second)
        self.keys = {}
        for volume, bucket, owner in (("main", BUCKET, self.owner), ("two", THEIRS, second)):
            cluster.cairn(owner, "bucket", "create", bucket, "--path", f"{volume}/{bucket}", "--uid", "1000", "--gid", "100")
            self.keys[bucket] = Keys(cluster, owner, volume)
        for bucket in (BUCKET, THEIRS):
            for node in cluster.names:
                is_put = lambda node=node, bucket=bucket: self.put(cluster, node, bucket, f"by-{node}")[0] == 200
                harness.wait_until(is_put, NODE_SECONDS_MAX, f"an object in {bucket} through {node}", 1)
        return cluster

    def body(self, key):
        return content(key, OBJECT_BYTES)

    def request(self, cluster, node, keys, method, path, body=b"", when=None):
        signer = s3.Signer(cluster.s3_port(node), keys)
        headers, _ = signer.sign(method, path, when=when)
        return signer.send(method, path, headers | {"content-length": str(len(body))}, body)

    def put(self, cluster, node, bucket, key):
        return self.request(cluster, node, self.keys[bucket], "PUT", f"/{bucket}/{key}", self.body(key))

    def answered(self, ask):
        """An answer that is not "try again", which is that of a volume on its way to another owner."""

        def once():
            answer = ask()
            return answer if answer[0] not in (0, 500, 503) else None

        return harness.wait_until(once, NODE_SECONDS_MAX, "an answer", 1)

    def test_a_key_of_one_volume_opens_no_other_through_any_node(self):
        cluster = self.of_two_volumes()
        tried = {}
        for node in cluster.names:
            answers = [
                self.request(cluster, node, self.keys[BUCKET], method, path, body)
                for method, path, body in (
                    ("GET", f"/{THEIRS}/by-{node}", b""),
                    ("HEAD", f"/{THEIRS}/by-{node}", b""),
                    ("GET", f"/{THEIRS}/nothing", b""),
                    ("GET", f"/{THEIRS}?list-type=2", b""),
                    ("GET", f"/{THEIRS}?acl=", b""),
                    ("PUT", f"/{THEIRS}/by-{node}", b"of somebody else"),
                    ("PUT", f"/{THEIRS}/new", b"of somebody else"),
                    ("DELETE", f"/{THEIRS}/by-{node}", b""),
                    ("DELETE", f"/{THEIRS}", b""),
                )
            ]
            for status, text in answers:
                self.assertIn(status, (403, 404), text)
            tried[node] = [status for status, _ in answers]
        # Whichever node is asked says the same: who owns what shows in no answer.
        self.assertEqual(len({tuple(statuses) for statuses in tried.values()}), 1, tried)
        # Nor by a copy, whose source is somewhere else than its target.
        for node in cluster.names:
            signer = s3.Signer(cluster.s3_port(node), self.keys[BUCKET])
            path = f"/{BUCKET}/copied"
            headers, _ = signer.sign("PUT", path, x_amz_copy_source=f"/{THEIRS}/by-{node}")
            status, text = signer.send("PUT", path, headers | {"content-length": "0"})
            self.assertTrue(400 <= status < 500, f"{status}: {text}")
            self.assertEqual(self.request(cluster, node, self.keys[BUCKET], "GET", path)[0], 404, node)
        for node in cluster.names:
            listed = self.request(cluster, node, self.keys[THEIRS], "GET", f"/{THEIRS}?list-type=2")[1]
            self.assertEqual(re.findall(r"<Key>([^<]*)", listed), [f"by-{name}" for name in cluster.names], node)
            for name in cluster.names:
                got = self.presigned(cluster, node, self.keys[THEIRS], "GET", f"/{THEIRS}/by-{name}")
                self.assertTrue(self.bytes_of(cluster, node, got) == self.body(f"by-{name}"), f"{node}: by-{name}")

    def presigned(self, cluster, node, keys, method, path):
        return s3.Signer(cluster.s3_port(node), keys).presign(method, path, expires=3600)

    def bytes_of(self, cluster, node, url):
        """The bytes that a presigned URL gives at a node, which need not be the one that it was made for."""
        path, headers = url
        request = urllib.request.Request(f"http://{HERE}:{cluster.s3_port(node)}{path}", headers=headers)
        with urllib.request.urlopen(request, timeout=END_SECONDS_MAX) as answer:
            return answer.read()

    def replayed(self, cluster, node, method, url, body=b""):
        """The answer of a node to a presigned URL, which need not have been made for it."""
        path, headers = url
        signer = s3.Signer(cluster.s3_port(node), self.keys[BUCKET])
        return signer.send(method, path, headers | {"content-length": str(len(body))}, body)

    def test_a_revoked_key_is_refused_at_every_node_at_once(self):
        cluster = self.of_two_volumes()
        leaked, kept = self.keys[BUCKET], Keys(cluster, self.owner, "main")
        gets = [self.presigned(cluster, node, leaked, "GET", f"/{BUCKET}/by-{node}") for node in cluster.names]
        put = self.presigned(cluster, self.third, leaked, "PUT", f"/{BUCKET}/planted")
        for node in cluster.names:
            for name, url in zip(cluster.names, gets):
                self.assertTrue(self.bytes_of(cluster, node, url) == self.body(f"by-{name}"), f"{node}: {url[0]}")
        # An upload that has begun, through a node that passes it on.
        path = f"/{BUCKET}/half"
        signer = s3.Signer(cluster.s3_port(self.third), leaked)
        headers, _ = signer.sign("PUT", path)
        headers |= {"content-length": str(HALF_BYTES), "expect": "100-continue", "connection": "close"}
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        with socket.create_connection((HERE, cluster.s3_port(self.third)), REVOKED_SECONDS_MAX) as stream:
            stream.sendall(f"PUT {path} HTTP/1.1\r\n{lines}\r\n".encode())
            # It has begun.
            self.assertIn(b" 100 ", stream.recv(4096))
            stream.sendall(bytes(HALF_BYTES // 2))
            # At a node that does not own the volume.
            cluster.cairn(self.third, "s3", "key", "revoke", leaked.id)
            begun = time.monotonic()
            for node in cluster.names:
                asked = [
                    *(lambda node=node, url=url: self.replayed(cluster, node, "GET", url) for url in gets),
                    lambda node=node: self.replayed(cluster, node, "PUT", put, b"planted"),
                    lambda node=node: self.request(cluster, node, leaked, "GET", "/"),
                ]
                for ask in asked:
                    # A node that knows where the key was says 503 until it has asked all nodes again.
                    first = ask()[0]
                    self.assertIn(first, (403, 503), node)
                    self.check_revoked(self.answered(ask), node)
            print(f"\nrefused at every node {time.monotonic() - begun:.1f} s after it was revoked", flush=True)
            answer = b""
            with contextlib.suppress(ConnectionError):
                while more := stream.recv(1 << 16):
                    answer += more
        self.assertIn(b"<Code>InvalidAccessKeyId</Code>", answer)
        # Also by who did not own the volume then.
        cluster.kill(self.owner)
        cluster.owner(without=[self.owner])
        for node in cluster.others(self.owner):
            for url in gets:
                self.check_revoked(self.answered(lambda node=node, url=url: self.replayed(cluster, node, "GET", url)), node)
        cluster.heal()
        cluster.await_serving(self.owner)
        for node in cluster.names:
            self.check_revoked(self.answered(lambda node=node: self.replayed(cluster, node, "PUT", put, b"planted")), node)
            listed = self.answered(lambda node=node: self.request(cluster, node, kept, "GET", f"/{BUCKET}?list-type=2"))[1]
            self.assertEqual(re.findall(r"<Key>([^<]*)", listed), [f"by-{name}" for name in cluster.names], node)

    def check_revoked(self, answer, node):
        status, text = answer
        self.assertEqual((status, "<Code>InvalidAccessKeyId</Code>" in text), (403, True), f"{node}: {answer}")

    def test_a_node_whose_clock_is_off_loses_nothing_and_takes_no_old_request(self):
        library = clock_library()
        if library is None:
            raise unittest.SkipTest("needs libfaketime (package faketime)")
        clocks = Clocks(self.scratch, self.scratch / "cluster", library)
        for node in ("node1", "node2", "node3"):
            clocks.set(node, 0)
        cluster = self.cluster(3, netns="no", program=clocks.program)
        owner = cluster.owner()
        off, third = cluster.others(owner)
        cluster.cairn(owner, "bucket", "create", BUCKET, "--uid", "1000", "--gid", "100")
        keys = Keys(cluster, owner, "main")
        load = self.load(cluster, cluster.names)
        for seconds in (SKEW_SECONDS, -SKEW_SECONDS):
            clocks.set(off, seconds)
            now = datetime.datetime.now(datetime.timezone.utc)
            # What its clock calls now is long over, or to come, for everybody else.
            theirs = now + datetime.timedelta(seconds=seconds)
            for through in (owner, third):
                get = lambda through=through, when=None: self.request(cluster, through, keys, "GET", f"/{BUCKET}?list-type=2", when=when)
                self.assertEqual(get()[0], 200, through)
                refused = get(when=theirs)
                self.assertEqual((refused[0], "RequestTimeTooSkewed" in refused[1]), (403, True), refused)
            # As the owner it refuses what others call now, and lets nobody in who may not: it is lost for S3, and for nothing else.
            load.await_progress()
            self.move(cluster, "main", off)
            load.await_progress()
            skewed = lambda: self.answered(lambda: self.request(cluster, off, keys, "GET", f"/{BUCKET}?list-type=2"))
            harness.wait_until(lambda: "RequestTimeTooSkewed" in skewed()[1], HEARD_SECONDS_MAX, "that its clock is off", 1)
            # Its lease is measured by another clock.
            cluster.kill(off)
            self.assertIn(cluster.owner(without=[off]), (owner, third))
            # Clients of the node that is gone wait for it.
            cluster.heal()
            cluster.await_serving(off)
            load.await_progress()
            clocks.set(off, 0)
            self.move(cluster, "main", owner)
        load.end()
        for node in cluster.names:
            self.assertGreater(load.verify(cluster.url(node)), 0)


class Exports(Hostile):
    def export(self, cluster, *clients):
        """Puts these in place of all rules of `main`."""
        cluster.cairn("node1", "export", "remove", "main", check=False)
        for client in clients:
            cluster.cairn("node1", "export", "set", "main", "--client", client, "--squash", "none")

    def await_rule(self, cluster, inside, outside):
        """Waits until a client is let in at each node, and another is not."""
        for node in cluster.names:

            def holds(node=node):
                with Peer(cluster.nfs_port(node), inside) as in_, Peer(cluster.nfs_port(node), outside) as out:
                    return in_.mount("/main")[0] == OK and out.mount("/main")[0] == ACCES

            harness.wait_until(holds, HEARD_SECONDS_MAX, f"that {node} lets {inside} in, and not {outside}", 0.2)

    def check_outside(self, peer, node, handles):
        root, file = handles
        self.assertEqual(peer.mount("/main"), (ACCES, None), node)
        self.assertEqual(peer.exports(), [], node)
        for handle in handles:
            self.assertEqual((peer.getattr(handle)[0], peer.read(handle), peer.write(handle, b"x")), (ACCES, ACCES, ACCES), node)
        self.assertEqual(peer.lookup(root, "secret"), (ACCES, None), node)
        self.assertEqual((peer.create(root, "planted")[0], peer.remove(root, "secret")), (ACCES, ACCES), node)

    def test_rules_by_address_hold_through_every_node(self):
        """The owner goes by the address of the client, and never by that of the node which passes its calls on."""
        cluster = self.cluster(3, netns="no")
        owner = cluster.owner()
        # Nodes speak to one another from the address that is let in, then from the one that is not.
        for inside, outside in ((HERE, THERE), (THERE, HERE)):
            self.export(cluster, inside)
            self.await_rule(cluster, inside, outside)
            for volume_owner in (owner, cluster.others(owner)[0]):
                if cluster.owner() != volume_owner:
                    self.move(cluster, "main", volume_owner)
                for node in cluster.names:
                    port = cluster.nfs_port(node)
                    with Peer(port, inside) as ours, Peer(port, outside) as theirs:
                        status, root = ours.mount("/main")
                        self.assertEqual(status, OK, node)
                        status, file, _ = ours.create(root, "secret")
                        self.assertEqual((status, ours.write(file, b"secret")), (OK, OK), node)
                        self.check_outside(theirs, node, (root, file))
                        self.assertEqual(ours.read(file), OK, node)
                with Peer(cluster.nfs_port(volume_owner), inside) as ours:
                    self.assertEqual(ours.lookup(root, "planted")[1], None)

    def test_who_is_let_in_no_more_is_out_at_every_node(self):
        cluster = self.cluster(3, netns="no")
        self.export(cluster, HERE, THERE)
        with contextlib.ExitStack() as stack:
            peers = {}
            for node in cluster.names:
                peer = stack.enter_context(Peer(cluster.nfs_port(node), THERE))
                is_in = lambda peer=peer: peer.mount("/main")[0] == OK
                harness.wait_until(is_in, HEARD_SECONDS_MAX, f"that {node} lets {THERE} in", 0.2)
                root = peer.mount("/main")[1]
                peers[node] = peer, root, peer.create(root, "secret")[1]
            self.export(cluster, HERE)
            for node, (peer, root, file) in peers.items():
                # Connections that it had go on, and give it nothing.
                is_out = lambda peer=peer, file=file: peer.read(file) == ACCES
                harness.wait_until(is_out, HEARD_SECONDS_MAX, f"that {node} lets {THERE} in no more", 0.2)
                self.check_outside(peer, node, (root, file))
        for node in cluster.names:
            with Mount(cluster.url(node)) as mount:
                self.assertEqual(mount.names("/"), ["secret"], node)
