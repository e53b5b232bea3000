"""Where a volume's metadata is in a cluster: on journal disks where its owner has one, and not on a disk that leaves."""

import json
import pathlib

from cluster.world import ClusterTest
from lib import harness, libnfs

MOVED_SECONDS_MAX = 120


class JournalDisks(ClusterTest):
    def disks(self, cluster, node):
        return json.loads(cluster.cairn(node, "disk", "list", "--json").stdout)["disks"]

    def states(self, folders):
        """The folders that have a state of a volume, whether it is in use or not."""
        return {folder for folder in folders if list(pathlib.Path(folder).glob("volumes/*/state/CURRENT"))}

    def check(self, cluster, node, files):
        with libnfs.Mount(cluster.url(node)) as mount:
            for name, data in files.items():
                self.assertTrue(mount.read_file(name) == data, f"{name} at {node}")

    def move(self, cluster, asked, to):
        cluster.cairn(asked, "volume", "move", "main", "--to", to)
        harness.wait_until(lambda: cluster.owner() == to, MOVED_SECONDS_MAX, f"the volume at {to}")
        cluster.await_serving(to)

    def test_metadata_moves_to_the_owner_s_journal_disk(self):
        cluster = self.cluster(3, disks=2)
        owner = cluster.owner()
        other, asked = cluster.others(owner)
        files = {f"/file{number}": bytes([number]) * 200_000 for number in range(8)}
        with libnfs.Mount(cluster.url(owner)) as mount:
            for name, data in files.items():
                mount.write_file(name, data)
        fast = self.scratch / "fast"
        cluster.cairn(owner, "disk", "add", str(fast), "--role", "journal")
        used = lambda: [disk for disk in self.disks(cluster, owner) if disk["label"] == str(fast) and disk["states"] > 0]
        harness.wait_until(used, MOVED_SECONDS_MAX, "the state on the journal disk")
        self.assertEqual(self.states([fast]), {fast})
        self.check(cluster, asked, files)
        with libnfs.Mount(cluster.url(asked)) as mount:
            files["/late"] = b"late" * 50_000
            mount.write_file("/late", files["/late"])

        # A node without journal disks has it on a data disk, and where there is one it comes back to that.
        self.move(cluster, asked, other)
        self.check(cluster, asked, files)
        self.move(cluster, asked, owner)
        harness.wait_until(used, MOVED_SECONDS_MAX, "the state on the journal disk again")
        self.check(cluster, asked, files)
        own = {folder.parent for folder in (cluster.folder / owner).glob("*/volumes")}
        self.assertTrue(own)
        gone = lambda: not self.states(own)
        harness.wait_until(gone, MOVED_SECONDS_MAX, f"no old state on {own}")

        # What was acknowledged survives the loss of the node with the fast disk.
        cluster.kill(owner)
        heir = cluster.owner(without=(owner,))
        self.check(cluster, heir, files)

    def test_the_disk_with_the_state_is_drained_under_load(self):
        cluster = self.cluster(3, disks=2)
        owner = cluster.owner()
        load = self.load(cluster, [cluster.others(owner)[0]])
        load.await_progress()
        own = str(cluster.folder / owner)
        with_state = lambda: [disk for disk in self.disks(cluster, owner) if disk["label"].startswith(own) and disk["states"] > 0]
        (disk,) = harness.wait_until(with_state, MOVED_SECONDS_MAX, "a disk of the owner with the state")
        cluster.cairn(owner, "disk", "drain", disk["id"])
        state = lambda: next(found["state"] for found in self.disks(cluster, owner) if found["id"] == disk["id"])
        harness.wait_until(lambda: state() == "drained", MOVED_SECONDS_MAX, "the end of the drain")
        self.assertEqual(cluster.owner(), owner, "the volume has stayed")
        load.await_progress()
        load.end()
        cluster.cairn(owner, "disk", "remove", disk["id"])
        self.assertGreater(load.verify(cluster.url(owner)), 0)
