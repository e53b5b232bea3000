"""Benchmarks that a server runs on itself: one at a time, with room, cleaned up behind them also after kill -9."""

import json
import os
import subprocess

from lib import harness, libnfs
from lib.worlds import WorldTest

SECONDS_MAX = 240
# Longer than a disk may take for one write.
PHASE_TIME = "3s"
WORKING_SET = "16MiB"
CORNERS = ["sequential read", "random read", "sequential write", "random write"]
FOLDER = "cairn-bench"


class Benchmarks(WorldTest):
    def start(self, server, volume="main", phase_time=PHASE_TIME, check=True):
        return server.cairn("bench", "server", "start", volume, "--working-set", WORKING_SET, "--phase-time", phase_time, check=check)

    def list(self, server):
        return json.loads(server.cairn("bench", "server", "list", "--json").stdout)

    def over(self, server, count):
        """Until so many runs are kept, and none goes on."""

        def done():
            found = self.list(server)
            return found["runs"] if "running" not in found and len(found["runs"]) == count else None

        return harness.wait_until(done, SECONDS_MAX, "the benchmark ends")

    def names(self, server):
        with libnfs.Mount(server.libnfs_url()) as mount:
            return set(mount.names("/"))

    def test_a_run_is_watched_kept_and_leaves_nothing_behind(self):
        server = self.server(3)
        kept = self.scratch / "kept"
        kept.write_bytes(b"somebody's own")
        server.cairn("cp", "-q", kept, server.url("kept"))
        self.start(server)
        # One at a time.
        second = self.start(server, check=False)
        self.assertIn("a benchmark is already running, on volume main", second.stderr)

        def measured():
            running = self.list(server).get("running")
            return running if running and not running["is_preparing"] and running["operations_per_second"] > 0 else None

        seen = harness.wait_until(measured, SECONDS_MAX, "something is measured")
        self.assertEqual((seen["volume"], seen["phase_count"]), ("main", 4))
        self.assertGreater(seen["bytes_per_second"], 0)
        self.assertGreater(seen["latency_microseconds"], 0)
        (run,) = self.over(server, 1)
        self.assertNotIn("partial", run)
        self.assertEqual([figure["title"] for figure in run["figures"]], CORNERS)
        for figure in run["figures"]:
            self.assertGreater(figure["value"], 0, figure)
            self.assertGreaterEqual(figure["latency_p99_microseconds"], figure["latency_p50_microseconds"])
            self.assertEqual(figure["errors"], 0)
        self.assertEqual(self.names(server), {"kept"})
        # It is a result as any other.
        result = self.scratch / "result.json"
        server.cairn("bench", "server", "result", run["id"], "-o", result)
        program = str(harness.cairn_path())
        shown = subprocess.run([program, "bench", "show", result], capture_output=True, text=True, check=True).stdout
        self.assertIn("sequential read", shown)
        page = self.scratch / "page.html"
        subprocess.run([program, "bench", "report", result, "-o", page], check=True, capture_output=True)
        report = server.get(f"/api/v1/benchmarks/report?run={run['id']}&run={run['id']}")
        self.assertIn("<html", report)
        self.assertIn("published figures", report)
        published = json.loads(server.get("/api/v1/benchmarks/published"))["figures"]
        self.assertEqual({figure["title"] for figure in published}, set(CORNERS))
        # It is kept over an end of any kind.
        server.kill()
        server.start()
        self.assertEqual(self.list(server)["runs"], [run])

    def test_a_run_is_stopped_and_what_a_kill_breaks_off_is_removed(self):
        server = self.server(3)
        self.start(server, phase_time="60s")
        harness.wait_until(lambda: not self.list(server)["running"]["is_preparing"], SECONDS_MAX, "the first part begins")
        server.cairn("bench", "server", "stop")
        (run,) = self.over(server, 1)
        self.assertIn("an administrator stopped it", run["partial"])
        self.assertEqual(self.names(server), set())
        none = server.cairn("bench", "server", "stop", check=False)
        self.assertIn("no benchmark runs", none.stderr)
        # What has no result says so.
        self.start(server, phase_time="60s")
        harness.wait_until(lambda: FOLDER in self.names(server), SECONDS_MAX, "files of the benchmark")
        server.kill()
        server.start()
        broken, _ = self.over(server, 2)
        self.assertIn("the server stopped during the run", broken["partial"])
        self.assertEqual(self.names(server), set())
        refused = server.cairn("bench", "server", "result", broken["id"], check=False)
        self.assertIn("measured nothing", refused.stderr)
        # An end in order takes it along.
        self.start(server, phase_time="60s")
        harness.wait_until(lambda: FOLDER in self.names(server), SECONDS_MAX, "files of the benchmark")
        self.assertEqual(server.stop(), 0)
        server.start()
        stopped = self.over(server, 3)[0]
        self.assertIn("the server stopped", stopped["partial"])
        self.assertEqual(self.names(server), set())

    def test_what_cannot_be_is_refused_first(self):
        server = self.server(2)
        cases = [
            (["nothere"], "nothere"),
            (["main", "--working-set", "1MiB"], "working_set_bytes is 16 MiB to 4 GiB"),
            (["main", "--phase-time", "2m"], "phase_seconds is 1 to 60"),
        ]
        server.cairn("volume", "create", "small", "--size-limit", "8MiB")
        server.cairn("export", "set", "small", "--client", "127.0.0.1", "--squash", "none")
        cases.append((["small"], "free, and this needs 256 MiB"))
        server.cairn("volume", "create", "closed")
        cases.append((["closed"], "cairn export set closed"))
        for words, want in cases:
            with self.subTest(words=words):
                refused = server.cairn("bench", "server", "start", *words, check=False)
                self.assertNotEqual(refused.returncode, 0)
                self.assertIn(want, refused.stderr)
        server.cairn("user", "create", "bob", "--role", "viewer", input="correct horse battery\n")
        argv = [str(harness.cairn_path()), "bench", "server", "start", "main", "--server", server.ready["admin"]["url"], "--login", "bob"]
        environment = server.environment() | {"CAIRN_PASSWORD": "correct horse battery"}
        refused = subprocess.run(argv, capture_output=True, text=True, stdin=subprocess.DEVNULL, env=os.environ | environment)
        self.assertIn("bob is a viewer", refused.stderr)
        self.assertEqual(self.list(server)["runs"], [])

    def test_a_pool_with_little_room_runs_none(self):
        server = self.server(2, flags=["--disk-size-limit", "256MiB"])
        refused = server.cairn("bench", "server", "start", "main", check=False)
        self.assertIn("the pool has too little space for a benchmark", refused.stderr)
        self.assertEqual(self.names(server), set())
