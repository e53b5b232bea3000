"""What comes in the bodies of requests of S3, and what goes out with answers: forms, documents, encodings, ranges, names of requests."""

import base64
import datetime
import hashlib
import hmac
import http.client
import json
import os
import re
import socket
import urllib.error
import urllib.parse
import urllib.request

from lib import harness, libnfs, rawnfs, s3
from lib.s3worlds import S3Test

BUCKET = "photos"
EDGE = "----cairn"
FILE_LEN_BYTES = 10 << 20
#: What somebody says that a body has who sends little of it.
TOLD_LEN_BYTES = 3 << 30
MEMORY_BYTES_MAX = 1 << 30
#: Of what comes before the file of a form.
FIELDS_LEN_BYTES_MAX = 20 << 10
PART_OF_NAME_LEN = 250
LOGGED_SECONDS_MAX = 60


class S3Bodies(S3Test):
    def setUp(self):
        super().setUp()
        self.serve(BUCKET, flags=["--s3-audit"])
        self.signer = s3.Signer(self.port, self.keys)

    def tearDown(self):
        self.assertNotIn("panicked", self.world.log_path.read_text(errors="replace"))
        super().tearDown()

    def keys_there(self):
        return [entry["Key"] for entry in self.client.list_objects_v2(Bucket=BUCKET).get("Contents", [])]

    def refused(self, answer, status, code):
        self.assertEqual((answer[0], f"<Code>{code}</Code>" in answer[1]), (status, True), answer)

    @staticmethod
    def before_file(fields, filename="C:\\dir\\a b.bin"):
        text = "".join(f'--{EDGE}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n' for name, value in fields.items())
        return (text + f'--{EDGE}\r\nContent-Disposition: form-data; name="file"; filename="{filename}"\r\n\r\n').encode()

    def fields(self, *conditions, hours=0, **fields):
        """Fields of a form that the access key signed so many hours ago."""
        now = datetime.datetime.now(datetime.timezone.utc)
        until = (now + datetime.timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
        signed = now - datetime.timedelta(hours=hours)
        day = signed.strftime("%Y%m%d")
        given = {name.replace("_", "-") if name.startswith("x_") else name: value for name, value in fields.items()} | {
            "x-amz-algorithm": "AWS4-HMAC-SHA256", "x-amz-credential": f"{self.keys.id}/{self.signer._scope(day)}",
            "x-amz-date": signed.strftime("%Y%m%dT%H%M%SZ"),
        }
        named = [["starts-with", f"${name}", ""] for name in given]
        policy = {"expiration": until, "conditions": [{"bucket": BUCKET}, *named, *conditions]}
        text = base64.b64encode(json.dumps(policy).encode()).decode()
        signature = hmac.digest(self.signer._key(day), text.encode(), "sha256").hex()
        return given | {"policy": text, "x-amz-signature": signature}

    def form(self, fields, data=b"1", filename="C:\\dir\\a b.bin"):
        """Sends a form: the answer, and its body."""
        body = self.before_file(fields, filename) + data + f"\r\n--{EDGE}--\r\n".encode()
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("POST", f"/{BUCKET}", body, {"Content-Type": f"multipart/form-data; boundary={EDGE}"})
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return answer, text

    def begin(self, method, path, headers, first):
        """Sends the beginning of a request, and waits for the answer."""
        head = f"{method} {path} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        with socket.create_connection(("127.0.0.1", self.port), 20) as stream:
            stream.sendall(head.encode() + b"\r\n" + first)
            answer = b""
            while b"</Error>" not in answer and (piece := stream.recv(65536)):
                answer += piece
        words = answer.split(b" ", 2)
        return int(words[1]) if len(words) > 1 else 0, answer.decode(errors="replace")

    def test_who_may_not_is_told_so_before_the_file_is_read(self):
        headers = {
            "host": self.signer.host, "content-type": f"multipart/form-data; boundary={EDGE}", "content-length": str(TOLD_LEN_BYTES),
        }
        begun = b"x" * (4 << 20)
        answer = self.begin("POST", f"/{BUCKET}", headers, self.before_file({"key": "a"}) + begun)
        self.refused(answer, 403, "AccessDenied")
        wrong = self.fields(key="a") | {"x-amz-signature": "0" * 64}
        self.refused(self.begin("POST", f"/{BUCKET}", headers, self.before_file(wrong)), 403, "SignatureDoesNotMatch")
        other = self.fields(["eq", "$key", "b"], key="a")
        self.refused(self.begin("POST", f"/{BUCKET}", headers, self.before_file(other)), 403, "AccessDenied")
        # It cannot fit, whatever comes.
        short = self.fields(["content-length-range", 0, 1 << 20], key="a")
        self.refused(self.begin("POST", f"/{BUCKET}", headers, self.before_file(short)), 400, "EntityTooLarge")
        # Nor is it waited for the end of what comes before the file.
        long = self.before_file({"key": "a" * 2 * FIELDS_LEN_BYTES_MAX})
        self.refused(self.begin("POST", f"/{BUCKET}", headers, long), 400, "MaxPostPreDataLengthExceededError")
        self.assertLess(harness.resident_bytes(self.world.pid, "VmHWM"), MEMORY_BYTES_MAX)
        self.assertEqual(self.keys_there(), [])

    def test_documents_are_not_read_of_who_may_not(self):
        lengths = {"host": self.signer.host, "content-length": "60000"}
        for method, path in (
            ("POST", f"/{BUCKET}?delete"), ("PUT", f"/{BUCKET}?policy"), ("PUT", f"/{BUCKET}?lifecycle"), ("PUT", f"/{BUCKET}/a?tagging"),
            ("POST", f"/{BUCKET}/a?uploadId=1"), ("PUT", "/new-bucket"),
        ):
            with self.subTest(path):
                self.refused(self.begin(method, path, lengths, b"<"), 403, "AccessDenied")
        reader = s3.Signer(self.port, s3.Keys(self.world, "--read-only"))
        headers, _ = reader.sign("POST", f"/{BUCKET}?delete", hashlib.sha256(b"").hexdigest())
        self.refused(self.begin("POST", f"/{BUCKET}?delete", headers | {"content-length": "100000"}, b"<"), 403, "AccessDenied")
        # What was signed is not what came.
        wrong, _ = self.signer.sign("PUT", f"/{BUCKET}?tagging", hashlib.sha256(b"other").hexdigest())
        answer = self.signer.send("PUT", f"/{BUCKET}?tagging", wrong | {"content-length": "7"}, b"<a></a>")
        self.refused(answer, 400, "XAmzContentSHA256Mismatch")
        # Nor what is too long, of whoever sends it.
        for path, length in ((f"/{BUCKET}?policy", 2 << 20), ("/new-bucket", 1 << 20)):
            headers, _ = self.signer.sign("PUT", path, "UNSIGNED-PAYLOAD")
            answer = self.begin("PUT", path, headers | {"content-length": str(length)}, b"<")
            self.refused(answer, 400, "MaxMessageLengthExceeded")

    def test_files_of_any_bytes_arrive_by_forms(self):
        for index in range(8):
            data = os.urandom(FILE_LEN_BYTES)
            answer, text = self.form(self.fields(key=f"random/{index}"), data)
            self.assertEqual(answer.status, 204, text)
            got = self.client.get_object(Bucket=BUCKET, Key=f"random/{index}")
            self.assertEqual(hashlib.md5(got["Body"].read()).digest(), hashlib.md5(data).digest())
            self.assertEqual(answer.headers["ETag"], got["ETag"])

    def test_pieces_that_end_in_what_looks_like_the_boundary(self):
        data = b"a\r\r\n\r\n-\r\n--\r\n" + f"\r\n--{EDGE[:-1]}".encode() * 3 + b"\r"
        body = self.before_file(self.fields(key="a")) + data + f"\r\n--{EDGE}--\r\n".encode()
        head = (
            f"POST /{BUCKET} HTTP/1.1\r\nhost: {self.signer.host}\r\ntransfer-encoding: chunked\r\n"
            f"content-type: multipart/form-data; boundary={EDGE}\r\nconnection: close\r\n\r\n"
        ).encode()
        for length in (1, 2, 3, 7, 4096):
            pieces = [body[at : at + length] for at in range(0, len(body), length)]
            with socket.create_connection(("127.0.0.1", self.port), 30) as stream:
                stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                stream.sendall(head)
                for piece in [*pieces, b""]:
                    stream.sendall(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
                answer = stream.recv(65536)
            self.assertIn(b" 204 ", answer.partition(b"\r\n")[0], answer)
            self.assertEqual(self.client.get_object(Bucket=BUCKET, Key="a")["Body"].read(), data)
            self.client.delete_object(Bucket=BUCKET, Key="a")

    def test_forms_that_are_cut_or_ambiguous_leave_nothing(self):
        whole = self.before_file(self.fields(key="a")) + b"data\r\n"
        headers = {"host": self.signer.host, "content-type": f"multipart/form-data; boundary={EDGE}"}
        for body, code in (
            (whole, "IncompleteBody"), (whole + f"--{EDGE}".encode(), "IncompleteBody"), (whole + f"--{EDGE}s\r\n--{EDGE}--".encode(), "MalformedPOSTRequest"),
            (whole + f"--{EDGE}--".encode() + b"x" * (FIELDS_LEN_BYTES_MAX + 1), "InvalidRequest"),
            (f"--{EDGE}--\r\n".encode(), "IncorrectNumberOfFilesInPostRequest"), (b"nothing", "IncorrectNumberOfFilesInPostRequest"),
        ):
            answer = self.signer.send("POST", f"/{BUCKET}", headers | {"content-length": str(len(body))}, body)
            self.refused(answer, 400, code)
        self.assertEqual(self.keys_there(), [])

    def test_forms_are_answered_as_they_ask(self):
        answer, _ = self.form(self.fields(key="dir/${filename}"))
        self.assertEqual((answer.status, self.keys_there()), (204, ["dir/a b.bin"]))
        self.assertEqual(answer.headers["Location"], f"http://{self.signer.host}/{BUCKET}/dir/a%20b.bin")
        answer, text = self.form(self.fields(key="b", success_action_status="201"))
        self.assertEqual(answer.status, 201)
        self.assertIn(f"<Bucket>{BUCKET}</Bucket><Key>b</Key>", text)
        self.assertEqual(self.form(self.fields(key="b", success_action_status="200"))[0].status, 200)
        self.assertEqual(self.form(self.fields(key="b", success_action_status="500"))[0].status, 204)
        answer, _ = self.form(self.fields(key="b", success_action_redirect="http://example.org/?a=1"))
        etag = urllib.parse.quote(f'"{hashlib.md5(b"1").hexdigest()}"')
        self.assertEqual((answer.status, answer.headers["Location"]), (303, f"http://example.org/?a=1&bucket={BUCKET}&key=b&etag={etag}"))
        self.assertEqual(self.form(self.fields(key="b", success_action_redirect="no address"))[0].status, 204)
        # What comes with it, and how long it may be.
        more = {"Content-Type": "image/png", "Cache-Control": "no-store", "x-amz-meta-who": "me", "Content-Encoding": "aws-chunked,gzip"}
        self.assertEqual(self.form(self.fields(key="c", **more))[0].status, 204)
        head = self.client.head_object(Bucket=BUCKET, Key="c")
        self.assertEqual((head["ContentType"], head["CacheControl"], head["Metadata"]), ("image/png", "no-store", {"who": "me"}))
        self.assertEqual(head["ContentEncoding"], "gzip")
        for length, code in ((4, "EntityTooSmall"), (11, "EntityTooLarge")):
            answer, text = self.form(self.fields(["content-length-range", 5, 10], key="d"), b"x" * length)
            self.refused((answer.status, text), 400, code)
        self.assertNotIn("d", self.keys_there())
        # The policy says until when it holds, not the time of its signature.
        self.assertEqual(self.form(self.fields(key="e", hours=2))[0].status, 204)
        answer, text = self.form(self.fields(key="e", hours=8 * 24))
        self.refused((answer.status, text), 403, "RequestTimeTooSkewed")
        answer, text = self.form(self.fields(key="e", tagging="<Tagging/>"))
        self.refused((answer.status, text), 501, "NotImplemented")

    def test_how_a_body_was_sent_is_not_kept(self):
        for given, want in (("aws-chunked", None), ("aws-chunked,gzip", "gzip"), ("gzip, aws-chunked", "gzip"), ("gzip", "gzip")):
            place = {"Bucket": BUCKET, "Key": "a"}
            self.client.put_object(**place, Body=b"1", ContentEncoding=given)
            self.assertEqual(self.client.head_object(**place).get("ContentEncoding"), want)
            upload = self.client.create_multipart_upload(**place, ContentEncoding=given)["UploadId"]
            part = self.client.upload_part(**place, UploadId=upload, PartNumber=1, Body=b"2")
            parts = {"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}
            self.client.complete_multipart_upload(**place, UploadId=upload, MultipartUpload=parts)
            self.assertEqual(self.client.head_object(**place).get("ContentEncoding"), want)
            self.client.copy_object(Bucket=BUCKET, Key="b", CopySource=place, MetadataDirective="REPLACE", ContentEncoding=given)
            self.assertEqual(self.client.head_object(Bucket=BUCKET, Key="b").get("ContentEncoding"), want)

    def test_an_upload_whose_object_is_an_older_version_is_completed_again(self):
        self.client.put_bucket_versioning(Bucket=BUCKET, VersioningConfiguration={"Status": "Enabled"})
        place = {"Bucket": BUCKET, "Key": "a"}
        upload = self.client.create_multipart_upload(**place)["UploadId"]
        part = self.client.upload_part(**place, UploadId=upload, PartNumber=1, Body=b"1")
        parts = {"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}

        def complete():
            return self.client.complete_multipart_upload(**place, UploadId=upload, MultipartUpload=parts)

        first = complete()
        self.client.put_object(**place, Body=b"2")
        again = complete()
        self.assertEqual((again["VersionId"], again["ETag"]), (first["VersionId"], first["ETag"]))
        self.assertEqual(len(self.client.list_object_versions(Bucket=BUCKET)["Versions"]), 2)
        self.client.delete_object(**place, VersionId=first["VersionId"])
        with self.assertRaises(s3.errors().ClientError) as caught:
            complete()
        self.assertEqual(caught.exception.response["Error"]["Code"], "NoSuchUpload")

    def test_ranges_that_are_none_show_the_whole(self):
        self.client.put_object(Bucket=BUCKET, Key="a", Body=b"0123456789", ACL="public-read")
        url = f"http://127.0.0.1:{self.port}/{BUCKET}/a"
        presigned = self.client.generate_presigned_url("get_object", {"Bucket": BUCKET, "Key": "a"}, ExpiresIn=60)
        for given in ("bytes=0-1,4-5", "seconds=0-1", "bytes=5-1", "bytes=x"):
            got = self.client.get_object(Bucket=BUCKET, Key="a", Range=given)
            self.assertEqual((got["ResponseMetadata"]["HTTPStatusCode"], got["Body"].read()), (200, b"0123456789"), given)
            for address in (url, presigned):
                request = urllib.request.Request(address, headers={"Range": given})
                with urllib.request.urlopen(request, timeout=20) as answer:
                    self.assertEqual((answer.status, answer.read()), (200, b"0123456789"), (given, address))
        # Its signature counts all the same, and who may not read it does not so either.
        wrong = s3.client(self.port, self.keys, secret="x" * 40)
        with self.assertRaises(s3.errors().ClientError) as caught:
            wrong.get_object(Bucket=BUCKET, Key="a", Range="bytes=0-1,4-5")
        self.assertEqual(caught.exception.response["Error"]["Code"], "SignatureDoesNotMatch")
        self.client.put_object(Bucket=BUCKET, Key="b", Body=b"secret")
        with self.assertRaises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(urllib.request.Request(url[:-1] + "b", headers={"Range": "bytes=0-1,4-5"}), timeout=20)
        self.assertEqual(refused.exception.code, 403)
        other = s3.client(self.port, s3.Keys(self.world, "--bucket", "other"))
        with self.assertRaises(s3.errors().ClientError) as caught:
            other.get_object(Bucket=BUCKET, Key="b", Range="bytes=0-1,4-5")
        self.assertEqual(caught.exception.response["Error"]["Code"], "AccessDenied")

    def test_what_is_known_already_is_told_with_what_keeps_it_fresh(self):
        expires = "Wed, 21 Oct 2037 07:28:00 GMT"
        self.client.put_object(Bucket=BUCKET, Key="a", Body=b"1", CacheControl="max-age=60", Expires=expires)
        head = self.client.head_object(Bucket=BUCKET, Key="a")
        headers, _ = self.signer.sign("GET", f"/{BUCKET}/a", hashlib.sha256().hexdigest())
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        connection.request("GET", f"/{BUCKET}/a", headers=headers | {"if-none-match": head["ETag"]})
        answer = connection.getresponse()
        self.assertEqual((answer.status, answer.read()), (304, b""))
        told = {name: answer.headers[name] for name in ("ETag", "Cache-Control", "Expires", "Last-Modified")}
        changed = head["LastModified"].strftime("%a, %d %b %Y %H:%M:%S GMT")
        self.assertEqual(told, {"ETag": head["ETag"], "Cache-Control": "max-age=60", "Expires": expires, "Last-Modified": changed})
        connection.close()

    def test_each_answer_says_what_its_request_is_called(self):
        self.client.put_object(Bucket=BUCKET, Key="a", Body=b"1")
        seen = set()
        asked = (
            ("GET", f"/{BUCKET}/a"), ("HEAD", f"/{BUCKET}/a"), ("GET", f"/{BUCKET}/none"), ("GET", "/none/none"), ("PUT", f"/{BUCKET}?unknown"),
        )
        for method, path in asked:
            for is_signed in (True, False):
                headers = self.signer.sign(method, path, hashlib.sha256().hexdigest())[0] if is_signed else {}
                connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
                connection.request(method, path, headers=headers)
                answer = connection.getresponse()
                text = answer.read().decode()
                connection.close()
                name, host = answer.headers["x-amz-request-id"], answer.headers["x-amz-id-2"]
                self.assertTrue(re.fullmatch("[0-9A-F]{16}", name or "") and host, (path, answer.headers))
                if answer.status >= 400 and method != "HEAD":
                    self.assertIn(f"<RequestId>{name}</RequestId><HostId>{host}</HostId></Error>", text)
                seen.add(name)
        self.assertEqual(len(seen), 2 * len(asked))

        def missing():
            log = self.world.log_path.read_text(errors="replace")
            return [name for name in sorted(seen) if name not in log]

        # A client may have its answer before the server has logged it.
        harness.wait_until_equal(missing, [], LOGGED_SECONDS_MAX, "what the log does not have")

    def test_names_that_are_no_keys_are_passed_over(self):
        shown = ["a", "b/c", "é", "z", "\ue000"]
        hidden = [b"\xff", b"a\x80", b"b/\xfe", b"\xc3", b"d\xff/e", b"y\xff"]
        with libnfs.Mount(self.world.libnfs_url()) as mount:
            for directory in (b"b", b"d\xff"):
                mount.mkdir(f"/{BUCKET}/".encode() + directory)
            for name in [key.encode() for key in shown] + hidden:
                mount.write_file(f"/{BUCKET}/".encode() + name, b"1")
        with rawnfs.Peer(self.world.port) as peer:
            who = {"uid": 1000, "gid": 100}
            status, root = peer.mount("/main", **who)
            self.assertEqual(status, rawnfs.OK)
            status, directory = peer.lookup(root, BUCKET, **who)
            self.assertEqual(status, rawnfs.OK)
            # Longer than a key may be, in the middle of the order.
            for _ in range(5):
                status, directory = peer.mkdir(directory, "m" * PART_OF_NAME_LEN, **who)
                self.assertEqual(status, rawnfs.OK)
            self.assertEqual(peer.create(directory, "n", **who)[0], rawnfs.OK)
        # Put by S3: XML holds no such key, and its address does.
        self.client.put_object(Bucket=BUCKET, Key="c\x01", Body=b"1")
        want = sorted([*shown, "c\x01"], key=str.encode)
        operations = (("list_objects", "Contents"), ("list_objects_v2", "Contents"), ("list_object_versions", "Versions"))
        for operation, entries in operations:
            for size in (1, 2, 1000):
                with self.subTest(f"{operation} {size}"):
                    pages = self.client.get_paginator(operation).paginate(Bucket=BUCKET, PaginationConfig={"PageSize": size})
                    found = []
                    for page, _ in zip(pages, range(20)):
                        found += [entry["Key"] for entry in page.get(entries, [])]
                    self.assertEqual(found, want)
        # Without an encoding: only what XML holds.
        path, found, token = f"/{BUCKET}?list-type=2&max-keys=2", [], ""
        for _ in range(20):
            query = path + (f"&continuation-token={urllib.parse.quote(token)}" if token else "")
            status, text = self.signer.send("GET", query, self.signer.sign("GET", query, hashlib.sha256().hexdigest())[0])
            self.assertEqual(status, 200, text)
            found += re.findall("<Key>([^<]*)</Key>", text)
            if "<IsTruncated>true" not in text:
                break
            (token,) = re.findall("<NextContinuationToken>([^<]*)<", text)
        self.assertEqual(found, [key for key in want if key != "c\x01"])
        # A page may begin at any bytes.
        self.client.put_bucket_acl(Bucket=BUCKET, ACL="public-read")
        for query in ("marker=y%FF", "list-type=2&start-after=y%FF"):
            status, text = self.signer.send("GET", f"/{BUCKET}?{query}", {"host": self.signer.host})
            self.assertEqual((status, re.findall("<Key>([^<]*)</Key>", text)), (200, ["z", "é", "\ue000"]), query)
