"""What buckets are set to, by boto3: who may read them, pages of other servers, tags, objects that go by themselves."""

import contextlib
import datetime
import http.client
import json
import socket
import time
import urllib.error
import urllib.request

from lib import harness, libnfs, s3
from lib.s3worlds import S3Test
from lib.worlds import content

BUCKET = "photos"
EXPIRY_SECONDS_MAX = 120
DAY_SECONDS = 24 * 60 * 60
SLOW_BYTES = 2 << 20


class S3Buckets(S3Test):
    def s3_server(self, *flags):
        self.serve(BUCKET, flags=flags)

    def put(self, key, body=b"x", **more):
        return self.client.put_object(Bucket=BUCKET, Key=key, Body=body, **more)

    def nobody(self, path, method="GET", data=None, headers=None):
        """Status, headers and body of a request without a signature."""
        url = f"http://127.0.0.1:{self.port}/{path}"
        request = urllib.request.Request(url, method=method, data=data, headers=headers or {})
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                return answer.status, dict(answer.headers), answer.read()
        except urllib.error.HTTPError as error:
            return error.code, dict(error.headers), error.read()

    def status(self, *words, **more):
        return self.nobody(*words, **more)[0]

    def test_everybody_reads_what_an_acl_says(self):
        self.s3_server()
        self.put("private")
        self.put("public", b"for all", ACL="public-read")
        self.assertEqual(self.nobody(f"{BUCKET}/public")[2], b"for all")
        self.assertEqual(self.status(f"{BUCKET}/private"), 403)
        # Nobody learns what is not there.
        self.assertEqual(self.status(f"{BUCKET}/none"), 403)
        self.assertEqual(self.status("none/none"), 403)
        self.assertEqual(self.status(BUCKET), 403)
        self.assertEqual(self.status(f"{BUCKET}/public", method="PUT", data=b"no"), 403)
        self.assertEqual(self.status(f"{BUCKET}/public", method="DELETE"), 403)
        self.assertEqual(self.status(f"{BUCKET}/public?acl"), 403)
        grants = self.client.get_object_acl(Bucket=BUCKET, Key="public")["Grants"]
        self.assertEqual([grant["Permission"] for grant in grants], ["FULL_CONTROL", "READ"])
        self.client.put_object_acl(Bucket=BUCKET, Key="public", ACL="private")
        self.assertEqual(self.status(f"{BUCKET}/public"), 403)
        self.client.put_object_acl(Bucket=BUCKET, Key="private", ACL="public-read")
        self.assertEqual(self.status(f"{BUCKET}/private"), 200)
        # A bucket that everybody lists is not one whose objects everybody reads.
        self.client.put_bucket_acl(Bucket=BUCKET, ACL="public-read")
        status, _, page = self.nobody(BUCKET)
        self.assertEqual((status, b"<Key>public</Key>" in page), (200, True))
        self.assertEqual(self.status(f"{BUCKET}/public"), 403)
        grants = self.client.get_bucket_acl(Bucket=BUCKET)
        self.client.put_bucket_acl(Bucket=BUCKET, AccessControlPolicy={"Owner": grants["Owner"], "Grants": grants["Grants"][:1]})
        self.assertEqual(self.status(BUCKET), 403)
        with self.fails("NotImplemented", 501):
            self.client.put_bucket_acl(Bucket=BUCKET, ACL="public-read-write")
        with self.fails("NotImplemented", 501):
            self.put("a", ACL="authenticated-read")
        # Modes hold for everybody, too.
        with libnfs.Mount(self.world.libnfs_url()) as mount:
            mount.chmod(f"/{BUCKET}/private", 0o600)
        self.assertEqual(self.status(f"{BUCKET}/private"), 403)

    def policy(self, *statements):
        made = [{"Effect": effect, "Principal": who, "Action": action, "Resource": f"arn:aws:s3:::{BUCKET}{path}"}
                for effect, who, action, path in statements]
        self.client.put_bucket_policy(Bucket=BUCKET, Policy=json.dumps({"Version": "2012-10-17", "Statement": made}))

    def test_policies(self):
        self.s3_server()
        self.put("open/a", b"1")
        self.put("closed/a", b"2")
        with self.fails("NoSuchBucketPolicy", 404):
            self.client.get_bucket_policy(Bucket=BUCKET)
        self.policy(("Allow", "*", "s3:GetObject", "/open/*"))
        self.assertEqual(self.nobody(f"{BUCKET}/open/a")[2], b"1")
        self.assertEqual((self.status(f"{BUCKET}/closed/a"), self.status(BUCKET)), (403, 403))
        self.assertTrue(self.client.get_bucket_policy_status(Bucket=BUCKET)["PolicyStatus"]["IsPublic"])
        self.assertIn("open/*", self.client.get_bucket_policy(Bucket=BUCKET)["Policy"])
        self.policy(("Allow", "*", ["s3:ListBucket"], ""), ("Deny", {"AWS": self.keys.id}, "s3:Delete*", "/open/*"))
        self.assertEqual((self.status(BUCKET), self.status(f"{BUCKET}/open/a")), (200, 403))
        with self.fails("AccessDenied", 403):
            self.client.delete_object(Bucket=BUCKET, Key="open/a")
        refused = self.client.delete_objects(Bucket=BUCKET, Delete={"Objects": [{"Key": "open/a"}, {"Key": "closed/a"}]})
        self.assertEqual([entry["Code"] for entry in refused["Errors"]], ["AccessDenied"])
        self.assertEqual([entry["Key"] for entry in refused["Deleted"]], ["closed/a"])
        other = s3.client(self.port, s3.Keys(self.world, uid=1000, gid=100))
        other.delete_object(Bucket=BUCKET, Key="open/a")
        # What is only half understood is refused.
        for wrong in (
            {"Effect": "Allow", "Principal": "*", "Action": "s3:*", "Resource": "arn:aws:s3:::other/*"},
            {"Effect": "Allow", "Principal": "*", "Action": "s3:*", "Resource": f"arn:aws:s3:::{BUCKET}/*",
             "Condition": {"IpAddress": {"aws:SourceIp": "10.0.0.0/8"}}},
        ):
            with self.fails("MalformedPolicy", 400):
                self.client.put_bucket_policy(Bucket=BUCKET, Policy=json.dumps({"Statement": [wrong]}))
        for words in (["--read-only"], ["--bucket", BUCKET]):
            limited = s3.client(self.port, s3.Keys(self.world, *words, uid=1000, gid=100))
            with self.fails("AccessDenied", 403):
                limited.delete_bucket_policy(Bucket=BUCKET)
        # They are there after a restart.
        self.world.kill()
        self.world.start()
        self.assertEqual(self.status(BUCKET), 200)
        self.client.delete_bucket_policy(Bucket=BUCKET)
        self.assertEqual(self.status(BUCKET), 403)

    def test_pages_of_other_servers(self):
        self.s3_server()
        self.put("a", b"1", ACL="public-read")
        with self.fails("NoSuchCORSConfiguration", 404):
            self.client.get_bucket_cors(Bucket=BUCKET)
        ask = {"Origin": "https://www.example.org", "Access-Control-Request-Method": "PUT",
               "Access-Control-Request-Headers": "content-type, x-amz-date"}
        self.assertEqual(self.status(f"{BUCKET}/a", method="OPTIONS", headers=ask), 403)
        rules = [{"AllowedOrigins": ["https://*.example.org"], "AllowedMethods": ["GET", "PUT"], "AllowedHeaders": ["*"],
                  "ExposeHeaders": ["ETag"], "MaxAgeSeconds": 600}]
        self.client.put_bucket_cors(Bucket=BUCKET, CORSConfiguration={"CORSRules": rules})
        self.assertEqual(self.client.get_bucket_cors(Bucket=BUCKET)["CORSRules"], rules)
        status, headers, _ = self.nobody(f"{BUCKET}/a", method="OPTIONS", headers=ask)
        got = {name.lower(): value for name, value in headers.items()}
        self.assertEqual(status, 200)
        self.assertEqual(got["access-control-allow-origin"], ask["Origin"])
        self.assertEqual(got["access-control-allow-headers"], "content-type, x-amz-date")
        self.assertEqual(got["access-control-max-age"], "600")
        status, headers, body = self.nobody(f"{BUCKET}/a", headers={"Origin": ask["Origin"]})
        got = {name.lower(): value for name, value in headers.items()}
        self.assertEqual((status, body, got["access-control-expose-headers"]), (200, b"1", "ETag"))
        _, headers, _ = self.nobody(f"{BUCKET}/a", headers={"Origin": "https://elsewhere"})
        self.assertNotIn("access-control-allow-origin", {name.lower() for name in headers})
        with self.fails("InvalidRequest", 400):
            wrong = [{"AllowedOrigins": ["*"], "AllowedMethods": ["PATCH"]}]
            self.client.put_bucket_cors(Bucket=BUCKET, CORSConfiguration={"CORSRules": wrong})
        self.client.delete_bucket_cors(Bucket=BUCKET)
        self.assertEqual(self.status(f"{BUCKET}/a", method="OPTIONS", headers=ask), 403)

    def test_who_asked_for_what_is_logged_if_that_is_wanted(self):
        self.s3_server("--s3-audit")
        self.put("dir/a b", b"1", ACL="public-read")
        self.status(f"{BUCKET}/dir/a%20b")
        url = self.client.generate_presigned_url("get_object", {"Bucket": BUCKET, "Key": "none"}, ExpiresIn=60)
        self.status(url.partition(f"{self.port}/")[2])
        # A client may have its answer before the server has logged it.
        logged = lambda: [line for line in self.world.log_path.read_text().splitlines() if "audit" in line and "protocol" in line]
        harness.wait_until(lambda: len(logged()) >= 3, EXPIRY_SECONDS_MAX, "three lines of the log")
        lines = logged()
        self.assertEqual(len(lines), 3, lines)
        for line, wanted in zip(lines, (
            (self.keys.id, "PUT", f"/{BUCKET}/dir/a%20b", "200"), ("GET", f"/{BUCKET}/dir/a%20b", "200"), (self.keys.id, "GET", "none", "404"),
        )):
            self.assertTrue(all(word in line for word in wanted), line)
        self.assertNotIn("ignature", self.world.log_path.read_text())

    def test_tags_of_buckets(self):
        self.s3_server()
        with self.fails("NoSuchTagSet", 404):
            self.client.get_bucket_tagging(Bucket=BUCKET)
        tags = [{"Key": f"key{index}", "Value": "v"} for index in range(50)]
        self.client.put_bucket_tagging(Bucket=BUCKET, Tagging={"TagSet": tags})
        got = self.client.get_bucket_tagging(Bucket=BUCKET)["TagSet"]
        self.assertEqual(sorted(got, key=str), sorted(tags, key=str))
        with self.fails("InvalidTag", 400):
            self.client.put_bucket_tagging(Bucket=BUCKET, Tagging={"TagSet": [*tags, {"Key": "more", "Value": ""}]})
        self.client.delete_bucket_tagging(Bucket=BUCKET)
        with self.fails("NoSuchTagSet", 404):
            self.client.get_bucket_tagging(Bucket=BUCKET)

    def listed(self):
        return [entry["Key"] for entry in self.client.list_objects_v2(Bucket=BUCKET).get("Contents", [])]

    def set_rules(self, *rules):
        self.client.put_bucket_lifecycle_configuration(Bucket=BUCKET, LifecycleConfiguration={"Rules": list(rules)})

    def test_objects_and_uploads_go_by_themselves(self):
        self.s3_server()
        with self.fails("NoSuchLifecycleConfiguration", 404):
            self.client.get_bucket_lifecycle_configuration(Bucket=BUCKET)
        for key in ("logs/old", "logs/new", "logs/large", "logs/kept", "other/old"):
            self.put(key, b"x" * (2000 if key.endswith("large") else 10), Tagging="keep=yes" if key.endswith("kept") else "keep=no")
        # As old as a file may be made over NFS; that is what its age is.
        with libnfs.Mount(self.world.libnfs_url()) as mount:
            for key in ("logs/old", "logs/large", "logs/kept", "other/old"):
                mount.utimes(f"/{BUCKET}/{key}", time.time() - 3 * DAY_SECONDS)
        rule = {"ID": "old logs", "Status": "Enabled", "Expiration": {"Days": 2}, "Filter": {"And": {
            "Prefix": "logs/", "ObjectSizeLessThan": 1000}}}
        self.set_rules(rule, {"ID": "off", "Status": "Disabled", "Expiration": {"Days": 1}, "Filter": {"Prefix": "other/"}})
        harness.wait_until(lambda: "logs/old" not in self.listed(), EXPIRY_SECONDS_MAX, "an object that is to go")
        harness.wait_until(lambda: "logs/kept" not in self.listed(), EXPIRY_SECONDS_MAX, "an object that is to go")
        self.assertEqual(self.listed(), ["logs/large", "logs/new", "other/old"])
        got = self.client.get_bucket_lifecycle_configuration(Bucket=BUCKET)["Rules"]
        self.assertEqual((got[0]["ID"], got[0]["Expiration"], got[1]["Status"]), ("old logs", {"Days": 2}, "Disabled"))
        upload = self.client.create_multipart_upload(Bucket=BUCKET, Key="logs/parts")["UploadId"]
        self.client.upload_part(Bucket=BUCKET, Key="logs/parts", UploadId=upload, PartNumber=1, Body=b"x")
        yesterday = datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(days=1)
        midnight = yesterday.replace(hour=0, minute=0, second=0, microsecond=0)
        self.set_rules({"Status": "Enabled", "Expiration": {"Date": midnight}, "Filter": {"Prefix": "other/"}},
                       {"Status": "Enabled", "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 1}, "Filter": {"Prefix": ""}})
        harness.wait_until(lambda: "other/old" not in self.listed(), EXPIRY_SECONDS_MAX, "an object that is to go")
        # It is not a day old.
        uploads = self.client.list_multipart_uploads(Bucket=BUCKET)["Uploads"]
        self.assertEqual([entry["UploadId"] for entry in uploads], [upload])
        for wrong, code in (
            ({"Status": "Enabled", "Filter": {"Prefix": ""}}, "MalformedXML"),
            ({"Status": "Enabled", "Filter": {"Prefix": ""}, "Expiration": {"Days": 0}}, "InvalidArgument"),
            ({"Status": "Enabled", "Filter": {"Prefix": ""}, "Transitions": [{"Days": 1, "StorageClass": "GLACIER"}]},
             "NotImplemented"),
        ):
            with self.fails(code):
                self.set_rules(wrong)
        self.client.delete_bucket_lifecycle(Bucket=BUCKET)
        with self.fails("NoSuchLifecycleConfiguration", 404):
            self.client.get_bucket_lifecycle_configuration(Bucket=BUCKET)

    @contextlib.contextmanager
    def half_sent(self, path, body):
        """A PUT whose head the server has read, and of whose body half is sent; gives what sends the rest and returns the answer."""
        headers, _ = s3.Signer(self.port, self.keys).sign("PUT", path)
        headers |= {"content-length": str(len(body)), "expect": "100-continue", "connection": "close"}
        head = f"PUT {path} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        with socket.create_connection(("127.0.0.1", self.port), EXPIRY_SECONDS_MAX) as stream:
            stream.sendall(head.encode() + b"\r\n")
            # It says so when it begins to take the body.
            self.assertIn(b" 100 ", stream.recv(4096))
            half = len(body) // 2
            stream.sendall(body[:half])

            def finish():
                stream.sendall(body[half:])
                answer = b""
                while more := stream.recv(1 << 16):
                    answer += more
                return answer

            yield finish

    def make_old(self, *keys):
        """Objects that are older than any rule of these tests allows."""
        for key in keys:
            self.put(key, b"old")
        with libnfs.Mount(self.world.libnfs_url()) as mount:
            for key in keys:
                mount.utimes(f"/{BUCKET}/{key}", time.time() - 3 * DAY_SECONDS)

    def test_what_replaces_an_object_stays_when_a_rule_takes_that_meanwhile(self):
        """The rule judges the old object while the new one comes slowly, as a whole or as a part; and both when they are there."""
        self.s3_server()
        rule = lambda name: {"ID": name, "Status": "Enabled", "Expiration": {"Days": 2}, "Filter": {"Prefix": "logs/"}}
        for kept in ("none", "versions"):
            if kept == "versions":
                self.client.put_bucket_versioning(Bucket=BUCKET, VersioningConfiguration={"Status": "Enabled"})
            # Objects are judged in the order of their keys.
            parts, whole, last = (f"logs/{name}-{kept}" for name in ("parts", "whole", "zz"))
            self.make_old(parts, whole, last)
            new = {key: content(key, SLOW_BYTES) for key in (parts, whole)}
            about = {"Bucket": BUCKET, "Key": parts, "UploadId": self.client.create_multipart_upload(Bucket=BUCKET, Key=parts)["UploadId"]}
            part_path = f"/{BUCKET}/{parts}?partNumber=1&uploadId={about['UploadId']}"
            with self.half_sent(f"/{BUCKET}/{whole}", new[whole]) as put, self.half_sent(part_path, new[parts]) as put_part:
                self.set_rules(rule("first"))
                gone = lambda: not {parts, whole, last} & set(self.listed())
                harness.wait_until(gone, EXPIRY_SECONDS_MAX, "that the old objects expire")
                for finish in (put, put_part):
                    answer = finish()
                    self.assertIn(b" 200 ", answer.partition(b"\r\n")[0], answer)
            tag = self.client.list_parts(**about)["Parts"][0]["ETag"]
            self.client.complete_multipart_upload(**about, MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": tag}]})
            # Another look, which takes what is old behind them.
            self.make_old(last)
            self.set_rules(rule("second"))
            harness.wait_until(lambda: last not in self.listed(), EXPIRY_SECONDS_MAX, "that another old object expires")
            for key in (parts, whole):
                got = self.client.get_object(Bucket=BUCKET, Key=key)["Body"].read()
                self.assertTrue(got == new[key], f"{key} is not what replaced the old one")
            self.client.delete_bucket_lifecycle(Bucket=BUCKET)

    def page(self, path, host=f"{BUCKET}.s3-website.localhost", method="GET"):
        """Status, where it leads to, type and text of a page of a website; redirections are not followed."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        with contextlib.closing(connection):
            connection.request(method, path, headers={"Host": f"{host}:{self.port}"})
            answer = connection.getresponse()
            return answer.status, answer.getheader("location"), answer.getheader("content-type"), answer.read().decode()

    def test_a_bucket_is_a_website(self):
        self.s3_server("--s3-domain", "s3.example.org")
        with self.fails("NoSuchWebsiteConfiguration", 404):
            self.client.get_bucket_website(Bucket=BUCKET)
        self.assertEqual(self.page("/")[0], 404)
        self.put("index.html", b"<h1>top</h1>", ContentType="text/html")
        self.put("dir a/index.html", b"below", ContentType="text/plain")
        self.put("closed", b"secret")
        self.put("404.html", b"nothing here", ContentType="text/html")
        site = {"IndexDocument": {"Suffix": "index.html"}, "ErrorDocument": {"Key": "404.html"}}
        self.client.put_bucket_website(Bucket=BUCKET, WebsiteConfiguration=site)
        got = self.client.get_bucket_website(Bucket=BUCKET)
        self.assertEqual((got["IndexDocument"], got["ErrorDocument"]), tuple(site.values()))
        # Nothing is shown that everybody may not read.
        self.assertEqual(self.page("/")[0], 403)
        self.policy(*(("Allow", "*", "s3:GetObject", f"/{name}") for name in ("index.html", "dir a/*", "404.html")))
        self.assertEqual(self.page("/"), (200, None, "text/html", "<h1>top</h1>"))
        self.assertEqual(self.page("/", f"{BUCKET}.s3-website.s3.example.org")[3], "<h1>top</h1>")
        self.assertEqual(self.page("/dir%20a/")[3], "below")
        self.assertEqual(self.page("/dir%20a")[:2], (302, "/dir%20a/"))
        self.assertEqual(self.page("/closed"), (403, None, "text/html", "nothing here"))
        self.assertEqual(self.page("/", method="HEAD")[::3], (200, ""))
        self.assertEqual(self.page("/", method="PUT")[0], 405)
        self.assertEqual(self.page("/?list-type=2")[3], "<h1>top</h1>")
        redirect = {"RedirectAllRequestsTo": {"HostName": "www.example.org", "Protocol": "https"}}
        self.client.put_bucket_website(Bucket=BUCKET, WebsiteConfiguration=redirect)
        self.assertEqual(self.page("/a?b=c")[:2], (301, "https://www.example.org/a?b=c"))
        for wrong, code in (
            ({"IndexDocument": {"Suffix": "a/b"}}, "InvalidArgument"),
            ({"RedirectAllRequestsTo": {"HostName": "a\r\nb"}}, "InvalidRequest"),
            ({}, "MalformedXML"),
        ):
            with self.fails(code):
                self.client.put_bucket_website(Bucket=BUCKET, WebsiteConfiguration=wrong)
        self.client.delete_bucket_website(Bucket=BUCKET)
        self.assertEqual(self.page("/")[0], 404)

    def test_changes_by_the_admin_api_are_logged_if_that_is_wanted(self):
        self.s3_server("--admin-audit")
        self.world.cairn("volume", "create", "other")
        self.world.cairn("volume", "list")
        self.world.cairn("class", "delete", "gold", check=False)
        logged = lambda: [line for line in self.world.log_path.read_text().splitlines() if "audit" in line and "admin" in line]

        def is_logged(method, path, status):
            of_it = [line for line in logged() if f"method={method}" in line and f"path={path}" in line.replace('"', "")]
            return any(status in line and "token" in line for line in of_it)

        for wanted in (("POST", "/api/v1/volumes", "201"), ("DELETE", "/api/v1/classes/gold", "404")):
            harness.wait_until(lambda wanted=wanted: is_logged(*wanted), EXPIRY_SECONDS_MAX, f"{wanted} is logged")
        self.assertFalse([line for line in logged() if "method=GET" in line])
