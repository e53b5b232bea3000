"""Snapshots: `cairn snapshot`, and `.snapshot` in each directory, by libnfs; over load and kill -9."""

import errno
import functools
import json
import os
import threading
import urllib.error
import urllib.request

from lib import harness, libnfs
from lib.worlds import WorldTest, content

FREED_SECONDS_MAX = 180
FILES = 24
KILLS = 3
CLONED_FILES = 300
# More than a page of changes has.
MANY_FILES = 1_100
RESTORE_BEGINS = "closing the volume to restore it"
# Each doubles them.
CLONED_TIMES = 3
CLONED_TIMES_MAX = 5
HELD_LEN_BYTES = 96 << 20
# A minute, and what a loaded machine takes.
DUE_SECONDS_MAX = 180
# Each write waits for a disk that may take seconds for it.
WROTE_SECONDS_MAX = 240


class Snapshots(WorldTest):
    def written_bytes(self):
        return self.world.metrics()['cairn_volume_written_bytes_total{volume="main"}']

    def listed(self, *flags):
        return json.loads(self.world.cairn("snapshot", "list", "main", "--json", *flags).stdout)

    def taken(self, name):
        self.world.cairn("snapshot", "create", "main", name)

    def is_freed(self):
        listed = self.listed()
        return (listed["freeing"], listed["held_bytes"]) == (0, 0)

    def refused(self, *arguments):
        run = self.world.cairn("snapshot", *arguments, check=False)
        self.assertNotEqual(run.returncode, 0)
        return run.stderr

    def test_the_oldest_go_when_space_runs_out(self):
        self.world = self.server(1, flags=["--disk-size-limit", "512MiB"])
        autodelete = lambda *percent: json.loads(
            self.world.cairn("snapshot", "autodelete", "main", *percent, "--json").stdout
        )["autodelete_percent"]
        names = lambda: [view["name"] for view in self.listed()["snapshots"]]
        with libnfs.Mount(self.world.libnfs_url()) as mount:
            for index, name in enumerate(("locked", "first", "second", "third")):
                mount.write_file("/file", content(index, 24 << 20))
                self.taken(name)
            mount.write_file("/file", content(9, 24 << 20))
        self.world.cairn("snapshot", "lock", "main", "locked")
        self.assertEqual(autodelete(), 0)
        run = self.world.cairn("snapshot", "autodelete", "main", "91", check=False)
        self.assertNotEqual(run.returncode, 0)
        # Schedules and this do not touch one another.
        self.world.cairn("snapshot", "schedule", "main", "monthly 3")
        self.assertEqual(autodelete("1"), 1)
        self.world.cairn("snapshot", "schedule", "main", "none")
        self.assertEqual(autodelete(), 1)
        self.assertEqual(sorted(names()), ["first", "locked", "second", "third"])
        # More than the pool has without any of them: all go that may.
        self.assertEqual(autodelete("90"), 90)
        seen: list[list[str]] = []

        def are_gone():
            now = names()
            if not seen or seen[-1] != now:
                seen.append(now)
            return now == ["locked"]

        harness.wait_until(are_gone, FREED_SECONDS_MAX, "the snapshots to go")
        for before, after in zip(seen, seen[1:]):
            # The oldest that is not locked each time.
            left, was = ([name for name in ("first", "second", "third") if name in there] for there in (after, before))
            self.assertEqual(left, was[len(was) - len(left):])
            self.assertIn("locked", after)
        self.assertIn("short of space", self.world.log_path.read_text(errors="replace"))

    def test_every_directory_shows_what_was_there(self):
        self.world = self.server(1)
        old, new = content(1, 3_000_000), content(2, 2_000_000)
        with libnfs.Mount(self.world.libnfs_url()) as mount:
            mount.mkdir("/d")
            mount.write_file("/d/a", old)
            mount.write_file("/d/b", b"small")
            self.taken("first")
            mount.write_file("/d/a", new)
            mount.unlink("/d/b")
            mount.mkdir("/later")
            mount.write_file("/later/c", b"c")
            self.taken("second")

            self.assertNotIn(".snapshot", mount.names("/d"))
            self.assertEqual(sorted(mount.names("/d/.snapshot")), ["first", "second"])
            self.assertEqual(sorted(mount.names("/d/.snapshot/first")), ["a", "b"])
            self.assertEqual(mount.names("/d/.snapshot/second"), ["a"])
            # A directory is in the snapshots alone that have it.
            self.assertEqual(mount.names("/later/.snapshot"), ["second"])
            # Each is a directory of its own, as programs see it.
            places = ("/d", "/d/.snapshot", "/d/.snapshot/first", "/d/.snapshot/second")
            self.assertEqual(len({mount.stat(place).ino for place in places}), len(places))
            # So it can be mounted, with what is below it.
            for path in (".snapshot/first/d", "d/.snapshot/first"):
                with libnfs.Mount(self.world.libnfs_url(path)) as shown:
                    self.assertEqual(shown.read_file("/a"), old)
                    with self.assertRaises(OSError) as refused:
                        shown.write_file("/x", b"x")
                    self.assertEqual(refused.exception.errno, errno.EROFS)
            self.assertRaises(OSError, lambda: libnfs.Mount(self.world.libnfs_url(".snapshot/nothing")))
            self.assertEqual(mount.read_file("/d/.snapshot/first/a"), old)
            self.assertEqual(mount.read_file("/d/.snapshot/first/b"), b"small")
            self.assertEqual(mount.read_file("/.snapshot/first/d/a"), old)
            self.assertEqual(mount.read_file("/d/.snapshot/second/a")[: len(new)], new)
            for change in (
                lambda: mount.unlink("/d/.snapshot/first/a"),
                lambda: mount.write_file("/d/.snapshot/first/x", b"x"),
                lambda: mount.mkdir("/d/.snapshot/third"),
                lambda: mount.rename("/d/.snapshot/first/a", "/a"),
                lambda: mount.truncate("/d/.snapshot/first/a", 0),
                # Nothing can have the name: it would hide the snapshots.
                lambda: mount.rename("/d/a", "/d/.snapshot"),
                lambda: mount.rename("/later", "/d/.snapshot"),
                lambda: mount.mkdir("/later/.snapshot"),
                lambda: mount.symlink("a", "/d/.snapshot"),
                lambda: mount.write_file("/.snapshot", b"x"),
            ):
                self.assertRaises(OSError, change)
            self.assertRaises(OSError, lambda: mount.names("/d/.snapshot/nothing"))

            self.assertEqual(sorted(mount.names("/d/.snapshot")), ["first", "second"])
            self.assertIn(".snapshot", self.refused("restore", "main", "first", "/d/a", "--to", "/.snapshot"))
            self.assertIn("already", self.refused("create", "main", "first"))
            self.assertIn("is not a snapshot name", self.refused("create", "main", "a/b"))
            self.assertIn("no such snapshot", self.refused("delete", "main", "nothing"))
            self.world.cairn("snapshot", "lock", "main", "first")
            self.assertIn("locked", self.refused("delete", "main", "first"))
            self.world.cairn("snapshot", "rename", "main", "first", "kept")
            self.assertEqual(mount.read_file("/d/.snapshot/kept/a"), old)
            frees = {view["name"]: view["frees_bytes"] for view in self.listed("--space")["snapshots"]}
            self.assertGreaterEqual(frees["kept"], len(new))
            self.world.cairn("snapshot", "unlock", "main", "kept")
            self.world.cairn("snapshot", "delete", "main", "kept")
            self.assertRaises(OSError, lambda: mount.names("/d/.snapshot/kept"))
        self.world.cairn("snapshot", "delete", "main", "second")
        harness.wait_until(self.is_freed, FREED_SECONDS_MAX, "the space of deleted snapshots to be free")

    def test_files_and_directories_are_restored(self):
        self.world = self.server(1)
        old, new = content(1, 3_000_000), content(2, 1_000_000)
        restore = functools.partial(self.world.cairn, "snapshot", "restore", "main", "good")
        with libnfs.Mount(self.world.libnfs_url()) as mount:
            mount.mkdir("/d")
            mount.mkdir("/d/deep")
            mount.write_file("/d/a", old)
            mount.write_file("/d/deep/b", b"small")
            mount.write_file("/d/empty", b"")
            mount.symlink("deep/b", "/d/link")
            mount.chmod("/d/a", 0o640)
            then = mount.stat("/d/a")
            self.taken("good")
            mount.write_file("/d/a", new)
            mount.unlink("/d/deep/b")
            written = self.written_bytes()

            self.assertIn("1 files", restore("/d/a").stdout)
            self.assertEqual(mount.read_file("/d/a"), old)
            now = mount.stat("/d/a")
            self.assertEqual((now.mode, now.mtime, now.mtime_nsec), (then.mode, then.mtime, then.mtime_nsec))
            restore("/d/deep/b")
            self.assertEqual(mount.read_file("/d/deep/b"), b"small")
            said = restore("/d", "--to", "/d2", "--json").stdout
            self.assertEqual({key: json.loads(said)[key] for key in ("files", "directories")}, {"files": 4, "directories": 2})
            self.assertEqual(sorted(mount.names("/d2")), ["a", "deep", "empty", "link"])
            self.assertEqual(mount.read_file("/d2/a"), old)
            self.assertEqual(mount.read_file("/d2/deep/b"), b"small")
            self.assertEqual(mount.readlink("/d2/link"), "deep/b")
            # Nothing was copied.
            self.assertLess(self.written_bytes(), written + len(old) // 2)
            for arguments, complaint in (
                (("/d",), "already exists"),
                (("/nothing",), "has no /nothing"),
                (("d/a",), "not a path"),
                (("/d/a", "--to", "/none/a"), "cannot be created"),
                (("/d/a", "--to", "/d2"), "is a directory"),
            ):
                self.assertIn(complaint, self.refused("restore", "main", "good", *arguments))
            self.assertIn("no snapshot", self.refused("restore", "main", "bad", "/d/a"))
            # Without the snapshot, and after a crash, what was restored stays.
            self.world.cairn("snapshot", "delete", "main", "good")
            mount.unlink("/d/a")
        harness.wait_until(self.is_freed, FREED_SECONDS_MAX, "the space of the snapshot to be free")
        self.world.kill()
        self.world.start()
        with libnfs.Mount(self.world.libnfs_url()) as mount:
            self.assertEqual(mount.read_file("/d2/a"), old)

    def test_files_and_directories_are_cloned(self):
        self.world = self.server(1)
        old = content(1, 3_000_000)
        clone = functools.partial(self.world.cairn, "clone", "main")
        with libnfs.Mount(self.world.libnfs_url()) as mount:
            mount.mkdir("/d")
            mount.write_file("/d/a", old)
            mount.write_file("/d/small", b"small")
            written = self.written_bytes()
            self.assertIn("1 files", clone("/d/a", "/b").stdout)
            # A directory can be cloned into itself: what the clone is of is there before it.
            said = json.loads(clone("/d", "/d/of-itself", "--json").stdout)
            self.assertEqual((said["files"], said["directories"], said["path"]), (2, 1, "/d/of-itself"))
            self.assertLess(self.written_bytes(), written + len(old) // 2)
            self.assertEqual(sorted(mount.names("/d")), ["a", "of-itself", "small"])
            # Each goes its own way.
            with mount.open("/d/a", os.O_RDWR) as file:
                file.write(1000, b"changed")
                file.sync()
            mount.write_file("/d/of-itself/small", b"other")
            self.assertEqual((mount.read_file("/b"), mount.read_file("/d/of-itself/a")), (old, old))
            self.assertEqual(mount.read_file("/d/a"), old[:1000] + b"changed" + old[1007:])
            self.assertEqual(mount.read_file("/d/small"), b"small")
            for arguments, complaint in (
                (("/nothing", "/x"), "the volume has no /nothing"),
                (("/d", "/d"), "already exists"),
                (("/b", "/none/b"), "cannot be created"),
                (("b", "/x"), "not a path"),
            ):
                refused = clone(*arguments, check=False)
                self.assertNotEqual(refused.returncode, 0)
                self.assertIn(complaint, refused.stderr)
            self.assertNotIn("clone.", self.world.cairn("snapshot", "list", "main").stdout)
            # One that is interrupted leaves no snapshot.
            mount.mkdir("/many")
            for number in range(CLONED_FILES):
                mount.write_file(f"/many/{number}", b"x")
        for number in range(CLONED_TIMES):
            clone("/many", f"/many/again{number}")
        self.kill_while_cloning()
        self.world.start()
        gone = "what the clone left to be gone"
        harness.wait_until(lambda: "clone." not in self.world.cairn("snapshot", "list", "main").stdout, FREED_SECONDS_MAX, gone)
        with libnfs.Mount(self.world.libnfs_url()) as mount:
            self.assertEqual(mount.read_file("/b"), old)

    def kill_while_cloning(self):
        """Ends the server while the snapshot of a clone is there. Each clone that was over too soon doubles the next."""
        for number in range(CLONED_TIMES_MAX):
            arguments = ("clone", "main", "/many", f"/many/more{number}")
            cloning = threading.Thread(target=self.world.cairn, args=arguments, kwargs={"check": False})
            cloning.start()
            while cloning.is_alive():
                # Not by a command, which takes longer to start than some clones do.
                if "clone." in self.world.get("/api/v1/volumes/main/snapshots"):
                    self.world.kill()
                    cloning.join()
                    return
        self.fail("no clone was seen while it was made")

    def changed(self, *arguments):
        lines = self.world.cairn("snapshot", "diff", "main", *arguments, "--json").stdout.splitlines()
        changes = [json.loads(line) for line in lines]
        return sorted((view["change"], view.get("from"), view["path"]) for view in changes)

    def test_what_changed_is_listed(self):
        self.world = self.server(1)
        with libnfs.Mount(self.world.libnfs_url()) as mount:
            mount.mkdir("/d")
            for name in ("kept", "gone", "moved", "written"):
                mount.write_file(f"/d/{name}", b"before")
            self.taken("a")
            mount.unlink("/d/gone")
            mount.mkdir("/e")
            mount.rename("/d/moved", "/e/here")
            mount.write_file("/d/written", b"after!!")
            self.taken("b")
            want = [
                ("created", None, "/e"),
                ("deleted", None, "/d/gone"),
                ("modified", None, "/d/written"),
                ("renamed", "/d/moved", "/e/here"),
            ]
            self.assertEqual(self.changed("a", "b"), want)
            self.assertEqual(self.changed("a"), want)
            self.assertEqual(self.changed("b", "live"), [])
            for number in range(MANY_FILES):
                mount.write_file(f"/e/{number}", b"x")
        # More than a page.
        self.assertEqual(len(self.changed("b")), MANY_FILES)
        text = self.world.cairn("snapshot", "diff", "main", "a", "b").stdout
        self.assertIn("/d/moved -> /e/here", text)
        self.assertRegex(text, r"M file +7 B /d/written  \(data, attributes\)")
        self.assertIn("give the older snapshot first", self.refused("diff", "main", "b", "a"))
        self.assertIn("no snapshot c", self.refused("diff", "main", "c"))
        self.assertEqual([view["name"] for view in self.listed()["snapshots"]], ["a", "b"])

    def test_names_command_no_terminal(self):
        self.world = self.server(1)
        evil = "a\n+ file 1 B forged\x1b[2J\x9b31m\u202eb\u2028c\x7f"
        with libnfs.Mount(self.world.libnfs_url()) as mount:
            self.taken("a")
            mount.write_file(f"/{evil}", b"x")
            self.taken("b")
        shown = self.world.cairn("snapshot", "diff", "main", "a", "b").stdout
        self.assertEqual(len([line for line in shown.splitlines() if "forged" in line]), 1, shown)
        self.assertIn("a\\n+ file 1 B forged\\u{1b}[2J", shown)
        listed = self.world.cairn("snapshot", "diff", "main", "a", "b", "--json").stdout
        for text in (shown, listed):
            for letter in "\x1b\x9b\u202e\u2028\x7f":
                self.assertNotIn(letter, text)
        # It says the same.
        self.assertIn(f"/{evil}", [json.loads(line)["path"] for line in listed.splitlines()])
        # Nor in the words of the server, and in its log.
        refused = self.world.cairn("policy", "show", f"main/none{evil}", check=False)
        self.assertNotEqual(refused.returncode, 0)
        for text in (refused.stderr, self.world.log_path.read_text()):
            for letter in "\x1b\x9b\u202e\u2028\x7f":
                self.assertNotIn(letter, text)

    def page(self, **ask):
        url = f"{self.world.ready['admin']['url']}/api/v1/volumes/main/snapshots/a/diff"
        request = urllib.request.Request(url, json.dumps(ask).encode(), method="POST")
        request.add_header("Authorization", f"Bearer {self.world.token_path.read_text().strip()}")
        request.add_header("Content-Type", "application/json")
        try:
            with urllib.request.urlopen(request, timeout=FREED_SECONDS_MAX) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            return json.load(error)["error"]

    def test_pages_of_changes_are_given_again_until_the_next_one(self):
        self.world = self.server(1)
        with libnfs.Mount(self.world.libnfs_url()) as mount:
            self.taken("a")
            for number in range(7):
                mount.write_file(f"/{number}", b"x")
        first = self.page(max=3)
        second = self.page(max=3, next=first["next"])
        # Its answer was lost.
        self.assertEqual(self.page(max=3, next=first["next"]), second)
        third = self.page(max=3, next=second["next"])
        self.assertNotIn("next", third)
        told = [view["path"] for page in (first, second, third) for view in page["changes"]]
        self.assertEqual(sorted(told), [f"/{number}" for number in range(7)])
        self.assertEqual(self.page(next=second["next"])["kind"], "not_found")
        self.assertEqual(self.page(next="nonsense")["kind"], "not_found")
        # The snapshot that stood for now goes with the list.
        names = lambda: [view["name"] for view in self.listed()["snapshots"]]
        harness.wait_until_equal(names, ["a"], FREED_SECONDS_MAX, "the snapshots that are there")

    def test_a_volume_is_restored(self):
        self.world = self.server(1)
        restore = functools.partial(self.world.cairn, "snapshot", "restore", "main")
        old, new = content(1, 3_000_000), content(2, 3_000_000)
        with libnfs.Mount(self.world.libnfs_url()) as mount:
            mount.mkdir("/d")
            mount.write_file("/d/a", old)
            mount.write_file("/d/b", b"small")
            self.world.cairn("snapshot", "schedule", "main", "hourly 24")
            self.taken("good")
            mount.write_file("/d/a", new)
            mount.unlink("/d/b")
            mount.mkdir("/later")
            mount.write_file("/later/c", b"c")
            self.world.cairn("snapshot", "schedule", "main", "daily 7")
            with mount.open("/d/a") as kept, mount.open("/later/c") as gone:
                said = json.loads(restore("good", "--volume", "--json").stdout)
                # What clients have open is as it was, or stale.
                self.assertEqual(kept.read(0, 1000), old[:1000])
                self.assertRaises(OSError, lambda: gone.read(0, 1))
        with libnfs.Mount(self.world.libnfs_url()) as mount:
            self.assertEqual(mount.names("/"), ["d"])
            self.assertEqual(mount.read_file("/d/a"), old)
            self.assertEqual(mount.read_file("/d/b"), b"small")
            self.assertEqual(mount.read_file(f"/d/.snapshot/{said['kept']}/a"), new)
            self.assertIn("daily", self.world.cairn("snapshot", "schedule", "main").stdout)
            self.assertEqual(self.changed("good"), [])
            mount.write_file("/d/new", b"new")
        self.assertIn("already", self.refused("restore", "main", "good", "--volume", "--keep", "good"))
        self.assertIn("no such snapshot", self.refused("restore", "main", "bad", "--volume"))
        self.assertIn("the earlier content is discarded", restore(said["kept"], "--volume", "--discard").stdout)
        self.world.kill()
        self.world.start()
        with libnfs.Mount(self.world.libnfs_url()) as mount:
            self.assertEqual(mount.read_file("/d/a"), new)
            self.assertEqual((mount.names("/"), mount.names("/d")), (["d", "later"], ["a"]))
        for name in ("good", said["kept"]):
            self.world.cairn("snapshot", "delete", "main", name)
        harness.wait_until(self.is_freed, FREED_SECONDS_MAX, "the space of deleted snapshots to be free")

    def test_a_restore_is_whole_or_nothing_after_kill_9(self):
        self.world = self.server(1)
        old, new = b"before", b"after, which is longer"
        with libnfs.Mount(self.world.libnfs_url()) as mount:
            mount.mkdir("/d")
            for number in range(MANY_FILES):
                mount.write_file(f"/d/{number}", old)
            self.taken("good")
            for number in range(MANY_FILES):
                mount.write_file(f"/d/{number}", new)
                mount.write_file(f"/d/new{number}", b"new")
        for number in range(KILLS):
            kept = f"kept{number}"
            arguments = ("snapshot", "restore", "main", "good", "--volume", "--keep", kept)
            restoring = threading.Thread(target=self.world.cairn, args=arguments, kwargs={"check": False})
            begun = self.world.log_path.read_text().count(RESTORE_BEGINS)
            restoring.start()
            has_begun = functools.partial(self.has_begun, begun)
            harness.wait_until(has_begun, FREED_SECONDS_MAX, "the restore to begin")
            self.world.kill()
            restoring.join()
            self.world.start()
            with libnfs.Mount(self.world.libnfs_url()) as mount:
                names = mount.names("/d")
                is_restored = len(names) == MANY_FILES
                self.assertIn(len(names), (MANY_FILES, 2 * MANY_FILES))
                for name in range(0, MANY_FILES, 50):
                    self.assertEqual(mount.read_file(f"/d/{name}"), old if is_restored else new)
            if is_restored:
                self.world.cairn("snapshot", "restore", "main", kept, "--volume", "--discard")

    def has_begun(self, before):
        return self.world.log_path.read_text().count(RESTORE_BEGINS) > before

    def test_a_full_pool_deletes_snapshots_and_goes_on(self):
        self.world = self.server(1, flags=["--disk-size-limit", "384MiB"])
        held = content("held", HELD_LEN_BYTES)
        with libnfs.Mount(self.world.libnfs_url()) as mount:
            mount.write_file("/held", held)
            self.taken("first")
            mount.unlink("/held")
            filled = 0
            with self.assertRaises(OSError, msg="the pool takes more than there is"):
                for number in range(384):
                    mount.write_file(f"/fill{number}", content(number, 1 << 20))
                    filled = number
            # What needs no bytes still is done, or says that there is no space; nothing else of it stays.
            for words in (("create", "main", "second"), ("restore", "main", "first", "/held")):
                done = self.world.cairn("snapshot", *words, check=False)
                if done.returncode:
                    self.assertIn("no space", done.stderr)
            self.assertEqual(mount.read_file("/.snapshot/first/held"), held)
            if "held" in mount.names("/"):
                self.assertEqual(mount.read_file("/held"), held)
                mount.unlink("/held")
            for name in [view["name"] for view in self.listed()["snapshots"]]:
                self.world.cairn("snapshot", "delete", "main", name)
            harness.wait_until(self.is_freed, FREED_SECONDS_MAX, "the space of the snapshots to be free")

            def goes_on():
                try:
                    mount.write_file("/more", content("more", HELD_LEN_BYTES // 2))
                except OSError:
                    return False
                return True

            harness.wait_until(goes_on, FREED_SECONDS_MAX, "space for writes")
            for number in range(0, filled, 17):
                self.assertEqual(mount.read_file(f"/fill{number}"), content(number, 1 << 20))

    def test_schedules_take_and_delete(self):
        self.world = self.server(1)
        schedule = functools.partial(self.world.cairn, "snapshot", "schedule", "main")
        self.assertIn("has no snapshot schedule", schedule().stdout)
        for text, complaint in (
            ("often 5", "has no time"),
            ("hourly 0", "1 to 1000"),
            ("x 5 (0 0 30 2 *)", "never comes"),
            ("daily 1, daily 2", "two schedules"),
        ):
            self.assertIn(complaint, self.refused("schedule", "main", text))
        self.assertIn("has no snapshot schedule", schedule().stdout)
        self.assertIn("* * * * *", schedule("each-minute 60 (* * * * *), daily 7").stdout)

        def taken():
            return [view["name"] for view in self.listed()["snapshots"] if view["schedule"] == "each-minute"]

        first = harness.wait_until(taken, DUE_SECONDS_MAX, "a snapshot that is due")[0]
        self.assertRegex(first, r"^each-minute\.\d{4}-\d\d-\d\d_\d{4}$")
        # The next start knows the schedules.
        self.world.kill()
        self.world.start()
        views = json.loads(schedule("--json").stdout)["schedules"]
        self.assertEqual([(view["name"], view["keep"]) for view in views], [("each-minute", 60), ("daily", 7)])
        self.assertIn(first, [view["name"] for view in self.listed()["snapshots"]])
        self.assertIn("has no snapshot schedule", schedule("none").stdout)

    def test_what_was_answered_is_in_them_after_kill_9(self):
        self.world = self.server(3)
        with libnfs.Mount(self.world.libnfs_url()) as mount:
            for number in range(FILES):
                mount.write_file(f"/f{number}", b"")
        expected: dict[str, dict[int, bytes]] = {}
        for life in range(KILLS):
            stop, wrote = threading.Event(), threading.Event()
            failures: list[OSError] = []
            answered = [b""] * FILES

            def write(stop=stop, wrote=wrote, answered=answered, life=life, failures=failures):
                try:
                    with libnfs.Mount(self.world.libnfs_url()) as mount:
                        number = 0
                        while not stop.is_set():
                            data = content(f"{life} {number}", 20_000)
                            mount.write_file(f"/f{number % FILES}", data)
                            answered[number % FILES] = data
                            number += 1
                            if number >= 2 * FILES:
                                wrote.set()
                except OSError as error:
                    failures.append(error)

            writer = threading.Thread(target=write)
            writer.start()
            has_written = lambda: wrote.is_set() or failures
            harness.wait_until(has_written, WROTE_SECONDS_MAX, "that each file is written twice")
            self.assertEqual(failures, [])
            self.taken(f"loaded{life}")
            stop.set()
            writer.join()
            self.assertEqual(failures, [])
            self.taken(f"quiet{life}")
            expected[f"quiet{life}"] = dict(enumerate(answered))
            self.world.kill()
            self.world.start()
            with libnfs.Mount(self.world.libnfs_url()) as mount:
                for name, files in expected.items():
                    for number, data in files.items():
                        self.assertEqual(mount.read_file(f"/.snapshot/{name}/f{number}"), data, f"{name} f{number}")
                for number in range(FILES):
                    # Of one time each: a whole file that somebody wrote, or one that was just being written.
                    self.assertIn(len(mount.read_file(f"/.snapshot/loaded{life}/f{number}")), range(20_001))
        for name in expected:
            self.world.cairn("snapshot", "delete", "main", name)
        with libnfs.Mount(self.world.libnfs_url()) as mount:
            self.assertEqual(sorted(mount.names("/.snapshot")), [f"loaded{life}" for life in range(KILLS)])
