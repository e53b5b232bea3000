"""Tiers in a cluster: known at all nodes, used by the owner of a volume, and by the next one when that is gone."""

import json
import os
import pathlib

from cluster.world import ClusterTest
from lib import cloudstores, harness, libnfs

KNOWN_SECONDS_MAX = 40
# What has shards on a node that was away is tried again after five minutes.
MOVED_SECONDS_MAX = 480
POLL_SECONDS = 0.5
FILES = 4
FILE_BYTES = 8 << 20


class Tiers(ClusterTest):
    def tiers(self, cluster, node):
        return json.loads(cluster.cairn(node, "tier", "list", "--json").stdout)["tiers"]

    def tier(self, cluster, node):
        return json.loads(cluster.cairn(node, "tier", "status", "cold", "--json").stdout)

    def wait(self, done, what, seconds=MOVED_SECONDS_MAX):
        return harness.wait_until(done, seconds, what, POLL_SECONDS)

    def store(self, cluster):
        """An object store that all nodes can reach, and the file with its credentials."""
        network, _, number = cluster.machine("node1")["host"].rpartition(".")
        store = cloudstores.Google(f"{network}.{number if network.startswith('127.') else 254}")
        self.addCleanup(store.stop)
        store.start()
        store.make("cold")
        keys = pathlib.Path(self.scratch) / "keys"
        keys.write_text(store.credentials())
        keys.chmod(0o600)
        return store, keys

    def await_known(self, cluster):
        for node in cluster.names:
            self.wait(lambda node=node: self.tiers(cluster, node), f"the tier at {node}", KNOWN_SECONDS_MAX)
            self.wait(lambda node=node: self.tier(cluster, node)["working"], f"the tier works at {node}", KNOWN_SECONDS_MAX)

    def await_sent(self, cluster, owner, bytes_min):
        def sent():
            tier = self.tier(cluster, owner)
            return tier["live_bytes"] >= bytes_min and tier["unused_objects"] == 0

        self.wait(sent, "data goes to the tier")

    def send_more(self, cluster, owner, files):
        """What is written at an owner goes there."""
        before = self.tier(cluster, owner)["live_bytes"]
        files["/more"] = os.urandom(FILE_BYTES)
        with libnfs.Mount(cluster.url(owner)) as main:
            main.write_file("/more", files["/more"])
        self.await_sent(cluster, owner, before + FILE_BYTES)

    def test_the_next_owner_reads_and_goes_on(self):
        cluster = self.cluster(3)
        store, keys = self.store(cluster)
        owner = cluster.owner()
        asked, other = cluster.others(owner)
        cluster.cairn(asked, "tier", "add", "cold", store.url("cold/one"), "--credentials-file", keys)
        self.await_known(cluster)
        refused = cluster.cairn(other, "tier", "add", "again", store.url("cold/one"), "--credentials-file", keys, check=False)
        self.assertIn("is already tier number", refused.stderr)
        files = {f"/file{number}": os.urandom(FILE_BYTES) for number in range(FILES)}
        with libnfs.Mount(cluster.url(asked)) as main:
            for name, data in files.items():
                main.write_file(name, data)
        # Said at a node that does not own it.
        cluster.cairn(other, "volume", "set", "main", "--tier", "cold", "--tiering", "all")
        sums = sum(map(len, files.values()))
        self.await_sent(cluster, owner, sums)
        self.assertIn(f"node {owner} owns it", cluster.cairn(asked, "tier", "status", "cold").stdout)
        self.assertIn("are intact", cluster.cairn(owner, "tier", "check", "cold").stdout)
        refused = cluster.cairn(asked, "tier", "check", "cold", check=False)
        self.assertIn(f"of node {owner}", refused.stdout)
        refused = cluster.cairn(asked, "tier", "remove", "cold", check=False)
        self.assertIn("--tiering none", refused.stderr)

        # More is on its way when the owner is killed.
        late = os.urandom(FILE_BYTES)
        with libnfs.Mount(cluster.url(asked)) as main:
            main.write_file("/late", late)
        cluster.kill(owner)
        heir = cluster.owner(without=(owner,))
        files["/late"] = late
        with libnfs.Mount(cluster.url(heir)) as main:
            for name, data in files.items():
                self.assertEqual(main.read_file(name), data, name)
        self.assertGreater(self.tier(cluster, heir)["read_bytes"], sums // 2)
        # A segment goes when all of its data is there: once the earlier owner's disks are back. What that left open is mostly
        # empty, and is garbage collection's; what is new goes.
        cluster.start_nodes(owner)
        cluster.await_serving(owner)
        self.send_more(cluster, heir, files)
        self.assertIn("are intact", cluster.cairn(heir, "tier", "check", "cold").stdout)
        self.assertEqual(len(store.names("cold")), self.tier(cluster, heir)["objects"] + 1)

        # What the earlier owner knew of is not what there is, and nothing of that is deleted.
        cluster.cairn(heir, "volume", "move", "main", "--to", owner)
        self.wait(lambda: cluster.owner() == owner, "the move of the volume")
        self.wait(lambda: self.tier(cluster, owner)["working"], "the tier works there")
        with libnfs.Mount(cluster.url(owner)) as main:
            for name, data in files.items():
                self.assertEqual(main.read_file(name), data, name)

        # Back, and the tier goes, at a node that never had the volume.
        cluster.cairn(asked, "volume", "set", "main", "--tiering", "none")
        nameless = lambda: "tiering" not in json.loads(cluster.cairn(other, "volume", "show", "main", "--json").stdout)
        self.wait(nameless, "nothing of the volume is there")
        self.assertEqual(store.names("cold"), ["one/cairn-tier.json"])
        cluster.cairn(other, "tier", "remove", "cold")
        self.assertEqual(store.names("cold"), [])
        for node in cluster.names:
            self.wait(lambda node=node: self.tiers(cluster, node) == [], f"{node} knows", KNOWN_SECONDS_MAX)
            with libnfs.Mount(cluster.url(node)) as main:
                for name, data in files.items():
                    self.assertEqual(main.read_file(name), data, name)

    def test_an_owner_that_stood_still_deletes_nothing_that_is_needed(self):
        folder = pathlib.Path(self.scratch) / "cold"
        folder.mkdir()
        cluster = self.cluster(3)
        cluster.cairn(cluster.names[0], "tier", "add", "cold", f"file://{folder}")
        self.await_known(cluster)
        files = {}
        for at in range(3):
            owner = cluster.owner()
            files[f"/file{at}"] = os.urandom(FILE_BYTES)
            with libnfs.Mount(cluster.url(owner)) as main:
                main.write_file(f"/file{at}", files[f"/file{at}"])
            before = self.tier(cluster, owner)["objects"]
            cluster.cairn(owner, "volume", "set", "main", "--tier", "cold", "--tiering", "none" if at == 1 else "all")
            moved = lambda owner=owner, before=before: self.tier(cluster, owner)["objects"] != before
            self.wait(moved, "something moves")
            # In the middle of it.
            cluster.pause(owner)
            heir = cluster.owner(without=(owner,))
            with libnfs.Mount(cluster.url(heir)) as main:
                for name, data in files.items():
                    self.assertEqual(main.read_file(name), data, name)
            # It finds itself in the middle of what it did.
            cluster.resume(owner)
            cluster.await_serving(owner)
            with libnfs.Mount(cluster.url(heir)) as main:
                for name, data in files.items():
                    self.assertEqual(main.read_file(name), data, name)
        owner = cluster.owner()
        cluster.cairn(owner, "volume", "set", "main", "--tier", "cold", "--tiering", "all")
        self.send_more(cluster, owner, files)
        with libnfs.Mount(cluster.url(owner)) as main:
            for name, data in files.items():
                self.assertEqual(main.read_file(name), data, name)

    def test_a_deleted_volume_leaves_no_objects(self):
        cluster = self.cluster(3)
        store, keys = self.store(cluster)
        first, second, third = cluster.names
        cluster.cairn(first, "tier", "add", "cold", store.url("cold"), "--credentials-file", keys)
        self.await_known(cluster)
        cluster.cairn(first, "volume", "create", "gone")
        cluster.cairn(first, "export", "set", "gone", "--client", "0.0.0.0/0", "--squash", "none")

        def written():
            try:
                with libnfs.Mount(cluster.url(second, "gone")) as mount:
                    mount.write_file("/file", os.urandom(5 << 20))
                return True
            except OSError:
                return False

        self.wait(written, "the volume is served", KNOWN_SECONDS_MAX)
        cluster.cairn(second, "volume", "set", "gone", "--tier", "cold", "--tiering", "all")
        self.wait(lambda: len(store.names("cold")) > 1, "data goes to the tier")
        cluster.cairn(third, "volume", "delete", "gone", "--yes", "--force")
        self.wait(lambda: store.names("cold") == ["cairn-tier.json"], "its objects are deleted")
