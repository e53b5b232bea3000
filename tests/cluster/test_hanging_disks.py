"""A disk of a node hangs: every node knows, clients wait for nothing, and any node takes it back when it answers again."""

import json

from cluster.world import LEASE_IS_OVER_SECONDS, ClusterTest
from e2e.test_faulty_disks import build_faults
from lib import harness

HANG_AFTER_SECONDS = 5
# Many times that, for a busy machine.
NOTICE_SECONDS_MAX = 60
RETURN_SECONDS_MAX = 180


class HangingDisks(ClusterTest):
    def faulty_cluster(self, nodes, disks):
        """A cluster whose disks hang when a file says so."""
        library = build_faults(self.scratch)
        self.rules = self.scratch / "faults"
        self.rules.write_text("")
        config = self.scratch / "cairn.toml"
        # io_uring would go past the library.
        config.write_text(f'disk_io = "threads"\nhang_after = {HANG_AFTER_SECONDS}\n')
        program = self.scratch / "cairn-with-faults"
        program.write_text(
            "#!/bin/sh\n"
            "# Becomes `cairn`; disks of a server hang where a file says so.\n"
            f'[ "$1" = serve ] && export LD_PRELOAD={library} CAIRN_FAULTS={self.rules}\n'
            f'exec {harness.cairn_path()} "$@"\n'
        )
        program.chmod(0o755)
        return self.cluster(nodes, disks=disks, program=program, serve_flags=["--config", str(config)])

    def hang(self, *folders):
        """From now on these hang, and no others."""
        made = self.rules.with_suffix(".new")
        made.write_text("".join(f"hang {folder}/\n" for folder in folders))
        made.rename(self.rules)

    def disks(self, cluster, node):
        return {disk["id"]: disk for disk in json.loads(cluster.cairn(node, "disk", "list", "--json").stdout)["disks"]}

    def wait_for(self, cluster, nodes, disk, states, seconds):
        for node in nodes:
            look = lambda node=node: self.disks(cluster, node)[disk]["state"] in states
            harness.wait_until(look, seconds, f"the disk being one of {states} at {node}")

    def retry(self, cluster, node, disk):
        return cluster.cairn(node, "disk", "retry", disk, check=False)

    def test_a_disk_that_hung_is_taken_back_by_any_node(self):
        cluster = self.faulty_cluster(3, disks=2)
        owner = cluster.owner()
        node, asked = cluster.others(owner)
        folder = cluster.folder / node / "disk2"
        own = self.disks(cluster, node).values()
        disk = next(one["id"] for one in own if one["label"] == str(folder))
        load = self.load(cluster, [owner, asked])
        load.await_progress()
        # By itself, and by the command.
        for asks in (False, True):
            self.hang(folder)
            self.wait_for(cluster, cluster.names, disk, ("failed",), NOTICE_SECONDS_MAX)
            load.await_progress()
            refused = self.retry(cluster, asked, disk)
            self.assertEqual(refused.returncode, 4, refused.stderr)
            self.assertIn("has not answered", refused.stderr)
            # As what was made anew elsewhere meanwhile.
            shards = folder / "shards" / "00000001"
            shards.mkdir(parents=True, exist_ok=True)
            orphan = shards / f"{0xFFFFFF:016x}.00"
            orphan.write_bytes(bytes(8192))
            self.hang()
            if asks:
                is_used = lambda: (
                    self.retry(cluster, asked, disk).returncode == 0
                    or self.disks(cluster, node)[disk]["state"] != "failed"
                )
                harness.wait_until(is_used, NOTICE_SECONDS_MAX, "that the disk is taken back")
            self.wait_for(cluster, cluster.names, disk, ("ok",), RETURN_SECONDS_MAX)
            gone = lambda orphan=orphan: not orphan.exists()
            harness.wait_until(gone, RETURN_SECONDS_MAX, "that the owner gave up what it does not need on the disk")
            load.await_progress()
        used = self.retry(cluster, asked, disk)
        self.assertEqual(used.returncode, 4, used.stderr)
        self.assertIn("is in use", used.stderr)
        load.end()
        for through in cluster.names:
            self.assertGreater(load.verify(cluster.url(through)), 0)
        # Only its node can tell whether it works.
        cluster.kill(node)
        says = lambda: "is down" in self.retry(cluster, asked, disk).stderr
        harness.wait_until(says, LEASE_IS_OVER_SECONDS + NOTICE_SECONDS_MAX, "that its node is known to be away")
