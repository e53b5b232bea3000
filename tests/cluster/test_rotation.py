"""Another authority takes the place of the one that all certificates are of, while clients work and nodes die."""

import json
import shutil
import socket
import ssl
import subprocess

from cluster.world import ClusterTest
from lib import etcd, harness

# On a busy machine.
NODE_SECONDS_MAX = 240
# Members start again one after the other, each when all are well, and that twice.
ROTATED_SECONDS_MAX = 300
JOIN_SECONDS_MAX = 60
ANSWER_SECONDS_MAX = 20
# What `cairn` ends with when it refuses.
REFUSED = 4
PREFIX = b"/cairn/"
SHARDS = "cairn-shards/1"
WELCOME = b"\0"


class Rotation(ClusterTest):
    def folder(self, cluster, node):
        return cluster.folder / node / "cluster"

    def identity(self, cluster, node, name):
        kept = self.scratch / f"kept-{name}"
        kept.mkdir()
        return etcd.Identity(self.folder(cluster, node), kept)

    def trusting_as(self, identity, cluster, node):
        """The same certificate, which knows all others by what that node trusts now: so it is others that refuse it."""
        shutil.copyfile(self.folder(cluster, node) / "ca.pem", identity.kept_in / "ca.pem")
        return identity

    def internal_takes(self, identity, address):
        """Whether the internal port of a node takes this for another node: its first byte says so."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        context.load_cert_chain(identity.kept_in / "node.pem", identity.kept_in / "node.key")
        context.set_alpn_protocols([SHARDS])
        host, _, port = address.rpartition(":")
        tcp = socket.create_connection((host.strip("[]"), int(port)), ANSWER_SECONDS_MAX)
        try:
            with tcp, context.wrap_socket(tcp) as stream:
                return stream.recv(1) == WELCOME
        except OSError:
            return False

    def taken_at(self, identity, cluster, node):
        """The ports at which a certificate is taken, of all that there are."""
        urls = etcd.members(self.folder(cluster, node))
        taken = {client for client, _ in urls if identity.answers(client)}
        taken |= {peer for _, peer in urls if identity.peer_answers(peer)}
        internal = [found["internal"] for found in cluster.status_of(node)["nodes"] if found["alive"]]
        return taken | {address for address in internal if self.internal_takes(identity, address)}

    def ports(self, cluster, node):
        urls = etcd.members(self.folder(cluster, node))
        internal = [found["internal"] for found in cluster.status_of(node)["nodes"] if found["alive"]]
        return {url for pair in urls for url in pair} | set(internal)

    def rotation(self, cluster, node):
        """How far it is, by what a node says; none while that does not answer."""
        done = cluster.cairn(node, "cluster", "rotate-ca", "--status", "--json", check=False)
        return json.loads(done.stdout) if done.returncode == 0 else None

    def phase(self, cluster, node):
        found = self.rotation(cluster, node)
        return found["rotation"]["phase"] if found and "rotation" in found else None

    def begun(self, cluster, node):
        """A command that begins it, or finds it, and follows it."""
        machine = cluster.machine(node)
        argv = [str(harness.cairn_path()), "cluster", "rotate-ca", "--server", machine["admin"]]
        argv += ["--token-file", machine["token_file"]]
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(self.ended, process)
        return process

    def ended(self, process):
        if process.poll() is None:
            process.kill()
            process.communicate()

    def await_phase(self, cluster, node, phases):
        reached = lambda: self.phase(cluster, node) in phases
        harness.wait_until(reached, ROTATED_SECONDS_MAX, f"one of {phases} by what {node} says")

    def await_waits_for(self, cluster, asked, away, alone):
        """Waits until a node that is away is waited for, and named. `alone`: all others have done what they can."""

        def waits():
            found = self.rotation(cluster, asked)
            waits_for = found["rotation"]["waits_for"] if found and "rotation" in found else []
            is_alone = len(waits_for) == 1 or not alone
            return is_alone and [wait["node"] for wait in waits_for if wait["away"]] == [away]

        harness.wait_until(waits, ROTATED_SECONDS_MAX, f"that {away} is waited for")
        said = cluster.cairn(asked, "cluster", "rotate-ca", "--status").stdout
        self.assertIn(f"{away}, which has to ", said)
        self.assertIn(f"start it, or remove it (`cairn node drain {away}`", said)

    def maker(self, cluster, node):
        """The node that has the key of the new authority first."""
        name = json.loads((self.folder(cluster, node) / "cluster.json").read_text())["cluster_name"]
        identity = self.identity(cluster, node, "maker")
        url = etcd.members(self.folder(cluster, node))[0][0]
        with etcd.Client(identity, url) as client:
            record = json.loads(client.get(PREFIX + name.encode() + b"/authority-rotation"))
        holder = record["with_key"][0]
        ids = {json.loads((self.folder(cluster, it) / "cluster.json").read_text())["node"]: it for it in cluster.names}
        return ids[holder]

    def pems(self, path):
        return [piece for piece in path.read_text().split("-----BEGIN") if piece.strip()]

    def join(self, ticket):
        ports = harness.Ports()
        folder = self.scratch / f"join-{len(list(self.scratch.glob('join-*')))}"
        argv = [str(harness.cairn_path()), "cluster", "join", ticket, "--node", "stranger"]
        argv += ["--internal", f"127.0.0.1:{ports.next()}", "--external", f"127.0.0.1:{ports.next()}"]
        argv += ["--etcd-client-port", str(ports.next()), "--etcd-peer-port", str(ports.next())]
        argv += ["--cluster-dir", str(folder)]
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=JOIN_SECONDS_MAX)
        return done, folder

    def check_is_over(self, cluster, nodes, old):
        """All certificates are of one new authority, and nothing of the old one is left."""
        new = {self.rotation(cluster, node)["authority"] for node in nodes}
        self.assertEqual(len(new), 1, new)
        self.assertNotEqual(new, {old})
        trusted = {(self.folder(cluster, node) / "ca.pem").read_text() for node in nodes}
        self.assertEqual(len(trusted), 1)
        self.assertEqual(len(self.pems(self.folder(cluster, nodes[0]) / "ca.pem")), 1)
        keys = {path.read_text() for node in nodes if (path := self.folder(cluster, node) / "ca.key").exists()}
        self.assertEqual(len(keys), 1)

    def test_an_authority_is_replaced_while_clients_work_and_a_node_is_killed(self):
        # All on one address: etcd asks whence a peer comes.
        cluster = self.cluster(3, netns="no")
        nodes = list(cluster.names)
        before = self.rotation(cluster, nodes[0])
        self.assertNotIn("rotation", before)
        old, saved_pem = before["authority"], (self.folder(cluster, nodes[1]) / "ca.pem").read_text()
        saved = self.identity(cluster, nodes[1], "saved")
        # A member of etcd begins a while after its node.
        is_taken = lambda: self.taken_at(saved, cluster, nodes[0]) == self.ports(cluster, nodes[0])
        harness.wait_until(is_taken, ROTATED_SECONDS_MAX, "that every port takes the certificate")
        ticket = cluster.cairn(nodes[0], "cluster", "token").stdout.strip()
        load = self.load(cluster)

        self.begun(cluster, nodes[0])
        self.await_phase(cluster, nodes[0], ("trust", "renew", "drop"))
        killed = self.maker(cluster, nodes[1])
        cluster.kill(killed)
        asked, other = cluster.others(killed)
        # Members of etcd do not start again while one is down, so that others may be waited for as well.
        self.await_waits_for(cluster, asked, killed, alone=False)
        # Nothing is lost by that: nodes and clients go on, and a second call finds the first.
        second = self.begun(cluster, other)
        load.await_progress()
        cluster.start_nodes(killed)
        said, errors = second.communicate(timeout=ROTATED_SECONDS_MAX)
        self.assertEqual(second.returncode, 0, errors)
        for line in ("drop ", "done "):
            self.assertIn(f"\n{line}", f"\n{said}")
        for node in nodes:
            self.await_phase(cluster, node, ("done",))
        self.check_is_over(cluster, nodes, old)
        new_pem = (self.folder(cluster, nodes[1]) / "ca.pem").read_text()
        self.assertNotEqual(new_pem, saved_pem)
        # Everybody sees the certificates of nodes: with a key of before they are worth nothing.
        self.assertNotEqual((self.folder(cluster, nodes[1]) / "node.key").read_bytes(), (saved.kept_in / "node.key").read_bytes())

        # What was saved before is taken nowhere, though it knows whom it speaks with; what there is now is taken everywhere.
        cluster.await_etcd()
        self.assertEqual(self.taken_at(self.trusting_as(saved, cluster, nodes[1]), cluster, nodes[0]), set())
        now = self.identity(cluster, nodes[1], "now")
        everywhere = lambda: self.taken_at(now, cluster, nodes[0]) == self.ports(cluster, nodes[0])
        harness.wait_until(everywhere, NODE_SECONDS_MAX, "that the new certificate is taken at all ports")
        refused, folder = self.join(ticket)
        self.assertEqual(refused.returncode, REFUSED, refused.stderr)
        self.assertIn("from before a rotation of the CA", refused.stderr)
        self.assertIn("cairn cluster token", refused.stderr)
        self.assertFalse((folder / "node.key").exists())

        load.await_progress()
        load.end()
        for node in nodes:
            cluster.await_serving(node)
            self.assertGreater(load.verify(cluster.url(node)), 0)
        joined, folder = self.join(cluster.cairn(nodes[0], "cluster", "token").stdout.strip())
        self.assertEqual(joined.returncode, 0, joined.stderr)
        self.assertEqual((folder / "ca.pem").read_text(), new_pem)

    def test_a_node_that_is_away_is_waited_for_until_it_is_removed(self):
        cluster = self.cluster(4, netns="no")
        with_member = {member["name"] for member in cluster.status()["etcd"]["members"]}
        leaving, = set(cluster.names) - with_member
        asked, *rest = cluster.others(leaving)
        old = self.rotation(cluster, asked)["authority"]
        gone = self.identity(cluster, leaving, "gone")
        cluster.stop(leaving)
        self.begun(cluster, asked)
        self.await_waits_for(cluster, asked, leaving, alone=True)
        # All others have both by now, and no certificate is of the new one before all trust it.
        self.assertEqual(self.phase(cluster, asked), "trust")
        self.assertEqual({self.rotation(cluster, node)["authority"] for node in (asked, *rest)}, {old})
        cluster.cairn(asked, "node", "drain", leaving)

        def drained():
            drain, = [node["drain"] for node in cluster.status()["nodes"] if node["name"] == leaving]
            return drain["done"]

        harness.wait_until(drained, NODE_SECONDS_MAX, f"that {leaving} is drained")
        removed = lambda: cluster.cairn(asked, "node", "remove", leaving, check=False).returncode == 0
        harness.wait_until(removed, NODE_SECONDS_MAX, f"that {leaving} is removed")
        for node in (asked, *rest):
            self.await_phase(cluster, node, ("done",))
        self.check_is_over(cluster, [asked, *rest], old)
        self.assertEqual(self.taken_at(self.trusting_as(gone, cluster, asked), cluster, asked), set())

    def test_nodes_that_come_meanwhile_are_of_the_new_authority_in_the_end(self):
        cluster = self.cluster(3, netns="no")
        nodes = list(cluster.names)
        old = self.rotation(cluster, nodes[0])["authority"]
        # It does not get on while one is away: a ticket of now is good until the node has joined with it.
        cluster.stop(nodes[2])
        self.begun(cluster, nodes[0])
        self.await_phase(cluster, nodes[0], ("trust",))
        cluster.add()
        cluster.start_nodes()
        everybody = list(cluster.names)
        self.assertEqual(len(everybody), 4)
        for node in everybody:
            self.await_phase(cluster, node, ("done",))
        self.check_is_over(cluster, everybody, old)
        # And all of them start again with what they have.
        cluster.kill(*everybody)
        cluster.start_nodes()
        for node in everybody:
            cluster.await_serving(node)
