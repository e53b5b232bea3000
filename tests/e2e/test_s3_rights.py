"""Who may do what over S3: each operation by each kind of caller, and the ways around a denial."""

import datetime
import hashlib
import json
import urllib.parse

from lib import harness, libnfs, s3
from lib.s3worlds import S3Test

BUCKET, OWN = "photos", "other"
EXPIRY_SECONDS_MAX = 120
#: Who asks. Those who are denied are so by a policy that denies them everything.
CALLERS = ("owner", "other", "limited", "reader", "nobody", "denied owner", "denied other")
#: By kind of operation, who may. `other` may not write where modes do not let it.
MAY = {
    "read": {"owner", "other", "limited", "reader"},
    "write": {"owner", "limited"},
    "upload": {"owner", "limited"},
    "parts": {"owner", "limited", "reader"},
    "setting": {"owner", "other", "limited", "reader"},
    "policy": {"owner", "other", "limited", "reader", "denied owner"},
    "govern": {"owner"},
    "mend": {"owner", "denied owner"},
    "volume": {"owner", "other", "limited", "reader", "denied owner", "denied other"},
    "make": {"owner", "other", "denied owner", "denied other"},
}
BYPASS = {"x_amz_bypass_governance_retention": "true"}
COPY = {"x_amz_copy_source": f"/{BUCKET}/there"}
ACL = {"x_amz_acl": "private"}
HOLD = "<LegalHold><Status>OFF</Status></LegalHold>"
RETENTION = "<Retention></Retention>"
TAGS = "<Tagging><TagSet><Tag><Key>a</Key><Value>1</Value></Tag></TagSet></Tagging>"
VERSIONING = "<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>"
LOCK = "<ObjectLockConfiguration><ObjectLockEnabled>Enabled</ObjectLockEnabled></ObjectLockConfiguration>"
CORS = "<CORSConfiguration><CORSRule><AllowedMethod>GET</AllowedMethod><AllowedOrigin>*</AllowedOrigin></CORSRule></CORSConfiguration>"
WEBSITE = "<WebsiteConfiguration><IndexDocument><Suffix>i.html</Suffix></IndexDocument></WebsiteConfiguration>"
LIFECYCLE = (
    "<LifecycleConfiguration><Rule><Status>Disabled</Status><Filter><Prefix>none/</Prefix></Filter>"
    "<Expiration><Days>1</Days></Expiration></Rule></LifecycleConfiguration>"
)
COMPLETE = "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>a</ETag></Part></CompleteMultipartUpload>"
ALLOW_POLICY = json.dumps({"Statement": [
    {"Effect": "Allow", "Principal": "*", "Action": "s3:GetObject", "Resource": f"arn:aws:s3:::{BUCKET}/open/*"},
]})
#: Operation, kind, method, path, headers, body. `{upload}` and `{version}` are of the object; `{caller}` makes a name unique.
OPERATIONS: tuple[tuple[str, str, str, str, dict[str, str], str], ...] = (
    ("ListBuckets", "volume", "GET", "/", {}, ""),
    ("CreateBucket", "make", "PUT", "/made-{caller}", {}, ""),
    ("HeadBucket", "read", "HEAD", "/photos", {}, ""),
    ("GetBucketLocation", "setting", "GET", "/photos?location", {}, ""),
    ("ListObjects", "read", "GET", "/photos", {}, ""),
    ("ListObjectsV2", "read", "GET", "/photos?list-type=2", {}, ""),
    ("ListObjectVersions", "read", "GET", "/photos?versions", {}, ""),
    ("ListMultipartUploads", "read", "GET", "/photos?uploads", {}, ""),
    ("GetObject", "read", "GET", "/photos/there", {}, ""),
    ("GetObject of a version", "read", "GET", "/photos/there?versionId={version}", {}, ""),
    ("HeadObject", "read", "HEAD", "/photos/there", {}, ""),
    ("HeadObject of a version", "read", "HEAD", "/photos/there?versionId={version}", {}, ""),
    ("GetObjectAttributes", "read", "GET", "/photos/there?attributes", {"x_amz_object_attributes": "ETag"}, ""),
    ("GetObjectTagging", "read", "GET", "/photos/there?tagging", {}, ""),
    ("GetObjectAcl", "read", "GET", "/photos/there?acl", {}, ""),
    ("GetObjectRetention", "read", "GET", "/photos/there?retention", {}, ""),
    ("GetObjectLegalHold", "read", "GET", "/photos/there?legal-hold", {}, ""),
    ("PutObject", "write", "PUT", "/photos/new", {}, "1"),
    ("PutObject with an ACL", "write", "PUT", "/photos/new", ACL, "1"),
    ("PutObject with tags", "write", "PUT", "/photos/new", {"x_amz_tagging": "a=1"}, "1"),
    ("CopyObject", "write", "PUT", "/photos/copy", COPY, ""),
    ("CopyObject of a version", "write", "PUT", "/photos/copy", {"x_amz_copy_source": "/photos/there?versionId={version}"}, ""),
    ("PutObjectTagging", "write", "PUT", "/photos/there?tagging", {}, TAGS),
    ("DeleteObjectTagging", "write", "DELETE", "/photos/there?tagging", {}, ""),
    ("PutObjectAcl", "write", "PUT", "/photos/there?acl", ACL, ""),
    ("PutObjectRetention", "write", "PUT", "/photos/there?retention", {}, RETENTION),
    ("PutObjectRetention with a bypass", "govern", "PUT", "/photos/there?retention", BYPASS, RETENTION),
    ("PutObjectLegalHold", "write", "PUT", "/photos/there?legal-hold", {}, HOLD),
    ("DeleteObject", "write", "DELETE", "/photos/gone", {}, ""),
    ("DeleteObject of a version", "write", "DELETE", "/photos/gone?versionId=" + "0" * 32, {}, ""),
    ("DeleteObject with a bypass", "govern", "DELETE", "/photos/gone?versionId=" + "0" * 32, BYPASS, ""),
    ("DeleteObjects", "write", "POST", "/photos?delete", {}, "<Delete><Object><Key>gone</Key></Object></Delete>"),
    ("CreateMultipartUpload", "begin", "POST", "/photos/begun?uploads", {}, ""),
    ("UploadPart", "upload", "PUT", "/photos/parts?partNumber=1&uploadId={upload}", {}, "1"),
    ("UploadPartCopy", "upload", "PUT", "/photos/parts?partNumber=2&uploadId={upload}", COPY, ""),
    ("CompleteMultipartUpload", "upload", "POST", "/photos/parts?uploadId={upload}", {}, COMPLETE),
    ("ListParts", "parts", "GET", "/photos/parts?uploadId={upload}", {}, ""),
    ("GetBucketAcl", "setting", "GET", "/photos?acl", {}, ""),
    ("GetBucketPolicy", "policy", "GET", "/photos?policy", {}, ""),
    ("GetBucketPolicyStatus", "setting", "GET", "/photos?policyStatus", {}, ""),
    ("GetBucketCors", "setting", "GET", "/photos?cors", {}, ""),
    ("GetBucketLifecycleConfiguration", "setting", "GET", "/photos?lifecycle", {}, ""),
    ("GetBucketTagging", "setting", "GET", "/photos?tagging", {}, ""),
    ("GetBucketVersioning", "setting", "GET", "/photos?versioning", {}, ""),
    ("GetBucketWebsite", "setting", "GET", "/photos?website", {}, ""),
    ("GetObjectLockConfiguration", "setting", "GET", "/photos?object-lock", {}, ""),
    ("GetBucketEncryption", "setting", "GET", "/photos?encryption", {}, ""),
    ("GetBucketReplication", "setting", "GET", "/photos?replication", {}, ""),
    ("GetPublicAccessBlock", "setting", "GET", "/photos?publicAccessBlock", {}, ""),
    ("GetBucketOwnershipControls", "setting", "GET", "/photos?ownershipControls", {}, ""),
    ("GetBucketLogging", "setting", "GET", "/photos?logging", {}, ""),
    ("GetBucketNotificationConfiguration", "setting", "GET", "/photos?notification", {}, ""),
    ("GetBucketAccelerateConfiguration", "setting", "GET", "/photos?accelerate", {}, ""),
    ("GetBucketRequestPayment", "setting", "GET", "/photos?requestPayment", {}, ""),
    ("PutBucketAcl", "govern", "PUT", "/photos?acl", ACL, ""),
    ("PutBucketCors", "govern", "PUT", "/photos?cors", {}, CORS),
    ("DeleteBucketCors", "govern", "DELETE", "/photos?cors", {}, ""),
    ("PutBucketLifecycleConfiguration", "govern", "PUT", "/photos?lifecycle", {}, LIFECYCLE),
    ("DeleteBucketLifecycle", "govern", "DELETE", "/photos?lifecycle", {}, ""),
    ("PutBucketTagging", "govern", "PUT", "/photos?tagging", {}, TAGS),
    ("DeleteBucketTagging", "govern", "DELETE", "/photos?tagging", {}, ""),
    ("PutBucketVersioning", "govern", "PUT", "/photos?versioning", {}, VERSIONING),
    ("PutBucketWebsite", "govern", "PUT", "/photos?website", {}, WEBSITE),
    ("DeleteBucketWebsite", "govern", "DELETE", "/photos?website", {}, ""),
    ("PutObjectLockConfiguration", "govern", "PUT", "/photos?object-lock", {}, LOCK),
    ("PutBucketPolicy", "mend", "PUT", "/photos?policy", {}, ALLOW_POLICY),
    ("DeleteBucketPolicy", "mend", "DELETE", "/photos?policy", {}, ""),
    # The owner is told that the bucket is not empty.
    ("DeleteBucket", "govern", "DELETE", "/photos", {}, ""),
    ("AbortMultipartUpload", "upload", "DELETE", "/photos/parts?uploadId={upload}", {}, ""),
)


class Rights(S3Test):
    def s3_server(self):
        self.serve(BUCKET)
        self.world.cairn("bucket", "create", OWN, "--uid", 2000, "--gid", 200)
        self.other_keys = s3.Keys(self.world, uid=2000, gid=200)
        self.other = s3.client(self.port, self.other_keys)

    def send(self, keys, method, path, headers=None, body=""):
        """Status and body of the answer; `keys` is `None` for nobody."""
        signer = s3.Signer(self.port, keys)
        data = body.encode()
        headers = headers or {}
        if keys is None:
            made = {"host": signer.host} | {name.replace("_", "-"): value for name, value in headers.items()}
        else:
            made, _ = signer.sign(method, path, hashlib.sha256(data).hexdigest(), **headers)
        return signer.send(method, path, made | {"content-length": str(len(data))}, data)

    def denied(self, keys, method, path, headers=None, body=""):
        answer = self.send(keys, method, path, headers, body)
        self.assertTrue(self.is_denied(answer), (method, path, headers, answer))

    def allowed(self, keys, method, path, headers=None, body=""):
        answer = self.send(keys, method, path, headers, body)
        self.assertIn(answer[0], (200, 204), (method, path, headers, answer))
        self.assertNotIn("<Error>", answer[1], path)
        return answer[1]

    @staticmethod
    def is_denied(answer):
        # Uploads of others are not there.
        return answer[0] == 403 or "<Code>AccessDenied</Code>" in answer[1] or "<Code>NoSuchUpload</Code>" in answer[1]

    def policy(self, *statements, bucket=BUCKET, client=None):
        made = [{"Effect": effect, "Principal": who if who == "*" else {"AWS": [keys.id for keys in who]}, "Action": action,
                 "Resource": [f"arn:aws:s3:::{bucket}", f"arn:aws:s3:::{bucket}/*"]} for effect, who, action in statements]
        (client or self.client).put_bucket_policy(Bucket=bucket, Policy=json.dumps({"Statement": made}))

    def test_each_operation_by_each_caller(self):
        self.s3_server()
        self.client.put_bucket_versioning(Bucket=BUCKET, VersioningConfiguration={"Status": "Enabled"})
        self.client.put_object_lock_configuration(Bucket=BUCKET, ObjectLockConfiguration={"ObjectLockEnabled": "Enabled"})
        version = self.client.put_object(Bucket=BUCKET, Key="there", Body=b"1")["VersionId"]
        upload = self.client.create_multipart_upload(Bucket=BUCKET, Key="parts")["UploadId"]
        callers = {
            "owner": self.keys, "other": self.other_keys, "nobody": None,
            "limited": s3.Keys(self.world, "--bucket", BUCKET, uid=1000, gid=100),
            "reader": s3.Keys(self.world, "--read-only", uid=1000, gid=100),
            "denied owner": s3.Keys(self.world, uid=1000, gid=100), "denied other": s3.Keys(self.world, uid=2000, gid=200),
        }
        denied = [callers["denied owner"], callers["denied other"]]
        wrong = []
        for operation, kind, method, path, headers, body in OPERATIONS:
            # Who begins an upload writes nowhere yet.
            may = {"owner", "other", "limited"} if kind == "begin" else MAY[kind]
            # The owner comes last: what it does may not be done again.
            for caller in (*CALLERS[1:], CALLERS[0]):
                self.policy(("Deny", denied, "s3:*"))
                if operation == "AbortMultipartUpload":
                    upload = self.client.create_multipart_upload(Bucket=BUCKET, Key="parts")["UploadId"]
                names = {"upload": upload, "version": version, "caller": caller.replace(" ", "-")}
                given = {name: value.format(**names) for name, value in headers.items()}
                answer = self.send(callers[caller], method, path.format(**names), given, body)
                is_right = not self.is_denied(answer) if caller in may else self.is_denied(answer)
                if not is_right or answer[0] >= 500 or answer[0] == 0:
                    wrong.append((operation, caller, answer))
        self.assertFalse(wrong)
        versions = self.client.list_object_versions(Bucket=BUCKET, Prefix="there")["Versions"]
        self.assertEqual([entry["VersionId"] for entry in versions], [version])

    def test_there_is_no_way_around_a_denial(self):
        self.s3_server()
        self.client.put_object(Bucket=BUCKET, Key="a", Body=b"secret", Tagging="a=1")
        key, own = self.other_keys, f"/{OWN}/copy"
        upload = self.other.create_multipart_upload(Bucket=OWN, Key="parts")["UploadId"]
        part = f"/{OWN}/parts?partNumber=1&uploadId={upload}"
        with libnfs.Mount(self.world.libnfs_url()) as mount:
            mount.chmod(f"/{BUCKET}", 0o777)
            mount.chmod(f"/{BUCKET}/a", 0o666)
        source = f"/{BUCKET}/a"
        reads: tuple[tuple[str, str, dict[str, str]], ...] = (
            ("GET", source, {}), ("GET", f"{source}?versionId=null", {}), ("HEAD", source, {}), ("HEAD", f"{source}?versionId=null", {}),
            ("GET", f"{source}?attributes", {"x_amz_object_attributes": "ETag"}),
            ("GET", f"{source}?attributes&versionId=null", {"x_amz_object_attributes": "ETag"}),
            ("PUT", own, {"x_amz_copy_source": source}), ("PUT", own, {"x_amz_copy_source": f"{source}?versionId=null"}),
            ("PUT", part, {"x_amz_copy_source": source}), ("PUT", part, {"x_amz_copy_source": f"{source}?versionId=null"}),
        )
        for method, path, headers in reads:
            self.allowed(key, method, path, headers)
        # As AWS, whatever the capitals are.
        for action in ("s3:GetObject", "s3:getobject", "S3:GETOBJECT", "s3:Get*"):
            self.policy(("Deny", [key], action))
            for method, path, headers in reads:
                self.denied(key, method, path, headers)
        self.policy(("Deny", [key], "s3:GetObjectVersion"))
        self.allowed(key, *reads[0])
        for method, path, headers in reads:
            if "versionId" in path + headers.get("x_amz_copy_source", ""):
                self.denied(key, method, path, headers)
        # What a version is deleted by on a bucket without versions is what deletes the object.
        self.policy(("Deny", [key], "s3:DeleteObject"))
        for path in (source, f"{source}?versionId=null", f"{source}?versionId={'0' * 32}"):
            self.denied(key, "DELETE", path)
        for version in ("", "<VersionId>null</VersionId>"):
            body = f"<Delete><Object><Key>a</Key>{version}</Object></Delete>"
            self.denied(key, "POST", f"/{BUCKET}?delete", {}, body)
        self.assertEqual(self.client.get_object(Bucket=BUCKET, Key="a")["Body"].read(), b"secret")
        # What comes with a new object has its own actions.
        for action, headers in (
            ("s3:PutObjectAcl", {"x_amz_acl": "public-read"}),
            ("s3:PutObjectTagging", {"x_amz_tagging": "a=1"}),
            ("s3:PutObjectRetention", {"x_amz_object_lock_mode": "COMPLIANCE", "x_amz_object_lock_retain_until_date": "2120-01-01T00:00:00Z"}),
            ("s3:PutObjectLegalHold", {"x_amz_object_lock_legal_hold": "ON"}),
        ):
            self.policy(("Deny", [key], action))
            self.allowed(key, "PUT", f"/{BUCKET}/new", {}, "1")
            for method, path, more in (
                ("PUT", f"/{BUCKET}/new", {}), ("POST", f"/{BUCKET}/new?uploads", {}), ("PUT", f"/{BUCKET}/new", {"x_amz_copy_source": own}),
            ):
                self.denied(key, method, path, headers | more)
        # Tags that come along with a copy.
        self.policy(("Deny", [key], "s3:GetObjectTagging"))
        self.denied(key, "PUT", own, {"x_amz_copy_source": source})
        self.allowed(key, "PUT", own, {"x_amz_copy_source": source, "x_amz_tagging_directive": "REPLACE"})

    def test_nobody_does_more_than_a_policy_allows(self):
        self.s3_server()
        with libnfs.Mount(self.world.libnfs_url()) as mount:
            mount.chmod(f"/{BUCKET}", 0o777)
        self.policy(("Allow", "*", "s3:PutObject"))
        self.allowed(None, "PUT", f"/{BUCKET}/a", {}, "1")
        for headers in (
            {"x_amz_acl": "public-read"}, {"x_amz_acl": "private"}, {"x_amz_tagging": "a=1"},
            {"x_amz_copy_source": f"/{BUCKET}/a"}, {"x_amz_object_lock_legal_hold": "ON"},
        ):
            self.denied(None, "PUT", f"/{BUCKET}/b", headers, "1")
        for method, path in (
            ("GET", f"/{BUCKET}/a"), ("GET", f"/{BUCKET}/a?versionId=null"), ("DELETE", f"/{BUCKET}/a"), ("GET", f"/{BUCKET}/a?acl"),
            ("PUT", f"/{BUCKET}/a?acl"), ("PUT", f"/{BUCKET}/a?tagging"), ("PUT", f"/{BUCKET}?policy"), ("DELETE", f"/{BUCKET}?policy"),
            ("POST", f"/{BUCKET}/a?uploads"), ("GET", f"/{BUCKET}"), ("GET", f"/{BUCKET}?versions"), ("GET", f"/{BUCKET}?location"), ("GET", "/"),
        ):
            self.denied(None, method, path)
        for fields, is_taken in (({}, True), ({"x-amz-acl": "public-read"}, False), ({"x-amz-tagging": "a=1"}, False)):
            boundary = "cairn"
            lines = [f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
                     for name, value in ({"key": "form"} | fields).items()]
            lines.append(f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n1\r\n--{boundary}--\r\n')
            signer, body = s3.Signer(self.port, None), "".join(lines).encode()
            headers = {"host": signer.host, "content-type": f"multipart/form-data; boundary={boundary}", "content-length": str(len(body))}
            answer = signer.send("POST", f"/{BUCKET}", headers, body)
            self.assertEqual(answer[0], 204 if is_taken else 403, (fields, answer))
        self.policy(("Allow", "*", ["s3:PutObject", "s3:PutObjectAcl", "s3:PutObjectTagging"]))
        self.allowed(None, "PUT", f"/{BUCKET}/c", {"x_amz_acl": "public-read", "x_amz_tagging": "a=1"}, "2")
        self.assertEqual(self.allowed(None, "GET", f"/{BUCKET}/c"), "2")
        # A version of it is the same to nobody.
        self.assertEqual(self.allowed(None, "GET", f"/{BUCKET}/c?versionId=null"), "2")
        self.policy(("Allow", "*", "s3:GetObjectVersion"), ("Deny", "*", "s3:GetObject"))
        self.denied(None, "GET", f"/{BUCKET}/c?versionId=null")

    def test_a_bucket_is_its_owner_s(self):
        self.s3_server()
        with libnfs.Mount(self.world.libnfs_url()) as mount:
            mount.mkdir("/home3000")
            mount.write_file("/home3000/mine", b"1")
            mount.chmod("/home3000/mine", 0o600)
            mount.chown("/home3000/mine", 3000, 300)
            mount.chown("/home3000", 3000, 300)
            mount.chmod("/home3000", 0o700)
        key = self.other_keys
        self.denied(key, "PUT", "/home3000")
        self.allowed(key, "PUT", "/fresh-2000")
        third = s3.Keys(self.world, uid=3000, gid=300)
        self.allowed(third, "PUT", "/home3000")
        lifecycle = LIFECYCLE.replace("Disabled", "Enabled").replace("none/", "").replace("<Days>1</Days>", "<Date>2020-01-01T00:00:00Z</Date>")
        for method, path, body in (
            ("PUT", "/home3000?lifecycle", lifecycle), ("PUT", "/home3000?policy", ALLOW_POLICY.replace(BUCKET, "home3000")),
            ("PUT", "/home3000?website", WEBSITE), ("PUT", "/home3000?versioning", VERSIONING), ("DELETE", "/home3000", ""),
        ):
            self.denied(key, method, path, {}, body)
        # The policy can allow it, to whom it names.
        client = s3.client(self.port, third)
        self.policy(("Allow", [key], "s3:PutLifecycleConfiguration"), bucket="home3000", client=client)
        self.allowed(key, "PUT", "/home3000?lifecycle", {}, LIFECYCLE)
        self.denied(key, "PUT", "/home3000?website", {}, WEBSITE)
        self.denied(self.keys, "PUT", "/home3000?lifecycle", {}, LIFECYCLE)
        # Who is denied all by it cannot take it away; the owner can.
        self.policy(("Deny", "*", "s3:*"), bucket="home3000", client=client)
        for keys in (key, self.keys):
            self.denied(keys, "DELETE", "/home3000?policy")
            self.denied(keys, "GET", "/home3000?policy")
        self.denied(third, "GET", "/home3000/mine")
        self.denied(third, "PUT", "/home3000?lifecycle", {}, lifecycle)
        self.allowed(third, "GET", "/home3000?policy")
        self.allowed(third, "DELETE", "/home3000?policy")
        self.assertEqual(self.allowed(third, "GET", "/home3000/mine"), "1")

    def test_rules_expire_what_the_owner_may_remove(self):
        self.s3_server()
        with libnfs.Mount(self.world.libnfs_url()) as mount:
            for name, uid, mode in (("theirs", 3000, 0o755), ("hidden", 3000, 0o700), ("shared", 3000, 0o777), ("own", 1000, 0o755)):
                mount.mkdir(f"/{BUCKET}/{name}")
                mount.write_file(f"/{BUCKET}/{name}/a", b"1")
                mount.chown(f"/{BUCKET}/{name}/a", 3000, 300)
                mount.chown(f"/{BUCKET}/{name}", uid, uid // 10)
                mount.chmod(f"/{BUCKET}/{name}", mode)
            mount.write_file(f"/{BUCKET}/zz", b"1")
        rule = LIFECYCLE.replace("Disabled", "Enabled").replace("none/", "").replace("<Days>1</Days>", "<Date>2020-01-01T00:00:00Z</Date>")
        self.allowed(self.keys, "PUT", f"/{BUCKET}?lifecycle", {}, rule)
        with libnfs.Mount(self.world.libnfs_url()) as mount:
            # Keys are looked at in order: what is before it was.
            harness.wait_until(lambda: "zz" not in mount.names(f"/{BUCKET}"), EXPIRY_SECONDS_MAX, "the last object to expire")
            left = {name: mount.names(f"/{BUCKET}/{name}") for name in ("theirs", "hidden", "shared", "own")}
        left = {name: [entry for entry in names if entry not in (".", "..")] for name, names in left.items()}
        self.assertEqual(left, {"theirs": ["a"], "hidden": ["a"], "shared": [], "own": []})

    def test_policies_that_mean_nothing_are_refused(self):
        self.s3_server()
        good = {"Effect": "Deny", "Principal": {"AWS": self.other_keys.id}, "Action": "s3:GetObject", "Resource": f"arn:aws:s3:::{BUCKET}/*"}
        self.allowed(self.keys, "PUT", f"/{BUCKET}?policy", {}, json.dumps({"Statement": [good]}))
        impossible: list[dict[str, object]] = [
            {"Resource": f"arn:aws:s3:::{BUCKET}/{never}"}
            for never in ("", "/x", "../x", "a/./*", "*//x", ".snapshot/*", "x" * 1025)
        ]
        changes: tuple[dict[str, object], ...] = (
            {"Action": "s3:GetObjct"}, {"Action": ["s3:GetObject", "s3:Reed*"]}, {"Principal": {"AWS": "NOBODYHASTHISKEY"}},
            {"Principal": {"AWS": [self.other_keys.id, "arn:aws:iam::123456789012:root"]}}, {"Resource": f"arn:aws:s3:::{BUCKET}"},
            {"Action": "s3:PutBucketPolicy"}, {"Action": []}, {"Resource": f"arn:aws:s3:::{BUCKET}/${{aws:username}}/*"},
            *impossible,
        )
        for change in changes:
            answer = self.send(self.keys, "PUT", f"/{BUCKET}?policy", {}, json.dumps({"Statement": [good | change]}))
            self.assertEqual((answer[0], "<Code>MalformedPolicy</Code>" in answer[1]), (400, True), (change, answer))
        self.assertIn("GetObject", self.allowed(self.keys, "GET", f"/{BUCKET}?policy"))

    def test_a_lock_is_taken_by_who_may_write(self):
        self.s3_server()
        self.client.put_bucket_versioning(Bucket=BUCKET, VersioningConfiguration={"Status": "Enabled"})
        self.client.put_object_lock_configuration(Bucket=BUCKET, ObjectLockConfiguration={"ObjectLockEnabled": "Enabled"})
        version = self.client.put_object(Bucket=BUCKET, Key="a", Body=b"1")["VersionId"]
        until = "<Retention><Mode>COMPLIANCE</Mode><RetainUntilDate>2120-01-01T00:00:00Z</RetainUntilDate></Retention>"
        self.denied(self.other_keys, "PUT", f"/{BUCKET}/a?retention", {}, until)
        self.denied(self.other_keys, "PUT", f"/{BUCKET}/a?legal-hold", {}, HOLD.replace("OFF", "ON"))
        # Nothing of it holds.
        self.allowed(self.keys, "DELETE", f"/{BUCKET}/a?versionId={version}")

    def seen(self, keys, prefix=""):
        page = s3.client(self.port, keys).list_object_versions(Bucket=BUCKET, Prefix=prefix)
        return [(entry["Key"], entry["VersionId"]) for entry in page.get("Versions", [])]

    def test_versions_are_for_whom_their_directory_was(self):
        self.s3_server()
        self.client.put_bucket_versioning(Bucket=BUCKET, VersioningConfiguration={"Status": "Enabled"})
        third, other = s3.Keys(self.world, uid=3000, gid=300), self.other_keys
        client = s3.client(self.port, third)
        with libnfs.Mount(self.world.libnfs_url()) as mount:
            mount.chmod(f"/{BUCKET}", 0o777)
            first = client.put_object(Bucket=BUCKET, Key="private/deep/a", Body=b"first")["VersionId"]
            client.put_object(Bucket=BUCKET, Key="open/a", Body=b"open")
            client.put_object(Bucket=BUCKET, Key="open/a", Body=b"open")
            mount.chmod(f"/{BUCKET}/private", 0o700)
            second = client.put_object(Bucket=BUCKET, Key="private/deep/a", Body=b"second")["VersionId"]
            path = f"/{BUCKET}/private/deep/a"
            for is_gone in (False, True):
                self.assertEqual(self.allowed(third, "GET", f"{path}?versionId={first}"), "first")
                self.assertEqual({version for _, version in self.seen(third, "private/")} & {first}, {first})
                self.assertEqual(len(self.seen(other, "open/")), 2)
                self.assertEqual((self.seen(other, "private/"), self.seen(other, "private/deep/a")), ([], []))
                self.assertNotIn(first, [version for _, version in self.seen(other)])
                for method in ("GET", "HEAD", "DELETE"):
                    self.denied(other, method, f"{path}?versionId={first}")
                copy = {"x_amz_copy_source": urllib.parse.quote(path) + f"?versionId={first}"}
                self.denied(other, "PUT", f"/{OWN}/copy", copy)
                if not is_gone:
                    mount.unlink(path)
                    mount.rmdir(f"/{BUCKET}/private/deep")
                    mount.rmdir(f"/{BUCKET}/private")
        # A directory that takes the name opens nothing.
        self.allowed(other, "PUT", f"/{BUCKET}/private/mine", {}, "1")
        self.assertEqual([key for key, _ in self.seen(other, "private/")], ["private/mine"])
        self.assertEqual(self.send(other, "GET", f"{path}?versionId={first}")[0], 404)
        self.allowed(other, "PUT", f"/{BUCKET}/private/mine", {}, "2")
        # To whom it is not there it is gone already.
        self.assertEqual(self.send(other, "DELETE", f"{path}?versionId={first}")[0], 204)
        self.allowed(other, "DELETE", f"/{BUCKET}/private/mine")
        self.denied(other, "DELETE", f"{path}?versionId={first}")
        self.assertIn(first, [version for _, version in self.seen(third, "private/")])
        self.assertEqual(self.allowed(third, "GET", f"{path}?versionId={first}"), "first")
        self.assertNotEqual(first, second)

    def test_what_is_told_of_an_object_is_for_who_may_read_it(self):
        self.s3_server()
        self.client.put_bucket_versioning(Bucket=BUCKET, VersioningConfiguration={"Status": "Enabled"})
        self.client.put_object_lock_configuration(Bucket=BUCKET, ObjectLockConfiguration={"ObjectLockEnabled": "Enabled"})
        bodies = {"old": b"guess me", "new": b"and me"}
        made = [
            self.client.put_object(Bucket=BUCKET, Key="dir/a", Body=body, Metadata={"secret": "word"}, Tagging="a=1", ChecksumAlgorithm="CRC32")
            for body in bodies.values()
        ]
        new = made[1]["VersionId"]
        digests = [answer["ETag"].strip('"') for answer in made]
        self.assertEqual(digests, [hashlib.md5(body).hexdigest() for body in bodies.values()])
        asked: tuple[tuple[str, str, dict[str, str]], ...] = (
            ("GET", "", {}), ("HEAD", "", {}), ("GET", "attributes", {"x_amz_object_attributes": "ETag,Checksum"}), ("GET", "tagging", {}),
            ("GET", "acl", {}), ("GET", "retention", {}), ("GET", "legal-hold", {}),
        )
        path = f"/{BUCKET}/dir/a"
        listings = (f"/{BUCKET}", f"/{BUCKET}?list-type=2", f"/{BUCKET}?versions")
        with libnfs.Mount(self.world.libnfs_url()) as mount:
            for mode, told in ((0o644, True), (0o600, False)):
                mount.chmod(path, mode)
                latest = self.client.put_object(Bucket=BUCKET, Key="dir/a", Body=bodies["new"])["VersionId"] if not told else new
                if not told:
                    # What is replaced keeps its mode.
                    mount.chmod(path, mode)
                for method, name, headers in asked:
                    for version in (latest, new, None):
                        parts = [part for part in (name, f"versionId={version}" if version else "") if part]
                        answer = self.send(self.other_keys, method, f"{path}?{'&'.join(parts)}" if parts else path, headers)
                        case = (mode, method, name, version, answer)
                        self.assertEqual(self.is_denied(answer), not told, case)
                        self.assertFalse(self.is_denied(self.send(self.keys, method, f"{path}?{'&'.join(parts)}" if parts else path, headers)), case)
                for listing in listings:
                    mine, theirs = (self.allowed(keys, "GET", listing) for keys in (self.keys, self.other_keys))
                    self.assertIn(digests[1], mine)
                    self.assertEqual(digests[1] in theirs, told, (mode, listing))
                    # Names, sizes and times are told, as `ls -l` does.
                    self.assertIn(f"<Size>{len(bodies['new'])}</Size>", theirs)
        # The digest of what may not be read is no condition, either.
        for etag in digests:
            answer = self.send(self.other_keys, "GET", path, {"if_none_match": f'"{etag}"'})
            self.assertEqual(answer[0], 403)

    def test_in_a_sticky_directory_versions_are_their_owners(self):
        self.s3_server()
        self.client.put_bucket_versioning(Bucket=BUCKET, VersioningConfiguration={"Status": "Enabled"})
        third = s3.Keys(self.world, uid=3000, gid=300)
        for client, key in ((self.client, "st/a"), (s3.client(self.port, third), "free/a")):
            if key == "st/a":
                self.client.put_object(Bucket=BUCKET, Key="st/mine", Body=b"1")
                self.client.put_object(Bucket=BUCKET, Key="free/mine", Body=b"1")
                with libnfs.Mount(self.world.libnfs_url()) as mount:
                    mount.chown(f"/{BUCKET}/st", 1000, 100)
                    mount.chmod(f"/{BUCKET}/st", 0o1777)
                    mount.chmod(f"/{BUCKET}/free", 0o777)
            old, new = (client.put_object(Bucket=BUCKET, Key=key, Body=body)["VersionId"] for body in (b"old", b"new"))
            marker = client.delete_object(Bucket=BUCKET, Key=key)["VersionId"]
            for version in (old, new, marker):
                answer = self.send(self.other_keys, "DELETE", f"/{BUCKET}/{key}?versionId={version}")
                self.assertEqual(answer[0], 403 if key == "st/a" else 204, (key, version, answer))
        # Nothing came back, and nothing went.
        self.assertEqual(self.send(self.keys, "GET", f"/{BUCKET}/st/a")[0], 404)
        left = self.client.list_object_versions(Bucket=BUCKET, Prefix="st/a")
        self.assertEqual((len(left["Versions"]), len(left["DeleteMarkers"])), (2, 1))
        # Others may put and take away what is theirs, the owner of the directory all.
        marker = self.other.put_object(Bucket=BUCKET, Key="st/theirs", Body=b"1")["VersionId"]
        self.allowed(self.other_keys, "DELETE", f"/{BUCKET}/st/theirs?versionId={marker}")
        marker = s3.client(self.port, third).put_object(Bucket=BUCKET, Key="st/third", Body=b"1")["VersionId"]
        self.denied(self.other_keys, "DELETE", f"/{BUCKET}/st/third?versionId={marker}")
        self.allowed(third, "DELETE", f"/{BUCKET}/st/third")
        gone = self.client.list_object_versions(Bucket=BUCKET, Prefix="st/third")["DeleteMarkers"][0]["VersionId"]
        self.denied(self.other_keys, "DELETE", f"/{BUCKET}/st/third?versionId={gone}")
        self.allowed(third, "DELETE", f"/{BUCKET}/st/third?versionId={gone}")
        self.allowed(self.keys, "DELETE", f"/{BUCKET}/st/third?versionId={marker}")

    def test_what_is_locked_stays_at_its_key(self):
        self.s3_server()
        self.client.put_bucket_versioning(Bucket=BUCKET, VersioningConfiguration={"Status": "Enabled"})
        self.client.put_object_lock_configuration(Bucket=BUCKET, ObjectLockConfiguration={"ObjectLockEnabled": "Enabled"})
        until = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(days=1)
        version = self.client.put_object(
            Bucket=BUCKET, Key="2026/11/ledger", Body=b"true", ObjectLockMode="COMPLIANCE", ObjectLockRetainUntilDate=until
        )["VersionId"]
        for is_again in (False, True):
            if is_again:
                self.world.kill()
                self.world.start()
            with libnfs.Mount(self.world.libnfs_url()) as mount:
                for old, new in (
                    (f"/{BUCKET}/2026", f"/{OWN}/2026"), (f"/{BUCKET}/2026", f"/{BUCKET}/2027"), (f"/{BUCKET}/2026/11", f"/{BUCKET}/2026/12"),
                    (f"/{BUCKET}", "/elsewhere"), (f"/{BUCKET}/2026/11/ledger", f"/{OWN}/ledger"),
                ):
                    with self.assertRaises(OSError):
                        mount.rename(old, new)
                with self.assertRaises(OSError):
                    mount.rmdir(f"/{BUCKET}")
            self.assertEqual(self.client.get_object(Bucket=BUCKET, Key="2026/11/ledger", VersionId=version)["Body"].read(), b"true")
            self.assertEqual(self.client.get_object(Bucket=BUCKET, Key="2026/11/ledger")["Body"].read(), b"true")
        # A bucket without locks is as before, and one with them goes when it is empty.
        with libnfs.Mount(self.world.libnfs_url()) as mount:
            mount.mkdir(f"/{OWN}/a")
            mount.rename(f"/{OWN}/a", f"/{OWN}/b")
            mount.rmdir(f"/{OWN}/b")
        self.client.create_bucket(Bucket="locked", ObjectLockEnabledForBucket=True)
        self.client.delete_bucket(Bucket="locked")
        with libnfs.Mount(self.world.libnfs_url()) as mount:
            self.assertNotIn("locked", mount.names("/"))
