"""Addresses that nodes share: each node has its part, and clients that mount any of them go on when its node is lost."""

import json
import os
import re
import signal
import socket
import struct
import subprocess

from cluster.world import LEASE_IS_OVER_SECONDS, ClusterTest, needs_namespaces
from lib import harness, libnfs

# Until addresses are where they should be.
MOVE_SECONDS_MAX = 60
# A node that came back gets its addresses after 30 s.
BACK_SECONDS_MAX = 90
# From a kill until others have the addresses: the guardian ends the lease, or it ends by itself, and what a busy machine adds.
LOST_SECONDS_MAX = 10
# So long the kernel of a killed node keeps an address that nobody renews.
KEPT_SECONDS = 5
LOST_PAUSE_SECONDS_MAX = 14
FIRST, COUNT = 100, 6
DNS_NAME = "files.example.com"
DNS_TIMEOUT_SECONDS = 2
NO_ERROR, FORMAT_ERROR, REFUSED = 0, 1, 5
TYPE_A, TYPE_MX, TYPE_AAAA = 1, 15, 28


def question(name, kind=TYPE_A):
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split("."))
    return struct.pack(">6H", 0x1234, 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack(">2H", kind, 1)


def answered(message, asked):
    """The code, the addresses of IPv4 in their order, and the number of records about who has authority."""
    number, flags, _, answers, authority, _ = struct.unpack(">6H", message[:12])
    assert number == 0x1234 and flags & 0x8000, message
    at, found = len(asked), []
    for _ in range(answers):
        name, kind, _, ttl, length = struct.unpack(">HHHIH", message[at:at + 12])
        assert name == 0xC00C and ttl <= 5, message
        if kind == TYPE_A:
            found.append(socket.inet_ntoa(message[at + 12:at + 12 + length]))
        at += 12 + length
    return flags & 15, found, authority


@needs_namespaces
class AddressPools(ClusterTest):
    def namespace(self, cluster, node):
        return re.findall(r"/run/netns/(\S+)", " ".join(cluster.machine(node)["argv"]))[0]

    def here(self, cluster, node):
        """The addresses of the pool that are on a node's interfaces."""
        argv = ["ip", "netns", "exec", self.namespace(cluster, node), "ip", "-o", "addr", "show"]
        shown = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
        return {address for address in self.addresses if f" {address}/" in shown}

    def places(self, cluster):
        return {node: self.here(cluster, node) for node in cluster.names}

    def pool(self, cluster, node="node1"):
        return json.loads(cluster.cairn(node, "address", "pool", "show", "lan", "--json").stdout)

    def homes(self, cluster, node="node1"):
        homes: dict[str, set[str]] = {name: set() for name in cluster.names}
        for address in self.pool(cluster, node)["addresses"]:
            homes[address["home"]].add(address["address"].partition("/")[0])
        return homes

    def network(self, cluster):
        return cluster.machine("node1")["host"].rpartition(".")[0]

    def with_pool(self, cluster, count=COUNT):
        network = self.network(cluster)
        self.addresses = [f"{network}.{last}" for last in range(FIRST, FIRST + count)]
        listed = f"{self.addresses[0]}-{self.addresses[-1]}/24"
        cluster.cairn("node1", "address", "pool", "create", "lan", listed, "--dns", DNS_NAME)
        self.await_even(cluster, cluster.names)

    def await_even(self, cluster, nodes, seconds=MOVE_SECONDS_MAX):
        """Waits until each address is on one of these nodes, and all have as many, to within one."""

        def even():
            places = self.places(cluster)
            counts = [len(places[node]) for node in nodes]
            others = [node for node in cluster.names if node not in nodes and places[node]]
            each_once = sum(len(found) for found in places.values()) == len(self.addresses)
            return each_once and not others and max(counts) - min(counts) <= 1

        harness.wait_until(even, seconds, f"that {nodes} have the addresses evenly")
        return self.places(cluster)

    def url(self, address, volume="main"):
        return f"nfs://{address}/{volume}?nfsport=2049&mountport=2049&version=3"

    def loads(self, addresses):
        from lib.cluster import Loads

        return self.entered(Loads([self.url(address) for address in addresses]))

    def finish(self, cluster, load):
        load.await_progress()
        load.end()
        self.assertGreater(load.verify(cluster.url(None)), 0)

    def ask(self, cluster, node, name=DNS_NAME, kind=TYPE_A, bare=None):
        asked = bare or question(name, kind)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
            client.settimeout(DNS_TIMEOUT_SECONDS)
            client.sendto(asked, (cluster.machine(node)["host"], 53))
            return answered(client.recv(512), asked)

    def test_the_addresses_of_a_lost_node_are_at_others_and_come_back(self):
        cluster = self.cluster(3, serve_flags=["--listen-dns", "0.0.0.0:53"])
        self.with_pool(cluster)
        first = self.places(cluster)
        self.assertEqual(first, self.homes(cluster))
        self.assertEqual([len(first[node]) for node in cluster.names], [2, 2, 2])
        # The client mounts a node that may own nothing: only its address is lost.
        lost = cluster.others(cluster.owner())[0]
        rest = cluster.others(lost)
        load = self.loads([sorted(first[node])[0] for node in cluster.names])
        for is_guarded in (True, False):
            load.forget_pauses()
            if is_guarded:
                os.kill(cluster.machine(lost)["pid"], signal.SIGKILL)
                # Its guardian takes them away before others have them.
                harness.wait_until(lambda: not self.here(cluster, lost), KEPT_SECONDS / 2, f"that {lost} has no address")
            else:
                # With its guardian: the lease ends by itself, and the kernel removes them.
                cluster.kill(lost)
            places = self.await_even(cluster, rest, LOST_SECONDS_MAX + (0 if is_guarded else KEPT_SECONDS))
            for node in rest:
                self.assertLessEqual(first[node], places[node], "only what the lost node had moves")
            load.await_progress()
            print(f"{lost} was killed, guarded: {is_guarded}: pause of {load.pause_seconds():.1f} s", flush=True)
            self.assertLess(load.pause_seconds(), LOST_PAUSE_SECONDS_MAX)
            # All are answered by nodes that live.
            for node in rest:
                code, found, _ = self.ask(cluster, node)
                self.assertEqual((code, set(found)), (NO_ERROR, set(self.addresses)))
            cluster.heal()
            cluster.await_serving(lost)
            back = lambda: self.places(cluster) == first
            harness.wait_until(back, BACK_SECONDS_MAX, "that all addresses are at home")
            load.await_progress()
        self.finish(cluster, load)
        cluster.cairn("node1", "address", "pool", "delete", "lan")
        gone = lambda: not any(self.places(cluster).values())
        harness.wait_until(gone, MOVE_SECONDS_MAX, "that nobody has the addresses")

    def test_maintenance_and_a_stop_move_addresses_in_order(self):
        cluster = self.cluster(3)
        self.with_pool(cluster)
        first = self.places(cluster)
        load = self.loads([sorted(first[node])[0] for node in cluster.names])
        leaving = cluster.others(cluster.owner())[0]
        rest = cluster.others(leaving)
        asker = rest[0]
        cluster.cairn(asker, "node", "maintenance", "on", leaving)
        # The command waits for that.
        self.assertEqual(self.here(cluster, leaving), set())
        places = self.await_even(cluster, rest)
        for node in rest:
            self.assertLessEqual(first[node], places[node])
        load.await_progress()
        print(f"maintenance: pause of {load.pause_seconds():.1f} s", flush=True)
        cluster.cairn(asker, "node", "maintenance", "off", leaving)
        back = lambda: self.places(cluster) == first
        harness.wait_until(back, BACK_SECONDS_MAX, "that all addresses are at home")
        load.forget_pauses()
        cluster.stop(leaving)
        self.await_even(cluster, rest)
        load.await_progress()
        print(f"a stop: pause of {load.pause_seconds():.1f} s", flush=True)
        self.assertEqual(self.here(cluster, leaving), set())
        cluster.start_nodes(leaving)
        harness.wait_until(back, BACK_SECONDS_MAX, "that all addresses are at home")
        self.finish(cluster, load)

    def test_a_node_that_stands_still_keeps_no_address(self):
        cluster = self.cluster(3)
        self.with_pool(cluster, 3)
        still = cluster.others(cluster.owner())[0]
        address = next(iter(self.here(cluster, still)))
        with libnfs.Mount(self.url(address)) as mount:
            mount.write_file("/before", b"by the first")
        cluster.pause(still)
        self.await_even(cluster, cluster.others(still), LEASE_IS_OVER_SECONDS)
        with libnfs.Mount(self.url(address)) as mount:
            self.assertEqual(mount.read_file("/before"), b"by the first")
            mount.write_file("/meanwhile", b"by the next")
        cluster.resume(still)
        cluster.await_serving(still)
        self.await_even(cluster, cluster.names, BACK_SECONDS_MAX)
        with libnfs.Mount(self.url(address)) as mount:
            self.assertEqual(mount.read_file("/meanwhile"), b"by the next")

    def test_pools_change_and_what_cannot_be_is_refused(self):
        cluster = self.cluster(2, serve_flags=["--listen-dns", "0.0.0.0:53"])
        self.with_pool(cluster, 3)
        network = self.network(cluster)
        node = cluster.machine("node2")["host"]
        cluster.cairn("node1", "volume", "address", "set", "main", f"{network}.90/24")
        for words, why in [
            (("create", "lan", f"{network}.120/24"), "there is an address pool lan already"),
            (("create", "b", f"{network}.100/24"), f"address pool lan has the address {network}.100"),
            (("create", "b", f"{network}.90/24"), f"volume main has the address {network}.90"),
            (("create", "b", f"{node}/24"), "node node2 has the address"),
            (("create", "b", f"{network}.120"), "no prefix length"),
            (("create", "b", f"{network}.1-{network}.99/24"), "more than 64"),
            (("create", "b", f"{network}.120/24", "--dns", "a_b"), "not a DNS name"),
            (("create", "/b", f"{network}.120/24"), "a name has letters"),
            (("add", "lan", "10.99.0.1/24"), "another network"),
            (("remove", "lan", f"{network}.120"), "does not have"),
            (("remove", "lan", *self.addresses), "would be empty"),
            (("remove", "none", f"{network}.100"), "no address pool \"none\""),
            (("show", "a/b c"), "no address pool \"a/b c\""),
        ]:
            done = cluster.cairn("node1", "address", "pool", *words, check=False)
            self.assertNotEqual(done.returncode, 0, words)
            self.assertIn(why, done.stderr)
        done = cluster.cairn("node1", "volume", "address", "set", "main", f"{self.addresses[0]}/24", check=False)
        self.assertIn("address pool lan has this address", done.stderr)

        cluster.cairn("node2", "address", "pool", "remove", "lan", self.addresses[0])
        left = self.addresses.pop(0)
        self.await_even(cluster, cluster.names)
        # It is free for another one.
        cluster.cairn("node1", "volume", "address", "set", "main", f"{left}/24")
        cluster.cairn("node2", "address", "pool", "add", "lan", f"{network}.110-{network}.111/24")
        self.addresses += [f"{network}.110", f"{network}.111"]
        self.await_even(cluster, cluster.names)

        def told():
            code, found, _ = self.ask(cluster, "node2")
            return code == NO_ERROR and set(found) == set(self.addresses)

        harness.wait_until(told, MOVE_SECONDS_MAX, "an answer with all addresses")
        firsts = {self.ask(cluster, "node1")[1][0] for _ in range(len(self.addresses))}
        self.assertEqual(firsts, set(self.addresses), "each comes first in its turn")
        self.assertEqual(self.ask(cluster, "node1", DNS_NAME.upper())[0], NO_ERROR)
        self.assertEqual(self.ask(cluster, "node1", kind=TYPE_MX), (NO_ERROR, [], 1))
        self.assertEqual(self.ask(cluster, "node1", kind=TYPE_AAAA), (NO_ERROR, [], 1))
        self.assertEqual(self.ask(cluster, "node1", "other.example.com"), (REFUSED, [], 0))
        self.assertEqual(self.ask(cluster, "node1", bare=question(DNS_NAME)[:20]), (FORMAT_ERROR, [], 0))
        asked = question(DNS_NAME)
        with socket.create_connection((cluster.machine("node1")["host"], 53), DNS_TIMEOUT_SECONDS) as client:
            client.sendall(struct.pack(">H", len(asked)) + asked)
            stream = client.makefile("rb")
            length = struct.unpack(">H", stream.read(2))[0]
            code, found, _ = answered(stream.read(length), asked)
            self.assertEqual((code, set(found)), (NO_ERROR, set(self.addresses)))

    def test_an_address_that_a_node_cannot_have_is_at_another(self):
        cluster = self.cluster(2)
        network = self.network(cluster)
        # Only one node has the interface.
        enter = ["ip", "netns", "exec", self.namespace(cluster, "node2"), "ip", "link"]
        subprocess.run([*enter, "add", "only0", "type", "veth", "peer", "name", "only1"], check=True)
        for end in ("only0", "only1"):
            subprocess.run([*enter, "set", end, "up"], check=True)
        cluster.cairn("node1", "address", "pool", "create", "lan", f"{network}.100-{network}.101/24", "--interface", "only0")
        self.addresses = [f"{network}.100", f"{network}.101"]
        there = lambda: self.here(cluster, "node2") == set(self.addresses)
        harness.wait_until(there, MOVE_SECONDS_MAX, "that the node with the interface has all addresses")
        problems = [address.get("problem", "") for address in self.pool(cluster, "node2")["addresses"]]
        self.assertTrue(any("node1: this machine has no interface only0" in problem for problem in problems), problems)
        self.assertIn("is not on its node", cluster.cairn("node2", "cluster", "status").stdout)
