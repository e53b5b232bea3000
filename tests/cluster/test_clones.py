"""Clones of whole volumes in a cluster: they live where their store is owned, and every node serves them."""

import json

from cluster.world import ClusterTest
from lib import harness, libnfs

# Until other nodes know of a change of the map.
KNOWN_SECONDS_MAX = 30
MOVED_SECONDS_MAX = 90
FREED_SECONDS_MAX = 60


class Clones(ClusterTest):
    def mounted(self, cluster, node, volume):
        return self.entered(self.mount_served(cluster, node, volume, KNOWN_SECONDS_MAX))

    def read(self, cluster, node, volume, path):
        with libnfs.Mount(cluster.url(node, volume)) as mount:
            return mount.read_file(path)

    def names(self, cluster, node):
        listed = json.loads(cluster.cairn(node, "volume", "list", "--json").stdout)
        return {view["name"] for view in listed["volumes"]}

    def shown(self, cluster, node, volume):
        return json.loads(cluster.cairn(node, "volume", "show", volume, "--json").stdout)

    def clone(self, cluster, node, source, name):
        cluster.cairn(node, "volume", "clone", source, name)
        cluster.cairn(node, "export", "set", name, "--client", "0.0.0.0/0", "--squash", "none")

    def delete(self, cluster, node, name):
        cluster.cairn(node, "volume", "delete", name, "--force", "--yes")

        serving = [node for node, machine in cluster.machines().items() if machine["life"] == "ready"]
        gone = lambda: all(name not in self.names(cluster, node) for node in serving)
        harness.wait_until(gone, KNOWN_SECONDS_MAX, f"that all nodes know {name} to be deleted")

    def await_names(self, cluster, nodes, *names):
        for node in nodes:
            harness.wait_until(lambda node=node: self.names(cluster, node) >= set(names), KNOWN_SECONDS_MAX, f"{names} at {node}")

    def test_clones_move_with_their_store_and_go_in_any_order(self):
        cluster = self.cluster(3)
        owner = cluster.owner()
        other, third = cluster.others(owner)
        with libnfs.Mount(cluster.url(other)) as main:
            main.write_file("/a", b"a" * 2_000_000)
            main.write_file("/b", b"b" * 300_000)
        # Asked of a node that does not have the volume: it asks the one that has.
        self.clone(cluster, other, "main", "first")
        self.await_names(cluster, cluster.names, "main", "first")
        self.assertIn("already", cluster.cairn(third, "volume", "create", "first", check=False).stderr)
        self.assertIn("already", cluster.cairn(third, "volume", "clone", "main", "first", check=False).stderr)
        self.assertEqual(self.shown(cluster, owner, "first")["clone_of"]["volume"], "main")
        # Through each node.
        for number, node in enumerate(cluster.names):
            mount = self.mounted(cluster, node, "first")
            mount.write_file(f"/by-{node}", b"%d" % number)
            self.assertEqual(mount.read_file("/a"), b"a" * 2_000_000)
        first = self.mounted(cluster, other, "first")
        first.unlink("/b")
        self.clone(cluster, third, "first", "second")
        first.write_file("/late", b"late")

        cluster.kill(owner)
        taken_by = cluster.owner(without=[owner])
        asked = next(name for name in cluster.others(owner) if name != taken_by)

        def check(node, has_main=True):
            self.assertEqual(self.read(cluster, node, "first", "/late"), b"late")
            for volume in ("first", "second"):
                self.assertEqual(self.read(cluster, node, volume, "/a"), b"a" * 2_000_000)
                for number, name in enumerate(cluster.names):
                    self.assertEqual(self.read(cluster, node, volume, f"/by-{name}"), b"%d" % number)
                with libnfs.Mount(cluster.url(node, volume)) as mount:
                    self.assertNotIn("b", mount.names("/"))
            if has_main:
                self.assertEqual(self.read(cluster, node, "main", "/b"), b"b" * 300_000)
                with libnfs.Mount(cluster.url(node, "main")) as mount:
                    self.assertEqual(sorted(mount.names("/")), ["a", "b"])

        cluster.await_serving(asked)
        check(asked)
        # A handle from before the loss of the owner.
        first.write_file("/later", b"later")
        self.assertEqual(self.read(cluster, taken_by, "first", "/later"), b"later")

        # The source first, by way of a node that does not have it; its name is free at once.
        self.delete(cluster, asked, "main")
        check(asked, has_main=False)
        self.assertEqual(self.shown(cluster, taken_by, "first")["clone_of"]["deleted"], True)
        cluster.cairn(asked, "volume", "create", "main")
        cluster.cairn(asked, "export", "set", "main", "--client", "0.0.0.0/0", "--squash", "none")
        self.mounted(cluster, asked, "main").write_file("/new", b"of another")
        # Its store is still where it was, and told under the name of the earliest clone.
        cluster.start_nodes(owner)
        cluster.cairn(asked, "volume", "move", "second", "--to", owner)
        moved = lambda: cluster.owner("first") == owner
        harness.wait_until(moved, MOVED_SECONDS_MAX, f"that {owner} has the store of the clones")
        cluster.await_serving(asked)
        harness.wait_until(lambda: self.mounted(cluster, asked, "first"), KNOWN_SECONDS_MAX, "the clone")
        check(asked, has_main=False)

        # Then the one in the middle, and the last one with the store.
        self.delete(cluster, third, "first")
        cluster.kill(owner)
        cluster.owner("second", without=[owner])
        self.assertEqual(self.mounted(cluster, asked, "second").read_file("/a"), b"a" * 2_000_000)
        self.delete(cluster, asked, "second")
        self.assertEqual(self.names(cluster, asked), {"main"})
        self.assertEqual(self.mounted(cluster, asked, "main").read_file("/new"), b"of another")

    def test_clones_go_before_their_source(self):
        cluster = self.cluster(3)
        owner = cluster.owner()
        other = cluster.others(owner)[0]
        with libnfs.Mount(cluster.url(owner)) as main:
            main.write_file("/a", b"a" * 100_000)
        cluster.cairn(other, "snapshot", "create", "main", "then")
        self.clone(cluster, owner, "main@then", "first")
        self.mounted(cluster, other, "first").write_file("/b", b"b")
        cluster.cairn(other, "snapshot", "create", "first", "kept")
        cluster.cairn(other, "snapshot", "lock", "first", "kept")
        refused = cluster.cairn(other, "volume", "delete", "first", "--force", "--yes", check=False)
        self.assertIn("locked", refused.stderr)
        cluster.cairn(other, "snapshot", "unlock", "first", "kept")
        self.delete(cluster, other, "first")

        def deleted():
            return cluster.cairn(other, "snapshot", "delete", "main", "then", check=False).returncode == 0

        harness.wait_until(deleted, FREED_SECONDS_MAX, "the snapshot to be nobody's")
        self.assertEqual(self.read(cluster, other, "main", "/a"), b"a" * 100_000)
        self.delete(cluster, other, "main")
        self.assertEqual(self.names(cluster, owner), set())
