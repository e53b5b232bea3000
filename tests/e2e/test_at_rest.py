"""What a pulled disk tells: secrets and digests are planted, and every byte of every disk is searched for them.

What is to be found where is the table in docs/reference/at-rest.md.
"""

import base64
import hashlib
import json
import os
import pathlib
import re
import subprocess

from lib import harness, iscsi, rawnfs, s3
from lib.lunworld import INITIATOR
from lib.worlds import WorldTest, content

BUCKET = "photos"
PART_LEN_BYTES = 5 << 20
CHUNK_LEN_BYTES = 8 << 20
SERVED_SECONDS_MAX = 60


def forms(secret):
    """What a secret, or a digest, may look like on a disk: raw, in hexadecimal digits, in base64 from each place of three."""
    secret = secret.encode() if isinstance(secret, str) else secret
    forms = {secret, secret.hex().encode(), secret.hex().upper().encode()}
    for lead in range(3):
        text = base64.b64encode(b"\0" * lead + secret)
        # The first and the last digits depend on what is around it.
        inner = text[(lead * 8 + 5) // 6 : (lead + len(secret)) * 8 // 6]
        forms |= {inner, inner.replace(b"+", b"-").replace(b"/", b"_")}
    return {form for form in forms if len(form) >= 8}


def found(disks, canaries):
    """The names of canaries, one form of which is in a file below a folder of the disks."""
    wanted = {name: forms(secret) for name, secret in canaries.items()}
    longest = max(len(form) for all_forms in wanted.values() for form in all_forms)
    there = set()
    for path in (path for disk in disks for path in pathlib.Path(disk).rglob("*")):
        if path.is_symlink() or not path.is_file():
            continue
        with open(path, "rb") as file:
            kept = b""
            while chunk := file.read(CHUNK_LEN_BYTES):
                seen = kept + chunk
                there |= {name for name, all_forms in wanted.items() if name not in there and any(form in seen for form in all_forms)}
                kept = seen[-longest:]
    return there


class AtRest(WorldTest):
    def setUp(self):
        super().setUp()
        self.key = self.scratch / "master.key"
        self.port, self.iscsi_port = harness.next_port(), harness.next_port()

    def put_keys(self, *keys):
        file = self.scratch / "master.key.new"
        file.write_text("".join(f"{key}\n" for key in keys))
        file.chmod(0o600)
        file.rename(self.key)

    def generate(self):
        made = subprocess.run([str(harness.cairn_path()), "key", "generate"], capture_output=True, text=True, check=True)
        return made.stdout.strip()

    def started(self, has_key):
        flags = ["--listen-s3", f"127.0.0.1:{self.port}", "--listen-iscsi", f"127.0.0.1:{self.iscsi_port}", "--admin-self-signed"]
        if has_key:
            self.put_keys(self.generate())
            flags += ["--master-key-file", str(self.key)]
        return self.server(3, flags)

    def done(self, world, *words):
        """A command about a volume that the server may not have read yet."""

        def ran():
            done = world.cairn(*words, check=False)
            return done if done.returncode == 0 else None

        return harness.wait_until(ran, SERVED_SECONDS_MAX, f"cairn {words}")

    def read_again(self, world, keys):
        """Waits until the server has read what volumes keep, after a start."""
        listed = lambda: json.loads(world.cairn("s3", "key", "list", "--json").stdout)
        harness.wait_until(lambda: keys.id in json.dumps(listed()), SERVED_SECONDS_MAX, "the access key is listed")

    def log_in(self, initiator, chap):
        """Until its LUNs are read, after a start, a volume is not available."""

        def is_answered():
            try:
                iscsi.Session(("127.0.0.1", self.iscsi_port), initiator, chap=chap).stream.close()
            except iscsi.LoginRefused as refused:
                if refused.args != iscsi.UNAVAILABLE:
                    raise
                return False
            return True

        harness.wait_until(is_answered, SERVED_SECONDS_MAX, "an answer to a login")

    def planted(self, world, volume, is_encrypted):
        """Puts secrets and objects into a volume: all of them by name, and those of them that are digests."""
        if volume != "main":
            world.cairn("volume", "create", volume, "--compression", "none", *(["--encrypt"] if is_encrypted else []))
        self.done(world, "s3", "key", "create", "--volume", volume, "--uid", 1, "--gid", 1)
        keys = s3.Keys(world, "--volume", volume)
        chap = f"chap of {volume} {os.urandom(8).hex()}"
        mutual = f"mutual of {volume} {os.urandom(8).hex()}"
        for name, secret in (("chap", chap), ("mutual", mutual)):
            (self.scratch / name).write_text(secret)
        initiator = f"{INITIATOR}.{volume}"
        words = ["--chap-user", "host", "--secret-file", self.scratch / "chap"]
        words += ["--mutual-user", "array", "--mutual-secret-file", self.scratch / "mutual"]
        self.done(world, "initiator", "set", volume, initiator, *words)
        secrets: dict[str, str | bytes] = {f"{volume}: S3 secret": keys.secret, f"{volume}: CHAP secret": chap, f"{volume}: mutual CHAP secret": mutual}
        bucket = f"{volume}-{BUCKET}"
        world.cairn("bucket", "create", bucket, "--path", f"{volume}/{bucket}")
        client = s3.client(self.port, keys)
        whole, small = content(f"{volume} whole", 300_000), content(f"{volume} small", 100)
        digests: dict[str, str | bytes] = {}
        for name, data in (("whole", whole), ("small", small)):
            meta = {"canary": f"meta-of-{volume}-{name}"}
            put = client.put_object(Bucket=bucket, Key=name, Body=data, ChecksumAlgorithm="SHA256", Metadata=meta)
            self.assertEqual(put["ETag"], f'"{hashlib.md5(data).hexdigest()}"')
            digests[f"{volume}: MD5 of {name}"] = hashlib.md5(data).digest()
            digests[f"{volume}: SHA-256 of {name}"] = hashlib.sha256(data).digest()
            digests[f"{volume}: metadata of {name}"] = f"meta-of-{volume}-{name}"
            digests[f"{volume}: content of {name}"] = data[20:60]
        parts = [content(f"{volume} part {at}", length) for at, length in enumerate((PART_LEN_BYTES, 1000))]
        upload = client.create_multipart_upload(Bucket=bucket, Key="parts")["UploadId"]
        sent = []
        for number, part in enumerate(parts, 1):
            answer = client.upload_part(Bucket=bucket, Key="parts", UploadId=upload, PartNumber=number, Body=part)
            sent.append({"PartNumber": number, "ETag": answer["ETag"]})
            digests[f"{volume}: MD5 of part {number}"] = hashlib.md5(part).digest()
        done = client.complete_multipart_upload(Bucket=bucket, Key="parts", UploadId=upload, MultipartUpload={"Parts": sent})
        of_parts = hashlib.md5(b"".join(hashlib.md5(part).digest() for part in parts)).digest()
        self.assertEqual(done["ETag"], f'"{of_parts.hex()}-2"')
        digests[f"{volume}: MD5 of the parts' MD5s"] = of_parts
        # An upload that is under way, too.
        upload = client.create_multipart_upload(Bucket=bucket, Key="open")["UploadId"]
        client.upload_part(Bucket=bucket, Key="open", UploadId=upload, PartNumber=1, Body=small[::-1])
        digests[f"{volume}: MD5 of an open part"] = hashlib.md5(small[::-1]).digest()
        # What was sent with a wrong digest is refused still.
        wrong = base64.b64encode(hashlib.md5(b"other").digest()).decode()
        with self.assertRaises(s3.errors().ClientError) as refused:
            client.put_object(Bucket=bucket, Key="wrong", Body=small, ContentMD5=wrong)
        self.assertEqual(refused.exception.response["Error"]["Code"], "BadDigest")
        return keys, secrets, digests

    def own_secrets(self, world):
        """Of the server itself, which are in its state folder or where the configuration says, and on no disk in any case."""
        key = (world.state_path / "admin-tls.pem").read_text().partition("-----BEGIN PRIVATE KEY-----")[2]
        return {"admin token": world.token_path.read_text().strip(), "key of the certificate": key.split()[0]}

    def handle_key(self, world):
        return (next(world.state_path.glob("handle-key-*"))).read_text().strip()

    def test_nothing_secret_is_on_the_disks_of_a_server_with_a_master_key(self):
        world = self.started(has_key=True)
        _, plain_secrets, _ = self.planted(world, "main", False)
        keys, secrets, digests = self.planted(world, "locked", True)
        # Snapshots have what was, and flush what is in memory.
        for volume in ("main", "locked"):
            world.cairn("snapshot", "create", volume, "before")
        master = self.key.read_text().strip()
        handle_key = self.handle_key(world)
        canaries = self.own_secrets(world) | plain_secrets | secrets | digests
        canaries |= {"master key": base64.b64decode(master), "handle key": bytes.fromhex(handle_key), "handle key, digits": handle_key}
        world.stop()
        self.assertEqual(found(world.disks, canaries), set())
        # Also what a crash leaves: the log is not folded into the state yet.
        world.start()
        self.read_again(world, keys)
        again = s3.client(self.port, keys)
        data = content("after", 200)
        again.put_object(Bucket=f"locked-{BUCKET}", Key="after", Body=data)
        canaries |= {"MD5 after": hashlib.md5(data).digest(), "content after": data[:40]}
        world.kill()
        self.assertEqual(found(world.disks, canaries), set())

        # All of it works: reads give the same ETags, and secrets prove who somebody is.
        world.start()
        self.read_again(world, keys)
        client = s3.client(self.port, keys)
        for name in ("whole", "small"):
            md5 = hashlib.md5(content(f"locked {name}", 300_000 if name == "whole" else 100)).hexdigest()
            self.assertEqual(client.head_object(Bucket=f"locked-{BUCKET}", Key=name)["ETag"], f'"{md5}"')
        listed = client.list_objects_v2(Bucket=f"locked-{BUCKET}")["Contents"]
        self.assertIn(f'"{hashlib.md5(data).hexdigest()}"', [entry["ETag"] for entry in listed])
        chap = secrets["locked: CHAP secret"]
        self.log_in(f"{INITIATOR}.locked", ("host", chap))
        with self.assertRaises(iscsi.LoginRefused):
            self.log_in(f"{INITIATOR}.locked", ("host", chap + "x"))

    def test_what_lies_readable_without_a_master_key(self):
        """Exactly what docs/reference/at-rest.md says: each row that is `readable` is found, and no other."""
        world = self.started(has_key=False)
        _, secrets, digests = self.planted(world, "main", False)
        own = self.own_secrets(world)
        # The log has all of it as it is. The state is compressed: a digest is there, and not always in one piece.
        world.kill()
        pools = [(disk / "pool").read_bytes() for disk in world.disks]
        handle_keys = {re.search(rb'"handle_key": *"([0-9a-f]{32})"', pool) for pool in pools}
        self.assertNotIn(None, handle_keys)
        self.assertEqual(found(world.disks, own), set())
        readable = secrets | digests
        # The record of a part goes when its upload is completed: it is there until the log is written over.
        lasting = {name for name in readable if " of part " not in name}
        self.assertLessEqual(lasting, found(world.disks, readable))

    def test_secrets_wait_for_their_master_key(self):
        world = self.started(has_key=True)
        keys, secrets, _ = self.planted(world, "main", False)
        first = self.key.read_text().strip()
        listed = json.loads(world.cairn("key", "list", "--json").stdout)["keys"]
        self.assertEqual([(key["present"], key["secrets"]) for key in listed], [(True, True)])
        world.cairn("export", "set", "main", "--client", "127.0.0.1", "--rw", "--squash", "none")
        with rawnfs.Peer(world.port) as peer:
            status, root = peer.mount("/main")
            self.assertEqual(status, 0)
        # Without the master key the volume is served, as it is not encrypted, and handles are what they were.
        world.kill()
        self.key.unlink()
        world.start()
        with rawnfs.Peer(world.port) as peer:
            self.assertEqual(peer.mount("/main"), (0, root))
            peer.getattr(root)
        self.read_again(world, keys)
        shown = json.loads(world.cairn("key", "list", "--json").stdout)["keys"]
        self.assertEqual([(key["id"], key["present"], key["secrets"]) for key in shown], [(listed[0]["id"], False, True)])
        client = s3.client(self.port, keys)
        with self.assertRaises(s3.errors().ClientError) as refused:
            client.list_objects_v2(Bucket=f"main-{BUCKET}")
        self.assertEqual(refused.exception.response["Error"]["Code"], "ServiceUnavailable")
        # Nobody is let in for want of a secret to compare with.
        chap = ("host", secrets["main: CHAP secret"])
        for proof in (None, chap):
            with self.assertRaises(iscsi.LoginRefused):
                iscsi.Session(("127.0.0.1", self.iscsi_port), f"{INITIATOR}.main", chap=proof)
        made = world.cairn("s3", "key", "create", "--uid", 0, "--gid", 0, check=False)
        self.assertNotEqual(made.returncode, 0)
        self.assertIn(listed[0]["id"], made.stderr)
        self.assertIn(listed[0]["id"], world.log_path.read_text())

        # Without the copy in the state folder there are no handles either, and the start says what to do.
        world.kill()
        copy = next(world.state_path.glob("handle-key-*"))
        kept = copy.read_bytes()
        copy.unlink()
        process = world.spawn()
        self.assertNotEqual(process.wait(60), 0)
        self.assertIn("--master-key-file", world.log_tail())
        copy.write_bytes(kept)
        world.start()

        # It is there again, with a newer one; then secrets need that one alone.
        second = self.generate()
        self.put_keys(second, first)

        def is_served():
            try:
                return "Contents" in client.list_objects_v2(Bucket=f"main-{BUCKET}")
            except s3.errors().ClientError:
                return False

        harness.wait_until(is_served, SERVED_SECONDS_MAX, "access keys are known again")
        rotated = json.loads(world.cairn("key", "rotate", "--json").stdout)
        self.assertEqual((rotated["secrets"], rotated["wrapped"], rotated["failed"]), (True, [], []))
        self.assertEqual([key["secrets"] for key in rotated["keys"]["keys"]], [True, False])
        world.kill()
        self.put_keys(second)
        world.start()
        self.read_again(world, keys)
        harness.wait_until(is_served, SERVED_SECONDS_MAX, "access keys are known after a start")
        self.log_in(f"{INITIATOR}.main", chap)

    def test_no_secret_is_made_while_the_master_key_cannot_be_read(self):
        world = self.started(has_key=False)
        world.stop()
        self.put_keys(self.generate())
        self.key.chmod(0o644)
        world.flags += ["--master-key-file", str(self.key)]
        world.start()
        secret = self.scratch / "chap"
        secret.write_text("0123456789abcdef")
        secret.chmod(0o600)
        for words in (
            ["s3", "key", "create", "--uid", "0", "--gid", "0"],
            ["initiator", "set", "main", INITIATOR, "--chap-user", "host", "--secret-file", str(secret)],
        ):
            refused = world.cairn(*words, check=False)
            self.assertNotEqual(refused.returncode, 0, words)
            self.assertIn("master key", refused.stderr, words)
        self.assertIn("secrets_unwrapped", [warning["kind"] for warning in world.status()["warnings"]])
        # It is tried again by itself, and what is made then is wrapped.
        self.key.chmod(0o600)
        make = ["s3", "key", "create", "--uid", "0", "--gid", "0", "--json"]
        made = harness.wait_until(
            lambda: (done := world.cairn(*make, check=False)).returncode == 0 and json.loads(done.stdout),
            SERVED_SECONDS_MAX,
            "a secret is made",
        )
        kinds = lambda: [warning["kind"] for warning in world.status()["warnings"]]
        harness.wait_until(lambda: "secrets_unwrapped" not in kinds(), SERVED_SECONDS_MAX, "no warning of secrets")
        world.stop()
        self.assertEqual(found(world.disks, {"secret": made["secret"]}), set())
        # No pool is made either: its own secrets would be readable.
        self.key.chmod(0o644)
        (self.scratch / "new").mkdir()
        new = harness.Server(self.scratch / "new", 1, ["--master-key-file", str(self.key)])
        process = new.spawn()
        self.assertNotEqual(process.wait(60), 0)
        self.assertIn("no pool is created", new.log_tail())
        self.key.chmod(0o600)
        self.enterContextHere(new)

    def test_secrets_from_before_a_master_key_are_wrapped(self):
        world = self.started(has_key=False)
        keys, _, _ = self.planted(world, "main", False)
        world.stop()
        self.assertTrue(all(b'"secrets_key"' not in (disk / "pool").read_bytes() for disk in world.disks))
        self.put_keys(self.generate())
        world.flags += ["--master-key-file", str(self.key)]
        world.start()
        for disk in world.disks:
            pool = (disk / "pool").read_bytes()
            self.assertIn(b'"secrets_key"', pool)
            self.assertIsNone(re.search(rb'"handle_key": *"', pool))
        self.read_again(world, keys)
        client = s3.client(self.port, keys)
        self.assertIn("Contents", client.list_objects_v2(Bucket=f"main-{BUCKET}"))
        # So it needs the master key from now on.
        world.kill()
        self.key.unlink()
        world.start()
        self.read_again(world, keys)
        with self.assertRaises(s3.errors().ClientError) as refused:
            client.list_objects_v2(Bucket=f"main-{BUCKET}")
        self.assertEqual(refused.exception.response["Error"]["Code"], "ServiceUnavailable")

    def test_credentials_of_a_tier_are_on_no_disk(self):
        store = self.server(1, ["--listen-s3", f"127.0.0.1:{self.port}"], "store")
        store.cairn("bucket", "create", "archive")
        keys = s3.Keys(store)
        credentials = self.scratch / "credentials"
        credentials.write_text(
            f"[default]\naws_access_key_id = {keys.id}\naws_secret_access_key = {keys.secret}\ncredential_host = 127.0.0.1:{self.port}\n"
        )
        credentials.chmod(0o600)
        world = self.server(2)
        url = f"s3://archive/one?endpoint=http://127.0.0.1:{self.port}&region=us-east-1"
        world.cairn("tier", "add", "cold", url, "--credentials-file", credentials)
        world.stop()
        self.assertEqual(found(world.disks, {"id": keys.id, "secret": keys.secret}), set())
        # What the search looks for is there where it is to be.
        self.assertEqual(found(world.disks, {"path": str(credentials)}), {"path"})
        store.stop()
        self.assertEqual(found(store.disks, {"secret": keys.secret}), {"secret"})
