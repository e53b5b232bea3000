"""S3 by the clients that people use: the AWS CLI, rclone, boto3 over HTTPS and by names of hosts, browsers' forms.

`CAIRN_S3_TREE` names a folder to sync instead of a small one (`make test-s3` takes /usr/share/doc).
"""

import hashlib
import http.client
import json
import os
import pathlib
import shutil
import socket
import ssl
import subprocess
import unittest
import unittest.mock
import urllib.error
import urllib.request
import uuid

from lib import harness, libnfs, s3
from lib.worlds import WorldTest, digest_tree, make_tree

BUCKET = "photos"
CLIENT_SECONDS_MAX = 900
RELOAD_SECONDS_MAX = 90


class S3Clients(WorldTest):
    def s3_server(self, *flags):
        self.port = harness.next_port()
        self.world = self.server(1, ["--listen-s3", f"127.0.0.1:{self.port}", *flags])
        self.world.cairn("bucket", "create", BUCKET, "--uid", 1000, "--gid", 100)
        self.keys = s3.Keys(self.world, uid=1000, gid=100)

    def environment(self):
        # rclone cannot be told of certificates so.
        inherited = {name: value for name, value in os.environ.items() if name != "AWS_CA_BUNDLE"}
        return inherited | {
            "AWS_ACCESS_KEY_ID": self.keys.id, "AWS_SECRET_ACCESS_KEY": self.keys.secret, "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_CONFIG_FILE": str(self.scratch / "none"), "AWS_SHARED_CREDENTIALS_FILE": str(self.scratch / "none"),
            "AWS_EC2_METADATA_DISABLED": "true", "RCLONE_CONFIG": str(self.scratch / "rclone.conf"),
        }

    def run_client(self, *words):
        done = subprocess.run(
            [str(word) for word in words], env=self.environment(), capture_output=True, text=True, timeout=CLIENT_SECONDS_MAX,
            stdin=subprocess.DEVNULL,
        )
        self.assertEqual(done.returncode, 0, f"{words}: {done.stdout[-2000:]}{done.stderr[-4000:]}")
        return done.stdout

    def tree(self):
        """A folder, and what S3 can hold of it: no links, no empty folders, no modes."""
        wanted = os.environ.get("CAIRN_S3_TREE")
        root = pathlib.Path(wanted) if wanted else make_tree(self.scratch / "tree")
        return root, self.contents(root)

    def contents(self, root):
        return {path: found[2:] for path, found in digest_tree(root).items() if found[0] == "file"}

    def test_aws_cli_syncs_a_tree_up_and_down(self):
        self.s3_server()
        root, wanted = self.tree()
        aws = [*s3.aws_cli(), "--endpoint-url", f"http://127.0.0.1:{self.port}", "s3"]
        self.run_client(*aws, "sync", "--no-follow-symlinks", "--only-show-errors", root, f"s3://{BUCKET}/tree")
        down = self.scratch / "down"
        self.run_client(*aws, "sync", "--only-show-errors", f"s3://{BUCKET}/tree", down)
        self.assertEqual(self.contents(down), wanted)
        # Nothing has changed, so nothing is sent.
        self.assertEqual(self.run_client(*aws, "sync", "--no-follow-symlinks", "--size-only", root, f"s3://{BUCKET}/tree").strip(), "")
        listed = self.run_client(*aws, "ls", "--recursive", "--summarize", f"s3://{BUCKET}/tree/")
        self.assertIn(f"Total Objects: {len(wanted)}", listed)
        # The same over NFS: nothing but files.
        some = sorted(wanted)[:: max(1, len(wanted) // 50)]
        with libnfs.Mount(self.world.libnfs_url()) as mount:
            for path in some:
                data = mount.read_file(f"/{BUCKET}/tree/{path}")
                self.assertEqual((len(data), hashlib.sha256(data).hexdigest()), wanted[path], path)
        self.run_client(*aws, "rm", "--recursive", "--only-show-errors", f"s3://{BUCKET}/tree")
        self.run_client(*aws, "rb", f"s3://{BUCKET}")

    @unittest.skipUnless(shutil.which("rclone"), "rclone is not installed")
    def test_rclone_copies_and_checks_a_tree(self):
        self.s3_server()
        root, wanted = self.tree()
        remote = (
            f":s3,provider=Other,env_auth=true,force_path_style=true,endpoint='http://127.0.0.1:{self.port}',"
            f"upload_cutoff=5M,chunk_size=5M:{BUCKET}/tree"
        )
        self.run_client("rclone", "copy", "--retries", 1, root, remote)
        self.run_client("rclone", "check", "--download", root, remote)
        down = self.scratch / "down"
        self.run_client("rclone", "copy", "--retries", 1, remote, down)
        self.assertEqual(self.contents(down), wanted)
        self.run_client("rclone", "purge", remote)
        client = s3.client(self.port, self.keys)
        self.assertEqual(client.list_objects_v2(Bucket=BUCKET)["KeyCount"], 0)

    @unittest.skipUnless(shutil.which("restic"), "restic is not installed")
    def test_restic_backs_up_and_restores_a_tree(self):
        self.s3_server()
        root, wanted = self.tree()
        secret = self.scratch / "restic-password"
        secret.write_text("of the repository")
        cache = ("--cache-dir", self.scratch / "restic-cache")
        restic = ("restic", *cache, "-r", f"s3:http://127.0.0.1:{self.port}/{BUCKET}/backup", "-p", secret, "-q")
        self.run_client(*restic, "init")
        self.run_client(*restic, "backup", root)
        # What changed only, and both are there.
        (self.scratch / "more").write_bytes(b"more" * 100_000)
        self.run_client(*restic, "backup", root, self.scratch / "more")
        self.run_client(*restic, "check", "--read-data")
        down = self.scratch / "restored"
        self.run_client(*restic, "restore", "latest", "--target", down)
        self.assertEqual(self.contents(pathlib.Path(f"{down}{root}")), wanted)
        self.run_client(*restic, "forget", "--keep-last", 1, "--prune")
        self.run_client(*restic, "check", "--read-data")

    @unittest.skipUnless(shutil.which("s3fs") and os.access("/dev/fuse", os.W_OK), "s3fs cannot mount here")
    def test_s3fs_mounts_a_bucket(self):
        self.s3_server()
        root = make_tree(self.scratch / "tree")
        wanted = self.contents(root)
        secret = self.scratch / "s3fs-password"
        secret.write_text(f"{self.keys.id}:{self.keys.secret}")
        secret.chmod(0o600)
        mounted = self.scratch / "mounted"
        mounted.mkdir()
        options = f"url=http://127.0.0.1:{self.port},use_path_request_style,passwd_file={secret}"
        self.run_client("s3fs", BUCKET, mounted, "-o", options)
        try:
            shutil.copytree(root, mounted / "copy", symlinks=True, ignore_dangling_symlinks=True)
            self.assertEqual(self.contents(mounted / "copy"), wanted)
            (mounted / "copy").rename(mounted / "moved")
            self.assertEqual(self.contents(mounted / "moved"), wanted)
            shutil.rmtree(mounted / "moved")
            self.assertEqual(list(mounted.iterdir()), [])
        finally:
            subprocess.run(["umount", str(mounted)], check=True)

    def shown(self):
        """The certificate that a new connection sees."""
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        with socket.create_connection(("127.0.0.1", self.port), 20) as stream, context.wrap_socket(stream) as tls:
            return ssl.DER_cert_to_PEM_cert(tls.getpeercert(binary_form=True) or b"")

    @unittest.skipUnless(shutil.which("openssl"), "openssl is not installed")
    def test_https_with_a_certificate_that_changes(self):
        first, second = s3.certificate(self.scratch, "first"), s3.certificate(self.scratch, "second")
        live = [self.scratch / "live.crt", self.scratch / "live.key"]
        for source, target in zip(first, live):
            shutil.copy(source, target)
        self.s3_server("--s3-certificate", str(live[0]), "--s3-key", str(live[1]))
        client = s3.client(self.port, self.keys, scheme="https", verify=str(first[0]))
        data = os.urandom(3 << 20)
        client.put_object(Bucket=BUCKET, Key="a", Body=data)
        self.assertEqual(client.get_object(Bucket=BUCKET, Key="a")["Body"].read(), data)
        # Clients send checksums behind the bytes then, in chunks: that is no encoding of the object.
        self.assertNotIn("ContentEncoding", client.head_object(Bucket=BUCKET, Key="a"))
        client.put_object(Bucket=BUCKET, Key="packed", Body=data, ContentEncoding="gzip")
        self.assertEqual(client.head_object(Bucket=BUCKET, Key="packed")["ContentEncoding"], "gzip")
        # Who speaks HTTP is not understood, and harms nobody.
        with self.assertRaises((OSError, http.client.HTTPException)):
            urllib.request.urlopen(f"http://127.0.0.1:{self.port}/", timeout=20)
        # A key that is not the certificate's is not taken; the one before is served on.
        shutil.copy(second[0], live[0])
        harness.wait_until(lambda: "cannot be used; the server keeps" in self.world.log_path.read_text(), RELOAD_SECONDS_MAX, "a complaint")
        self.assertEqual(self.shown(), first[0].read_text())
        shutil.copy(second[1], live[1])
        harness.wait_until(lambda: self.shown() == second[0].read_text(), RELOAD_SECONDS_MAX, "the new certificate")
        # Connections that began before go on.
        self.assertEqual(client.get_object(Bucket=BUCKET, Key="a")["Body"].read(), data)
        renewed = s3.client(self.port, self.keys, scheme="https", verify=str(second[0]))
        self.assertEqual(renewed.head_object(Bucket=BUCKET, Key="a")["ContentLength"], len(data))
        self.world.kill()
        live[1].write_text("no key")
        done = subprocess.run(self.world.argv(), capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("the private key is no PEM", done.stderr + done.stdout)

    def test_names_of_hosts_are_buckets(self):
        self.s3_server("--s3-domain", "s3.example.org")
        # Not every system knows that all names below localhost are this machine.
        look_up = socket.getaddrinfo
        here = unittest.mock.patch("socket.getaddrinfo", lambda host, *rest, **more: look_up("127.0.0.1", *rest, **more))
        self.enterContextHere(here)
        client = s3.client(self.port, self.keys, host="localhost", s3={"addressing_style": "virtual"})
        client.put_object(Bucket=BUCKET, Key="a/b", Body=b"by name")
        self.assertEqual(client.get_object(Bucket=BUCKET, Key="a/b")["Body"].read(), b"by name")
        self.assertEqual([entry["Key"] for entry in client.list_objects_v2(Bucket=BUCKET)["Contents"]], ["a/b"])
        self.assertIn(BUCKET, [entry["Name"] for entry in client.list_buckets()["Buckets"]])
        client.put_object_acl(Bucket=BUCKET, Key="a/b", ACL="public-read")
        for host, path, status in (
            (f"{BUCKET}.s3.example.org", "/a/b", 200), (f"{BUCKET}.s3.example.org:{self.port}", "/a/b", 200),
            ("s3.example.org", f"/{BUCKET}/a/b", 200), ("other.name", f"/{BUCKET}/a/b", 200), (f"{BUCKET}.other.name", "/abc/b", 403),
        ):
            request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", headers={"Host": host})
            try:
                with urllib.request.urlopen(request, timeout=20) as answer:
                    got = answer.status
            except urllib.error.HTTPError as error:
                got = error.code
            self.assertEqual(got, status, host)

    def test_presigned_urls(self):
        self.s3_server()
        client = s3.client(self.port, self.keys, signature_version="s3v4")
        place = {"Bucket": BUCKET, "Key": "a b/ü+c"}
        url = client.generate_presigned_url("put_object", place, ExpiresIn=60)
        with urllib.request.urlopen(urllib.request.Request(url, method="PUT", data=b"data"), timeout=20) as answer:
            self.assertEqual(answer.status, 200)
        url = client.generate_presigned_url("get_object", place, ExpiresIn=60)
        with urllib.request.urlopen(url, timeout=20) as answer:
            self.assertEqual(answer.read(), b"data")
        for wrong in (url.replace("%20b", "%20c"), url.replace("X-Amz-Expires=60", "X-Amz-Expires=6000"), url[:-1] + ("1" if url[-1] == "0" else "0")):
            with self.assertRaises(urllib.error.HTTPError) as caught:
                urllib.request.urlopen(wrong, timeout=20)
            self.assertEqual(caught.exception.code, 403, wrong)
        over = client.generate_presigned_url("get_object", place, ExpiresIn=1)

        def is_over():
            try:
                urllib.request.urlopen(over, timeout=20)
            except urllib.error.HTTPError as error:
                return error.code == 403
            return False

        harness.wait_until(is_over, RELOAD_SECONDS_MAX, "the end of a signature")

    def test_our_own_benchmark(self):
        self.s3_server()
        out = self.scratch / "result.json"
        target = f"s3://{self.keys.id}:{self.keys.secret}@127.0.0.1:{self.port}/{BUCKET}"
        words = ["bench", "objects", target, "--size", "4KiB,2MiB", "-n", "6", "-c", "3", "--operations",
                 "put,get,list,mixed,delete,delete-many", "--out", str(out), "--json"]
        done = subprocess.run(
            [str(harness.cairn_path()), *words], capture_output=True, text=True, timeout=CLIENT_SECONDS_MAX, stdin=subprocess.DEVNULL
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        result = json.loads(out.read_text())
        self.assertNotIn(self.keys.secret, out.read_text() + done.stdout + done.stderr)
        self.assertEqual([phase["errors"] for phase in result["phases"]], [0] * 12)
        self.assertEqual([phase["operations"] for phase in result["phases"]], [18] * 12)
        units = {figure["title"].partition(" ")[0]: figure["unit"] for figure in result["summary"] if "2" in figure["title"]}
        self.assertEqual((units["put"], units["get"], units["list"]), ("MB/s", "MB/s", "ops/s"))
        # Nothing is left of it, and a bucket that holds something is left alone.
        client = s3.client(self.port, self.keys)
        self.assertEqual(client.list_objects_v2(Bucket=BUCKET)["KeyCount"], 0)
        client.put_object(Bucket=BUCKET, Key="mine", Body=b"x")
        done = subprocess.run([str(harness.cairn_path()), *words], capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("is not empty", done.stderr)

    def form(self, post, data, **more):
        """Sends a form as a browser does; the status."""
        edge = uuid.uuid4().hex
        parts = b""
        for name, value in (post["fields"] | more).items():
            parts += f'--{edge}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode()
        parts += f'--{edge}\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n\r\n'.encode() + data
        parts += f"\r\n--{edge}--\r\n".encode()
        headers = {"Content-Type": f"multipart/form-data; boundary={edge}"}
        request = urllib.request.Request(post["url"], method="POST", data=parts, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                return answer.status
        except urllib.error.HTTPError as error:
            return error.code

    def test_forms_with_a_policy(self):
        self.s3_server()
        client = s3.client(self.port, self.keys)
        limits = [["content-length-range", 1, 100], ["starts-with", "$key", "forms/"]]
        post = client.generate_presigned_post(BUCKET, "forms/a", Conditions=limits, ExpiresIn=60)
        self.assertIn(self.form(post, b"by a form"), (200, 201, 204))
        self.assertEqual(client.get_object(Bucket=BUCKET, Key="forms/a")["Body"].read(), b"by a form")
        # What the policy does not say, and what it forbids.
        self.assertIn(self.form(post, b"x" * 101), (400, 403))
        self.assertIn(self.form(post, b"x", key="other/a"), (400, 403))
        self.assertIn(self.form(post, b"x", policy=post["fields"]["policy"][:-8]), (400, 403))
        self.assertEqual([entry["Key"] for entry in client.list_objects_v2(Bucket=BUCKET)["Contents"]], ["forms/a"])
