"""All nodes are restarted, one after the other, while clients work."""

import json

from cluster.world import STOPPED_PAUSE_SECONDS_MAX, ClusterTest


class Upgrade(ClusterTest):
    def order(self, cluster, node, *flags):
        listed = cluster.cairn(node, "node", "upgrade", "--json", *flags)
        return [name for name, _ in json.loads(listed.stdout)]

    def test_nodes_restart_in_turn_under_load(self):
        cluster = self.cluster(3)
        load = self.load(cluster)
        order = self.order(cluster, cluster.names[0], "--wait")
        self.assertEqual(sorted(order), sorted(cluster.names))
        # Whoever owns the volume has the last turn.
        self.assertEqual(order[-1], cluster.owner())
        load.forget_pauses()
        for node in order:
            other = cluster.others(node)[0]
            cluster.stop(node)
            refused = cluster.cairn(other, "node", "upgrade", check=False)
            self.assertEqual(refused.returncode, 4, refused.stdout + refused.stderr)
            self.assertIn(f"node {node} is down", refused.stderr)
            load.await_progress()
            cluster.start_nodes(node)
            self.order(cluster, other, "--wait", "--wait-max", "2m")
            load.await_progress()
        print(f"nodes were restarted in turn: pause of {load.pause_seconds():.1f} s", flush=True)
        self.assertLess(load.pause_seconds(), STOPPED_PAUSE_SECONDS_MAX)
        load.end()
        for node in cluster.names:
            self.assertGreater(load.verify(cluster.url(node)), 0)
