"""What happened is told: disks that go and come back, damage, drains, starts after a crash; and it survives kill -9."""

import csv
import io
import json
import shutil
import subprocess

from e2e.test_faulty_disks import FaultyServer, build_faults
from lib import harness
from lib.worlds import WorldTest, blocks, content, flip_bits

SECONDS_MAX = 60
MOVE_SECONDS_MAX = 120


class Events(WorldTest):
    def events(self, server, *words):
        """Those that are kept, oldest first."""
        page = json.loads(server.cairn("events", "--json", "--limit", "1000", *words).stdout)
        return list(reversed(page["entries"]))

    def told(self, server, kind, *words):
        return [(one["stage"], one["severity"], one["message"]) for one in self.events(server, *words) if one["kind"] == kind]

    def wait(self, server, kind, count, what):
        """Until there are so many of a kind; gives them back."""

        def there():
            told = self.told(server, kind)
            self.assertLessEqual(len(told), count, told)
            return told if len(told) == count else None

        return harness.wait_until(there, SECONDS_MAX, what)

    def test_a_disk_that_goes_and_comes_back_is_told_once_each_time(self):
        server = self.server(3)
        lost, away = server.disks[2], server.root / "away"
        self.assertEqual([one[:2] for one in self.told(server, "server_started")], [("once", "info")])
        server.stop()
        lost.rename(away)
        server.start()
        ((stage, severity, message),) = self.wait(server, "disk_missing", 1, "the missing disk is told")
        self.assertEqual((stage, severity), ("began", "error"))
        self.assertIn(f"disk {lost} is missing", message)
        (event,) = self.events(server, "--severity", "error", "--subject", lost.name)
        self.assertIn("cairn disk replace", event["action"])
        # An end in order, and one that was not.
        self.assertEqual([one[1] for one in self.told(server, "server_stopped")], ["info"])
        self.kill_when_kept(server, "disk_missing")
        server.start()
        self.assertEqual([one[1] for one in self.told(server, "server_started")], ["info", "info", "warning"])
        before = self.events(server)
        # What was told is kept, and not told again by a start; the look that would is over.
        self.wait_for_looks(server)
        self.assertEqual(len(self.told(server, "disk_missing")), 1)
        server.stop()
        shutil.rmtree(lost, ignore_errors=True)
        away.rename(lost)
        server.start()
        (_, (stage, severity, message)) = self.wait(server, "disk_missing", 2, "the disk that is back is told")
        self.assertEqual((stage, severity, message), ("ended", "info", f"disk {lost} is back and used again"))
        # The disks that were there all the time have it all, and one that has not takes nothing away.
        after = self.events(server)
        self.assertEqual(after[: len(before)], before)
        self.assertEqual([one["id"] for one in after], sorted({one["id"] for one in after}))

    def kill_when_kept(self, server, kind):
        """kill -9 once a disk has the event: what is younger than some seconds may be lost, and this is not."""
        files = lambda: [path.read_text() for disk in server.disks if disk.exists() for path in disk.glob("events/log/v1/entries")]
        harness.wait_until(lambda: any(f'"{kind}"' in text for text in files()), SECONDS_MAX, "the event on a disk")
        server.kill()

    def wait_for_looks(self, server):
        """Until something is told that began after now."""
        count = len(self.told(server, "scrub"))
        server.cairn("scrub", "start", "--restart")
        self.wait(server, "scrub", count + 2, "a scrub is told")

    def test_a_disk_that_fails_while_it_is_used_is_told_and_that_survives_a_kill(self):
        library = build_faults(self.scratch)
        root = self.scratch / "faulty"
        root.mkdir()
        server = self.enterContextHere(FaultyServer(root, library, 4, []))
        failing = server.disks[1]
        server.meets(("fail", failing))

        def failed():
            # Something has to be asked of it.
            path = self.scratch / "file"
            path.write_bytes(content("file", 1 << 20))
            server.cairn("cp", "-q", path, f"nfs://127.0.0.1:{server.port}/main/file", check=False)
            return self.told(server, "disk_failed")

        ((stage, severity, message),) = harness.wait_until(failed, MOVE_SECONDS_MAX, "the failed disk is told")
        self.assertEqual((stage, severity), ("began", "error"))
        self.assertIn(str(failing), message)
        self.kill_when_kept(server, "disk_failed")
        server.meets()
        server.start()
        told = self.wait(server, "disk_failed", 2, "the disk that works again is told")
        self.assertEqual(told[0][2], message)
        self.assertEqual(told[1][::2], ("ended", f"disk {failing} is back and used again"))
        self.assertEqual(self.told(server, "server_started")[-1][1], "warning")

    def test_damage_drains_and_what_fails_are_told(self):
        server = self.server(4)
        data = content("data", 4 << 20)
        path = self.scratch / "data"
        path.write_bytes(data)
        server.cairn("cp", "-q", path, server.url("data"))
        server.stop()
        # Some disks have parity of it alone.
        self.assertTrue(any(flip_bits(disk, blocks(data), 4) for disk in server.disks))
        server.start()
        server.cairn("scrub", "start")
        began, ended = self.wait(server, "scrub", 2, "the scrub is told")
        self.assertEqual(began[:2], ("began", "info"))
        self.assertEqual(ended[:2], ("ended", "warning"))
        self.assertIn("were damaged", ended[2])
        ((stage, severity, message),) = self.wait(server, "damage_repaired", 1, "what was repaired is told")
        self.assertEqual((stage, severity), ("once", "warning"))
        self.assertIn("repaired", message)

        server.cairn("disk", "drain", server.disks[1])
        began, ended = self.wait(server, "disk_drain", 2, "the drain is told")
        self.assertEqual((began[0], ended[0]), ("began", "ended"))
        self.assertIn("it can be removed", ended[2])
        server.cairn("disk", "remove", server.disks[1])
        self.wait(server, "disk_removed", 1, "the removal is told")
        added = server.root / "added"
        added.mkdir()
        server.cairn("disk", "add", added)
        self.wait(server, "disk_added", 1, "the new disk is told")

        tier = self.scratch / "tier"
        tier.mkdir()
        server.cairn("volume", "create", "lonely", "--protection", "none")
        (alert,) = harness.wait_until(
            lambda: [one for one in self.events(server, "--text", "volume lonely") if one["kind"] == "alert"], SECONDS_MAX, "the alert is told")
        self.assertEqual(alert["stage"], "began")
        server.cairn("volume", "delete", "lonely", "--yes")
        gone = harness.wait_until(
            lambda: [one for one in self.events(server, "--text", "resolved: volume lonely") if one["stage"] == "ended"], SECONDS_MAX, "the alert is over")
        self.assertEqual(gone[0]["severity"], "info")

    def test_events_are_filtered_followed_and_exported(self):
        server = self.server(2)
        server.restart()
        all_events = self.events(server)
        self.assertGreaterEqual(len(all_events), 3)
        rows = list(csv.DictReader(io.StringIO(server.cairn("events", "--csv").stdout)))
        self.assertEqual([row["message"] for row in rows], [one["message"] for one in reversed(self.events(server))][-len(rows) :])
        self.assertEqual(rows[0].keys(), {"id", "time", "severity", "kind", "stage", "subject", "message", "action", "nodes"})
        text = server.cairn("events", "--text", "WAS STOPPED", "--since", "1h").stdout
        self.assertEqual(len(text.splitlines()), 1, text)
        self.assertEqual(self.events(server, "--until", "1d"), [])
        refused = server.cairn("events", "--severity", "worse", check=False)
        self.assertNotEqual(refused.returncode, 0)
        # Page by page, by REST.
        first = json.loads(server.get("/api/v1/events?limit=2"))
        rest = json.loads(server.get(f"/api/v1/events?limit=1000&before={first['next_before']}"))
        ids = [one["id"] for one in first["entries"] + rest["entries"]]
        self.assertEqual(ids, sorted(ids, reverse=True))
        self.assertNotIn("next_before", rest)
        # Another one may come between two looks.
        newest = lambda: json.loads(server.get("/api/v1/events?limit=1"))["entries"][0]["id"]
        is_newest = lambda: json.loads(server.get("/api/v1/live"))["last_event_id"] == newest()
        harness.wait_until(is_newest, SECONDS_MAX, "that the newest event is told")

        argv = [str(harness.cairn_path()), "events", "--follow", "--json", "--limit", "1"]
        argv += ["--server", server.ready["admin"]["url"], "--token-file", str(server.token_path)]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True) as following:
            try:
                assert following.stdout
                first = json.loads(following.stdout.readline())
                self.assertIn(first, self.events(server))
                server.cairn("scrub", "start")
                later = next(line for line in map(json.loads, following.stdout) if line["kind"] == "scrub")
                self.assertGreater(later["id"], first["id"])
            finally:
                # It goes on until then, and so would the wait for its end.
                following.kill()
