"""S3 by boto3: objects and files are the same, errors are those of AWS, and what was answered is there after kill -9."""

import base64
import concurrent.futures
import contextlib
import datetime
import hashlib
import json
import os
import random
import socket
import threading
import unittest.mock
import zlib

from lib import harness, libnfs, s3
from lib.s3worlds import S3Test
from lib.worlds import content

BUCKET = "photos"
# Each write waits for a disk that may take seconds for it.
LOAD_SECONDS_MAX = 240
SPACE_BACK_SECONDS_MAX = 120
RACERS_COUNT = 12
PART_LEN_BYTES = 5 << 20
#: Of 64 MiB; `make test-s3` takes enough for seconds of copying.
LARGE_PARTS_COUNT = 40 if os.environ.get("CAIRN_S3_TREE") else 4
#: In the short form nothing takes so long, and a busy machine may.
IMPATIENT_SECONDS = 5 if os.environ.get("CAIRN_S3_TREE") else 30
#: Of an upload that is interrupted: CAIRN_S3_UPLOAD_MIB=10240 for one of 10 GiB.
UPLOAD_MIB = int(os.environ.get("CAIRN_S3_UPLOAD_MIB", 192))
UPLOAD_PART_MIB = 16
UPLOADERS_COUNT = 4


class S3(S3Test):
    def s3_server(self, disks=1, **key):
        self.listen(disks)
        self.world.cairn("bucket", "create", BUCKET, "--uid", key.get("uid", 0), "--gid", key.get("gid", 0))
        self.keys = s3.Keys(self.world, **key)
        self.client = self.client_of(self.keys)

    def client_of(self, keys, **settings):
        return s3.client(self.port, keys, **settings)

    def put(self, key, body=b"", **more):
        return self.client.put_object(Bucket=BUCKET, Key=key, Body=body, **more)

    def get(self, key, **more):
        return self.client.get_object(Bucket=BUCKET, Key=key, **more)["Body"].read()

    def listed(self, **more):
        """All keys and prefixes, page by page."""
        keys, prefixes = [], []
        for page in self.client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, **more):
            keys += [entry["Key"] for entry in page.get("Contents", [])]
            prefixes += [entry["Prefix"] for entry in page.get("CommonPrefixes", [])]
        return keys, prefixes

    def test_objects(self):
        self.s3_server()
        data = os.urandom(3 << 20)
        put = self.put("a/b/c.bin", data, Metadata={"who": "me"}, ContentType="image/png", CacheControl="no-cache", Tagging="x=1&y=2")
        self.assertEqual(put["ETag"], f'"{hashlib.md5(data).hexdigest()}"')
        got = self.client.get_object(Bucket=BUCKET, Key="a/b/c.bin", ChecksumMode="ENABLED")
        self.assertEqual(got["Body"].read(), data)
        self.assertEqual((got["ContentType"], got["CacheControl"], got["Metadata"]), ("image/png", "no-cache", {"who": "me"}))
        self.assertIn("ChecksumCRC32", got)
        self.assertEqual(self.get("a/b/c.bin", Range="bytes=5-9"), data[5:10])
        self.assertEqual(self.get("a/b/c.bin", Range="bytes=-7"), data[-7:])
        with self.fails("InvalidRange", 416):
            self.get("a/b/c.bin", Range="bytes=99999999-")
        tags = self.client.get_object_tagging(Bucket=BUCKET, Key="a/b/c.bin")["TagSet"]
        self.assertEqual(tags, [{"Key": "x", "Value": "1"}, {"Key": "y", "Value": "2"}])
        # Nothing, and an object of nothing.
        self.put("empty")
        self.assertEqual(self.get("empty"), b"")
        with self.fails("NoSuchKey", 404):
            self.get("a/b")
        with self.fails("404"):
            self.client.head_object(Bucket=BUCKET, Key="none")
        copy = {"Bucket": BUCKET, "Key": "a/b/c.bin"}
        self.client.copy_object(Bucket=BUCKET, Key="copy", CopySource=copy)
        head = self.client.head_object(Bucket=BUCKET, Key="copy")
        self.assertEqual((head["ContentLength"], head["Metadata"]), (len(data), {"who": "me"}))
        self.client.copy_object(Bucket=BUCKET, Key="copy", CopySource=copy, MetadataDirective="REPLACE", Metadata={"n": "1"})
        self.assertEqual(self.client.head_object(Bucket=BUCKET, Key="copy")["Metadata"], {"n": "1"})
        self.assertEqual(self.get("copy"), data)
        # Directories go with the last object in them.
        self.client.delete_object(Bucket=BUCKET, Key="a/b/c.bin")
        self.client.delete_object(Bucket=BUCKET, Key="a/b/c.bin")
        with libnfs.Mount(self.world.libnfs_url()) as mount:
            self.assertEqual(set(mount.names(f"/{BUCKET}")), {"copy", "empty"})
        wanted = {"Objects": [{"Key": key} for key in ("copy", "empty", "none")]}
        deleted = self.client.delete_objects(Bucket=BUCKET, Delete=wanted)
        self.assertEqual({entry["Key"] for entry in deleted["Deleted"]}, {"copy", "empty", "none"})
        self.client.delete_bucket(Bucket=BUCKET)
        with self.fails("NoSuchBucket", 404):
            self.put("a")

    def test_conditions(self):
        self.s3_server()
        first = self.put("a", b"1")["ETag"]
        with self.fails("PreconditionFailed", 412):
            self.put("a", b"2", IfNoneMatch="*")
        with self.fails("PreconditionFailed", 412):
            self.put("a", b"2", IfMatch='"0123"')
        for nothing in (first, "*"):
            with self.fails("NoSuchKey", 404):
                self.put("b", b"2", IfMatch=nothing)
            with self.fails("NoSuchKey", 404):
                self.get("b", IfMatch=nothing)
        self.put("a", b"2", IfMatch=first)
        self.put("b", b"3", IfNoneMatch="*")
        self.assertEqual((self.get("a"), self.get("b")), (b"2", b"3"))
        now = self.client.head_object(Bucket=BUCKET, Key="a")
        with self.fails("304"):
            self.client.head_object(Bucket=BUCKET, Key="a", IfNoneMatch=now["ETag"])
        with self.fails("304"):
            self.client.head_object(Bucket=BUCKET, Key="a", IfModifiedSince=now["LastModified"])
        with self.fails("PreconditionFailed", 412):
            self.get("a", IfUnmodifiedSince=now["LastModified"] - datetime.timedelta(days=1))

    def test_files_and_objects_are_the_same(self):
        self.s3_server(uid=1000, gid=100)
        self.put("dir/object", b"by S3", Metadata={"a": "b"})
        with libnfs.Mount(self.world.libnfs_url()) as mount:
            self.assertEqual(mount.read_file(f"/{BUCKET}/dir/object"), b"by S3")
            mount.write_file(f"/{BUCKET}/dir/file", b"by NFS")
            self.assertEqual(self.get("dir/file"), b"by NFS")
            before = self.client.head_object(Bucket=BUCKET, Key="dir/object")
            mount.write_file(f"/{BUCKET}/dir/object", b"changed")
            after = self.client.head_object(Bucket=BUCKET, Key="dir/object")
            # It is no MD5 any more, and says so; what was put with the old bytes is not told of the new ones.
            self.assertNotIn("-", before["ETag"])
            self.assertIn("-", after["ETag"])
            self.assertEqual((self.get("dir/object"), after["Metadata"]), (b"changed", {}))
            self.assertEqual(self.listed()[0], ["dir/file", "dir/object"])
            mount.unlink(f"/{BUCKET}/dir/object")
            with self.fails("NoSuchKey"):
                self.get("dir/object")
        # A directory that is there becomes a bucket as it is.
        self.world.cairn("bucket", "create", "inner", "--path", f"main/{BUCKET}/dir")
        self.assertEqual(self.client.get_object(Bucket="inner", Key="file")["Body"].read(), b"by NFS")
        self.assertIn("not empty", self.world.cairn("bucket", "delete", "inner", check=False).stderr)
        self.world.cairn("bucket", "delete", "inner", "--keep")
        self.assertEqual(self.get("dir/file"), b"by NFS")

    def test_rights_are_those_of_files_and_of_keys(self):
        self.s3_server(uid=1000, gid=100)
        self.put("mine/object", b"x")
        other = self.client_of(s3.Keys(self.world, uid=2000, gid=200))
        self.assertEqual(other.get_object(Bucket=BUCKET, Key="mine/object")["Body"].read(), b"x")
        with self.fails("AccessDenied", 403):
            other.put_object(Bucket=BUCKET, Key="mine/other", Body=b"y")
        with self.fails("AccessDenied", 403):
            other.delete_object(Bucket=BUCKET, Key="mine/object")
        reader = self.client_of(s3.Keys(self.world, "--read-only", uid=1000, gid=100))
        with self.fails("AccessDenied", 403):
            reader.put_object(Bucket=BUCKET, Key="mine/object", Body=b"y")
        keys = s3.Keys(self.world, "--bucket", f"{BUCKET}/mine/", uid=1000, gid=100)
        part = self.client_of(keys)
        part.put_object(Bucket=BUCKET, Key="mine/new", Body=b"z")
        for denied in (
            lambda: part.put_object(Bucket=BUCKET, Key="other", Body=b"z"), lambda: part.list_objects_v2(Bucket=BUCKET),
            lambda: part.create_bucket(Bucket="another"),
        ):
            with self.fails("AccessDenied", 403):
                denied()
        self.assertEqual(part.list_objects_v2(Bucket=BUCKET, Prefix="mine/")["KeyCount"], 2)
        self.world.cairn("s3", "key", "revoke", keys.id)
        with self.fails("InvalidAccessKeyId", 403):
            part.get_object(Bucket=BUCKET, Key="mine/new")
        self.assertNotIn(keys.secret, self.world.log_path.read_text(errors="replace"))
        self.assertNotIn(keys.secret, self.world.cairn("s3", "key", "list", "--json").stdout)

    def test_listings_are_in_the_order_of_keys(self):
        self.s3_server()
        rng = random.Random(7)
        parts = ["a", "a-b", "a.txt", "b", "b b", "ü", "z+1"]
        keys = {"a!", "dir/", "dir/x"} | {f"many/{index:04}" for index in range(300)}
        for _ in range(150):
            key = "/".join(rng.choice(parts) + str(rng.randrange(3)) for _ in range(rng.randrange(1, 4)))
            is_free = not any(other.startswith(f"{key}/") or key.startswith(f"{other}/") for other in keys)
            if is_free:
                keys.add(key)
        threads = [threading.Thread(target=self.put, args=(key,)) for key in keys]
        for start in range(0, len(threads), 32):
            for thread in threads[start : start + 32]:
                thread.start()
            for thread in threads[start : start + 32]:
                thread.join()
        wanted = sorted(keys, key=str.encode)
        for size in (7, 1000):
            self.assertEqual(self.listed(PaginationConfig={"PageSize": size})[0], wanted)
        for prefix in ("", "a", "many/", "many/02", "dir/", "b b0/", "none"):
            found = self.listed(Prefix=prefix, Delimiter="/", PaginationConfig={"PageSize": 5})
            below = [key for key in wanted if key.startswith(prefix)]
            rest = [(key, key[len(prefix) :].partition("/")) for key in below]
            self.assertEqual(found[0], [key for key, (_, slash, _) in rest if not slash])
            self.assertEqual(found[1], list(dict.fromkeys(f"{prefix}{part}/" for _, (part, slash, _) in rest if slash)))
        after = self.client.list_objects_v2(Bucket=BUCKET, StartAfter="many/0100", MaxKeys=2)
        self.assertEqual([entry["Key"] for entry in after["Contents"]], ["many/0101", "many/0102"])
        old = self.client.list_objects(Bucket=BUCKET, Marker="many/0298", Prefix="many/")
        self.assertEqual([entry["Key"] for entry in old["Contents"]], ["many/0299"])

    def test_what_is_not_set_is_told_so(self):
        self.s3_server()
        for key in ("a", "b/1", "b/2", "c"):
            self.put(key, b"x")
        page = self.client.list_object_versions(Bucket=BUCKET, MaxKeys=2)
        self.assertEqual([(entry["Key"], entry["VersionId"], entry["IsLatest"]) for entry in page["Versions"]],
                         [("a", "null", True), ("b/1", "null", True)])
        rest = self.client.list_object_versions(
            Bucket=BUCKET, KeyMarker=page["NextKeyMarker"], VersionIdMarker=page["NextVersionIdMarker"]
        )
        self.assertEqual([entry["Key"] for entry in rest["Versions"]], ["b/2", "c"])
        page = self.client.list_object_versions(Bucket=BUCKET, Delimiter="/")
        self.assertEqual([entry["Prefix"] for entry in page["CommonPrefixes"]], ["b/"])
        self.assertEqual(self.get("a", VersionId="null"), b"x")
        with self.fails("NoSuchVersion", 404):
            self.get("a", VersionId="1234")
        self.client.delete_object(Bucket=BUCKET, Key="a", VersionId="null")
        self.assertEqual(self.listed()[0], ["b/1", "b/2", "c"])
        for ask, code in (
            (self.client.get_bucket_encryption, "ServerSideEncryptionConfigurationNotFoundError"),
            (self.client.get_bucket_website, "NoSuchWebsiteConfiguration"),
            (self.client.get_bucket_replication, "ReplicationConfigurationNotFoundError"),
            (self.client.get_object_lock_configuration, "ObjectLockConfigurationNotFoundError"),
            (self.client.get_public_access_block, "NoSuchPublicAccessBlockConfiguration"),
            (self.client.get_bucket_ownership_controls, "OwnershipControlsNotFoundError"),
        ):
            with self.fails(code, 404):
                ask(Bucket=BUCKET)
        self.assertEqual(self.client.get_bucket_request_payment(Bucket=BUCKET)["Payer"], "BucketOwner")
        self.assertNotIn("LoggingEnabled", self.client.get_bucket_logging(Bucket=BUCKET))
        self.assertNotIn("Status", self.client.get_bucket_accelerate_configuration(Bucket=BUCKET))
        self.assertNotIn("QueueConfigurations", self.client.get_bucket_notification_configuration(Bucket=BUCKET))

    def test_copies_share_bytes(self):
        self.s3_server()
        data = os.urandom(4 * PART_LEN_BYTES + 100_000)
        etag = self.put("source", data)["ETag"]
        source = {"Bucket": BUCKET, "Key": "source"}
        written = self.world.metrics()['cairn_volume_written_bytes_total{volume="main"}']
        for number in range(5):
            copied = self.client.copy_object(Bucket=BUCKET, Key=f"copies/{number}", CopySource=source)["CopyObjectResult"]
            self.assertEqual(copied["ETag"], etag)
        # An object of parts of others, backwards; the server makes the checksums of the parts.
        place = {"Bucket": BUCKET, "Key": "turned"}
        ranges = [(start, min(start + PART_LEN_BYTES, len(data)) - 1) for start in range(0, len(data), PART_LEN_BYTES)]
        last, *others = reversed(ranges)
        parts = []
        upload = self.client.create_multipart_upload(**place, ChecksumAlgorithm="SHA256", ChecksumType="COMPOSITE")["UploadId"]
        for number, (first, end) in enumerate([*others, last], 1):
            copied = self.client.upload_part_copy(
                **place, UploadId=upload, PartNumber=number, CopySource=source, CopySourceRange=f"bytes={first}-{end}"
            )["CopyPartResult"]
            sha256 = base64.b64encode(hashlib.sha256(data[first : end + 1]).digest()).decode()
            self.assertEqual(copied["ChecksumSHA256"], sha256)
            parts.append({"PartNumber": number, "ETag": copied["ETag"], "ChecksumSHA256": sha256})
        self.client.complete_multipart_upload(**place, UploadId=upload, MultipartUpload={"Parts": parts})
        now = self.world.metrics()['cairn_volume_written_bytes_total{volume="main"}']
        self.assertLess(now - written, 1 << 20, "what was written")
        # Each goes its own way, also over NFS.
        self.client.delete_object(**source)
        with libnfs.Mount(self.world.libnfs_url()) as mount:
            with mount.open(f"/{BUCKET}/copies/0", os.O_RDWR) as file:
                file.write(1000, b"changed")
                file.sync()
        self.world.kill()
        self.world.start()
        self.client = self.client_of(self.keys)
        self.assertEqual(self.get("copies/0"), data[:1000] + b"changed" + data[1007:])
        for number in range(1, 5):
            self.assertEqual(self.get(f"copies/{number}"), data)
        self.assertEqual(self.get("turned"), b"".join(data[first : end + 1] for first, end in [*others, last]))

    def test_uploads_in_parts(self):
        self.s3_server()
        data = os.urandom(2 * PART_LEN_BYTES + 12345)
        place = {"Bucket": BUCKET, "Key": "parts/object"}
        upload = self.client.create_multipart_upload(**place, Metadata={"m": "1"})["UploadId"]
        parts = []
        for number, start in ((3, 2 * PART_LEN_BYTES), (1, 0), (2, PART_LEN_BYTES)):
            body = data[start : start + PART_LEN_BYTES]
            sent = self.client.upload_part(**place, UploadId=upload, PartNumber=number, Body=body)
            parts.append({"PartNumber": number, "ETag": sent["ETag"]})
        # Nobody sees it yet.
        self.assertEqual(self.listed(), ([], []))
        shown = self.client.list_parts(**place, UploadId=upload)["Parts"]
        self.assertEqual([part["PartNumber"] for part in shown], [1, 2, 3])
        uploads = self.client.list_multipart_uploads(Bucket=BUCKET)["Uploads"]
        self.assertEqual([entry["UploadId"] for entry in uploads], [upload])

        def complete(parts):
            return self.client.complete_multipart_upload(**place, UploadId=upload, MultipartUpload={"Parts": parts})

        with self.fails("InvalidPartOrder", 400):
            complete(parts)
        with self.fails("InvalidPart", 400):
            complete([*sorted(parts, key=lambda part: part["PartNumber"])[:2], {"PartNumber": 4, "ETag": parts[0]["ETag"]}])
        self.world.kill()
        self.world.start()
        self.client = self.client_of(self.keys)
        in_order = sorted(parts, key=lambda part: part["PartNumber"])
        done = complete(in_order)
        self.assertTrue(done["ETag"].endswith('-3"'))
        # Who had no answer is given it again, also by the next process, as long as the object is this one.
        self.assertEqual(complete(in_order)["ETag"], done["ETag"])
        self.world.kill()
        self.world.start()
        self.client = self.client_of(self.keys)
        self.assertEqual(complete(in_order)["ETag"], done["ETag"])
        with self.fails("NoSuchUpload", 404):
            complete(in_order[:2])
        self.client.copy_object(Bucket=BUCKET, Key="parts/copy", CopySource=place)
        with self.fails("NoSuchUpload", 404):
            self.client.complete_multipart_upload(
                Bucket=BUCKET, Key="parts/copy", UploadId=upload, MultipartUpload={"Parts": in_order}
            )
        self.assertEqual(self.get("parts/object"), data)
        self.assertEqual(self.get("parts/object", PartNumber=2), data[PART_LEN_BYTES : 2 * PART_LEN_BYTES])
        self.assertEqual(self.client.head_object(**place)["Metadata"], {"m": "1"})
        with self.fails("NoSuchUpload", 404):
            complete(parts)
        self.put("parts/object", b"another")
        with self.fails("NoSuchUpload", 404):
            complete(in_order)
        # Uploads are listed as objects are.
        keys = ["a", "d/1", "d/2", "e/1", "f"]
        begun = {key: self.client.create_multipart_upload(Bucket=BUCKET, Key=key)["UploadId"] for key in keys}
        found: list[str] = []
        marker: dict[str, str] = {}
        while True:
            page = self.client.list_multipart_uploads(Bucket=BUCKET, Delimiter="/", MaxUploads=1, **marker)
            found += [entry["Key"] for entry in page.get("Uploads", [])]
            found += [entry["Prefix"] for entry in page.get("CommonPrefixes", [])]
            if not page["IsTruncated"]:
                break
            marker = {"KeyMarker": page["NextKeyMarker"]}
            if page.get("NextUploadIdMarker"):
                marker["UploadIdMarker"] = page["NextUploadIdMarker"]
        self.assertEqual(found, ["a", "d/", "e/", "f"])
        for key, upload in begun.items():
            self.client.abort_multipart_upload(Bucket=BUCKET, Key=key, UploadId=upload)
        # What is given up takes no space.
        used = self.used_bytes()
        upload = self.client.create_multipart_upload(**place)["UploadId"]
        for number in (1, 2):
            self.client.upload_part(**place, UploadId=upload, PartNumber=number, Body=os.urandom(1 << 20))
        with self.fails("EntityTooSmall", 400):
            listed = self.client.list_parts(**place, UploadId=upload)["Parts"]
            complete([{"PartNumber": part["PartNumber"], "ETag": part["ETag"]} for part in listed])
        self.client.abort_multipart_upload(**place, UploadId=upload)
        with self.fails("NoSuchUpload", 404):
            self.client.list_parts(**place, UploadId=upload)
        harness.wait_until(lambda: self.used_bytes() <= used, SPACE_BACK_SECONDS_MAX, "the space of parts")

    def test_space_comes_back_of_uploads_that_were_being_removed(self):
        self.s3_server()
        used = self.used_bytes()
        for round_number in range(3):
            place = {"Bucket": BUCKET, "Key": "parts"}
            upload = self.client.create_multipart_upload(**place)["UploadId"]
            for number in range(1, 60):
                self.client.upload_part(**place, UploadId=upload, PartNumber=number, Body=os.urandom(100_000))

            def abort(place=place, upload=upload):
                with contextlib.suppress(s3.errors().BotoCoreError, s3.errors().ClientError):
                    self.client_of(self.keys).abort_multipart_upload(**place, UploadId=upload)

            thread = threading.Thread(target=abort)
            thread.start()
            thread.join(0.005 * round_number)
            self.world.kill()
            thread.join(LOAD_SECONDS_MAX)
            self.world.start()
            self.client = self.client_of(self.keys)
            # Not begun, or done, or in between: then nobody finds it any more.
            for entry in self.client.list_multipart_uploads(Bucket=BUCKET).get("Uploads", []):
                self.client.abort_multipart_upload(**place, UploadId=entry["UploadId"])
        harness.wait_until(lambda: self.used_bytes() <= used, SPACE_BACK_SECONDS_MAX, "the space of parts")

    def test_large_uploads_are_completed_while_the_client_waits(self):
        self.s3_server()
        place = {"Bucket": BUCKET, "Key": "large"}
        upload = self.client.create_multipart_upload(**place)["UploadId"]
        part, done = os.urandom(64 << 20), []
        for number in range(1, LARGE_PARTS_COUNT + 1):
            sent = self.client.upload_part(**place, UploadId=upload, PartNumber=number, Body=part)
            done.append({"PartNumber": number, "ETag": sent["ETag"]})
        impatient = self.client_of(self.keys, read_timeout=IMPATIENT_SECONDS)
        finished = impatient.complete_multipart_upload(**place, UploadId=upload, MultipartUpload={"Parts": done})
        self.assertTrue(finished["ETag"].endswith(f'-{LARGE_PARTS_COUNT}"'))
        head = self.client.head_object(**place)
        self.assertEqual((head["ContentLength"], head["ETag"]), (LARGE_PARTS_COUNT * len(part), finished["ETag"]))
        self.assertTrue(self.get("large", PartNumber=LARGE_PARTS_COUNT) == part)

    def test_an_interrupted_upload_goes_on(self):
        """The server is killed while parts come; what was answered of them is there, and only the others are sent again."""
        self.s3_server()
        place = {"Bucket": BUCKET, "Key": "large"}
        numbers = range(1, UPLOAD_MIB // UPLOAD_PART_MIB + 1)
        block = os.urandom(1 << 20)
        part_of = lambda number: number.to_bytes(4, "big") * (1 << 18) + block * (UPLOAD_PART_MIB - 1)
        upload = self.client.create_multipart_upload(**place)["UploadId"]
        answered, killed = {}, threading.Event()

        def send(number):
            if number == numbers[-1]:
                # However fast the others are: one finds no server.
                killed.wait(LOAD_SECONDS_MAX)
            sent = self.client.upload_part(**place, UploadId=upload, PartNumber=number, Body=part_of(number))
            answered[number] = sent["ETag"]
            # Another one may be answered before this one counts.
            if len(answered) >= len(numbers) // 2 and not killed.is_set():
                self.world.kill()
                killed.set()

        with concurrent.futures.ThreadPoolExecutor(UPLOADERS_COUNT) as uploaders:
            sending = [uploaders.submit(send, number) for number in numbers]
            failed = [one.exception() for one in sending if one.exception()]
        self.assertGreater(len(failed), 0)
        self.world.start()
        listed = self.client.get_paginator("list_parts").paginate(**place, UploadId=upload)
        there = {part["PartNumber"]: part["ETag"] for page in listed for part in page.get("Parts", [])}
        self.assertEqual({number: there.get(number) for number in answered}, answered)
        with concurrent.futures.ThreadPoolExecutor(UPLOADERS_COUNT) as uploaders:
            missing = [number for number in numbers if number not in there]
            sent = lambda number: self.client.upload_part(**place, UploadId=upload, PartNumber=number, Body=part_of(number))["ETag"]
            there |= dict(zip(missing, uploaders.map(sent, missing)))
        parts = [{"PartNumber": number, "ETag": there[number]} for number in numbers]
        self.client.complete_multipart_upload(**place, UploadId=upload, MultipartUpload={"Parts": parts})
        body = self.client.get_object(**place)["Body"]
        for number in numbers:
            self.assertTrue(body.read(UPLOAD_PART_MIB << 20) == part_of(number), f"part {number}")
        self.assertEqual(body.read(), b"")

    def test_checksums_of_uploads_in_parts(self):
        self.s3_server()
        parts = [os.urandom(PART_LEN_BYTES), os.urandom(1000)]
        place = {"Bucket": BUCKET, "Key": "sums"}
        sums = [hashlib.sha256(part).digest() for part in parts]
        of_sums = base64.b64encode(hashlib.sha256(b"".join(sums)).digest()).decode() + "-2"
        whole = base64.b64encode(zlib.crc32(b"".join(parts)).to_bytes(4, "big")).decode()
        for algorithm, kind, want in (("SHA256", "COMPOSITE", of_sums), ("CRC32", "FULL_OBJECT", whole)):
            made = self.client.create_multipart_upload(**place, ChecksumAlgorithm=algorithm, ChecksumType=kind)
            self.assertEqual((made["ChecksumAlgorithm"], made["ChecksumType"]), (algorithm, kind))
            upload, done, name = made["UploadId"], [], f"Checksum{algorithm}"
            for number, body in enumerate(parts, 1):
                sent = self.client.upload_part(**place, UploadId=upload, PartNumber=number, Body=body, ChecksumAlgorithm=algorithm)
                done.append({"PartNumber": number, "ETag": sent["ETag"], name: sent[name]})
            listed = self.client.list_parts(**place, UploadId=upload)
            self.assertEqual([part[name] for part in listed["Parts"]], [part[name] for part in done])
            self.assertEqual(listed["ChecksumType"], kind)

            def complete(parts, upload=upload, **more):
                wanted = {"Parts": parts}
                return self.client.complete_multipart_upload(**place, UploadId=upload, MultipartUpload=wanted, **more)

            with self.fails("InvalidPart", 400):
                complete([done[0] | {name: done[1][name]}, done[1]])
            if kind == "FULL_OBJECT":
                with self.fails("BadDigest", 400):
                    complete(done, ChecksumCRC32="AAAAAA==")
            # As minio-go sends a composite: without the count.
            finished = complete(done, **{name: want.partition("-")[0]})
            self.assertEqual((finished[name], finished["ChecksumType"]), (want, kind))
            again = complete(done, **{name: want})
            self.assertEqual((again[name], again["ETag"]), (want, finished["ETag"]))
            head = self.client.head_object(**place, ChecksumMode="ENABLED")
            self.assertEqual((head[name], head["ChecksumType"]), (want, kind))
            wanted = ["ETag", "Checksum", "ObjectParts", "ObjectSize", "StorageClass"]
            told = self.client.get_object_attributes(**place, ObjectAttributes=wanted)
            self.assertEqual(told["Checksum"][name], want)
            self.assertEqual(told["ObjectSize"], PART_LEN_BYTES + 1000)
            self.assertEqual([part["Size"] for part in told["ObjectParts"]["Parts"]], [PART_LEN_BYTES, 1000])
            self.assertEqual(self.get("sums"), b"".join(parts))
        for algorithm, kind in (("SHA1", "FULL_OBJECT"), ("CRC64NVME", "COMPOSITE")):
            with self.fails("InvalidRequest", 400):
                self.client.create_multipart_upload(**place, ChecksumAlgorithm=algorithm, ChecksumType=kind)

    def used_bytes(self):
        (volume,) = json.loads(self.world.cairn("volume", "list", "--json").stdout)["volumes"]
        return volume["used_bytes"]

    def test_what_is_wrong_is_refused_with_the_codes_of_aws(self):
        self.s3_server()
        self.put("there", b"1")
        wrong = s3.client(self.port, self.keys, secret="x" * 40)
        with self.fails("SignatureDoesNotMatch", 403):
            wrong.get_object(Bucket=BUCKET, Key="there")
        unknown = unittest.mock.Mock(id="AKIANOBODY", secret="y" * 40)
        with self.fails("InvalidAccessKeyId", 403):
            s3.client(self.port, unknown).get_object(Bucket=BUCKET, Key="there")
        with self.fails("BadDigest", 400):
            self.put("a", b"data", ContentMD5=base64.b64encode(hashlib.md5(b"other").digest()).decode())
        with self.fails("InvalidDigest", 400):
            self.put("a", b"data", ContentMD5="no")
        with self.fails("BadDigest", 400):
            self.put("a", b"data", ChecksumSHA256=base64.b64encode(hashlib.sha256(b"other").digest()).decode())
        for key, code in (
            ("a//b", "InvalidArgument"), ("../a", "InvalidArgument"), ("a/./b", "InvalidArgument"), ("there/below", "KeyConflict"),
            ("x" * 300, "KeyTooLongError"), ("x/" * 513, "KeyTooLongError"),
        ):
            with self.fails(code):
                self.put(key, b"data")
        self.put("dir/a")
        with self.fails("KeyConflict", 409):
            self.put("dir", b"data")
        with self.fails("BucketAlreadyOwnedByYou", 409):
            self.client.create_bucket(Bucket=BUCKET)
        with self.fails("InvalidBucketName", 400):
            self.client.create_bucket(Bucket="192.168.1.1")
        with self.fails("BucketNotEmpty", 409):
            self.client.delete_bucket(Bucket=BUCKET)
        with self.fails("MetadataTooLarge", 400):
            self.put("a", b"data", Metadata={"m": "x" * 4000})
        # What would not be so is not promised.
        with self.fails("NotImplemented", 501):
            self.put("a", b"data", ServerSideEncryption="AES256")
        with self.fails("InvalidRequest", 400):
            self.put("a", b"data", ObjectLockLegalHoldStatus="ON")
        presigned = self.client.generate_presigned_url("get_object", {"Bucket": BUCKET, "Key": "there"}, ExpiresIn=60)
        self.assertIn("200", self.raw(f"GET {presigned.partition(str(self.port))[2]} HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\n"))
        self.assertIn("AccessDenied", self.raw(f"GET /{BUCKET}/there HTTP/1.1\r\nHost: x\r\n"))
        self.assertIn("431", self.raw("GET / HTTP/1.1\r\n" + "".join(f"X-{n}: 1\r\n" for n in range(5000))))
        self.assertIn("400", self.raw("nonsense\r\n"))
        self.assertEqual(self.listed()[0], ["dir/a", "there"])
        self.assertNotIn("panicked", self.world.log_path.read_text(errors="replace"))

    def raw(self, head):
        with socket.create_connection(("127.0.0.1", self.port), 20) as stream:
            stream.sendall(head.encode() + b"Connection: close\r\n\r\n")
            answer = b""
            with contextlib.suppress(ConnectionError):
                while part := stream.recv(65536):
                    answer += part
        return answer.decode(errors="replace")

    def test_one_of_many_wins_a_name_also_when_the_server_is_killed(self):
        self.s3_server()
        for round_number in range(6):
            key = f"race/{round_number}"
            won: list[int] = []
            unsure: list[int] = []

            def race(index, key=key, won=won, unsure=unsure):
                try:
                    self.client_of(self.keys).put_object(Bucket=BUCKET, Key=key, Body=str(index).encode(), IfNoneMatch="*")
                    won.append(index)
                except s3.errors().ClientError as error:
                    if error.response["Error"]["Code"] != "PreconditionFailed":
                        unsure.append(index)
                except s3.errors().BotoCoreError:
                    unsure.append(index)

            threads = [threading.Thread(target=race, args=(index,)) for index in range(RACERS_COUNT)]
            for thread in threads:
                thread.start()
            if round_number % 2:
                threads[0].join(0.02)
                self.world.kill()
            for thread in threads:
                thread.join(LOAD_SECONDS_MAX)
                self.assertFalse(thread.is_alive())
            if round_number % 2:
                self.world.start()
                self.client = self.client_of(self.keys)
            self.assertLessEqual(len(won), 1)
            if won:
                self.assertEqual(self.get(key), str(won[0]).encode())
            elif round_number % 2 == 0:
                self.fail(f"nobody won: {unsure}")

    def test_what_was_answered_is_there_after_kill_9(self):
        self.s3_server(6)
        known: dict[str, bytes] = {}
        for round_number in range(3):
            stop = threading.Event()
            counts = [0] * 4

            def work(index, stop=stop, counts=counts, round_number=round_number):
                client = self.client_of(self.keys)
                rng = random.Random(f"{round_number} {index}")
                for number in range(1 << 30):
                    key = f"load{index}/{rng.randrange(20)}/object"
                    body = content(f"{round_number} {index} {number}", rng.choice((10, 3000, 70_000, 400_000)))
                    # Whatever becomes of this one.
                    known.pop(key, None)
                    try:
                        if rng.random() < 0.2:
                            client.delete_object(Bucket=BUCKET, Key=key)
                        else:
                            client.put_object(Bucket=BUCKET, Key=key, Body=body)
                            known[key] = body
                    except (s3.errors().BotoCoreError, s3.errors().ClientError):
                        return
                    counts[index] += 1
                    if stop.is_set():
                        return

            threads = [threading.Thread(target=work, args=(index,), daemon=True) for index in range(4)]
            for thread in threads:
                thread.start()
            harness.wait_until(lambda counts=counts: min(counts) >= 30, LOAD_SECONDS_MAX, "enough load")
            self.world.kill()
            stop.set()
            for thread in threads:
                thread.join(LOAD_SECONDS_MAX)
                self.assertFalse(thread.is_alive())
            self.world.start()
            self.client = self.client_of(self.keys)
            for key, body in known.items():
                self.assertTrue(self.get(key) == body, key)
            # An object that is there is whole, also one that nobody was told of.
            for key in self.listed()[0]:
                head = self.client.head_object(Bucket=BUCKET, Key=key)
                data = self.get(key)
                self.assertEqual(len(data), head["ContentLength"])
                self.assertEqual(head["ETag"], f'"{hashlib.md5(data).hexdigest()}"', key)
