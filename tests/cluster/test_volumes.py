"""Several volumes of one cluster: files of one volume's log are used again by another, and each volume has its own files alone."""

from cluster.world import ClusterTest
from lib import harness

# Until other nodes know of a change of the map.
KNOWN_SECONDS_MAX = 30
# A lease, a takeover and what a busy machine adds.
SERVED_SECONDS_MAX = 60
FIRST_FILES, SECOND_FILES = 100, 20


class Volumes(ClusterTest):
    def create(self, cluster, node, volume):
        cluster.cairn(node, "volume", "create", volume)
        cluster.cairn(node, "export", "set", volume, "--client", "0.0.0.0/0", "--squash", "none")

    def mounted(self, cluster, node, volume):
        return self.mount_served(cluster, node, volume, SERVED_SECONDS_MAX)

    def write(self, cluster, node, volume, count):
        """Each file by itself, so that each has its own records in the log. Gives what is there then."""
        files = {f"{volume}-{number}": f"{number} of {volume}".encode() for number in range(count)}
        with self.mounted(cluster, node, volume) as mount:
            for name, content in files.items():
                mount.write_file(f"/{name}", content)
        return files

    def check(self, cluster, node, volume, files):
        with self.mounted(cluster, node, volume) as mount:
            self.assertEqual(mount.names("/"), sorted(files), volume)
            for name, content in files.items():
                self.assertEqual(mount.read_file(f"/{name}"), content, name)

    def lose_owner(self, cluster, volume):
        """The owner is killed and started again; another node has the volume then."""
        owner = cluster.owner(volume)
        cluster.kill(owner)
        heir = cluster.owner(volume, without=(owner,))
        self.mounted(cluster, heir, volume).close()
        cluster.heal()
        cluster.await_serving(owner)
        return heir

    def move(self, cluster, volume):
        owner = cluster.owner(volume)
        to = cluster.others(owner)[0]
        cluster.cairn(owner, "volume", "move", volume, "--to", to)
        harness.wait_until(lambda: cluster.owner(volume) == to, KNOWN_SECONDS_MAX, f"that {to} owns {volume}")
        return to

    def one_after_the_other(self, change_owner):
        """A volume is written and gets another owner; then a second volume is made, with the files that the first one left."""
        cluster = self.cluster(3)
        self.create(cluster, "node1", "first")
        first = self.write(cluster, "node2", "first", FIRST_FILES)
        heir = change_owner(cluster, "first")
        self.check(cluster, heir, "first", first)
        self.create(cluster, "node1", "second")
        second = self.write(cluster, "node2", "second", SECOND_FILES)
        heir = change_owner(cluster, "second")
        for node in cluster.names:
            self.check(cluster, node, "second", second)
            self.check(cluster, node, "first", first)
        # Both go on.
        for volume, files in (("first", first), ("second", second)):
            with self.mounted(cluster, heir, volume) as mount:
                mount.write_file("/late", b"late")
            self.check(cluster, "node1", volume, files | {"late": b"late"})

    def test_volumes_whose_owners_are_lost_have_their_own_files_alone(self):
        self.one_after_the_other(self.lose_owner)

    def test_volumes_that_are_moved_have_their_own_files_alone(self):
        self.one_after_the_other(self.move)
