"""What is absent and not lost is waited for: clients see a pause or "come later", never an error, and a part that can serve does."""

import json
import threading
import time

from cluster.world import KILLED_PAUSE_SECONDS_MAX, OTHERS_PAUSE_SECONDS_MAX, ClusterTest, needs_namespaces
from lib import harness, iscsi, libnfs, rawnfs
from lib.worlds import content

FILE_LEN_BYTES = 24 << 20
READ_LEN_BYTES = 64 << 10
LUN_LEN_BYTES = 16 << 20
INITIATOR = "iqn.2025-11.test:host"
# Longer than a server holds a read.
CUT_SECONDS = 25
# A read is held for 10 s, after a link that is silent was waited for as long.
ANSWER_SECONDS_MAX = 30
# An election of etcd takes 1.6 s at most; without pre-vote a member that returns causes several.
RETURN_SECONDS = 10
STOP_SECONDS_MAX = 10
TAKEOVER_SECONDS_MAX = 60


class Reader(threading.Thread):
    """Reads again and again until it is told to end, and counts how each read ended. Wrong bytes end it."""

    def __init__(self, bytes_wanted):
        super().__init__(daemon=True)
        self.bytes_wanted, self.at = bytes_wanted, 0
        self.ended, self.failure = threading.Event(), None
        self.counts: dict = {}

    def read_once(self):
        """Reads the next bytes; returns how that ended."""
        raise NotImplementedError

    def run(self):
        try:
            while not self.ended.is_set():
                how = self.read_once()
                self.counts[how] = self.counts.get(how, 0) + 1
        except Exception as failure:
            self.failure = failure

    def end(self):
        self.ended.set()
        self.join(ANSWER_SECONDS_MAX * 2)
        if self.failure or self.is_alive():
            raise AssertionError(f"a reader ended with {self.failure!r}, after {self.counts}")
        return self.counts


class NfsReader(Reader):
    def __init__(self, port, path, bytes_wanted):
        super().__init__(bytes_wanted)
        self.peer = rawnfs.Peer(port, answer_seconds_max=ANSWER_SECONDS_MAX)
        status, root = self.peer.mount("/main")
        assert status == rawnfs.OK, status
        status, self.handle = self.peer.lookup(root, path.strip("/"))
        assert status == rawnfs.OK, status

    def read_once(self):
        status, got, _ = self.peer.read_some(self.handle, self.at, READ_LEN_BYTES)
        if status == rawnfs.OK:
            assert got == self.bytes_wanted[self.at : self.at + READ_LEN_BYTES], f"other bytes at {self.at}"
            self.at = (self.at + READ_LEN_BYTES) % len(self.bytes_wanted)
        return status


class LunReader(Reader):
    def __init__(self, port, target, bytes_wanted):
        super().__init__(bytes_wanted)
        self.session = iscsi.Session(("127.0.0.1", port), INITIATOR, target)
        self.session.clear_attentions()

    def read_once(self):
        try:
            got = self.session.read(self.at, READ_LEN_BYTES)
        except iscsi.Busy:
            return "busy"
        assert got == self.bytes_wanted[self.at : self.at + READ_LEN_BYTES], f"other bytes at {self.at}"
        self.at = (self.at + READ_LEN_BYTES) % len(self.bytes_wanted)
        return "good"


class Waits(ClusterTest):
    def others(self, cluster, node):
        return [name for name in cluster.names if name != node]

    @needs_namespaces
    def test_what_absent_disks_have_is_waited_for(self):
        cluster = self.cluster(6, external_etcd=True, serve_flags=("--memory-limit", "256MiB"))
        before = cluster.owner()
        run = lambda *words: cluster.cairn(before, *words)
        run("lun", "create", "main/disk", "--size", str(LUN_LEN_BYTES))
        run("igroup", "create", "main/hosts", "--initiator", INITIATOR, "--os", "linux")
        run("lun", "map", "main/disk", "--igroup", "hosts")
        target = json.loads(run("lun", "show", "main/disk", "--json").stdout)["target"]
        file_bytes, lun_bytes = content("file", FILE_LEN_BYTES), content("lun", LUN_LEN_BYTES)
        with libnfs.Mount(cluster.url(before)) as mount:
            mount.write_file("/file", file_bytes)
        with iscsi.Session(("127.0.0.1", cluster.iscsi_port(before)), INITIATOR, target) as session:
            session.clear_attentions()
            for at in range(0, LUN_LEN_BYTES, READ_LEN_BYTES):
                session.write(at, lun_bytes[at : at + READ_LEN_BYTES])
        # The next owner has nothing in memory.
        cluster.stop(before)
        cluster.start_nodes(before)
        cluster.await_serving(before)
        owner = cluster.owner()
        readers = [
            NfsReader(cluster.nfs_port(owner), "/file", file_bytes),
            LunReader(cluster.iscsi_port(owner), target, lun_bytes),
        ]
        far = self.others(cluster, owner)[2:]
        cluster.partition(*far, peers=[name for name in cluster.names if name not in far])
        for reader in readers:
            reader.start()
        # The length of the cut is the fault.
        time.sleep(CUT_SECONDS)
        cluster.heal()
        nfs, lun = readers
        for reader, good in ((nfs, rawnfs.OK), (lun, "good")):
            had = reader.counts.get(good, 0)
            all_of_it = len(reader.bytes_wanted) // READ_LEN_BYTES
            again = lambda: reader.failure or reader.counts.get(good, 0) >= had + all_of_it
            harness.wait_until(again, TAKEOVER_SECONDS_MAX, "all of it once more")
        counts = nfs.end(), lun.end()
        print(f"without three of six nodes: NFS {counts[0]}, LUN {counts[1]}", flush=True)
        self.assertLessEqual(set(counts[0]), {rawnfs.OK, rawnfs.JUKEBOX})
        self.assertTrue(rawnfs.JUKEBOX in counts[0] or "busy" in counts[1], "the cut kept nothing from being read")
        for node in cluster.names:
            status = cluster.cairn(node, "status", "--json").stdout
            self.assertNotIn("damaged", status, node)

    @needs_namespaces
    def test_a_node_that_returns_after_a_cut_ends_no_lease(self):
        cluster = self.cluster(3)
        load = self.load(cluster)
        owner = cluster.owner()
        other = self.others(cluster, owner)[0]
        cluster.partition(other)
        # Its member of etcd asks for elections meanwhile. The length of the cut is the fault.
        time.sleep(RETURN_SECONDS)
        load.await_progress()
        load.forget_pauses()
        cluster.heal(other)
        ends_at = time.monotonic() + RETURN_SECONDS
        while time.monotonic() < ends_at:
            load.await_progress()
        print(f"a node returned: pause of {load.pause_seconds():.1f} s", flush=True)
        self.assertLess(load.pause_seconds(), OTHERS_PAUSE_SECONDS_MAX)
        self.assertEqual(cluster.owner(), owner)
        for name in self.others(cluster, other):
            log = (cluster.folder / name / "log").read_text(errors="replace")
            self.assertNotIn("this node's lease has expired", log, name)
        load.end()
        self.assertGreater(load.verify(cluster.url()), 0)

    def check_stop(self, cluster, load, take_etcd_away, give_etcd_back):
        owner = cluster.owner()
        take_etcd_away(owner)
        begun = time.monotonic()
        cluster.stop(owner)
        took = time.monotonic() - begun
        print(f"a node without etcd stopped after {took:.1f} s", flush=True)
        give_etcd_back(owner)
        cluster.heal()
        load.await_progress()
        load.end()
        self.assertGreater(load.verify(cluster.url()), 0)
        self.assertLess(took, STOP_SECONDS_MAX)

    def test_a_node_stops_while_most_members_of_etcd_are_gone(self):
        cluster = self.cluster(3)
        load = self.load(cluster)
        kill = lambda owner: cluster.kill(*self.others(cluster, owner))
        self.check_stop(cluster, load, kill, lambda owner: None)

    def test_a_node_stops_while_etcd_stands_still(self):
        cluster = self.cluster(3, external_etcd=True)
        load = self.load(cluster)
        members = ("etcd1", "etcd2", "etcd3")
        self.check_stop(cluster, load, lambda _: cluster.pause(*members), lambda _: cluster.resume(*members))

    def test_the_last_node_stops_though_etcd_and_its_lease_are_well(self):
        cluster = self.cluster(3, external_etcd=True)
        owner = cluster.owner()
        data = content("last", FILE_LEN_BYTES)
        with libnfs.Mount(cluster.url(owner)) as mount:
            mount.write_file("/last", data)
        cluster.kill(*self.others(cluster, owner))
        is_last = lambda: [node["name"] for node in cluster.status()["nodes"] if node["alive"]] == [owner]
        harness.wait_until(is_last, TAKEOVER_SECONDS_MAX, "that the leases of the others end")
        begun = time.monotonic()
        cluster.stop(owner)
        took = time.monotonic() - begun
        print(f"the last node stopped in {took:.1f} s", flush=True)
        self.assertLess(took, STOP_SECONDS_MAX)
        cluster.start_nodes(*cluster.names)
        for node in cluster.names:
            cluster.await_serving(node)
            with libnfs.Mount(cluster.url(node)) as mount:
                self.assertTrue(mount.read_file("/last") == data)

    @needs_namespaces
    def test_an_owner_that_reaches_no_other_node_gives_way(self):
        cluster = self.cluster(3, external_etcd=True)
        owner = cluster.owner()
        others = self.others(cluster, owner)
        load = self.load(cluster, others)
        load.forget_pauses()
        # It goes on to reach etcd, so that it keeps its lease.
        cluster.partition(owner, peers=others)
        load.await_progress()
        new = cluster.owner(without=[owner])
        print(f"an owner reached no other node: pause of {load.pause_seconds():.1f} s", flush=True)
        self.assertIn(new, others)
        self.assertLess(load.pause_seconds(), KILLED_PAUSE_SECONDS_MAX)
        cluster.heal()
        load.await_progress()
        load.end()
        for node in cluster.names:
            cluster.await_serving(node)
            self.assertGreater(load.verify(cluster.url(node)), 0)

    @needs_namespaces
    def test_a_cut_that_is_not_transitive_is_a_pause(self):
        cluster = self.cluster(3, external_etcd=True)
        owner = cluster.owner()
        far, middle = self.others(cluster, owner)
        load = self.load(cluster, [far, middle])
        load.forget_pauses()
        cluster.partition(owner, peers=[far])
        load.await_progress()
        print(f"owner and another node cut from one another: pause of {load.pause_seconds():.1f} s", flush=True)
        self.assertEqual(cluster.owner(), middle)
        self.assertLess(load.pause_seconds(), KILLED_PAUSE_SECONDS_MAX)
        cluster.heal()
        load.await_progress()
        load.end()
        for node in cluster.names:
            cluster.await_serving(node)
            self.assertGreater(load.verify(cluster.url(node)), 0)
