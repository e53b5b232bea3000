"""What must not join a cluster does not, and is told why; the cluster goes on."""

import shutil
import subprocess
import time

from cluster.world import ClusterTest
from lib import harness, libnfs

# What `cairn` ends with when it refuses, and when it is used wrongly.
REFUSED, USAGE = 4, 2
STOP_SECONDS_MAX = 60


class Refusals(ClusterTest):
    def setUp(self):
        super().setUp()
        # Without namespaces a stranger is a process like any other.
        self.one = self.cluster(1, netns="no")
        self.ports = harness.Ports()

    def ticket(self, *words):
        return self.one.cairn("node1", "cluster", "token", *words).stdout.strip()

    def join(self, ticket, node="stranger", internal=None):
        """Tries to join; returns how that ended, and the folder."""
        folder = self.scratch / f"join-{len(list(self.scratch.glob('join-*')))}"
        folder.mkdir()
        argv = [str(harness.cairn_path()), "cluster", "join", ticket, "--node", node]
        argv += ["--internal", internal or f"127.0.0.1:{self.ports.next()}"]
        argv += ["--external", f"127.0.0.1:{self.ports.next()}", "--cluster-dir", str(folder / "cluster")]
        argv += ["--etcd-client-port", str(self.ports.next()), "--etcd-peer-port", str(self.ports.next())]
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=STOP_SECONDS_MAX)
        return done, folder

    def refused(self, done, *words):
        self.assertIn(done.returncode, (REFUSED, USAGE, 1), done.stderr)
        self.assertTrue(any(word in done.stderr for word in words), f"{words} not in {done.stderr!r}")
        self.assertNotIn("panicked", done.stderr)

    def nodes(self):
        return [node["name"] for node in self.one.status()["nodes"]]

    def test_a_wrong_ticket_is_refused(self):
        good = self.ticket()
        middle = len(good) // 2
        wrong = "0" if good[middle] != "0" else "1"
        tickets = ["", "hello", good[:-4], good[:middle] + wrong + good[middle + 1 :]]
        for ticket in tickets:
            done, folder = self.join(ticket)
            self.assertNotEqual(done.returncode, 0, f"{ticket!r} was taken")
            self.assertNotIn("panicked", done.stderr)
            self.assertFalse((folder / "cluster" / "node.key").exists())
        # That of another cluster, at the place of this one.
        self.assertEqual(self.nodes(), ["node1"])
        done, _ = self.join(good)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_a_ticket_lets_one_node_in(self):
        ticket = self.ticket()
        done, _ = self.join(ticket)
        self.assertEqual(done.returncode, 0, done.stderr)
        done, _ = self.join(ticket, node="another")
        self.refused(done, "used", "ticket")

    def test_a_ticket_expires(self):
        ticket = self.ticket("--valid", "1s")
        made = time.time()
        harness.wait_until(lambda: time.time() > made + 2, 5, "the end of the ticket")
        done, _ = self.join(ticket)
        self.refused(done, "expired", "over")

    def test_an_etcd_without_tls_is_refused_but_for_this_machine(self):
        def init(name, *flags):
            folder = self.scratch / name
            argv = [str(harness.cairn_path()), "cluster", "init", "--name", name, "--node", "node1"]
            argv += ["--internal", f"127.0.0.1:{self.ports.next()}", "--cluster-dir", str(folder), *flags]
            done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=STOP_SECONDS_MAX)
            self.assertEqual(done.returncode == 0, (folder / "cluster.json").exists(), done.stderr)
            return done

        for name, urls in (("far", "http://10.0.0.1:2379"), ("mixed", "https://10.0.0.1:2379,http://10.0.0.2:2379")):
            self.refused(init(name, "--etcd", urls), "--insecure-etcd")
        for name, flags in (
            ("near", ("--etcd", "http://127.0.0.1:2379,http://[::1]:2379")),
            ("encrypted", ("--etcd", "https://10.0.0.1:2379")),
            ("allowed", ("--etcd", "http://10.0.0.1:2379", "--insecure-etcd")),
        ):
            done = init(name, *flags)
            self.assertEqual(done.returncode, 0, f"{name}: {done.stderr}")
        # It says nothing of an etcd that nodes run.
        self.refused(init("own", "--insecure-etcd"), "--etcd")

    def test_a_name_that_is_taken_is_refused(self):
        done, _ = self.join(self.ticket(), node="node1")
        self.refused(done, "node1")

    def test_an_address_that_is_taken_is_refused(self):
        address = self.one.status()["nodes"][0]["internal"]
        done, _ = self.join(self.ticket(), internal=address)
        self.refused(done, address)

    def test_a_node_with_another_clusters_disks_is_refused(self):
        other = self.cluster(1, name="other", netns="no")
        with libnfs.Mount(other.url("node1")) as mount:
            mount.write_file("/kept", b"of the other")
        other.end()
        done, folder = self.join(self.ticket())
        self.assertEqual(done.returncode, 0, done.stderr)
        disk = other.folder / "node1" / "disk1"
        argv = [str(harness.cairn_path()), "serve", "--cluster-dir", str(folder / "cluster"), "--data", str(disk)]
        argv += ["--listen-nfs", f"127.0.0.1:{self.ports.next()}", "--listen-admin", "127.0.0.1:0", "--rpcbind=false"]
        argv += ["--memory-limit", "512MiB"]
        served = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=STOP_SECONDS_MAX)
        self.assertEqual(served.returncode, REFUSED, served.stderr)
        self.assertIn(str(disk), served.stderr)
        # Nothing happened to it: its own cluster has it again.
        other.start()
        with libnfs.Mount(other.url("node1")) as mount:
            self.assertEqual(mount.read_file("/kept"), b"of the other")

    def test_a_folder_that_is_in_a_cluster_does_not_join_another(self):
        done, folder = self.join(self.ticket())
        self.assertEqual(done.returncode, 0, done.stderr)
        ticket = self.ticket()
        argv = [str(harness.cairn_path()), "cluster", "join", ticket, "--node", "twice"]
        argv += ["--internal", f"127.0.0.1:{self.ports.next()}", "--cluster-dir", str(folder / "cluster")]
        again = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=STOP_SECONDS_MAX)
        self.refused(again, str(folder / "cluster"))
        shutil.rmtree(folder)
