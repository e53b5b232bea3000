"""S3 by clients that do wrong: each is told the error that AWS gives, nobody else is harmed, and nothing of it stays."""

import concurrent.futures
import contextlib
import datetime
import hashlib
import resource
import socket
import time

from lib import harness, s3
from lib.s3worlds import S3Test

BUCKET = "photos"
HEADERS_COUNT = 100_000
#: Far more than the sockets of both ends hold.
LONG_LEN_BYTES = 64 << 20
#: An object is on its way in memory before it has a name; a bomb must not take more.
MEMORY_BYTES_MAX = 1 << 30
#: More than there are places in memory for objects on their way.
STALLED_COUNT = 60
#: Of one user; each of them had a share of its own if keys were counted alone.
HOG_KEYS_COUNT = 6
#: A client waits so long for the others; each of those would be cut off after a minute.
WAIT_SECONDS_MAX = 30
#: Connections to S3, all together, and open files of this process for more than those.
CONNECTION_COUNT_MAX = 2048
FILES_COUNT = CONNECTION_COUNT_MAX + 1024


class S3Hostile(S3Test):
    def setUp(self):
        super().setUp()
        self.serve(BUCKET)
        self.client.put_object(Bucket=BUCKET, Key="there", Body=b"1")
        self.signer = s3.Signer(self.port, self.keys)

    def tearDown(self):
        # It serves, and nothing but the one object is there.
        keys = [entry["Key"] for entry in self.client.list_objects_v2(Bucket=BUCKET)["Contents"]]
        self.assertEqual(keys, ["there"])
        self.assertNotIn("panicked", self.world.log_path.read_text(errors="replace"))
        super().tearDown()

    def refused(self, answer, status, code):
        self.assertEqual((answer[0], f"<Code>{code}</Code>" in answer[1]), (status, True), answer)

    def signed(self, method, path, body=b"", when=None, **headers):
        payload = hashlib.sha256(body).hexdigest()
        made, _ = self.signer.sign(method, path, payload, when, **headers)
        return made | {"content-length": str(len(body))}

    def test_clocks_and_signatures(self):
        path = f"/{BUCKET}/there"
        self.assertEqual(self.signer.send("GET", path, self.signed("GET", path))[0], 200)
        now = datetime.datetime.now(datetime.timezone.utc)
        for hours in (-1, 1):
            headers = self.signed("GET", path, when=now + datetime.timedelta(hours=hours))
            self.refused(self.signer.send("GET", path, headers), 403, "RequestTimeTooSkewed")
        wrong = self.signed("GET", path)
        wrong["authorization"] = wrong["authorization"][:-4] + "0000"
        self.refused(self.signer.send("GET", path, wrong), 403, "SignatureDoesNotMatch")
        # Of another path.
        self.refused(self.signer.send("GET", f"/{BUCKET}/other", self.signed("GET", path)), 403, "SignatureDoesNotMatch")
        for broken in ("AWS4-HMAC-SHA256", "AWS4-HMAC-SHA256 Credential=x, SignedHeaders=, Signature=", "Basic eDp5", "\x80"):
            status, _ = self.signer.send("GET", path, self.signed("GET", path) | {"authorization": broken})
            self.assertIn(status, (400, 403, 501), broken)

    def test_bodies_that_are_not_as_said(self):
        path = f"/{BUCKET}/new"
        body = b"x" * 100_000
        # Longer and shorter than its length, and another than its checksum.
        headers = self.signed("PUT", path, body)
        status, _ = self.signer.send("PUT", path, headers | {"content-length": "200000"}, body, ends=True)
        self.assertIn(status, (0, 400))
        self.refused(self.signer.send("PUT", path, headers | {"content-length": "99999"}, body), 400, "XAmzContentSHA256Mismatch")
        self.refused(self.signer.send("PUT", path, headers, b"y" * 100_000), 400, "XAmzContentSHA256Mismatch")
        # Who sends all of it before it reads is told why it was refused.
        long = b"x" * LONG_LEN_BYTES
        headers = self.signed("PUT", path, long)
        headers["authorization"] = headers["authorization"][:-4] + "0000"
        self.refused(self.signer.send("PUT", path, headers, long, resets=False), 403, "SignatureDoesNotMatch")
        for name, value in (("x_amz_checksum_crc32", "AAAAAA=="), ("x_amz_checksum_sha256", "AAAA"), ("content_md5", "1B2M2Y8AsgTpgAmY7PhCfg==")):
            headers = self.signed("PUT", path, body, **{name: value})
            self.assertEqual(self.signer.send("PUT", path, headers, body)[0], 400, name)

    def chunked(self, path, length, **more):
        headers, state = self.signer.sign(
            "PUT", path, "STREAMING-AWS4-HMAC-SHA256-PAYLOAD", x_amz_decoded_content_length=str(length), content_encoding="aws-chunked", **more
        )
        return headers, state

    def test_chunks_that_are_forged(self):
        path = f"/{BUCKET}/there"
        data = b"1"
        headers, state = self.chunked(path, len(data))
        first, state = self.signer.chunk(data, state)
        last, _ = self.signer.chunk(b"", state)
        whole = first + last
        length = {"content-length": str(len(whole))}
        self.assertEqual(self.signer.send("PUT", path, headers | length, whole)[0], 200)
        path = f"/{BUCKET}/new"
        for change in ("signature", "data", "end", "last", "size"):
            headers, state = self.chunked(path, 2000 if change == "end" else 1000)
            first, state = self.signer.chunk(b"x" * 1000, state)
            last, _ = self.signer.chunk(b"", state)
            body = {
                "signature": first.replace(b"chunk-signature=", b"chunk-signature=0")[:-1] + last,
                "data": first.replace(b"xxx", b"xyx") + last,
                "end": first,
                # All of the bytes, and not the chunk that ends them.
                "last": first,
                "size": b"ffffffffffffffff;chunk-signature=" + b"0" * 64 + b"\r\n" + b"x" * 1000,
            }[change]
            answer = self.signer.send("PUT", path, headers | {"content-length": str(len(body))}, body)
            self.assertIn(answer[0], (400, 403), (change, answer))
            if change in ("end", "last"):
                self.refused(answer, 400, "IncompleteBody")
            if change == "data":
                self.refused(answer, 403, "SignatureDoesNotMatch")

    def test_bombs_of_xml(self):
        path = f"/{BUCKET}?delete"
        bomb = '<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa">' + "".join(
            f'<!ENTITY {chr(98 + index)} "{("&" + chr(97 + index) + ";") * 10}">' for index in range(9)
        ) + "]><Delete><Object><Key>&j;</Key></Object></Delete>"
        deep = "<Delete>" + "<Object>" * 100_000
        large = "<Delete>" + "<Object><Key>x</Key></Object>" * 1001 + "</Delete>"
        cut = "<Delete><Object><Key>there</Key>"
        for name, text in (("bomb", bomb), ("deep", deep), ("large", large), ("cut", cut), ("none", "")):
            body = text.encode()
            answer = self.signer.send("POST", path, self.signed("POST", path, body), body)
            self.assertEqual(answer[0], 400, (name, answer))
        huge = b"<Delete>" + b"<Object><Key>x</Key></Object>" * 2_000_000
        headers = self.signed("POST", path, huge)
        self.assertEqual(self.signer.send("POST", path, headers, huge, resets=False)[0], 400)
        self.assertLess(harness.resident_bytes(self.world.pid), MEMORY_BYTES_MAX)

    def test_headers_without_end(self):
        head = f"GET /{BUCKET}/there HTTP/1.1\r\nhost: x\r\n".encode() + b"".join(
            f"x-amz-meta-{number}: 1\r\n".encode() for number in range(HEADERS_COUNT)
        )
        with socket.create_connection(("127.0.0.1", self.port), 30) as stream:
            answer = b""
            try:
                stream.sendall(head + b"\r\n")
                answer = stream.recv(100)
            except ConnectionError:
                pass
        self.assertTrue(answer == b"" or b" 431 " in answer, answer)

    def test_what_is_slow_does_not_stand_over_what_came_after_it(self):
        path, old = f"/{BUCKET}/there", b"old" * 1000
        place = {"Bucket": BUCKET, "Key": "there"}
        for newer in (b"new", None):
            headers = self.signed("PUT", path, old) | {"expect": "100-continue"}
            head = f"PUT {path} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in headers.items())
            with socket.create_connection(("127.0.0.1", self.port), 30) as stream:
                stream.sendall(head.encode() + b"\r\n")
                # It has begun.
                self.assertIn(b" 100 ", stream.recv(1000))
                stream.sendall(old[:100])
                if newer is None:
                    self.client.delete_object(**place)
                else:
                    self.client.put_object(**place, Body=newer)
                stream.sendall(old[100:])
                # Both were under way at the same time: as if it had been done before the other one.
                self.assertIn(b" 200 ", stream.recv(1000))
            there = [entry["Key"] for entry in self.client.list_objects_v2(Bucket=BUCKET).get("Contents", [])]
            self.assertEqual(there, ["there"] if newer else [])
            if newer:
                self.assertEqual(self.client.get_object(**place)["Body"].read(), newer)
        self.client.put_object(**place, Body=b"1")

    def test_a_slow_document_does_not_stand_over_what_came_after_it(self):
        tags = lambda value: {"TagSet": [{"Key": "of", "Value": value}]}
        tagging = b"<Tagging><TagSet><Tag><Key>of</Key><Value>old</Value></Tag></TagSet></Tagging>"
        there = {"Bucket": BUCKET, "Key": "there"}
        tags_of_object = lambda: self.client.get_object_tagging(**there)["TagSet"]
        tags_of_bucket = lambda: self.client.get_bucket_tagging(Bucket=BUCKET)["TagSet"]
        body_of_object = lambda: self.client.get_object(**there)["Body"].read()
        new = tags("new")
        late = b" 503 "
        for method, path, document, newer, look, wanted, answer in (
            ("PUT", f"/{BUCKET}/there?tagging", tagging, lambda: self.client.put_object_tagging(**there, Tagging=new),
             tags_of_object, new["TagSet"], late),
            ("PUT", f"/{BUCKET}/there?tagging", tagging, lambda: self.client.put_object(**there, Body=b"2"), tags_of_object, [], late),
            ("PUT", f"/{BUCKET}?tagging", tagging, lambda: self.client.put_bucket_tagging(Bucket=BUCKET, Tagging=new),
             tags_of_bucket, new["TagSet"], late),
            # As if it had been deleted before it was put.
            ("POST", f"/{BUCKET}?delete", b"<Delete><Object><Key>there</Key></Object></Delete>",
             lambda: self.client.put_object(**there, Body=b"3"), body_of_object, b"3", b"<Deleted>"),
            # Tags of an object are not its bytes.
            ("PUT", f"/{BUCKET}/there", b"4", lambda: self.client.put_object_tagging(**there, Tagging=new), body_of_object, b"4", b" 200 "),
        ):
            with self.subTest(path=path, wanted=wanted), contextlib.ExitStack() as stack:
                headers = self.signed(method, path, document) | {"expect": "100-continue", "connection": "close"}
                stream = self.begin(stack, method, path, headers)
                # It has begun, and who sends it may.
                self.assertIn(b" 100 ", stream.recv(1000))
                newer()
                stream.sendall(document)
                self.assertIn(answer, self.rest(stream))
                self.assertEqual(look(), wanted)

    def test_a_key_that_may_not_write_undoes_nothing_that_is_on_its_way(self):
        stranger = s3.client(self.port, s3.Keys(self.world, uid=4711, gid=4711))
        body = b"acknowledged" * 1000

        def delete(key):
            with self.fails("AccessDenied", 403):
                stranger.delete_object(Bucket=BUCKET, Key=key)

        def delete_several(key):
            done = stranger.delete_objects(Bucket=BUCKET, Delete={"Objects": [{"Key": key}]})
            self.assertEqual([error["Code"] for error in done["Errors"]], ["AccessDenied"], done)

        for deleting in (delete, delete_several):
            for key in ("new", "new/below"):
                with self.subTest(deleting=deleting.__name__, key=key), contextlib.ExitStack() as stack:
                    path = f"/{BUCKET}/{key}"
                    headers = self.signed("PUT", path, body) | {"expect": "100-continue", "connection": "close"}
                    stream = self.begin(stack, "PUT", path, headers)
                    self.assertIn(b" 100 ", stream.recv(1000))
                    stream.sendall(body[:100])
                    deleting(key)
                    stream.sendall(body[100:])
                    self.assertIn(b" 200 ", self.rest(stream))
                    self.assertEqual(self.client.get_object(Bucket=BUCKET, Key=key)["Body"].read(), body)
                    self.client.delete_object(Bucket=BUCKET, Key=key)

    def test_names_that_cannot_be(self):
        for key, code in (
            ("../there", "InvalidArgument"), ("a/../there", "InvalidArgument"), ("%2e%2e/there", "InvalidArgument"), ("a%00b", "InvalidArgument"),
            ("a/./b", "InvalidArgument"), ("a%2F%2Fb", "InvalidArgument"), ("%ff", None), ("x" * 1025, "KeyTooLongError"),
        ):
            path = f"/{BUCKET}/{key}"
            answer = self.signer.send("PUT", path, self.signed("PUT", path, b"1"), b"1")
            self.assertIn(answer[0], (400, 403), (key, answer))
            if code and answer[0] == 400:
                self.assertIn(f"<Code>{code}</Code>", answer[1], key)
        # No way leads out of the bucket.
        status, _ = self.signer.send("GET", f"/{BUCKET}/../../etc/passwd", self.signed("GET", f"/{BUCKET}/../../etc/passwd"))
        self.assertIn(status, (400, 403, 404))

    def test_keys_that_were_revoked(self):
        self.world.cairn("s3", "key", "revoke", self.keys.id)
        path = f"/{BUCKET}/there"
        self.refused(self.signer.send("GET", path, self.signed("GET", path)), 403, "InvalidAccessKeyId")
        self.client = s3.client(self.port, s3.Keys(self.world, uid=1000, gid=100))

    def begin(self, stack, method, path, headers, body=b"", source=None):
        """A connection on which a request has begun: its head and some of its body are sent."""
        source_address = (source, 0) if source else None
        stream = stack.enter_context(socket.create_connection(("127.0.0.1", self.port), WAIT_SECONDS_MAX, source_address))
        head = f"{method} {path} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        # It may be refused before all of that has come.
        with contextlib.suppress(ConnectionError):
            stream.sendall(head.encode() + b"\r\n" + body)
        return stream

    @staticmethod
    def rest(stream):
        answer = b""
        with contextlib.suppress(ConnectionError):
            while part := stream.recv(65536):
                answer += part
        return answer

    def serves(self):
        """Puts and gets the one object, in time."""
        begun = time.monotonic()
        self.client.put_object(Bucket=BUCKET, Key="there", Body=b"1")
        self.assertEqual(self.client.get_object(Bucket=BUCKET, Key="there")["Body"].read(), b"1")
        self.assertLess(time.monotonic() - begun, WAIT_SECONDS_MAX)

    def test_bodies_that_stop_keep_nobody_waiting(self):
        host = {"host": f"127.0.0.1:{self.port}", "content-length": "1000000"}
        for path in ("/nope?delete", f"/{BUCKET}?delete", f"/{BUCKET}?del%65te", f"/{BUCKET}/a?uploadId=1"):
            with contextlib.ExitStack() as stack:
                streams = [self.begin(stack, "POST", path, host, b"<Delete>") for _ in range(STALLED_COUNT)]
                self.serves()
                # Who may not do it is told so before the body has come.
                self.assertIn(b" 403 ", streams[0].recv(65536), path)
        # Of another key, which may: its own share is all that it has.
        other = s3.Signer(self.port, s3.Keys(self.world, uid=1000, gid=100))
        body = b"x" * 1_000_000
        made, _ = other.sign("PUT", f"/{BUCKET}/slow", hashlib.sha256(body).hexdigest())
        with contextlib.ExitStack() as stack:
            for _ in range(STALLED_COUNT):
                self.begin(stack, "PUT", f"/{BUCKET}/slow", made | {"content-length": str(len(body))}, body[:10])
            self.serves()

    def test_several_keys_of_one_user_keep_nobody_waiting(self):
        # In a bucket of its own, where it may write.
        self.world.cairn("bucket", "create", "hogs", "--uid", 4711, "--gid", 4711)
        body = b"x" * 1_000_000
        path = "/hogs/slow"
        with contextlib.ExitStack() as stack:
            for _ in range(HOG_KEYS_COUNT):
                signer = s3.Signer(self.port, s3.Keys(self.world, uid=4711, gid=4711))
                made, _ = signer.sign("PUT", path, hashlib.sha256(body).hexdigest())
                for _ in range(STALLED_COUNT):
                    self.begin(stack, "PUT", path, made | {"content-length": str(len(body))}, body[:10])
            # Another user of the same volume.
            self.serves()

    def test_a_key_at_several_addresses_leaves_connections_to_others(self):
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        if before[1] < FILES_COUNT:
            self.skipTest(f"a process has at most {before[1]} files here")
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(before[0], FILES_COUNT), before[1]))
        self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, before)
        path = f"/{BUCKET}/there"
        hog = s3.Signer(self.port, s3.Keys(self.world, uid=4711, gid=4711))
        made, _ = hog.sign("GET", path, hashlib.sha256(b"").hexdigest())
        with contextlib.ExitStack() as stack:
            def crowd(source):
                for _ in range(CONNECTION_COUNT_MAX // 2):
                    stream = self.begin(stack, "GET", path, made, source=source)
                    # The signature is known to be right; a connection that had to make way has ended.
                    with contextlib.suppress(ConnectionError):
                        stream.recv(65536)

            with concurrent.futures.ThreadPoolExecutor() as pool:
                list(pool.map(crowd, ("127.0.0.2", "127.0.0.3")))
            # From an address that the server does not know, and from its own.
            stream = self.begin(stack, "GET", path, self.signed("GET", path) | {"connection": "close"}, source="127.0.0.4")
            self.assertIn(b" 200 ", self.rest(stream))
            self.client = s3.client(self.port, self.keys)
            for _ in range(3):
                self.serves()

    def test_a_body_of_an_encoded_name_has_its_bound(self):
        for name in ("delete", "del%65te"):
            path = f"/{BUCKET}?{name}"
            with contextlib.ExitStack() as stack:
                headers = self.signed("POST", path) | {"content-length": str(LONG_LEN_BYTES)}
                answer = self.rest(self.begin(stack, "POST", path, headers, b"<Delete>"))
                self.assertIn(b"<Code>MaxMessageLengthExceeded</Code>", answer, name)

    def test_what_a_revoked_key_has_begun_is_not_done(self):
        body = b"x" * 100_000
        path = f"/{BUCKET}/new"
        for sends_rest in (False, True):
            keys = s3.Keys(self.world, uid=1000, gid=100)
            made, _ = s3.Signer(self.port, keys).sign("PUT", path, hashlib.sha256(body).hexdigest())
            headers = made | {"content-length": str(len(body)), "expect": "100-continue"}
            with contextlib.ExitStack() as stack:
                stream = self.begin(stack, "PUT", path, headers)
                # It has begun.
                self.assertIn(b" 100 ", stream.recv(1000))
                stream.sendall(body[:50_000])
                self.world.cairn("s3", "key", "revoke", keys.id)
                if sends_rest:
                    with contextlib.suppress(ConnectionError):
                        stream.sendall(body[50_000:])
                # Soon, and whether or not the rest comes.
                self.assertIn(b"<Code>InvalidAccessKeyId</Code>", self.rest(stream), sends_rest)
        self.assertEqual(self.signer.send("GET", path, self.signed("GET", path))[0], 404)

    def test_connections_of_others_keep_nobody_out(self):
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        if before[1] < FILES_COUNT:
            self.skipTest(f"a process has at most {before[1]} files here")
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(before[0], FILES_COUNT), before[1]))
        self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, before)
        head = {"host": f"127.0.0.1:{self.port}"}
        with contextlib.ExitStack() as stack:
            def crowd(source):
                for _ in range(CONNECTION_COUNT_MAX // 2):
                    self.begin(stack, "GET", "/", head, source=source)

            with concurrent.futures.ThreadPoolExecutor() as pool:
                list(pool.map(crowd, ("127.0.0.2", "127.0.0.3")))
            # Also for who has no connection yet, and needs some.
            self.client = s3.client(self.port, self.keys)
            for _ in range(3):
                self.serves()
            crowd("127.0.0.2")
            self.serves()
