"""Classes of service in a cluster: made anywhere, known everywhere, and credit goes with the volume."""

import json
import time

from cluster.world import ClusterTest
from lib import harness, libnfs

MB = 1_000_000
KNOWN_SECONDS_MAX = 20
CREDIT_SECONDS_MAX = 60
KEPT_SECONDS = 21
FULL = 90 * MB * 20


class Classes(ClusterTest):
    def volume(self, cluster, node):
        return json.loads(cluster.cairn(node, "volume", "show", "main", "--json").stdout)

    def credit(self, cluster, node):
        rates = self.volume(cluster, node).get("rates") or {"limits": []}
        return next((limit["credit"] for limit in rates["limits"]), 0)

    def test_classes_are_the_cluster_s_and_credit_goes_with_the_volume(self):
        cluster = self.cluster(3)
        owner = cluster.owner()
        first, second = cluster.others(owner)
        cluster.cairn(first, "class", "create", "gold", "--throughput", "10MB/s", "--burst", "10x", "--burst-credit", "20s")

        def is_known():
            listed = json.loads(cluster.cairn(second, "class", "list", "--json").stdout)["classes"]
            return "gold" in [entry["name"] for entry in listed]

        harness.wait_until(is_known, KNOWN_SECONDS_MAX, "the class on another node")
        cluster.cairn(second, "volume", "set", "main", "--class", "gold")
        harness.wait_until(lambda: self.credit(cluster, owner) > 0.99 * FULL, KNOWN_SECONDS_MAX, "the credit at the owner")
        # What is used the owner tells, whoever is asked.
        self.assertGreater(self.credit(cluster, first), 0.99 * FULL)
        self.assertEqual(self.volume(cluster, first)["owner"], owner)
        refused = cluster.cairn(first, "class", "delete", "gold", check=False)
        self.assertIn("by main", refused.stderr)
        # Through a node that passes it on: more than half of the credit.
        with libnfs.Mount(cluster.url(first)) as mount:
            for number in range(20):
                mount.write_file(f"/f{number}", bytes(60 * MB))
        for node in cluster.names:
            self.assertLess(self.credit(cluster, node), 0.7 * FULL)
            self.assertGreaterEqual(self.volume(cluster, node)["used_bytes"], 20 * 60 * MB)
        # A part of it: set at one node, told by the owner to another.
        cluster.cairn(first, "limit", "set", "main", "clients/0.0.0.0/0", "--throughput", "500MB/s")

        def told(node):
            limits = json.loads(cluster.cairn(node, "limit", "list", "main", "--json").stdout)
            return limits["limits"] and "bytes_per_second" in limits["limits"][0] and limits.get("owner") in (None, owner)

        for node in cluster.names:
            harness.wait_until(lambda node=node: told(node), KNOWN_SECONDS_MAX, f"what a part uses, at {node}")
        # What is kept is at most so old.
        time.sleep(KEPT_SECONDS)
        cluster.cairn(first, "volume", "move", "main", "--to", second)
        harness.wait_until(lambda: cluster.owner() == second, CREDIT_SECONDS_MAX, "the move of the volume")
        harness.wait_until(lambda: self.credit(cluster, second) > 0, CREDIT_SECONDS_MAX, "the credit at the next owner")
        self.assertLess(self.credit(cluster, second), 0.95 * FULL)
