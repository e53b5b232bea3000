"""S3 by the SDKs that programs use, over HTTP and over TLS: what each of them sees, and what is stored by each.

SDKs send a body in one piece, in chunks that are signed or not, and with its checksum before or behind it, by whether they speak
TLS and know its length. What is stored says nothing of that.
"""

import functools
import http.client
import io
import json
import os
import pathlib
import shutil
import ssl
import subprocess
import unittest
import urllib.request
from datetime import timedelta
from typing import Any

from lib import harness, s3
from lib.worlds import WorldTest, content

BUCKET = "photos"
#: The least that all but the last part of an upload have.
PART_LEN_BYTES = 5 << 20
NAMES = ["a b", "a+b", "a%2Fb", "ü/ö é", "q?x=1&y=2", "<&>\"'", "😀", "(x)!*'~", "#hash;semi:colon,at@", "last/one"]
SMALL = b"small and known"
CLIENT_SECONDS_MAX = 120
JAVASCRIPT = harness.REPOSITORY / "tests" / "s3-js" / "client.js"


@functools.cache
def large():
    """Bytes of two parts."""
    return content(48, PART_LEN_BYTES + 70_001)


def parts_of(data):
    return [data[at : at + PART_LEN_BYTES] for at in range(0, len(data), PART_LEN_BYTES)]


class Unseekable(io.RawIOBase):
    """A stream that tells neither its length nor where it is."""

    def __init__(self, data):
        self.source = io.BytesIO(data)

    def readable(self):
        return True

    def readinto(self, buffer):
        return self.source.readinto(buffer)


class OverHttp(WorldTest):
    """One server, and each SDK beside it."""

    scheme = "http"

    def setUp(self):
        super().setUp()
        self.port = harness.next_port()
        self.authority: pathlib.Path | None = None
        flags = ["--listen-s3", f"127.0.0.1:{self.port}"]
        if self.scheme == "https":
            self.authority, key = s3.certificate(self.scratch, "server")
            flags += ["--s3-certificate", str(self.authority), "--s3-key", str(key)]
        self.world = self.server(1, flags)
        self.world.cairn("bucket", "create", BUCKET, "--uid", 1000, "--gid", 100)
        self.keys = s3.Keys(self.world, uid=1000, gid=100)
        self.url = f"{self.scheme}://127.0.0.1:{self.port}"
        self.client = s3.client(self.port, self.keys, scheme=self.scheme, verify=self.authority and str(self.authority))
        self.file = self.scratch / "large"
        self.file.write_bytes(large())

    def environment(self):
        own = {
            "AWS_ACCESS_KEY_ID": self.keys.id, "AWS_SECRET_ACCESS_KEY": self.keys.secret, "AWS_DEFAULT_REGION": s3.REGION,
            "AWS_CONFIG_FILE": str(self.scratch / "aws-config"), "AWS_SHARED_CREDENTIALS_FILE": str(self.scratch / "none"),
            "AWS_EC2_METADATA_DISABLED": "true", "RCLONE_CONFIG": str(self.scratch / "rclone.conf"),
        }
        # The server is on this machine, whatever else is reached through a proxy.
        told = ("AWS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS", "SSL_CERT_FILE", "AWS_PROFILE", "AWS_SESSION_TOKEN")
        inherited = {name: value for name, value in os.environ.items() if name not in told and not name.lower().endswith("_proxy")}
        return inherited | own

    def run_client(self, *words, data=None, status=0, says="", **more):
        """What a program prints that ends with a status and complains of something; `more` is added to its environment."""
        given: dict[str, Any] = {"stdin": subprocess.DEVNULL} if data is None else {"input": data}
        done = subprocess.run(
            [str(word) for word in words], env=self.environment() | more, capture_output=True, timeout=CLIENT_SECONDS_MAX, **given
        )
        said = (done.stdout[-2000:] + done.stderr[-4000:]).decode(errors="replace")
        self.assertEqual(done.returncode, status, f"{words}: {said}")
        self.assertIn(says, said)
        return done.stdout

    def fetch(self, url, data=None):
        """What an URL shows to somebody who has no key: headers and bytes. With `data` they are put there."""
        context = ssl.create_default_context(cafile=str(self.authority)) if self.authority else None
        request = urllib.request.Request(url, method="GET" if data is None else "PUT", data=data)
        handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
        if context:
            handlers.append(urllib.request.HTTPSHandler(context=context))
        with urllib.request.build_opener(*handlers).open(request, timeout=20) as answer:
            return answer.headers, answer.read()

    def stored(self, key, data, encoding=None, wants=()):
        """An object is what was put, and is told so: no encoding but its own, and the checksums of its bytes.

        `wants`: checksums that are told in any case.
        """
        head = self.client.head_object(Bucket=BUCKET, Key=key, ChecksumMode="ENABLED")
        self.assertEqual((head["ContentLength"], head.get("ContentEncoding")), (len(data), encoding), key)
        told = {name: head[name] for name in s3.CHECKSUMS if name in head}
        self.assertLessEqual(set(wants), set(told), key)
        for name, value in told.items():
            is_composite = head.get("ChecksumType") == "COMPOSITE"
            want = s3.checksum_of_parts(name, parts_of(data)) if is_composite else s3.checksum(name, data)
            self.assertEqual(value, want, (key, name))
        # As a browser gets it, which undoes each encoding that it is told of.
        url = self.client.generate_presigned_url("get_object", {"Bucket": BUCKET, "Key": key}, ExpiresIn=60)
        headers, got = self.fetch(url)
        self.assertEqual((headers["content-encoding"], headers["content-length"]), (encoding, str(len(data))), key)
        self.assertTrue(got == data, key)
        return head

    def refused(self, code, call, **words):
        with self.assertRaises(s3.errors().ClientError) as caught:
            call(Bucket=BUCKET, **words)
        self.assertEqual(caught.exception.response["Error"]["Code"], code, words)

    def all_stored(self):
        """The keys of all objects, none of which has an encoding."""
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET)
        keys = [entry["Key"] for page in pages for entry in page.get("Contents", [])]
        for key in keys:
            self.assertNotIn("ContentEncoding", self.client.head_object(Bucket=BUCKET, Key=key), key)
        return keys

    def test_boto3(self):
        client = self.client
        client.put_object(Bucket=BUCKET, Key="small", Body=SMALL)
        self.stored("small", SMALL, wants=["ChecksumCRC32"])
        for name in ("CRC32", "SHA1", "SHA256"):
            with open(self.file, "rb") as file:
                client.put_object(Bucket=BUCKET, Key=name, Body=file, ChecksumAlgorithm=name)
            self.stored(name, large(), wants=[f"Checksum{name}"])
        client.put_object(Bucket=BUCKET, Key="packed", Body=io.BytesIO(SMALL), ContentEncoding="gzip")
        self.stored("packed", SMALL, "gzip", ["ChecksumCRC32"])
        transfer = s3.transfer_config(multipart_threshold=PART_LEN_BYTES, multipart_chunksize=PART_LEN_BYTES)
        client.upload_fileobj(Unseekable(large()), BUCKET, "stream", Config=transfer)
        self.stored("stream", large(), wants=["ChecksumCRC32"])
        down = io.BytesIO()
        client.download_fileobj(BUCKET, "stream", down, Config=transfer)
        self.assertTrue(down.getvalue() == large())
        self.boto3_parts()
        got = client.get_object(Bucket=BUCKET, Key="SHA256", Range="bytes=1000-2999")
        self.assertTrue(got["Body"].read() == large()[1000:3000])
        # A copy is what its source is, with its encoding.
        client.copy_object(Bucket=BUCKET, Key="copy", CopySource={"Bucket": BUCKET, "Key": "packed"})
        self.stored("copy", SMALL, "gzip")
        etag = client.head_object(Bucket=BUCKET, Key="small")["ETag"]
        self.refused("PreconditionFailed", client.put_object, Key="small", Body=b"other", IfNoneMatch="*")
        self.refused("304", client.get_object, Key="small", IfNoneMatch=etag)
        self.refused("PreconditionFailed", client.get_object, Key="small", IfMatch='"0123"')
        self.assertEqual(client.get_object(Bucket=BUCKET, Key="small", IfMatch=etag)["Body"].read(), SMALL)
        self.boto3_names()
        client.put_object(Bucket=BUCKET, Key="tagged", Body=b"", Tagging="first=1")
        tags = [{"Key": "ü b", "Value": "2"}]
        client.put_object_tagging(Bucket=BUCKET, Key="tagged", Tagging={"TagSet": tags})
        self.assertEqual(client.get_object_tagging(Bucket=BUCKET, Key="tagged")["TagSet"], tags)
        url = client.generate_presigned_url("put_object", {"Bucket": BUCKET, "Key": "signed a+b"}, ExpiresIn=60)
        self.fetch(url, SMALL)
        self.stored("signed a+b", SMALL)

    def boto3_parts(self):
        place = {"Bucket": BUCKET, "Key": "parts"}
        upload = place | {"UploadId": self.client.create_multipart_upload(**place, ChecksumAlgorithm="SHA256")["UploadId"]}
        parts = []
        for number, body in enumerate(parts_of(large()), 1):
            sent = self.client.upload_part(**upload, PartNumber=number, Body=body, ChecksumAlgorithm="SHA256")
            self.assertEqual(sent["ChecksumSHA256"], s3.checksum("ChecksumSHA256", body))
            parts.append({"PartNumber": number, "ETag": sent["ETag"], "ChecksumSHA256": sent["ChecksumSHA256"]})
        done = self.client.complete_multipart_upload(**upload, MultipartUpload={"Parts": parts})
        head = self.stored("parts", large(), wants=["ChecksumSHA256"])
        self.assertEqual((head["ChecksumType"], head["ChecksumSHA256"]), ("COMPOSITE", done["ChecksumSHA256"]))

    def boto3_names(self):
        wanted = [f"names/{name}" for name in NAMES]
        for key in wanted:
            self.client.put_object(Bucket=BUCKET, Key=key, Body=key.encode())
        pages = self.client.get_paginator("list_objects_v2").paginate(
            Bucket=BUCKET, Prefix="names/", PaginationConfig={"PageSize": 4}
        )
        self.assertEqual([entry["Key"] for page in pages for entry in page["Contents"]], sorted(wanted, key=str.encode))
        for key in wanted:
            self.assertEqual(self.client.get_object(Bucket=BUCKET, Key=key)["Body"].read(), key.encode())
        done = self.client.delete_objects(Bucket=BUCKET, Delete={"Objects": [{"Key": key} for key in wanted]})
        self.assertEqual((done.get("Errors", []), len(done["Deleted"])), ([], len(wanted)))
        self.assertEqual(self.client.list_objects_v2(Bucket=BUCKET, Prefix="names/")["KeyCount"], 0)

    def test_aws_cli(self):
        (self.scratch / "aws-config").write_text("[default]\ns3 =\n  signature_version = s3v4\n  multipart_threshold = 5MB\n  multipart_chunksize = 5MB\n")
        bundle = {"AWS_CA_BUNDLE": str(self.authority)} if self.authority else {}
        aws = functools.partial(self.run_client, *s3.aws_cli(), "--endpoint-url", self.url, **bundle)
        api = functools.partial(aws, "s3api")
        place = ("--bucket", BUCKET, "--key")
        small, down = self.scratch / "small", self.scratch / "down"
        small.write_bytes(SMALL)
        aws("s3", "cp", small, f"s3://{BUCKET}/small")
        self.stored("small", SMALL)
        aws("s3", "cp", "-", f"s3://{BUCKET}/stream", data=large())
        self.stored("stream", large())
        self.assertTrue(aws("s3", "cp", f"s3://{BUCKET}/stream", "-") == large())
        aws("s3", "cp", f"s3://{BUCKET}/stream", f"s3://{BUCKET}/copy")
        self.stored("copy", large())
        api("put-object", *place, "a b+ü", "--body", self.file, "--checksum-algorithm", "SHA256", "--tagging", "first=1")
        self.stored("a b+ü", large(), wants=["ChecksumSHA256"])
        tags = self.client.get_object_tagging(Bucket=BUCKET, Key="a b+ü")["TagSet"]
        self.assertEqual(tags, [{"Key": "first", "Value": "1"}])
        api("get-object", *place, "a b+ü", "--range", "bytes=1000-2999", down)
        self.assertTrue(down.read_bytes() == large()[1000:3000])
        api("put-object", *place, "small", "--body", self.file, "--if-none-match", "*", status=255, says="PreconditionFailed")
        self.stored("small", SMALL)
        signed = aws("s3", "presign", f"s3://{BUCKET}/a b+ü", "--expires-in", "60").decode().strip()
        self.assertTrue(self.fetch(signed)[1] == large())
        for name in NAMES:
            self.client.put_object(Bucket=BUCKET, Key=f"names/{name}", Body=b"")
        aws("s3", "rm", "--recursive", f"s3://{BUCKET}/names")
        self.assertEqual(sorted(self.all_stored()), sorted(["small", "stream", "a b+ü", "copy"]))

    def minio_client(self):
        urllib3 = s3.module("urllib3")
        pool = urllib3.PoolManager(
            cert_reqs="CERT_REQUIRED", ca_certs=self.authority and str(self.authority), retries=False, timeout=urllib3.Timeout(60)
        )
        return s3.module("minio").Minio(
            f"127.0.0.1:{self.port}", access_key=self.keys.id, secret_key=self.keys.secret, secure=self.scheme == "https",
            region=s3.REGION, http_client=pool,
        )

    def test_minio_py(self):
        client, common = self.minio_client(), s3.module("minio.commonconfig")

        def read(key, **words):
            answer = client.get_object(BUCKET, key, **words)
            try:
                return answer.read()
            finally:
                answer.close()
                answer.release_conn()

        client.put_object(BUCKET, "small", io.BytesIO(SMALL), len(SMALL), metadata={"Content-Encoding": "gzip", "kept": "1"})
        self.stored("small", SMALL, "gzip")
        self.assertEqual(self.client.head_object(Bucket=BUCKET, Key="small")["Metadata"], {"kept": "1"})
        client.put_object(BUCKET, "known", io.BytesIO(large()), len(large()), part_size=PART_LEN_BYTES)
        client.put_object(BUCKET, "stream", Unseekable(large()), -1, part_size=PART_LEN_BYTES)
        client.copy_object(BUCKET, "copy", common.CopySource(BUCKET, "small"))
        self.stored("copy", SMALL, "gzip")
        client.compose_object(BUCKET, "composed", [common.ComposeSource(BUCKET, "known"), common.ComposeSource(BUCKET, "stream")])
        self.stored("composed", large() * 2)
        for key in ("known", "stream"):
            self.stored(key, large())
            self.assertTrue(read(key) == large(), key)
        self.assertTrue(read("known", offset=1000, length=2000) == large()[1000:3000])
        self.assertEqual(client.stat_object(BUCKET, "stream").size, len(large()))
        failed = s3.module("minio.error").S3Error
        with self.assertRaises(failed) as caught:
            client.copy_object(BUCKET, "no-copy", common.CopySource(BUCKET, "small", match_etag="0123"))
        self.assertEqual(caught.exception.code, "PreconditionFailed")
        wanted = [f"names/{name}" for name in NAMES]
        for key in wanted:
            client.put_object(BUCKET, key, io.BytesIO(key.encode()), len(key.encode()))
        listed = [entry.object_name for entry in client.list_objects(BUCKET, prefix="names/", recursive=True)]
        self.assertEqual(listed, sorted(wanted, key=str.encode))
        for key in wanted:
            self.assertEqual(read(key), key.encode())
        deleted = s3.module("minio.deleteobjects").DeleteObject
        # It writes each character as a number, and none above U+FFFF is read so: docs/reference/s3.md.
        above = [key for key in wanted if max(key) > "\uffff"]
        with self.assertRaises(failed) as caught:
            list(client.remove_objects(BUCKET, [deleted(key) for key in wanted]))
        self.assertEqual(caught.exception.code, "MalformedXML")
        self.assertEqual(len(list(client.list_objects(BUCKET, prefix="names/", recursive=True))), len(wanted))
        for key in above:
            client.remove_object(BUCKET, key)
        self.assertEqual(list(client.remove_objects(BUCKET, [deleted(key) for key in wanted if key not in above])), [])
        self.assertEqual(list(client.list_objects(BUCKET, prefix="names/")), [])
        tags = common.Tags.new_object_tags()
        tags["ü b"] = "2"
        client.set_object_tags(BUCKET, "small", tags)
        self.assertEqual(client.get_object_tags(BUCKET, "small"), {"ü b": "2"})
        self.fetch(client.presigned_put_object(BUCKET, "signed a+b", expires=timedelta(minutes=1)), SMALL)
        self.stored("signed a+b", SMALL)
        self.assertEqual(self.fetch(client.presigned_get_object(BUCKET, "signed a+b", expires=timedelta(minutes=1)))[1], SMALL)

    @unittest.skipUnless(shutil.which("node"), "Node is not installed")
    def test_javascript(self):
        asked = {"endpoint": self.url, "bucket": BUCKET, "names": NAMES, "large": str(self.file), "part": PART_LEN_BYTES}
        authority = {"NODE_EXTRA_CA_CERTS": str(self.authority)} if self.authority else {}
        self.run_client("node", JAVASCRIPT, json.dumps(asked), NODE_PATH=str(s3.javascript()), **authority)
        small = b"by JavaScript"
        self.stored("js/small", small, wants=["ChecksumCRC32"])
        self.stored("js/stream", large())
        for key in ("js/file", "js/told"):
            self.stored(key, large(), wants=["ChecksumCRC32"])
        for name in ("CRC32", "CRC32C", "SHA1", "SHA256"):
            self.stored(f"js/{name}", large(), wants=[f"Checksum{name}"])
        self.assertEqual(self.stored("js/parts", large(), wants=["ChecksumSHA256"])["ChecksumType"], "COMPOSITE")
        self.stored("js/packed", small, "gzip")
        self.stored("js/copy", small, "gzip")
        self.stored("js/signed a+b", small)

    @unittest.skipUnless(shutil.which("rclone"), "rclone is not installed")
    def test_rclone(self):
        """The AWS SDK for Go."""
        authority = ("--ca-cert", self.authority) if self.authority else ()
        rclone = functools.partial(self.run_client, "rclone", *authority, "--retries", 1, "--low-level-retries", 1)
        remote = f":s3,provider=Other,env_auth=true,force_path_style=true,endpoint='{self.url}',upload_cutoff=5M,chunk_size=5M:{BUCKET}"
        folder = self.scratch / "tree"
        folder.mkdir()
        (folder / "a b+ü").write_bytes(SMALL)
        shutil.copy(self.file, folder / "large")
        rclone("copy", folder, f"{remote}/tree")
        rclone("check", "--download", folder, f"{remote}/tree")
        rclone("rcat", f"{remote}/stream", data=large())
        self.assertTrue(rclone("cat", f"{remote}/stream") == large())
        self.assertTrue(rclone("cat", "--offset", 1000, "--count", 2000, f"{remote}/stream") == large()[1000:3000])
        rclone("copyto", f"{remote}/tree/large", f"{remote}/copy")
        for key, data in (("tree/a b+ü", SMALL), ("tree/large", large()), ("stream", large()), ("copy", large())):
            self.stored(key, data)
        rclone("delete", f"{remote}/tree")
        self.assertEqual(sorted(self.all_stored()), ["copy", "stream"])


@unittest.skipUnless(shutil.which("openssl"), "openssl is not installed")
class OverTls(OverHttp):
    scheme = "https"

    @unittest.skipUnless(shutil.which("restic"), "restic is not installed")
    def test_restic(self):
        """The SDK of MinIO for Go; test_s3_clients has it over HTTP."""
        secret = self.scratch / "restic-password"
        secret.write_text("of the repository")
        repository = ("--cacert", self.authority, "-r", f"s3:{self.url}/{BUCKET}/backup", "-p", secret, "--no-cache", "-q")
        restic = functools.partial(self.run_client, "restic", *repository)
        restic("init")
        restic("backup", self.file)
        down = self.scratch / "restored"
        restic("restore", "latest", "--target", down)
        self.assertTrue(pathlib.Path(f"{down}{self.file}").read_bytes() == large())
        self.assertIn("backup/config", self.all_stored())

    def test_nobody_speaks_without_tls(self):
        with self.assertRaises((OSError, http.client.HTTPException)):
            self.fetch(f"http://127.0.0.1:{self.port}/{BUCKET}/a")


class Checksums(unittest.TestCase):
    def test_checksums_are_those_of_their_definitions(self):
        """The check values of the catalogue of CRCs, over `123456789`."""
        for name, want in (("ChecksumCRC32", 0xCBF43926), ("ChecksumCRC32C", 0xE3069283), ("ChecksumCRC64NVME", 0xAE8B14860A799888)):
            self.assertEqual(int.from_bytes(s3.CHECKSUMS[name](b"123456789"), "big"), want, name)
