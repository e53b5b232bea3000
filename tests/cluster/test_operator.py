"""What an operator is told, and what an operator does: status, maintenance, a lost quorum of etcd."""

import contextlib
import datetime
import json
import os
import shutil
import signal
import subprocess

from cluster.world import STOPPED_PAUSE_SECONDS_MAX, ClusterTest
from lib import harness, libnfs

REFUSED = 4
# A start beside a process of the same node waits for the end of its lease first.
START_SECONDS_MAX = 60
SEEN_SECONDS_MAX = 60
REBUILT_SECONDS_MAX = 120


class OperatorTest(ClusterTest):
    def wait(self, done, what, seconds=SEEN_SECONDS_MAX):
        return harness.wait_until(done, seconds, what)

    def warned(self, cluster, node):
        """What a node warns of: which warning it is, and what it is about."""
        status = cluster.status_of(node)
        return {(warning["kind"], warning["subject"]) for warning in (status or {"warnings": []})["warnings"]}

    def await_well(self, cluster, node):
        """Waits until nothing needs to be done, in both views of it."""
        self.wait(lambda: cluster.status_of(node) and not self.warned(cluster, node), "nothing to do")
        said = cluster.cairn(node, "cluster", "status").stdout
        self.assertIn("nothing needs to be done", said)

    def disk(self, cluster, node, asked):
        """A disk of a node: its id and folder."""
        nodes = {found["name"]: found for found in cluster.status_of(asked)["nodes"]}
        return nodes[node]["disks"][0]

    def folder(self, cluster, node):
        return cluster.folder / node


class Status(OperatorTest):
    def test_a_member_of_etcd_that_hangs_counts_as_lost(self):
        cluster = self.cluster(3)
        self.await_well(cluster, "node1")
        self.assertEqual(cluster.status_of("node1")["survives"], {"data_nodes": 2, "service_nodes": 1})
        pid = cluster.machine("node3")["etcd_pid"]
        os.kill(pid, signal.SIGSTOP)
        self.addCleanup(self.let_go_on, pid)
        told = lambda: ("etcd_member_down", "etcd member node3") in self.warned(cluster, "node1")
        self.wait(told, "the warning of the member that hangs")
        self.assertEqual(cluster.status_of("node1")["survives"]["service_nodes"], 0)
        said = cluster.cairn("node1", "cluster", "status").stdout
        self.assertNotIn("nothing needs to be done", said)
        self.assertIn("2 of 3 members healthy", said)
        refused = cluster.cairn("node1", "node", "upgrade", check=False)
        self.assertEqual(refused.returncode, REFUSED, refused.stdout)
        self.assertIn("the etcd member on node3", refused.stderr)
        self.let_go_on(pid)
        self.await_well(cluster, "node1")

    def let_go_on(self, pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)

    def test_a_folder_that_is_empty_in_place_of_a_disk_is_no_new_disk(self):
        cluster = self.cluster(3)
        load = self.load(cluster)
        load.await_progress()
        lost = next(node for node in cluster.names if node != cluster.owner())
        asked = cluster.others(lost)[0]
        before = self.disk(cluster, lost, asked)
        cluster.stop(lost)
        folder = self.folder(cluster, lost) / "disk1"
        aside = folder.with_name("unmounted")
        folder.rename(aside)
        folder.mkdir()
        started = cluster.run("start", lost, check=False)
        self.assertNotEqual(started.returncode, 0)
        self.assertIn("are empty, and the cluster knows this node's disks", (self.folder(cluster, lost) / "log").read_text())
        self.assertEqual(list(folder.glob("cairn-disk")), [], "it was made a disk")
        # It is lost for good, and somebody says so.
        cluster.cairn(asked, "disk", "replace", before["id"], folder)
        cluster.start_nodes(lost)

        def disks():
            found = {node["name"]: node["disks"] for node in (cluster.status_of(asked) or {"nodes": []})["nodes"]}
            return {disk["id"]: disk["state"] for disk in found.get(lost, [])}

        new = lambda: [state for disk, state in disks().items() if disk != before["id"]]
        self.wait(lambda: new() == ["ok"], "the new disk in place of the lost one")
        removed = lambda: cluster.cairn(asked, "disk", "remove", before["id"], check=False).returncode == 0
        self.wait(removed, "that nothing is needed of the lost disk", REBUILT_SECONDS_MAX)
        self.assertNotIn(before["id"], disks())
        load.await_progress()
        load.end()
        self.assertGreater(load.verify(cluster.url(lost)), 0)

    def test_a_copy_of_a_node_does_not_start_beside_it(self):
        cluster = self.cluster(3, netns="no")
        copy = self.scratch / "copy"
        shutil.copytree(self.folder(cluster, "node3") / "cluster", copy)
        # As a clone of the machine has another address, under a name that is the same.
        membership = copy / "cluster.json"
        found = json.loads(membership.read_text())
        ports = harness.Ports()
        found["internal_address"] = f"127.0.0.1:{ports.next()}"
        membership.write_text(json.dumps(found))
        disk = self.scratch / "copy-disk"
        disk.mkdir()
        argv = [str(harness.cairn_path()), "serve", "--cluster-dir", str(copy), "--data", str(disk)]
        argv += ["--listen-nfs", f"127.0.0.1:{ports.next()}", "--listen-admin", "127.0.0.1:0", "--rpcbind=false"]
        served = subprocess.run(
            [*argv, "--memory-limit", "512MiB"], stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=START_SECONDS_MAX,
        )
        self.assertEqual(served.returncode, REFUSED, served.stderr)
        first = cluster.machine("node3")["pid"]
        self.assertIn("node node3 already runs", served.stderr)
        # Both are named.
        self.assertIn(f"process {first} ", served.stderr)
        self.assertIn(str(copy), served.stderr)
        self.assertIn(str(self.folder(cluster, "node3") / "cluster"), served.stderr)
        # The one that runs felt nothing of it.
        self.await_well(cluster, "node3")


class Maintenance(OperatorTest):
    def test_clients_feel_a_move_and_nothing_is_rebuilt(self):
        cluster = self.cluster(4, serve_flags=["--rebuild-delay", "1"])
        load = self.load(cluster)
        node = cluster.owner()
        other = cluster.others(node)[0]
        self.await_well(cluster, other)
        load.forget_pauses()
        cluster.cairn(other, "node", "maintenance", "on", node, "--for", "30m")
        self.assertNotEqual(cluster.owner(), node)
        load.await_progress()
        self.assertLess(load.pause_seconds(), STOPPED_PAUSE_SECONDS_MAX)
        # Nobody else may stop meanwhile.
        refused = cluster.cairn(other, "node", "maintenance", "on", other, check=False)
        self.assertEqual(refused.returncode, REFUSED, refused.stdout)
        self.assertIn(f"node {node} is in maintenance", refused.stderr)
        cluster.stop(node)
        asked = cluster.owner(without=[node])
        told = lambda: ("maintenance", f"node {node}") in self.warned(cluster, asked)
        self.wait(told, "that it is in maintenance")
        self.assertNotIn(("node_away", f"node {node}"), self.warned(cluster, asked))
        load.await_progress()
        # Longer than the delay: without maintenance it is given up by now.
        away = lambda: any(disk["state"] == "missing" for disk in json.loads(cluster.cairn(asked, "disk", "list", "--json").stdout)["disks"])
        self.wait(away, "that its disk is missed")
        for _ in range(5):
            load.await_progress(step_count=100)
            rebuild = json.loads(cluster.cairn(asked, "disk", "list", "--json").stdout)["rebuild"]
            self.assertFalse(rebuild["running"], rebuild)
        cluster.start_nodes(node)
        cluster.cairn(asked, "node", "maintenance", "off", node)
        self.await_well(cluster, asked)
        load.end()
        self.assertGreater(load.verify(cluster.url(node)), 0)


class Machines(OperatorTest):
    def test_another_machine_with_the_disks_of_a_node_is_that_node(self):
        cluster = self.cluster(3, netns="no")
        load = self.load(cluster)
        load.await_progress()
        gone = next(node for node in cluster.names if node != cluster.owner())
        asked = cluster.others(gone)[0]
        before = self.disk(cluster, gone, asked)
        ticket = lambda: cluster.cairn(asked, "cluster", "token").stdout.strip()
        ports = harness.Ports()
        folder = self.scratch / "machine"

        def join():
            argv = [str(harness.cairn_path()), "cluster", "join", ticket(), "--takes-over", gone]
            argv += ["--internal", f"127.0.0.1:{ports.next()}", "--external", f"127.0.0.1:{ports.next()}"]
            argv += ["--etcd-client-port", str(ports.next()), "--etcd-peer-port", str(ports.next())]
            return subprocess.run(
                [*argv, "--cluster-dir", str(folder)], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                timeout=START_SECONDS_MAX,
            )

        refused = join()
        self.assertEqual(refused.returncode, REFUSED, refused.stdout)
        self.assertIn("stop its server first", refused.stderr)
        cluster.kill(gone)
        self.wait(lambda: ("node_away", f"node {gone}") in self.warned(cluster, asked), "that it is away")
        joined = join()
        self.assertEqual(joined.returncode, 0, joined.stderr)
        disk = self.scratch / "moved"
        (self.folder(cluster, gone) / "disk1").rename(disk)
        argv = [str(harness.cairn_path()), "serve", "--cluster-dir", str(folder), "--data", str(disk)]
        argv += ["--listen-nfs", f"127.0.0.1:{ports.next()}", "--listen-admin", "127.0.0.1:0", "--rpcbind=false"]
        with open(self.scratch / "machine.log", "wb") as log:
            server = subprocess.Popen([*argv, "--memory-limit", "512MiB"], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.addCleanup(server.wait, START_SECONDS_MAX)
        self.addCleanup(server.terminate)
        self.await_well(cluster, asked)
        self.assertEqual(self.disk(cluster, gone, asked)["id"], before["id"])
        members = lambda: [member["name"] for member in cluster.status_of(asked)["etcd"]["members"]]
        self.wait(lambda: sorted(members()) == sorted(cluster.names), "its own member of etcd")
        load.await_progress()
        load.end()
        self.assertGreater(load.verify(cluster.url(asked)), 0)


class Scrub(OperatorTest):
    def test_one_scrub_reads_the_volumes_of_all_nodes(self):
        cluster = self.cluster(3)
        files = {}
        for index, node in enumerate(cluster.names):
            volume = f"v{index}"
            cluster.cairn("node1", "volume", "create", volume)
            cluster.cairn("node1", "export", "set", volume, "--client", "0.0.0.0/0", "--squash", "none")
            cluster.cairn("node1", "volume", "move", volume, "--to", node)
            self.wait(lambda volume=volume, node=node: cluster.owner(volume) == node, f"{volume} on {node}")
            cluster.await_serving(node)
            with libnfs.Mount(cluster.url(node, volume)) as mount:
                files[volume] = os.urandom(1 << 20)
                mount.write_file("/file", files[volume])
        cluster.cairn("node2", "scrub", "start")
        status = lambda: json.loads(cluster.cairn("node3", "scrub", "status", "--json").stdout)
        self.wait(lambda: status()["stage"] == "done", "the end of the scrub")
        done = status()
        self.assertNotIn("silent", done)
        self.assertEqual((done["errors"], done["damaged"]), (0, 0))
        # A MiB of each volume and its parity, at least.
        self.assertGreaterEqual(done["done_bytes"], len(files) << 20)
        self.assertGreaterEqual(done["records"], len(files))
        # Any node says the same.
        self.assertEqual(json.loads(cluster.cairn("node1", "scrub", "status", "--json").stdout), done)

    def test_one_schedule_is_that_of_all_nodes(self):
        cluster = self.cluster(3)
        owner = cluster.owner()
        first, second = cluster.others(owner)
        with libnfs.Mount(cluster.url(owner)) as mount:
            mount.write_file("/file", os.urandom(1 << 20))
        schedule = lambda node, *flags: json.loads(cluster.cairn(node, "scrub", "schedule", *flags, "--json").stdout)
        status = lambda: json.loads(cluster.cairn(second, "scrub", "status", "--json").stdout)
        day = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(days=3)
        closed = f"{('mon', 'tue', 'wed', 'thu', 'fri', 'sat', 'sun')[day.weekday()]}:00:00-01:00"
        set_to = schedule(first, "--every", "30d", "--window", closed)
        for node in cluster.names:
            self.wait(lambda node=node: schedule(node) == set_to, f"the schedule on {node}")
        self.wait(lambda: status().get("next_seconds") == set_to["opens_seconds"], "the time of the next scrub")
        self.assertEqual(status()["stage"], "never")
        schedule(second, "--every", "30d", "--window", "daily:00:00-24:00")
        self.wait(lambda: status()["stage"] == "done", "the end of a scrub that begins by itself")
        done = status()
        self.assertTrue(done["by_schedule"])
        self.assertGreaterEqual(done["records"], 1)
        self.assertGreaterEqual(done["next_seconds"], done["started_seconds"] + 30 * 24 * 3600)
        cluster.cairn(first, "scrub", "schedule", "--clear")
        for node in cluster.names:
            self.wait(lambda node=node: schedule(node) == {"is_open": True}, f"no schedule on {node}")


class Recovery(OperatorTest):
    def copied_epoch(self, disk):
        """The epoch of the newest part of the log that the copy of the map on a disk knows."""
        copy = json.loads((disk / "cluster-map.json").read_text())
        log = next(json.loads(entry["value"]) for entry in copy["entries"] if entry["key"].endswith("/log"))
        return max(part["id"]["epoch"] for part in log["ensembles"])

    def offline(self, *words, check=True):
        done = subprocess.run(
            [str(harness.cairn_path()), "cluster", *map(str, words)], stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=START_SECONDS_MAX,
        )
        if check:
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done

    def test_a_cluster_comes_back_after_etcd_is_lost_for_good(self):
        # As docs/guide/recovery.md says.
        cluster = self.cluster(3, netns="no")
        load = self.load(cluster)
        load.await_progress()
        backup = self.scratch / "backup.json"
        cluster.cairn("node1", "cluster", "backup", backup)
        self.assertEqual(backup.stat().st_mode & 0o777, 0o600)
        # The log moves on after the backup, without a node that is gone by then: what that one knows is older than the others' disks.
        gone = cluster.owner()
        cluster.kill(gone)
        load.await_progress()
        load.end()
        node, other = cluster.others(gone)
        epoch = cluster.status_of(node)["volumes"][0]["epoch"]
        copied = lambda: self.copied_epoch(self.folder(cluster, node) / "disk1") == epoch
        self.wait(copied, "the copy that knows the new owner's log")
        cluster.kill(node, other)
        for lost in (gone, other):
            shutil.rmtree(self.folder(cluster, lost) / "cluster" / "etcd")
        folder, disk = self.folder(cluster, node) / "cluster", self.folder(cluster, node) / "disk1"
        at = ["--cluster-dir", folder, "--data", disk]
        refused = self.offline("recover", *at, "--copy", backup, check=False)
        self.assertEqual(refused.returncode, REFUSED, refused.stdout)
        self.assertIn("NEWER LOG", refused.stdout)
        self.assertTrue((folder / "etcd").exists(), "a report changes nothing")
        # The copy that each node keeps is newer, also when only the one on a disk is left.
        shutil.rmtree(folder / "map-copies")
        report = self.offline("recover", *at)
        self.assertIn("nothing was changed", report.stdout)
        self.assertNotIn("NEWER LOG", report.stdout)
        self.assertIn(str(disk), report.stdout)
        done = self.offline("recover", *at, "--yes")
        command = next(line.split() for line in done.stdout.splitlines() if "accept-restored" in line)
        self.assertEqual(command[:3], ["cairn", "cluster", "accept-restored"])
        cluster.start_nodes(node)
        for follower in (gone, other):
            of = self.folder(cluster, follower)
            self.offline(*command[2:5], "--cluster-dir", of / "cluster", "--data", of / "disk1")
        cluster.start_nodes(gone, other)
        cluster.await_etcd()
        self.await_well(cluster, other)
        for name in cluster.names:
            self.assertGreater(load.verify(cluster.url(name)), 0)
        # It goes on as any cluster.
        again = self.load(cluster)
        again.await_progress()
        again.end()
