"""Snapshots of one instant of volumes that several nodes own: they fit together, and all are there or none."""

import json
import os
import random
import statistics
import subprocess
import threading
import time

from cluster.world import ClusterTest
from lib import harness, libnfs

VOLUMES = ("data", "log")
# Beside somebody who counts.
TAKEN_COUNT = 20
# Of the node that takes them, in the middle of that.
KILLED_COUNT = 3
KNOWN_SECONDS_MAX = 60
# Until what broke off is decided: the lease of the node that took it ends, and another look.
DECIDED_SECONDS_MAX = 90
NUMBER_LEN_BYTES = 8
REFUSED = 4


class Counter:
    """Counts: in one volume, and when that is stable in the other."""

    def __init__(self, urls):
        self.mounts = [libnfs.Mount(url) for url in urls]
        self.number = 0
        # Seconds that each number took, both volumes together.
        self.took = []
        self.error = None
        self.ends = threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.ends.set()
        self.thread.join(KNOWN_SECONDS_MAX)
        for mount in self.mounts:
            mount.close()

    def run(self):
        try:
            files = [mount.open("/count", os.O_RDWR | os.O_CREAT) for mount in self.mounts]
            while not self.ends.is_set():
                number = self.number + 1
                begun = time.monotonic()
                for file in files:
                    file.write(0, number.to_bytes(NUMBER_LEN_BYTES, "little"))
                    file.sync()
                self.number = number
                self.took.append(time.monotonic() - begun)
        except OSError as error:
            self.error = error

    def await_more(self, count=20):
        until = self.number + count
        harness.wait_until(lambda: self.number >= until or self.error, KNOWN_SECONDS_MAX, f"that {count} more numbers are written")
        if self.error:
            raise harness.Failure(f"the counter ended: {self.error}")


class Groups(ClusterTest):
    def two_volumes(self):
        """A cluster with two volumes of two nodes, and a node that owns neither."""
        cluster = self.cluster(3)
        owners = cluster.names[:2]
        for volume, owner in zip(VOLUMES, owners, strict=True):
            cluster.cairn("node3", "volume", "create", volume)
            cluster.cairn("node3", "export", "set", volume, "--client", "0.0.0.0/0", "--squash", "none")
            cluster.cairn("node3", "volume", "move", volume, "--to", owner)
        for volume, owner in zip(VOLUMES, owners, strict=True):
            moved = lambda volume=volume, owner=owner: cluster.owner(volume) == owner
            harness.wait_until(moved, KNOWN_SECONDS_MAX, f"that {owner} owns {volume}")
        return cluster, owners

    def counter(self, cluster, owners):
        def mount():
            try:
                urls = [cluster.url(owner, volume) for owner, volume in zip(owners, VOLUMES, strict=True)]
                return Counter(urls)
            except OSError:
                return None

        counter = self.entered(harness.wait_until(mount, KNOWN_SECONDS_MAX, "that both volumes can be mounted"))
        counter.await_more()
        return counter

    def names(self, cluster, node, volume):
        listed = cluster.cairn(node, "snapshot", "list", volume, "--json").stdout
        return [snapshot["name"] for snapshot in json.loads(listed)["snapshots"]]

    def numbers(self, cluster, owners, name):
        """What a snapshot has of both volumes."""
        found = []
        for owner, volume in zip(owners, VOLUMES, strict=True):
            with libnfs.Mount(cluster.url(owner, volume)) as mount:
                found.append(int.from_bytes(mount.read_file(f"/.snapshot/{name}/count"), "little"))
        return found

    def check_fits(self, cluster, owners, name):
        data, log = self.numbers(cluster, owners, name)
        self.assertIn(data - log, (0, 1), f"{name} has {data} and {log}")
        return data

    def test_snapshots_of_two_nodes_fit_together(self):
        cluster, owners = self.two_volumes()
        counter = self.counter(cluster, owners)
        last = 0
        usual = statistics.median(counter.took)
        pauses = []
        for number in range(TAKEN_COUNT):
            before = counter.number
            counter.took.clear()
            # Whichever is asked: one that owns both parts, one that owns one of them, one that owns none.
            asked = cluster.names[number % 3]
            made = cluster.cairn(asked, "snapshot", "create", "--group", ",".join(VOLUMES), f"s{number}", "--json").stdout
            self.assertEqual([snapshot["volume"] for snapshot in json.loads(made)["snapshots"]], list(VOLUMES))
            counter.await_more(random.randrange(1, 5))
            pauses.append(max(counter.took))
            found = self.check_fits(cluster, owners, f"s{number}")
            self.assertGreaterEqual(found, max(before, last), "what was answered before is in it")
            last = found
        middle, most = statistics.median(pauses), max(pauses)
        print(f"a number takes {usual * 1000:.1f} ms, beside a snapshot {middle * 1000:.1f} ms, at most {most * 1000:.1f} ms", flush=True)
        # All or none.
        cluster.cairn("node3", "snapshot", "create", "log", "mine")
        refused = cluster.cairn("node3", "snapshot", "create", "--group", ",".join(VOLUMES), "mine", check=False)
        self.assertEqual(refused.returncode, REFUSED, refused.stderr)
        self.assertIn("mine of volume log: there is a snapshot of that name already", refused.stderr)
        self.assertNotIn("mine", self.names(cluster, "node3", "data"))
        for wrong, why in (("data,none", "none"), ("data,log,data", "twice")):
            refused = cluster.cairn("node3", "snapshot", "create", "--group", wrong, "wrong", check=False)
            self.assertNotEqual(refused.returncode, 0)
            self.assertIn(why, refused.stderr)
        # Nothing of those that were refused waits, or is left.
        counter.await_more()
        cluster.cairn("node3", "snapshot", "create", "--group", ",".join(VOLUMES), "wrong")
        self.check_fits(cluster, owners, "wrong")

    def test_a_node_that_is_lost_while_it_takes_them_leaves_all_or_none(self):
        cluster, owners = self.two_volumes()
        counter = self.counter(cluster, owners)
        machine = cluster.machine("node3")
        taken = 0
        for round_number in range(KILLED_COUNT):
            argv = [str(harness.cairn_path()), "snapshot", "create", "--group", ",".join(VOLUMES)]
            argv += ["--server", machine["admin"], "--token-file", machine["token_file"]]
            for number in range(random.randrange(1, 4)):
                subprocess.run([*argv, f"r{round_number}-{number}"], check=True, stdout=subprocess.DEVNULL, timeout=KNOWN_SECONDS_MAX)
                taken += 1
            last = subprocess.Popen([*argv, f"r{round_number}-last"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            # Anywhere between its first question and its last.
            threading.Event().wait(random.uniform(0, 0.06))
            cluster.kill("node3")
            last.wait(KNOWN_SECONDS_MAX)
            # Nobody waits for ever for an answer that it held back.
            counter.await_more()

            def is_decided():
                both = [self.names(cluster, owner, volume) for owner, volume in zip(owners, VOLUMES, strict=True)]
                return both[0] == both[1]

            harness.wait_until(is_decided, DECIDED_SECONDS_MAX, "that both volumes have the same snapshots")
            cluster.start_nodes("node3")
            cluster.await_serving("node3")
        names = self.names(cluster, "node1", "data")
        self.assertGreaterEqual(len(names), taken)
        for name in names:
            self.check_fits(cluster, owners, name)
        # Whatever came to nothing has given its name back, and nothing of it is in the map.
        for round_number in range(KILLED_COUNT):
            name = f"r{round_number}-last"

            def is_free_or_there(name=name):
                if name in self.names(cluster, "node1", "data"):
                    return True
                done = cluster.cairn("node3", "snapshot", "create", "--group", ",".join(VOLUMES), name, check=False)
                return done.returncode == 0

            harness.wait_until(is_free_or_there, DECIDED_SECONDS_MAX, f"that {name} can be taken")
            self.check_fits(cluster, owners, name)

    def test_an_owner_that_stands_still_meanwhile_takes_nobody_with_it(self):
        cluster, owners = self.two_volumes()
        with libnfs.Mount(cluster.url(owners[0], "data")) as mount:
            mount.write_file("/before", b"1")
            machine = cluster.machine("node3")
            argv = [str(harness.cairn_path()), "snapshot", "create", "--group", ",".join(VOLUMES), "still"]
            argv += ["--server", machine["admin"], "--token-file", machine["token_file"]]
            cluster.pause(owners[1])
            taking = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            # What the other owner holds back it lets go.
            mount.write_file("/meanwhile", b"2")
            _, told = taking.communicate(timeout=KNOWN_SECONDS_MAX)
            self.assertNotEqual(taking.returncode, 0, "the owner of one volume does not answer")
            self.assertIn(owners[1], told)
            self.assertNotIn("still", self.names(cluster, "node3", "data"))
            cluster.resume(owners[1])
            self.assertEqual(mount.read_file("/meanwhile"), b"2")

        def is_taken():
            done = cluster.cairn("node3", "snapshot", "create", "--group", ",".join(VOLUMES), "still", check=False)
            return done.returncode == 0

        # Whoever owns the volume now.
        harness.wait_until(is_taken, DECIDED_SECONDS_MAX, "that the snapshots can be taken")
        for volume in VOLUMES:
            self.assertEqual(self.names(cluster, "node3", volume), ["still"])
