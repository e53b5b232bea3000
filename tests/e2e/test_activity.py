"""What clients do now: who, with which files, how often and how fast, over NFS, iSCSI and S3; and nothing when they stop."""

import json
import threading
import time
import urllib.error

from lib import harness, iscsi, rawnfs, s3
from lib.worlds import WorldTest, content

HERE, THERE = "127.0.0.1", "127.0.0.2"
INITIATOR = "iqn.2025-11.test:host"
HEAVY_LEN_BYTES = 64 << 10
LIGHT_LEN_BYTES = 4 << 10
# Requests of each second; loads keep to it as far as the machine lets them.
HEAVY_RATE, LIGHT_RATE = 50, 10
OFF_MAX = 0.2
# What is told is of 10 seconds at most, so a load that began is told in full after so long, and one that ended is gone.
KNOWN_SECONDS_MAX = 120
GONE_SECONDS_MAX = 40
FILES_COUNT = 150
SHOWN_COUNT = 20
EXIT_FAILED = 1


class Paced(threading.Thread):
    """Does something so many times a second, until it is told to end."""

    def __init__(self, work, rate):
        super().__init__(daemon=True)
        self.work, self.interval = work, 1 / rate
        self.ended, self.failure = threading.Event(), None

    def run(self):
        try:
            due = time.monotonic()
            while not self.ended.wait(max(0, due - time.monotonic())):
                self.work()
                due += self.interval
        except Exception as error:  # noqa: BLE001 - told by `stop`
            self.failure = error

    def stop(self):
        self.ended.set()
        self.join(KNOWN_SECONDS_MAX)
        if self.failure:
            raise self.failure


class Activity(WorldTest):
    def cairn(self, *words, **options):
        return self.world.cairn(*words, **options)

    def activity(self, volume="main"):
        return json.loads(self.world.get(f"/api/v1/volumes/{volume}/activity"))

    def peer(self, source=HERE):
        peer = rawnfs.Peer(self.world.port, source)
        self.addCleanup(peer.socket.close)
        status, root = peer.mount("/main")
        self.assertEqual(status, rawnfs.OK)
        return peer, root

    def file(self, peer, directory, name, len_bytes):
        status, handle, _ = peer.create(directory, name)
        self.assertEqual(status, rawnfs.OK)
        self.assertEqual(peer.write(handle, bytes(len_bytes)), rawnfs.OK)
        return handle

    def loads(self, *loads):
        for load in loads:
            load.start()
            self.addCleanup(load.ended.set)
        return loads

    def near(self, rate, wanted):
        return abs(rate - wanted) <= OFF_MAX * wanted

    def wait_for(self, is_so, what, seconds=KNOWN_SECONDS_MAX, volume="main"):
        """The first answer of which something holds; tells the last one if there is none."""
        seen: list = []

        def look():
            seen[:] = [self.activity(volume)]
            return is_so(seen[0])

        try:
            harness.wait_until(look, seconds, what)
        except Exception:
            print(json.dumps(seen, indent=2))
            raise
        return seen[0]

    def rows(self, view, kind, name):
        return {row[name]: row for row in view[kind]}

    def test_two_clients_one_heavy_file_and_nothing_afterwards(self):
        self.world = self.server(1)
        self.cairn("export", "set", "main", "--client", "127.0.0.0/8", "--squash", "none")
        heavy_peer, root = self.peer(HERE)
        light_peer, _ = self.peer(THERE)
        status, folder = heavy_peer.mkdir(root, "videos")
        self.assertEqual(status, rawnfs.OK)
        heavy = self.file(heavy_peer, folder, "heavy.mkv", HEAVY_LEN_BYTES)
        light = self.file(heavy_peer, root, "light", LIGHT_LEN_BYTES)
        loads = self.loads(
            Paced(lambda: heavy_peer.read_bytes(heavy, 0, HEAVY_LEN_BYTES), HEAVY_RATE),
            Paced(lambda: light_peer.write(light, bytes(LIGHT_LEN_BYTES)), LIGHT_RATE),
        )

        def is_told(view):
            clients, files = self.rows(view, "clients", "client"), self.rows(view, "files", "name")
            heavies = (clients.get(HERE), files.get("/videos/heavy.mkv"))
            lights = (clients.get(THERE), files.get("/light"))
            read, written = HEAVY_RATE * HEAVY_LEN_BYTES, LIGHT_RATE * LIGHT_LEN_BYTES
            return (
                # What made the files is over; a server that stood still tells of longer.
                {row["operation"] for row in view["operations"]} == {"read", "write"}
                and 4.9 <= view["seconds"] <= 11
                and all(row and self.near(row["operations_per_second"], HEAVY_RATE) for row in heavies)
                and all(self.near(row["read_bytes_per_second"], read) for row in heavies)
                and all(row and self.near(row["operations_per_second"], LIGHT_RATE) for row in lights)
                and all(self.near(row["written_bytes_per_second"], written) for row in lights)
            )

        view = self.wait_for(is_told, "both are told with their rates")
        self.assertEqual([row["client"] for row in view["clients"]], [HERE, THERE])
        self.assertEqual([row["name"] for row in view["files"]], ["/videos/heavy.mkv", "/light"])
        self.assertEqual([row["operation"] for row in view["operations"]], ["read", "write"])
        for row in (*view["clients"], *view["files"]):
            self.assertFalse(row["lower_bound"])
        self.assertFalse(view["has_more_clients"] or view["has_more_files"])
        for row in view["operations"]:
            self.assertEqual(row["protocol"], "nfs")
            self.assertGreater(row["latency_mean_microseconds"], 0)
            self.assertGreaterEqual(row["latency_max_microseconds"], row["latency_mean_microseconds"])
        for key in ("operations_per_second", "read_bytes_per_second", "written_bytes_per_second"):
            # Each was rounded.
            self.assertAlmostEqual(view[key], sum(row[key] for row in view["clients"]), delta=2)
        self.check_commands()
        # A file is called what it is called now.
        other_peer, _ = self.peer(HERE)
        self.assertEqual(other_peer.rename(folder, "heavy.mkv", root, "moved.mkv"), rawnfs.OK)
        self.wait_for(lambda view: "/moved.mkv" in self.rows(view, "files", "name"), "the new name is told")
        for load in loads:
            load.stop()
        view = self.wait_for(lambda view: not view["operations"], "nothing is told any more", GONE_SECONDS_MAX)
        self.assertEqual((view["clients"], view["files"], view["operations_per_second"]), ([], [], 0))
        self.assertIn("No client uses", self.cairn("top", "main").stdout)

    def check_commands(self):
        text = self.cairn("top", "main").stdout
        for part in (HERE, THERE, "/videos/heavy.mkv", "read", "NFS", "MEAN"):
            self.assertIn(part, text)
        self.assertNotIn("\x1b", text)
        view = json.loads(self.cairn("top", "main", "--json", "--once").stdout)
        self.assertEqual(view["volume"], "main")

        def is_told():
            (row,) = json.loads(self.cairn("top", "--json").stdout)["volumes"]
            self.assertEqual(row["volume"], "main")
            return row["operations_per_second"] > HEAVY_RATE / 2

        harness.wait_until(is_told, KNOWN_SECONDS_MAX, "that the volume is told with its rate")
        self.assertIn("main", self.cairn("top").stdout)
        # Bad input, and who may look.
        run = self.cairn("top", "nope", check=False)
        self.assertEqual(run.returncode, EXIT_FAILED, run.stderr)
        self.assertIn("nope", run.stderr)
        for path, status in (("nope", 404), ("no..pe%2F", 400), ("%ff", 400)):
            with self.assertRaises(urllib.error.HTTPError) as refused:
                self.activity(path)
            self.assertIn(refused.exception.code, (status, 404), path)

    def test_many_files_take_no_more_than_some_and_that_is_said(self):
        self.world = self.server(1)
        self.cairn("export", "set", "main", "--client", HERE, "--squash", "none")
        peer, root = self.peer()
        heavy = self.file(peer, root, "heavy", HEAVY_LEN_BYTES)
        handles = [self.file(peer, root, f"small-{number}", 1) for number in range(FILES_COUNT)]

        def each():
            """What is told of one look at each; all of it, or nothing: on a busy machine it may take longer than is told of."""
            self.wait_for(lambda view: not view["operations"], "what was before is over", GONE_SECONDS_MAX)
            peer.read_bytes(heavy, 0, HEAVY_LEN_BYTES)
            for handle in handles:
                peer.getattr(handle)
            view = self.activity()
            done = {name: row["operations_per_second"] * view["seconds"] for name, row in self.rows(view, "operations", "operation").items()}
            is_whole = "read" in done and abs(done.get("getattr", 0) - FILES_COUNT) <= 0.02 * FILES_COUNT
            # Those that are told may be wrong by what others had; what all did together is right.
            return view if is_whole else None

        view = harness.wait_until(each, KNOWN_SECONDS_MAX, "that what all did together is told")
        self.assertEqual(len(view["files"]), SHOWN_COUNT)
        self.assertTrue(view["has_more_files"])
        self.assertFalse(view["has_more_clients"])
        self.assertEqual(view["files"][0]["name"], "/heavy")
        self.assertTrue(any(row["lower_bound"] for row in view["files"]))
        # A file without a name is told by its number; it was used just now.
        peer.read_bytes(heavy, 0, HEAVY_LEN_BYTES)
        self.assertEqual(peer.remove(root, "heavy"), rawnfs.OK)
        view = self.activity()
        nameless = [row for row in view["files"] if "name" not in row or row["name"] is None]
        self.assertEqual([row["kind"] for row in nameless], ["file"])
        self.assertGreater(nameless[0]["inode"], 1)
        self.assertIn("which has no name now", self.cairn("top", "main").stdout)

    def test_luns_and_objects_are_told_with_who_uses_them(self):
        ports = [harness.next_port(), harness.next_port()]
        listen = ["--listen-iscsi", f"{HERE}:{ports[0]}", "--listen-s3", f"{HERE}:{ports[1]}"]
        self.world = self.server(1, listen)
        self.cairn("lun", "create", "main/disk", "--size", "64MiB")
        self.cairn("igroup", "create", "main/hosts", "--initiator", INITIATOR)
        self.cairn("lun", "map", "main/disk", "--igroup", "hosts")
        target = json.loads(self.cairn("lun", "show", "main/disk", "--json").stdout)["target"]
        self.cairn("bucket", "create", "photos", "--path", "main/photos")
        client = s3.client(ports[1], s3.Keys(self.world, "--volume", "main"))
        data = content("photo", 300_000)
        client.put_object(Bucket="photos", Key="2026/a photo.jpg", Body=data)
        get = lambda: client.get_object(Bucket="photos", Key="2026/a photo.jpg")["Body"].read()
        self.assertEqual(get(), data)
        with iscsi.Session((HERE, ports[0]), INITIATOR, target) as session:
            session.clear_attentions()
            loads = self.loads(Paced(get, LIGHT_RATE), Paced(lambda: session.write(0, bytes(64 << 10)), LIGHT_RATE))

            def is_told(view):
                files, clients = self.rows(view, "files", "name"), self.rows(view, "clients", "client")
                object_row, lun_row = files.get("photos/2026/a photo.jpg"), files.get("disk")
                return (
                    {row["operation"] for row in view["operations"]} == {"GET", "WRITE"}
                    and object_row and lun_row and len(files) == 2 and len(clients) == 2
                    and self.near(object_row["read_bytes_per_second"], LIGHT_RATE * len(data))
                    and self.near(object_row["operations_per_second"], LIGHT_RATE)
                    and self.near(lun_row["written_bytes_per_second"], LIGHT_RATE * (64 << 10))
                    and self.near(lun_row["operations_per_second"], LIGHT_RATE)
                )

            view = self.wait_for(is_told, "the LUN and the object are told")
            for load in loads:
                load.stop()
        files, clients = self.rows(view, "files", "name"), self.rows(view, "clients", "client")
        self.assertEqual((files["disk"]["kind"], files["photos/2026/a photo.jpg"]["kind"]), ("lun", "object"))
        self.assertEqual({client: row["protocol"] for client, row in clients.items()}, {INITIATOR: "iscsi", HERE: "s3"})
        self.assertEqual(view["clients"][0]["client"], HERE, "it moves most")
        for row in view["operations"]:
            self.assertGreaterEqual(row["latency_max_microseconds"], row["latency_mean_microseconds"])
