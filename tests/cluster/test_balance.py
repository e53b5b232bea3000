"""Who owns which volumes: spread by load, on demand, within the memory limit."""

import json

from cluster.world import ClusterTest
from lib import harness

VOLUMES_COUNT = 12
MEMORY_LIMIT_BYTES = 512 << 20
# A takeover of many volumes, on a busy machine.
OWNED_SECONDS_MAX = 90


class Balance(ClusterTest):
    def volumes(self, cluster, asked, count):
        """Makes volumes until there are so many; `main` is one of them."""
        for index in range(1, count):
            cluster.cairn(asked, "volume", "create", f"v{index}")

    def counts(self, cluster, asked):
        """How many volumes each node owns, by what a node says; none while some have no owner."""
        status = cluster.status_of(asked)
        owners = [volume["owner"] for volume in status["volumes"]] if status else [None]
        if None in owners:
            return None
        return {name: owners.count(name) for name in cluster.names}

    def await_owned(self, cluster, asked, is_it, what):
        def seen():
            counts = self.counts(cluster, asked)
            return counts if counts and is_it(counts) else None

        return harness.wait_until(seen, OWNED_SECONDS_MAX, what)

    def plan(self, cluster, asked):
        return json.loads(cluster.cairn(asked, "cluster", "balance", "--dry-run", "--json").stdout)

    def assert_within_memory(self, cluster):
        """The most that each server had at any time is below the limit that it was given."""
        for name, machine in cluster.machines().items():
            if machine["life"] == "ready":
                with open(f"/proc/{machine['pid']}/status") as status:
                    peak = next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))
                self.assertLess(peak, MEMORY_LIMIT_BYTES, f"{name} had {peak >> 20} MiB")

    def test_volumes_are_shared_again_after_a_node_was_away(self):
        cluster = self.cluster(3, netns="no")
        self.volumes(cluster, "node1", VOLUMES_COUNT)
        # New ones go where the least is, each before the next is made.
        counts = self.await_owned(cluster, "node1", lambda counts: sum(counts.values()) == VOLUMES_COUNT, "owners of all volumes")
        self.assertLessEqual(max(counts.values()) - min(counts.values()), 2, counts)
        # What a node had that is gone is shared by the others at once.
        cluster.kill("node3")
        counts = self.await_owned(cluster, "node1", lambda counts: counts["node3"] == 0, "owners on the nodes that are left")
        self.assertLessEqual(abs(counts["node1"] - counts["node2"]), 1, counts)
        self.assert_within_memory(cluster)
        cluster.start_nodes("node3")
        harness.wait_until(lambda: len(self.plan(cluster, "node1")["moves"]) > 0, OWNED_SECONDS_MAX, "that node3 takes volumes again")
        plan = self.plan(cluster, "node2")
        self.assertEqual(len(plan["moves"]), 4, plan)
        self.assertEqual({(made["to"], made["reason"]) for made in plan["moves"]}, {("node3", "count")})
        said = cluster.cairn("node2", "cluster", "balance", "--dry-run").stdout
        self.assertIn("would move", said)
        self.assertEqual(self.counts(cluster, "node1"), counts, "it was only said")
        # Done by a node that owns none of what moves.
        said = cluster.cairn("node3", "cluster", "balance").stdout
        self.assertEqual(said.count("moved "), 4, said)
        self.assertEqual(set(self.counts(cluster, "node3").values()), {4})
        self.assertIn("nothing to move", cluster.cairn("node1", "cluster", "balance").stdout)
        self.assert_within_memory(cluster)
        self.weights(cluster)

    def weights(self, cluster):
        """A node without weight gives all away, one with half of it gets half."""
        cluster.cairn("node1", "node", "weight", "node2", 0)
        self.await_owned(cluster, "node1", lambda counts: counts["node2"] == 0, "that node2 gave its volumes away")
        self.assertIn("takes none", cluster.cairn("node1", "cluster", "balance", "--dry-run").stdout)
        cluster.cairn("node1", "node", "weight", "node2", 50)
        self.assertIn("weight 50", cluster.cairn("node3", "node", "list").stdout)
        cluster.cairn("node1", "cluster", "balance")
        counts = self.counts(cluster, "node1")
        # Of 12 by weights 100, 50 and 100.
        self.assertIn(counts["node2"], (2, 3), counts)
        refused = cluster.cairn("node1", "node", "weight", "node2", 5000, check=False)
        self.assertNotEqual(refused.returncode, 0)

    def test_a_takeover_of_many_volumes_keeps_the_memory_limit(self):
        cluster = self.cluster(3, netns="no")
        self.volumes(cluster, "node1", 30)
        self.await_owned(cluster, "node1", lambda counts: sum(counts.values()) == 30, "owners of all volumes")
        cluster.kill("node1")
        self.await_owned(cluster, "node2", lambda counts: counts["node1"] == 0, "owners on two nodes")
        self.assert_within_memory(cluster)
        # All of them, one after the other as leases end.
        cluster.start_nodes("node1")
        cluster.cairn("node2", "node", "weight", "node1", 0)
        cluster.kill("node3")
        self.await_owned(cluster, "node2", lambda counts: counts["node2"] == 30, "that node2 owns all")
        self.assert_within_memory(cluster)
