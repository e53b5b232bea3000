"""LUNs over iSCSI, by an initiator of our own: what was answered is there after kill -9, and strangers get nothing."""

import contextlib
import http.client
import json
import os
import random
import re
import shutil
import socket
import struct
import subprocess
import threading
import unittest
import urllib.request

from lib import harness, iscsi, lunhost
from lib.lunworld import INITIATOR, LUN_BYTES, LunTest
from lib.worlds import content

BLOCK_LEN_BYTES = 512
# What one command takes without being asked for it.
PIECE_BYTES = iscsi.IMMEDIATE_LEN_BYTES_MAX
STRANGER = "iqn.2025-11.test:stranger"
AUTHENTICATION_FAILED, NOT_FOUND = (2, 1), (2, 3)
CLONE_KILLS = 8
HOSTS_COUNT = 4
# Each change waits for a disk that may take seconds for it.
LOAD_SECONDS_MAX = 240
SPACE_BACK_SECONDS_MAX = 90
TOLD_SECONDS_MAX = 60
CHANGES_PER_ROUND = 40
SUITE_SECONDS_MAX = 300
# Tests of libiscsi's suite that skip what a LUN here is not or does not have: why, and how often they may say so.
SKIPPED_MAX = {
    "is not removable": 9,
    "is not write-protected": 1,
    "LBPPB < 2": 5,  # a physical block is a logical one
    "SANITIZE CRYPTO_ERASE": 3,
    "SANITIZE OVERWRITE": 4,
    "WRITEATOMIC16": 11,
    "does not support 0-blocks": 2,
}


class Iscsi(LunTest):
    def check_kill(self, disks, rounds):
        self.lun_server(disks)
        part = LUN_BYTES // HOSTS_COUNT
        seed = random.getrandbits(32)
        hosts = [
            lunhost.Host(self.port, index, seed, self.target, INITIATOR, index * part, part) for index in range(HOSTS_COUNT)
        ]
        for _ in range(rounds):
            hosts = [host.next_life() for host in hosts]
            for host in hosts:
                host.start()
            counts = [host.stable_count + CHANGES_PER_ROUND for host in hosts]
            enough = lambda: all(host.stable_count >= count or host.failure for host, count in zip(hosts, counts))
            harness.wait_until(enough, LOAD_SECONDS_MAX, "enough load")
            self.lun_world.kill()
            for host in hosts:
                host.ended.set()
            self.join(hosts, LOAD_SECONDS_MAX, "a host")
            for host in hosts:
                self.assertIsNone(host.failure, f"seed {seed}")
            self.lun_world.start()
            for host in hosts:
                host.verify()
        self.lun_world.restart()
        for host in hosts:
            host.verify()

    def test_what_was_answered_is_there_after_kill_9(self):
        self.check_kill(1, 4)

    def test_what_was_answered_is_there_after_kill_9_on_six_disks(self):
        self.check_kill(6, 2)

    @unittest.skipUnless(shutil.which("iscsi-test-cu"), "libiscsi's test suite (Debian's libiscsi-bin) is not installed")
    def test_the_suite_of_libiscsi(self):
        self.lun_server()
        own = "iqn.2007-10.com.github:sahlberg:libiscsi:iscsi-test"
        self.cairn("igroup", "create", "main/suite", "--initiator", own, "--initiator", f"{own}-2")
        self.cairn("lun", "map", "main/disk", "--igroup", "suite")
        url = f"iscsi://127.0.0.1:{self.port}/{self.target}/0"
        argv = ["iscsi-test-cu", "--dataloss", "--allow-sanitize", "--normal", "--test=ALL", url, url]
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=SUITE_SECONDS_MAX)
        told = done.stdout.decode(errors="replace")
        summary = re.search(r"^ *tests +(\d+) +(\d+) +(\d+) +(\d+)", told, re.MULTILINE)
        assert summary, told[-2000:]
        total, ran, _, failed = map(int, summary.groups())
        failures = [line for line in told.splitlines() if "had failures" in line or re.match(r" +\d+\. ", line)]
        self.assertEqual(failed, 0, "\n".join(failures))
        self.assertGreaterEqual(ran, 230)
        self.assertEqual(ran, total)
        skipped = [line for line in told.splitlines() if "[SKIPPED]" in line]
        for why, count_max in SKIPPED_MAX.items():
            reasons = [line for line in skipped if why in line]
            self.assertLessEqual(len(reasons), count_max, why)
            skipped = [line for line in skipped if why not in line]
        self.assertEqual(skipped, [])

    def test_holes_give_space_back(self):
        self.lun_server()
        refused = self.cairn("lun", "create", "main/thick", "--size", "1GiB", "--thick", check=False)
        self.assertEqual((refused.returncode, "LUNs are thin" in refused.stderr), (2, True), refused.stderr)
        with self.session() as session:
            data = os.urandom(64 << 10)
            for at in range(0, 8 << 20, len(data)):
                session.write(at, data)
            self.assertTrue(session.is_allocated(0))
            used = self.used_bytes()
            self.assertGreaterEqual(used, 8 << 20)
            session.unmap(0, 8 << 20)
            self.assertFalse(session.is_allocated(0))
            self.assertEqual(session.read(4 << 20, 4096), bytes(4096))
            metrics = self.lun_world.metrics()
            self.assertEqual(metrics['cairn_lun_bytes_total{kind="write",lun="disk",volume="main"}'], 8 << 20)
            self.assertEqual(metrics["cairn_iscsi_sessions"], 1)
            counted = metrics['cairn_lun_command_duration_seconds_count{kind="write",lun="disk",volume="main"}']
            self.assertEqual(counted, metrics['cairn_lun_commands_total{kind="write",lun="disk",volume="main"}'])
            self.assertGreaterEqual(counted, (8 << 20) // len(data))
            harness.wait_until(lambda: self.used_bytes() <= used - (8 << 20), SPACE_BACK_SECONDS_MAX, "the space of the hole")

    def test_a_full_pool_stops_writes_only_and_they_go_on_when_there_is_space(self):
        """The LUN is larger than the pool. What cannot be written says so in the words of SBC-3, section 4.7.3.6."""
        self.lun_server(1, flags=["--disk-size-limit", "384MiB"], size_bytes=4 << 30)
        step = 256 << 10
        with self.session() as session:
            refused = None
            for count in range((4 << 30) // step):
                try:
                    session.write(count * step, content(f"fill {count}", step))
                except iscsi.CommandFailed as failed:
                    refused = failed
                    break
            assert refused, "a pool that is smaller than the LUN took all of it"
            # DATA PROTECT, SPACE ALLOCATION FAILED WRITE PROTECT.
            self.assertEqual((refused.key, refused.code), (7, (0x27, 7)))
            self.assertGreater(count * step, 192 << 20)
            # Whatever is left for small ones; then they are refused, too.
            with self.assertRaises(iscsi.CommandFailed) as small:
                for at in range(0, 2 << 30, 4096):
                    session.write((2 << 30) + at, content(f"small {at}", 4096))
            self.assertEqual((small.exception.key, small.exception.code), (7, (0x27, 7)))
            for index in (0, count // 2, count - 1):
                self.assertTrue(session.read(index * step, step) == content(f"fill {index}", step), f"step {index}")
            # A full pool gives space back, and the same session goes on.
            session.unmap(0, 64 << 20)
            self.assertEqual(session.read(0, step), bytes(step))

            def goes_on():
                try:
                    session.write(count * step, content(f"fill {count}", step))
                except iscsi.CommandFailed as failed:
                    self.assertEqual((failed.key, failed.code), (7, (0x27, 7)))
                    return False
                return True

            harness.wait_until(goes_on, SPACE_BACK_SECONDS_MAX, "space for writes")
        self.lun_world.kill()
        self.lun_world.start()
        with self.session() as session:
            for index in range((64 << 20) // step, count + 1, 37):
                self.assertTrue(session.read(index * step, step) == content(f"fill {index}", step), f"step {index}")
            self.assertTrue(session.read(count * step, step) == content(f"fill {count}", step))

    def test_hosts_are_told_before_space_runs_out(self):
        """The soft threshold of SBC-4, section 4.7.3.7: a unit attention for each host, and what the pages say of it."""
        self.lun_server(1, flags=["--disk-size-limit", "384MiB"])
        threshold = lambda session: session.command(struct.pack(">BBBB3xHx", 0x5A, 0x08, 0x1C, 0x02, 255), expects=255)[24:]
        resource = lambda session, number: int.from_bytes(
            session.command(struct.pack(">BBBBxHHx", 0x4D, 0, 0x0C, 0, number, 255), expects=255)[8:12], "big"
        )
        with self.session() as session, self.session() as other:
            self.assertEqual(threshold(session)[0], 0)
            # Threshold sets are of 1 MiB: 2048 blocks.
            self.assertEqual(session.command(struct.pack(">BBBH", 0x12, 1, 0xB2, 255) + b"\0", expects=255)[4], 11)
            # Of what there is in all no command tells but by a part of it. Less is free already, which they are told.
            self.cairn("lun", "set", "main/disk", "--soft-threshold", "99")
            for each in (session, other) * 2:
                each.clear_attentions()
            free = resource(session, 1)
            percent = free * 99 // int.from_bytes(threshold(session)[4:8], "big") - 3
            self.cairn("lun", "set", "main/disk", "--soft-threshold", str(percent))
            for each in (session, other):
                with self.assertRaises(iscsi.CommandFailed) as changed:
                    each.command(bytes(6))
                self.assertEqual(changed.exception.code, (0x2A, 1))
            shown = threshold(session)
            sets = int.from_bytes(shown[4:8], "big")
            self.assertEqual((shown[0], shown[1]), (0x80, 0x01))
            self.assertLess(sets, free)
            told = set()

            def command(each, name, *arguments):
                try:
                    getattr(each, name)(*arguments)
                except iscsi.CommandFailed as failed:
                    self.assertEqual((failed.key, failed.code), (6, (0x38, 7)))
                    told.add(each)

            for at in range(0, LUN_BYTES, PIECE_BYTES):
                command(session, "write", at, os.urandom(PIECE_BYTES))

            def is_told():
                for each in (session, other):
                    command(each, "command", bytes(6))
                return len(told) == 2

            harness.wait_until(is_told, TOLD_SECONDS_MAX, "both hosts to be told")
            self.assertLessEqual(resource(session, 1), sets)
            self.assertGreaterEqual(resource(session, 2), (LUN_BYTES >> 20) - 1)
            # Once: it is told again after there was more.
            told.clear()
            is_told()
            self.assertEqual(told, set())
        refused = self.cairn("lun", "set", "main/disk", "--soft-threshold", "100", check=False)
        self.assertNotEqual(refused.returncode, 0)
        self.assertEqual(json.loads(self.cairn("lun", "show", "main/disk", "--json").stdout)["soft_threshold_percent"], percent)

    def test_a_reserved_lun_finds_space_in_a_full_pool(self):
        self.iscsi_server(1, flags=["--disk-size-limit", "512MiB"])
        refused = self.cairn("lun", "create", "main/large", "--size", "1GiB", "--reserve", "full", check=False)
        self.assertNotEqual(refused.returncode, 0)
        self.assertIn("cannot be reserved", refused.stderr)
        self.assertEqual(json.loads(self.cairn("lun", "list", "--json").stdout)["luns"], [])
        self.cairn("lun", "create", "main/disk", "--size", str(LUN_BYTES), "--reserve", "full")
        self.cairn("igroup", "create", "main/hosts", "--initiator", INITIATOR)
        shown = json.loads(self.cairn("lun", "map", "main/disk", "--igroup", "hosts", "--json").stdout)
        self.target = shown["target"]
        self.assertEqual(shown["reserve"], "full")
        for words in (("lun", "clone", "main/disk", "other"), ("lun", "set", "main/disk", "--reserve", "full")):
            self.assertNotEqual(self.cairn(*words, check=False).returncode, 0, words)
        other = self.scratch / "other"
        with other.open("wb") as file:
            for index in range(512):
                file.write(content(f"other {index}", 1 << 20))
        full = self.cairn("cp", "-q", other, self.lun_world.url("other"), check=False)
        self.assertNotEqual(full.returncode, 0)

        def write(session, index, round):
            # Garbage that comes back is waited for, as initiators do; nothing else may stop a write.
            def is_written():
                try:
                    data = content(f"{round} {index}", 1 << 20)
                    for at in range(0, 1 << 20, PIECE_BYTES):
                        session.write((index << 20) + at, data[at : at + PIECE_BYTES])
                except iscsi.Busy:
                    return False
                return True

            harness.wait_until(is_written, SPACE_BACK_SECONDS_MAX, f"MiB {index}")

        for round in range(2):
            with self.session() as session:
                for index in range(LUN_BYTES >> 20):
                    write(session, index, round)
                for index in range(LUN_BYTES >> 20):
                    self.assertTrue(session.read(index << 20, 1 << 20) == content(f"{round} {index}", 1 << 20), index)
            self.lun_world.restart()
        self.cairn("lun", "set", "main/disk", "--reserve", "none")
        self.assertEqual(json.loads(self.cairn("lun", "show", "main/disk", "--json").stdout)["reserve"], "none")

    def used_bytes(self):
        shown = json.loads(self.cairn("lun", "list", "--json").stdout)["luns"]
        (lun,) = [lun for lun in shown if lun["name"] == "disk"]
        return lun["used_bytes"]

    def test_a_lun_grows_and_hosts_are_told(self):
        self.lun_server()
        with self.session() as session:
            self.assertEqual(session.size_bytes(), LUN_BYTES)
            session.write(LUN_BYTES - 4096, b"x" * 4096)
            self.cairn("lun", "resize", "main/disk", "--size", str(2 * LUN_BYTES))
            with self.assertRaises(iscsi.CommandFailed) as told:
                session.command(bytes(6))
            self.assertEqual((told.exception.key, told.exception.code), (6, (0x2A, 0x09)))
            self.assertEqual(session.size_bytes(), 2 * LUN_BYTES)
            self.assertEqual(session.read(LUN_BYTES - 4096, 8192), b"x" * 4096 + bytes(4096))
            # Past the end: the logical block address is out of range.
            with self.assertRaises(iscsi.CommandFailed) as refused:
                session.read(2 * LUN_BYTES, 4096)
            self.assertEqual((refused.exception.key, refused.exception.code), (5, (0x21, 0)))

    def test_no_command_waits_for_a_clear_of_its_error(self):
        """Standard INQUIRY says that there is no auto contingent allegiance (NORMACA 0): the bit NACA is an invalid field."""
        self.lun_server()
        # TEST UNIT READY, INQUIRY, READ CAPACITY(10), READ(16), REPORT LUNS: one of each length of commands, and where CONTROL is.
        commands = (
            (bytes(6), 5, 0), (struct.pack(">BBBH", 0x12, 0, 0, 96), 5, 96), (b"\x25", 9, 8),
            (struct.pack(">BBQI", 0x88, 0, 0, 1), 15, 512), (struct.pack(">BB4xI", 0xA0, 0, 64), 11, 64),
        )
        with self.session() as session:
            session.clear_attentions()
            for asked, control, expects in commands:
                cdb = bytearray(asked.ljust(16, b"\0"))
                session.command(bytes(cdb), expects=expects)
                cdb[control] = 0x04
                for lun in (0, 5):
                    with self.assertRaises(iscsi.CommandFailed, msg=cdb.hex()) as refused:
                        session.command(bytes(cdb), expects=expects, lun=lun)
                    # There is no LUN 5: INQUIRY and REPORT LUNS look at the command all the same.
                    is_absent = lun == 5 and cdb[0] not in (0x12, 0xA0)
                    want = (0x25, 0) if is_absent else (0x24, 0)
                    self.assertEqual((refused.exception.key, refused.exception.code), (5, want), cdb.hex())

    def test_a_number_is_not_given_again_below_a_host(self):
        """A host that is logged in has a device for each number that it saw: another LUN there would be written to by mistake."""
        self.lun_server()
        mapped = lambda name, *number: {
            one["igroup"]: one["number"] for one in json.loads(
                self.cairn("lun", "map", f"main/{name}", "--igroup", "hosts", *number, "--json").stdout
            )["maps"]
        }["hosts"]
        create = lambda name: self.cairn("lun", "create", f"main/{name}", "--size", "64MiB")
        unmap = lambda name: self.cairn("lun", "unmap", f"main/{name}", "--igroup", "hosts")
        with self.session() as session:
            session.clear_attentions()
            create("first")
            self.assertEqual(mapped("first"), 1)
            # Its next command sees it.
            session.clear_attentions(lun=1)
            unmap("first")
            create("second")
            self.assertEqual(mapped("second"), 2)
            unmap("second")
            refused = self.cairn("lun", "map", "main/second", "--igroup", "hosts", "--lun-id", "1", check=False)
            self.assertNotEqual(refused.returncode, 0)
            self.assertIn("saw another LUN as number 1", refused.stderr)
            # Nobody saw it as 2: no command came meanwhile. The first may have its own number again.
            self.assertEqual(mapped("second", "--lun-id", "2"), 2)
            self.assertEqual(mapped("first", "--lun-id", "1"), 1)
            unmap("first")
            # Nor is a group a way round.
            self.cairn("igroup", "create", "main/others", "--initiator", "iqn.2025-11.test:nobody")
            self.cairn("lun", "create", "main/third", "--size", "64MiB")
            self.cairn("lun", "map", "main/third", "--igroup", "others", "--lun-id", "1")
            refused = self.cairn("igroup", "create", "main/others", "--initiator", INITIATOR, check=False)
            self.assertIn("saw another LUN as number 1", refused.stderr)
            session.logout()
        harness.wait_until(
            lambda: self.cairn("igroup", "create", "main/others", "--initiator", INITIATOR, check=False).returncode == 0,
            LOAD_SECONDS_MAX, "the end of the session",
        )

    def test_a_lun_tells_who_it_is(self):
        self.lun_server()
        lun = json.loads(self.cairn("lun", "show", "main/disk", "--json").stdout)
        with self.session() as session:
            session.clear_attentions()
            inquiry = lambda page: session.command(struct.pack(">BBBHx", 0x12, page is not None, page or 0, 4096), expects=4096)
            pages = inquiry(0)[4:]
            self.assertTrue({0x83, 0x87, 0x88, 0xB2} <= set(pages))
            for page in pages:
                told = inquiry(page)
                self.assertEqual((told[1], int.from_bytes(told[2:4], "big")), (page, len(told) - 4))
            self.assertEqual(session.identity().hex(), lun["naa"])
            self.assertEqual(len(lun["naa"]), 32)
            # Page 80 is the serial number, which is the end of the identity.
            self.assertEqual(inquiry(0x80)[4:].decode(), lun["naa"][-16:])
            # The port that was asked is one of the target's.
            self.assertIn(f"{self.target},t,0x0001".encode(), inquiry(0x88))
            version = re.search(r"(\d+)\.(\d+)\.", self.cairn("--version").stdout)
            assert version is not None
            self.assertEqual(inquiry(None)[32:36].decode().strip(), f"{version[1]}.{version[2]}")

    def test_write_same_repeats_the_only_block_that_it_has(self):
        self.lun_server()
        block, other = b"a" * BLOCK_LEN_BYTES, b"b" * BLOCK_LEN_BYTES
        with self.session() as session:
            session.clear_attentions()
            session.write(0, other * 8)
            without_data = struct.pack(">BBQI2x", 0x93, 0x01, 0, 4)
            for refused in (
                # Two blocks, half a block, and none; one for a command that says that it has none (NDOB).
                lambda: session.write_same(0, block + other, 4), lambda: session.write_same(0, block[:256], 4),
                lambda: session.write_same(0, b"", 4), lambda: session.command(without_data, data=block),
            ):
                with self.assertRaises(iscsi.CommandFailed) as failed:
                    refused()
                self.assertEqual((failed.exception.key, failed.exception.code), (5, (0x24, 0)))
            self.assertEqual(session.read(0, 8 * BLOCK_LEN_BYTES), other * 8)
            session.write_same(0, block, 4)
            session.command(struct.pack(">BBQI2x", 0x93, 0x01, 6, 2))
            self.assertEqual(session.read(0, 8 * BLOCK_LEN_BYTES), block * 4 + other * 2 + bytes(2 * BLOCK_LEN_BYTES))

    def test_a_clone_has_the_blocks_of_then(self):
        self.lun_server()
        old, new = content(1, 1 << 16), content(2, 1 << 16)
        with self.session() as session:
            session.write(0, old)
        self.cairn("snapshot", "create", "main", "before")
        with self.session() as session:
            session.write(0, new)
            session.write(8 << 20, old)
        self.cairn("lun", "clone", "main/disk", "then", "--snapshot", "before")
        self.cairn("lun", "clone", "main/disk", "now")
        for name, complaint in (("then", "exists"), ("a/b", "name")):
            refused = self.cairn("lun", "clone", "main/disk", name, check=False)
            self.assertIn(complaint, refused.stderr)
        refused = self.cairn("lun", "clone", "main/none", "x", check=False)
        self.assertIn("no LUN none", refused.stderr)
        self.assertEqual(json.loads(self.cairn("snapshot", "list", "main", "--json").stdout)["snapshots"][0]["name"], "before")
        for name in ("then", "now"):
            self.cairn("lun", "map", f"main/{name}", "--igroup", "hosts")
        views = {view["name"]: view for view in json.loads(self.cairn("lun", "list", "--json").stdout)["luns"]}
        self.assertEqual(len({view["naa"] for view in views.values()}), 3)
        numbers = {name: view["maps"][0]["number"] for name, view in views.items()}
        # What a clone is told stays its own, and the original, the snapshot and a crash are nothing to it.
        with self.session() as session:
            session.clear_attentions(numbers["then"])
            session.write(4096, b"y" * 4096, lun=numbers["then"])
        self.cairn("lun", "delete", "main/disk", "--force", "--yes")
        self.cairn("snapshot", "delete", "main", "before")
        self.lun_world.kill()
        self.lun_world.start()
        with iscsi.Session(("127.0.0.1", self.port), INITIATOR, self.target) as session:
            for name in ("then", "now"):
                session.clear_attentions(numbers[name])
            changed = old[:4096] + b"y" * 4096 + old[8192:]
            self.assertEqual(session.read(0, len(old), lun=numbers["then"]), changed)
            self.assertEqual(session.read(8 << 20, 4096, lun=numbers["then"]), bytes(4096))
            self.assertEqual(session.read(0, len(new), lun=numbers["now"]), new)
            self.assertEqual(session.read(8 << 20, len(old), lun=numbers["now"]), old)

    def test_a_lun_is_restored_from_a_snapshot(self):
        self.lun_server()
        old, new = content(1, 1 << 16), content(2, 1 << 16)
        with self.session() as session:
            session.write(0, old)
            session.register(0x77)
        before = json.loads(self.cairn("lun", "show", "main/disk", "--json").stdout)
        self.assertIn("has LUN main/disk", self.cairn("lun", "snapshot", "main/disk", "before").stdout)
        refused = self.cairn("lun", "snapshot", "main/none", "x", check=False)
        self.assertIn("no LUN none", refused.stderr)
        self.cairn("lun", "resize", "main/disk", "--size", str(2 * LUN_BYTES))
        with self.session() as session:
            session.write(0, new)
            session.write(LUN_BYTES, new)
        restore = lambda *words: self.cairn("lun", "restore", "main/disk", "--snapshot", *words, check=False)
        refused = restore("before")
        self.assertEqual((refused.returncode, "is online" in refused.stderr), (4, True), refused.stderr)
        self.cairn("lun", "offline", "main/disk")
        self.assertIn("no snapshot never", restore("never").stderr)
        self.cairn("lun", "create", "main/late", "--size", "1MiB")
        self.cairn("lun", "offline", "main/late")
        refused = self.cairn("lun", "restore", "main/late", "--snapshot", "before", check=False)
        self.assertIn("has no LUN late", refused.stderr)
        self.assertEqual(restore("before").returncode, 0)
        self.cairn("lun", "online", "main/disk")
        after = json.loads(self.cairn("lun", "show", "main/disk", "--json").stdout)
        for key in ("naa", "size_bytes", "maps", "target", "created_seconds"):
            self.assertEqual(after[key], before[key], key)
        self.cairn("snapshot", "delete", "main", "before")
        for _ in range(2):
            with self.session() as session:
                self.assertEqual(session.size_bytes(), LUN_BYTES)
                self.assertEqual(session.read(0, len(old)), old)
            self.lun_world.kill()
            self.lun_world.start()
        # One that was made anew under the name is another one.
        self.cairn("lun", "snapshot", "main/disk", "again")
        self.cairn("lun", "delete", "main/disk", "--force", "--yes")
        self.cairn("lun", "create", "main/disk", "--size", "1MiB")
        self.cairn("lun", "offline", "main/disk")
        self.assertIn("is another LUN", restore("again").stderr)

    def test_a_snapshot_of_a_group_is_of_one_instant(self):
        """A host writes each number to one LUN and, when that is answered, to the other: no snapshot has it in the second alone."""
        self.lun_server()
        self.cairn("volume", "create", "log")
        self.cairn("lun", "create", "log/disk", "--size", str(LUN_BYTES))
        self.cairn("igroup", "create", "log/hosts", "--initiator", INITIATOR)
        self.cairn("lun", "map", "log/disk", "--igroup", "hosts")
        targets = [self.target, json.loads(self.cairn("lun", "show", "log/disk", "--json").stdout)["target"]]
        ended, failures = threading.Event(), []
        # What each writer has written to both.
        written = [0] * HOSTS_COUNT

        def write(place):
            try:
                sessions = [iscsi.Session(("127.0.0.1", self.port), INITIATOR, target) for target in targets]
                for session in sessions:
                    session.clear_attentions()
                number = 0
                while not ended.is_set():
                    number += 1
                    for session in sessions:
                        session.write(place * 4096, number.to_bytes(8, "big") * 512)
                    written[place] = number
            except (OSError, iscsi.CommandFailed) as error:
                failures.append(error)

        writers = [threading.Thread(target=write, args=(place,)) for place in range(HOSTS_COUNT)]
        for writer in writers:
            writer.start()
        try:
            together = [f"together{index}" for index in range(5)]
            for name in together:
                self.cairn("snapshot", "create", "--group", "main,log", name)
            # One after the other they do not fit together: the test would notice.
            self.cairn("snapshot", "create", "main", "apart")
            # The first may have one more than both.
            later = [number + 2 for number in written]
            have_gone_on = lambda: failures or all(number >= least for number, least in zip(written, later))
            harness.wait_until(have_gone_on, LOAD_SECONDS_MAX, "that all writers go on")
            self.cairn("snapshot", "create", "log", "apart")
        finally:
            ended.set()
            for writer in writers:
                writer.join()
        self.assertEqual(failures, [])
        refused = self.cairn("snapshot", "create", "--group", "main,log", "apart", check=False)
        self.assertEqual((refused.returncode, "of that name already" in refused.stderr), (4, True), refused.stderr)
        self.assertIn("given twice", self.cairn("snapshot", "create", "--group", "main,main", "x", check=False).stderr)
        self.assertIn("no volume", self.cairn("snapshot", "create", "--group", "main,none", "x", check=False).stderr)
        named = {snapshot["name"] for snapshot in json.loads(self.cairn("snapshot", "list", "main", "--json").stdout)["snapshots"]}
        self.assertEqual(named, {*together, "apart"})
        for name in (*together, "apart"):
            numbers = [self.numbers_in(volume, name) for volume in ("main", "log")]
            fits = [first in (second, second + 1) for first, second in zip(*numbers)]
            self.assertEqual(all(fits), name != "apart", f"{name}: {numbers}")

    def numbers_in(self, volume, snapshot):
        """What each writer's block has in a snapshot of a volume."""
        clone = f"of-{snapshot}"
        self.cairn("lun", "clone", f"{volume}/disk", clone, "--snapshot", snapshot)
        lun = json.loads(self.cairn("lun", "map", f"{volume}/{clone}", "--igroup", "hosts", "--json").stdout)
        number = lun["maps"][0]["number"]
        with iscsi.Session(("127.0.0.1", self.port), INITIATOR, lun["target"]) as session:
            session.clear_attentions(number)
            blocks = [session.read(place * 4096, 4096, lun=number) for place in range(HOSTS_COUNT)]
        self.assertTrue(all(block == block[:8] * 512 for block in blocks), "a write is there in part")
        return [int.from_bytes(block[:8], "big") for block in blocks]

    def test_several_portals(self):
        other = harness.next_port()
        self.lun_server(flags=["--listen-iscsi", f"127.0.0.1:{other}"])
        wanted = {f"TargetAddress=127.0.0.1:{port},1" for port in (self.port, other)}
        for port in (self.port, other):
            with iscsi.Session(("127.0.0.1", port), INITIATOR) as discovery:
                told = discovery.targets().split("\0")
            self.assertEqual({text for text in told if text.startswith("TargetAddress=")}, wanted)
        shown = json.loads(self.cairn("lun", "show", "main/disk", "--json").stdout)
        self.assertEqual(set(shown["portals"]), {f"127.0.0.1:{port}" for port in (self.port, other)})
        # Two sessions of one host, over two portals, on one LUN; the host's type makes blocks of 4 KiB known.
        with self.session() as one:
            with iscsi.Session(("127.0.0.1", other), INITIATOR, self.target) as two:
                two.clear_attentions()
                one.write(0, b"x" * 4096)
                self.assertEqual(two.read(0, 4096), b"x" * 4096)
            self.assertEqual(one.port_groups(), {1: 0})
            self.assertEqual(one.physical_exponent(), 0)
        self.cairn("igroup", "create", "main/hosts", "--initiator", INITIATOR, "--os", "linux")
        with self.session() as session:
            self.assertEqual(session.physical_exponent(), 3)
        self.lun_world.stop()
        self.lun_world.flags += ["--iscsi-portal", "192.0.2.1:3260"]
        self.lun_world.start()
        with iscsi.Session(("127.0.0.1", other), INITIATOR) as discovery:
            self.assertIn("TargetAddress=192.0.2.1:3260,1", discovery.targets())

    def test_the_plan_of_a_host(self):
        self.lun_server()
        plan = lambda *words, check=True: self.cairn("san", "plan-host", *words, check=check)
        text = plan("main/disk", "--initiator", INITIATOR, "--mount", "/srv/data", "--fs", "ext4").stdout
        done = subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        for wanted in (self.target, f"127.0.0.1:{self.port}", "--stripes 1 --stripesize 256k", "_netdev"):
            self.assertIn(wanted, text)
        for words, complaint in (
            (["main/none", "--initiator", INITIATOR], "no LUN none"),
            (["main/disk", "--initiator", "iqn.2025-11.test:stranger"], "does not see"),
            (["main/disk", "main/disk", "--initiator", INITIATOR], "given twice"),
            (["main/disk", "--initiator", INITIATOR, "--stripe-size", "3KiB"], "power of two"),
            (["main/disk", "--initiator", INITIATOR, "--mount", "data"], "an absolute path"),
        ):
            self.assertIn(complaint, plan(*words, check=False).stderr)

    def clone(self, name):
        """By REST, without the start of a program for each."""
        world = self.lun_world
        url = world.ready["admin"]["url"] + "/api/v1/luns/main/disk/clone"
        token = world.token_path.read_text().strip()
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        request = urllib.request.Request(url, json.dumps({"name": name}).encode(), headers, method="POST")
        with urllib.request.urlopen(request, timeout=LOAD_SECONDS_MAX) as answer:
            return json.load(answer)

    def test_a_clone_that_is_killed_leaves_nothing(self):
        self.lun_server()
        with self.session() as session:
            for at in range(0, LUN_BYTES, 1 << 20):
                session.write(at, content(at, 4096))
        for life in range(CLONE_KILLS):
            made = threading.Semaphore(0)

            def clones(first, made=made):
                with contextlib.suppress(OSError, http.client.HTTPException):
                    for number in range(1000):
                        self.clone(f"{first}-{number}")
                        made.release()

            cloning = [threading.Thread(target=clones, args=(f"c{life}-{index}",)) for index in range(HOSTS_COUNT)]
            for thread in cloning:
                thread.start()
            enough = lambda made=made: made.acquire(blocking=False)
            for _ in range(3 * HOSTS_COUNT):
                harness.wait_until(enough, LOAD_SECONDS_MAX, "a clone")
            self.lun_world.kill()
            for thread in cloning:
                thread.join()
            self.lun_world.start()
            self.assertEqual(json.loads(self.cairn("snapshot", "list", "main", "--json").stdout)["snapshots"], [])
        self.cairn("lun", "delete", "main/c0-0-0", "--yes")

    def test_strangers_see_nothing(self):
        self.lun_server()
        address = ("127.0.0.1", self.port)
        with iscsi.Session(address, INITIATOR) as discovery:
            self.assertIn(f"TargetName={self.target}", discovery.targets())
        for initiator, target, status in (
            (STRANGER, None, AUTHENTICATION_FAILED),
            (STRANGER, self.target, AUTHENTICATION_FAILED),
            (STRANGER, self.target + "x", AUTHENTICATION_FAILED),
            (INITIATOR, self.target + "x", NOT_FOUND),
        ):
            with self.assertRaises(iscsi.LoginRefused) as refused:
                iscsi.Session(address, initiator, target)
            self.assertEqual(refused.exception.args, status, (initiator, target))

    def test_names_are_answered_alike(self):
        """What a login without the secret is answered does not tell which initiators and targets there are."""
        self.lun_server()
        secret, masked = self.scratch / "secret", "iqn.2025-11.test:masked"
        secret.write_text("a secret of a host")
        # One that has a secret and a LUN, and one that has a secret alone.
        for initiator in (INITIATOR, masked):
            self.cairn("initiator", "set", "main", initiator, "--chap-user", "host", "--secret-file", str(secret))

        def steps(initiator, target, chap):
            """The keys of each answer of a login, and the status that ends it."""
            seen = []

            class Watched(iscsi.Session):
                def login_step(self, *arguments):
                    told = super().login_step(*arguments)
                    seen.append(sorted(told))
                    return told

            try:
                with Watched(("127.0.0.1", self.port), initiator, target, chap=chap):
                    return [*seen, "let in"]
            except iscsi.LoginRefused as refused:
                return [*seen, refused.args]

        for chap in (None, ("host", "a secret that is not"), ("other", "a secret of a host")):
            for target in (self.target, self.target + "x", None):
                want = steps(INITIATOR, target, chap)
                self.assertEqual(want[-1], AUTHENTICATION_FAILED, (target, chap))
                self.assertEqual(len(want), 1 if chap is None else 3, "it is asked for a secret first")
                for initiator in (masked, STRANGER):
                    self.assertEqual(steps(initiator, target, chap), want, (initiator, target, chap))
            # Nor does the name of the target matter.
            self.assertEqual(steps(STRANGER, self.target, chap), steps(STRANGER, self.target + "x", chap))
        # Who has proven its name is told.
        right = ("host", "a secret of a host")
        self.assertEqual(steps(INITIATOR, self.target, right)[-1], "let in")
        for initiator, target in ((masked, self.target), (INITIATOR, self.target + "x"), (masked, self.target + "x")):
            self.assertEqual(steps(initiator, target, right)[-1], NOT_FOUND, (initiator, target))
        with iscsi.Session(("127.0.0.1", self.port), masked, chap=right) as discovery:
            self.assertNotIn(self.target, discovery.targets())
        self.assertEqual(steps(STRANGER, self.target, right)[-1], AUTHENTICATION_FAILED)

    def test_secrets(self):
        self.lun_server()
        secret = self.scratch / "secret"
        secret.write_text("a secret of a host")
        self.cairn("initiator", "set", "main", INITIATOR, "--chap-user", "host", "--secret-file", str(secret))
        for chap in (None, ("host", "a secret that is not"), ("other", "a secret of a host")):
            with self.assertRaises(iscsi.LoginRefused, msg=f"{chap}"):
                self.session(chap=chap)
        with self.session(chap=("host", "a secret of a host")) as session:
            self.assertEqual(session.size_bytes(), LUN_BYTES)
        self.assertNotIn("a secret of a host", self.lun_world.log_path.read_text(errors="replace"))

    def test_the_benchmark_measures_an_empty_lun_and_leaves_it_empty(self):
        self.lun_server()
        secret = self.scratch / "secret"
        secret.write_text("a secret of a host\n")
        self.cairn("initiator", "set", "main", INITIATOR, "--chap-user", "host", "--secret-file", str(secret))
        url = f"iscsi://127.0.0.1:{self.port}/{self.target}/0?sessions=2&initiator={INITIATOR}"
        out = self.scratch / "result.json"

        def bench(url, *words, suite="four-corners", size="16MiB"):
            # Longer than a disk may take for one write.
            size = ["--working-set", size, "--runtime", "3s", "--ramp", "0s", "--depths", "4", "--jobs", "2", "--sync"]
            settings = size if suite == "four-corners" else []
            argv = [str(word) for word in (harness.cairn_path(), "bench", suite, url, *settings, "-o", out, *words)]
            return subprocess.run(argv, capture_output=True, text=True, stdin=subprocess.DEVNULL)

        self.assertIn("the secret is wrong or missing", bench(url).stderr)
        url += f"&user=host&secret-file={secret}"
        done = bench(url)
        self.assertEqual(done.returncode, 0, done.stderr)
        phases = json.loads(out.read_text())["phases"]
        self.assertEqual(len(phases), 4)
        for phase in phases:
            self.assertEqual((phase["errors"], phase.get("partial")), (0, None), phase["name"])
            self.assertGreater(phase["operations"], 0, phase["name"])
        harness.wait_until_equal(self.used_bytes, 0, SPACE_BACK_SECONDS_MAX, "what the LUN uses")
        with self.session(chap=("host", "a secret of a host")) as session:
            session.write(LUN_BYTES - BLOCK_LEN_BYTES, b"x" * BLOCK_LEN_BYTES)
        self.assertIn("holds data", bench(url).stderr)
        self.assertIn("a LUN has no names", bench(url, "--allow-files", suite="metadata").stderr)
        self.assertIn("make it smaller", bench(url, "--allow-files", size="1GiB").stderr)

    def test_what_no_initiator_sends_ends_one_connection_only(self):
        self.lun_server()
        with self.session() as good:
            good.write(0, b"k" * 4096)
            longest = b"\x01\x81" + bytes(3) + b"\xff\xff\xff" + bytes(40)
            texts = [b"", b"GET / HTTP/1.1\r\n\r\n" * 10, bytes(48), b"\xff" * 480, longest]
            texts += [b"\x43\x87" + bytes(3) + (9000).to_bytes(3, "big") + bytes(40) + b"A=" + b"x" * 9000]
            texts += [random.Random(seed).randbytes(4000) for seed in range(40)]
            for text in texts:
                with socket.create_connection(("127.0.0.1", self.port), 10) as stream:
                    # What is left unread when the server closes resets the connection.
                    with contextlib.suppress(OSError):
                        stream.sendall(text)
                        stream.shutdown(socket.SHUT_WR)
                        self.drain(stream)
            # Within a session, too: a command longer than what was agreed on, data for nothing, a command of no kind.
            for opcode in (0x05, 0x10, 0x1C, 0x3F):
                with self.session() as bad:
                    bad.send(opcode, 0x80, specific=bytes(28), data=b"x" * 512)
                    bad.stream.shutdown(socket.SHUT_WR)
                    self.drain(bad.stream)
            self.assertEqual(good.read(0, 4096), b"k" * 4096)
        self.assertNotIn("panicked", self.lun_world.log_path.read_text(errors="replace"))

    def drain(self, stream):
        """Until the target closes, which it does."""
        try:
            while stream.recv(65536):
                pass
        except ConnectionError:
            pass
