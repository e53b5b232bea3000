"""S3 clients that go on through whatever happens to the servers, and remember what was acknowledged.

Owns: which objects and versions must be there, and whose bytes they must have. Must not know: how servers are disturbed.

A request that got no answer, or one that says that the server does not know, is of unknown outcome. Its key is left alone from
then on, and what it was before and what it would be are both right. All others must be as they were acknowledged, over S3 and as
files.
"""

import random
import threading
import time

from lib import harness, s3
from lib.worlds import content

KEYS_PER_CLIENT = 12
SIZES_BYTES = (0, 100, 5_000, 70_000, 300_000)
PART_BYTES = 5 << 20
MULTIPART_EVERY = 40
# All clients want these names, each once; who gets an answer has it.
RACES_MAX = 100_000
WAIT_SECONDS = 0.1
# What says that the request was not carried out, whatever was asked for.
UNKNOWN_FROM_STATUS = 500


class Body:
    """The bytes of one put, and what comes with them; told apart from all others."""

    def __init__(self, name, sizes):
        self.name, self.sizes = name, sizes

    def parts(self):
        return [content(f"{self.name} {index}", size) for index, size in enumerate(self.sizes)]

    def data(self):
        return b"".join(self.parts())


class Client(threading.Thread):
    """Puts, overwrites, puts under conditions, completes uploads in parts, deletes; one request after the other."""

    def __init__(self, name, client, bucket, seed, races, pace_seconds):
        super().__init__(daemon=True)
        self.name, self.client, self.bucket = name, client, bucket
        self.random = random.Random(f"{seed} {name}")
        # Between two requests: how much load it is.
        self.pace_seconds = pace_seconds
        self.ended, self.failure = threading.Event(), None
        # What may be at each key: one thing if the last change was acknowledged, two if not. `None` is nothing.
        self.keys: dict[str, list] = {}
        self.etags: dict[str, str] = {}
        # Versions that were acknowledged and nobody has deleted, if the bucket keeps any.
        self.versions: list = []
        self.unknown: set[str] = set()
        self.races, self.won = races, {}
        self.acknowledged_count = self.unknown_count = 0

    def run(self):
        try:
            number = 0
            while not self.ended.is_set():
                self.step(number)
                number += 1
                self.ended.wait(self.pace_seconds)
        except Exception as failure:  # noqa: BLE001
            self.failure = failure

    def step(self, number):
        if number % 5 == 4:
            self.race(number // 5)
            return
        key = f"{self.name}/{number % 3}/{self.random.randrange(KEYS_PER_CLIENT)}"
        while key in self.unknown:
            # A name that no client has used.
            key += "x"
        there = self.keys.get(key, [None])[0]
        kind = self.random.random()
        if number % MULTIPART_EVERY == MULTIPART_EVERY - 1:
            self.change(key, Body(f"{key} {number}", (PART_BYTES, 1000)), self.put_in_parts)
        elif kind < 0.2 and there is not None:
            self.change(key, None, self.delete)
        elif kind < 0.4:
            # It holds only if there is nothing.
            self.change(key, self.body(key, number), lambda key, body: self.put(key, body, IfNoneMatch="*"), there is None)
        elif kind < 0.5 and there is not None:
            etag = self.etags[key]
            self.change(key, self.body(key, number), lambda key, body: self.put(key, body, IfMatch=etag))
        elif kind < 0.55 and there is not None:
            self.change(key, self.body(key, number), lambda key, body: self.put(key, body, IfMatch='"0"'), False)
        else:
            self.change(key, self.body(key, number), self.put)

    def body(self, key, number):
        return Body(f"{key} {number}", (self.random.choice(SIZES_BYTES),))

    def change(self, key, body, do, holds=True):
        before = self.keys.get(key, [None])[0]
        try:
            answer = do(key, body)
        except Exception as error:  # noqa: BLE001
            if not holds and self.code(error) == "PreconditionFailed":
                self.acknowledged_count += 1
                return
            self.require_unknown(error, key)
            # Also one whose condition does not hold may be sent by a client again; ours do not.
            self.keys[key] = [before, body] if holds else [before]
            self.unknown.add(key)
            return
        if not holds:
            raise AssertionError(f"{key}: a condition that does not hold was not refused")
        self.acknowledged_count += 1
        self.keys[key] = [body]
        self.etags[key] = answer.get("ETag")
        if body is not None and answer.get("VersionId"):
            self.versions.append((key, answer["VersionId"], body))

    def race(self, number):
        key = f"race/{number % RACES_MAX}"
        body = Body(f"{key} {self.name}", (200,))
        try:
            self.put(key, body, IfNoneMatch="*")
        except Exception as error:  # noqa: BLE001
            if self.code(error) in ("PreconditionFailed", "ConditionalRequestConflict"):
                return
            self.require_unknown(error, key)
            self.races.setdefault(key, []).append(body)
            return
        self.acknowledged_count += 1
        self.won[key] = body

    @staticmethod
    def code(error):
        return (getattr(error, "response", None) or {}).get("Error", {}).get("Code")

    def require_unknown(self, error, key):
        """The outcome is unknown, and not something that no client should see."""
        self.unknown_count += 1
        answer = getattr(error, "response", None) or {}
        status = answer.get("ResponseMetadata", {}).get("HTTPStatusCode")
        if not isinstance(error, s3.connection_errors()) and not (status and status >= UNKNOWN_FROM_STATUS):
            raise AssertionError(f"{self.name}: {key} was answered {error!r}")
        # The server is gone: not as fast as one can.
        time.sleep(WAIT_SECONDS)

    def put(self, key, body, **more):
        meta = {"of": body.name.replace("/", "-")}
        return self.client.put_object(Bucket=self.bucket, Key=key, Body=body.data(), Metadata=meta, **more)

    def put_in_parts(self, key, body):
        meta = {"of": body.name.replace("/", "-")}
        place = {"Bucket": self.bucket, "Key": key}
        upload = self.client.create_multipart_upload(**place, Metadata=meta)["UploadId"]
        parts = []
        for number, part in enumerate(body.parts(), 1):
            sent = self.client.upload_part(**place, UploadId=upload, PartNumber=number, Body=part)
            parts.append({"PartNumber": number, "ETag": sent["ETag"]})
        return self.client.complete_multipart_upload(**place, UploadId=upload, MultipartUpload={"Parts": parts})

    def delete(self, key, _body):
        return self.client.delete_object(Bucket=self.bucket, Key=key)


class S3Load:
    """Clients of one bucket; gone when the `with` ends."""

    def __init__(self, clients, bucket, seed, pace_seconds=0.0):
        self.bucket = bucket
        self.races: dict[str, list] = {}
        self.clients = [
            Client(f"client{index}", client, bucket, seed, self.races, pace_seconds) for index, client in enumerate(clients)
        ]

    def __enter__(self):
        for client in self.clients:
            client.start()
        return self

    def __exit__(self, *_):
        for client in self.clients:
            client.ended.set()

    def check(self):
        for client in self.clients:
            if client.failure:
                raise client.failure

    def acknowledged_count(self):
        return sum(client.acknowledged_count for client in self.clients)

    def unknown_count(self):
        return sum(client.unknown_count for client in self.clients)

    def await_progress(self, step_count, seconds, without=()):
        """Waits until each client, but those of these numbers, was acknowledged so much more."""
        clients = [client for index, client in enumerate(self.clients) if index not in without]
        before = [client.acknowledged_count for client in clients]

        def done():
            self.check()
            now = [client.acknowledged_count for client in clients]
            return all(after - earlier >= step_count for after, earlier in zip(now, before, strict=True))

        harness.wait_until(done, seconds, f"{step_count} more requests of each S3 client")

    def end(self, seconds):
        for client in self.clients:
            client.ended.set()
        for client in self.clients:
            client.join(seconds)
            if client.is_alive():
                raise harness.Late(f"{client.name} has not ended after {seconds} s")
        self.check()

    def verify(self, client, mount):
        """Compares all that was acknowledged, by an S3 client and as files; returns how many objects and versions."""
        count = 0
        for of in self.clients:
            for key, bodies in of.keys.items():
                self.compare(client, mount, key, bodies)
                count += 1
            for key, version, body in of.versions:
                got = client.get_object(Bucket=self.bucket, Key=key, VersionId=version)["Body"].read()
                if got != body.data():
                    raise AssertionError(f"version {version} of {key} is not what was put")
                count += 1
        keys = {key for of in self.clients for key in of.won}
        for key in sorted(keys):
            winners = [of.won[key] for of in self.clients if key in of.won]
            if len(winners) > 1:
                raise AssertionError(f"{key} was made by {len(winners)} clients, each as the first")
            self.compare(client, mount, key, winners)
            count += 1
        return count

    def compare(self, client, mount, key, bodies):
        # Two that are empty have the same bytes, and metadata of their own.
        wanted: dict = {}
        for body in bodies:
            wanted.setdefault(body.data() if body else None, []).append(body)
        try:
            got = client.get_object(Bucket=self.bucket, Key=key)
            data = got["Body"].read()
        except s3.errors().ClientError as error:
            if Client.code(error) != "NoSuchKey":
                raise
            data = None
        if data not in wanted:
            raise AssertionError(f"{key} is not what was acknowledged, but {len(data) if data is not None else 'nothing'}")
        if data is not None and got["Metadata"] not in [{"of": body.name.replace("/", "-")} for body in wanted[data]]:
            raise AssertionError(f"{key} of {len(data)} bytes has the metadata {got['Metadata']}, which are another's")
        try:
            as_file = mount.read_file(f"/{self.bucket}/{key}")
        except OSError:
            as_file = None
        if as_file != data:
            raise AssertionError(f"{key} is another thing as a file")
