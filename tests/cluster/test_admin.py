"""Any node takes any command: what another one has is asked of that one."""

import json

from cluster.world import ClusterTest
from lib import harness

SERVED_SECONDS_MAX = 60
MADE = [
    ["lun", "create", "two/disk", "--size", "1GiB"],
    ["igroup", "create", "two/hosts", "--initiator", "iqn.1993-08.org.debian:01:abc"],
    ["lun", "map", "two/disk", "--igroup", "hosts"],
    ["bucket", "create", "pictures", "--path", "two/pictures"],
    ["s3", "key", "create", "--volume", "two", "--uid", "0", "--gid", "0"],
    ["snapshot", "create", "two", "first"],
    ["quota", "set", "two", "--hard", "1GiB"],
    ["policy", "set", "two/pictures", "--compression", "zstd"],
]


class Admin(ClusterTest):
    def names(self, cluster, node, *words, key):
        (listed,) = json.loads(cluster.cairn(node, *words, "--json").stdout).values()
        return [f"{each.get('volume', '')}/{each[key]}" for each in listed]

    def test_any_node_takes_any_command(self):
        cluster = self.cluster(3)
        first = cluster.owner()
        other = cluster.others(first)[0]
        # Each of the two has a volume of its own.
        cluster.cairn(first, "volume", "create", "two")
        cluster.cairn(first, "volume", "move", "two", "--to", other)
        harness.wait_until(lambda: cluster.owner("two") == other, 60, "that the volume is on another node")
        cluster.cairn(first, "lun", "create", "main/own", "--size", "1GiB")
        # Its owner may not serve all of it at once.
        made_first, *made = MADE
        made_it = lambda: cluster.cairn(first, *made_first, check=False).returncode == 0
        harness.wait_until(made_it, SERVED_SECONDS_MAX, "that the owner serves LUNs of the volume")
        for words in made:
            cluster.cairn(first, *words)
        third = next(name for name in cluster.names if name not in (first, other))
        for node in (first, other, third):
            self.assertEqual(self.names(cluster, node, "lun", "list", key="name"), ["main/own", "two/disk"])
            self.assertEqual(self.names(cluster, node, "bucket", "list", key="name"), ["two/pictures"])
            self.assertIn("first", cluster.cairn(node, "snapshot", "list", "two").stdout)
            self.assertIn("/pictures", cluster.cairn(node, "policy", "list", "two").stdout)
            self.assertEqual(json.loads(cluster.cairn(node, "lun", "show", "two/disk", "--json").stdout)["maps"],
                             [{"igroup": "hosts", "number": 0}])
        refused = cluster.cairn(third, "lun", "create", "two/disk", "--size", "1GiB", check=False)
        self.assertNotEqual(refused.returncode, 0)
        self.assertIn("disk", refused.stderr)
        cluster.cairn(third, "bucket", "delete", "pictures")
        self.assertEqual(self.names(cluster, first, "bucket", "list", key="name"), [])
        absent = cluster.cairn(third, "bucket", "delete", "pictures", check=False)
        self.assertIn("pictures", absent.stderr)

        # The node is lost: soon another one answers for what it had.
        cluster.kill(other)

        def answered():
            done = cluster.cairn(third, "lun", "list", "--json", check=False)
            return done.returncode == 0 and len(json.loads(done.stdout)["luns"]) == 2

        harness.wait_until(answered, 90, "that all LUNs are listed without the lost node")
