"""Numbers of now and over time are those of all nodes, whichever is asked."""

import json
import pathlib
import urllib.request

from cluster.world import ClusterTest
from lib import harness

# A row of the history is kept every 10 s, and its first one needs one before it.
KEPT_SECONDS_MAX = 60
TOLD_SECONDS_MAX = 30
WRITTEN = "nfs_written_bytes_per_second"
FILES = "volume_file_bytes:main"


class Numbers(ClusterTest):
    def get(self, cluster, node, path):
        machine = cluster.machine(node)
        token = pathlib.Path(machine["token_file"]).read_text().strip()
        request = urllib.request.Request(machine["admin"] + path, headers={"Authorization": f"Bearer {token}"})
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)

    def live(self, cluster, node, of=""):
        """The numbers, and the names of nodes that did not answer."""
        view = self.get(cluster, node, "/api/v1/live" + (f"?node={of}" if of else ""))
        silent = {each["node"] for each in view.get("silent", [])}
        return {number["name"]: number["value"] for number in view["numbers"]}, silent

    def history(self, cluster, node, of=""):
        """The values of each series that are known, and the names of nodes that did not answer."""
        query = f"series={WRITTEN}&series={FILES}&series=pool_total_bytes&from=-120" + (f"&node={of}" if of else "")
        view = self.get(cluster, node, f"/api/v1/history?{query}")
        known = {one["name"]: [value for value in one["values"] if value is not None] for one in view["series"]}
        return known, {each["node"] for each in view.get("silent", [])}

    def test_any_node_shows_what_all_do(self):
        cluster = self.cluster(3)
        owner = cluster.owner()
        asked, other = cluster.others(owner)
        self.load(cluster, [owner])
        writes = lambda: self.live(cluster, asked)[0].get(WRITTEN, 0) > 0
        harness.wait_until(writes, TOLD_SECONDS_MAX, "that another node tells what the owner writes")
        numbers, silent = self.live(cluster, asked)
        self.assertEqual(silent, set())
        self.assertIn(FILES, numbers)
        self.assertEqual(self.live(cluster, asked, asked)[0][WRITTEN], 0)
        self.assertIn(FILES, self.live(cluster, asked, owner)[0])
        # All nodes know all disks: they are not counted three times.
        alone = self.live(cluster, asked, asked)[0]["pool_total_bytes"]
        self.assertEqual(numbers["pool_total_bytes"], alone)

        kept = lambda: any(self.history(cluster, asked)[0][WRITTEN])
        harness.wait_until(kept, KEPT_SECONDS_MAX, "that another node's history has what the owner wrote")
        known, silent = self.history(cluster, asked)
        self.assertEqual((silent, max(known["pool_total_bytes"])), (set(), alone))
        self.assertFalse(any(self.history(cluster, asked, asked)[0][WRITTEN]))
        self.assertTrue(any(self.history(cluster, asked, owner)[0][WRITTEN]))

        # One that stands still is named, and the rest is shown.
        cluster.pause(other)
        named = lambda: self.live(cluster, asked)[1] == {other}
        harness.wait_until(named, TOLD_SECONDS_MAX, "that the live numbers name who does not answer")
        known, silent = self.history(cluster, asked)
        self.assertEqual(silent, {other})
        self.assertTrue(any(known[WRITTEN]))
        cluster.resume(other)
        back = lambda: self.live(cluster, asked)[1] == set()
        harness.wait_until(back, TOLD_SECONDS_MAX, "that it answers again")

        # One that is lost is told as away, and nobody waits for it.
        cluster.kill(other)
        away = lambda: self.get(cluster, asked, "/api/v1/live").get("silent", [{}])[0].get("why") == "it is away"
        harness.wait_until(away, TOLD_SECONDS_MAX, "that the live numbers tell who is away")
