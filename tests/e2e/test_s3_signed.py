"""What a signature of S3 covers: headers that nobody signed do not act, old signatures open nothing, and dates hold."""

import base64
import datetime
import hashlib
import hmac
import json
import time

from lib import harness, s3
from lib.s3worlds import S3Test
from lib.worlds import WorldTest

BUCKET, LOCKED = "photos", "vault"
SECRET = b"for its owner only"
#: Headers that say what is done, each with a value that would do something.
ACTING = {
    "x-amz-copy-source": f"/{BUCKET}/secret",
    "x-amz-acl": "public-read",
    "x-amz-grant-read": 'uri="http://acs.amazonaws.com/groups/global/AllUsers"',
    "x-amz-tagging": "a=1",
    "x-amz-meta-a": "1",
    "x-amz-object-lock-mode": "COMPLIANCE",
    "x-amz-object-lock-retain-until-date": "2120-01-01T00:00:00Z",
    "x-amz-object-lock-legal-hold": "ON",
    "x-amz-bypass-governance-retention": "true",
    "x-amz-metadata-directive": "REPLACE",
    "x-amz-copy-source-range": "bytes=0-1",
    "x-amz-bucket-object-lock-enabled": "true",
    "x-amz-checksum-crc32": "AAAAAA==",
    "x-amz-content-sha256": hashlib.sha256(b"").hexdigest(),
    "x-amz-security-token": "a",
    "x-amz-anything": "at all",
}


class S3Signed(S3Test):
    def setUp(self):
        super().setUp()
        self.serve(BUCKET, LOCKED)
        self.client.put_object(Bucket=BUCKET, Key="secret", Body=SECRET)
        self.signer = s3.Signer(self.port, self.keys)
        self.now = datetime.datetime.now(datetime.timezone.utc)

    def refused(self, answer, status, code, *words):
        self.assertEqual((answer[0], f"<Code>{code}</Code>" in answer[1]), (status, True), answer)
        for word in words:
            self.assertIn(word, answer[1])

    def signed(self, method, path, body=b"", when=None, signer=None, **headers):
        payload = hashlib.sha256(body).hexdigest()
        made, _ = (signer or self.signer).sign(method, path, payload, when, **headers)
        return made | {"content-length": str(len(body))}

    def nobody(self, path, method="GET", headers=None):
        return self.signer.send(method, path, {"host": self.signer.host} | (headers or {}))

    def versions(self, bucket):
        listed = self.client.list_object_versions(Bucket=bucket)
        return sorted((entry["Key"], entry["VersionId"]) for entry in listed.get("Versions", []))

    def lock_bucket(self):
        """A bucket with a version that is locked, and its number."""
        self.client.put_bucket_versioning(Bucket=LOCKED, VersioningConfiguration={"Status": "Enabled"})
        self.client.put_object_lock_configuration(Bucket=LOCKED, ObjectLockConfiguration={"ObjectLockEnabled": "Enabled"})
        until = self.now + datetime.timedelta(days=2)
        return self.client.put_object(
            Bucket=LOCKED, Key="a", Body=b"1", ObjectLockMode="GOVERNANCE", ObjectLockRetainUntilDate=until
        )["VersionId"]

    def test_headers_that_nobody_signed_do_not_act(self):
        """Each form of a request that a key signed, with each header that it did not sign."""
        version = self.lock_bucket()
        upload = self.client.create_multipart_upload(Bucket=BUCKET, Key="parts")["UploadId"]
        forms = {
            "put": ("PUT", f"/{BUCKET}/mine"),
            "get": ("GET", f"/{BUCKET}/secret"),
            "head": ("HEAD", f"/{BUCKET}/secret"),
            "delete": ("DELETE", f"/{BUCKET}/none"),
            "delete version": ("DELETE", f"/{LOCKED}/a?versionId={version}"),
            "put locked": ("PUT", f"/{LOCKED}/b"),
            "part": ("PUT", f"/{BUCKET}/parts?partNumber=1&uploadId={upload}"),
            "begin": ("POST", f"/{BUCKET}/begun?uploads"),
            "list": ("GET", f"/{BUCKET}?list-type=2"),
            "bucket": ("PUT", "/another"),
        }
        for form, (method, path) in forms.items():
            for name, value in ACTING.items():
                with self.subTest(form, header=name):
                    url, headers = self.signer.presign(method, path)
                    headers |= {"content-length": "0"}
                    answer = self.signer.send(method, url, headers | {name: value})
                    if method == "HEAD":
                        self.assertEqual(answer[0], 403)
                    else:
                        self.refused(answer, 403, "AccessDenied", f"<HeadersNotSigned>{name}</HeadersNotSigned>")
                    headers = self.signed(method, path)
                    if name not in headers:
                        self.assertEqual(self.signer.send(method, path, headers | {name: value})[0], 403)
        # Nothing of it was done.
        self.assertEqual([key for key, _ in self.versions(LOCKED)], ["a"])
        keys = [entry["Key"] for entry in self.client.list_objects_v2(Bucket=BUCKET)["Contents"]]
        self.assertEqual(keys, ["secret"])
        self.assertNotIn("another", [bucket["Name"] for bucket in self.client.list_buckets()["Buckets"]])
        self.assertFalse(self.client.list_parts(Bucket=BUCKET, Key="parts", UploadId=upload).get("Parts"))

    def test_headers_that_were_signed_act(self):
        path = f"/{BUCKET}/copy"
        url, headers = self.signer.presign("PUT", path, x_amz_copy_source=f"/{BUCKET}/secret", x_amz_acl="public-read")
        self.assertEqual(self.signer.send("PUT", url, headers | {"content-length": "0"})[0], 200)
        self.assertEqual(self.nobody(path)[1], SECRET.decode())
        headers = self.signed("PUT", path, b"2", x_amz_meta_a="1", x_amz_acl="private")
        self.assertEqual(self.signer.send("PUT", path, headers, b"2")[0], 200)
        self.assertEqual(self.client.head_object(Bucket=BUCKET, Key="copy")["Metadata"], {"a": "1"})
        self.assertEqual(self.nobody(path)[0], 403)
        # AWS asks for no signature over these.
        url, headers = self.signer.presign("PUT", path)
        more = {"content-type": "text/css", "cache-control": "no-store", "user-agent": "x", "content-length": "1"}
        self.assertEqual(self.signer.send("PUT", url, headers | more, b"3")[0], 200)
        self.assertEqual(self.client.head_object(Bucket=BUCKET, Key="copy")["ContentType"], "text/css")

    def test_parameters_that_nobody_signed(self):
        version = self.lock_bucket()
        for path, more in (
            (f"/{LOCKED}/a", f"versionId={version}"), (f"/{BUCKET}/secret", "acl"), (f"/{BUCKET}/secret", "response-content-type=text/html"),
            (f"/{BUCKET}", "policy"), (f"/{BUCKET}", "versions"),
        ):
            for method in ("GET", "PUT", "DELETE"):
                url, headers = self.signer.presign(method, path)
                headers |= {"content-length": "0"}
                self.refused(self.signer.send(method, f"{url}&{more}", headers), 403, "SignatureDoesNotMatch")
                headers = self.signed(method, path)
                self.refused(self.signer.send(method, f"{path}?{more}", headers), 403, "SignatureDoesNotMatch")
        # Who has no signature does not say what comes with an answer.
        self.client.put_object_acl(Bucket=BUCKET, Key="secret", ACL="public-read")
        self.assertEqual(self.nobody(f"/{BUCKET}/secret")[0], 200)
        for name in ("content-type", "content-disposition", "cache-control", "content-language", "content-encoding"):
            self.refused(self.nobody(f"/{BUCKET}/secret?response-{name}=text/html"), 400, "InvalidRequest")
        self.refused(
            self.nobody(f"/{BUCKET}/secret?response-expires=Thu,%2001%20Dec%202030%2016:00:00%20GMT"), 400, "InvalidRequest"
        )

    def test_the_host_is_signed(self):
        path = f"/{BUCKET}/secret"
        headers = self.signed("GET", path)
        self.signer.host, host = "", self.signer.host
        # It is good for what it covers.
        without = self.signed("GET", path)
        self.signer.host = host
        self.refused(self.signer.send("GET", path, without | {"host": host}), 403, "AccessDenied", "<HeadersNotSigned>host<")
        self.assertEqual(self.signer.send("GET", path, headers | {"host": "other.example.org"})[0], 403)

    def test_dates_and_what_a_signature_is_for(self):
        path = f"/{BUCKET}/secret"
        hour, minute = datetime.timedelta(hours=1), datetime.timedelta(minutes=1)
        for offset in (-16 * minute, 16 * minute, -24 * hour, 24 * 365 * hour):
            headers = self.signed("GET", path, when=self.now + offset)
            self.refused(self.signer.send("GET", path, headers), 403, "RequestTimeTooSkewed")
        for offset in (-13 * minute, 13 * minute):
            headers = self.signed("GET", path, when=self.now + offset)
            self.assertEqual(self.signer.send("GET", path, headers)[0], 200)
        for offset, expires, code in (
            (-hour, 7200, None), (-hour, 3599, "AccessDenied"), (13 * minute, 60, None), (16 * minute, 60, "RequestTimeTooSkewed"),
            (-24 * hour * 6, 604800, None), (-24 * hour * 8, 604800, "AccessDenied"),
            (-hour, 604801, "AuthorizationQueryParametersError"), (-hour, 4294967295, "AuthorizationQueryParametersError"),
            (-hour, 0, "AuthorizationQueryParametersError"), (-hour, "x", "AuthorizationQueryParametersError"),
        ):
            url, headers = self.signer.presign("GET", path, expires, self.now + offset)
            answer = self.signer.send("GET", url, headers)
            if code is None:
                self.assertEqual(answer, (200, SECRET.decode()))
            else:
                self.refused(answer, 400 if code.startswith("Auth") else 403, code)
        for signer, words in (
            (s3.Signer(self.port, self.keys, region="eu-west-1"), ["<Region>us-east-1</Region>"]),
            (s3.Signer(self.port, self.keys, service="sts"), ["another service"]),
            (s3.Signer(self.port, self.keys, service="iam"), ["another service"]),
        ):
            headers = self.signed("GET", path, signer=signer)
            self.refused(self.signer.send("GET", path, headers), 400, "AuthorizationHeaderMalformed", *words)
            url, headers = signer.presign("GET", path)
            self.refused(self.signer.send("GET", url, headers), 400, "AuthorizationHeaderMalformed", *words)
        # Both ways at once, and half of one.
        url, headers = self.signer.presign("GET", path)
        self.refused(self.signer.send("GET", url, headers | self.signed("GET", path)), 400, "InvalidArgument")
        for name in ("X-Amz-Signature", "X-Amz-Expires", "X-Amz-SignedHeaders", "X-Amz-Date"):
            less = "&".join(part for part in url.split("?")[1].split("&") if not part.startswith(name))
            self.refused(self.signer.send("GET", f"{path}?{less}", headers), 400, "AuthorizationQueryParametersError")

    def test_version_2_is_refused(self):
        path = f"/{BUCKET}/secret"
        for date in (self.now.strftime("%a, %d %b %Y %H:%M:%S GMT"), "Mon, 01 Jan 2001 00:00:00 GMT", "garbage"):
            for method, target in (("GET", path), ("PUT", path), ("GET", f"/{BUCKET}?policy"), ("DELETE", path)):
                headers = self.signer.sign_2(method, target, date) | {"content-length": "0"}
                self.refused(self.signer.send(method, target, headers), 400, "InvalidRequest", "Signature Version 4")
        for expires in (int(time.time()) + 60, 4102444800):
            url = self.signer.presign_2("GET", path, expires)
            self.refused(self.signer.send("GET", url, {"host": self.signer.host}), 400, "InvalidRequest", "Signature Version 4")
        self.assertEqual(self.client.get_object(Bucket=BUCKET, Key="secret")["Body"].read(), SECRET)

    def form(self, fields, data=b"1"):
        boundary = "cairn-form"
        parts = [f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n' for name, value in fields.items()]
        body = "".join(parts).encode() + (
            f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="a"\r\nContent-Type: text/plain\r\n\r\n'.encode()
            + data + f"\r\n--{boundary}--\r\n".encode()
        )
        headers = {
            "host": self.signer.host, "content-type": f"multipart/form-data; boundary={boundary}", "content-length": str(len(body)),
        }
        return self.signer.send("POST", f"/{BUCKET}", headers, body)

    def test_forms(self):
        until = (self.now + datetime.timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
        conditions = [{"bucket": BUCKET}, {"key": "form"}]
        text = base64.b64encode(json.dumps({"expiration": until, "conditions": conditions}).encode()).decode()
        signature = base64.b64encode(hmac.digest(self.keys.secret.encode(), text.encode(), "sha1")).decode()
        fields = {"key": "form", "AWSAccessKeyId": self.keys.id, "policy": text, "signature": signature}
        self.refused(self.form(fields), 400, "InvalidRequest", "Signature Version 4")
        for region, service, is_taken in (("us-east-1", "s3", True), ("eu-west-1", "s3", False), ("us-east-1", "sts", False)):
            signer = s3.Signer(self.port, self.keys, region=region, service=service)
            fields = self.form_fields(signer, until, {"key": "form"})
            answer = self.form(fields)
            if is_taken:
                self.assertEqual(answer[0], 204, answer)
            else:
                self.refused(answer, 400, "AuthorizationHeaderMalformed")
        # A field that the policy does not name.
        fields = self.form_fields(self.signer, until, {"key": "form"}) | {"x-amz-acl": "public-read"}
        self.refused(self.form(fields), 403, "AccessDenied")
        self.assertEqual(self.nobody(f"/{BUCKET}/form")[0], 403)

    @staticmethod
    def form_fields(signer, until, fields):
        now = datetime.datetime.now(datetime.timezone.utc)
        day = now.strftime("%Y%m%d")
        given = fields | {
            "x-amz-algorithm": "AWS4-HMAC-SHA256", "x-amz-credential": f"{signer.keys.id}/{signer._scope(day)}",
            "x-amz-date": now.strftime("%Y%m%dT%H%M%SZ"),
        }
        policy = {"expiration": until, "conditions": [{"bucket": BUCKET}] + [{name: value} for name, value in given.items()]}
        text = base64.b64encode(json.dumps(policy).encode()).decode()
        signature = hmac.digest(signer._key(day), text.encode(), "sha256").hex()
        return given | {"policy": text, "x-amz-signature": signature}


class S3Region(WorldTest):
    def test_another_region(self):
        port = harness.next_port()
        world = self.server(1, ["--listen-s3", f"127.0.0.1:{port}", "--s3-region", "eu-west-1"])
        world.cairn("bucket", "create", BUCKET)
        keys = s3.Keys(world)
        signer = s3.Signer(port, keys, region="eu-west-1")
        headers, _ = signer.sign("GET", f"/{BUCKET}?location", hashlib.sha256().hexdigest())
        answer = signer.send("GET", f"/{BUCKET}?location", headers)
        self.assertEqual((answer[0], "eu-west-1" in answer[1]), (200, True), answer)
        signer = s3.Signer(port, keys)
        headers, _ = signer.sign("GET", f"/{BUCKET}?location", hashlib.sha256().hexdigest())
        answer = signer.send("GET", f"/{BUCKET}?location", headers)
        self.assertEqual((answer[0], "<Region>eu-west-1</Region>" in answer[1]), (400, True), answer)
