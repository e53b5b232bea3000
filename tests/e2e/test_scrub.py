"""Scrub: everything is read, what is wrong is repaired, and what cannot be is named."""

import datetime
import json
import os

from lib import harness, libnfs, rawnfs
from lib.worlds import BLOCK_LEN_BYTES, WorldTest, blocks, content, flip_bits

FLIPS_PER_DISK = 20
SCRUB_SECONDS_MAX = 180
# Of what is a matter of seconds.
SEEN_SECONDS_MAX = 60
# A READ is checked in pieces of so much: one that touches damage has it in the same piece.
CHECKED_LEN_BYTES = 32 * 1024
# The bytes of a large file are in records of up to this.
RECORD_LEN_BYTES_MAX = 1024 * 1024


ALWAYS = "daily:00:00-24:00"
DAY_SECONDS = 24 * 3600


def closed_window():
    """A maintenance window that opens at midnight, two to three days from now."""
    day = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(days=3)
    return f"{('mon', 'tue', 'wed', 'thu', 'fri', 'sat', 'sun')[day.weekday()]}:00:00-01:00"


class Scrub(WorldTest):
    def schedule(self, server, *arguments):
        return json.loads(server.cairn("scrub", "schedule", *arguments, "--json").stdout)

    def looks_at_the_clock(self, server):
        """Returns when the server has looked at its timer, which it does each second."""
        uptime = lambda: server.metrics()["cairn_uptime_seconds"]
        later = uptime() + 3
        harness.wait_until(lambda: uptime() >= later, SEEN_SECONDS_MAX, "some seconds of the server")

    def standing(self, server):
        """The status of a scrub that rests, once nothing of it is under way."""

        def stands():
            first = self.scrub(server, "status")
            self.looks_at_the_clock(server)
            return first if self.scrub(server, "status")["done_bytes"] == first["done_bytes"] else None

        return harness.wait_until(stands, SEEN_SECONDS_MAX, "that the scrub stands")

    def scrub(self, server, *arguments):
        return json.loads(server.cairn("scrub", *arguments, "--json").stdout)

    def scrubbed(self, server, *arguments):
        """Runs a scrub to its end."""
        self.scrub(server, "start", "--rate", "0", *arguments)
        done = lambda: self.scrub(server, "status")["stage"] == "done"
        harness.wait_until(done, SCRUB_SECONDS_MAX, "the end of a scrub")
        return self.scrub(server, "status")

    def scrubbed_whole(self, server):
        """Runs scrubs until one has seen all disks: those of a busy machine may be silent for a moment. What they found together."""
        found: list[dict] = []

        def is_whole():
            found.append(self.scrubbed(server))
            return not found[-1]["shards_away"] and not found[-1]["errors"]

        harness.wait_until(is_whole, SCRUB_SECONDS_MAX, "a scrub that sees all disks")
        sums = {name: sum(one[name] for one in found) for name in ("wrong_bytes", "repaired_bytes")}
        return found[-1] | sums

    def test_damage_that_nobody_read_is_repaired(self):
        data = content("scrubbed", 24 * 1024 * 1024)
        server = self.server(6)
        self.assertEqual(self.scrub(server, "status")["stage"], "never")
        with libnfs.Mount(server.libnfs_url()) as mount:
            mount.write_file("/f", data)
        server.stop()
        # Parity, too, which no reader would look at; and one shard is gone altogether.
        flipped = 0
        for disk in server.disks[:2]:
            for shard in (disk / "shards").rglob("*.0?"):
                with open(shard, "r+b") as file:
                    for index in range(FLIPS_PER_DISK):
                        file.seek(index * 70_000)
                        byte = file.read(1)
                        if byte and file.tell() + 200_000 < shard.stat().st_size:
                            file.seek(index * 70_000)
                            file.write(bytes([byte[0] ^ 0x40]))
                            flipped += 1
        self.assertGreater(flipped, FLIPS_PER_DISK)
        server.start()
        first = self.scrubbed_whole(server)
        self.assertGreater(first["repaired_bytes"], 0)
        self.assertEqual(first["wrong_bytes"], first["repaired_bytes"])
        self.assertGreater(first["shards"], 5)
        self.assertGreater(first["records"], 10)
        self.assertEqual((first["damaged"], first["errors"], first["shards_away"]), (0, 0, 0))
        self.assertEqual(first["done_bytes"], first["total_bytes"])
        self.assertIn("done", server.cairn("scrub", "status").stdout)
        self.assertIn("no damaged files", server.cairn("scrub", "report").stdout)
        second = self.scrubbed(server)
        self.assertEqual(second["wrong_bytes"], 0)
        self.assertEqual(server.metrics()["cairn_scrub_repaired_bytes"], 0)
        # What was repaired is as good as before: two other disks may go.
        server.stop()
        for disk in server.disks[2:4]:
            disk.rename(disk.with_suffix(".away"))
        server.start()
        with libnfs.Mount(server.libnfs_url()) as mount:
            self.assertTrue(mount.read_file("/f") == data)

    def test_what_cannot_be_repaired_is_named(self):
        data = content("to lose", 1024 * 1024)
        server = self.server(1)
        server.make_folder("folder")
        with libnfs.Mount(server.libnfs_url()) as mount:
            mount.write_file("/folder/lost", data)
            mount.write_file("/whole", data[::-1])
            mount.link("/folder/lost", "/other name")
        server.stop()
        self.assertEqual(flip_bits(server.disks[0], blocks(data), 1), 1)
        server.start()
        scrub = self.scrubbed(server)
        self.assertGreater(scrub["wrong_bytes"], 0)
        self.assertEqual((scrub["repaired_bytes"], scrub["damaged"]), (0, 1))
        report = self.scrub(server, "report")
        [damage] = report["damaged"]
        self.assertEqual(sorted(damage["paths"]), ["/folder/lost", "/other name"])
        self.assertEqual(damage["volume"], "main")
        self.assertLess(damage["start"], damage["end"])
        text = server.cairn("scrub", "report").stdout
        self.assertIn("/folder/lost", text)
        self.assertNotIn("whole", text)
        self.assertGreater(server.metrics()["cairn_scrub_damaged"], 0)
        # Its readers get an error, those of other files their bytes.
        failed = server.cairn("cat", server.url("folder/lost"), check=False, text=False)
        self.assertNotEqual(failed.returncode, 0)
        with libnfs.Mount(server.libnfs_url()) as mount:
            self.assertTrue(mount.read_file("/whole") == data[::-1])
            # It stays in the report over a restart, until the file is gone.
            server.restart()
            self.assertEqual(len(self.scrub(server, "report")["damaged"]), 1)
            server.await_health("degraded")
            # Another scrub has not come to it yet.
            self.scrub(server, "start", "--rate", "1KiB")
            self.assertEqual(len(self.scrub(server, "report")["damaged"]), 1)
            self.assertEqual(self.scrubbed(server)["damaged"], 1)
        with libnfs.Mount(server.libnfs_url()) as mount:
            # Nor is it gone when other bytes of the same record are written anew.
            with mount.open("/folder/lost", os.O_RDWR) as file:
                file.write(damage["end"] - 3, b"new")
                file.sync()
            self.assertEqual(len(self.scrub(server, "report")["damaged"]), 1)
            # The list is kept right while a scrub stands, too.
            self.scrub(server, "start", "--rate", "1KiB")
            self.scrub(server, "pause")
            mount.unlink("/other name")
            self.assertEqual(self.scrub(server, "report")["damaged"][0]["paths"], ["/folder/lost"])
            mount.unlink("/folder/lost")
        gone = lambda: not self.scrub(server, "report")["damaged"]
        harness.wait_until(gone, SEEN_SECONDS_MAX, "the end of the damaged file")
        server.await_health("no_redundancy")

    def spoil(self, segment, offset, count, places):
        """Spoils a block in `count` shards of a segment; returns which places in files have their bytes there.

        `segment`: the files of its shards. `places`: names and offsets in files, by the bytes of a block.
        """
        spoiled = set()
        for path in segment[:count]:
            with open(path, "r+b") as shard:
                shard.seek(offset)
                block = shard.read(BLOCK_LEN_BYTES)
                shard.seek(offset)
                shard.write(bytes(byte ^ 0x55 for byte in block))
            if block in places:
                spoiled.add(places[block])
        return spoiled

    def test_all_that_more_than_two_lost_shards_cost_is_named_and_nothing_else(self):
        server = self.server(6)
        # In one segment; those that come after a restart are in another one.
        first = {f"/first {index}": content(f"first {index}", 64 * 1024) for index in range(6)}
        first["/large"] = content("large", 6 * RECORD_LEN_BYTES_MAX)
        second = {f"/second {index}": content(f"second {index}", 64 * 1024) for index in range(3)}
        # Not in stripes of the others: what a stop flushes shares them.
        apart = {"/apart": content("apart", 64 * 1024)}
        for files in (first, second, apart):
            with libnfs.Mount(server.libnfs_url()) as mount:
                for name, data in files.items():
                    mount.write_file(name, data)
            server.restart()
        server.stop()
        first |= apart
        places: dict = {}
        for name, data in first.items():
            places |= {block: (name, index * BLOCK_LEN_BYTES) for index, block in enumerate(blocks(data))}
        # Where each block is: in which shard, how far in.
        found = {}
        for disk in server.disks:
            for path in (disk / "shards").rglob("*.0?"):
                for index, block in enumerate(blocks(path.read_bytes())):
                    if block in places:
                        found[places[block]] = (path, index * BLOCK_LEN_BYTES)

        def spoil(name, start, count):
            path, offset = found[(name, start)]
            shards = [shard for disk in server.disks for shard in (disk / "shards").rglob(f"{path.stem}.0?")]
            self.assertEqual(len(shards), 6)
            # That one first; the others have what is in the same rows, and perhaps parity.
            return self.spoil([path, *sorted(set(shards) - {path})], offset, count, places)

        lost = spoil("/first 0", 0, 3) | spoil("/first 3", 32 * 1024, 4) | spoil("/large", 3 * RECORD_LEN_BYTES_MAX, 3)
        repaired = spoil("/apart", 0, 2) | spoil("/large", 5 * RECORD_LEN_BYTES_MAX, 2)
        self.assertGreater(len(repaired), 1)
        lost_names = {name for name, _ in lost}
        self.assertLessEqual({"/first 0", "/first 3", "/large"}, lost_names)
        self.assertFalse(lost_names & {"/apart"})
        server.start()
        scrub = self.scrubbed(server)
        report = self.scrub(server, "report")
        self.assertGreater(scrub["repaired_bytes"], 0)
        self.assertEqual(scrub["damaged"], len(report["damaged"]))
        ranges: dict = {}
        for damage in report["damaged"]:
            (name,) = damage["paths"]
            self.assertEqual(damage["volume"], "main")
            ranges.setdefault(name, []).append((damage["start"], damage["end"]))
        self.assertEqual(set(ranges), lost_names)
        for name, data in first.items():
            told = sorted(ranges.get(name, []))
            if name != "/large":
                # One record.
                self.assertEqual(told, [(0, len(data))] if name in lost_names else [], name)
            hit = [[start for lost_name, start in lost if lost_name == name and begin <= start < end] for begin, end in told]
            self.assertTrue(all(hit), f"{name}: {told} names what is well")
            self.assertEqual(sum(map(len, hit)), sum(lost_name == name for lost_name, _ in lost), f"{name}: {told}")
            self.assertTrue(all(end - begin <= RECORD_LEN_BYTES_MAX for begin, end in told), told)
        with rawnfs.Peer(server.port) as peer, libnfs.Mount(server.libnfs_url()) as mount:
            _, root = peer.mount("/main")
            for name, data in (first | second).items():
                _, file = peer.lookup(root, name.lstrip("/"))
                for start in range(0, len(data), CHECKED_LEN_BYTES):
                    piece = data[start : start + CHECKED_LEN_BYTES]
                    is_lost = any(at in range(start, start + len(piece)) for lost_name, at in lost if lost_name == name)
                    want = (rawnfs.IO, None) if is_lost else (rawnfs.OK, piece)
                    self.assertTrue(peer.read_bytes(file, start, len(piece)) == want, f"{name} from {start}, lost: {is_lost}")
                if name not in lost_names:
                    self.assertTrue(mount.read_file(name) == data, name)
        # What two of six cost was made good, and stays so.
        again = self.scrubbed(server, "--restart")
        self.assertEqual((again["repaired_bytes"], again["damaged"]), (0, scrub["damaged"]))
        self.assertEqual(self.scrub(server, "report")["damaged"], report["damaged"])

    def test_it_pauses_and_goes_on_over_restarts(self):
        server = self.server(3, flags=["--scrub-rate", "1MiB"])
        with libnfs.Mount(server.libnfs_url()) as mount:
            # So much that it does not end between two commands.
            for index in range(16):
                mount.write_file(f"/{index}", content(str(index), 4 * 1024 * 1024))
        server.restart()
        refused = server.cairn("scrub", "pause", check=False)
        self.assertEqual(refused.returncode, 4, refused.stderr)
        started = self.scrub(server, "start")
        self.assertEqual((started["stage"], started["rate_bytes_per_second"]), ("running", 1 << 20))
        server.restart()
        self.assertEqual(self.scrub(server, "status")["stage"], "running")
        # Held and let go in the middle of a segment.
        inside = lambda: self.scrub(server, "status")["done_bytes"] > 0
        harness.wait_until(inside, SEEN_SECONDS_MAX, "the first bytes")
        held = self.scrub(server, "pause")
        self.assertEqual((held["stage"], held["shards"]), ("paused", 0))
        self.scrub(server, "start", "--rate", "8MiB")
        # Where it stands is written down segment by segment.
        begun = lambda: self.scrub(server, "status")["shards"] > 0
        harness.wait_until(begun, SCRUB_SECONDS_MAX, "the first segment")
        paused = self.scrub(server, "pause")
        self.assertEqual(paused["stage"], "paused")
        server.kill()
        server.start()
        again = self.scrub(server, "status")
        self.assertEqual(again["stage"], "paused")
        self.assertGreater(again["done_bytes"], 0)
        self.assertEqual(again["rate_bytes_per_second"], 8 << 20)
        self.assertEqual(again["started_seconds"], paused["started_seconds"])
        done = self.scrubbed(server)
        self.assertEqual(done["started_seconds"], paused["started_seconds"])
        self.assertEqual((done["wrong_bytes"], done["damaged"]), (0, 0))
        # The rate was for that one.
        self.assertEqual(self.scrub(server, "start")["rate_bytes_per_second"], 1 << 20)
        restarted = self.scrubbed(server, "--restart")
        self.assertEqual(restarted["done_bytes"], restarted["total_bytes"])

    def test_scrubs_begin_by_themselves_and_rest_outside_of_the_window(self):
        server = self.server(3, flags=["--scrub-rate", "1MiB"])
        with libnfs.Mount(server.libnfs_url()) as mount:
            for index in range(8):
                mount.write_file(f"/{index}", content(str(index), 4 * 1024 * 1024))
        self.assertEqual(self.schedule(server), {"is_open": True})
        self.assertIn("none; set one", server.cairn("scrub", "schedule").stdout)
        for flags, why in (
            (("--window", "sat"), "is not a maintenance window"),
            (("--window", "sat:22:00-22:00"), "another time at which it ends"),
            (("--every", "30"), "is not a time between scrubs"),
        ):
            refused = server.cairn("scrub", "schedule", *flags, check=False)
            self.assertNotEqual(refused.returncode, 0, flags)
            self.assertIn(why, refused.stderr)
        self.assertEqual(self.schedule(server), {"is_open": True})

        # Due, and the window is closed: nothing begins, now or after a restart.
        closed = closed_window()
        set_to = self.schedule(server, "--every", "30d", "--window", closed)
        self.assertEqual((set_to["every"], set_to["window"], set_to["is_open"]), ("30d", closed, False))
        server.restart()
        self.looks_at_the_clock(server)
        self.assertEqual(self.schedule(server), set_to)
        status = self.scrub(server, "status")
        self.assertEqual((status["stage"], status["next_seconds"]), ("never", set_to["opens_seconds"]))
        self.assertIn("closed; opens", server.cairn("scrub", "schedule").stdout)
        self.assertEqual(server.metrics()["cairn_scrub_next_seconds"], set_to["opens_seconds"])

        # It opens, and closes again in the middle of the scrub.
        self.assertTrue(self.schedule(server, "--every", "30d", "--window", ALWAYS)["is_open"])
        inside = lambda: self.scrub(server, "status")["done_bytes"] > 0
        harness.wait_until(inside, 60, "the first bytes of a scrub that begins by itself")
        began = self.scrub(server, "status")
        self.assertEqual((began["stage"], began["by_schedule"]), ("running", True))
        self.schedule(server, "--every", "30d", "--window", closed)
        rests = lambda: "rests_until_seconds" in self.scrub(server, "status")
        harness.wait_until(rests, SEEN_SECONDS_MAX, "that the scrub rests")
        resting = self.standing(server)
        self.assertEqual(resting["rests_until_seconds"], set_to["opens_seconds"])
        self.assertEqual(server.metrics()["cairn_scrub_resting"], 1)
        self.assertIn("resting", server.cairn("scrub", "status").stdout)
        self.looks_at_the_clock(server)
        self.assertEqual(self.scrub(server, "status")["done_bytes"], resting["done_bytes"])
        server.kill()
        server.start()
        self.looks_at_the_clock(server)
        again = self.scrub(server, "status")
        self.assertEqual((again["stage"], again["by_schedule"]), ("running", True))
        self.assertEqual(again["rests_until_seconds"], resting["rests_until_seconds"])
        self.assertLessEqual(again["done_bytes"], resting["done_bytes"])
        # It goes on when the window opens.
        self.schedule(server, "--every", "30d", "--window", ALWAYS)
        on = lambda: self.scrub(server, "status")["done_bytes"] > resting["done_bytes"]
        harness.wait_until(on, 60, "that the scrub goes on")
        self.assertEqual(server.metrics()["cairn_scrub_resting"], 0)

        # By hand it goes on whenever that is, and the next one is due after the whole time.
        self.schedule(server, "--every", "30d", "--window", closed)
        harness.wait_until(rests, SEEN_SECONDS_MAX, "that the scrub rests again")
        done = self.scrubbed(server)
        self.assertEqual((done["wrong_bytes"], done["damaged"], done["errors"]), (0, 0, 0))
        self.assertFalse(done["by_schedule"])
        self.assertGreaterEqual(done["next_seconds"], done["started_seconds"] + 30 * DAY_SECONDS)
        self.assertEqual(self.schedule(server, "--clear"), {"is_open": True})
        self.assertNotIn("next_seconds", self.scrub(server, "status"))
