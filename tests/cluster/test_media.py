"""Kinds of disks in a cluster: data of a volume lives on the kind that it asks for on all nodes, also after its owner is gone."""

import json

from cluster.world import ClusterTest
from lib import harness, libnfs

# Until other nodes know of a change of the map.
KNOWN_SECONDS_MAX = 30
MOVED_SECONDS_MAX = 120
DISKS = 3


class Media(ClusterTest):
    def disks(self, cluster, node):
        return json.loads(cluster.cairn(node, "disk", "list", "--json").stdout)["disks"]

    def where(self, cluster, node):
        shown = json.loads(cluster.cairn(node, "volume", "show", "main", "--json").stdout)
        return {(it["wanted"], it["on"]): it["bytes"] for it in shown.get("media_bytes", [])}

    def name_disks(self, cluster, node):
        """The last disk of each node is ssd, the others are hdd."""
        disks = sorted(self.disks(cluster, node), key=lambda disk: disk["label"])
        for number, disk in enumerate(disks):
            cluster.cairn(node, "disk", "set", disk["id"], "--media", "ssd" if number % DISKS == DISKS - 1 else "hdd")

    def await_all_on_ssd(self, cluster, node):
        moved = lambda: set(self.where(cluster, node)) == {("ssd", "ssd")}
        harness.wait_until(moved, MOVED_SECONDS_MAX, f"all data is on ssd: {self.where(cluster, node)}")

    def test_data_lives_on_its_kind_on_all_nodes(self):
        cluster = self.cluster(3, disks=DISKS)
        owner = cluster.owner()
        asked, _ = cluster.others(owner)
        self.name_disks(cluster, asked)
        known = lambda: {disk["media"] for disk in self.disks(cluster, owner)} == {"hdd", "ssd"}
        harness.wait_until(known, KNOWN_SECONDS_MAX, "the owner knows the kinds of all disks")
        refused = cluster.cairn(asked, "volume", "set", "main", "--media", "nvme", check=False)
        self.assertIn("no disk of the pool", refused.stderr)
        cluster.cairn(asked, "volume", "set", "main", "--media", "ssd")
        wanted = lambda: "ssd" in cluster.cairn(owner, "volume", "show", "main").stdout
        harness.wait_until(wanted, KNOWN_SECONDS_MAX, "the owner knows what the volume asks for")
        data = {f"/file{number}": bytes([number]) * 3_000_000 for number in range(4)}
        with libnfs.Mount(cluster.url(asked)) as main:
            for name, content in data.items():
                main.write_file(name, content)
        self.await_all_on_ssd(cluster, owner)

        # The next owner goes on so. While a node is away there are too few of the kind, and nothing is refused.
        cluster.kill(owner)
        heir = cluster.owner(without=(owner,))
        with libnfs.Mount(cluster.url(heir)) as main:
            for name, content in data.items():
                self.assertEqual(main.read_file(name), content, name)
            main.write_file("/late", b"late" * 500_000)
        cluster.start_nodes(owner)
        cluster.await_serving(owner)
        heir = cluster.owner()
        self.await_all_on_ssd(cluster, heir)
        for node in cluster.names:
            with libnfs.Mount(cluster.url(node)) as main:
                self.assertEqual(main.read_file("/late"), b"late" * 500_000, node)
