"""Nodes leave a running cluster, or others take their place: clients see no error, and nothing is lost."""

import json
import subprocess

from cluster.world import ClusterTest
from lib import harness, libnfs
from lib.worlds import content

# On a busy machine; what is moved is little.
DRAIN_SECONDS_MAX = 240
# What `cairn` ends with when it refuses.
REFUSED = 4
VOLUMES_COUNT = 3
FILL_PIECE_LEN_BYTES = 50_000_000
FILL_PIECES_COUNT = 16


class Nodes(ClusterTest):
    def node(self, cluster, name, without=()):
        """What a node that answers says of another one; none if that is not in the cluster."""
        found = [node for node in cluster.status(without)["nodes"] if node["name"] == name]
        return found[0] if found else None

    def await_drained(self, cluster, name, without=()):
        """Waits until nothing is on a node any more; returns what was seen on the way."""
        seen: list[dict] = []

        def drained():
            drain = self.node(cluster, name, without)["drain"]
            if not seen or seen[-1] != drain:
                seen.append(drain)
            return drain["done"]

        try:
            harness.wait_until(drained, DRAIN_SECONDS_MAX, f"that {name} is drained")
        except harness.Failure as failure:
            raise harness.Failure(f"{failure}: {seen[-3:]}") from failure
        return seen

    def await_gone(self, cluster, name, without=()):
        gone = lambda: self.node(cluster, name, without) is None
        harness.wait_until(gone, DRAIN_SECONDS_MAX, f"that {name} is no longer in the cluster")

    def more_volumes(self, cluster):
        """Volumes with different owners, each with a file."""
        files = {}
        for index in range(VOLUMES_COUNT):
            volume = f"more{index}"
            cluster.cairn("node1", "volume", "create", volume)
            cluster.cairn("node1", "export", "set", volume, "--client", "0.0.0.0/0", "--squash", "none")
            files[volume] = content(volume, 700_001)

            def written():
                try:
                    with libnfs.Mount(cluster.url("node2", volume)) as mount:
                        mount.write_file("/file", files[volume])
                        return True
                except OSError:
                    return False

            harness.wait_until(written, DRAIN_SECONDS_MAX, f"that {volume} can be written")
        return files

    def compare(self, cluster, load, files, nodes):
        for node in nodes:
            cluster.await_serving(node)
            self.assertGreater(load.verify(cluster.url(node)), 0)
            for volume, data in files.items():
                with libnfs.Mount(cluster.url(node, volume)) as mount:
                    self.assertTrue(mount.read_file("/file") == data, f"{volume} through {node}")

    def check_ended(self, cluster, name):
        """The server of a removed node has ended, and does not start again."""
        ended = lambda: cluster.machine(name)["life"] == "stopped"
        harness.wait_until(ended, DRAIN_SECONDS_MAX, f"the end of {name}")
        log = (cluster.folder / name / "log").read_text(errors="replace")
        self.assertIn("this node was removed from the cluster", log)
        machine = cluster.machine(name)
        again = subprocess.run(
            machine["argv"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=DRAIN_SECONDS_MAX,
        )
        self.assertEqual(again.returncode, REFUSED, again.stderr)
        self.assertIn("was removed from cluster", again.stderr)

    def test_the_owner_leaves_under_load_and_then_two_others_are_lost(self):
        cluster = self.cluster(6)
        files = self.more_volumes(cluster)
        load = self.load(cluster)
        leaving = cluster.owner()
        staying = cluster.others(leaving)
        before = len(cluster.status()["etcd"]["members"])
        load.forget_pauses()
        shown = cluster.cairn(staying[0], "node", "drain", leaving).stdout
        self.assertIn(f"{leaving} drains", shown)
        seen = self.await_drained(cluster, leaving)
        print(f"{len(seen)} states on the way, first: {json.dumps(seen[0])}", flush=True)
        self.assertGreater(max(drain["bytes_left"] for drain in seen), 0, seen)
        print(f"the owner was drained: pause of {load.pause_seconds():.1f} s", flush=True)
        status = cluster.status()
        self.assertNotIn(leaving, {volume["owner"] for volume in status["volumes"]})
        self.assertNotIn(leaving, {member["name"] for member in status["etcd"]["members"]})
        enough = lambda: len(cluster.status()["etcd"]["members"]) == before
        harness.wait_until(enough, DRAIN_SECONDS_MAX, "another member of etcd in the place of the one that went")
        load.await_progress()
        cluster.cairn(staying[0], "node", "remove", leaving)
        self.assertIsNone(self.node(cluster, leaving, without=[leaving]))
        self.check_ended(cluster, leaving)
        load.await_progress()
        load.end()
        self.compare(cluster, load, files, staying)
        # All protection is there again: what was on it is not missed.
        cluster.kill(*staying[:2])
        self.compare(cluster, load, files, staying[2:])

    def test_a_drain_is_cancelled(self):
        cluster = self.cluster(4)
        load = self.load(cluster)
        leaving = cluster.owner()
        other = cluster.others(leaving)[0]
        cluster.cairn(other, "node", "drain", leaving)
        refused = cluster.cairn(leaving, "disk", "add", str(self.scratch / "more"), check=False)
        self.assertEqual(refused.returncode, REFUSED, refused.stderr)
        self.assertIn("takes no new disks", refused.stderr)
        early = cluster.cairn(other, "node", "remove", leaving, check=False)
        self.assertEqual(early.returncode, REFUSED, early.stderr)
        self.await_drained(cluster, leaving)
        cluster.cairn(other, "node", "drain", leaving, "--cancel")
        node = self.node(cluster, leaving)
        self.assertNotIn("drain", node)
        self.assertEqual({disk["state"] for disk in node["disks"]}, {"ok"})
        late = cluster.cairn(other, "node", "remove", leaving, check=False)
        self.assertEqual(late.returncode, REFUSED, late.stderr)
        self.assertIn("it is in use", late.stderr)
        # It takes a member of etcd again when one is missing, and volumes when it is asked to.
        cluster.cairn(other, "volume", "move", "main", "--to", leaving)
        moved = lambda: cluster.owner() == leaving
        harness.wait_until(moved, DRAIN_SECONDS_MAX, f"that {leaving} owns the volume again")
        load.await_progress()
        load.end()
        self.compare(cluster, load, {}, cluster.names)

    def test_what_would_leave_too_little_is_refused_with_the_numbers(self):
        cluster = self.cluster(3)
        refused = cluster.cairn("node1", "node", "drain", "node3", check=False)
        self.assertEqual(refused.returncode, REFUSED, refused.stderr)
        self.assertIn("2 nodes would stay, and its protection needs 3 at least", refused.stderr)
        self.assertNotIn("drain", self.node(cluster, "node3"))
        for words, why in [
            (("node", "drain", "node9"), "there is no node"),
            (("node", "remove", "node3"), "it is in use"),
            (("node", "replace", "node3", "node3"), "replace itself"),
            (("node", "replace", "node3", "node9"), "there is no node"),
        ]:
            done = cluster.cairn("node1", *words, check=False)
            # What is not there is a failure, and no refusal.
            self.assertIn(done.returncode, (1, REFUSED), done.stderr)
            self.assertIn(why, done.stderr)
        # Who asks for less may go on with two.
        cluster.cairn("node1", "volume", "set", "main", "--protection", "+1n")
        cluster.cairn("node1", "node", "drain", "node3")
        self.await_drained(cluster, "node3")
        cluster.cairn("node1", "node", "remove", "node3")
        self.check_ended(cluster, "node3")
        # Healing all is for those that belong to it.
        cluster.kill("node2")
        cluster.heal()
        cluster.await_serving("node2")
        self.assertEqual(cluster.machine("node3")["life"], "stopped")
        # Two members of etcd would survive less than one does.
        alone = lambda: len(cluster.status()["etcd"]["members"]) == 1
        harness.wait_until(alone, DRAIN_SECONDS_MAX, "that etcd has one member")
        last = cluster.cairn("node1", "node", "drain", "node2", check=False)
        self.assertEqual(last.returncode, REFUSED, last.stderr)

    def test_a_drain_for_which_there_is_no_room_is_refused_with_the_numbers(self):
        # Of four nodes each segment has a shard on each; with three it has to be written anew, with more parity.
        cluster = self.cluster(4, serve_flags=["--disk-size-limit", "1GiB"])
        owner = cluster.owner()
        leaving = cluster.others(owner)[0]
        piece = content("much", FILL_PIECE_LEN_BYTES)
        with libnfs.Mount(cluster.url(owner)) as mount:
            for index in range(FILL_PIECES_COUNT):
                mount.write_file(f"/much{index}", piece)
        refused = cluster.cairn(owner, "node", "drain", leaving, check=False)
        self.assertEqual(refused.returncode, REFUSED, refused.stderr)
        self.assertRegex(refused.stderr, r"there is no room for [0-9.]+ [MG]iB")
        self.assertRegex(refused.stderr, r"[0-9.]+ [MG]iB (are free|of data)")
        self.assertNotIn("drain", self.node(cluster, leaving))

    def test_a_lost_node_is_replaced_without_waiting_for_it(self):
        cluster = self.cluster(6)
        files = self.more_volumes(cluster)
        load = self.load(cluster)
        lost = cluster.owner()
        cluster.kill(lost)
        load.await_progress()
        cluster.add()
        new = cluster.names[-1]
        cluster.cairn(new, "node", "replace", lost, new)
        self.await_gone(cluster, lost, without=[lost])
        self.assertNotIn(lost, {member["name"] for member in cluster.status([lost])["etcd"]["members"]})
        load.await_progress()
        load.end()
        staying = cluster.others(lost)
        two = [staying[0], staying[1]]
        cluster.kill(*two)
        self.compare(cluster, load, files, [new])
        # It knows nothing of that, and is told so.
        cluster.run("start", lost, check=False)
        self.assertIsNone(self.node(cluster, lost, without=[lost, *two]))

    def test_a_node_that_lives_is_replaced(self):
        cluster = self.cluster(3)
        files = self.more_volumes(cluster)
        load = self.load(cluster)
        old = cluster.owner()
        cluster.add()
        new = cluster.names[-1]
        cluster.cairn(old, "node", "replace", old, new)
        self.await_gone(cluster, old, without=[old])
        self.check_ended(cluster, old)
        owners = {volume["owner"] for volume in cluster.status([old])["volumes"]}
        self.assertIn(new, owners, "it took no volume of the one that it replaces")
        load.await_progress()
        load.end()
        self.compare(cluster, load, files, cluster.others(old))
