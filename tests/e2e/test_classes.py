"""Classes of service: rates hold, act at once, slow nobody else, and credit outlives kill -9."""

import contextlib
import json
import os
import struct
import threading
import time

from lib import harness, iscsi, rawnfs, s3
from lib.worlds import WorldTest

MB = 1_000_000
PIECE_LEN_BYTES = 64 << 10
FILE_LEN_BYTES = 64 << 20
# One request at a time does not get its rate on a machine that is busy with other tests: it is measured again.
MEASURED_TIMES_MAX = 3
# Rates hold within so much over so long.
OFF_MAX = 0.03
MEASURED_SECONDS = 10
# A change acts within a second; so much longer may the measuring take to see it.
CHANGE_SECONDS = 1.0
CREDIT_KEPT_SECONDS_MAX = 60
END_SECONDS_MAX = 60
# A goal is looked at every ten seconds; with few requests, as where each waits long for a disk, each minute.
GOAL_SECONDS_MAX = 150
# Of what is told a moment later.
TOLD_SECONDS_MAX = 60


class Load(threading.Thread):
    """Reads or writes one file over and over, with so many requests under way, over a connection of its own."""

    def __init__(self, test, volume, kind, window=16):
        super().__init__()
        self.peer = test.enterContextHere(rawnfs.Peer(test.world.port))
        self.kind, self.window = kind, window
        status, root = self.peer.mount(f"/{volume}")
        assert status == rawnfs.OK
        status, self.handle, _ = self.peer.create(root, f"{kind}-{id(self)}")
        assert status == rawnfs.OK
        self.bytes, self.failure, self.ended = 0, None, threading.Event()
        self.begun = time.monotonic()

    def arguments(self, number):
        offset = number * PIECE_LEN_BYTES % FILE_LEN_BYTES
        place = rawnfs.opaque(self.handle) + struct.pack(">QI", offset, PIECE_LEN_BYTES)
        if self.kind == "read":
            return 6, place
        stable = rawnfs.FILE_SYNC if self.kind == "sync" else rawnfs.UNSTABLE
        return 7, place + struct.pack(">I", stable) + rawnfs.opaque(bytes(PIECE_LEN_BYTES))

    def run(self):
        try:
            number, under_way = 0, 0
            while not self.ended.is_set():
                while under_way < self.window:
                    procedure, arguments = self.arguments(number)
                    self.peer.send(rawnfs.NFS, 3, procedure, arguments)
                    number, under_way = number + 1, under_way + 1
                answer = rawnfs.Reader(self.peer.record())
                answer.u32()
                rawnfs.accepted(answer)
                assert answer.u32() == rawnfs.OK
                self.bytes, under_way = self.bytes + PIECE_LEN_BYTES, under_way - 1
        except Exception as error:  # noqa: BLE001 - told by `stop`
            if not self.ended.is_set():
                self.failure = error

    def rate(self, seconds):
        """Bytes per second in the time from now on."""
        begun, before = time.monotonic(), self.bytes
        time.sleep(seconds)
        return (self.bytes - before) / (time.monotonic() - begun)

    def stop(self):
        self.ended.set()
        self.peer.socket.close()
        self.join(END_SECONDS_MAX)
        if self.failure:
            raise self.failure


class Classes(WorldTest):
    def cairn(self, *words, **options):
        return self.world.cairn(*words, **options)

    def refused(self, *words):
        run = self.cairn(*words, check=False)
        self.assertNotEqual(run.returncode, 0, run.stdout)
        return run.stderr

    def volume(self, name):
        return json.loads(self.cairn("volume", "show", name, "--json").stdout)

    def limit(self, name, of="throughput"):
        return next(limit for limit in self.volume(name)["rates"]["limits"] if limit["of"] == of)

    def make_volume(self, name, *flags):
        self.cairn("volume", "create", name, *flags)
        self.cairn("export", "set", name, "--client", "127.0.0.1", "--squash", "none")

    @contextlib.contextmanager
    def load(self, volume, kind="write", window=16):
        load = Load(self, volume, kind, window)
        if kind == "read":
            offsets = range(0, FILE_LEN_BYTES, PIECE_LEN_BYTES)
            pieces = [(offset, bytes(PIECE_LEN_BYTES)) for offset in offsets]
            for _, (status, *_) in load.peer.write_many(load.handle, pieces, rawnfs.UNSTABLE, 16):
                self.assertEqual(status, rawnfs.OK)
        load.start()
        try:
            yield load
        finally:
            load.stop()

    def assert_rate(self, load, wanted, seconds=MEASURED_SECONDS, off_max=OFF_MAX):
        for _ in range(MEASURED_TIMES_MAX):
            rate = load.rate(seconds)
            # A busy machine makes it less, never more.
            if rate > wanted * (1 - off_max):
                break
        with self.measured():
            self.assertLess(abs(rate - wanted) / wanted, off_max, f"{rate / MB:.2f} MB/s, not {wanted / MB:.2f}")

    def assert_faster(self, load, seconds, wanted):
        """Bytes per second."""
        with self.measured():
            self.assertTrue(any(load.rate(seconds) > wanted for _ in range(MEASURED_TIMES_MAX)))

    def test_rates_hold_and_slow_nobody_else(self):
        self.world = self.server(1)
        self.cairn("class", "create", "slow", "--throughput", "20MB/s")
        self.make_volume("slow", "--class", "slow")
        with self.load("main") as free:
            # The slow one takes 20 MB/s of what the machine does, and its client some time of the processors.
            for _ in range(MEASURED_TIMES_MAX):
                alone = free.rate(3)
                with self.load("slow") as slow:
                    slow.rate(1)
                    self.assert_rate(slow, 20 * MB)
                    beside = free.rate(3)
                if beside > 0.6 * alone:
                    break
        with self.measured():
            self.assertGreater(beside, 0.6 * alone, f"{alone / MB:.0f} MB/s alone")
        rates = self.volume("slow")["rates"]
        self.assertGreater(rates["delayed"], 100)
        metrics = self.world.metrics()
        self.assertEqual(metrics['cairn_class_limit{volume="slow",class="slow",of="throughput"}'], 20 * MB)
        self.assertGreater(metrics['cairn_class_written_bytes_total{volume="slow"}'], 150 * MB)
        self.assertGreater(metrics['cairn_class_delayed_milliseconds_total{volume="slow"}'], 1000)
        self.assertFalse([series for series in metrics if series.startswith("cairn_class") and "main" in series])

    def test_what_is_idle_of_a_total_is_lent(self):
        self.world = self.server(1)
        self.cairn("class", "create", "shared", "--throughput", "10MB/s", "--total-throughput", "20MB/s")
        for name in ("a", "b"):
            self.make_volume(name, "--class", "shared")
        with self.load("a") as one:
            one.rate(1)
            self.assert_rate(one, 20 * MB, 5, 0.05)
            with self.load("b", window=2) as other:
                other.rate(1)
                before = one.bytes
                self.assert_rate(other, 10 * MB, 5, 0.06)
                with self.measured():
                    self.assertAlmostEqual((one.bytes - before) / (5 * 10 * MB), 1, delta=0.06)
        self.cairn("class", "set", "shared", "--client-throughput", "2MB/s")
        with self.load("a") as one:
            one.rate(1)
            self.assert_rate(one, 2 * MB, 5, 0.08)

    def test_a_change_acts_beside_load_within_a_second(self):
        self.world = self.server(1)
        for name, rate in (("a", 5), ("b", 40)):
            self.cairn("class", "create", name, "--throughput-per-tib", f"{rate}MB/s")
        self.make_volume("v", "--class", "a", "--quota", "1TiB")
        with self.load("v", "read") as load:
            load.rate(1)
            for words, wanted in (
                (("--class", "b"), 40),
                (("--quota", "512GiB"), 20),
                (("--class", "a"), 2.5),
                (("--quota", "4TiB"), 20),
            ):
                shown = self.cairn("volume", "set", "v", *words).stdout
                self.assertIn("rate now", shown)
                time.sleep(CHANGE_SECONDS)
                self.assert_rate(load, wanted * MB, 4, 0.06)
            is_told = lambda: abs(self.limit("v")["now"] - 20 * MB) <= 0.2 * 20 * MB
            harness.wait_until(is_told, TOLD_SECONDS_MAX, "that the rate is told")
            self.cairn("class", "set", "a", "--throughput-per-tib", "10MB/s")
            time.sleep(CHANGE_SECONDS)
            self.assert_rate(load, 40 * MB, 4, 0.06)
            self.cairn("volume", "set", "v", "--class", "none")
            time.sleep(CHANGE_SECONDS)
            self.assert_faster(load, 3, 60 * MB)
        self.assertNotIn("rates", self.volume("v"))

    def answered_before(self, peer, xid):
        """How many other calls are answered before the one of a number."""
        count = 0
        while rawnfs.Reader(peer.record()).u32() != xid:
            count += 1
        return count

    def test_a_slowed_volume_holds_up_no_other_on_the_same_connection(self):
        self.world = self.server(1)
        self.cairn("class", "create", "tiny", "--throughput", "1MB/s")
        self.make_volume("tiny", "--class", "tiny")
        with rawnfs.Peer(self.world.port) as peer:
            (_, slow_root), (_, root) = peer.mount("/tiny"), peer.mount("/main")
            _, slow, _ = peer.create(slow_root, "slow")
            _, free, _ = peer.create(root, "free")
            # More calls than may be under way, and more bytes than may wait: 80 MiB, which take over a minute.
            data = bytes(1 << 18)
            for number in range(320):
                place = rawnfs.opaque(slow) + struct.pack(">QII", number * len(data), len(data), rawnfs.UNSTABLE)
                peer.send(rawnfs.NFS, 3, 7, place + rawnfs.opaque(data))
            begun = time.monotonic()
            peer.send(rawnfs.NFS, 3, 7, rawnfs.opaque(free) + struct.pack(">QII", 0, 4, rawnfs.FILE_SYNC) + rawnfs.opaque(b"data"))
            wanted = peer.xid
            slow_answered = self.answered_before(peer, wanted)
            with self.measured():
                self.assertLess(time.monotonic() - begun, 5)
            self.assertLess(slow_answered, 100)
            # Names and attributes of the slow volume cost no bytes.
            begun = time.monotonic()
            peer.send(rawnfs.NFS, 3, 1, rawnfs.opaque(slow))
            slow_answered += self.answered_before(peer, peer.xid)
            with self.measured():
                self.assertLess(time.monotonic() - begun, 5)
            self.assertLess(slow_answered, 100)
            # Without a class all of them are answered at once.
            self.cairn("volume", "set", "tiny", "--class", "none")
            begun = time.monotonic()
            peer.send(rawnfs.NFS, 3, 21, rawnfs.opaque(slow) + struct.pack(">QI", 0, 0))
            for _ in range(320 - slow_answered + 1):
                peer.record()
            with self.measured():
                self.assertLess(time.monotonic() - begun, 20)

    def test_credit_outlives_kill_9(self):
        self.world = self.server(1)
        self.cairn("class", "create", "burst", "--throughput", "2MB/s", "--burst", "10x", "--burst-credit", "20s")
        self.make_volume("v", "--class", "burst")
        full = 18 * MB * 20
        harness.wait_until(lambda: self.limit("v")["credit"] > 0.99 * full, TOLD_SECONDS_MAX, "the credit of a new volume")
        with self.load("v") as load:
            load.rate(1)
            self.assert_rate(load, 20 * MB, 8, 0.05)
            shown = self.limit("v")
            with self.measured():
                self.assertLess(shown["credit"], 0.65 * full)
                self.assertLess(shown["credit_ends_seconds"], 13)
            ends = lambda: "ends in" in self.cairn("volume", "show", "v").stdout
            harness.wait_until(ends, END_SECONDS_MAX, "that the end of the credit is told")
            # It ends, and leaves the baseline.
            harness.wait_until(lambda: self.limit("v")["credit"] < MB, 2 * END_SECONDS_MAX, "the end of the credit")
            load.rate(1)
            self.assert_rate(load, 2 * MB, 8, 0.1)
            # What is kept says so, within a minute.
            begun = time.time()
            load.rate(21)
        self.world.kill()
        self.world.start()
        harness.wait_until(lambda: self.limit("v")["credit"] > 0, TOLD_SECONDS_MAX, "the credit that was kept")
        # It was nearly nothing, and what was earned since.
        earned = 2 * MB * (time.time() - begun + CREDIT_KEPT_SECONDS_MAX)
        self.assertLess(self.limit("v")["credit"], min(earned, 0.7 * full))
        before = self.limit("v")["credit"]
        self.world.restart()
        harness.wait_until(lambda: self.limit("v")["credit"] >= before * 0.95, TOLD_SECONDS_MAX, "the credit over a restart")

    def test_luns_and_buckets_have_the_rate_of_their_volume(self):
        ports = [harness.next_port(), harness.next_port()]
        listen = ["--listen-iscsi", f"127.0.0.1:{ports[0]}", "--listen-s3", f"127.0.0.1:{ports[1]}"]
        self.world = self.server(1, listen)
        self.cairn("class", "create", "slow", "--throughput", "10MB/s")
        self.make_volume("v")
        initiator = "iqn.2025-11.test:host"
        self.cairn("lun", "create", "v/disk", "--size", "64MiB")
        self.cairn("igroup", "create", "v/hosts", "--initiator", initiator)
        self.cairn("lun", "map", "v/disk", "--igroup", "hosts")
        target = json.loads(self.cairn("lun", "show", "v/disk", "--json").stdout)["target"]
        self.cairn("bucket", "create", "objects", "--path", "v/b")
        keys = s3.Keys(self.world, "--volume", "v")
        client = s3.client(ports[1], keys)
        data = os.urandom(1 << 20)
        client.put_object(Bucket="objects", Key="before", Body=data)
        self.cairn("volume", "set", "v", "--class", "slow")

        def took(work, count):
            begun = time.monotonic()
            for number in range(count):
                work(number)
            return time.monotonic() - begun

        with iscsi.Session(("127.0.0.1", ports[0]), initiator, target) as session:
            session.clear_attentions()
            # The first may be made up for: a tenth of a second, and one request.
            for work in (
                lambda number: session.write(number * 512, data[: 256 << 10]),
                lambda number: session.read(number * 512, 256 << 10),
                lambda number: client.put_object(Bucket="objects", Key="k", Body=data[: 256 << 10]),
                lambda number: client.get_object(Bucket="objects", Key="k")["Body"].read(),
            ):
                for _ in range(MEASURED_TIMES_MAX):
                    rate = 80 * (256 << 10) / took(work, 80)
                    self.assertLess(rate, 11 * MB)
                    if rate > 8.5 * MB:
                        break
                else:
                    # One request after the other: on a busy machine each may take longer than its share of the rate.
                    self.cairn("volume", "set", "v", "--class", "none")
                    alone = 80 * (256 << 10) / took(work, 80)
                    with self.measured():
                        self.assertGreater(rate, min(5 * MB, 0.5 * alone))
                    self.cairn("volume", "set", "v", "--class", "slow")
            session.write(0, data[:4096])
            self.assertEqual(session.read(0, 4096), data[:4096])
        self.assertEqual(client.get_object(Bucket="objects", Key="before")["Body"].read(), data)

    def test_a_latency_goal_that_is_missed_is_told_and_makes_own_work_rest(self):
        port = harness.next_port()
        self.world = self.server(1, ["--listen-iscsi", f"127.0.0.1:{port}"])
        # No write is on a disk so soon.
        self.cairn("class", "create", "quick", "--latency-goal", "50us")
        self.make_volume("v", "--class", "quick")
        self.assertIn("latency objective 50µs", self.cairn("class", "show", "quick").stdout)
        self.assertIn("unknown yet", self.cairn("volume", "show", "v").stdout)
        goal = lambda: self.volume("v")["rates"]["latency"]
        told = lambda stage: [
            event for event in json.loads(self.cairn("events", "--json", "--limit", "1000").stdout)["entries"]
            if (event["kind"], event["stage"]) == ("latency_goal_missed", stage)
        ]
        with self.load("v", "sync", 1):
            harness.wait_until(lambda: goal().get("met") is False, GOAL_SECONDS_MAX, "the goal is missed")
            harness.wait_until(lambda: told("began"), TOLD_SECONDS_MAX, "it is told")
            self.assertIn("MISSED", self.cairn("volume", "show", "v").stdout)
            metrics = self.world.metrics()
            self.assertEqual(metrics['cairn_latency_goal_missed{volume="v"}'], 1)
            rests = lambda: self.world.metrics()["cairn_internal_rest_times"] >= 2
            harness.wait_until(rests, TOLD_SECONDS_MAX, "that own work rests")
            seen = goal()
            self.assertGreater(seen["late"] * 100, seen["requests"])
            # Another goal is looked at from its beginning.
            self.cairn("class", "set", "quick", "--latency-goal", "10s")
            self.assertNotIn("met", goal())
            harness.wait_until(lambda: goal().get("met") is True, GOAL_SECONDS_MAX, "the goal is met")
            self.assertEqual(goal()["late_total"], 0)
            harness.wait_until(lambda: told("ended"), TOLD_SECONDS_MAX, "the end is told")
        (began,), (ended,) = told("began"), told("ended")
        self.assertIn("took longer than 50µs", began["message"])
        self.assertIn("meets its latency objective again", ended["message"])
        # Commands of LUNs count, too.
        initiator = "iqn.2025-11.test:host"
        self.cairn("lun", "create", "v/disk", "--size", "64MiB")
        self.cairn("igroup", "create", "v/hosts", "--initiator", initiator)
        self.cairn("lun", "map", "v/disk", "--igroup", "hosts")
        target = json.loads(self.cairn("lun", "show", "v/disk", "--json").stdout)["target"]
        with iscsi.Session(("127.0.0.1", port), initiator, target) as session:
            session.clear_attentions()
            # The last request of the load may still wait for its disk.
            totals: list[int] = []

            def is_settled():
                totals.append(goal()["requests_total"])
                return len(totals) > 1 and totals[-1] == totals[-2]

            harness.wait_until(is_settled, TOLD_SECONDS_MAX, "the end of the load", 2)
            session.write(0, bytes(4096))
            session.read(0, 4096)
            harness.wait_until_equal(lambda: goal()["requests_total"], totals[-1] + 2, TOLD_SECONDS_MAX, "the requests that count")
        self.assertIn("limits nothing", self.refused("class", "set", "quick", "--latency-goal", "none"))
        self.assertIn("from 50us", self.refused("class", "set", "quick", "--latency-goal", "1us"))
        self.assertIn("total-throughput alone", self.refused("class", "set", "internal", "--latency-goal", "1ms"))

    def test_parts_of_a_volume_have_rates_of_their_own(self):
        """A network of clients, a LUN and a bucket of one volume without a class; kill -9 forgets nothing."""
        ports = [harness.next_port(), harness.next_port()]
        listen = ["--listen-iscsi", f"127.0.0.1:{ports[0]}", "--listen-s3", f"127.0.0.1:{ports[1]}"]
        self.world = self.server(1, listen)
        self.make_volume("v")
        self.cairn("limit", "set", "v", "clients/10.0.0.0/8", "--throughput", "1MB/s")
        with self.load("v") as load:
            self.assert_faster(load, 2, 30 * MB)
            self.cairn("limit", "set", "v", "clients/127.0.0.0/8", "--throughput", "20MB/s")
            time.sleep(CHANGE_SECONDS)
            self.assert_rate(load, 20 * MB, 5)

            def is_told():
                listed = json.loads(self.cairn("limit", "list", "v", "--json").stdout)["limits"]
                now = {part["part"]: part["bytes_per_second"] for part in listed}
                self.assertEqual(now["clients/10.0.0.0/8"], 0)
                return abs(now["clients/127.0.0.0/8"] - 20 * MB) <= 0.2 * 20 * MB

            harness.wait_until(is_told, TOLD_SECONDS_MAX, "that the rate is told")
            self.assertIn("clients/127.0.0.0/8", self.cairn("volume", "show", "v").stdout)
        self.world.kill()
        self.world.start()
        with self.load("v") as load:
            load.rate(1)
            self.assert_rate(load, 20 * MB, 5)
            self.cairn("limit", "clear", "v", "clients/127.0.0.0/8")
            time.sleep(CHANGE_SECONDS)
            self.assert_faster(load, 2, 30 * MB)
        initiator = "iqn.2025-11.test:host"
        self.cairn("igroup", "create", "v/hosts", "--initiator", initiator)
        targets = {}
        for name in ("slow", "free"):
            self.cairn("lun", "create", f"v/{name}", "--size", "64MiB")
            self.cairn("lun", "map", f"v/{name}", "--igroup", "hosts")
            targets[name] = json.loads(self.cairn("lun", "show", f"v/{name}", "--json").stdout)
        self.cairn("limit", "set", "v", "lun/slow", "--write-throughput", "5MB/s")
        self.cairn("bucket", "create", "objects", "--path", "v/b")
        self.cairn("bucket", "create", "free", "--path", "v/c")
        client = s3.client(ports[1], s3.Keys(self.world, "--volume", "v"))
        self.cairn("limit", "set", "v", "bucket/objects", "--throughput", "5MB/s")
        data = os.urandom(256 << 10)

        def rate(work):
            begun = time.monotonic()
            for number in range(40):
                work(number)
            return 40 * len(data) / (time.monotonic() - begun)

        maps = {name: target["maps"][0]["number"] for name, target in targets.items()}
        with iscsi.Session(("127.0.0.1", ports[0]), initiator, targets["slow"]["target"]) as session:
            for lun in maps.values():
                session.clear_attentions(lun)
            write = lambda name: lambda number: session.write(number * 512, data, lun=maps[name])
            self.assertLess(rate(write("slow")), 6 * MB)
            with self.measured():
                self.assertTrue(any(rate(write("free")) > 8 * MB for _ in range(MEASURED_TIMES_MAX)))
        put = lambda bucket: lambda number: client.put_object(Bucket=bucket, Key="k", Body=data)
        self.assertLess(rate(put("objects")), 6 * MB)
        with self.measured():
            self.assertTrue(any(rate(put("free")) > 8 * MB for _ in range(MEASURED_TIMES_MAX)))
        for words, said in (
            (("set", "v", "lun/x"), "limits nothing"),
            (("set", "v", "lun/x", "--throughput", "1"), "below"),
            (("set", "v", "disk/x", "--throughput", "1MB/s"), "lun/NAME"),
            (("set", "none", "lun/x", "--throughput", "1MB/s"), "no volume"),
            (("clear", "v", "lun/x"), "no limit"),
        ):
            self.assertIn(said, self.refused("limit", *words), words)

    def test_a_slowed_lun_holds_up_no_other_and_ends_at_once(self):
        port = harness.next_port()
        self.world = self.server(1, ["--listen-iscsi", f"127.0.0.1:{port}"])
        self.cairn("class", "create", "tiny", "--throughput", "1MB/s")
        self.make_volume("tiny", "--class", "tiny")
        initiator, targets = "iqn.2025-11.test:host", {}
        for volume in ("main", "tiny"):
            self.cairn("lun", "create", f"{volume}/disk", "--size", "64MiB")
            self.cairn("igroup", "create", f"{volume}/hosts", "--initiator", initiator)
            self.cairn("lun", "map", f"{volume}/disk", "--igroup", "hosts")
            targets[volume] = json.loads(self.cairn("lun", "show", f"{volume}/disk", "--json").stdout)["target"]
        session = lambda volume: iscsi.Session(("127.0.0.1", port), initiator, targets[volume])
        slow = self.enterContextHere(session("tiny"))
        slow.clear_attentions()
        # More than all commands together may hold, which takes minutes.
        length = 8 << 20
        for _ in range(60):
            cdb = struct.pack(">BBQI2x", 0x88, 0, 0, length // 512)
            specific = struct.pack(">III", length, slow.command_number, slow.status_number) + cdb
            slow.send(iscsi.SCSI_COMMAND, 0x81 | 0x40, specific=specific)
            slow.command_number += 1
        begun = time.monotonic()
        data = os.urandom(1 << 18)
        with session("main") as free:
            free.clear_attentions()
            for number in range(20):
                free.write(number * len(data), data)
                self.assertEqual(free.read(number * len(data), len(data)), data)
        with self.measured():
            self.assertLess(time.monotonic() - begun, 10)
        # What waits is no reason to keep the session: the same initiator comes again at once.
        begun, isid = time.monotonic(), slow.isid
        slow.stream.close()
        with session("tiny") as again:
            self.assertNotEqual(again.isid, isid)
            again.clear_attentions()
        harness.wait_until(lambda: self.volume("tiny")["rates"]["waiting"] == 0, TOLD_SECONDS_MAX, "the end of what waited")
        with self.measured():
            self.assertLess(time.monotonic() - begun, 15)

    def test_the_server_s_own_work_keeps_to_its_rate(self):
        self.world = self.server(3, ["--scrub-rate", "0"])
        path = self.scratch / "file"
        path.write_bytes(os.urandom(64 << 20))
        self.cairn("cp", "-q", path, self.world.url("file"))
        # It outlives a restart.
        self.cairn("class", "set", "internal", "--total-throughput", "4MB/s")
        self.world.restart()
        self.cairn("scrub", "start")
        done = lambda: self.world.metrics()["cairn_internal_bytes_total"]
        harness.wait_until(lambda: done() > 0, TOLD_SECONDS_MAX, "the scrub goes on")
        before, begun = done(), time.monotonic()
        time.sleep(MEASURED_SECONDS)
        rate = (done() - before) / (time.monotonic() - begun)
        # A shard is a part of some MiB, and is counted as a whole.
        with self.measured():
            self.assertLess(abs(rate - 4 * MB) / (4 * MB), 0.25, f"{rate / MB:.2f} MB/s")
        self.cairn("class", "set", "internal", "--total-throughput", "none")
        scrubbed = lambda: json.loads(self.cairn("scrub", "status", "--json").stdout)["stage"] == "done"
        # 200 MB of shards would take most of a minute at the rate that was.
        harness.wait_until(scrubbed, 30, "the scrub ends without a limit")
        for words, said in (
            (("class", "set", "internal", "--iops", "5"), "total-throughput alone"),
            (("class", "set", "internal", "--total-throughput", "0"), "zero"),
            (("class", "create", "internal", "--iops", "5"), "already"),
            (("class", "delete", "internal"), "built in"),
            (("volume", "set", "main", "--class", "internal"), "the server itself"),
        ):
            self.assertIn(said, self.refused(*words), words)

    def test_what_makes_no_sense_is_refused(self):
        self.world = self.server(1)
        self.cairn("class", "create", "gold", "--throughput-per-tib", "128MiB/s", "--burst", "4x", "--burst-credit", "2h")
        for words, said in (
            (("create", "zero", "--throughput", "0"), "zero"),
            (("create", "low", "--throughput", "1MB/s", "--burst", "0.5x"), "at least the baseline"),
            (("create", "empty",), "limits nothing"),
            (("create", "gold", "--iops", "5"), "already"),
            (("create", "premium", "--iops", "5"), "built in"),
            (("create", "none", "--iops", "5"), "none"),
            (("set", "silver", "--iops", "5"), "no class"),
            (("set", "gold", "--throughput-per-tib", "none"), "limits nothing"),
            (("delete", "premium"), "built in"),
            (("show", "silver"), "no class"),
        ):
            self.assertIn(said, self.refused("class", *words), words)
        self.assertIn("--quota", self.refused("volume", "set", "main", "--class", "gold"))
        self.assertIn("no class", self.refused("volume", "set", "main", "--class", "silver"))
        self.assertIn("larger", self.refused("volume", "set", "main", "--class", "gold", "--quota", "1MiB"))
        self.cairn("volume", "set", "main", "--class", "gold", "--quota", "10TiB")
        self.assertIn("by main", self.refused("class", "delete", "gold"))
        self.assertIn("--quota", self.refused("volume", "set", "main", "--quota", "none"))
        shown = self.volume("main")
        self.assertEqual((shown["class"], self.limit("main")["baseline"]), ("gold", 1280 << 20))
        self.assertEqual(self.limit("main")["burst"], 5120 << 20)
        self.world.restart()
        self.assertEqual(self.limit("main")["baseline"], 1280 << 20)
        self.assertIn("main", self.cairn("class", "show", "gold").stdout)
        self.cairn("volume", "set", "main", "--class", "premium")
        # 64 KB/s for each GB.
        self.assertEqual(self.limit("main")["baseline"], 10 * (64 * (1 << 40) // MB))
        self.cairn("class", "delete", "gold")
        names = [entry["name"] for entry in json.loads(self.cairn("class", "list", "--json").stdout)["classes"]]
        self.assertNotIn("gold", names)
        self.assertIn("persistent-12-cache", names)
