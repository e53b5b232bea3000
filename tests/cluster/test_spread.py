"""Data moves to a node that was added, until all disks are about equally full; an operator can pause that."""

import functools

from cluster.world import ClusterTest
from lib import harness, libnfs, spread
from lib.worlds import content

# Until other nodes know of a change of the map.
KNOWN_SECONDS_MAX = 30
VOLUMES = ("main", "other")


class Spread(ClusterTest):
    def on(self, cluster, node):
        return functools.partial(cluster.cairn, node)

    def files(self, volume):
        start = 1000 * VOLUMES.index(volume)
        return {f"/file{number}": content(start + number, spread.FILE_BYTES) for number in range(spread.FILES // len(VOLUMES))}

    def check(self, cluster, node):
        for volume in VOLUMES:
            with libnfs.Mount(cluster.url(node, volume)) as mount:
                for name, data in self.files(volume).items():
                    self.assertTrue(mount.read_file(name) == data, f"{volume}{name}")

    def test_data_moves_to_a_node_that_was_added(self):
        cluster = self.cluster(3, serve_flags=spread.SIZE_FLAGS)
        owner = cluster.owner()
        cluster.cairn(owner, "volume", "create", "other")
        cluster.cairn(owner, "export", "set", "other", "--client", "0.0.0.0/0", "--squash", "none")
        for volume in VOLUMES:
            with libnfs.Mount(cluster.url(owner, volume)) as mount:
                for name, data in self.files(volume).items():
                    mount.write_file(name, data)
        # The two owners look at the same disks.
        cluster.cairn(owner, "volume", "move", "other", "--to", cluster.others(owner)[0])
        self.assertEqual(spread.shown(self.on(cluster, owner))["stage"], "even")
        cluster.cairn(owner, "disk", "spread", "--pause")
        old = set(cluster.names)
        cluster.add()
        added, = set(cluster.names) - old
        cluster.await_serving(added)
        new = self.on(cluster, added)
        paused = lambda: spread.shown(new)["excess_bytes"] > 0 and spread.shown(new)["stage"] == "paused"
        harness.wait_until(paused, KNOWN_SECONDS_MAX, f"the node that was added knows that it is paused: {spread.shown(new)}")
        before = spread.shown(self.on(cluster, owner))
        self.assertGreater(before["most_permille"] - before["least_permille"], 100, before)
        self.assertEqual(before["moved_bytes"], 0, "it was paused before there was anything to move")

        # Any node may be asked. Clients work meanwhile, and one of the owners is lost in the middle.
        load = self.load(cluster, nodes=(cluster.others(owner, added)[0],))
        new("disk", "spread", "--resume")
        moved = lambda: spread.shown(self.on(cluster, owner))["moved_bytes"] > 0
        harness.wait_until(moved, spread.SPREAD_SECONDS_MAX, "that something moves")
        cluster.kill(owner)
        heir = cluster.owner(without=(owner,))
        cluster.heal()
        cluster.await_serving(owner)
        even = lambda: spread.is_even(self.on(cluster, heir))
        harness.wait_until(even, spread.SPREAD_SECONDS_MAX, f"even disks: {spread.shown(self.on(cluster, heir))}\n{cluster.logs()}")
        load.check()
        load.end()
        load.verify(cluster.url())
        self.check(cluster, added)
        # What moved is as safe as before: each shard of a segment is on another node.
        gone = cluster.others(added, cluster.owner())[:1]
        cluster.kill(*gone)
        self.check(cluster, added)
