"""Disks come, leave, are lost and replaced while clients work."""

import json
import shutil
import subprocess

from lib import harness, libnfs, rawnfs, spread
from lib.background import Background
from lib.worlds import WorldTest, content, digest_tree, make_tree

MOVE_SECONDS_MAX = 120
OPEN_AGAIN_SECONDS_MAX = 60
SPOILED_BYTES = 256 * 1024
SMALL_DISK_BYTES = 192 * 1024 * 1024


class Load(Background):
    """Copies files in, one after the other, and keeps what was answered."""

    def __init__(self, server, scratch, len_bytes=3 * 1024 * 1024):
        super().__init__()
        self.server, self.scratch, self.len_bytes = server, scratch, len_bytes
        self.written, self.problems = [], []

    def work(self):
        while not self.stopping.is_set():
            path = self.scratch / f"load-{len(self.written) + len(self.problems)}"
            path.write_bytes(content(path.name, self.len_bytes))
            done = self.server.cairn("cp", "-q", path, self.server.url(path.name), check=False)
            if done.returncode == 0:
                self.written.append(path)
            else:
                self.problems.append(done.stderr)

    def differences(self):
        """Names of files that are not what was written."""
        different = []
        for path in self.written:
            got = self.server.cairn("cat", self.server.url(path.name), check=False, text=False)
            if got.stdout != path.read_bytes():
                different.append(f"{path.name}: {got.stderr or 'other bytes'}")
        return different


class Disks(WorldTest):
    def disks(self, server):
        listed = json.loads(server.cairn("disk", "list", "--json").stdout)
        return listed["disks"], listed["rebuild"]

    def states(self, server):
        return {disk["label"].rpartition("/")[2]: disk["state"] for disk in self.disks(server)[0]}

    def wait(self, server, done, what):
        def look():
            disks, rebuild = self.disks(server)
            named = {disk["label"].rpartition("/")[2]: disk for disk in disks}
            # A lost disk and the one in its place have one name.
            return done(named | {"count": len(disks)}, rebuild)

        harness.wait_until(look, MOVE_SECONDS_MAX, what)

    def drain(self, server, disk):
        server.cairn("disk", "drain", disk)
        self.wait(
            server,
            lambda disks, _: disks[disk.name]["state"] == "drained",
            "the draining of a disk",
        )

    def fill(self, server, name="tree", seed=1):
        tree = make_tree(self.scratch / name, seed)
        server.cairn("cp", "-r", "-q", tree, server.url(name))
        return tree

    def check(self, server, tree):
        back = self.scratch / f"back-{tree.name}"
        shutil.rmtree(back, ignore_errors=True)
        server.cairn("cp", "-r", "-q", server.url(tree.name), back)
        self.assertEqual(digest_tree(back), digest_tree(tree))

    def check_without(self, server, tree, names):
        """Everything is there with some disks gone."""
        health = server.status()["health"]
        server.kill()
        for name in names:
            (server.root / name).rename(server.root / f"{name}.away")
        server.start()
        self.check(server, tree)
        server.kill()
        for name in names:
            shutil.rmtree(server.root / name, ignore_errors=True)
            (server.root / f"{name}.away").rename(server.root / name)
        server.start()
        # What they missed is copied to them: until then others are not to be lost.
        harness.wait_until(lambda: server.status()["health"] == health, MOVE_SECONDS_MAX, "the former health")

    def test_a_lost_disk_is_replaced(self):
        server = self.server(6)
        tree = self.fill(server)
        server.kill()
        shutil.rmtree(server.disks[0])
        server.disks[0].mkdir()
        server.start()
        self.assertEqual(self.states(server)["disk0"], "missing")
        lost = server.root / "disk0"
        # The new drive is mounted where the old one was.
        server.cairn("disk", "replace", lost, lost)
        self.wait(
            server,
            lambda disks, rebuild: disks["count"] == 6 and rebuild["shards_left"] == 0,
            "the rebuild of a lost disk",
        )
        self.assertEqual(set(self.states(server).values()), {"ok"})
        disks, rebuild = self.disks(server)
        # Segments that the kill left without footers are not computed but written anew.
        self.assertGreater(rebuild["shards_moved"] + rebuild["segments_rewritten"], 0)
        self.assertEqual((rebuild["lost_bytes"], rebuild["errors"]), (0, 0))
        self.assertTrue(server.is_well(), server.status()["warnings"])
        self.check(server, tree)
        self.check_without(server, tree, ["disk1", "disk4"])

    def test_what_a_rebuild_finds_on_one_disk_only_gets_its_protection_back(self):
        server = self.server(6)
        files = {f"/{index}": content(f"file {index}", 64 * 1024) for index in range(24)}
        with libnfs.Mount(server.libnfs_url()) as mount:
            for name, data in files.items():
                mount.write_file(name, data)
        server.stop()
        # With a third one lost, what the other three have in these rows is nowhere else.
        for disk in server.disks[1:3]:
            shards = list((disk / "shards").rglob("*.0?"))
            self.assertTrue(shards)
            for path in shards:
                with open(path, "r+b") as shard:
                    bytes_there = shard.read(SPOILED_BYTES)
                    shard.seek(0)
                    shard.write(bytes(byte ^ 0x55 for byte in bytes_there))
        lost = server.root / "disk3"
        shutil.rmtree(lost)
        lost.mkdir()
        server.start()
        server.cairn("disk", "replace", lost, lost)
        self.wait(
            server,
            lambda _, rebuild: any("hold data that cannot be read" in problem for problem in rebuild["problems"]),
            "the end of what can be rebuilt",
        )
        # By hand: what only the lost disk could give is waited for, and a client would do so for minutes.
        def readable(name):
            with rawnfs.Peer(server.port) as peer:
                _, root = peer.mount("/main")
                _, file = peer.lookup(root, name.lstrip("/"))
                return peer.read_bytes(file, 0, len(files[name])) == (rawnfs.OK, files[name])

        kept = [name for name in files if readable(name)]
        self.assertTrue(0 < len(kept) < len(files), kept)
        # The lost one is still a member, so that one more is what the pool starts without.
        for gone in ("disk0", "disk4", "disk5"):
            server.kill()
            (server.root / gone).rename(server.root / "away")
            server.start()
            self.assertEqual([name for name in kept if not readable(name)], [], gone)
            server.kill()
            shutil.rmtree(server.root / gone, ignore_errors=True)
            (server.root / "away").rename(server.root / gone)
        server.start()

    def test_a_disk_removed_by_force_is_missed_until_it_is_rebuilt(self):
        config = self.scratch / "slow.toml"
        config.write_text('rebuild_rate = "256KiB"\n')
        server = self.server(6, flags=["--config", config])
        tree = self.fill(server)
        self.assertTrue(server.is_well(), server.status()["warnings"])
        gone = server.disks.pop()
        server.cairn("disk", "remove", "--force", gone)
        status = server.status()
        self.assertEqual(status["health"], "degraded")
        self.assertIn("segments_short", [warning["kind"] for warning in status["warnings"]])
        self.assertGreater(self.disks(server)[1]["shards_left"], 0)
        server.stop()
        config.write_text("rebuild_rate = 0\n")
        server.start()
        healthy = lambda: server.is_well()
        harness.wait_until(healthy, MOVE_SECONDS_MAX, "the rebuild")
        self.assertEqual(self.disks(server)[1]["lost_bytes"], 0)
        self.check(server, tree)
        self.check_without(server, tree, ["disk1", "disk4"])

    def test_a_disk_is_added_and_another_drained_under_load(self):
        server = self.server(6)
        tree = self.fill(server)
        new = server.root / "new"
        with Load(server, self.scratch) as load:
            added = json.loads(server.cairn("disk", "add", new, "--json").stdout)
            self.assertEqual((added["state"], added["label"]), ("ok", str(new)))
            again = server.cairn("disk", "add", new, check=False)
            self.assertEqual(again.returncode, 4, again.stderr)
            held = server.cairn("disk", "remove", server.disks[0], check=False)
            self.assertEqual(held.returncode, 4, held.stderr)
            self.assertIn("drain", held.stderr)
            # The one that volumes have their metadata on.
            self.drain(server, server.disks[0])
            server.cairn("disk", "remove", server.disks[0])
        self.assertEqual(load.problems, [])
        self.assertGreater(len(load.written), 0)
        self.assertEqual(len(self.disks(server)[0]), 6)
        self.assertFalse((server.disks[0] / "cairn-disk").exists())
        # The command line still names the removed disk, and not the new one.
        server.restart()
        self.assertEqual(set(self.states(server)), {"new", "disk1", "disk2", "disk3", "disk4", "disk5"})
        self.check(server, tree)
        self.assertEqual(load.differences(), [])
        self.assertTrue(server.is_well(), server.status()["warnings"])
        server.disks = server.disks[1:]
        self.check_without(server, tree, ["disk3", "disk5"])

    def test_the_first_of_few_disks_leaves_under_load(self):
        """The log of the metadata went on without the disk that stayed, where the volume was opened then."""
        for count in (2, 3):
            with self.subTest(disks=count):
                root = self.scratch / f"few-{count}"
                root.mkdir()
                with harness.Server(root, count) as server:
                    with Load(server, self.scratch, 20_000) as load:
                        harness.wait_until(lambda: len(load.written) > 20, MOVE_SECONDS_MAX, "some files")
                        self.drain(server, server.disks[0])
                        server.cairn("disk", "remove", server.disks[0])
                    self.assertEqual(load.problems, [])
                    self.assertEqual(load.differences(), [])
                    server.kill()
                    server.start()
                    self.assertEqual(load.differences(), [])

    def test_a_drain_that_a_kill_breaks_off_loses_nothing(self):
        server = self.server(2)
        with Load(server, self.scratch, 20_000) as load:
            harness.wait_until(lambda: len(load.written) > 20, MOVE_SECONDS_MAX, "some files")
            server.cairn("disk", "drain", server.disks[0])
        server.kill()
        server.start()
        self.wait(server, lambda disks, _: disks["disk0"]["state"] == "drained", "the draining of a disk")
        self.assertEqual(load.differences(), [])

    def test_many_disks_leave_at_once(self):
        server = self.server(8)
        tree = self.fill(server)
        with Load(server, self.scratch, 20_000) as load:
            for disk in server.disks[:4]:
                server.cairn("disk", "drain", disk)
            self.wait(
                server,
                lambda disks, _: all(disks[f"disk{index}"]["state"] == "drained" for index in range(4)),
                "the draining of four disks",
            )
        self.assertEqual(load.problems, [])
        for disk in server.disks[:4]:
            server.cairn("disk", "remove", disk)
        server.disks = server.disks[4:]
        server.restart()
        self.check(server, tree)
        self.assertEqual(load.differences(), [])

    def test_a_drained_disk_knows_that_the_pool_went_on_without_it(self):
        server = self.server(2)
        before = self.fill(server, "before")
        self.drain(server, server.disks[0])
        self.assertEqual(server.status()["health"], "no_redundancy")
        after = self.fill(server, "after", seed=2)
        server.kill()
        # Only the drained one is there: what it had is not what was answered since.
        server.disks[1].rename(server.root / "away")
        server.start()
        (volume,) = server.status()["volumes"]
        self.assertFalse(volume["serving"])
        server.kill()
        shutil.rmtree(server.disks[1], ignore_errors=True)
        (server.root / "away").rename(server.disks[1])
        server.start()
        self.check(server, before)
        self.check(server, after)

    def test_what_was_written_on_one_disk_survives_it_when_another_was_added(self):
        server = self.server(1)
        tree = self.fill(server)
        self.assertEqual(server.status()["health"], "no_redundancy")
        new = server.root / "new"
        server.cairn("disk", "add", new)
        server.disks.append(new)
        harness.wait_until(
            lambda: server.is_well(),
            MOVE_SECONDS_MAX,
            "the second copies",
        )
        # Counted once all of a step is done.
        self.wait(server, lambda _, rebuild: rebuild["segments_rewritten"] > 0, "the end of the writing anew")
        self.check_without(server, tree, ["disk0"])
        self.check_without(server, tree, ["new"])

    def test_what_was_written_on_one_of_three_disks_is_written_anew_when_that_one_is_drained(self):
        server = self.server(3)
        server.kill()
        for disk in server.disks[:2]:
            disk.rename(f"{disk}.away")
        server.start()
        tree = self.fill(server)
        server.kill()
        for disk in server.disks[:2]:
            shutil.rmtree(disk, ignore_errors=True)
            disk.with_name(f"{disk.name}.away").rename(disk)
        # Nothing is written anew before it is known that the disk is to leave.
        server.flags = ["--rebuild-rate", "1"]
        server.start()
        server.cairn("disk", "drain", server.disks[2])
        server.kill()
        server.flags = []
        server.start()
        self.wait(server, lambda disks, _: disks["disk2"]["state"] == "drained", "the draining of a disk")
        # Moved as it is it would be on one disk still.
        self.assertEqual(self.disks(server)[1]["shards_moved"], 0)
        # Counted once all of a step is done.
        self.wait(server, lambda _, rebuild: rebuild["segments_rewritten"] > 0, "the end of the writing anew")
        server.cairn("disk", "remove", server.disks.pop())
        self.check_without(server, tree, ["disk0"])
        self.check_without(server, tree, ["disk1"])

    def test_the_only_disk_is_replaced(self):
        server = self.server(1)
        tree = self.fill(server)
        new = server.root / "new"
        server.cairn("disk", "replace", server.disks[0], new)

        def is_waiting():
            disks, rebuild = self.disks(server)
            return any("--data names" in problem for problem in rebuild["problems"])

        # It does not leave by itself: the next start would find only its empty folder, and make a new pool.
        harness.wait_until(is_waiting, MOVE_SECONDS_MAX, "the end of the moves")
        refused = server.cairn("disk", "remove", server.disks[0], check=False)
        self.assertEqual(refused.returncode, 4, refused.stderr)
        self.assertIn(str(new), refused.stderr)
        self.check(server, tree)
        server.stop()
        shutil.rmtree(server.disks[0])
        server.disks = [new]
        server.start()
        self.wait(server, lambda disks, _: disks["count"] == 1, "the draining of the old disk")
        self.assertEqual(server.status()["health"], "no_redundancy")
        self.check(server, tree)

    def test_a_disk_is_not_removed_when_the_others_that_are_named_are_lost(self):
        server = self.server(2)
        tree = self.fill(server)
        for name in ("new1", "new2"):
            server.cairn("disk", "add", server.root / name)
        found = {warning["kind"]: warning.get("count") for warning in server.status()["warnings"]}
        self.assertEqual(found.get("disks_unnamed"), 2, found)
        server.stop()
        shutil.rmtree(server.disks[0])
        server.start()
        self.drain(server, server.disks[1])
        refused = server.cairn("disk", "remove", server.disks[1], check=False)
        self.assertEqual(refused.returncode, 4, refused.stderr)
        self.assertIn("new1", refused.stderr)
        pool = server.status()["pool"]["id"]
        server.restart()
        self.assertEqual(server.status()["pool"]["id"], pool)
        self.check(server, tree)

    def test_a_disk_that_a_volume_may_need_is_not_wiped(self):
        server = self.server(2)
        tree = self.fill(server)
        server.stop()
        server.disks[1].rename(server.root / "away")
        # The copy of the metadata on the other disk is gone, so the volume cannot be served.
        shutil.rmtree(server.disks[0] / "volumes")
        server.start()
        (server.root / "away").rename(server.disks[1])
        refused = server.cairn("disk", "replace", "--wipe", server.disks[1], server.disks[1], check=False)
        self.assertEqual(refused.returncode, 4, refused.stderr)
        self.assertIn("not served", refused.stderr)
        server.restart()
        self.check(server, tree)

    def test_without_another_disk_data_is_laid_out_anew(self):
        server = self.server(6)
        tree = self.fill(server)
        self.assertEqual(server.status()["pool"]["protection"], "4+2")
        server.cairn("disk", "drain", server.disks[5])
        # The last segment is counted a moment after its shard is gone.
        self.wait(
            server,
            lambda disks, rebuild: disks["disk5"]["state"] == "drained" and rebuild["segments_rewritten"],
            "the draining of a disk, whose data is laid out anew",
        )
        server.cairn("disk", "remove", server.disks[5])
        self.assertEqual(server.status()["pool"]["protection"], "3+2")
        self.check(server, tree)
        server.disks.pop()
        self.check_without(server, tree, ["disk0", "disk1"])

    def test_a_drain_can_be_cancelled_and_goes_on_over_restarts(self):
        server = self.server(7, flags=["--rebuild-rate", "1MiB"])
        tree = self.fill(server)
        server.cairn("disk", "drain", server.disks[2])
        self.assertEqual(self.states(server)["disk2"], "draining")
        server.kill()
        server.start()
        self.assertEqual(self.states(server)["disk2"], "draining")
        server.cairn("disk", "drain", "--cancel", server.disks[2])
        self.assertEqual(self.states(server)["disk2"], "ok")
        server.flags = ["--rebuild-rate", "0"]
        server.cairn("disk", "drain", server.disks[2])
        server.kill()
        server.start()
        self.wait(
            server, lambda disks, _: disks["disk2"]["state"] == "drained", "the draining of a disk"
        )
        self.check(server, tree)
        # What left is let go of: it can be unmounted, or used again.
        server.cairn("disk", "remove", server.disks[2])
        back = lambda: server.cairn("disk", "add", server.disks[2], check=False).returncode == 0
        harness.wait_until(back, MOVE_SECONDS_MAX, "the return of a disk that was removed")
        self.assertEqual(self.states(server)["disk2"], "ok")
        self.check(server, tree)

    def not_started(self):
        """A server without disks yet."""
        root = self.scratch / "pool"
        root.mkdir()
        server = harness.Server(root, 0)
        self.addCleanup(server.kill)
        return server

    def refused_start(self, server):
        """What a server says that does not start, and its exit status."""
        status = server.spawn().wait(harness.START_SECONDS_MAX)
        return status, server.log_tail()

    def test_a_pool_that_is_away_is_not_replaced_by_a_new_one(self):
        server = self.not_started()
        mounts = [server.root / f"mount{index}" for index in range(3)]
        server.disks = [mount / "data" for mount in mounts]
        server.start()
        pool = server.status()["pool"]["id"]
        tree = self.fill(server)
        self.assertEqual(server.stop(), 0)
        # As when nothing is mounted: the folders are below the mounts.
        for mount in mounts:
            mount.rename(mount.with_suffix(".away"))
            mount.mkdir()
        for flags in ([], ["--create=false"]):
            server.flags += flags
            status, said = self.refused_start(server)
            self.assertEqual(status, 1, said)
            for part in (pool, *map(str, server.disks), "mount their", f"pool-{pool}.json"):
                self.assertIn(part, said)
            self.assertEqual([list(mount.iterdir()) for mount in mounts], [[], [], []], "nothing was made")
        # Empty folders in their places are no new pool, either.
        for disk in server.disks:
            disk.mkdir()
        status, said = self.refused_start(server)
        self.assertEqual(status, 1, said)
        for mount in mounts:
            shutil.rmtree(mount)
            mount.with_suffix(".away").rename(mount)
        server.start()
        self.assertEqual(server.status()["pool"]["id"], pool)
        self.check(server, tree)
        # Who gives it up says so.
        self.assertEqual(server.stop(), 0)
        for disk in server.disks:
            shutil.rmtree(disk)
            disk.mkdir()
        (server.state_path / f"pool-{pool}.json").unlink()
        server.start()
        self.assertNotEqual(server.status()["pool"]["id"], pool)

    def test_folders_that_do_not_exist_are_made_only_if_that_is_wanted(self):
        server = self.not_started()
        server.disks = [server.root / "disk0"]
        server.flags.append("--create=false")
        status, said = self.refused_start(server)
        self.assertEqual(status, 4, said)
        self.assertIn(str(server.disks[0]), said)
        self.assertIn("--create", said)
        self.assertFalse(server.disks[0].exists())
        server.disks[0].mkdir()
        server.start()
        typo = server.root / "disk9"
        quiet = server.environment() | {"CAIRN_CREATE": "false"}
        words = [str(harness.cairn_path()), "disk", "add", str(typo), "--token-file", str(server.token_path)]
        words += ["--server", server.ready["admin"]["url"]]
        for more, want in ([], 4), (["--role", "cache", "--size", "256MiB"], 4), (["--create"], 0):
            done = subprocess.run([*words, *more], stdin=subprocess.DEVNULL, capture_output=True, text=True, env=quiet)
            self.assertEqual(done.returncode, want, done.stderr)
            if want:
                self.assertIn("--create", done.stderr)
                self.assertFalse(typo.exists())
        # The answer says what the folder is on.
        self.assertIn("its loss loses all of these", done.stdout)
        self.assertEqual(self.states(server), {"disk0": "ok", "disk9": "ok"})

    def test_a_disk_is_added_where_the_configuration_says(self):
        server = self.server(3)
        outside = self.enterContextHere(harness.scratch("outside-"))
        (server.root / "out").symlink_to(outside)
        for words in (
            ["add", outside / "new"],
            ["add", server.root / "out" / "new"],
            ["add", f"{server.root}/../../{outside.name}/new"],
            ["replace", server.disks[1], outside / "new"],
            ["add", outside / "new", "--role", "cache", "--size", "512MiB"],
        ):
            refused = server.cairn("disk", *words, check=False)
            self.assertEqual(refused.returncode, 4, refused.stderr)
            self.assertIn("disk_root", refused.stderr)
        refused = server.cairn("tier", "add", "cold", f"file://{outside}", check=False)
        self.assertNotEqual(refused.returncode, 0)
        self.assertIn("disk_root", refused.stderr)
        self.assertEqual(list(outside.iterdir()), [])
        refused = server.cairn("disk", "add", server.root / "missing" / "new", check=False)
        self.assertEqual(refused.returncode, 4, refused.stderr)
        self.assertIn("create that folder", refused.stderr)
        self.assertFalse((server.root / "missing").exists())
        # The configuration names the others itself.
        server.flags += ["--disk-root", str(outside)]
        server.restart()
        server.cairn("disk", "add", outside / "new")
        self.assertEqual(self.states(server), dict.fromkeys(("disk0", "disk1", "disk2", "new"), "ok"))

    def test_what_cannot_be_done_is_said_first(self):
        server = self.server(3, flags=["--disk-size-limit", "256MiB"])
        foreign = server.root / "foreign"
        foreign.mkdir()
        (foreign / "thesis.tex").write_text("mine")
        refused = server.cairn("disk", "add", foreign, check=False)
        self.assertEqual(refused.returncode, 4)
        self.assertIn("thesis.tex", refused.stderr)
        unknown = server.cairn("disk", "drain", "/nowhere", check=False)
        self.assertEqual(unknown.returncode, 1)
        # Mirrors on two disks would not hold what three of them do... with two copies, not with three.
        server.cairn("volume", "set", "main", "--protection", "2x")
        with libnfs.Mount(server.libnfs_url()) as mount:
            for index in range(28):
                mount.write_file(f"/{index}", content(str(index), 8 * 1024 * 1024))
        full = server.cairn("disk", "drain", server.disks[0], check=False)
        self.assertEqual(full.returncode, 4)
        self.assertIn("free there", full.stderr)
        self.assertEqual(self.states(server)["disk0"], "ok")
        one = self.server(1, name="one")
        alone = one.cairn("disk", "drain", one.disks[0], check=False)
        self.assertEqual(alone.returncode, 4)

    def smaller(self, server, name, free_bytes):
        """An empty folder with less room than the disks of the server, which all have the same limit.

        Whatever lies in a folder takes of its limit, and this is a name that makes it no used one.
        """
        folder = server.root / name
        folder.mkdir()
        with open(folder / "scrub.new", "wb") as file:
            file.truncate(SMALL_DISK_BYTES - free_bytes)
        return folder

    def replaced_with_too_small(self):
        """Six disks, well filled, of which one is lost and replaced by one that is too small; with it, the files."""
        server = self.server(6, flags=["--disk-size-limit", f"{SMALL_DISK_BYTES}", "--rebuild-rate", "1KiB"])
        files = {f"/{index}": content(str(index), 8 * 1024 * 1024) for index in range(56)}
        with libnfs.Mount(server.libnfs_url()) as mount:
            for name, data in files.items():
                mount.write_file(name, data)
        server.restart()
        small = self.smaller(server, "small", 60 * 1024 * 1024)
        # One that works is not given up for one that is too small.
        refused = server.cairn("disk", "replace", server.disks[5], small, check=False)
        self.assertEqual(refused.returncode, 4, refused.stderr)
        self.assertIn("there is no room for", refused.stderr)
        self.assertEqual(set(self.states(server)), {f"disk{index}" for index in range(6)})
        server.stop()
        shutil.rmtree(server.disks[5])
        server.start()
        server.cairn("disk", "replace", server.disks[5], small)
        # Said before anything is moved.
        told = harness.wait_until(lambda: self.lack(server), 10, "a word of how much room is missing")
        self.assertRegex(told, r"there is no room for [0-9.]+ MiB: .* have room for [0-9.]+ MiB of [0-9.]+ MiB")
        self.assertEqual(self.disks(server)[1]["shards_moved"], 0)
        self.assertIn("there is no room for", server.cairn("disk", "list").stdout)
        server.disks[5:] = [small]
        server.flags[-1] = "0"
        server.restart()
        # What fits is moved, and it is still said.
        def is_half_done():
            disks, rebuild = self.disks(server)
            (shards,) = [disk["shards"] for disk in disks if disk["label"] == str(small)]
            return shards > 0 and rebuild["shards_left"] > 0 and self.lack(server)

        harness.wait_until(is_half_done, MOVE_SECONDS_MAX, "what fits")
        self.assertEqual(server.status()["health"], "degraded")
        return server, files

    def lack(self, server):
        problems = self.disks(server)[1]["problems"]
        return next((problem for problem in problems if "there is no room for" in problem), None)

    def check_rebuilt(self, server, files, count):
        self.wait(
            server,
            lambda disks, rebuild: disks["count"] == count and rebuild["shards_left"] == 0,
            "the end of the rebuild",
        )
        harness.wait_until(lambda: server.is_well(), MOVE_SECONDS_MAX, "good health")
        self.assertEqual(self.disks(server)[1]["problems"], [])
        server.restart()
        with libnfs.Mount(server.libnfs_url()) as mount:
            for name, data in files.items():
                self.assertTrue(mount.read_file(name) == data, name)

    def test_a_replacement_that_is_too_small_is_told_first_and_another_disk_helps(self):
        server, files = self.replaced_with_too_small()
        server.cairn("disk", "add", server.root / "another")
        self.check_rebuilt(server, files, 7)

    def test_a_replacement_that_is_too_small_is_enough_once_data_is_deleted(self):
        server, files = self.replaced_with_too_small()
        with libnfs.Mount(server.libnfs_url()) as mount:
            for name in list(files)[: len(files) * 2 // 3]:
                mount.unlink(name)
                del files[name]
        self.check_rebuilt(server, files, 6)

    def test_an_empty_disk_that_a_volume_needs_for_its_protection_stays(self):
        """Without it the volume could not write anything any more."""
        server = self.server(1)
        new = server.root / "new"
        server.cairn("disk", "add", new)
        server.cairn("volume", "create", "scratch", "--protection", "2x")
        server.cairn("export", "set", "scratch", "--client", "127.0.0.1", "--squash", "none")
        for flags in ([], ["--force"]):
            refused = server.cairn("disk", "remove", new, *flags, check=False)
            self.assertEqual(refused.returncode, 4, refused.stderr)
            self.assertIn("volume scratch", refused.stderr)
        self.assertEqual(self.states(server), {"disk0": "ok", "new": "ok"})
        server.cairn("volume", "set", "scratch", "--protection", "none")
        server.cairn("disk", "remove", new)
        self.assertEqual(self.states(server), {"disk0": "ok"})
        path = self.scratch / "file"
        path.write_bytes(content("file", 300_000))
        url = f"nfs://127.0.0.1:{server.port}/scratch/file"
        server.cairn("cp", "-q", path, url)
        self.assertEqual(server.cairn("cat", url, text=False).stdout, path.read_bytes())

    def test_a_paused_scrub_lets_go_of_a_disk_that_leaves(self):
        """It was kept open, and could neither be unmounted nor added again, until the scrub went on."""
        server = self.server(4)
        tree = self.fill(server)
        # What takes more records is not looked at.
        server.restart()
        status = lambda: json.loads(server.cairn("scrub", "status", "--json").stdout)
        server.cairn("scrub", "start", "--rate", "1MiB")
        harness.wait_until(lambda: status()["done_bytes"] > 0, MOVE_SECONDS_MAX, "the begin of a scrub")
        server.cairn("scrub", "pause")
        left = server.disks[3]
        self.drain(server, left)
        server.cairn("disk", "remove", left)
        added = lambda: server.cairn("disk", "add", left, check=False).returncode == 0
        harness.wait_until(added, OPEN_AGAIN_SECONDS_MAX, "the removed disk as a new one")
        self.assertEqual(status()["stage"], "paused")
        server.cairn("scrub", "start", "--rate", "0")
        harness.wait_until(lambda: status()["stage"] == "done", MOVE_SECONDS_MAX, "the end of a scrub")
        self.assertEqual(status()["damaged"], 0)
        self.check(server, tree)

    def test_an_old_copy_of_a_disk_is_recognised(self):
        server = self.server(6)
        tree = self.fill(server)
        server.stop()
        image = self.scratch / "image"
        shutil.copytree(server.disks[3], image)
        server.start()
        second = self.fill(server, "second", seed=2)
        server.restart()
        server.stop()
        shutil.rmtree(server.disks[3])
        image.rename(server.disks[3])
        server.start()
        disks = {disk["label"]: disk for disk in self.disks(server)[0]}
        stale = disks[str(server.disks[3])]
        self.assertEqual(stale["state"], "missing")
        self.assertIn("old copy", stale["problem"])
        self.check(server, tree)
        self.check(server, second)
        refused = server.cairn("disk", "replace", server.disks[3], server.disks[3], check=False)
        self.assertIn("--wipe", refused.stderr)
        # It is a disk of the pool, which only its replacement may empty.
        refused = server.cairn("disk", "add", "--wipe", server.disks[3], check=False)
        self.assertEqual(refused.returncode, 4, refused.stderr)
        self.assertIn("replace", refused.stderr)
        server.cairn("disk", "replace", "--wipe", server.disks[3], server.disks[3])
        self.wait(
            server,
            lambda disks, rebuild: disks["count"] == 6 and rebuild["shards_left"] == 0,
            "the rebuild of a disk",
        )
        self.assertEqual(set(self.states(server).values()), {"ok"})
        self.check_without(server, second, ["disk1", "disk4"])

    def test_a_lost_disk_is_rebuilt_by_itself_where_there_is_another(self):
        server = self.server(8, flags=["--rebuild-delay", "0"])
        server.cairn("volume", "set", "main", "--protection", "2x")
        tree = self.fill(server)
        server.kill()
        shutil.rmtree(server.disks[6])
        server.start()
        self.wait(
            server,
            lambda disks, rebuild: disks["disk6"]["shards"] == 0,
            "the rebuild of a lost disk",
        )
        self.check(server, tree)
        server.cairn("disk", "remove", server.disks[6])
        server.disks.pop(6)
        self.check_without(server, tree, ["disk2"])

    def test_a_volume_that_could_not_be_opened_is_tried_again(self):
        server = self.server(1)
        tree = self.fill(server)
        server.stop()
        (folder,) = (server.disks[0] / "volumes").iterdir()
        # As if somebody had moved it, or it could not be read.
        aside = folder.rename(server.root / "aside")
        server.start()

        def main():
            return next(volume for volume in server.status()["volumes"] if volume["name"] == "main")

        self.assertFalse(main()["serving"])
        self.assertTrue(main()["problem"])

        def scrub():
            return json.loads(server.cairn("scrub", "status", "--json").stdout)

        server.cairn("scrub", "start", "--rate", "0")
        harness.wait_until(lambda: scrub()["errors"], 30, "a scrub that waits for the volume")
        aside.rename(folder)
        harness.wait_until(lambda: main()["serving"], OPEN_AGAIN_SECONDS_MAX, "the volume")
        self.assertFalse(main().get("problem"))
        self.check(server, tree)
        harness.wait_until(lambda: scrub()["stage"] == "done", MOVE_SECONDS_MAX, "the end of a scrub")
        self.assertGreater(scrub()["records"], 0)

    def test_a_volume_that_one_disk_missed_comes_back_with_the_other(self):
        server = self.server(2)
        first, second = server.disks
        away = lambda disk: disk.with_suffix(".away")
        server.stop()
        # Made without the first disk, which then goes on alone, and makes and deletes a volume of the same id.
        first.rename(away(first))
        server.start()
        server.cairn("volume", "create", "kept")
        server.cairn("export", "set", "kept", "--client", "127.0.0.1", "--squash", "none")
        path = self.scratch / "file"
        path.write_bytes(content("file", 300_000))
        url = lambda: f"nfs://127.0.0.1:{server.port}/kept/file"
        server.cairn("cp", "-q", path, url())
        server.stop()
        away(first).rename(first)
        second.rename(away(second))
        server.start()
        server.cairn("volume", "create", "other")
        server.cairn("volume", "delete", "other", "--yes")
        for _ in range(4):
            server.restart()
        server.stop()
        away(second).rename(second)
        for _ in range(2):
            server.start()
            self.assertEqual(server.cairn("cat", url(), text=False).stdout, path.read_bytes())
            server.stop()
        self.assertIn("the volume is back", server.log_path.read_text())

    def test_data_moves_to_a_disk_that_was_added(self):
        server = self.server(3, spread.SIZE_FLAGS)
        files = {f"/file{number}": content(number, spread.FILE_BYTES) for number in range(spread.FILES)}
        with libnfs.Mount(server.libnfs_url()) as mount:
            for name, data in files.items():
                mount.write_file(name, data)
        self.assertEqual(spread.shown(server.cairn)["stage"], "even")
        server.cairn("disk", "spread", "--pause")
        added = server.root / "added"
        server.cairn("disk", "add", added)
        # A pause lasts over a restart.
        server.restart()
        paused = spread.shown(server.cairn)
        self.assertEqual((paused["stage"], paused["moved_bytes"]), ("paused", 0))
        self.assertGreater(paused["most_permille"] - paused["least_permille"], 100)
        self.assertEqual(server.metrics()["cairn_spread_paused"], 1)
        server.cairn("disk", "spread", "--resume")
        moved = lambda: spread.shown(server.cairn)["moved_bytes"] > 0
        harness.wait_until(moved, spread.SPREAD_SECONDS_MAX, "that something moves")
        server.kill()
        server.start()
        harness.wait_until(lambda: spread.is_even(server.cairn), spread.SPREAD_SECONDS_MAX, "even disks")
        # Even disks stay as they are.
        before = spread.shards(server.cairn)
        self.assertGreater(min(before.values()), 0, before)
        server.restart()
        self.assertEqual(spread.shards(server.cairn), before)
        with libnfs.Mount(server.libnfs_url()) as mount:
            for name, data in files.items():
                self.assertTrue(mount.read_file(name) == data, name)
