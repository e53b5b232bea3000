"""Disks that fail, hang, are slow, or come back: noticed, taken out and rebuilt from, with clients at work.

The server is the program that is shipped; `faults.c`, loaded before the C library, makes its disks so.
"""

import json
import random
import shutil
import subprocess
import threading
import time
import unittest
from pathlib import Path

from lib import harness
from lib.background import Background
from lib.worlds import DisksTest, blocks, content, flip_bits

# An operation without an answer is given up after so long here, instead of 30 s: the long time is judged in simulated
# time (the simulator, and `watch` in the crate pool).
HANG_AFTER_SECONDS = 5
# Many times that, for a busy machine.
NOTICE_SECONDS_MAX = 60
MOVE_SECONDS_MAX = 180
# Who reads goes without a disk that answers nothing for 1 s, which is looked at four times a second.
SILENT_SECONDS_MAX = 12
# Longer than any disk hangs that is to come back by itself.
PATIENT_SECONDS = 60
# A disk that hangs is known after 2 s, and asking takes a moment, too.
KNOWN_SECONDS_MAX = 4
# What is written while a disk hangs, and how long that may take.
COMMIT_BYTES = 64 << 20
COMMIT_SECONDS_MAX = 4
# What a client waits while a disk hangs and its volume is opened on another one.
PACE_SECONDS = 0.1
STALL_SECONDS_MAX = 120
# What all volumes of a disk that hangs wait together for being opened again.
TOGETHER_SECONDS_MAX = 60
VOLUMES_COUNT = 8
DISK_COUNT = 6
READERS_COUNT = 12
READS_COUNT = 5


def build_faults(folder):
    """Compiles faults.c; skips the test where there is no compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise unittest.SkipTest("no C compiler")
    library = folder / "faults.so"
    source = Path(__file__).with_name("faults.c")
    subprocess.run(
        [compiler, "-O2", "-Wall", "-Werror", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True
    )
    return library


class FaultyServer(harness.Server):
    """A server whose disks do what a file says."""

    def __init__(self, root, library, disks, flags, hang_after=HANG_AFTER_SECONDS):
        config = root / "threads.toml"
        # io_uring would go past the library.
        config.write_text(f'disk_io = "threads"\nhang_after = {hang_after}\n')
        super().__init__(root, disks, ["--config", config, *flags])
        self.library = library
        self.rules = root / "faults"
        self.rules.write_text("")

    def environment(self):
        return super().environment() | {
            "LD_PRELOAD": str(self.library),
            "CAIRN_FAULTS": str(self.rules),
        }

    def argv(self):
        return [str(argument) for argument in super().argv()]

    def meets(self, *rules):
        """From now on: `("fail" | "hang" | "slow" | "ro", disk, ...)`."""
        lines = [" ".join([what, f"{disk}/", *map(str, more)]) + "\n" for what, disk, *more in rules]
        made = self.rules.with_suffix(".new")
        made.write_text("".join(lines))
        made.rename(self.rules)


class Clients(Background):
    """Clients that write and read all the time, and keep what they were told is stored."""

    def __init__(self, server, scratch, volume="main"):
        super().__init__()
        self.server, self.scratch, self.volume = server, scratch, volume
        self.stored, self.problems, self.longest = {}, [], 0.0

    def url(self, name):
        return f"nfs://127.0.0.1:{self.server.port}/{self.volume}/{name}"

    def ask(self, *arguments, **options):
        begun = time.monotonic()
        done = self.server.cairn(*arguments, check=False, **options)
        self.longest = max(self.longest, time.monotonic() - begun)
        if done.returncode != 0:
            self.problems.append(f"{arguments}: {done.stderr}")
        return done

    def work(self):
        rng = random.Random(self.volume)
        index = 0
        while not self.stopping.is_set():
            name = f"{self.volume}-{index}"
            data = content(name, rng.choice([1, 5_000, 200_000, 3_000_000]))
            path = self.scratch / name
            path.write_bytes(data)
            if self.ask("cp", "-q", path, self.url(name)).returncode == 0:
                self.stored[name] = data
            path.unlink()
            index += 1
            self.verify(rng.sample(sorted(self.stored), min(2, len(self.stored))))
            # As fast as they can they would keep the processors from the other tests, and learn no more.
            self.stopping.wait(PACE_SECONDS)

    def verify(self, names):
        for name in names:
            got = self.ask("cat", self.url(name), text=False)
            if got.returncode == 0 and got.stdout != self.stored[name]:
                self.problems.append(f"{name}: other bytes")

    def wait_for_more(self, count):
        """Until so many more files are stored."""
        enough = len(self.stored) + count
        harness.wait_until(lambda: len(self.stored) >= enough, STALL_SECONDS_MAX, "the work of clients")


class FaultyDisks(DisksTest):
    def setUp(self):
        super().setUp()
        self.library = build_faults(self.scratch)

    def server(self, flags=(), disks=DISK_COUNT, hang_after=HANG_AFTER_SECONDS):  # type: ignore[override]
        root = self.scratch / "pool"
        root.mkdir()
        flags = ["--rebuild-delay", "0", *flags]
        return self.enterContextHere(FaultyServer(root, self.library, disks, flags, hang_after))

    def store(self, server, count, len_bytes):
        """Stores a folder `tree` of so many files; returns their contents by name."""
        files = {f"name-{index}": content(str(index), len_bytes) for index in range(count)}
        tree = self.scratch / "tree"
        tree.mkdir()
        for name, data in files.items():
            (tree / name).write_bytes(data)
        server.cairn("cp", "-r", "-q", tree, server.url("tree"))
        return files

    def read(self, server, files, problems, names):
        for name in names:
            got = server.cairn("cat", server.url(f"tree/{name}"), check=False, text=False)
            if got.stdout != files[name]:
                problems.append(f"{name}: {got.stderr or 'other bytes'}")

    def join(self, readers):
        for reader in readers:
            reader.join(STALL_SECONDS_MAX)
            self.assertFalse(reader.is_alive(), "a client still waits")

    def finish(self, server, clients):
        """All that was stored is there, also without any two disks."""
        self.assertEqual(clients.problems, [])
        self.assertGreater(len(clients.stored), 4)
        with self.measured():
            self.assertLess(clients.longest, STALL_SECONDS_MAX)
        server.meets()
        server.restart()
        clients.verify(sorted(clients.stored))
        server.stop()
        labels = [disk for disk in server.disks if disk.exists()]
        for pair in (labels[:2], labels[2:4], labels[-2:]):
            for disk in pair:
                disk.rename(disk.with_suffix(".away"))
            server.start()
            clients.verify(sorted(clients.stored))
            server.stop()
            for disk in pair:
                disk.with_suffix(".away").rename(disk)
        self.assertEqual(clients.problems, [])

    def goes_bad(self, index, rule, seconds=NOTICE_SECONDS_MAX, problem=""):
        """A disk goes bad under load, is noticed, replaced, and can be thrown away."""
        server = self.server()
        bad = server.disks[index]
        with Clients(server, self.scratch) as clients:
            clients.wait_for_more(3)
            begun = time.monotonic()
            server.meets(rule(bad))
            self.wait_for(server, bad.name, "failed", seconds)
            noticed = time.monotonic() - begun
            disk = self.disks(server)[0][bad.name]
            self.assertIn(problem, disk["problem"])
            # A volume whose metadata failed with it is not served until it is opened on others.
            degraded = lambda: server.status()["health"] == "degraded"
            harness.wait_until(degraded, STALL_SECONDS_MAX, "that the pool is degraded, and nothing else")
            self.assertEqual(server.metrics()[f'cairn_disk_healthy{{disk="{disk["id"]}",label="{bad}"}}'], 0)
            clients.wait_for_more(3)
            new = server.root / "new"
            server.cairn("disk", "replace", bad, new)
            rebuilt = lambda: bad.name not in self.disks(server)[0] and not self.disks(server)[1]["shards_left"]
            harness.wait_until(rebuilt, MOVE_SECONDS_MAX, "the rebuild")
            clients.wait_for_more(2)
            disks, rebuild = self.disks(server)
            self.assertEqual({disk["state"] for disk in disks.values()}, {"ok"})
            self.assertEqual(rebuild["lost_bytes"], 0)
            self.assertTrue(server.is_well(), server.status()["warnings"])
        print(f"{self.id()}: noticed after {noticed:.1f} s, the longest wait of a client {clients.longest:.1f} s, "
              f"{len(clients.stored)} files")
        # What is on the bad disk is nobody's any more.
        server.meets()
        server.stop()
        shutil.rmtree(bad)
        server.disks[index] = new
        server.start()
        self.finish(server, clients)
        return server

    def test_a_disk_that_fails(self):
        self.goes_bad(3, lambda disk: ("fail", disk))

    def test_the_disk_of_the_metadata_fails(self):
        self.goes_bad(0, lambda disk: ("fail", disk))

    def test_a_disk_that_hangs(self):
        self.goes_bad(3, lambda disk: ("hang", disk), problem="no answer")

    def test_reads_do_not_wait_for_a_disk_that_hangs(self):
        server = self.server(["--memory-limit", "256MiB"])
        files = self.store(server, 60, 400_000)
        longest, degraded_count = 0.0, 0
        # Not the one of the metadata. What a disk has of these files is data or parity, or nothing.
        for disk in server.disks[3:]:
            server.restart()
            # Names are not to be read from a disk any more.
            server.cairn("ls", "-l", server.url("tree"))
            server.meets(("hang", disk))
            for name, data in files.items():
                begun = time.monotonic()
                got = server.cairn("cat", server.url(f"tree/{name}"), text=False)
                longest = max(longest, time.monotonic() - begun)
                self.assertTrue(got.stdout == data, name)
            degraded_count += server.metrics()["cairn_store_degraded_reads_total"]
            server.meets()
        print(f"{self.id()}: the longest wait of a reader {longest:.1f} s")
        self.assertGreater(degraded_count, 0)
        with self.measured():
            self.assertLess(longest, SILENT_SECONDS_MAX)
        server.stop()

    def test_the_disk_of_the_metadata_hangs(self):
        self.goes_bad(0, lambda disk: ("hang", disk), problem="no answer")

    def test_names_that_are_not_in_memory_while_the_disk_of_the_metadata_hangs(self):
        """Whoever reads them waits in a call to that disk; there are more of them than threads that serve clients."""
        server = self.server()
        files = self.store(server, 400, 9_000)
        # From here on nothing is in memory.
        server.restart()
        server.meets(("hang", server.disks[0]))
        problems: list = []
        begun = time.monotonic()
        names = [list(files)[first::READERS_COUNT][:READS_COUNT] for first in range(READERS_COUNT)]
        readers = [threading.Thread(target=self.read, args=(server, files, problems, some)) for some in names]
        for reader in readers:
            reader.start()
        self.wait_for(server, "disk0", "failed", NOTICE_SECONDS_MAX)
        self.join(readers)
        self.assertEqual(problems, [])
        print(f"{self.id()}: all was read after {time.monotonic() - begun:.1f} s")
        server.meets()
        server.stop()

    def test_a_disk_with_copies_of_the_metadata_hangs(self):
        self.goes_bad(1, lambda disk: ("hang", disk), problem="no answer")

    def test_a_disk_that_is_a_hundred_times_slower(self):
        self.goes_bad(4, lambda disk: ("slow", disk, 500), seconds=240, problem="times as long as on the other disks")

    def test_all_volumes_leave_a_disk_that_fails(self):
        server = self.server()
        server.cairn("volume", "create", "second")
        server.cairn("export", "set", "second", "--client", "127.0.0.1", "--squash", "none")
        first = Clients(server, self.scratch)
        second = Clients(server, self.scratch, "second")
        with first, second:
            first.wait_for_more(2)
            second.wait_for_more(2)
            server.meets(("fail", server.disks[0]))
            self.wait_for(server, "disk0", "failed", NOTICE_SECONDS_MAX)
            first.wait_for_more(3)
            second.wait_for_more(3)
        self.assertEqual(second.problems, [])
        self.finish(server, first)
        server.start()
        second.verify(sorted(second.stored))
        self.assertEqual(second.problems, [])

    def test_all_volumes_leave_a_disk_that_hangs_at_a_time(self):
        """None of them closes: what was changed last is to be written to that disk first."""
        server = self.server()
        names = [f"volume-{index}" for index in range(VOLUMES_COUNT)]
        path = self.scratch / "file"
        data = content("file", 5_000)
        path.write_bytes(data)
        url = lambda name: f"nfs://127.0.0.1:{server.port}/{name}/file"
        for name in names:
            server.cairn("volume", "create", name)
            server.cairn("export", "set", name, "--client", "127.0.0.1", "--squash", "none")
            server.cairn("cp", "-q", path, url(name))
        server.meets(("hang", server.disks[0]))
        self.wait_for(server, "disk0", "failed", NOTICE_SECONDS_MAX)
        begun = time.monotonic()
        # Until then they are served from memory, as long as that has what is wanted.
        opened = lambda: server.log_path.read_text().count("metadata recovered") > VOLUMES_COUNT
        harness.wait_until(opened, TOGETHER_SECONDS_MAX, "the opening of all volumes on other disks")
        print(f"{self.id()}: all were opened {time.monotonic() - begun:.1f} s after the disk was given up")
        for name in names:
            server.cairn("cp", "-q", path, url(name) + "-2")
            for there in (url(name), url(name) + "-2"):
                self.assertEqual(server.cairn("cat", there, text=False).stdout, data)
        server.meets()
        server.stop()

    def test_a_volume_is_not_opened_on_a_disk_that_was_just_added_and_has_nothing_of_it(self):
        server = self.server(disks=1)
        path = self.scratch / "file"
        data = content("file", 5_000)
        path.write_bytes(data)
        server.cairn("cp", "-q", path, server.url("file"))
        self.assertEqual(server.metrics()["cairn_volumes_failed"], 0)
        server.meets(("fail", server.disks[0]))
        # It waits for an answer until the server has been started anew.
        waiting = server.spawn_cairn("cp", "-q", path, server.url("second"))
        self.addCleanup(waiting.wait)
        self.addCleanup(waiting.kill)
        told = lambda: "its metadata failed" in server.status()["volumes"][0].get("problem", "")
        harness.wait_until(told, NOTICE_SECONDS_MAX, "that the status tells of it")
        self.assertEqual(server.metrics()["cairn_volumes_failed"], 1)
        server.meets()
        server.cairn("disk", "add", server.root / "new")
        added = server.metrics()["cairn_uptime_seconds"]
        looked = lambda: server.metrics()["cairn_uptime_seconds"] > added + 3
        harness.wait_until(looked, NOTICE_SECONDS_MAX, "some looks at volumes that are to be opened again")
        self.assertTrue(told(), server.status()["volumes"])
        server.restart()
        self.assertEqual(server.cairn("cat", server.url("file"), text=False).stdout, data)

    def test_a_disk_that_comes_back_is_brought_up_to_date(self):
        server = self.server()
        with Clients(server, self.scratch) as clients:
            clients.wait_for_more(3)
            server.meets(("fail", server.disks[2]))
            self.wait_for(server, "disk2", "failed", NOTICE_SECONDS_MAX)
            # It misses this.
            clients.wait_for_more(5)
        server.meets()
        server.restart()
        disks, _ = self.disks(server)
        self.assertEqual({disk["state"] for disk in disks.values()}, {"ok"})
        server.cairn("scrub", "start", "--rate", "0")
        done = lambda: json.loads(server.cairn("scrub", "status", "--json").stdout)["stage"] == "done"
        harness.wait_until(done, MOVE_SECONDS_MAX, "the end of a scrub")
        self.finish(server, clients)

    def test_a_disk_that_hangs_is_known_at_once_and_comes_back_by_itself(self):
        server = self.server(hang_after=PATIENT_SECONDS)
        files = self.store(server, 10, 900_000)
        large = self.scratch / "large"
        data = content("large", COMMIT_BYTES)
        large.write_bytes(data)
        for turn in range(2):
            begun = time.monotonic()
            server.meets(("hang", server.disks[3]))
            self.wait_for(server, "disk3", "unresponsive", NOTICE_SECONDS_MAX)
            with self.measured():
                self.assertLess(time.monotonic() - begun, KNOWN_SECONDS_MAX)
            status = server.status()
            self.assertEqual(status["health"], "degraded")
            self.assertIn("disk_troubled", [warning["kind"] for warning in status["warnings"]])
            begun = time.monotonic()
            server.cairn("cp", "-q", large, server.url(f"large-{turn}"))
            with self.measured():
                self.assertLess(time.monotonic() - begun, COMMIT_SECONDS_MAX)
            problems: list = []
            self.read(server, files, problems, list(files))
            self.assertEqual(problems, [])
            server.meets()
            self.wait_for(server, "disk3", "ok", NOTICE_SECONDS_MAX)
            self.assertEqual(server.cairn("cat", server.url(f"large-{turn}"), text=False).stdout, data)
        self.no_wrong_bytes(server)

    def test_disks_that_take_nothing_count_as_lost(self):
        server = self.server()
        files = self.store(server, 20, 90_000)
        health = lambda: server.status()["health"]
        # At the same time, so that a cause in common is assumed and none is put out, nor rebuilt.
        for indexes, want in (((3, 4), "degraded"), ((3, 4, 5), "failed")):
            server.meets(*(("ro", server.disks[index]) for index in indexes))
            states = lambda indexes=indexes: {self.disks(server)[0][f"disk{index}"]["state"] for index in indexes}
            harness.wait_until(lambda: states() == {"failing"}, NOTICE_SECONDS_MAX, "that they take nothing")
            harness.wait_until(lambda want=want: health() == want, NOTICE_SECONDS_MAX, f"the verdict {want}")
        # All that is there is read nevertheless.
        problems: list = []
        self.read(server, files, problems, list(files))
        self.assertEqual(problems, [])
        server.meets()
        harness.wait_until(lambda: states() == {"ok"}, MOVE_SECONDS_MAX, "that they have proven themselves")

    def test_a_disk_is_taken_back_without_a_restart(self):
        server = self.server()
        with Clients(server, self.scratch) as clients:
            clients.wait_for_more(3)
            server.meets(("hang", server.disks[3]))
            self.wait_for(server, "disk3", "failed", NOTICE_SECONDS_MAX)
            clients.wait_for_more(5)
            refused = server.cairn("disk", "retry", server.disks[3], check=False)
            self.assertEqual(refused.returncode, 4, refused.stderr)
            self.assertIn("has not answered", refused.stderr)
            self.assertEqual(self.disks(server)[0]["disk3"]["state"], "failed")
            server.meets()
            self.take_back(server, server.disks[3])
            self.wait_for(server, "disk3", "ok", MOVE_SECONDS_MAX)
            clients.wait_for_more(5)
            again = server.cairn("disk", "retry", server.disks[3], check=False)
            self.assertEqual(again.returncode, 4, again.stderr)
            self.assertIn("is in use", again.stderr)
        self.no_wrong_bytes(server)
        self.finish(server, clients)

    def test_a_disk_that_was_given_up_comes_back_by_itself(self):
        server = self.server()
        with Clients(server, self.scratch) as clients:
            clients.wait_for_more(3)
            server.meets(("hang", server.disks[3]))
            self.wait_for(server, "disk3", "failed", NOTICE_SECONDS_MAX)
            self.assertIn("when it has proven that it answers again", self.disks(server)[0]["disk3"]["problem"])
            clients.wait_for_more(5)
            server.meets()
            self.wait_for(server, "disk3", "ok", MOVE_SECONDS_MAX)
            clients.wait_for_more(5)
        told = lambda: json.loads(server.cairn("events", "--json", "--limit", "1000", "--subject", "disk3").stdout)
        stages = lambda: [one["stage"] for one in reversed(told()["entries"]) if one["kind"] == "disk_failed"]
        harness.wait_until(lambda: stages() == ["began", "ended"], NOTICE_SECONDS_MAX, "that its return is told")
        self.no_wrong_bytes(server)
        self.finish(server, clients)

    def test_a_disk_that_gave_wrong_bytes_waits_for_an_operator_when_it_hangs(self):
        server = self.server()
        files = self.store(server, 1, 3_000_000)
        (data,) = files.values()
        server.stop()
        bad = next(disk for disk in server.disks[3:] if flip_bits(disk, blocks(data), 1))
        server.start()
        problems: list = []
        self.read(server, files, problems, list(files))
        self.assertEqual(problems, [])
        server.cairn("scrub", "start", "--rate", "0")
        blamed = lambda: self.disks(server)[0][bad.name]["checksum_errors"] > 0
        harness.wait_until(blamed, MOVE_SECONDS_MAX, "that the wrong bytes are found")
        server.meets(("hang", bad))
        self.wait_for(server, bad.name, "failed", NOTICE_SECONDS_MAX)
        self.assertIn("`cairn disk retry` takes it back", self.disks(server)[0][bad.name]["problem"])
        server.meets()
        taken = lambda: server.cairn("disk", "retry", bad, check=False).returncode == 0
        harness.wait_until(taken, NOTICE_SECONDS_MAX, "that the disk is taken back")
        self.wait_for(server, bad.name, "ok", MOVE_SECONDS_MAX)

    def test_changes_of_the_pool_do_not_wait_for_a_disk_that_hangs(self):
        server = self.server(hang_after=PATIENT_SECONDS)
        server.meets(("hang", server.disks[3]))
        for name in ("second", "third"):
            begun = time.monotonic()
            server.cairn("volume", "create", name)
            with self.measured():
                self.assertLess(time.monotonic() - begun, SILENT_SECONDS_MAX)
        server.meets()
        self.wait_for(server, "disk3", "ok", NOTICE_SECONDS_MAX)
        server.restart()
        names = [volume["name"] for volume in server.status()["volumes"]]
        self.assertEqual(sorted(names), ["main", "second", "third"])

    def test_a_disk_that_hangs_at_the_start_is_done_without(self):
        server = self.server()
        files = self.store(server, 40, 9_000)
        for index in (3, 0):
            server.stop()
            server.meets(("hang", server.disks[index]))
            begun = time.monotonic()
            server.start(NOTICE_SECONDS_MAX)
            problems: list = []
            self.read(server, files, problems, list(files))
            self.assertEqual(problems, [])
            print(f"{self.id()}: without disk{index} all was read after {time.monotonic() - begun:.1f} s")
            self.assertIn(f"{HANG_AFTER_SECONDS} s", self.disks(server)[0][f"disk{index}"]["problem"])
            # Its threads may wait for ever.
            server.kill()
            server.meets()
            server.start()

    def test_an_added_disk_that_hangs_at_the_start_with_its_lock_is_done_without(self):
        server = self.server(disks=1)
        added = [server.root / f"added{index}" for index in range(3)]
        for disk in added:
            server.cairn("disk", "add", disk)
        files = self.store(server, 10, 9_000)
        server.stop()
        # It is looked at before the others are found, and not once more when they are: it has its own lock then.
        server.meets(("hang", added[0] / "probe.tmp"))
        server.start(NOTICE_SECONDS_MAX)
        problems: list = []
        self.read(server, files, problems, list(files))
        self.assertEqual(problems, [])
        disks, _ = self.disks(server)
        self.assertNotEqual(disks["added0"]["state"], "ok")
        self.assertEqual([disks[name]["state"] for name in ("added1", "added2")], ["ok", "ok"])
        server.kill()
        server.meets()
        server.start()

    def test_a_start_without_enough_disks_says_so_although_they_hang(self):
        server = self.server()
        server.stop()
        server.meets(*(("hang", disk) for disk in server.disks[:3]))
        server.process = server.spawn()
        self.assertEqual(server.process.wait(NOTICE_SECONDS_MAX), 1, server.log_tail())
        self.assertIn("did not answer", server.log_tail())

    def test_a_stall_of_all_disks_puts_out_no_more_than_can_be_lost(self):
        server = self.server()
        files = self.store(server, 20, 90_000)
        server.meets(*(("hang", disk) for disk in server.disks))
        failed = lambda: [name for name, disk in self.disks(server)[0].items() if disk["state"] == "failed"]
        harness.wait_until(failed, NOTICE_SECONDS_MAX, "the end of the patience with some disks")
        self.assertEqual(len(failed()), 2)
        server.meets()
        problems: list = []
        self.read(server, files, problems, list(files))
        self.assertEqual(problems, [])
        harness.wait_until(lambda: not failed(), MOVE_SECONDS_MAX, "that they are taken back")
        server.restart()
        self.assertEqual(failed(), [])
        self.read(server, files, problems, list(files))
        self.assertEqual(problems, [])

    def test_a_disk_that_hangs_when_those_that_failed_are_rebuilt(self):
        """As many are out as may be lost, and nothing is on them any more: so another one may be lost."""
        server = self.server()
        server.cairn("volume", "set", "main", "--protection", "2x")
        files = self.store(server, 20, 90_000)
        rules = []
        for disk in server.disks[3:5]:
            rules.append(("fail", disk))
            server.meets(*rules)
            self.wait_for(server, disk.name, "failed", NOTICE_SECONDS_MAX)
            rebuilt = lambda: self.disks(server)[0][disk.name]["shards"] == 0
            harness.wait_until(rebuilt, MOVE_SECONDS_MAX, "the rebuild")
        server.meets(*rules, ("hang", server.disks[5]))
        self.wait_for(server, "disk5", "failed", NOTICE_SECONDS_MAX)
        problems: list = []
        self.read(server, files, problems, list(files))
        self.assertEqual(problems, [])

    def test_a_volume_is_opened_again_while_data_is_moved(self):
        server = self.server(["--rebuild-rate", "128KiB"])
        with Clients(server, self.scratch) as clients:
            clients.wait_for_more(3)
            self.store(server, 30, 3_000_000)
            server.cairn("disk", "replace", server.disks[5], server.root / "new")
            moving = lambda: self.disks(server)[1]["shards_left"] > 0
            harness.wait_until(moving, NOTICE_SECONDS_MAX, "data that is moved")
            server.meets(("fail", server.disks[0]))
            clients.wait_for_more(3)
            self.assertTrue(moving(), "it was over too soon to tell anything")
        self.assertEqual(clients.problems, [])

    def test_a_disk_that_hangs_while_it_is_emptied_holds_up_nothing(self):
        server = self.server()
        self.store(server, 40, 90_000)
        bad = server.disks[5]
        server.cairn("disk", "drain", bad)
        self.wait_for(server, bad.name, "drained", MOVE_SECONDS_MAX)
        server.meets(("slow", bad, 1000))
        remove = threading.Thread(target=server.cairn, args=("disk", "remove", bad), kwargs={"check": False})
        remove.start()
        gone = lambda: bad.name not in self.disks(server)[0]
        harness.wait_until(gone, MOVE_SECONDS_MAX, "the draining of a disk")
        server.meets(("hang", bad))
        begun = time.monotonic()
        server.cairn("volume", "create", "second")
        with self.measured():
            self.assertLess(time.monotonic() - begun, NOTICE_SECONDS_MAX)
        server.meets()
        remove.join(STALL_SECONDS_MAX)
        self.assertFalse(remove.is_alive())

    def test_a_folder_that_hangs_is_not_added_and_holds_up_nothing(self):
        server = self.server()
        new = server.root / "new"
        new.mkdir()
        server.meets(("hang", new))
        refused = server.cairn("disk", "add", new, check=False, timeout=NOTICE_SECONDS_MAX)
        self.assertEqual(refused.returncode, 4, refused.stderr)
        self.assertIn("did not answer", refused.stderr)
        # Whoever tries again, and again, does not take a thread each time.
        for _ in range(20):
            refused = server.cairn("disk", "add", new, check=False, timeout=NOTICE_SECONDS_MAX)
            self.assertEqual(refused.returncode, 4, refused.stderr)
            self.assertIn("still does not answer an earlier try", refused.stderr)
        server.cairn("volume", "create", "second")
        self.assertNotIn("new", self.disks(server)[0])
        server.meets()
        # Whoever looked at it in vain lets go of it first.
        added = lambda: server.cairn("disk", "add", new, check=False).returncode == 0
        harness.wait_until(added, NOTICE_SECONDS_MAX, "the new disk")
        self.wait_for(server, "new", "ok", MOVE_SECONDS_MAX)
        server.stop()

    def test_another_drive_in_the_place_of_a_drained_disk_is_left_alone(self):
        server = self.server()
        with Clients(server, self.scratch) as clients:
            clients.wait_for_more(5)
        place = server.disks[5]
        server.cairn("disk", "drain", place)
        self.wait_for(server, "disk5", "drained", MOVE_SECONDS_MAX)
        # The drive is pulled, and another one with somebody's data is mounted there.
        place.rename(self.scratch / "pulled")
        (place / "volumes" / "precious").mkdir(parents=True)
        (place / "volumes" / "precious" / "thesis").write_text("mine")
        (place / "shards").mkdir()
        server.cairn("disk", "remove", place)
        self.assertEqual((place / "volumes" / "precious" / "thesis").read_text(), "mine")
        self.assertTrue((place / "shards").is_dir())
        # Nor is it wiped when it is to be added: nothing says that it was a disk of Cairn's.
        refused = server.cairn("disk", "add", "--wipe", place, check=False)
        self.assertEqual(refused.returncode, 4, refused.stderr)
        self.assertEqual((place / "volumes" / "precious" / "thesis").read_text(), "mine")
        shutil.rmtree(place)
        server.disks.pop()
        self.finish(server, clients)
