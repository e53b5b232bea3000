"""Every request that botocore knows: an operation that docs/reference/s3.md lists, with what is read of it, or refused with
nothing done."""

import datetime
import gzip
import json
import pathlib
import re
import urllib.parse

from lib import harness, libnfs, s3
from lib.s3worlds import S3Test

BUCKET, KEY, DATA = "photos", "a", b"as it was"
EXPIRY_SECONDS_MAX = 180
PATHS = {"/": "/", "/{Bucket}": "/BUCKET", "/{Bucket}/{Key+}": "/BUCKET/KEY"}
#: What all operations take, as the document says above its table.
OF_ALL = {"x-amz-request-payer"}
#: HTTP's, not S3's.
OF_HTTP = {"content-length"}
#: Its path is that of no bucket that could be.
NO_BUCKET = "WriteGetObjectResponse"


def documented(heading):
    """The cells of the table below a heading: sets of what is between backticks."""
    text = (harness.REPOSITORY / "docs" / "reference" / "s3.md").read_text(encoding="utf-8")
    lines = text.partition(f"\n{heading}\n")[2].splitlines()
    begin = next(index for index, line in enumerate(lines) if line.startswith("|"))
    rows = []
    for line in lines[begin + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([re.findall(r"`([^`]*)`", cell) for cell in line.strip("|").split("|")])
    return rows


class Supported:
    """The document's table."""

    def __init__(self):
        self.requests, self.query, self.headers = {}, {}, {}
        for (name, *_), (method, path, *chosen), query, headers in documented("## Requests"):
            self.requests[name] = (method, path, frozenset(chosen), "x-amz-copy-source" in headers)
            self.query[name], self.headers[name] = set(query), set(headers)
        self.refused = [name.rstrip("*") for row in documented("### Headers that are refused") for name in row[0]]
        self.documents = {root: set(paths) for (root, *_), paths in documented("### Documents")}

    def reads(self, operation, header):
        known = self.headers[operation] | OF_ALL
        return any(header.startswith(name[:-1]) if name.endswith("*") else header == name for name in known)

    def knows_element(self, root, path):
        """Whether an element is read, or refused by name."""
        known = self.documents[root]
        return path in known or any(path.startswith(name[:-1]) for name in known if name.endswith("/*"))


def model():
    """What botocore knows of S3: its operations, and the shapes of their input."""
    folder = pathlib.Path(s3.boto3().__file__).parent.parent / "botocore" / "data" / "s3" / "2006-03-01"
    packed = folder / "service-2.json.gz"
    text = gzip.decompress(packed.read_bytes()) if packed.exists() else (folder / "service-2.json").read_bytes()
    return json.loads(text)


def elements(shapes, name, path="", is_flat=False):
    """The paths of the elements of a document that have none below them. Attributes are none.

    `is_flat`: the items of a list have the name of the list itself, and nothing is around them.
    """
    shape = shapes[name]
    if shape["type"] == "list":
        item = shape["member"]
        below = path if is_flat or shape.get("flattened") else f"{path}/{item.get('locationName', 'member')}"
        yield from elements(shapes, item["shape"], below)
    elif shape["type"] == "structure" and shape["members"]:
        for member, described in shape["members"].items():
            if "location" not in described and not described.get("xmlAttribute"):
                below = f"{path}/{described.get('locationName', member)}".lstrip("/")
                yield from elements(shapes, described["shape"], below, described.get("flattened", False))
    else:
        yield path


class Operation:
    """One operation of the model."""

    def __init__(self, name, described, shapes):
        self.name = name
        self.method = described["http"]["method"]
        self.uri, _, constants = described["http"]["requestUri"].partition("?")
        self.constants = [word for word in constants.split("&") if word]
        shape = shapes.get(described.get("input", {}).get("shape"), {"members": {}})
        self.members = shape["members"]
        self.required = set(shape.get("required", []))
        self.payload = shape.get("payload")
        body = self.members.get(self.payload, {})
        #: The root of its document, and the elements in that; None, if its body is none.
        self.document = None
        if body and shapes[body["shape"]]["type"] == "structure":
            self.document = body.get("locationName", self.payload), list(elements(shapes, body["shape"]))

    def located(self, where):
        return {member["locationName"]: name for name, member in self.members.items() if member.get("location") == where}

    def headers(self):
        whole = {name.lower() for name in self.located("header")}
        return whole | {f"{name.lower()}*" for name in self.located("headers")}

    def needed(self, where):
        return [wire for wire, name in self.located(where).items() if name in self.required]

    def words(self):
        """What is in the query of the plainest request."""
        return self.constants + [f"{name}=1" for name in self.needed("querystring")]

    def request(self):
        """What the document says of a request that is this operation."""
        chosen = self.constants + self.needed("querystring")
        return self.method, PATHS.get(self.uri), frozenset(chosen), "x-amz-copy-source" in self.headers()


class S3Model(S3Test):
    def setUp(self):
        super().setUp()
        self.serve(BUCKET)
        self.client.put_object(Bucket=BUCKET, Key=KEY, Body=DATA, Metadata={"kept": "1"}, Tagging="kept=1")
        self.signer = s3.Signer(self.port, self.keys)
        self.supported = Supported()
        described = model()
        self.operations = [Operation(name, it, described["shapes"]) for name, it in sorted(described["operations"].items())]
        self.assertGreater(len(self.operations), 90)

    def send(self, method, path, body=b"", **headers):
        made, _ = self.signer.sign(method, path, **headers)
        return self.signer.send(method, path, made | {"content-length": str(len(body))}, body)

    def send_operation(self, operation, words=(), document=None, **more):
        path = operation.uri.replace("{Bucket}", BUCKET).replace("{Key+}", KEY)
        query = "&".join([*operation.words(), *words])
        source = f"/{BUCKET}/{KEY}"
        values = {"x-amz-copy-source": source, "x-amz-rename-source": source, "x-amz-object-attributes": "ETag"}
        headers = {name: values.get(name.lower(), "1") for name in operation.needed("header")} | more
        headers = {name.lower().replace("-", "_"): value for name, value in headers.items()}
        body = document or (f"<{operation.payload}/>".encode() if operation.payload else b"")
        return self.send(operation.method, f"{path}?{query}" if query else path, body, **headers)

    def unchanged(self, what):
        got = self.client.get_object(Bucket=BUCKET, Key=KEY)
        self.assertEqual((got["Body"].read(), got["Metadata"]), (DATA, {"kept": "1"}), what)
        self.assertEqual([entry["Key"] for entry in self.client.list_objects_v2(Bucket=BUCKET)["Contents"]], [KEY], what)
        self.assertEqual([entry["Name"] for entry in self.client.list_buckets()["Buckets"]], [BUCKET], what)
        tags = self.client.get_object_tagging(Bucket=BUCKET, Key=KEY)["TagSet"]
        self.assertEqual(tags, [{"Key": "kept", "Value": "1"}], what)

    def test_operations_are_there_or_nothing_is_done(self):
        known = set(self.supported.requests.values())
        for operation in self.operations:
            if operation.name in self.supported.requests:
                self.assertEqual(operation.request(), self.supported.requests[operation.name])
                continue
            if operation.request() in known:
                # Another name for a request that is there.
                continue
            for words in ((), (f"x-id={operation.name}",)):
                status, text = self.send_operation(operation, words)
                want = (400, "InvalidBucketName") if operation.name == NO_BUCKET else (501, "NotImplemented")
                self.assertEqual((status, f"<Code>{want[1]}</Code>" in text), (want[0], True), (operation.name, words, text))
                self.unchanged(operation.name)
        # A name that nobody knows yet, in any place, with whatever else is said.
        for method, path in (
            ("PUT", f"/{BUCKET}/{KEY}?new"), ("PUT", f"/{BUCKET}/{KEY}?tagging&new"), ("DELETE", f"/{BUCKET}/{KEY}?new"),
            ("DELETE", f"/{BUCKET}?new"), ("PUT", "/other?new"), ("GET", f"/{BUCKET}?new"), ("GET", f"/{BUCKET}/{KEY}?new"),
            ("POST", f"/{BUCKET}?delete&new"), ("PUT", f"/{BUCKET}/{KEY}?acl&tagging"), ("DELETE", f"/{BUCKET}/{KEY}?uploads"),
            ("DELETE", f"/{BUCKET}?versionId=1"), ("PUT", f"/{BUCKET}/{KEY}?uploadId=1"), ("DELETE", f"/{BUCKET}?x-id=DeleteNothing"),
        ):
            status, text = self.send(method, path)
            self.assertEqual((status, "<Code>NotImplemented</Code>" in text), (501, True), (method, path, text))
            self.unchanged(path)

    def test_a_form_is_nothing_else(self):
        """What could be two requests is neither."""
        post = self.client.generate_presigned_post(BUCKET, "formed", ExpiresIn=60)
        edge = "edge-of-a-form"
        parts = [(f'name="{name}"', value) for name, value in post["fields"].items()] + [('name="file"; filename="x"', "data")]
        body = "".join(f"--{edge}\r\nContent-Disposition: form-data; {name}\r\n\r\n{value}\r\n" for name, value in parts)
        data = f"{body}--{edge}--\r\n".encode()
        headers = {"host": self.signer.host, "content-type": f"multipart/form-data; boundary={edge}", "content-length": str(len(data))}
        for more in ("?delete", "?new", "?acl", "?x-id=DeleteObjects"):
            status, text = self.signer.send("POST", f"/{BUCKET}{more}", headers, data)
            self.assertIn(status, (400, 501), (more, text))
            self.unchanged(more)
        status, text = self.signer.send("POST", f"/{BUCKET}", headers | {"x-amz-copy-source": f"/{BUCKET}/{KEY}"}, data)
        self.assertIn(status, (400, 403, 501), text)
        self.unchanged("a header")
        self.assertEqual(self.signer.send("POST", f"/{BUCKET}", headers, data)[0], 204)
        self.assertEqual(self.client.get_object(Bucket=BUCKET, Key="formed")["Body"].read(), b"data")

    def test_parameters_are_read_or_refused(self):
        refused_count = 0
        for operation in self.operations:
            if operation.name not in self.supported.requests:
                continue
            row = self.supported
            chosen = {word.partition("=")[0] for word in row.requests[operation.name][2]}
            for name in operation.located("querystring"):
                self.assertIn(name, row.query[operation.name] | chosen, operation.name)
            for name in sorted(operation.headers() - OF_HTTP):
                if row.reads(operation.name, name):
                    continue
                self.assertTrue(any(name.startswith(beginning) for beginning in row.refused), (operation.name, name))
                status, text = self.send_operation(operation, **{name: "1"})
                self.assertEqual(status, 501, (operation.name, name, text))
                if operation.method != "HEAD":
                    self.assertIn("<Code>NotImplemented</Code>", text)
                    self.assertIn(name, text)
                refused_count += 1
            self.unchanged(operation.name)
        self.assertGreater(refused_count, 50)

    def test_elements_are_read_or_refused(self):
        refused_count = 0
        for operation in self.operations:
            if operation.name not in self.supported.requests or operation.document is None:
                continue
            root, paths = operation.document
            self.assertIn(root, self.supported.documents, operation.name)
            for path in paths:
                if self.supported.knows_element(root, path):
                    continue
                names = [root, *path.split("/")]
                document = "".join(f"<{name}>" for name in names) + "1" + "".join(f"</{name}>" for name in reversed(names))
                answer = self.send_operation(operation, document=document.encode())
                self.refused(answer, 400, "MalformedXML")
                self.unchanged((operation.name, path))
                refused_count += 1
        self.assertGreater(refused_count, 10)

    def refused(self, answer, status, code):
        self.assertEqual((answer[0], f"<Code>{code}</Code>" in answer[1]), (status, True), answer)

    def test_owners_and_tokens(self):
        path, new = f"/{BUCKET}/{KEY}", f"/{BUCKET}/new"
        owner = "x_amz_expected_bucket_owner"
        self.assertEqual(self.send("GET", path, **{owner: "1000"})[0], 200)
        for method, place in (("GET", path), ("DELETE", path), ("PUT", new), ("DELETE", f"/{BUCKET}"), ("GET", f"/{BUCKET}")):
            self.refused(self.send(method, place, **{owner: "1001"}), 403, "AccessDenied")
        source = {"x_amz_copy_source": path}
        self.refused(self.send("PUT", new, **source, x_amz_source_expected_bucket_owner="7"), 403, "AccessDenied")
        self.refused(self.send("PUT", new, x_amz_security_token="token"), 400, "InvalidToken")
        self.refused(self.send("PUT", new, x_amz_storage_class="GLACIER"), 501, "NotImplemented")
        self.refused(self.send("PUT", new, x_amz_new_in_some_year="1"), 501, "NotImplemented")
        self.refused(self.send("PUT", new, content_range="bytes 0-1/2"), 501, "NotImplemented")
        self.unchanged("owners")
        self.assertEqual(self.send("PUT", new, **source, x_amz_source_expected_bucket_owner="1000")[0], 200)

    def test_presigned_urls_say_what_headers_would(self):
        put, _ = self.signer.presign("PUT", f"/{BUCKET}/new?x-amz-acl=public-read&x-amz-meta-b=2&x-amz-storage-class=STANDARD")
        answer = self.signer.send("PUT", put, {"host": self.signer.host, "content-length": "1"}, b"1")
        self.assertEqual(answer[0], 200, answer)
        self.assertEqual(self.client.head_object(Bucket=BUCKET, Key="new")["Metadata"], {"b": "2"})
        grants = self.client.get_object_acl(Bucket=BUCKET, Key="new")["Grants"]
        self.assertEqual([grant["Permission"] for grant in grants], ["FULL_CONTROL", "READ"])
        empty = urllib.parse.quote("AAAAAA==", safe="")
        for word, code in (
            (f"x-amz-checksum-crc32={empty}&x-amz-sdk-checksum-algorithm=CRC32", (400, "BadDigest")),
            ("x-amz-server-side-encryption=AES256", (501, "NotImplemented")), ("x-amz-new=1", (501, "NotImplemented")),
            ("encryption", (501, "NotImplemented")), ("x-id=GetObject", (501, "NotImplemented")),
        ):
            put, _ = self.signer.presign("PUT", f"/{BUCKET}/{KEY}?{word}")
            self.refused(self.signer.send("PUT", put, {"host": self.signer.host, "content-length": "1"}, b"1"), *code)
        self.client.delete_object(Bucket=BUCKET, Key="new")
        self.unchanged("presigned")

    def test_documents_are_what_was_sent(self):
        tagging = b"<Tagging><TagSet><Tag><Key>new</Key><Value>1</Value></Tag></TagSet></Tagging>"
        policy = json.dumps({"Statement": {"Effect": "Allow", "Principal": "*", "Action": "s3:GetObject",
                                           "Resource": f"arn:aws:s3:::{BUCKET}/*"}}).encode()
        delete = f"<Delete><Object><Key>{KEY}</Key></Object></Delete>".encode()
        rule = b"<Rule><Status>Enabled</Status><Filter/><Expiration><Days>1</Days></Expiration></Rule>"
        lifecycle = b"<LifecycleConfiguration>" + rule + b"</LifecycleConfiguration>"
        for method, path, body in (
            ("PUT", f"/{BUCKET}/{KEY}?tagging", tagging), ("PUT", f"/{BUCKET}?policy", policy), ("POST", f"/{BUCKET}?delete", delete),
            ("PUT", f"/{BUCKET}?lifecycle", lifecycle), ("PUT", f"/{BUCKET}?tagging", tagging),
        ):
            for header, value in (
                ("content_md5", "1B2M2Y8AsgTpgAmY7PhCfg=="), ("x_amz_checksum_crc32", "AAAAAA=="),
                ("x_amz_checksum_sha256", "47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU="),
            ):
                self.refused(self.send(method, path, body, **{header: value}), 400, "BadDigest")
            self.refused(self.send(method, path, body, content_md5="AAAA"), 400, "InvalidDigest")
            self.refused(self.send(method, path, body, x_amz_sdk_checksum_algorithm="CRC32"), 400, "InvalidRequest")
            self.refused(self.send(method, path, body, x_amz_checksum_xxhash64="AAAAAAAAAAA="), 501, "NotImplemented")
        for method, path, body in (
            ("PUT", f"/{BUCKET}/{KEY}?tagging", tagging.replace(b"<TagSet>", b"<TagSet><Unread/>")),
            ("PUT", f"/{BUCKET}/{KEY}?tagging", tagging.replace(b"new", b"<![CDATA[new]]>")),
            ("POST", f"/{BUCKET}?delete", delete.replace(b"</Object>", b"<Size>1</Size></Object>")),
            ("PUT", f"/{BUCKET}?lifecycle", lifecycle.replace(b"<Filter/>", b"<Filter><Prefix><![CDATA[logs/]]></Prefix></Filter>")),
            ("PUT", f"/{BUCKET}?lifecycle", lifecycle.replace(b"<Filter/>", b"")),
            ("PUT", f"/{BUCKET}?lifecycle", lifecycle.replace(b"<Filter/>", b"<Filter><And/></Filter>")),
            ("PUT", f"/{BUCKET}?lifecycle", lifecycle.replace(b"<Filter/>", b"<Filters/>")),
            ("PUT", f"/{BUCKET}?lifecycle", lifecycle.replace(b">1<", b">1 year<")),
            ("PUT", f"/{BUCKET}?object-lock", b"<ObjectLockConfiguration><Rule><DefaultRetentions/></Rule></ObjectLockConfiguration>"),
            ("PUT", f"/{BUCKET}?versioning", b"<VersioningConfiguration><Statuz>Enabled</Statuz></VersioningConfiguration>"),
            ("PUT", "/other", b"<CreateBucketConfiguration><Tags/></CreateBucketConfiguration>"),
        ):
            self.refused(self.send(method, path, body), 400, "MalformedXML")
        grant = b"<Grant><Permission>READ</Permission></Grant>"
        acl = b"<AccessControlPolicy><AccessControlList>" + grant + b"</AccessControlList></AccessControlPolicy>"
        for path in (f"/{BUCKET}?acl", f"/{BUCKET}/{KEY}?acl"):
            self.refused(self.send("PUT", path, acl), 400, "MalformedACLError")
            self.refused(self.send("PUT", path, b"<AccessControlPolicy/>"), 400, "MalformedACLError")
            self.refused(self.send("PUT", path, b"<AccessControlPolicy/>", x_amz_acl="private"), 400, "InvalidRequest")
        self.refused(self.send("DELETE", f"/{BUCKET}/{KEY}?versionId="), 400, "InvalidArgument")
        self.refused(self.send("PUT", f"/{BUCKET}/{KEY}", b"new", if_none_match=""), 400, "InvalidArgument")
        elsewhere = b"<CreateBucketConfiguration><LocationConstraint>eu-west-1</LocationConstraint></CreateBucketConfiguration>"
        self.refused(self.send("PUT", "/other", elsewhere), 400, "IllegalLocationConstraintException")
        with self.assertRaises(s3.errors().ClientError):
            self.client.get_bucket_lifecycle_configuration(Bucket=BUCKET)
        self.unchanged("documents")

    def ends(self, code, make):
        """Makes a request that ends with an error of a code, or with none."""
        try:
            make()
            self.assertIsNone(code)
        except s3.errors().ClientError as error:
            self.assertEqual(error.response["Error"]["Code"], code, error)

    def test_conditions_of_copies(self):
        head = self.client.head_object(Bucket=BUCKET, Key=KEY)
        etag, changed = head["ETag"], head["LastModified"]
        source = {"Bucket": BUCKET, "Key": KEY}
        upload = self.client.create_multipart_upload(Bucket=BUCKET, Key="parts")["UploadId"]
        part = {"Bucket": BUCKET, "Key": "parts", "UploadId": upload, "PartNumber": 1, "CopySource": source}
        past = changed - datetime.timedelta(days=365)
        failed = "PreconditionFailed"
        for condition, code in (
            ({"CopySourceIfMatch": etag}, None), ({"CopySourceIfMatch": '"0123"'}, failed),
            ({"CopySourceIfNoneMatch": '"0123"'}, None), ({"CopySourceIfNoneMatch": etag}, failed),
            ({"CopySourceIfModifiedSince": past}, None), ({"CopySourceIfModifiedSince": changed}, failed),
            ({"CopySourceIfUnmodifiedSince": changed}, None), ({"CopySourceIfUnmodifiedSince": past}, failed),
        ):
            self.ends(code, lambda: self.client.upload_part_copy(**part, **condition))
            self.ends(code, lambda: self.client.copy_object(Bucket=BUCKET, Key="copy", CopySource=source, **condition))
        self.client.abort_multipart_upload(Bucket=BUCKET, Key="parts", UploadId=upload)
        # What is there at the target.
        self.client.put_object(Bucket=BUCKET, Key="copy", Body=b"there")
        there = self.client.head_object(Bucket=BUCKET, Key="copy")["ETag"]
        for headers, status in (
            ({"if_none_match": "*"}, 412), ({"if_match": etag}, 412), ({"if_match": '"half'}, 400), ({"if_match": there}, 200),
        ):
            answer = self.send("PUT", f"/{BUCKET}/copy", x_amz_copy_source=f"/{BUCKET}/{KEY}", **headers)
            self.assertEqual(answer[0], status, (headers, answer))
            want = DATA if status == 200 else b"there"
            self.assertEqual(self.client.get_object(Bucket=BUCKET, Key="copy")["Body"].read(), want)
        answer = self.send("PUT", f"/{BUCKET}/second", x_amz_copy_source=f"/{BUCKET}/{KEY}", if_none_match="*")
        self.assertEqual(answer[0], 200, answer)
        made = self.client.copy_object(Bucket=BUCKET, Key="third", CopySource=source, ChecksumAlgorithm="SHA256")
        got = self.client.head_object(Bucket=BUCKET, Key="third", ChecksumMode="ENABLED")
        self.assertEqual(made["CopyObjectResult"]["ChecksumSHA256"], got["ChecksumSHA256"])

    def test_what_is_said_of_an_object_of_parts(self):
        place = {"Bucket": BUCKET, "Key": "parts"}
        upload = self.client.create_multipart_upload(**place, ChecksumAlgorithm="CRC32", ChecksumType="FULL_OBJECT")["UploadId"]
        sent = self.client.upload_part(**place, UploadId=upload, PartNumber=1, Body=DATA, ChecksumAlgorithm="CRC32")
        part = {"PartNumber": 1, "ETag": sent["ETag"], "ChecksumCRC32": sent["ChecksumCRC32"]}
        wanted = place | {"UploadId": upload, "MultipartUpload": {"Parts": [part]}}
        whole = sent["ChecksumCRC32"]
        for said, code in (
            ({"MpuObjectSize": len(DATA) + 1}, "InvalidRequest"), ({"ChecksumType": "COMPOSITE"}, "InvalidRequest"),
            ({"ChecksumSHA256": "47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU="}, "InvalidRequest"), ({"ChecksumCRC32": "AAAAAA=="}, "BadDigest"),
            ({"MpuObjectSize": len(DATA), "ChecksumType": "FULL_OBJECT", "ChecksumCRC32": whole}, None),
        ):
            self.ends(code, lambda: self.client.complete_multipart_upload(**wanted, **said))
        self.assertEqual(self.client.get_object(**place)["Body"].read(), DATA)

    def test_what_is_read_of_a_read(self):
        self.client.put_object(Bucket=BUCKET, Key="b", Body=b"0123456789", Expires="Thu, 01 Dec 2033 16:00:00 GMT")
        head = self.client.head_object(Bucket=BUCKET, Key="b")
        self.assertEqual(head["ExpiresString"], "Thu, 01 Dec 2033 16:00:00 GMT")
        told = {"ResponseContentType": "text/plain", "ResponseExpires": "Fri, 01 Dec 2034 16:00:00 GMT"}
        for read in (self.client.head_object, self.client.get_object):
            got = read(Bucket=BUCKET, Key="b", **told)
            self.assertEqual((got["ContentType"], got["ExpiresString"]), ("text/plain", told["ResponseExpires"]))
        path = f"/{BUCKET}/b"
        for validator, text in ((head["ETag"], "23"), ('"0123"', "0123456789"), (f"W/{head['ETag']}", "0123456789")):
            self.assertEqual(self.send("GET", path, range="bytes=2-3", if_range=validator)[1], text)
        self.refused(self.send("GET", f"{path}?partNumber=1", range="bytes=2-3"), 400, "InvalidRequest")
        self.assertEqual(self.send("PUT", f"/{BUCKET}/c", b"1", x_amz_checksum_algorithm="SHA256")[0], 200)
        self.assertIn("ChecksumSHA256", self.client.head_object(Bucket=BUCKET, Key="c", ChecksumMode="ENABLED"))
        self.refused(self.send("DELETE", f"{path}?versionId=null", if_match=head["ETag"]), 400, "InvalidRequest")
        self.assertEqual(self.client.head_object(Bucket=BUCKET, Key="b")["ContentLength"], 10)

    def written(self, mount, key):
        """Whether a file was written over NFS; what went between its opening and that was not."""
        try:
            mount.write_file(f"/{BUCKET}/{key}", b"new")
        except OSError:
            return False
        return True

    def test_what_is_put_while_rules_are_followed_stays(self):
        """Objects are judged in the step that removes them: none that was acknowledged meanwhile goes."""
        count = 900
        old = {"Status": "Enabled", "Filter": {"Prefix": "old/"}, "Expiration": {"Days": 1}}
        for index in range(count):
            self.client.put_object(Bucket=BUCKET, Key=f"old/{index:04}", Body=b"x")
        written = [f"old/zz{index}" for index in range(3)]
        for key in written:
            self.client.put_object(Bucket=BUCKET, Key=key, Body=b"old")
        ten_days = 10 * 24 * 60 * 60
        with libnfs.Mount(self.world.libnfs_url()) as mount:
            for key in [f"old/{index:04}" for index in range(count)] + written:
                mount.utimes(f"/{BUCKET}/{key}", head_time(self.client) - ten_days)
            # Nobody can read or remove what is in here but its owner, who is another: it keeps no other object.
            mount.mkdir(f"/{BUCKET}/old/closed")
            mount.chmod(f"/{BUCKET}/old/closed", 0)
            self.client.put_bucket_lifecycle_configuration(Bucket=BUCKET, LifecycleConfiguration={"Rules": [old]})

            def keys():
                listed = self.client.list_objects_v2(Bucket=BUCKET, Prefix="old/")
                return [entry["Key"] for entry in listed.get("Contents", [])]

            harness.wait_until(lambda: len(keys()) < count, EXPIRY_SECONDS_MAX, "the first objects that go")
            # While the others go. What is gone already is put anew.
            self.client.put_object(Bucket=BUCKET, Key=written[0], Body=b"new")
            is_written = lambda: self.written(mount, written[1])
            harness.wait_until(is_written, EXPIRY_SECONDS_MAX, "a file that did not go while it was opened")
            self.client.put_object(Bucket=BUCKET, Key=written[2], Body=b"new")
            harness.wait_until(lambda: not any(key < "old/z" for key in keys()), EXPIRY_SECONDS_MAX, "all that is old")
            # Once more from the beginning.
            self.client.put_bucket_lifecycle_configuration(Bucket=BUCKET, LifecycleConfiguration={"Rules": [old | {"ID": "again"}]})
            self.client.put_object(Bucket=BUCKET, Key="old/last", Body=b"old")
            mount.utimes(f"/{BUCKET}/old/last", head_time(self.client) - ten_days)
            self.client.put_bucket_lifecycle_configuration(Bucket=BUCKET, LifecycleConfiguration={"Rules": [old]})
            harness.wait_until(lambda: "old/last" not in keys(), EXPIRY_SECONDS_MAX, "what is old by now")
        self.assertEqual(keys(), written)
        for key in written:
            self.assertEqual(self.client.get_object(Bucket=BUCKET, Key=key)["Body"].read(), b"new", key)


def head_time(client):
    """The server's time, in seconds since 1970."""
    return client.head_object(Bucket=BUCKET, Key=KEY)["LastModified"].timestamp()

