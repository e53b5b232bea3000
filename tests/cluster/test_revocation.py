"""A node that was removed has nothing in etcd any more, though its certificate is valid, and one without a member takes no rights.

Of the second what somebody does who has that node's certificate, and speaks to etcd and to other nodes with it.
"""

import base64
import contextlib
import hashlib
import json
import os
import random
import signal
import socket
import ssl
import struct
import subprocess
import time

from cluster.world import ClusterTest
from lib import etcd, harness

# On a busy machine.
NODE_SECONDS_MAX = 240
# What `cairn` ends with when it refuses.
REFUSED = 4
# Members start again one after the other, each when all are well.
REVOKED_SECONDS_MAX = 120
PREFIX = b"/cairn/"
# Members look every 3 s whether another one is to have a member, the key of the CA, all rights. So long nothing of that comes about.
RIGHTS_LOOKS_SECONDS = 12
ASK_SECONDS_MAX = 15
FRAME_LEN_BYTES_MAX = 64 << 10
# Removals whose node is killed, each at a moment of its own within what one takes.
KILLED_COUNT = 4
KILLED_SEED = 20


class Revocation(ClusterTest):
    def of_four(self):
        """A cluster, its node without a member of etcd, and the others. All on one address: etcd asks whence a peer comes."""
        cluster = self.cluster(4, netns="no")
        with_member = {member["name"] for member in cluster.status()["etcd"]["members"]}
        leaving, = set(cluster.names) - with_member
        staying = cluster.others(leaving)
        knows = lambda: len(etcd.members(self.folder(cluster, staying[0]))) == len(staying)
        harness.wait_until(knows, NODE_SECONDS_MAX, f"that {staying[0]} has all members in its folder")
        return cluster, leaving, staying

    def await_drained(self, cluster, name):
        def drained():
            drain, = [node["drain"] for node in cluster.status()["nodes"] if node["name"] == name]
            return drain["done"]

        harness.wait_until(drained, NODE_SECONDS_MAX, f"that {name} is drained")

    def check_refused_to_start(self, cluster, name):
        again = subprocess.run(
            cluster.machine(name)["argv"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=NODE_SECONDS_MAX,
        )
        self.assertEqual(again.returncode, REFUSED, again.stderr)
        self.assertIn("was removed from cluster", again.stderr)

    def folder(self, cluster, node):
        return cluster.folder / node / "cluster"

    def identity(self, cluster, node):
        kept = self.scratch / f"kept-{node}"
        kept.mkdir()
        return etcd.Identity(self.folder(cluster, node), kept)

    def keys(self, cluster, node):
        name = json.loads((self.folder(cluster, node) / "cluster.json").read_text())["cluster_name"]
        return PREFIX + name.encode() + b"/"

    def reads_the_map(self, identity, url, prefix):
        """Whether a member gives it the map; one that starts again, or has no leader, gives nobody anything."""
        try:
            with etcd.Client(identity, url) as client:
                return b"generation" in client.get(prefix + b"cluster")
        except (etcd.Lost, etcd.Refused):
            return False

    def check_refused(self, client, prefix):
        """Nothing is read, written or deleted."""
        for change in (
            lambda: client.get(prefix + b"cluster"),
            lambda: client.put(prefix + b"cluster", b"x"),
            lambda: client.put(b"/of/nobody", b"x"),
            lambda: client.delete(prefix + b"cluster"),
            lambda: client.delete_below(prefix),
            lambda: client.delete_below(b"/"),
        ):
            with self.assertRaises(etcd.Refused):
                change()
        for call in ("UserList", "AuthDisable"):
            self.assertIsNone(client.call(etcd.AUTH + call), call)

    def test_a_removed_nodes_certificate_reaches_nothing(self):
        cluster, leaving, staying = self.of_four()
        prefix = self.keys(cluster, leaving)
        before = self.identity(cluster, staying[0])
        gone = self.identity(cluster, leaving)
        urls = etcd.members(self.folder(cluster, staying[0]))
        self.assertEqual(len(urls), len(staying))
        load = self.load(cluster)
        # The key of the CA is where it is needed.
        with_key = {node for node in cluster.names if (self.folder(cluster, node) / "ca.key").exists()}
        self.assertEqual(with_key, set(staying))

        # As a node without a member: it reads the cluster's keys, writes those of data, and nothing else.
        with etcd.Client(gone, urls[0][0]) as client:
            kept = client.get(prefix + b"cluster")
            self.assertIn(b"generation", kept)
            client.put(prefix + b"names/volume/of-a-test", b"1")
            client.delete(prefix + b"names/volume/of-a-test")
            for change in (lambda: client.put(prefix + b"of-a-test", b"1"), lambda: client.put(b"/of/nobody", b"x"), lambda: client.delete_below(b"/")):
                with self.assertRaises(etcd.Refused):
                    change()
            self.assertIsNone(client.call(etcd.AUTH + "UserList"))
            self.assertIsNone(client.call(etcd.CLUSTER + "MemberAdd", etcd.field(1, b"https://127.0.0.1:1")))
        old = [self.entered(etcd.Client(gone, url)) for url, _ in urls]
        for client in old:
            self.assertEqual(client.get(prefix + b"cluster"), kept)
        # Where etcd looks at no rights it hears members alone.
        self.assertFalse(any(gone.peer_answers(url) for _, url in urls))

        cluster.cairn(staying[0], "node", "drain", leaving)
        self.await_drained(cluster, leaving)
        # It may not remove anybody; it has another node do it, and may end before it can tell.
        cluster.cairn(leaving, "node", "remove", leaving, check=False)
        names = lambda: {node["name"] for node in cluster.status([leaving])["nodes"]}
        harness.wait_until(lambda: leaving not in names(), NODE_SECONDS_MAX, f"that {leaving} is no longer in the cluster")
        # From this moment on, also on connections that it has, as long as there are any.
        for client in old:
            with contextlib.suppress(etcd.Lost):
                self.check_refused(client, prefix)
        # And what needs no rights is gone, too, when the members have its certificate's number.
        reached = lambda: [url for pair in urls for url, asks in zip(pair, (gone.answers, gone.peer_answers)) if asks(url)]
        harness.wait_until(lambda: not reached(), REVOKED_SECONDS_MAX, "that no member takes its certificate")

        def ended(client):
            try:
                client.call(etcd.CLUSTER + "MemberList")
                return False
            except etcd.Lost:
                return True

        harness.wait_until(lambda: all(map(ended, old)), REVOKED_SECONDS_MAX, "the end of its connections")
        for url, _ in urls:
            with etcd.Client(before, url) as client:
                self.assertEqual(client.get(prefix + b"cluster"), kept)
                self.assertIsNone(client.get(b"/of/nobody"))
        self.assertTrue(all(before.peer_answers(url) for _, url in urls))

        # All else goes on: members started again, and clients saw none of it.
        stopped = lambda: cluster.machine(leaving)["life"] == "stopped"
        harness.wait_until(stopped, NODE_SECONDS_MAX, f"the end of {leaving}")
        self.check_refused_to_start(cluster, leaving)
        load.await_progress()
        load.end()
        for node in staying:
            self.assertGreater(load.verify(cluster.url(node)), 0)

    def asked(self, identity, address, question):
        """What a node answers to a question over `cairn-issue/1`: a byte 0, then a frame."""
        host, port = address.rsplit(":", 1)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.load_verify_locations(identity.kept_in / "ca.pem")
        context.load_cert_chain(identity.kept_in / "node.pem", identity.kept_in / "node.key")
        context.set_alpn_protocols(["cairn-issue/1"])
        tcp = socket.create_connection((host.strip("[]"), int(port)), ASK_SECONDS_MAX)
        with context.wrap_socket(tcp) as stream, stream.makefile("rb") as answers:
            self.assertEqual(answers.read(1), b"\0", "it is served")
            message = json.dumps(question).encode()
            stream.sendall(struct.pack(">I", len(message)) + message)
            length = struct.unpack(">I", answers.read(4))[0]
            self.assertLessEqual(length, FRAME_LEN_BYTES_MAX)
            return json.loads(answers.read(length))

    def authority(self, identity):
        """The fingerprint of the CA, as the first certificate of `ca.pem` has it."""
        first = (identity.kept_in / "ca.pem").read_text().split("-----END CERTIFICATE-----")[0] + "-----END CERTIFICATE-----\n"
        return hashlib.sha256(ssl.PEM_cert_to_DER_cert(first)).hexdigest()

    def changed(self, value, **fields):
        return json.dumps({**json.loads(value), **fields}, separators=(",", ":")).encode()

    def check_cannot(self, client, key, value):
        """Neither is a key written, nor does it go."""
        was_there = client.get(key) is not None
        for change in (lambda: client.put(key, value), lambda: client.delete(key)):
            with self.assertRaises(etcd.Refused, msg=key):
                change()
        self.assertEqual(client.get(key) is not None, was_there, key)

    def test_a_node_without_a_member_takes_neither_key_nor_rights(self):
        cluster, hostile, staying = self.of_four()
        prefix = self.keys(cluster, hostile)
        identity = self.identity(cluster, hostile)
        ids = {name: json.loads((self.folder(cluster, name) / "cluster.json").read_text())["node"] for name in cluster.names}
        internal = {name: json.loads((self.folder(cluster, name) / "cluster.json").read_text())["internal_address"] for name in cluster.names}
        url = etcd.members(self.folder(cluster, staying[0]))[0][0]
        own, other = ids[hostile].encode(), ids[staying[2]].encode()
        authority = self.authority(identity)
        token = prefix + b"tokens/00000000deadbeef"
        secret = b"\x42" * 32
        now = int(time.time())
        planted = {
            "format": 1, "sha256": hashlib.sha256(secret).hexdigest(), "made": {"seconds": now, "nanos": 0}, "made_by": ids[staying[0]],
            "expires": {"seconds": now + 3600, "nanos": 0}, "used_by": None,
        }
        cluster.cairn(staying[0], "user", "create", "operator", "--role", "viewer", "--password-file", self.password_file())
        with etcd.Client(identity, url) as client:
            # Another one drains: this one would be the next to get a member, with all rights and the key of the CA.
            node = client.get(prefix + b"nodes/" + other)
            self.check_cannot(client, prefix + b"nodes/" + other, self.changed(node, draining=True))
            # Another one is away, which comes to the same.
            alive = client.get(prefix + b"alive/" + other)
            self.check_cannot(client, prefix + b"alive/" + other, alive)
            # Its certificate would have the name of another node.
            record = client.get(prefix + b"nodes/" + own)
            self.check_cannot(client, prefix + b"nodes/" + own, self.changed(record, internal_address="node1.example.org:23042"))
            # Somebody of its own may change everything.
            users = client.get(prefix + b"users")
            known = json.loads(base64.b64decode(json.loads(users)["users"]))
            known["evil"] = {**known["operator"], "role": "admin"}
            forged = base64.b64encode(json.dumps(known, separators=(",", ":")).encode()).decode()
            self.check_cannot(client, prefix + b"users", self.changed(users, users=forged))
            # All nodes would trust a CA of its own.
            made = {"format": 1, "phase": "trust", "begun": {"seconds": now, "nanos": 0}, "old_pem": "a", "new_pem": "b"}
            self.check_cannot(client, prefix + b"authority-rotation", json.dumps(made).encode())
            self.check_cannot(client, token, json.dumps(planted).encode())
            for key in (b"cluster", b"removed/" + own, b"removed/" + other, b"names/node/" + staying[0].encode(), b"recovered", b"etcd-restart"):
                self.check_cannot(client, prefix + key, b"{}")
            # What it says of another one where it speaks for itself is no sign of life of that one.
            client.put(prefix + b"iscsi/" + own, self.changed(alive))
            for call in ("UserList", "RoleList", "AuthDisable"):
                self.assertIsNone(client.call(etcd.AUTH + call), call)
        peers = [peer for _, peer in etcd.members(self.folder(cluster, staying[0]))]
        self.assertFalse(any(map(identity.peer_answers, peers)))
        self.assertTrue(all(map(self.identity(cluster, staying[1]).peer_answers, peers)))

        def has_more():
            with etcd.Client(identity, url) as client:
                if client.call(etcd.AUTH + "UserList") is not None:
                    return "all rights in etcd"
            for name in staying:
                answer = self.asked(identity, internal[name], {"key": {"authority": authority}})
                if "refused" not in answer:
                    return f"the key of the CA, by {name}"
            return None

        until = time.monotonic() + RIGHTS_LOOKS_SECONDS
        harness.wait_until(lambda: has_more() or time.monotonic() > until, NODE_SECONDS_MAX, "looks of all members")
        self.assertIsNone(has_more())
        # Its certificate has the names that the map has of it.
        request = identity.kept_in / "request.pem"
        signing = ["openssl", "req", "-new", "-key", str(identity.kept_in / "node.key"), "-subj", "/CN=node1.example.org"]
        subprocess.run([*signing, "-out", str(request)], check=True, capture_output=True)
        question = {"certificate": {"request": request.read_text(), "authority": authority}}
        issued = self.asked(identity, internal[staying[0]], question)["certificate"]["certificate_pem"]
        shown = subprocess.run(["openssl", "x509", "-noout", "-text"], input=issued, capture_output=True, text=True, check=True).stdout
        self.assertIn(ids[hostile], shown)
        self.assertNotIn("example.org", shown)
        self.assertIn("viewer", cluster.cairn(staying[0], "user", "list").stdout)

        # Nothing of it is left when it is removed, what it wrote of itself neither: that kept nobody from removing it.
        cluster.cairn(staying[0], "node", "drain", hostile)
        self.await_drained(cluster, hostile)
        cluster.cairn(staying[0], "node", "remove", hostile)
        member = self.identity(cluster, staying[0])
        with etcd.Client(member, url) as client:
            for key in (token, *(prefix + folder + own for folder in (b"nodes/", b"alive/", b"iscsi/", b"disk-adds/", b"authority-notes/"))):
                self.assertIsNone(client.get(key), key)
            self.assertIsNotNone(client.get(prefix + b"removed/" + own))
        reached = lambda: identity.answers(url) or identity.peer_answers(etcd.members(self.folder(cluster, staying[0]))[0][1])
        harness.wait_until(lambda: not reached(), REVOKED_SECONDS_MAX, "that no member takes its certificate")

    def password_file(self):
        path = self.scratch / "password"
        path.write_text("a sentence that nobody guesses\n")
        path.chmod(0o600)
        return path

    def test_a_ticket_goes_with_the_node_that_made_it(self):
        cluster = self.cluster(5, netns="no")
        leaving, asked, *_ = cluster.names[::-1]
        ticket = cluster.cairn(leaving, "cluster", "token").stdout.strip()
        for seconds in ("25h", "3650d"):
            refused = cluster.cairn(asked, "cluster", "token", "--valid", seconds, check=False)
            self.assertNotEqual(refused.returncode, 0)
            self.assertIn("the limits are 1 s and 86400 s", refused.stderr)
        cluster.cairn(asked, "node", "drain", leaving)
        self.await_drained(cluster, leaving)
        removed = lambda: cluster.cairn(asked, "node", "remove", leaving, check=False).returncode == 0
        harness.wait_until(removed, NODE_SECONDS_MAX, f"that {leaving} is removed")
        ports = harness.Ports()
        argv = [str(harness.cairn_path()), "cluster", "join", ticket, "--node", "evil"]
        argv += ["--internal", f"127.0.0.1:{ports.next()}", "--external", f"127.0.0.1:{ports.next()}"]
        argv += ["--etcd-client-port", str(ports.next()), "--etcd-peer-port", str(ports.next())]
        argv += ["--cluster-dir", str(self.scratch / "evil")]
        joined = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=NODE_SECONDS_MAX)
        self.assertNotEqual(joined.returncode, 0, joined.stdout)
        self.assertNotIn("evil", {node["name"] for node in cluster.status([leaving])["nodes"]})

    def killed_removal(self, cluster, asked, leaving, after_seconds):
        """Has a node remove another one, and kills it so long after it was asked: the server alone, with no time for anything."""
        machine = cluster.machine(asked)
        argv = [str(harness.cairn_path()), "node", "remove", leaving, "--server", machine["admin"]]
        argv += ["--token-file", machine["token_file"]]
        removing = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        at = time.monotonic() + after_seconds
        harness.wait_until(lambda: time.monotonic() >= at, NODE_SECONDS_MAX, "the moment of the kill", poll_seconds=0.001)
        os.kill(machine["pid"], signal.SIGKILL)
        said, _ = removing.communicate(timeout=NODE_SECONDS_MAX)
        return removing.returncode, said

    def await_removed(self, cluster, killed, other, leaving):
        """Waits until a removal is done whose node was killed, and has another node do it again while it is not."""

        def removed():
            if leaving not in {node["name"] for node in cluster.status([killed])["nodes"]}:
                return True
            return cluster.cairn(other, "node", "remove", leaving, check=False).returncode == 0

        harness.wait_until(removed, NODE_SECONDS_MAX, f"the removal of {leaving}")

    def test_a_removal_whose_node_is_killed_is_done_or_can_be_repeated(self):
        cluster, leaving, staying = self.of_four()
        prefix = self.keys(cluster, leaving)
        urls = etcd.members(self.folder(cluster, staying[0]))
        load = self.load(cluster)
        chance = random.Random(KILLED_SEED)
        # How long one takes on this machine, by the first, which is not killed.
        removal_seconds = None
        for index in range(1 + KILLED_COUNT):
            gone = self.identity(cluster, leaving)
            self.assertTrue(gone.answers(urls[0][0]), f"{leaving} is of the cluster")
            asked, other = staying[index % len(staying)], staying[(index + 1) % len(staying)]
            cluster.cairn(asked, "node", "drain", leaving)
            self.await_drained(cluster, leaving)
            what = f"{leaving}, removed by {asked}"
            if removal_seconds is None:
                began = time.monotonic()
                cluster.cairn(asked, "node", "remove", leaving)
                removal_seconds = time.monotonic() - began
            else:
                after_seconds = chance.uniform(0, removal_seconds)
                said = self.killed_removal(cluster, asked, leaving, after_seconds)
                what += f", which was killed after {after_seconds:.3f} s and said {said}"
                self.await_removed(cluster, asked, other, leaving)
                cluster.start_nodes(asked)
                cluster.await_serving(asked)
            reached = lambda: [url for pair in urls for url, asks in zip(pair, (gone.answers, gone.peer_answers)) if asks(url)]
            harness.wait_until(lambda: not reached(), REVOKED_SECONDS_MAX, f"that no member takes the certificate of {what}")
            for node in staying:
                kept = self.scratch / f"kept-{node}-{index}"
                kept.mkdir()
                identity = etcd.Identity(self.folder(cluster, node), kept)
                reads = lambda who=identity: self.reads_the_map(who, urls[0][0], prefix)
                harness.wait_until(reads, NODE_SECONDS_MAX, f"that {node} reads the map after the removal of {what}")
            self.assertNotIn(leaving, {node["name"] for node in cluster.status()["nodes"]}, what)
            load.await_progress()
            if index < KILLED_COUNT:
                cluster.add()
                leaving = cluster.names[-1]
        load.end()
        for node in staying:
            cluster.await_serving(node)
            self.assertGreater(load.verify(cluster.url(node)), 0)

    def test_a_node_that_was_away_when_it_was_removed_is_told_so(self):
        cluster, leaving, staying = self.of_four()
        gone = self.identity(cluster, leaving)
        cluster.cairn(staying[0], "node", "drain", leaving)
        self.await_drained(cluster, leaving)
        cluster.stop(leaving)
        cluster.cairn(staying[0], "node", "remove", leaving)
        urls = etcd.members(self.folder(cluster, staying[0]))
        closed = lambda: not any(gone.answers(url) for url, _ in urls)
        harness.wait_until(closed, REVOKED_SECONDS_MAX, "that no member takes its certificate")
        # It cannot ask etcd any more; other nodes tell it.
        self.check_refused_to_start(cluster, leaving)
        # The list of what is revoked is there before anything else when all nodes start again.
        cluster.kill(*staying)
        cluster.start_nodes(*staying)
        cluster.await_serving(staying[0])
        self.assertTrue(closed())
