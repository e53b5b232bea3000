"""Nodes form a cluster, serve it from everywhere, and are there again after all of them were down."""

import os

from cluster.world import ClusterTest
from lib import harness, libnfs
from lib.cluster import can_have_namespaces
from lib.worlds import content

FILE_LEN_BYTES = 3_000_017


class Form(ClusterTest):
    def fill(self, cluster, node, count=6):
        """Writes files through a node; returns what they hold."""
        files = {f"/file{index}-{node}": content(f"{node} {index}", FILE_LEN_BYTES // (index + 1)) for index in range(count)}
        with libnfs.Mount(cluster.url(node)) as mount:
            for path, data in files.items():
                mount.write_file(path, data)
        return files

    def compare(self, cluster, node, files):
        with libnfs.Mount(cluster.url(node)) as mount:
            self.assertEqual(sorted(files), sorted(f"/{name}" for name in mount.names("/")), node)
            for path, data in files.items():
                self.assertTrue(mount.read_file(path) == data, f"{path} through {node}")

    def check_all_see_all(self, cluster):
        files: dict[str, bytes] = {}
        for node in cluster.names:
            files |= self.fill(cluster, node, count=2)
        for node in cluster.names:
            self.compare(cluster, node, files)
        return files

    def test_three_nodes_form_a_cluster_and_serve_it(self):
        cluster = self.cluster(3)
        for node in cluster.names:
            status = cluster.status_of(node)
            self.assertEqual([found["name"] for found in status["nodes"]], cluster.names)
            self.assertTrue(all(found["alive"] for found in status["nodes"]), status)
            self.assertEqual(status["node"], node)
        self.assertIn(cluster.owner(), cluster.names)
        files = self.fill(cluster, "node1")
        for node in cluster.names:
            self.compare(cluster, node, files)
        self.compare(cluster, None, files)
        cluster.await_etcd()

    def test_what_is_written_anywhere_is_read_everywhere(self):
        cluster = self.cluster(3)
        self.check_all_see_all(cluster)

    def test_without_namespaces(self):
        cluster = self.cluster(3, netns="no")
        self.check_all_see_all(cluster)
        refused = cluster.run("partition", "node1", check=False)
        self.assertEqual(refused.returncode, 4)
        self.assertIn("as root", refused.stderr)

    def test_with_an_etcd_of_its_own(self):
        cluster = self.cluster(3, external_etcd=True)
        files = self.check_all_see_all(cluster)
        status = cluster.status()
        self.assertFalse(status["etcd"]["own"])
        # In networks of their own its members are asked over plain HTTP at addresses that are not the loopback one.
        warned = "etcd_plain" in [warning["kind"] for warning in status["warnings"]]
        self.assertEqual(warned, can_have_namespaces(), status["warnings"])
        cluster.kill("etcd1")
        self.compare(cluster, "node2", files)
        cluster.heal()
        self.compare(cluster, "node3", files)

    def test_volumes_are_made_through_any_node(self):
        cluster = self.cluster(3)
        for node in cluster.names:
            volume = f"of-{node}"
            cluster.cairn(node, "volume", "create", volume)
            cluster.cairn(node, "export", "set", volume, "--client", "0.0.0.0/0", "--squash", "none")
            with libnfs.Mount(cluster.url(node, volume)) as mount:
                mount.write_file("/name", volume.encode())
        for node in cluster.names:
            names = {found["name"] for found in cluster.status_of(node)["volumes"]}
            self.assertLessEqual({"main", *(f"of-{name}" for name in cluster.names)}, names)
            for other in cluster.names:
                # The map of exports reaches other nodes a moment later.
                self.await_content(cluster, node, f"of-{other}")

    def await_content(self, cluster, node, volume):
        def found():
            try:
                with libnfs.Mount(cluster.url(node, volume)) as mount:
                    return mount.read_file("/name") == volume.encode()
            except OSError:
                return False

        harness.wait_until(found, 30, f"{volume} through {node}")

    def test_all_nodes_restart(self):
        cluster = self.cluster(3)
        files = self.check_all_see_all(cluster)
        cluster.end()
        cluster.start()
        self.compare(cluster, "node2", files)
        # And all at once without a word.
        cluster.kill(*cluster.names)
        cluster.start_nodes()
        cluster.await_serving("node3")
        self.compare(cluster, "node3", files)

    def test_a_cluster_whose_process_was_killed_is_started_again(self):
        cluster = self.cluster(3)
        files = self.fill(cluster, "node1")
        cluster.process.kill()
        cluster.process.wait()
        before = {name: machine["pid"] for name, machine in cluster.machines().items()}
        # The nodes go on without it.
        self.assertTrue(all(os.path.exists(f"/proc/{pid}") for pid in before.values()), before)
        cluster.start()
        after = {name: machine["pid"] for name, machine in cluster.machines().items()}
        self.assertFalse(set(before.values()) & set(after.values()))
        self.compare(cluster, "node1", files)

    def test_nodes_are_added_while_it_runs(self):
        cluster = self.cluster(1)
        files = self.fill(cluster, "node1")
        for nodes in (2, 3, 4):
            cluster.add()
            self.assertEqual(len(cluster.status()["nodes"]), nodes)
            self.compare(cluster, f"node{nodes}", files)
        cluster.await_etcd()
        cluster.end()
        cluster.start()
        self.compare(cluster, "node4", files)
