"""Encrypted volumes in a cluster: only nodes with the master key take them; keys are changed and erased for all nodes, also while
a volume has no owner."""

import json
import os
import subprocess

from cluster.world import ClusterTest
from lib import harness, libnfs

# A young cluster takes a while until what its first node wrote is on others.
KNOWN_SECONDS_MAX = 180
POLL_SECONDS = 0.5
FILE_BYTES = 3 << 20
# Each node has a file of its own beside its folders.
KEY_COMMAND = 'cat "$CAIRN_RUNTIME_DIR"/../master.key'


class Encryption(ClusterTest):
    def generate(self):
        made = subprocess.run([str(harness.cairn_path()), "key", "generate"], capture_output=True, text=True, check=True)
        return made.stdout.strip()

    def put_keys(self, cluster, nodes, *keys):
        for node in nodes:
            new = cluster.folder / node / "master.key.new"
            new.write_text("".join(f"{key}\n" for key in keys))
            new.rename(cluster.folder / node / "master.key")

    def wait(self, done, what):
        return harness.wait_until(done, KNOWN_SECONDS_MAX, what, POLL_SECONDS)

    def warned(self, cluster, node):
        """What a node warns of: which warning, of which node, of which volume."""
        warnings = (cluster.status_of(node) or {}).get("warnings", [])
        return [(warning["kind"], warning.get("node"), warning.get("volume")) for warning in warnings]

    def shown(self, cluster, node):
        return json.loads(cluster.cairn(node, "volume", "show", "secret", "--json").stdout)

    def state(self, cluster, node):
        return self.shown(cluster, node)["encryption"]["state"]

    def mount(self, cluster, node):
        return libnfs.Mount(cluster.url(node, "secret"))

    def read(self, cluster, node):
        """The file once somebody serves it: a takeover takes its time."""

        def read():
            try:
                with self.mount(cluster, node) as mount:
                    return mount.read_file("/file")
            except OSError:
                return None

        return self.wait(read, f"the file is read through {node}")

    def made(self, nodes_with_key):
        """A cluster with an encrypted volume and a file in it, the file's bytes, and the master key of so many nodes."""
        cluster = self.cluster(3, serve_flags=["--master-key-command", KEY_COMMAND])
        key, names = self.generate(), cluster.names[:nodes_with_key]
        self.put_keys(cluster, names, key)
        for node in names:
            known = lambda node=node: json.loads(cluster.cairn(node, "key", "list", "--json").stdout)["keys"]
            self.wait(known, f"the key at {node}")
        cluster.cairn(names[0], "volume", "create", "secret", "--encrypt")
        cluster.cairn(names[0], "export", "set", "secret", "--client", "0.0.0.0/0", "--rw", "--squash", "none")
        data = os.urandom(FILE_BYTES)

        def written():
            try:
                with self.mount(cluster, names[0]) as mount:
                    mount.write_file("/file", data)
                return True
            except OSError:
                return False

        self.wait(written, "the file is written")
        return cluster, data, key

    def test_only_a_node_with_the_key_takes_it(self):
        cluster, data, key = self.made(nodes_with_key=1)
        owner, heir, bare = cluster.names
        self.assertEqual(cluster.owner("secret"), owner)
        survives = lambda: cluster.status_of(owner)["survives"]
        self.wait(lambda: survives()["data_nodes"] >= 1, "its data is on other nodes")
        self.assertEqual(survives()["service_nodes"], 0, "nobody else can serve it")
        self.put_keys(cluster, [heir], key)
        self.wait(lambda: survives()["service_nodes"] == 1, "another node can serve it")
        for node in cluster.names:
            told = lambda node=node: ("key_missing", bare, "secret") in self.warned(cluster, node)
            self.wait(told, f"the warning at {node}")
        # Through a node without the key: the owner reads for it.
        self.assertEqual(self.read(cluster, bare), data)
        refused = cluster.cairn(owner, "volume", "move", "secret", "--to", bare, check=False)
        self.assertNotEqual(refused.returncode, 0)
        self.assertIn("lacks the volume's master key", refused.stderr)
        self.assertEqual(cluster.owner("secret"), owner)
        cluster.kill(owner)
        self.assertEqual(self.wait(lambda: cluster.owner("secret", without=(owner,)), "the next owner"), heir)
        self.assertEqual(self.read(cluster, heir), data)
        cluster.start_nodes(owner)
        cluster.await_serving(owner)
        # With the key, without a restart.
        self.put_keys(cluster, [bare], key)
        moved = lambda: cluster.cairn(heir, "volume", "move", "secret", "--to", bare, check=False).returncode == 0
        self.wait(moved, "the move to the node that has the key now")
        self.wait(lambda: cluster.owner("secret") == bare, "the next owner")
        self.assertNotIn("key_missing", [kind for kind, _, _ in self.warned(cluster, owner)])
        self.assertEqual(self.read(cluster, bare), data)

    def test_a_key_is_changed_and_erased_for_all(self):
        cluster, data, first = self.made(nodes_with_key=3)
        owner = cluster.owner("secret")
        asked, other = cluster.others(owner)
        before = self.shown(cluster, asked)["encryption"]["master_key"]
        second = self.generate()
        self.put_keys(cluster, cluster.names, second, first)
        # Said at a node that does not own it.
        rotated = json.loads(cluster.cairn(asked, "key", "rotate", "--json").stdout)
        self.assertEqual((rotated["wrapped"], rotated["failed"]), (["secret"], []))
        for node in cluster.names:
            now = lambda node=node: self.shown(cluster, node)["encryption"]["master_key"]
            self.wait(lambda now=now: now() != before, f"the new master key at {node}")
        # The earlier one is needed by nobody any more.
        self.put_keys(cluster, cluster.names, second)
        cluster.stop(owner)
        cluster.start_nodes(owner)
        cluster.await_serving(owner)
        self.assertEqual(self.read(cluster, owner), data)

        # Erased while its owner is gone and nobody has taken it over: the next owner does not serve it.
        owner = cluster.owner("secret")
        asked, other = cluster.others(owner)
        cluster.kill(owner)
        cluster.cairn(asked, "volume", "erase-key", "secret", "--yes")
        for node in (asked, other):
            self.wait(lambda node=node: self.state(cluster, node) == "erased", f"the key is erased at {node}")
        cluster.start_nodes(owner)
        cluster.await_serving(owner)
        self.wait(lambda: self.state(cluster, owner) == "erased", "the key is erased at the earlier owner")
        for node in cluster.names:
            shown = self.shown(cluster, node)
            self.assertFalse(shown["serving"], node)
            self.assertIn("key was erased", shown["problem"])
            self.assertRaises(OSError, lambda node=node: self.mount(cluster, node).read_file("/file"))
        cluster.cairn(owner, "volume", "delete", "secret", "--force", "--yes")
        with libnfs.Mount(cluster.url(owner)) as main:
            main.write_file("/beside", data)
            self.assertEqual(main.read_file("/beside"), data)
