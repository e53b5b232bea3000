"""Versions of objects and object lock, by boto3: what was replaced or deleted is there, and what is locked stays."""

import contextlib
import datetime
import json
import os
import random
import time
import urllib.error
import urllib.request

from lib import harness, libnfs, s3
from lib.s3worlds import S3Test

BUCKET = "photos"
DAY_SECONDS = 24 * 60 * 60
EXPIRY_SECONDS_MAX = 120
WRITES_PER_LOOK = 8
SEED = 20261126


class Model:
    """What the versions of a bucket are: of each key the newest first, each an identifier and its body; `None` is a marker."""

    def __init__(self):
        self.keys = {}

    def put(self, key, version, body):
        versions = [entry for entry in self.keys.get(key, []) if version != "null" or entry[0] != "null"]
        self.keys[key] = [(version, body), *versions]

    def remove(self, key, version):
        self.keys[key] = [entry for entry in self.keys.get(key, []) if entry[0] != version]

    def latest(self, key):
        versions = self.keys.get(key) or [(None, None)]
        return versions[0][1]

    def listed(self):
        """Key, version, whether it is the latest, whether it is a marker; as a listing tells them."""
        return [
            (key, version, index == 0, body is None)
            for key in sorted(self.keys)
            for index, (version, body) in enumerate(self.keys[key])
        ]


class S3Versions(S3Test):
    def s3_server(self, disks=1, lock=False):
        self.listen(disks)
        self.keys = s3.Keys(self.world, uid=1000, gid=100)
        self.client = s3.client(self.port, self.keys)
        self.client.create_bucket(Bucket=BUCKET, ObjectLockEnabledForBucket=lock)

    def versioning(self, status):
        self.client.put_bucket_versioning(Bucket=BUCKET, VersioningConfiguration={"Status": status})

    def put(self, key, body=b"x", **more):
        return self.client.put_object(Bucket=BUCKET, Key=key, Body=body, **more).get("VersionId")

    def get(self, key, version=None):
        more = {"VersionId": version} if version else {}
        return self.client.get_object(Bucket=BUCKET, Key=key, **more)["Body"].read()

    def delete(self, key, version=None, **more):
        more |= {"VersionId": version} if version else {}
        return self.client.delete_object(Bucket=BUCKET, Key=key, **more)

    def listed(self, limit=1000, **more):
        """All pages: key, version, whether it is the latest, whether it is a marker."""
        found = []
        for page in self.client.get_paginator("list_object_versions").paginate(
            Bucket=BUCKET, PaginationConfig={"PageSize": limit}, **more
        ):
            for name, is_marker in (("Versions", False), ("DeleteMarkers", True)):
                found += [
                    (entry["Key"], entry["VersionId"], entry["IsLatest"], is_marker) for entry in page.get(name, [])
                ]
        return found

    def check(self, model, limit=1000):
        # A page has versions and markers apart, so that only their order within a key and kind is told.
        wanted = model.listed()
        self.assertEqual(sorted(self.listed(limit)), sorted(wanted))
        live = [key for key in sorted(model.keys) if model.latest(key) is not None]
        self.assertEqual([entry["Key"] for entry in self.client.list_objects_v2(Bucket=BUCKET).get("Contents", [])], live)
        for key, versions in model.keys.items():
            for version, body in versions:
                if body is not None:
                    self.assertEqual(self.get(key, version), body, (key, version))

    def test_what_was_replaced_or_deleted_is_there(self):
        self.s3_server()
        first = self.put("a", b"before")
        self.assertIsNone(first)
        self.assertNotIn("Status", self.client.get_bucket_versioning(Bucket=BUCKET))
        self.versioning("Enabled")
        self.assertEqual(self.client.get_bucket_versioning(Bucket=BUCKET)["Status"], "Enabled")
        self.assertEqual(self.client.head_object(Bucket=BUCKET, Key="a")["VersionId"], "null")
        second = self.put("a", b"second" * 100_000)
        third = self.put("a", b"third")
        self.assertEqual((self.get("a"), self.get("a", second), self.get("a", "null")), (b"third", b"second" * 100_000, b"before"))
        answer = self.delete("a")
        self.assertTrue(answer["DeleteMarker"])
        marker = answer["VersionId"]
        with self.fails("NoSuchKey", 404) as caught:
            self.get("a")
        self.assertEqual(caught.exception.response["ResponseMetadata"]["HTTPHeaders"]["x-amz-delete-marker"], "true")
        with self.fails("MethodNotAllowed", 405):
            self.get("a", marker)
        with self.fails("NoSuchVersion", 404):
            self.get("a", "0" * 32)
        with self.fails("BucketNotEmpty", 409):
            self.client.delete_bucket(Bucket=BUCKET)
        self.assertEqual(sorted(self.listed()), sorted([
            ("a", marker, True, True), ("a", third, False, False), ("a", second, False, False), ("a", "null", False, False),
        ]))
        # Files show the latest only.
        with libnfs.Mount(self.world.libnfs_url()) as mount:
            self.assertEqual(mount.names(f"/{BUCKET}"), [])
            # Without its marker the object is there again.
            answer = self.delete("a", marker)
            self.assertEqual((answer["DeleteMarker"], answer["VersionId"]), (True, marker))
            self.assertEqual(mount.read_file(f"/{BUCKET}/a"), b"third")
        self.delete("a", third)
        self.assertEqual(self.get("a"), b"second" * 100_000)
        self.assertEqual(self.client.head_object(Bucket=BUCKET, Key="a")["VersionId"], second)
        copied = self.client.copy_object(Bucket=BUCKET, Key="b", CopySource={"Bucket": BUCKET, "Key": "a", "VersionId": "null"})
        self.assertEqual(copied["CopySourceVersionId"], "null")
        self.assertEqual(self.get("b", copied["VersionId"]), b"before")
        # Bringing back by copying an old version onto the key is what AWS tells people to do.
        self.client.copy_object(Bucket=BUCKET, Key="a", CopySource={"Bucket": BUCKET, "Key": "a", "VersionId": "null"})
        self.assertEqual(self.get("a"), b"before")
        self.client.put_object_tagging(Bucket=BUCKET, Key="a", VersionId=second, Tagging={"TagSet": [{"Key": "k", "Value": "v"}]})
        tags = self.client.get_object_tagging(Bucket=BUCKET, Key="a", VersionId=second)
        self.assertEqual((tags["TagSet"], tags["VersionId"]), ([{"Key": "k", "Value": "v"}], second))
        for key, version, _, _ in self.listed():
            self.delete(key, version)
        self.assertEqual(self.listed(), [])
        self.client.delete_bucket(Bucket=BUCKET)

    def test_random_changes_and_kills_leave_what_was_answered(self):
        self.s3_server()
        self.versioning("Enabled")
        rng, model, is_enabled = random.Random(SEED), Model(), True
        keys = ["a", "a-b", "a.txt", "a/b", "dir/x", "dir/x/y", "dir/é"]
        for step in range(150):
            key = rng.choice(keys)
            what = rng.random()
            try:
                if what < 0.5:
                    body = rng.randbytes(rng.choice([0, 10, 5000, 300_000]))
                    model.put(key, self.put(key, body), body)
                elif what < 0.7:
                    model.put(key, self.delete(key)["VersionId"], None)
                elif what < 0.93:
                    versions = model.keys.get(key) or [("0" * 32, b"")]
                    version = rng.choice(versions)[0]
                    blocked = any(model.latest(other) is not None for other in keys if other.startswith(f"{key}/") or key.startswith(f"{other}/"))
                    if not blocked or version != versions[0][0]:
                        self.delete(key, version)
                        model.remove(key, version)
                elif what < 0.96:
                    is_enabled = not is_enabled
                    self.versioning("Enabled" if is_enabled else "Suspended")
                else:
                    self.world.kill()
                    self.world.start()
            except s3.errors().ClientError as error:
                # An object cannot be where others are below it.
                self.assertEqual(error.response["Error"]["Code"], "KeyConflict", (step, key))
            model.keys = {key: versions for key, versions in model.keys.items() if versions}
        for limit in (1, 2, 3, 1000):
            self.assertEqual(sorted(self.listed(limit)), sorted(model.listed()), limit)
        self.check(model)
        of_prefix = [entry for entry in model.listed() if entry[0].startswith("dir/")]
        self.assertEqual(sorted(self.listed(2, Prefix="dir/")), sorted(of_prefix))
        page = self.client.list_object_versions(Bucket=BUCKET, Delimiter="/")
        prefixes = sorted({key.split("/")[0] + "/" for key in model.keys if "/" in key})
        self.assertEqual([entry["Prefix"] for entry in page.get("CommonPrefixes", [])], prefixes)
        for key, version, _, _ in self.listed():
            self.delete(key, version)
        self.assertEqual(self.listed(), [])
        self.client.delete_bucket(Bucket=BUCKET)

    def test_a_file_that_was_changed_is_a_version_of_its_own(self):
        self.s3_server()
        self.versioning("Enabled")
        first = self.put("dir/a", b"over S3")
        with libnfs.Mount(self.world.libnfs_url()) as mount:
            mount.chmod(f"/{BUCKET}/dir/a", 0o666)
            handle = mount.open(f"/{BUCKET}/dir/a", 1)
            with handle:
                handle.write(0, b"OVER NFS")
                handle.sync()
            changed = self.client.head_object(Bucket=BUCKET, Key="dir/a")["VersionId"]
            self.assertNotEqual(changed, first)
            # The bytes of the first are gone: nothing pretends that they are there.
            with self.fails("NoSuchVersion", 404):
                self.get("dir/a", first)
            with mount.open(f"/{BUCKET}/dir/a", 1) as handle:
                self.put("dir/a", b"again")
                # A previous version is nobody's to change, whoever has it open.
                with self.assertRaises(OSError):
                    handle.write(0, b"late")
                    handle.sync()
            self.assertEqual((self.get("dir/a", changed), self.get("dir/a")), (b"OVER NFS", b"again"))
            # Removed over NFS, without a marker.
            mount.unlink(f"/{BUCKET}/dir/a")
        self.assertEqual([entry[1:] for entry in self.listed()], [(changed, False, False)])

    def nfs_versions(self, *words):
        self.world.cairn("bucket", "set", BUCKET, "--nfs-versions", *words)

    def test_what_is_changed_over_nfs_is_kept_if_the_bucket_asks_for_it(self):
        self.s3_server()
        refused = self.world.cairn("bucket", "set", BUCKET, "--nfs-versions", "on", check=False)
        self.assertNotEqual(refused.returncode, 0)
        self.assertIn("has no versioning", refused.stderr)
        self.assertIn("put-bucket-versioning", refused.stderr)
        self.versioning("Enabled")
        for wrong in ("0", "86401"):
            refused = self.world.cairn("bucket", "set", BUCKET, "--nfs-versions", "on", "--nfs-versions-seconds", wrong, check=False)
            self.assertIn("nfs_versions_seconds is 1 to 86400", refused.stderr)
        self.nfs_versions("on", "--nfs-versions-seconds", 3600)
        shown = json.loads(self.world.cairn("bucket", "show", BUCKET, "--json").stdout)
        self.assertEqual((shown["versioning"], shown["nfs_versions_seconds"]), ("enabled", 3600))
        bodies = {"small": b"over S3", "dir/large": bytes(range(256)) * 20_000}
        first = {key: self.put(key, body, Metadata={"by": "s3"}, ContentType="text/x") for key, body in bodies.items()}
        etags = {key: self.client.head_object(Bucket=BUCKET, Key=key)["ETag"] for key in bodies}
        with libnfs.Mount(self.world.libnfs_url()) as mount:
            mount.chmod(f"/{BUCKET}", 0o777)
            for key, body in bodies.items():
                with mount.open(f"/{BUCKET}/{key}", os.O_RDWR) as handle:
                    for index in range(5):
                        handle.write(3 * index, b"NFS")
                        handle.sync()
                # One version of all these writes, with all that was put with it.
                self.assertEqual(len([entry for entry in self.listed() if entry[0] == key]), 2)
                old = self.client.get_object(Bucket=BUCKET, Key=key, VersionId=first[key])
                self.assertTrue(old["Body"].read() == body, key)
                told = (old["ETag"], old["Metadata"], old["ContentType"])
                self.assertEqual(told, (etags[key], {"by": "s3"}, "text/x"))
                self.assertTrue(self.get(key) == b"NFS" * 5 + body[15:], key)
            self.world.kill()
            self.world.start()
        with libnfs.Mount(self.world.libnfs_url()) as mount:
            self.assertTrue(self.get("dir/large", first["dir/large"]) == bodies["dir/large"])
            # Who cuts a file that was put just now begins a change.
            second = self.put("small", b"again over S3")
            mount.truncate(f"/{BUCKET}/small", 5)
            self.assertEqual((self.get("small", second), self.get("small")), (b"again over S3", b"again"))
            # A removal has a marker, and can be taken back.
            mount.unlink(f"/{BUCKET}/small")
            self.assertNotIn("small", mount.names(f"/{BUCKET}"))
            with self.fails("NoSuchKey", 404):
                self.get("small")
            of_small = [entry for entry in self.listed() if entry[0] == "small"]
            self.assertEqual(len(of_small), 5)
            ((_, marker, is_latest, _),) = [entry for entry in of_small if entry[3]]
            self.assertTrue(is_latest)
            self.delete("small", marker)
            self.assertEqual(mount.read_file(f"/{BUCKET}/small"), b"again")
            # A rename over an object keeps that.
            third = self.put("small", b"third")
            mount.write_file(f"/{BUCKET}/.temporary", b"renamed")
            mount.rename(f"/{BUCKET}/.temporary", f"/{BUCKET}/small")
            self.assertEqual((self.get("small"), self.get("small", third)), (b"renamed", b"third"))
            self.assertNotIn(".temporary", [entry[0] for entry in self.listed()])
            # And one away keeps nothing: it is the same file elsewhere.
            mount.rename(f"/{BUCKET}/small", f"/{BUCKET}/other")
            self.assertEqual(self.get("other"), b"renamed")
            # Beside the bucket nothing is kept.
            mount.write_file("/beside", b"1")
            mount.unlink("/beside")
            self.assertNotIn("beside", [entry[0] for entry in self.listed()])
            # What S3 does is as before.
            fourth = self.put("other", b"over S3")
            self.delete("other")
            self.assertEqual(self.get("other", fourth), b"over S3")
            count = len(self.listed())
            self.nfs_versions("off")
            fifth = self.put("other", b"lost")
            mount.write_file(f"/{BUCKET}/other", b"gone")
            with self.fails("NoSuchVersion", 404):
                self.get("other", fifth)
            self.assertEqual(len(self.listed()), count + 1)
        for key, version, _, _ in self.listed():
            self.delete(key, version)
        self.client.delete_bucket(Bucket=BUCKET)

    def test_a_file_that_is_written_on_and_on_has_a_version_now_and_then(self):
        self.s3_server()
        self.versioning("Enabled")
        self.nfs_versions("on", "--nfs-versions-seconds", 1)
        self.put("a", b"0" * 8)
        written: list[bytes] = []
        with libnfs.Mount(self.world.libnfs_url()) as mount:
            mount.chmod(f"/{BUCKET}/a", 0o666)
            with mount.open(f"/{BUCKET}/a", os.O_RDWR) as handle:

                def writes():
                    # Several at once: a look at what is kept may take longer than a version covers.
                    for _ in range(WRITES_PER_LOOK):
                        written.append(f"{len(written) + 1:08}".encode())
                        handle.write(0, written[-1])
                    return len(self.listed()) >= 4

                harness.wait_until(writes, EXPIRY_SECONDS_MAX, "three versions of a file that is written on and on")
        kept = [self.get(key, version) for key, version, is_latest, _ in self.listed() if not is_latest]
        self.assertIn(b"0" * 8, kept)
        # Each is what was there at some time, and there are fewer than writes.
        self.assertTrue(set(kept) <= {b"0" * 8, *written})
        self.assertEqual(len(set(kept)), len(kept))
        self.assertLess(len(kept), len(written))
        self.assertEqual(self.get("a"), written[-1])

    def test_old_versions_go_by_themselves(self):
        self.s3_server()
        self.versioning("Enabled")
        versions = [self.put("logs/a", bytes([index])) for index in range(4)]
        self.put("other", b"1")
        other = self.put("other", b"2")
        with libnfs.Mount(self.world.libnfs_url()) as mount:
            for key in ("logs/a", "other"):
                mount.utimes(f"/{BUCKET}/{key}", time.time() - 3 * DAY_SECONDS)
        rule = {"Status": "Enabled", "Filter": {"Prefix": "logs/"},
                "NoncurrentVersionExpiration": {"NoncurrentDays": 2, "NewerNoncurrentVersions": 2}}
        self.client.put_bucket_lifecycle_configuration(Bucket=BUCKET, LifecycleConfiguration={"Rules": [rule]})
        got = self.client.get_bucket_lifecycle_configuration(Bucket=BUCKET)["Rules"][0]
        self.assertEqual(got["NoncurrentVersionExpiration"], rule["NoncurrentVersionExpiration"])
        # What was replaced by one that looks three days old is that old; the two newest stay.
        rule["NoncurrentVersionExpiration"] = {"NoncurrentDays": 2}
        self.client.put_bucket_lifecycle_configuration(Bucket=BUCKET, LifecycleConfiguration={"Rules": [rule]})
        harness.wait_until(
            lambda: versions[2] not in [entry[1] for entry in self.listed()], EXPIRY_SECONDS_MAX, "a version that is to go"
        )
        self.assertEqual(len([entry for entry in self.listed() if entry[0] == "other"]), 2)
        self.assertNotEqual(other, None)
        # A marker that nothing is left of.
        self.delete("lone")
        marker = {"Status": "Enabled", "Filter": {"Prefix": "lone"}, "Expiration": {"ExpiredObjectDeleteMarker": True}}
        self.client.put_bucket_lifecycle_configuration(Bucket=BUCKET, LifecycleConfiguration={"Rules": [marker]})
        harness.wait_until(
            lambda: "lone" not in [entry[0] for entry in self.listed()], EXPIRY_SECONDS_MAX, "a marker that is to go"
        )

    def until(self, seconds):
        return datetime.datetime.now(datetime.timezone.utc).replace(microsecond=0) + datetime.timedelta(seconds=seconds)

    def test_what_is_locked_stays(self):
        self.s3_server(lock=True)
        lock = self.client.get_object_lock_configuration(Bucket=BUCKET)["ObjectLockConfiguration"]
        self.assertEqual(lock, {"ObjectLockEnabled": "Enabled"})
        with self.fails("InvalidBucketState", 409):
            self.versioning("Suspended")
        far = self.until(DAY_SECONDS)
        kept = self.put("a", b"kept", ObjectLockMode="COMPLIANCE", ObjectLockRetainUntilDate=far)
        head = self.client.head_object(Bucket=BUCKET, Key="a")
        self.assertEqual((head["ObjectLockMode"], head["ObjectLockRetainUntilDate"]), ("COMPLIANCE", far))
        with libnfs.Mount(self.world.libnfs_url()) as mount:
            mount.chmod(f"/{BUCKET}", 0o777)
            for change in (
                lambda: mount.unlink(f"/{BUCKET}/a"),
                lambda: mount.truncate(f"/{BUCKET}/a", 0),
                lambda: mount.rename(f"/{BUCKET}/a", f"/{BUCKET}/b"),
                lambda: mount.chmod(f"/{BUCKET}/a", 0o777),
            ):
                with self.assertRaises(OSError):
                    change()
            mount.write_file(f"/{BUCKET}/c", b"c")
            with self.assertRaises(OSError):
                mount.rename(f"/{BUCKET}/c", f"/{BUCKET}/a")
        self.world.kill()
        self.world.start()
        with self.fails("AccessDenied", 403):
            self.delete("a", kept)
        with self.fails("AccessDenied", 403):
            self.delete("a", kept, BypassGovernanceRetention=True)
        for shorter in ({"Mode": "COMPLIANCE", "RetainUntilDate": self.until(60)}, {"Mode": "GOVERNANCE", "RetainUntilDate": far}, {}):
            with self.fails("AccessDenied", 403):
                self.client.put_object_retention(Bucket=BUCKET, Key="a", Retention=shorter, BypassGovernanceRetention=True)
        # A new version and a marker may come; the locked one stays.
        self.put("a", b"new")
        marker = self.delete("a")["VersionId"]
        self.assertEqual(self.get("a", kept), b"kept")
        errors = self.client.delete_objects(Bucket=BUCKET, Delete={"Objects": [{"Key": "a", "VersionId": kept}]})["Errors"]
        self.assertEqual([(entry["Code"], entry["VersionId"]) for entry in errors], [("AccessDenied", kept)])
        self.delete("a", marker)
        # Governance: who asks for it, and may set the bucket, can.
        weak = self.put("b", b"b", ObjectLockMode="GOVERNANCE", ObjectLockRetainUntilDate=far)
        with self.fails("AccessDenied", 403):
            self.delete("b", weak)
        limited = s3.client(self.port, s3.Keys(self.world, "--bucket", BUCKET, uid=1000, gid=100))
        with self.fails("AccessDenied", 403):
            limited.delete_object(Bucket=BUCKET, Key="b", VersionId=weak, BypassGovernanceRetention=True)
        self.delete("b", weak, BypassGovernanceRetention=True)
        # A hold has no end, and is taken off.
        held = self.put("c", b"c", ObjectLockLegalHoldStatus="ON")
        self.assertEqual(self.client.get_object_legal_hold(Bucket=BUCKET, Key="c")["LegalHold"], {"Status": "ON"})
        with self.fails("AccessDenied", 403):
            self.delete("c", held, BypassGovernanceRetention=True)
        self.client.put_object_legal_hold(Bucket=BUCKET, Key="c", LegalHold={"Status": "OFF"})
        self.delete("c", held)
        # What the bucket wants of all that is put.
        rule = {"DefaultRetention": {"Mode": "GOVERNANCE", "Days": 1}}
        self.client.put_object_lock_configuration(
            Bucket=BUCKET, ObjectLockConfiguration={"ObjectLockEnabled": "Enabled", "Rule": rule}
        )
        default = self.put("d")
        told = self.client.get_object_retention(Bucket=BUCKET, Key="d")["Retention"]
        self.assertEqual(told["Mode"], "GOVERNANCE")
        self.assertLess(abs((told["RetainUntilDate"] - far).total_seconds()), 600)
        with self.fails("AccessDenied", 403):
            self.delete("d", default)
        # Short locks end by themselves, on a busy machine before they are asked for.
        def lock_shortly():
            try:
                return self.put("e", b"e", ObjectLockMode="COMPLIANCE", ObjectLockRetainUntilDate=self.until(3))
            except s3.errors().ClientError as error:
                self.assertEqual(error.response["Error"]["Code"], "InvalidArgument", error)
                return None

        short = harness.wait_until(lock_shortly, EXPIRY_SECONDS_MAX, "a lock that is not over yet")

        def goes():
            with contextlib.suppress(s3.errors().ClientError):
                self.delete("e", short)
                return True
            return False

        harness.wait_until(goes, EXPIRY_SECONDS_MAX, "the end of a lock")

    def test_a_lock_stays_on_what_somebody_may_not_remove(self):
        self.s3_server(lock=True)
        lock = {"ObjectLockMode": "GOVERNANCE", "ObjectLockRetainUntilDate": self.until(DAY_SECONDS)}
        old, new = self.put("a", b"old", **lock), self.put("a", b"new", **lock)
        # It may bypass locks, and has no right in the directory.
        other = s3.client(self.port, s3.Keys(self.world, uid=2000, gid=200))
        for version in (old, new):
            with self.fails("AccessDenied", 403):
                other.delete_object(Bucket=BUCKET, Key="a", VersionId=version, BypassGovernanceRetention=True)
        with libnfs.Mount(self.world.libnfs_url()) as mount, self.assertRaises(OSError):
            mount.unlink(f"/{BUCKET}/a")
        self.assertEqual((self.get("a"), self.get("a", old)), (b"new", b"old"))

    def test_a_put_that_fails_leaves_nothing_of_versions(self):
        self.s3_server()
        self.versioning("Enabled")
        self.put("dir/a", b"1")
        self.world.cairn("quota", "set", "main", "--user", "1000", "--files", "1")
        with self.fails("QuotaExceeded", 403):
            self.put("dir/a", b"2")
        self.world.cairn("quota", "remove", "main", "--user", "1000")
        self.assertEqual(len(self.listed()), 1)
        self.delete("dir/a", self.listed()[0][1])
        self.client.delete_bucket(Bucket=BUCKET)

    def test_locks_need_a_bucket_with_locks(self):
        self.s3_server()
        far = self.until(DAY_SECONDS)
        with self.fails("InvalidRequest", 400):
            self.put("a", ObjectLockMode="COMPLIANCE", ObjectLockRetainUntilDate=far)
        with self.fails("ObjectLockConfigurationNotFoundError", 404):
            self.client.get_object_lock_configuration(Bucket=BUCKET)
        wanted = {"ObjectLockEnabled": "Enabled"}
        with self.fails("InvalidBucketState", 409):
            self.client.put_object_lock_configuration(Bucket=BUCKET, ObjectLockConfiguration=wanted)
        self.put("a")
        with self.fails("InvalidRequest", 400):
            self.client.put_object_legal_hold(Bucket=BUCKET, Key="a", LegalHold={"Status": "ON"})
        self.versioning("Enabled")
        self.client.put_object_lock_configuration(Bucket=BUCKET, ObjectLockConfiguration=wanted)
        for wrong, code in (
            ({"ObjectLockMode": "COMPLIANCE"}, "InvalidArgument"),
            ({"ObjectLockMode": "COMPLIANCE", "ObjectLockRetainUntilDate": self.until(-60)}, "InvalidArgument"),
            ({"ObjectLockMode": "FOREVER", "ObjectLockRetainUntilDate": far}, "MalformedXML"),
        ):
            with self.fails(code):
                self.put("a", **wrong)

    def test_policies_and_nobody(self):
        self.s3_server()
        self.versioning("Enabled")
        first = self.put("a", b"1", ACL="public-read")
        self.put("a", b"2")
        url = f"http://127.0.0.1:{self.port}/{BUCKET}/a?versionId="
        self.assertEqual(urllib.request.urlopen(f"{url}{first}", timeout=20).read(), b"1")
        with self.assertRaises(urllib.error.HTTPError):
            urllib.request.urlopen(f"{url}null", timeout=20)
        reader = s3.client(self.port, s3.Keys(self.world, "--read-only", uid=1000, gid=100))
        with self.fails("AccessDenied", 403):
            reader.delete_object(Bucket=BUCKET, Key="a", VersionId=first)
        # Who may not write where the object is deletes no version of it.
        other = s3.client(self.port, s3.Keys(self.world, uid=2000, gid=200))
        with self.fails("AccessDenied", 403):
            other.delete_object(Bucket=BUCKET, Key="a", VersionId=first)
        self.assertEqual(self.get("a", first), b"1")
