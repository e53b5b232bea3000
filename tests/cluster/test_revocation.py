"""A node that was removed has nothing in etcd any more, though its certificate is valid."""

import contextlib
import json
import os
import random
import signal
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
