"""A node that was removed has nothing in etcd any more, though its certificate is valid."""

import contextlib
import json
import subprocess

from cluster.world import ClusterTest
from lib import etcd, harness

# On a busy machine.
NODE_SECONDS_MAX = 240
# What `cairn` ends with when it refuses.
REFUSED = 4
# Members start again one after the other, each when all are well.
REVOKED_SECONDS_MAX = 120
PREFIX = b"/cairn/"


class Revocation(ClusterTest):
    def of_four(self):
        """A cluster, its node without a member of etcd, and the others. All on one address: etcd asks whence a peer comes."""
        cluster = self.cluster(4, netns="no")
        with_member = {member["name"] for member in cluster.status()["etcd"]["members"]}
        leaving, = set(cluster.names) - with_member
        return cluster, leaving, cluster.others(leaving)

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

        # As a node without a member: the cluster's keys, and nothing else.
        with etcd.Client(gone, urls[0][0]) as client:
            kept = client.get(prefix + b"cluster")
            self.assertIn(b"generation", kept)
            client.put(prefix + b"of-a-test", b"1")
            client.delete(prefix + b"of-a-test")
            for change in (lambda: client.put(b"/of/nobody", b"x"), lambda: client.delete_below(b"/")):
                with self.assertRaises(etcd.Refused):
                    change()
            self.assertIsNone(client.call(etcd.AUTH + "UserList"))
            self.assertIsNone(client.call(etcd.CLUSTER + "MemberAdd", etcd.field(1, b"https://127.0.0.1:1")))
        old = [self.entered(etcd.Client(gone, url)) for url, _ in urls]
        for client in old:
            self.assertEqual(client.get(prefix + b"cluster"), kept)
        self.assertTrue(all(gone.peer_answers(url) for _, url in urls))

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
