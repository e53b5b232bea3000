"""Cold data in an object store: `cairn tier`, in a directory, in the S3 server of another Cairn, in Azure and in Google Cloud Storage."""

import concurrent.futures
import http.server
import json
import os
import pathlib
import random
import shutil
import threading
import time

from lib import cloudstores, harness, libnfs, s3
from lib.worlds import WorldTest, content

#: For a busy machine: with SOON a look comes each second, and two seconds later after trouble.
MOVED_SECONDS_MAX = 240
#: Instead of looks every ten seconds, and a minute until what a kill left open, or what was copied for the tier, is sealed, and until
#: the files of segments that went are given back. Long enough for a client that writes on.
SOON = "tier_interval = 1\nidle_after = 3\n"
KILLS_COUNT = int(os.environ.get("CAIRN_TIER_KILLS", "4"))
#: What is asked by command costs as much as what is waited for.
POLL_SECONDS = 0.5


def wait_until(done, what):
    return harness.wait_until(done, MOVED_SECONDS_MAX, what, POLL_SECONDS)


class Tiers(WorldTest):
    def setUp(self):
        super().setUp()
        self.folder = self.scratch / "cold"
        self.folder.mkdir()

    def server(self, disks, flags=(), name="pool"):
        config = self.scratch / "soon.toml"
        config.write_text(SOON)
        return super().server(disks, ["--config", str(config), *flags], name)

    def tier(self, world):
        return json.loads(world.cairn("tier", "status", "cold", "--json").stdout)

    def objects_in(self, folder):
        return [path for path in pathlib.Path(folder).rglob("*") if path.is_file() and path.name != "cairn-tier.json"]

    def shard_bytes(self, world):
        return sum(path.stat().st_size for path in pathlib.Path(world.root).rglob("shards/*/*"))

    def send_all(self, world):
        """A start seals what is open, so that it goes at once."""
        world.cairn("volume", "set", "main", "--tier", "cold", "--tiering", "all")
        world.stop()
        world.start()
        self.wait_sent(world)

    def wait_sent(self, world):
        def sent():
            tier = self.tier(world)
            return tier["objects"] > 0 and tier["unused_objects"] == 0 and tier["volumes"][0]["resting_segments"] == 0

        wait_until(sent, "data goes to the tier")
        # All of it: nothing but files of the log and of the state is left on the disks.
        wait_until(lambda: self.shard_bytes(world) < 2 << 20, "the disks are empty")

    def wait_back(self, world):
        world.cairn("volume", "set", "main", "--tiering", "none")

        def is_back():
            tier = self.tier(world)
            return tier["objects"] == 0 and tier["unused_objects"] == 0

        wait_until(is_back, "data comes back")

    def test_data_goes_to_a_directory_and_comes_back(self):
        world = self.server(4)
        data, other = os.urandom(24 << 20), content(2, 3_000_000)
        with libnfs.Mount(world.libnfs_url()) as mount:
            mount.write_file("/cold", data)
        added = world.cairn("tier", "add", "cold", f"file://{self.folder}")
        self.assertIn("cold", added.stdout)
        self.send_all(world)
        tier = self.tier(world)
        self.assertGreaterEqual(tier["bytes"], len(data))
        self.assertGreater(tier["saved_bytes"], tier["bytes"])
        self.assertTrue(tier["working"], tier)
        self.assertIn("tiering", world.cairn("volume", "show", "main").stdout)
        self.assertEqual(world.metrics()['cairn_tier_objects{tier="cold"}'], tier["objects"])
        # It is read from there, after kill -9 too, and what is new goes on.
        world.kill()
        world.start()
        with libnfs.Mount(world.libnfs_url()) as mount:
            self.assertEqual(mount.read_file("/cold"), data)
            mount.write_file("/warm", other)
            self.assertEqual(mount.read_file("/warm"), other)
        self.assertGreaterEqual(self.tier(world)["read_bytes"], len(data))
        self.assertIn("are intact", world.cairn("tier", "check", "cold").stdout)
        # It holds data, so it stays.
        refused = world.cairn("tier", "remove", "cold", check=False)
        self.assertEqual(refused.returncode, 4, refused.stderr)
        self.assertIn("--tiering none", refused.stderr)

        # A byte that is wrong is an error, and no other byte.
        world.kill()
        damaged = self.objects_in(self.folder)[0]
        right = damaged.read_bytes()
        damaged.write_bytes(right[:100_000] + bytes([right[100_000] ^ 1]) + right[100_001:])
        world.start()
        checked = world.cairn("tier", "check", "cold", check=False)
        self.assertEqual(checked.returncode, 1, checked.stdout)
        with libnfs.Mount(world.libnfs_url()) as mount:
            with self.assertRaises(OSError):
                mount.read_file("/cold")
            self.assertEqual(mount.read_file("/warm"), other)
        damaged.write_bytes(right)
        with libnfs.Mount(world.libnfs_url()) as mount:
            self.assertEqual(mount.read_file("/cold"), data)

        self.wait_back(world)
        self.assertEqual(self.objects_in(self.folder), [])
        with libnfs.Mount(world.libnfs_url()) as mount:
            self.assertEqual(mount.read_file("/cold"), data)
        world.cairn("tier", "remove", "cold")
        self.assertEqual(json.loads(world.cairn("tier", "list", "--json").stdout)["tiers"], [])
        self.assertFalse((self.folder / "cairn-tier.json").exists())
        world.stop()
        world.start()
        with libnfs.Mount(world.libnfs_url()) as mount:
            self.assertEqual(mount.read_file("/cold"), data)

    def test_a_deleted_volume_leaves_no_objects(self):
        world = self.server(1)
        world.cairn("tier", "add", "cold", f"file://{self.folder}")
        world.cairn("volume", "create", "gone")
        world.cairn("export", "set", "gone", "--client", "127.0.0.1", "--rw", "--squash", "none")
        with libnfs.Mount(world.libnfs_url().replace("/main", "/gone")) as mount:
            mount.write_file("/file", os.urandom(5 << 20))
        world.cairn("volume", "set", "gone", "--tier", "cold", "--tiering", "all")
        world.stop()
        world.start()
        wait_until(lambda: self.objects_in(self.folder), "data goes to the tier")
        world.cairn("volume", "delete", "gone", "--yes", "--force")
        wait_until(lambda: not self.objects_in(self.folder), "its objects are deleted")

    def test_kills_between_all_steps_lose_nothing(self):
        world = self.server(3)
        rng = random.Random(7)
        files = {f"/{at}": os.urandom(rng.randrange(1 << 20, 4 << 20)) for at in range(10)}
        world.cairn("tier", "add", "cold", f"file://{self.folder}")
        with libnfs.Mount(world.libnfs_url()) as mount:
            for name, data in files.items():
                mount.write_file(name, data)
        world.stop()
        for at in range(KILLS_COUNT):
            world.start()
            is_out = at % 2 == 0
            world.cairn("volume", "set", "main", "--tier", "cold", "--tiering", "all" if is_out else "none")
            # As soon as something has moved: its shards, or its object, are just being deleted.
            moved = lambda is_out=is_out: (world.metrics()['cairn_tier_objects{tier="cold"}'] > 0) == is_out
            harness.wait_until(moved, MOVED_SECONDS_MAX, "something moves")
            world.kill()
        world.start()
        with libnfs.Mount(world.libnfs_url()) as mount:
            for name, data in files.items():
                self.assertEqual(mount.read_file(name), data, name)
        world.cairn("volume", "set", "main", "--tiering", "all")
        self.wait_sent(world)
        self.assertEqual(len(self.objects_in(self.folder)), self.tier(world)["objects"])
        self.wait_back(world)
        self.assertEqual(self.objects_in(self.folder), [])
        with libnfs.Mount(world.libnfs_url()) as mount:
            for name, data in files.items():
                self.assertEqual(mount.read_file(name), data, name)

    def test_a_directory_that_is_away_for_a_while_is_no_damage(self):
        world = self.server(3)
        data = os.urandom(12 << 20)
        with libnfs.Mount(world.libnfs_url()) as mount:
            mount.write_file("/cold", data)
        world.cairn("tier", "add", "cold", f"file://{self.folder}")
        self.send_all(world)
        # Past what is in memory.
        world.kill()
        world.start()
        away = self.scratch / "away"
        self.folder.rename(away)
        kinds = lambda: {warning["kind"] for warning in world.status()["warnings"]}
        with libnfs.Mount(world.libnfs_url()) as mount:
            for _ in range(2):
                with self.assertRaises(OSError):
                    mount.read_file("/cold")
                # As below a mount: a folder that is not the tier.
                self.folder.mkdir(exist_ok=True)
        wait_until(lambda: "tier_away" in kinds(), "it is told that the tier is away")
        self.assertNotIn("reads_damaged", kinds())
        self.assertEqual(world.metrics()["cairn_store_damaged_reads_total"], 0)
        self.folder.rmdir()
        away.rename(self.folder)
        # Nobody reads meanwhile.
        wait_until(lambda: "tier_away" not in kinds(), "the tier is there again")
        self.assertNotIn("reads_damaged", kinds())
        with libnfs.Mount(world.libnfs_url()) as mount:
            self.assertEqual(mount.read_file("/cold"), data)

    def test_damage_that_is_mended_is_not_told_any_more(self):
        world = self.server(3)
        data = os.urandom(12 << 20)
        with libnfs.Mount(world.libnfs_url()) as mount:
            mount.write_file("/cold", data)
        world.cairn("tier", "add", "cold", f"file://{self.folder}")
        self.send_all(world)
        world.kill()
        world.start()
        lost = self.objects_in(self.folder)[0]
        lost.rename(self.scratch / "lost")
        kinds = lambda: {warning["kind"] for warning in world.status()["warnings"]}
        with libnfs.Mount(world.libnfs_url()) as mount:
            with self.assertRaises(OSError):
                mount.read_file("/cold")
        self.assertIn("reads_damaged", kinds())
        shutil.move(self.scratch / "lost", lost)
        wait_until(lambda: "reads_damaged" not in kinds(), "all can be read again")
        with libnfs.Mount(world.libnfs_url()) as mount:
            self.assertEqual(mount.read_file("/cold"), data)

    def test_another_cairn_is_the_tier(self):
        port = harness.next_port()
        store = self.server(1, ["--listen-s3", f"127.0.0.1:{port}"], "store")
        store.cairn("bucket", "create", "archive")
        keys = s3.Keys(store)
        credentials = self.scratch / "credentials"
        credentials.write_text(
            f"[default]\naws_access_key_id = {keys.id}\naws_secret_access_key = {keys.secret}\ncredential_host = 127.0.0.1:{port}\n"
        )
        url = f"s3://archive/one?endpoint=http://127.0.0.1:{port}&region=us-east-1"
        world = self.server(3)
        add = ["tier", "add", "cold", url, "--credentials-file", str(credentials)]
        credentials.chmod(0o644)
        refused = world.cairn(*add, check=False)
        self.assertIn("chmod 600", refused.stderr)
        credentials.chmod(0o600)
        added = world.cairn(*add)
        shown = world.cairn("tier", "show", "cold").stdout + world.cairn("tier", "show", "cold", "--json").stdout
        self.assertNotIn(keys.secret, added.stdout + shown)
        self.assertNotIn(keys.id, shown)
        # It is this pool's now.
        other = self.server(1, name="other")
        refused = other.cairn(*add, check=False)
        self.assertEqual(refused.returncode, 4, refused.stderr)
        self.assertIn("belongs to another pool", refused.stderr)

        data, warm = os.urandom(20 << 20), content(3, 1_000_000)
        with libnfs.Mount(world.libnfs_url()) as mount:
            mount.write_file("/cold", data)
        self.send_all(world)
        client = s3.client(port, keys)
        listed = client.list_objects_v2(Bucket="archive")["Contents"]
        self.assertEqual(len(listed), self.tier(world)["objects"] + 1)
        with libnfs.Mount(world.libnfs_url()) as mount:
            self.assertEqual(mount.read_file("/cold"), data)

        # While it is away its bytes alone are an error.
        store.kill()
        world.kill()
        world.start()
        with libnfs.Mount(world.libnfs_url()) as mount:
            mount.write_file("/warm", warm)
            with self.assertRaises(OSError):
                mount.read_file("/cold")
            self.assertEqual(mount.read_file("/warm"), warm)
        self.assertFalse(self.tier(world)["working"])
        store.start()

        def reads():
            try:
                with libnfs.Mount(world.libnfs_url()) as mount:
                    return mount.read_file("/cold") == data
            except OSError:
                return False

        wait_until(reads, "the tier answers again")
        self.wait_back(world)
        left = [entry["Key"] for entry in client.list_objects_v2(Bucket="archive")["Contents"]]
        self.assertEqual(left, ["one/cairn-tier.json"])
        world.cairn("tier", "remove", "cold")
        with libnfs.Mount(world.libnfs_url()) as mount:
            self.assertEqual(mount.read_file("/cold"), data)

    def test_azure_is_the_tier(self):
        store = cloudstores.Azurite(self.scratch / "azurite")
        self.addCleanup(store.stop)
        store.start()
        store.make("cold")
        self.check_cloud(store, "one is of another key", cloudstores.fresh_key())

        # The key is changed, and nobody starts the server anew.
        world = self.world
        store.stop()
        store.key = cloudstores.fresh_key()
        store.start()
        self.keys.write_text(store.credentials())
        self.check_leaving(store, world)

    def test_google_is_the_tier(self):
        store = cloudstores.Google()
        self.addCleanup(store.stop)
        store.start()
        store.make("cold")
        store.is_allowed = False
        world = self.server(1, name="refused")
        self.keys = self.scratch / "keys"
        self.keys.write_text(store.credentials())
        self.keys.chmod(0o600)
        refused = world.cairn("tier", "add", "cold", store.url("cold"), "--credentials-file", self.keys, check=False)
        self.assertIn("refuses the credentials", refused.stderr)
        store.is_allowed = True
        self.check_cloud(store, "no key at all", None)
        self.assertGreater(store.conditional_count, 0)
        self.check_leaving(store, self.world)

    def check_cloud(self, store, why, wrong_key):
        """Adding it, wrongly and well; data goes there, is read from there, and is an error while it is away."""
        self.keys = self.scratch / "keys"
        self.world = world = self.server(3)
        add = ["tier", "add", "cold", store.url("cold/one"), "--credentials-file", str(self.keys)]
        for text, mode, said in [
            ("", 0o600, "needs"),
            ("nonsense", 0o600, "needs"),
            (store.credentials(), 0o644, "chmod 600"),
            *([(store.credentials(wrong_key), 0o600, "refuses the credentials")] if wrong_key else []),
        ]:
            self.keys.write_text(text)
            self.keys.chmod(mode)
            refused = world.cairn(*add, check=False)
            self.assertNotEqual(refused.returncode, 0, (text, why))
            self.assertIn(said, refused.stderr, (text, why))
        self.keys.write_text(store.credentials())
        self.keys.chmod(0o600)
        refused = world.cairn("tier", "add", "cold", store.url("absent"), "--credentials-file", self.keys, check=False)
        self.assertNotEqual(refused.returncode, 0)
        self.assertIn("create the bucket or container first", refused.stderr)
        self.assertEqual(json.loads(world.cairn("tier", "list", "--json").stdout)["tiers"], [])

        # Of several pools that want one place at once it is one's.
        other = self.server(1, name="other")
        for at in range(3):
            # Each of the two has looked before one of them writes.
            if isinstance(store, cloudstores.Google):
                store.looks = threading.Barrier(2)
            words = ["tier", "add", f"race{at}", store.url(f"cold/race{at}"), "--credentials-file", self.keys]
            with concurrent.futures.ThreadPoolExecutor(2) as both:
                adding = [both.submit(server.cairn, *words, check=False) for server in (world, other)]
                done = [one.result() for one in adding]
            store.looks = None
            self.assertEqual(sorted(one.returncode for one in done), [0, 4], [one.stderr for one in done])
            self.assertIn("belongs to another pool", done[0].stderr + done[1].stderr)
            (world, other)[done[1].returncode == 0].cairn("tier", "remove", f"race{at}")
        self.assertEqual(store.names("cold"), [])

        shown = world.cairn(*add).stdout + world.cairn("tier", "show", "cold", "--json").stdout
        self.assertNotIn(getattr(store, "key", "private_key"), shown)
        refused = other.cairn(*add, check=False)
        self.assertIn("belongs to another pool", refused.stderr)
        self.data = os.urandom(40 << 20)
        with libnfs.Mount(world.libnfs_url()) as mount:
            mount.write_file("/cold", self.data)
        self.send_all(world)
        self.assertEqual(len(store.names("cold")), self.tier(world)["objects"] + 1)
        self.assertIn("are intact", world.cairn("tier", "check", "cold").stdout)
        store.stop()
        world.kill()
        world.start()
        with libnfs.Mount(world.libnfs_url()) as mount, self.assertRaises(OSError):
            mount.read_file("/cold")
        store.start()

    def check_leaving(self, store, world):
        def reads():
            try:
                with libnfs.Mount(world.libnfs_url()) as mount:
                    return mount.read_file("/cold") == self.data
            except OSError:
                return False

        wait_until(reads, "the tier answers again")
        self.wait_back(world)
        self.assertEqual(store.names("cold"), ["one/cairn-tier.json"])
        # Those of a deleted volume are found by what is listed.
        world.cairn("volume", "create", "gone")
        world.cairn("export", "set", "gone", "--client", "127.0.0.1", "--rw", "--squash", "none")
        with libnfs.Mount(world.libnfs_url().replace("/main", "/gone")) as mount:
            mount.write_file("/file", os.urandom(5 << 20))
        world.cairn("volume", "set", "gone", "--tier", "cold", "--tiering", "all")
        world.stop()
        world.start()
        wait_until(lambda: len(store.names("cold")) > 1, "data goes to the tier")
        world.cairn("volume", "delete", "gone", "--yes", "--force")
        wait_until(lambda: len(store.names("cold")) == 1, "its objects are deleted")

    def test_certain_files_alone_go(self):
        world = self.server(3)
        world.cairn("tier", "add", "cold", f"file://{self.folder}")
        names = [f"/{at}{ending}" for at in range(4) for ending in (".mp4", ".dat")] + ["/small.mp4"]
        files = {name: content(at, 400_000 if "small" in name else 4 << 20) for at, name in enumerate(names)}
        large = [name for name in names if name.endswith(".mp4") and "small" not in name]
        # In one segment, as far as that goes: none is written from its beginning on.
        with libnfs.Mount(world.libnfs_url()) as mount:
            for name in names:
                mount.write_file(name, b"")
            part_len = 128 << 10
            for start in reversed(range(0, 4 << 20, part_len)):
                for name in names:
                    if part := files[name][start : start + part_len]:
                        with mount.open(name, os.O_WRONLY) as file:
                            file.write(start, part)
                            file.sync()
        for words, why in [
            (["--tier-files", "videos/*.mp4"], "without '/'"),
            (["--tier-files", "*.mp4,"], "a comma between"),
            (["--tier-files", "[a-"], "a ']' behind"),
            (["--tier-min-size", "much"], "a size such as"),
            (["--tier-min-size", "0"], "a size such as"),
            (["--tier-min-age", "30"], "such as 12h or 30d"),
            (["--tier-min-age", "0d"], "such as 12h or 30d"),
            (["--tiering", "snapshot-only", "--tier-files", "*.mp4"], "stays on the disks"),
        ]:
            refused = world.cairn("volume", "set", "main", "--tier", "cold", *words, check=False)
            self.assertNotEqual(refused.returncode, 0, words)
            self.assertIn(why, refused.stderr, words)
        of_files = ["--tier-files", "*.mp4,*.fastq.gz", "--tier-min-size", "1MiB"]
        world.cairn("volume", "set", "main", "--tier", "cold", "--tiering", "all", *of_files, "--tier-min-age", "30d")
        world.stop()
        world.start()
        shown = world.cairn("volume", "show", "main").stdout
        self.assertIn("files *.mp4,*.fastq.gz, of 1 MiB or more, not changed for 30d", shown)
        self.assertIn("files *.mp4,*.fastq.gz", world.cairn("tier", "status", "cold").stdout)
        looked = wait_until(lambda: self.tier(world)["volumes"][0], "it is served")
        self.assertEqual((looked["files"], looked["min_size"], looked["min_age"]), ("*.mp4,*.fastq.gz", "1 MiB", "30d"))
        # All others of them are younger.
        with libnfs.Mount(world.libnfs_url()) as mount:
            mount.utimes(large[0], int(time.time()) - 40 * 24 * 3600)
        world.stop()
        world.start()
        wait_until(lambda: self.tier(world)["live_bytes"] >= 4 << 20, "what is old goes")
        self.assertLess(self.tier(world)["live_bytes"], 5 << 20)
        world.cairn("volume", "set", "main", "--tier-min-age", "none")
        goes = sum(len(files[name]) for name in large)
        wait_until(lambda: self.tier(world)["live_bytes"] >= goes, "what is asked for goes")
        self.assertLess(self.tier(world)["live_bytes"], goes + (1 << 20))
        # Past what is in memory.
        world.kill()
        world.start()
        with libnfs.Mount(world.libnfs_url()) as mount:
            for name, data in files.items():
                before = self.tier(world)["read_bytes"]
                self.assertEqual(mount.read_file(name), data, name)
                is_read_there = self.tier(world)["read_bytes"] > before
                self.assertEqual(is_read_there, name in large, name)
        world.cairn("volume", "set", "main", "--tier-files", "any", "--tier-min-size", "none")
        self.assertNotIn("files", world.cairn("volume", "show", "main").stdout)
        self.wait_back(world)
        with libnfs.Mount(world.libnfs_url()) as mount:
            for name, data in files.items():
                self.assertEqual(mount.read_file(name), data, name)

    def test_bad_input_is_refused(self):
        world = self.server(1)
        for url, why in [
            ("s3://key:secret@bucket", "no credentials"),
            ("ftp://bucket", "neither s3, az, gs nor file"),
            ("az://cold", "?account=NAME"),
            ("az://cold?account=store1&sig=secret", "no credentials"),
            ("gs://B", "no name of a bucket"),
            ("s3://B", "no name of a bucket"),
            (f"file://{self.scratch}/none", "mount what is to be there"),
            ("s3://bucket?endpoint=http://169.254.169.254&region=a", "link-local"),
            ("s3://bucket?endpoint=http://2852039166&region=a", "link-local"),
            ("s3://bucket?endpoint=http://[::ffff:a9fe:a9fe]&region=a", "link-local"),
            ("gs://bucket?endpoint=http://metadata.google.internal", "metadata service"),
            (f"s3://bucket?endpoint=http://127.0.0.1:{harness.next_port()}&region=a", "credential_host"),
        ]:
            refused = world.cairn("tier", "add", "cold", url, check=False)
            self.assertNotEqual(refused.returncode, 0, url)
            self.assertIn(why, refused.stderr, url)
        for words in (["--tiering", "snapshots"], ["--cooling-days", "1"], ["--cooling-days", "184"], ["--tiering", "auto"], ["--tier", "none"]):
            refused = world.cairn("volume", "set", "main", *words, check=False)
            self.assertNotEqual(refused.returncode, 0, words)
        world.cairn("tier", "add", "cold", f"file://{self.folder}")
        refused = world.cairn("tier", "add", "cold", f"file://{self.folder}", check=False)
        self.assertIn("already", refused.stderr)
        # A directory that is not mounted any more takes nothing.
        with libnfs.Mount(world.libnfs_url()) as mount:
            mount.write_file("/file", os.urandom(3 << 20))
        (self.folder / "cairn-tier.json").rename(self.scratch / "kept")
        world.cairn("volume", "set", "main", "--tier", "cold", "--tiering", "all", "--cooling-days", "5")
        world.stop()
        world.start()
        wait_until(lambda: self.tier(world)["volumes"][0].get("problem"), "it is told")
        self.assertIn("is it mounted", self.tier(world)["volumes"][0]["problem"])
        self.assertEqual(self.objects_in(self.folder), [])
        shutil.move(self.scratch / "kept", self.folder / "cairn-tier.json")
        self.wait_sent(world)


class Internal(http.server.ThreadingHTTPServer):
    """What answers in the server's network and is no object store."""

    def __init__(self, says):
        super().__init__(("127.0.0.1", 0), InternalRequest)
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.says = says


class InternalRequest(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Internal

    def answer(self):
        self.server.asked.append((self.path, dict(self.headers)))
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        status, headers, body = self.server.says
        self.send_response(status)
        for name, value in (headers | {"Content-Length": str(len(body))}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = answer

    def log_message(self, *_):
        pass


class WithVariables(harness.Server):
    variables: dict[str, str] = {}

    def environment(self):
        return super().environment() | self.variables


class Outbound(WorldTest):
    """Where requests go that an administrator causes, with what, and what is told of the answers."""

    def internal(self, status, headers, body):
        internal = Internal((status, headers, body))
        self.addCleanup(internal.server_close)
        self.addCleanup(internal.shutdown)
        threading.Thread(target=internal.serve_forever, daemon=True).start()
        return internal

    def credentials(self, internal=None):
        path = self.scratch / "credentials"
        text = "aws_access_key_id = AKIA\naws_secret_access_key = s\naws_session_token = session\n"
        path.write_text(text + (f"credential_host = 127.0.0.1:{internal.server_port}\n" if internal else ""))
        path.chmod(0o600)
        return path

    def test_credentials_of_the_machine_stay_with_it(self):
        internal = self.internal(404, {}, b"")
        url = f"s3://bucket?endpoint=http://127.0.0.1:{internal.server_port}&region=a"
        keys = {"AWS_ACCESS_KEY_ID": "AKIA", "AWS_SECRET_ACCESS_KEY": "s", "AWS_SESSION_TOKEN": "session"}
        (self.scratch / "pool").mkdir()
        world = WithVariables(self.scratch / "pool")
        world.variables = keys
        self.enterContextHere(world)
        refused = world.cairn("tier", "add", "cold", url, check=False)
        self.assertNotEqual(refused.returncode, 0)
        self.assertIn("credential_host", refused.stderr)
        self.assertEqual(internal.asked, [])
        # The configuration names it.
        world.stop()
        world.flags += ["--credential-host", f"127.0.0.1:{internal.server_port}"]
        world.start()
        refused = world.cairn("tier", "add", "cold", url, check=False)
        self.assertNotEqual(refused.returncode, 0)
        self.assertIn("session", [headers.get("x-amz-security-token") for _, headers in internal.asked])

    def test_no_body_is_told_and_no_redirect_is_followed(self):
        world = self.server(1)
        other = self.internal(200, {}, b"secret")
        for status, headers, body, said in [
            (403, {}, b"<Error><Code>AccessDenied</Code><Message>secret</Message></Error>", "AccessDenied"),
            (400, {}, b"secret", "400"),
            (500, {}, b"{\"secret\": 1}", "500"),
            (200, {}, b"secret", ""),
            (200, {"Last-Modified": "secret"}, b"secret", "lead to such a store"),
            (302, {"Location": f"http://127.0.0.1:{other.server_port}/"}, b"secret", "302"),
        ]:
            with self.subTest(status=status):
                internal = self.internal(status, headers, body)
                url = f"s3://bucket?endpoint=http://127.0.0.1:{internal.server_port}&region=a"
                add = ["tier", "add", "cold", url, "--credentials-file", str(self.credentials(internal))]
                refused = world.cairn(*add, check=False)
                self.assertNotEqual(refused.returncode, 0)
                self.assertIn(said, refused.stderr)
                self.assertNotEqual(internal.asked, [])
                for told in (refused.stderr, refused.stdout, world.log_path.read_text()):
                    self.assertNotIn("secret", told)
        self.assertEqual(other.asked, [])

    def test_credentials_of_another_tier_stay_with_it(self):
        world = self.server(1)
        internal = self.internal(404, {}, b"")
        endpoint = f"endpoint=http://127.0.0.1:{internal.server_port}"
        file = self.scratch / "other-tier"
        account = {"type": "service_account", "client_email": "a@b", "private_key_id": "k", "private_key": "k", "disable_oauth": True}
        for text, url in [
            (self.credentials().read_text(), f"s3://bucket?{endpoint}&region=a"),
            ("azure_storage_sas_token = sv=2024-01-01&sig=TOPSECRET\n", f"az://cont/x?account=acct&{endpoint}/acct"),
            (json.dumps(account), f"gs://buck/x?{endpoint}"),
            # What only signs does not go without TLS where nobody named the host.
            ("aws_access_key_id = A\naws_secret_access_key = s\n", f"s3://bucket?{endpoint}&region=a"),
        ]:
            with self.subTest(url=url):
                file.write_text(text)
                file.chmod(0o600)
                refused = world.cairn("tier", "add", "evil", url, "--credentials-file", str(file), check=False)
                self.assertNotEqual(refused.returncode, 0)
                self.assertIn("credential_host", refused.stderr)
                file.unlink()
                absent = world.cairn("tier", "add", "evil", url, "--credentials-file", str(file), check=False)
                self.assertEqual(absent.stderr, refused.stderr, "it is told whether there is such a file")
        self.assertEqual(internal.asked, [])
        self.assertIn("names the host of the store", world.log_path.read_text(errors="replace"))

    def test_other_files_are_not_told(self):
        world = self.server(1)
        file = self.scratch / "file"
        url = f"s3://bucket?endpoint=http://127.0.0.1:{harness.next_port()}&region=a"
        file.write_text("root:hunter2:0:0\n")
        said = set()
        for mode in (0o600, 0o644, 0o4755):
            file.chmod(mode)
            said.add(world.cairn("tier", "add", "cold", url, "--credentials-file", str(file), check=False).stderr)
        file.unlink()
        said.add(world.cairn("tier", "add", "cold", url, "--credentials-file", str(file), check=False).stderr)
        self.assertEqual(len(said), 1, said)
        self.assertNotIn("hunter2", said.pop())
