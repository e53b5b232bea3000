"""Calls on a volume of another node: they are counted by volume, and what the hop costs is told."""

import contextlib
import ctypes
import json
import os
import pathlib
import re
import socket
import statistics
import threading
import time
import urllib.request

from cluster.world import ClusterTest, needs_namespaces
from lib import harness, libnfs
from lib.rawnfs import OK, Peer

CALLS_COUNT = 2000
READ_LEN_BYTES = 4096
WAIT_SECONDS_MAX = 60
# Where nodes of `dev-cluster` listen for one another.
INTERNAL_PORT = 7400
ALL_ETHERNET = 3
NETWORK_NAMESPACE = 0x40000000
TAP_LOOK_SECONDS = 0.2
MARK = b"whoever is on the internal network may read this, or not"


class Wiretap:
    """All that goes between nodes by their internal port, as the switch between them sees it."""

    def __init__(self, cluster):
        tag = json.loads((cluster.folder / "cluster.json").read_text())["layout"]["network"]["namespaces"]["tag"]
        self.namespace = f"/run/netns/{tag}-switch"
        self.packets, self.marked = 0, 0
        self.begun, self.ends = threading.Event(), threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)

    def __enter__(self):
        self.thread.start()
        harness.wait_until(self.begun.is_set, WAIT_SECONDS_MAX, f"a socket in {self.namespace}")
        return self

    def __exit__(self, *_):
        self.ends.set()
        self.thread.join()

    def run(self):
        # A thread has a network namespace of its own.
        with open(self.namespace) as namespace:
            if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), NETWORK_NAMESPACE):
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), self.namespace)
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL_ETHERNET)) as tap:
            tap.settimeout(TAP_LOOK_SECONDS)
            self.begun.set()
            self.listen(tap)

    def listen(self, tap):
        while not self.ends.is_set():
            with contextlib.suppress(TimeoutError):
                packet = tap.recv(1 << 17)
                # Ethernet, IPv4, TCP.
                tcp = 14 + (packet[14] & 15) * 4 if len(packet) > 34 and packet[12:14] == b"\x08\x00" and packet[23] == 6 else None
                if tcp and INTERNAL_PORT in (int.from_bytes(packet[tcp + at : tcp + at + 2], "big") for at in (0, 2)):
                    self.packets += 1
                    self.marked += MARK in packet


class Forwarding(ClusterTest):
    def metric(self, cluster, node, name, volume="main"):
        """The value of a metric of a volume; 0 if it is not there."""
        machine = cluster.machine(node)
        token = pathlib.Path(machine["token_file"]).read_text().strip()
        request = urllib.request.Request(f"{machine['admin']}/metrics", headers={"Authorization": f"Bearer {token}"})
        with urllib.request.urlopen(request, timeout=WAIT_SECONDS_MAX) as answer:
            text = answer.read().decode()
        found = re.search(rf'^{name}{{volume="{volume}"}} (\S+)$', text, re.M)
        return float(found.group(1)) if found else 0.0

    def latencies(self, cluster, node):
        """Median microseconds of a GETATTR and of a READ of 4 KiB that is in memory, one call at a time."""
        with Peer(cluster.nfs_port(node)) as peer:
            status, root = peer.mount("/main")
            self.assertEqual(status, OK)
            status, file, _ = peer.create(root, "hop")
            self.assertEqual((status, peer.write(file, bytes(READ_LEN_BYTES))), (OK, OK))
            kinds = [lambda: peer.getattr(root)[0], lambda: peer.read_some(file, 0, READ_LEN_BYTES)[0]]
            medians = []
            for kind in kinds:
                took = []
                for _ in range(CALLS_COUNT):
                    begun = time.perf_counter()
                    self.assertEqual(kind(), OK)
                    took.append(time.perf_counter() - begun)
                medians.append(statistics.median(took) * 1e6)
            return medians

    def get(self, cluster, node, path):
        machine = cluster.machine(node)
        token = pathlib.Path(machine["token_file"]).read_text().strip()
        request = urllib.request.Request(f"{machine['admin']}{path}", headers={"Authorization": f"Bearer {token}"})
        with urllib.request.urlopen(request, timeout=WAIT_SECONDS_MAX) as answer:
            return json.loads(answer.read())

    def test_clients_of_other_nodes_are_told_with_their_own_address(self):
        cluster = self.cluster(3)
        owner = cluster.owner()
        other, third = cluster.others(owner)[:2]
        with Peer(cluster.nfs_port(other)) as peer:
            status, root = peer.mount("/main")
            self.assertEqual(status, OK)
            # Where this client comes from, as nodes see it: with networks of their own, that is none of theirs.
            mounts = [mount for node in cluster.names for mount in self.get(cluster, node, "/api/v1/nfs/mounts")["mounts"]]
            (own,) = {mount["client"] for mount in mounts}
            status, file, _ = peer.create(root, "far")
            self.assertEqual((status, peer.write(file, bytes(READ_LEN_BYTES))), (OK, OK))
            for node in (owner, other, third):

                def is_told(node=node):
                    self.assertEqual(peer.read_some(file, 0, READ_LEN_BYTES)[0], OK)
                    told = json.loads(cluster.cairn(node, "top", "main", "--json").stdout)
                    reads = [row for row in told["operations"] if row["operation"] == "read"]
                    is_there = any(row["name"] == "/far" for row in told["files"])
                    self.assertLessEqual({(row["client"], row["protocol"]) for row in told["clients"]}, {(own, "nfs")})
                    return is_there and told["clients"] and reads and reads[0]["read_bytes_per_second"] > 0

                harness.wait_until(is_told, WAIT_SECONDS_MAX, f"that node {node} tells who reads")
                volumes = json.loads(cluster.cairn(node, "top", "--json").stdout)["volumes"]
                self.assertEqual([row["volume"] for row in volumes], ["main"], "of all nodes, each once")
                self.assertGreater(volumes[0]["operations_per_second"], 0)

    def test_calls_on_volumes_of_other_nodes_are_counted_and_timed(self):
        cluster = self.cluster(3)
        owner = cluster.owner()
        other = cluster.others(owner)[0]
        name = "cairn_nfs_forwarded_duration_seconds_count"
        # The owner of now may have passed calls on before it was that.
        before = self.metric(cluster, owner, name)
        direct = self.latencies(cluster, owner)
        self.assertEqual(self.metric(cluster, owner, name), before)
        before = self.metric(cluster, other, name)
        passed = self.latencies(cluster, other)
        self.assertGreaterEqual(self.metric(cluster, other, name) - before, 2 * CALLS_COUNT)
        for kind, one, two in zip(["GETATTR", "READ of 4 KiB"], direct, passed):
            print(f"{kind}: {one:.0f} us through the owner, {two:.0f} us through another node", flush=True)
        # What waits for an owner is counted while and after it waits.
        load = self.load(cluster, [other])
        held = "cairn_nfs_held_duration_seconds_count"
        before = self.metric(cluster, other, held)
        cluster.kill(owner)
        waits = lambda: self.metric(cluster, other, "cairn_nfs_held_calls") > 0
        harness.wait_until(waits, WAIT_SECONDS_MAX, "a call that is held")
        load.await_progress()
        after = self.metric(cluster, other, held) + self.metric(cluster, other, "cairn_nfs_held_calls")
        self.assertGreater(after, before)
        cluster.heal()
        load.end()
        self.assertGreater(load.verify(cluster.url(other)), 0)

    @needs_namespaces
    def test_without_encryption_data_is_readable_between_nodes_that_all_say_so(self):
        said = "not encrypted on the internal network: between node1, node2, node3"
        for flags, is_clear in ((["--internal-encryption=false"], True), ([], False)):
            cluster = self.cluster(3, name=f"clear-{is_clear}", serve_flags=flags)
            owner = cluster.owner()
            other = cluster.others(owner)[0]
            data = MARK * 20_000
            with Wiretap(cluster) as tap, libnfs.Mount(cluster.url(other)) as mount:
                mount.write_file("/marked", data)
                self.assertTrue(mount.read_file("/marked") == data)
                harness.wait_until(lambda tap=tap: tap.packets > 20, WAIT_SECONDS_MAX, "packets between nodes")
            self.assertEqual(tap.marked > 0, is_clear, f"{tap.marked} of {tap.packets} packets")
            shown = cluster.cairn(other, "cluster", "status").stdout
            self.assertEqual(said in shown, is_clear, shown)
            nodes = json.loads(cluster.cairn(other, "cluster", "status", "--json").stdout)["nodes"]
            self.assertEqual({node["internal_encryption"] for node in nodes}, {not is_clear})
            # Disks of others, too, and a takeover.
            load = self.load(cluster, [other])
            cluster.kill(owner)
            load.await_progress()
            cluster.heal()
            load.end()
            self.assertGreater(load.verify(cluster.url(other)), 0)
            cluster.end()
