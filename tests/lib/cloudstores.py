"""Object stores of other clouds for tests of tiers: Azurite, Microsoft's stand-in for Azure Blob Storage, which
`scripts/setup azurite` installs, and one of our own for Google Cloud Storage.

Owns: starting and ending them, what is in them. Must not know: what is tested.

No emulator of Google Cloud Storage that can be installed here speaks its XML API with conditional writes, parts and lists
(fake-gcs-server and gcp-storage-emulator have the JSON API), so there is ours, written by
https://cloud.google.com/storage/docs/xml-api. It checks no signatures: what it accepts is set by the test.
"""

import base64
import email.utils
import hashlib
import hmac
import http.server
import json
import os
import pathlib
import subprocess
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
import xml.etree.ElementTree
from xml.sax.saxutils import escape

from lib import harness

START_SECONDS_MAX = 60


def fresh_key():
    return base64.b64encode(os.urandom(64)).decode()


class Azurite:
    """An account of Azure Blob Storage on this machine, with one container or more."""

    account = "store1"

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.port = harness.next_port()
        self.key = fresh_key()
        self.program = harness.set_up("azurite") / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
        self.process: subprocess.Popen | None = None

    def url(self, place):
        return f"az://{place}?account={self.account}&endpoint=http://127.0.0.1:{self.port}/{self.account}"

    def credentials(self, key=None):
        return f"# of {self.account}\nazure_storage_account_key = {key or self.key}\ncredential_host = 127.0.0.1:{self.port}\n"

    def start(self):
        environment = os.environ | {"AZURITE_ACCOUNTS": f"{self.account}:{self.key}"}
        words = ["--blobHost", "127.0.0.1", "--blobPort", self.port, "--location", self.folder, "--silent"]
        words += ["--skipApiVersionCheck", "--disableTelemetry", "--debug", f"{self.folder}.log"]
        # By name of the Node that is there.
        self.process = subprocess.Popen(
            ["node", str(self.program), *map(str, words)],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

        def answers():
            try:
                self.request("GET", "", {"comp": "list"})
                return True
            except urllib.error.HTTPError:
                return True
            except OSError:
                return False

        harness.wait_until(answers, START_SECONDS_MAX, "Azurite answers")

    def stop(self):
        if self.process:
            self.process.terminate()
            self.process.wait()
            self.process = None

    def request(self, method, path, query, headers=()):
        """A request that is signed with the account's key (https://learn.microsoft.com/rest/api/storageservices/authorize-with-shared-key)."""
        own = {"x-ms-date": email.utils.formatdate(usegmt=True), "x-ms-version": "2021-12-02"} | dict(headers)
        signed = "".join(f"{name}:{value}\n" for name, value in sorted(own.items()))
        resource = f"/{self.account}/{self.account}/{path}" + "".join(
            f"\n{name}:{value}" for name, value in sorted(query.items())
        )
        text = f"{method}{chr(10) * 12}{signed}{resource}"
        digest = hmac.new(base64.b64decode(self.key), text.encode(), hashlib.sha256).digest()
        own["Authorization"] = f"SharedKey {self.account}:{base64.b64encode(digest).decode()}"
        words = urllib.parse.urlencode(query)
        url = f"http://127.0.0.1:{self.port}/{self.account}/{path}?{words}"
        request = urllib.request.Request(url, method=method, headers=own)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.read()

    def make(self, container):
        self.request("PUT", container, {"restype": "container"})

    def names(self, container):
        listed = self.request("GET", container, {"restype": "container", "comp": "list"})
        return sorted(name.text or "" for name in xml.etree.ElementTree.fromstring(listed).iter("Name"))


class Google:
    """Google Cloud Storage, as far as its XML API is needed, in this process."""

    #: So many objects of a list come at a time.
    LIST_MAX = 3

    def __init__(self, host="127.0.0.1"):
        self.host = host
        self.port = harness.next_port()
        self.lock = threading.Lock()
        #: By bucket and name: the bytes, and the generation.
        self.buckets: dict[str, dict[str, tuple[bytes, int]]] = {}
        self.uploads: dict[str, dict[int, bytes]] = {}
        self.generation = 0
        self.conditional_count = 0
        #: Whether whoever asks may.
        self.is_allowed = True
        #: Reads of a mark wait for one another here, so that nobody knows of the other's.
        self.looks: threading.Barrier | None = None
        self.server: http.server.ThreadingHTTPServer | None = None

    def url(self, place):
        return f"gs://{place}?endpoint=http://{self.host}:{self.port}"

    def credentials(self, key="none"):
        account = {"type": "service_account", "client_email": "cairn@example.com", "private_key_id": key, "private_key": key}
        # It is no host of Google's.
        return json.dumps(account | {"disable_oauth": True, "credential_host": [f"{self.host}:{self.port}"]})

    def start(self):
        store = self

        class Handler(GoogleHandler):
            of = store

        self.server = http.server.ThreadingHTTPServer((self.host, self.port), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def stop(self):
        if self.server:
            self.server.shutdown()
            self.server.server_close()
            self.server = None

    def make(self, bucket):
        self.buckets[bucket] = {}

    def names(self, bucket):
        with self.lock:
            return sorted(self.buckets[bucket])


class GoogleHandler(http.server.BaseHTTPRequestHandler):
    of: Google
    protocol_version = "HTTP/1.1"
    timeout = 60

    def log_message(self, *_):
        pass

    def answer(self, status, body=b"", **headers):
        self.send_response(status)
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        for name, value in ({"Content-Length": len(body)} | headers).items():
            self.send_header(name, str(value))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def refuse(self, status, code):
        body = f"<?xml version='1.0' encoding='UTF-8'?><Error><Code>{code}</Code><Message>{code}.</Message></Error>"
        self.answer(status, body.encode(), Content_Type="application/xml")

    def handle_one(self):
        # It may be stopped while this connection lives on.
        if self.of.server is None:
            self.close_connection = True
            return
        url = urllib.parse.urlsplit(self.path)
        query = dict(urllib.parse.parse_qsl(url.query, keep_blank_values=True))
        bucket, _, name = url.path.lstrip("/").partition("/")
        name = urllib.parse.unquote(name)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if not self.of.is_allowed:
            self.refuse(403, "AccessDenied")
            return
        if bucket not in self.of.buckets:
            self.refuse(404, "NoSuchBucket")
            return
        if self.command == "GET" and name.endswith("cairn-tier.json") and (looks := self.of.looks):
            # The second look of each finds what is there.
            looks.wait(30)
        with self.of.lock:
            self.act(self.of.buckets[bucket], name, query, body)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = handle_one

    def act(self, objects, name, query, body):
        match self.command:
            case "GET" if not name:
                self.list(objects, query)
            case "GET" | "HEAD":
                self.get(objects, name)
            case "POST" if "uploads" in query:
                self.of.generation += 1
                upload = f"upload{self.of.generation}"
                self.of.uploads[upload] = {}
                answer = f"<InitiateMultipartUploadResult><UploadId>{upload}</UploadId></InitiateMultipartUploadResult>"
                self.answer(200, answer.encode())
            case "PUT" if "partNumber" in query:
                self.of.uploads[query["uploadId"]][int(query["partNumber"])] = body
                self.answer(200, ETag=f'"{hashlib.md5(body).hexdigest()}"')
            case "POST" if "uploadId" in query:
                wanted = [int(part.text or 0) for part in xml.etree.ElementTree.fromstring(body).iter() if part.tag.endswith("PartNumber")]
                parts = self.of.uploads.pop(query["uploadId"])
                self.put(objects, name, b"".join(parts[number] for number in wanted))
            case "PUT":
                generation = self.headers.get("x-goog-if-generation-match")
                self.of.conditional_count += generation is not None
                if generation is not None and int(generation) != objects.get(name, (b"", 0))[1]:
                    self.refuse(412, "PreconditionFailed")
                else:
                    self.put(objects, name, body)
            case "DELETE" if "uploadId" in query:
                self.of.uploads.pop(query["uploadId"], None)
                self.answer(204)
            case "DELETE" if objects.pop(name, None):
                self.answer(204)
            case _:
                self.refuse(404, "NoSuchKey")

    def put(self, objects, name, body):
        self.of.generation += 1
        objects[name] = (body, self.of.generation)
        tag = f'"{hashlib.md5(body).hexdigest()}"'
        answer = f"<CompleteMultipartUploadResult><ETag>{escape(tag)}</ETag></CompleteMultipartUploadResult>"
        self.answer(200, answer.encode(), ETag=tag, x_goog_generation=self.of.generation)

    def get(self, objects, name):
        if name not in objects:
            self.refuse(404, "NoSuchKey")
            return
        body, generation = objects[name]
        headers = {
            "ETag": f'"{hashlib.md5(body).hexdigest()}"',
            "Last_Modified": email.utils.formatdate(time.time(), usegmt=True),
            "x_goog_generation": generation,
        }
        wanted = self.headers.get("Range", "").removeprefix("bytes=")
        if not wanted:
            self.answer(200, body, **headers)
            return
        first, _, last = wanted.partition("-")
        begin, end = int(first), min(int(last or len(body) - 1) + 1, len(body))
        if begin >= len(body):
            self.refuse(416, "InvalidRange")
            return
        self.answer(206, body[begin:end], Content_Range=f"bytes {begin}-{end - 1}/{len(body)}", **headers)

    def list(self, objects, query):
        names = sorted(name for name in objects if name.startswith(query.get("prefix", "")))
        names = [name for name in names if name > query.get("continuation-token", "")]
        some = names[: self.of.LIST_MAX]
        entries = "".join(
            f"<Contents><Key>{escape(name)}</Key><Size>{len(objects[name][0])}</Size>"
            f"<LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>x</ETag></Contents>"
            for name in some
        )
        more = f"<NextContinuationToken>{escape(some[-1])}</NextContinuationToken>" if len(names) > len(some) else ""
        self.answer(200, f"<ListBucketResult>{entries}{more}</ListBucketResult>".encode())
