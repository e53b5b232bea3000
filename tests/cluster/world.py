"""What the tests of clusters share: a cluster that is gone at the end, and load on it."""

import unittest

from lib import harness, libnfs
from lib.cluster import Cluster, Loads, can_have_namespaces

CLIENTS_COUNT = 2
# Of a client when its volume's owner is killed: the lease is over, another node takes over, the client connects again.
KILLED_PAUSE_SECONDS_MAX = 10
# When it says goodbye.
STOPPED_PAUSE_SECONDS_MAX = 3
# When nodes go that own nothing.
OTHERS_PAUSE_SECONDS_MAX = 1
# Longer than any lease.
LEASE_IS_OVER_SECONDS = 20


class ClusterTest(unittest.TestCase):
    """A test with clusters and their load, gone when it ends; of a test that failed the logs are shown."""

    def setUp(self):
        self.scratch = self.entered(harness.scratch("cluster-"))
        self.clusters = []

    def entered(self, manager):
        # unittest has enterContext only from Python 3.11 on; Ubuntu 22.04 has 3.10.
        entered = manager.__enter__()
        self.addCleanup(manager.__exit__, None, None, None)
        return entered

    def cluster(self, nodes=3, name="cluster", **options):
        cluster = Cluster(self.scratch / name, nodes, **options)
        self.clusters.append(cluster)
        self.entered(cluster)
        # With the one member that a cluster begins with, the loss of its node is the loss of etcd.
        if not options.get("external_etcd"):
            cluster.await_etcd()
        return cluster

    def load(self, cluster, nodes=(None,) * CLIENTS_COUNT):
        """Clients that mount through these nodes; through whichever serves where there is none."""
        return self.entered(Loads([cluster.url(node) for node in nodes]))

    def mount_served(self, cluster, node, volume, seconds):
        """A mount through a node: the map of exports reaches nodes a moment later, and a new owner serves a moment later."""

        def mount():
            try:
                return libnfs.Mount(cluster.url(node, volume))
            except OSError:
                return None

        return harness.wait_until(mount, seconds, f"{volume} at {node}\n{cluster.logs()}")

    def kill_owners_in_turn(self, cluster, load):
        """Four times the one that owns the volume by then; each is back before the next goes."""
        for _ in range(4):
            owner = cluster.owner()
            cluster.kill(owner)
            load.await_progress()
            cluster.heal()
            load.await_progress()

    def run(self, result=None):
        before = len(result.errors) + len(result.failures) if result else 0
        done = super().run(result)
        if result and len(result.errors) + len(result.failures) > before:
            for cluster in self.clusters:
                print(f"== {self.id()}: {cluster.folder.name}\n{self.kept_logs.get(cluster.folder.name, '')}", flush=True)
        return done

    @property
    def kept_logs(self):
        return self.__dict__.setdefault("_kept_logs", {})

    def doCleanups(self):
        # The folders are removed by what follows.
        for cluster in self.clusters:
            self.kept_logs[cluster.folder.name] = f"{cluster.tail()}\n{cluster.logs()}"
        return super().doCleanups()


def needs_namespaces(test):
    return unittest.skipUnless(can_have_namespaces(), "needs root, iproute2 and nftables")(test)
