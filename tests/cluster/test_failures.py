"""Nodes fail under load: clients see a pause and no error, and everything that was acknowledged is there."""

import os
import pathlib
import random
import re
import threading
import time
import urllib.request

from cluster.world import (
    KILLED_PAUSE_SECONDS_MAX,
    LEASE_IS_OVER_SECONDS,
    OTHERS_PAUSE_SECONDS_MAX,
    STOPPED_PAUSE_SECONDS_MAX,
    ClusterTest,
    needs_namespaces,
)
from lib import harness, libnfs
from lib.worlds import content

BLOCK_LEN_BYTES = 10_000
TAKEOVER_SECONDS_MAX = 60
# A connection to a silent node ends 10 s after it was heard last, and a move begins within 4 s of that.
MOVED_PAUSE_SECONDS_MAX = 6
# So small that garbage collection has to rewrite segments all the time while CHURN_MIB are overwritten.
SMALL_DISK_MIB, CHURN_MIB, CHURN_LEN_BYTES = 512, 384, 256 * 1024
CHURN_SYNC_EVERY = 64
COLLECTS_SECONDS_MAX = 240
# Garbage collection that rewrites nothing for so long waits for a node; it is looked for that for so long.
STUCK_SECONDS, STUCK_LOOKED_SECONDS = 0.8, 2.5
# Whether garbage collection waits for the node when it stands still is a matter of luck.
MOVES_MAX = 8
# What the last owner logs when it gives up on a task that waits for a disk.
LEFT_BEHIND = "closing the volume waits for a disk"


class Direct(threading.Thread):
    """Writes stable blocks through one node, whatever becomes of it, and remembers what was acknowledged."""

    def __init__(self, url, path):
        super().__init__(daemon=True)
        self.url, self.path = url, path
        self.count, self.ended = 0, threading.Event()
        self.failure = None

    def block(self, index):
        return content(f"{self.path} {index}", BLOCK_LEN_BYTES)

    def run(self):
        try:
            with libnfs.Mount(self.url) as mount:
                with mount.open(self.path, os.O_CREAT | os.O_RDWR | os.O_SYNC) as file:
                    while not self.ended.is_set():
                        file.write(self.count * BLOCK_LEN_BYTES, self.block(self.count))
                        self.count += 1
        except OSError as failure:
            # A node that is no owner any more may refuse.
            self.failure = failure


class Churn(threading.Thread):
    """Overwrites a file at random, whatever becomes of its node, so that there is garbage to collect. Nobody compares what it wrote."""

    def __init__(self, url, path):
        super().__init__(daemon=True)
        self.url, self.path = url, path
        self.ended = threading.Event()
        self.blocks = [content(f"{path} {index}", CHURN_LEN_BYTES) for index in range(8)]

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        self.join(TAKEOVER_SECONDS_MAX)

    def run(self):
        while not self.ended.is_set():
            try:
                with libnfs.Mount(self.url) as mount, mount.open(self.path, os.O_CREAT | os.O_RDWR) as file:
                    self.overwrite(file)
            except OSError:
                # Over a move libnfs may give up its mount.
                self.ended.wait(0.1)

    def overwrite(self, file):
        rng = random.Random(self.path)
        places_count = CHURN_MIB * 1024 * 1024 // CHURN_LEN_BYTES
        count = 0
        while not self.ended.is_set():
            file.write(rng.randrange(places_count) * CHURN_LEN_BYTES, rng.choice(self.blocks))
            count += 1
            if count % CHURN_SYNC_EVERY == 0:
                file.sync()


class Failures(ClusterTest):
    def compare_direct(self, cluster, direct, node):
        with libnfs.Mount(cluster.url(node)) as mount:
            found = mount.read_file(direct.path)
        for index in range(direct.count):
            got = found[index * BLOCK_LEN_BYTES : (index + 1) * BLOCK_LEN_BYTES]
            self.assertTrue(got == direct.block(index), f"{direct.path}: block {index} of {direct.count} is lost")

    def end(self, cluster, load, node=None):
        """All is compared, through this node and through whichever serves."""
        load.end()
        for through in {node, None}:
            self.assertGreater(load.verify(cluster.url(through)), 0)

    def other_than(self, cluster, *nodes):
        return cluster.others(*nodes)[0]

    def test_the_owner_is_killed(self):
        cluster = self.cluster(3)
        load = self.load(cluster)
        owner = cluster.owner()
        load.forget_pauses()
        cluster.kill(owner)
        load.await_progress()
        self.assertNotEqual(cluster.owner(without=[owner]), owner)
        print(f"the owner was killed: pause of {load.pause_seconds():.1f} s", flush=True)
        self.assertLess(load.pause_seconds(), KILLED_PAUSE_SECONDS_MAX)
        cluster.heal()
        load.await_progress()
        self.end(cluster, load, owner)

    def test_each_owner_in_turn_is_killed(self):
        cluster = self.cluster(3)
        load = self.load(cluster)
        self.kill_owners_in_turn(cluster, load)
        self.end(cluster, load)

    def test_the_owner_stops(self):
        cluster = self.cluster(3)
        load = self.load(cluster)
        owner = cluster.owner()
        load.forget_pauses()
        cluster.stop(owner)
        load.await_progress()
        print(f"the owner stopped: pause of {load.pause_seconds():.1f} s", flush=True)
        self.assertLess(load.pause_seconds(), STOPPED_PAUSE_SECONDS_MAX)
        cluster.start_nodes(owner)
        self.end(cluster, load, owner)

    def test_two_of_six_nodes_are_killed(self):
        cluster = self.cluster(6)
        load = self.load(cluster)
        owner = cluster.owner()
        two = [owner, self.other_than(cluster, owner)]
        cluster.kill(*two)
        load.await_progress()
        status = cluster.status(without=two)
        alive = {node["name"] for node in status["nodes"] if node["alive"]}
        harness.wait_until(
            lambda: {node["name"] for node in cluster.status(two)["nodes"] if node["alive"]} == set(cluster.others(*two)),
            TAKEOVER_SECONDS_MAX, f"that the lost nodes are known as lost ({alive})",
        )
        load.end()
        # With both still gone.
        for node in cluster.others(*two):
            self.assertGreater(load.verify(cluster.url(node)), 0)
        cluster.heal()
        for node in two:
            cluster.await_serving(node)
            self.assertGreater(load.verify(cluster.url(node)), 0)

    def test_two_of_six_nodes_that_own_nothing_are_killed(self):
        cluster = self.cluster(6)
        owner = cluster.owner()
        load = self.load(cluster, [owner] * 2)
        two = cluster.others(owner)[:2]
        load.forget_pauses()
        cluster.kill(*two)
        load.await_progress(step_count=200)
        print(f"two that own nothing were killed: pause of {load.pause_seconds():.1f} s", flush=True)
        self.assertLess(load.pause_seconds(), OTHERS_PAUSE_SECONDS_MAX)
        cluster.heal()
        self.end(cluster, load, owner)

    def rewritten_bytes(self, cluster, node):
        """What garbage collection of the volume has rewritten at this node, which owns it."""
        machine = cluster.machine(node)
        token = pathlib.Path(machine["token_file"]).read_text().strip()
        request = urllib.request.Request(f"{machine['admin']}/metrics", headers={"Authorization": f"Bearer {token}"})
        with urllib.request.urlopen(request, timeout=TAKEOVER_SECONDS_MAX) as answer:
            text = answer.read().decode()
        found = re.search(r'^cairn_gc_rewritten_bytes_total{volume="main"} (\S+)$', text, re.M)
        return float(found.group(1)) if found else 0.0

    def await_collection(self, cluster, node):
        """Waits until garbage collection is rewriting segments."""
        before = self.rewritten_bytes(cluster, node)
        rewrites = lambda: self.rewritten_bytes(cluster, node) > before
        harness.wait_until(rewrites, COLLECTS_SECONDS_MAX, f"that {node} collects garbage")

    def look_for_a_standstill(self, cluster, node):
        """Looks for a while whether garbage collection gets nowhere."""
        begun = changed = time.monotonic()
        last = self.rewritten_bytes(cluster, node)

        def is_over():
            nonlocal last, changed
            found, now = self.rewritten_bytes(cluster, node), time.monotonic()
            if found != last:
                last, changed = found, now
            return now - changed > STUCK_SECONDS or now - begun > STUCK_LOOKED_SECONDS

        harness.wait_until(is_over, TAKEOVER_SECONDS_MAX, "a look at garbage collection")

    def test_a_volume_moves_while_another_node_stands_still(self):
        """Its clients do not wait until the owner's garbage collection has an answer of that node, which comes to nothing after 10 s."""
        cluster = self.cluster(6, serve_flags=["--disk-size-limit", f"{SMALL_DISK_MIB}MiB"])
        owner = cluster.owner()
        still = self.other_than(cluster, owner, cluster.etcd_leader())
        target = self.other_than(cluster, owner, still)
        load = self.load(cluster, [owner, target])
        self.entered(Churn(cluster.url(owner), "/churn"))
        moved_count, was_left = 0, False
        while not was_left:
            self.assertLess(moved_count, MOVES_MAX, "garbage collection waited for the silent node in none of the moves")
            self.await_collection(cluster, owner)
            log = pathlib.Path(cluster.machine(owner)["log"])
            before = log.read_text(errors="replace").count(LEFT_BEHIND)
            cluster.pause(still)
            load.await_progress(step_count=1)
            self.look_for_a_standstill(cluster, owner)
            load.forget_pauses()
            cluster.cairn(target, "volume", "move", "main", "--to", target)
            is_moved = lambda to=target: cluster.owner(without=[still]) == to
            harness.wait_until(is_moved, TAKEOVER_SECONDS_MAX, "that the volume moved")
            load.await_progress()
            moved_count += 1
            print(f"moved while another node stood still: pause of {load.pause_seconds():.1f} s", flush=True)
            self.assertLess(load.pause_seconds(), MOVED_PAUSE_SECONDS_MAX)
            # Without this line no task was waited for for longer than a second, and the move shows nothing.
            was_left = log.read_text(errors="replace").count(LEFT_BEHIND) > before
            cluster.heal()
            alive = lambda: still in {node["name"] for node in cluster.status()["nodes"] if node["alive"]}
            harness.wait_until(alive, TAKEOVER_SECONDS_MAX, f"that {still} is back")
            owner, target = target, owner
        print(f"a task was left behind in move {moved_count}", flush=True)
        self.end(cluster, load, owner)

    def test_the_owner_stands_still_for_longer_than_its_lease(self):
        cluster = self.cluster(3)
        load = self.load(cluster)
        owner = cluster.owner()
        other = self.other_than(cluster, owner)
        direct = Direct(cluster.url(owner), "/direct")
        direct.start()
        harness.wait_until(lambda: direct.count > 5, TAKEOVER_SECONDS_MAX, "writes through the owner")
        cluster.pause(owner)
        paused = time.monotonic()
        before = direct.count
        # Another takes over meanwhile, and goes on.
        new = cluster.owner(without=[owner])
        load.await_progress()
        left = LEASE_IS_OVER_SECONDS - (time.monotonic() - paused)
        # The length of the pause is the fault.
        time.sleep(max(left, 0))
        self.assertLessEqual(direct.count, before + 1, "a node that stood still answered")
        cluster.resume(owner)
        # Its client goes on through it, by way of the new owner, or is refused: what counts is that nothing is lost.
        more = lambda: direct.failure or direct.count > before + 5
        harness.wait_until(more, TAKEOVER_SECONDS_MAX, "an answer of the node that goes on")
        direct.ended.set()
        direct.join(TAKEOVER_SECONDS_MAX)
        load.await_progress()
        for node in (new, other, owner):
            cluster.await_serving(node)
            self.compare_direct(cluster, direct, node)
        self.end(cluster, load, owner)

    def check_partition(self, **how):
        cluster = self.cluster(3)
        load = self.load(cluster)
        owner = cluster.owner()
        # Its clients still reach it, unless they are cut off, too: what it says to them must be true.
        direct = Direct(cluster.url(owner), "/direct")
        direct.start()
        harness.wait_until(lambda: direct.count > 5, TAKEOVER_SECONDS_MAX, "writes through the owner")
        cluster.partition(owner, **how)
        cut = time.monotonic()
        load.await_progress()
        time.sleep(max(LEASE_IS_OVER_SECONDS - (time.monotonic() - cut), 0))
        load.await_progress()
        cluster.heal(owner)
        load.await_progress()
        direct.ended.set()
        direct.join(TAKEOVER_SECONDS_MAX)
        self.compare_direct(cluster, direct, None)
        cluster.await_serving(owner)
        self.compare_direct(cluster, direct, owner)
        self.end(cluster, load, owner)

    @needs_namespaces
    def test_the_owner_is_cut_off_from_all_other_nodes(self):
        self.check_partition()

    @needs_namespaces
    def test_the_owner_is_cut_off_from_nodes_and_clients(self):
        self.check_partition(clients=True)

    @needs_namespaces
    def test_the_owner_hears_nothing(self):
        self.check_partition(one_way="to")

    @needs_namespaces
    def test_the_owner_is_not_heard(self):
        self.check_partition(one_way="from")

    @needs_namespaces
    def test_the_network_of_the_owner_is_slow(self):
        cluster = self.cluster(3)
        load = self.load(cluster)
        owner = cluster.owner()
        slow = cluster.slow(owner, delay="20ms", loss="1%")
        if slow.returncode:
            self.assertIn("sch_netem", slow.stderr)
            slow = cluster.slow(owner, rate="20mbit", loss="1%")
        self.assertEqual(slow.returncode, 0, slow.stderr)
        load.await_progress()
        cluster.heal(owner)
        load.await_progress()
        self.end(cluster, load, owner)

    def test_members_of_etcd_are_killed(self):
        cluster = self.cluster(3)
        cluster.await_etcd()
        load = self.load(cluster)
        for node in cluster.names:
            load.forget_pauses()
            before = cluster.machine(node)["etcd_pid"]
            cluster.kill_etcd(node)
            load.await_progress()
            again = lambda: cluster.machine(node)["etcd_pid"] not in (None, before)
            harness.wait_until(again, TAKEOVER_SECONDS_MAX, f"the member of etcd of {node}")
            print(f"etcd of {node} was killed: pause of {load.pause_seconds():.1f} s", flush=True)
        self.end(cluster, load)

    def test_the_leader_of_etcd_is_killed(self):
        cluster = self.cluster(3)
        cluster.await_etcd()
        load = self.load(cluster)
        leader = harness.wait_until(cluster.etcd_leader, TAKEOVER_SECONDS_MAX, "a leader of etcd")
        load.forget_pauses()
        cluster.kill_etcd(leader)
        load.await_progress(step_count=200)
        print(f"the leader of etcd was killed: pause of {load.pause_seconds():.1f} s", flush=True)
        self.assertLess(load.pause_seconds(), OTHERS_PAUSE_SECONDS_MAX)
        self.end(cluster, load)

    def test_without_etcd_what_is_owned_goes_on_only_while_the_lease_lives(self):
        cluster = self.cluster(3, external_etcd=True)
        load = self.load(cluster)
        cluster.pause("etcd1", "etcd2", "etcd3")
        # The lease is over at some time; then nothing may be acknowledged any more.
        stands = []

        def stopped():
            stands.append((time.monotonic(), load.acknowledged_count()))
            first = next(at for at, count in stands if count == stands[-1][1])
            return stands[-1][0] - first > 5

        harness.wait_until(stopped, TAKEOVER_SECONDS_MAX, "that owners without a lease stop")
        cluster.resume("etcd1", "etcd2", "etcd3")
        load.await_progress()
        self.end(cluster, load)

    def test_three_of_six_nodes_are_gone_and_return(self):
        cluster = self.cluster(6)
        load = self.load(cluster)
        three = cluster.names[3:]
        cluster.kill(*three)
        # Nothing is acknowledged that is not safe; whether anything is depends on what was where.
        time.sleep(LEASE_IS_OVER_SECONDS)
        cluster.heal()
        load.await_progress()
        self.end(cluster, load)
