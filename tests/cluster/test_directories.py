"""Directories with a protection of their own in a cluster: all nodes know of it, the next owner keeps it, and the nodes that it needs stay."""

import json

from cluster.world import ClusterTest
from lib import harness, libnfs

# Until other nodes know of a change of the map.
KNOWN_SECONDS_MAX = 30
DONE_SECONDS_MAX = 120
REFUSED = 4


class Directories(ClusterTest):
    def protections(self, cluster, node):
        shown = json.loads(cluster.cairn(node, "volume", "show", "main", "--json").stdout)
        return [it["protection"] for it in shown.get("directory_protections", [])]

    def await_protections(self, cluster, node, wanted):
        known = lambda: self.protections(cluster, node) == wanted
        harness.wait_until(known, DONE_SECONDS_MAX, f"{node} knows that directories ask for {wanted}")

    def test_the_next_owner_keeps_what_a_directory_asks_for(self):
        cluster = self.cluster(3, disks=2)
        owner = cluster.owner()
        asked, third = cluster.others(owner)
        cluster.cairn(asked, "volume", "set", "main", "--protection", "2x")
        data = {f"/safe/file{number}": bytes([number]) * 3_000_000 for number in range(3)}
        with libnfs.Mount(cluster.url(owner)) as main:
            main.mkdir("/safe")
        cluster.cairn(owner, "policy", "set", "main/safe", "--protection", "3x")
        self.await_protections(cluster, asked, ["3x"])
        with libnfs.Mount(cluster.url(asked)) as main:
            for name, content in data.items():
                main.write_file(name, content)
        # Three copies, each on its node, survive two nodes; with two nodes they would survive one.
        refused = cluster.cairn(asked, "node", "drain", third, check=False)
        self.assertEqual(refused.returncode, REFUSED, refused.stderr)
        self.assertIn("would survive that of 1", refused.stderr)

        cluster.kill(owner)
        heir = cluster.owner(without=(owner,))
        with libnfs.Mount(cluster.url(heir)) as main:
            for name, content in data.items():
                self.assertEqual(main.read_file(name), content, name)
            main.write_file("/safe/late", b"late" * 500_000)
        self.assertIn("3x", cluster.cairn(heir, "policy", "show", "main/safe").stdout)
        cluster.start_nodes(owner)
        cluster.await_serving(owner)
        heir = cluster.owner()
        self.await_protections(cluster, heir, ["3x"])

        # Nobody asks for it any more: all nodes know, and a node may leave.
        cluster.cairn(heir, "policy", "clear", "main/safe")
        cluster.cairn(heir, "policy", "apply", "main", "--wait")
        for node in cluster.names:
            self.await_protections(cluster, node, [])
        for node in cluster.names:
            with libnfs.Mount(cluster.url(node)) as main:
                self.assertEqual(main.read_file("/safe/late"), b"late" * 500_000, node)
        cluster.cairn(heir, "node", "drain", cluster.others(heir)[0])
