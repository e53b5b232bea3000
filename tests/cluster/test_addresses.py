"""The address of a volume follows its owner: clients that mount it go on wherever the volume goes."""

import re
import socket
import stat
import subprocess
import time

from cluster.world import LEASE_IS_OVER_SECONDS, ClusterTest, needs_namespaces
from lib import harness, libnfs

# Until an address is where it should be.
MOVE_SECONDS_MAX = 60
# A client hears nothing of a lost owner: its next retransmission reaches the new one, which knows no such connection.
# They come after 0.2, 0.6, 1.4, 3, 6.2 and 12.6 s.
LOST_PAUSE_SECONDS_MAX = 14
REFUSED = 4
# Announcements are a second apart.
REACHED_SECONDS_MAX = 4


@needs_namespaces
class Addresses(ClusterTest):
    def namespace(self, cluster, node):
        return re.findall(r"/run/netns/(\S+)", " ".join(cluster.machine(node)["argv"]))[0]

    def in_namespace(self, cluster, node, *words):
        argv = ["ip", "netns", "exec", self.namespace(cluster, node), *words]
        return subprocess.run(argv, capture_output=True, text=True, check=True).stdout

    def has(self, cluster, node, address):
        return f" {address}/" in self.in_namespace(cluster, node, "ip", "-o", "addr", "show")

    def holders(self, cluster, address):
        return [node for node in cluster.names if self.has(cluster, node, address)]

    def free_address(self, cluster, last=100):
        return cluster.machine("node1")["host"].rpartition(".")[0] + f".{last}"

    def url(self, address, volume="main"):
        return f"nfs://{address}/{volume}?nfsport=2049&mountport=2049&version=3"

    def with_address(self, cluster, last=100, volume="main"):
        address = self.free_address(cluster, last)
        cluster.cairn("node1", "volume", "address", "set", volume, f"{address}/24")
        self.await_at(cluster, address, cluster.owner(volume))
        return address

    def await_at(self, cluster, address, node):
        """Waits until the address is on this node and on no other."""
        alone = lambda: self.holders(cluster, address) == [node]
        harness.wait_until(alone, MOVE_SECONDS_MAX, f"{address} on {node} alone")

    def load_at(self, address):
        from lib.cluster import Loads

        return self.entered(Loads([self.url(address)] * 2))

    def finish(self, cluster, load, address):
        load.await_progress()
        load.end()
        with libnfs.Mount(self.url(address)) as mount:
            self.assertGreater(sum(one.verify(mount) for one in load.loads), 0)
        self.assertGreater(load.verify(cluster.url(None)), 0)

    def test_clients_of_the_address_go_on_when_the_owner_is_killed(self):
        cluster = self.cluster(3)
        address = self.with_address(cluster)
        load = self.load_at(address)
        for _ in range(2):
            owner = cluster.owner()
            load.forget_pauses()
            cluster.kill(owner)
            load.await_progress()
            new = cluster.owner(without=[owner])
            # The kernel of the lost node's machine has given it up by itself: nobody was left to do so.
            self.await_at(cluster, address, new)
            print(f"the owner was killed: pause of {load.pause_seconds():.1f} s at the address", flush=True)
            self.assertLess(load.pause_seconds(), LOST_PAUSE_SECONDS_MAX)
            cluster.heal()
            load.await_progress()
        self.finish(cluster, load, address)

    def test_the_address_goes_with_the_volume(self):
        cluster = self.cluster(3)
        address = self.with_address(cluster)
        load = self.load_at(address)
        for node in cluster.others(cluster.owner()):
            load.forget_pauses()
            cluster.cairn("node1", "volume", "move", "main", "--to", node)
            harness.wait_until(lambda: cluster.owner() == node, MOVE_SECONDS_MAX, f"that {node} owns the volume")
            self.await_at(cluster, address, node)
            load.await_progress()
            print(f"the volume was moved: pause of {load.pause_seconds():.1f} s at the address", flush=True)
        shown = cluster.cairn("node1", "cluster", "status").stdout
        self.assertIn(f"{address}/24", shown)
        owner = cluster.owner()
        cluster.stop(owner)
        load.await_progress()
        self.assertFalse(self.has(cluster, owner, address))
        cluster.start_nodes(owner)
        self.finish(cluster, load, address)
        cluster.cairn("node1", "volume", "address", "remove", "main")
        gone = lambda: self.holders(cluster, address) == []
        harness.wait_until(gone, MOVE_SECONDS_MAX, f"that nobody has {address}")

    def test_a_node_that_stands_still_does_not_keep_the_address(self):
        cluster = self.cluster(3)
        address = self.with_address(cluster)
        # One whose call the node took and does not answer hears nothing of that: it waits until it asks again by itself. So
        # these go through any node, and new clients come to the address.
        load = self.load(cluster)
        owner = cluster.owner()
        with libnfs.Mount(self.url(address)) as mount:
            mount.write_file("/before", b"by the first")
        cluster.pause(owner)
        paused = time.monotonic()
        new = cluster.owner(without=[owner])
        self.await_at(cluster, address, new)
        with libnfs.Mount(self.url(address)) as mount:
            self.assertEqual(mount.read_file("/before"), b"by the first")
            mount.write_file("/meanwhile", b"by the next")
        load.await_progress()
        # The length of the pause is the fault.
        time.sleep(max(LEASE_IS_OVER_SECONDS - (time.monotonic() - paused), 0))
        cluster.resume(owner)
        cluster.await_serving(owner)
        self.await_at(cluster, address, cluster.owner())
        with libnfs.Mount(self.url(address)) as mount:
            self.assertEqual(mount.read_file("/meanwhile"), b"by the next")
        self.finish(cluster, load, address)

    def test_an_address_of_ipv6_is_announced_to_neighbours(self):
        cluster = self.cluster(3)
        host = self.free_address(cluster, 254)
        shown = subprocess.run(["ip", "-o", "addr", "show"], capture_output=True, text=True, check=True).stdout
        switch = re.findall(rf"^\d+: (\S+) +inet {re.escape(host)}/", shown, re.M)[0]
        subprocess.run(["ip", "addr", "add", "fd00:77::fe/64", "dev", switch, "nodad"], check=True)
        address = "fd00:77::100"
        cluster.cairn("node1", "volume", "address", "set", "main", f"{address}/64", "--interface", "eth0")
        first = cluster.owner()
        for node in (first, *cluster.others(first)):
            cluster.cairn("node1", "volume", "move", "main", "--to", node)
            harness.wait_until(lambda: cluster.owner() == node, MOVE_SECONDS_MAX, f"that {node} owns the volume")
            self.await_at(cluster, address, node)

            def reached():
                # Without the announcement this machine would ask the last owner for some time.
                try:
                    with socket.create_connection((address, 2049), timeout=1):
                        return True
                except OSError:
                    return False

            harness.wait_until(reached, REACHED_SECONDS_MAX, f"a connection to {address} on {node}")

    def test_what_cannot_be_an_address_is_refused(self):
        cluster = self.cluster(2)
        cluster.cairn("node1", "volume", "create", "other")
        address = self.with_address(cluster)
        node = cluster.machine("node2")["host"]
        for words, why in [
            (("other", f"{address}/24"), "another volume has this address"),
            (("other", f"{node}/24"), "is an address of node node2"),
            (("other", address), "is not an address with a prefix length"),
            (("other", "127.0.0.1/8"), "that a client could mount"),
            (("none", f"{address}/24"), "none"),
        ]:
            done = cluster.cairn("node1", "volume", "address", "set", *words, check=False)
            self.assertNotEqual(done.returncode, 0, words)
            self.assertIn(why, done.stderr)
        # What only shows on the node is told there.
        cluster.cairn("node1", "volume", "address", "set", "other", f"{self.free_address(cluster, 101)}/24", "--interface", "none0")
        owner = cluster.owner("other")
        told = lambda: "no interface none0" in cluster.cairn(owner, "cluster", "status").stdout
        harness.wait_until(told, MOVE_SECONDS_MAX, "a warning about the interface")

    def test_a_hook_moves_the_address(self):
        folder = self.scratch / "hook"
        folder.mkdir()
        hook, calls = folder / "hook", folder / "calls"
        # It does what a cloud's would: here, too, the address has to get to the machine.
        hook.write_text(
            f"#!/bin/sh\nset -e\necho \"$1 $2 $3\" >> {calls}\n"
            "if=$(ip -o -4 addr show scope global | awk 'NR == 1 {print $2}')\n"
            "case $1 in\n"
            "take) ip addr replace \"$3\" dev \"$if\" valid_lft 30 preferred_lft 30;;\n"
            "drop) ip addr del \"$3\" dev \"$if\";;\n"
            "esac\n",
        )
        hook.chmod(hook.stat().st_mode | stat.S_IXUSR)
        cluster = self.cluster(3, serve_flags=["--address-hook", str(hook)])
        address = self.with_address(cluster)
        with libnfs.Mount(self.url(address)) as mount:
            mount.write_file("/file", b"by the hook")
        first = cluster.owner()
        second = cluster.others(first)[0]
        cluster.cairn("node1", "volume", "move", "main", "--to", second)
        harness.wait_until(lambda: cluster.owner() == second, MOVE_SECONDS_MAX, f"that {second} owns the volume")
        self.await_at(cluster, address, second)
        self.assertEqual(
            calls.read_text().splitlines(),
            [f"take main {address}/24", f"drop main {address}/24", f"take main {address}/24"],
        )
        with libnfs.Mount(self.url(address)) as mount:
            self.assertEqual(mount.read_file("/file"), b"by the hook")
