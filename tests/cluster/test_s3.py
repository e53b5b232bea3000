"""Every node answers for all objects; the loss of the owner is a pause, and nothing that clients do not try again by themselves."""

import contextlib
import http.client
import json
import random
import threading
import time
import urllib.parse

from cluster.world import ClusterTest
from lib import harness, libnfs, s3
from lib.s3load import S3Load
from lib.worlds import content

BUCKET = "photos"
OTHER_BUCKET = "films"
SMALL_BYTES = 40_000
# More than one step of a transfer, and than what two nodes hold of it between them.
LARGE_BYTES = 24 << 20
COPIES_SECONDS_MAX = 90
LOAD_SECONDS_MAX = 120
OBJECTS_COUNT = 30
# What boto3 does by default, so often: it waits longer each time.
ATTEMPTS_COUNT = 5
# The lease is over, another node takes over, and what was refused is tried again.
PAUSE_SECONDS_MAX = 20
LOSSES_COUNT = 4
LOSS_STEPS_COUNT = 20
SEED = 20261128


class Clients(threading.Thread):
    """Puts objects through one node and gets each through another, and remembers what was acknowledged."""

    def __init__(self, name, into, out, bucket):
        super().__init__(daemon=True)
        self.name, self.into, self.out, self.bucket = name, into, out, bucket
        self.count, self.ended = 0, threading.Event()
        self.failure, self.pause_seconds = None, 0.0

    def key(self, index):
        return f"{self.name}/{index}"

    def body(self, index):
        return content(self.key(index), SMALL_BYTES)

    def step(self):
        key, body = self.key(self.count), self.body(self.count)
        self.into.put_object(Bucket=self.bucket, Key=key, Body=body)
        self.count += 1
        self.compare(self.out, self.count - 1)

    def compare(self, client, index):
        got = client.get_object(Bucket=self.bucket, Key=self.key(index))["Body"].read()
        if got != self.body(index):
            raise AssertionError(f"{self.key(index)} of {self.count} is not what was put")

    def run(self):
        try:
            while not self.ended.is_set():
                begun = time.monotonic()
                self.step()
                self.pause_seconds = max(self.pause_seconds, time.monotonic() - begun)
        except Exception as failure:  # noqa: BLE001
            self.failure = failure


class S3(ClusterTest):
    def s3_cluster(self, nodes=3):
        cluster = self.cluster(nodes, netns="no", serve_flags=["--s3-audit"])
        self.owner = cluster.owner()
        run = lambda *words: cluster.cairn(self.owner, *words)
        run("bucket", "create", BUCKET, "--uid", "1000", "--gid", "100")
        made = json.loads(run("s3", "key", "create", "--uid", "1000", "--gid", "100", "--json").stdout)

        class Made:
            id, secret = made["id"], made["secret"]

        self.keys = Made
        # Until then the loss of the first node is the loss of the log.
        copies = lambda kind: min(volume[kind] or 0 for volume in cluster.status()["volumes"])
        has_copies = lambda: copies("log_copies") >= 2 and copies("state_copies") >= 1
        harness.wait_until(has_copies, COPIES_SECONDS_MAX, "copies of log and state on other nodes")
        return cluster

    def client(self, cluster, node, keys=None, attempts=1):
        return s3.client(cluster.s3_port(node), keys or self.keys, retries={"total_max_attempts": attempts})

    def code(self, call):
        with self.assertRaises(s3.errors().ClientError) as refused:
            call()
        answer = refused.exception.response
        return answer["ResponseMetadata"]["HTTPStatusCode"], answer["Error"]["Code"]

    def test_every_node_answers_for_every_object(self):
        cluster = self.s3_cluster()
        clients = {node: self.client(cluster, node) for node in cluster.names}
        for into, client in clients.items():
            client.put_object(Bucket=BUCKET, Key=f"small/{into}", Body=content(into, SMALL_BYTES), Metadata={"by": into})
            client.put_object(Bucket=BUCKET, Key=f"large/{into}", Body=content(f"large {into}", LARGE_BYTES))
            for out in clients.values():
                got = out.get_object(Bucket=BUCKET, Key=f"small/{into}")
                self.assertEqual((got["Metadata"], got["Body"].read()), ({"by": into}, content(into, SMALL_BYTES)))
                got = out.get_object(Bucket=BUCKET, Key=f"large/{into}", Range=f"bytes=5-{LARGE_BYTES - 1}")
                self.assertTrue(got["Body"].read() == content(f"large {into}", LARGE_BYTES)[5:], into)
        buckets = [BUCKET]
        for node, client in clients.items():
            self.assertEqual([bucket["Name"] for bucket in client.list_buckets()["Buckets"]], buckets, node)
            listed = client.list_objects_v2(Bucket=BUCKET, Prefix="small/")["Contents"]
            self.assertEqual([entry["Key"] for entry in listed], [f"small/{name}" for name in cluster.names], node)
            # Parts through all nodes become one object.
            part = lambda number: content(f"{node} {number}", 5 << 20)
            upload = client.create_multipart_upload(Bucket=BUCKET, Key=f"parts/{node}")["UploadId"]
            about = {"Bucket": BUCKET, "Key": f"parts/{node}", "UploadId": upload}
            tags = [
                {"PartNumber": number, "ETag": other.upload_part(**about, PartNumber=number, Body=part(number))["ETag"]}
                for number, other in enumerate(clients.values(), 1)
            ]
            client.complete_multipart_upload(**about, MultipartUpload={"Parts": tags})
            got = client.get_object(Bucket=BUCKET, Key=f"parts/{node}")["Body"].read()
            self.assertTrue(got == b"".join(part(number) for number in range(1, len(clients) + 1)), node)
            client.create_bucket(Bucket=f"{OTHER_BUCKET}-{node}")
            buckets = sorted([*buckets, f"{OTHER_BUCKET}-{node}"])
            # Many names to delete are a document, which is read as a whole.
            gone = {"Objects": [{"Key": f"parts/{node}"}]}
            self.assertEqual(len(client.delete_objects(Bucket=BUCKET, Delete=gone)["Deleted"]), 1)
            self.assertEqual(self.code(lambda: client.get_object(Bucket=BUCKET, Key=f"parts/{node}")), (404, "NoSuchKey"))
            self.assertEqual(self.code(lambda: client.head_object(Bucket=BUCKET, Key="nothing"))[0], 404)
        # A line for each request, by the node that answers it, with the address of the client.
        log = cluster.machine(self.owner)["log"]
        with open(log, encoding="utf-8", errors="replace") as file:
            lines = [line for line in file if "small/" in line and '"PUT"' in line.replace("=PUT", '"PUT"')]
        self.assertGreaterEqual(len(lines), len(clients))
        self.assertTrue(all("127.0.0.1:" in line for line in lines), lines)

    def test_who_may_not_is_refused_at_every_node_alike(self):
        cluster = self.s3_cluster()

        class Stranger:
            id, secret = "AKIANOBODYKNOWSTHIS1", "secret"

        class Liar:
            id, secret = self.keys.id, "another secret"

        for node in cluster.names:
            for keys, want in ((Stranger, "InvalidAccessKeyId"), (Liar, "SignatureDoesNotMatch")):
                client = self.client(cluster, node, keys)
                got = self.code(lambda: client.put_object(Bucket=BUCKET, Key="theirs", Body=b"bytes"))
                self.assertEqual(got, (403, want), (node, want))
            # Nobody at all, in a bucket that is there and in one that is not.
            for bucket in (BUCKET, "no-such-bucket"):
                connection = http.client.HTTPConnection("127.0.0.1", cluster.s3_port(node), timeout=30)
                connection.request("GET", f"/{bucket}/key")
                self.assertEqual(connection.getresponse().status, 403, (node, bucket))
                connection.close()
        # What everybody may read is read through every node.
        ours = self.client(cluster, cluster.others(self.owner)[0])
        ours.put_object(Bucket=BUCKET, Key="open", Body=b"for all", ACL="public-read")
        for node in cluster.names:
            connection = http.client.HTTPConnection("127.0.0.1", cluster.s3_port(node), timeout=30)
            connection.request("GET", f"/{BUCKET}/open")
            self.assertEqual(connection.getresponse().read(), b"for all", node)
            connection.close()
        # A key that was taken away is refused everywhere.
        cluster.cairn(self.owner, "s3", "key", "revoke", self.keys.id)
        for node in cluster.names:
            client = self.client(cluster, node, attempts=ATTEMPTS_COUNT)
            self.assertEqual(self.code(client.list_buckets), (403, "InvalidAccessKeyId"), node)

    def loaded(self, cluster, nodes):
        """Clients of each of these nodes, which get what they put through the next one."""
        client = lambda node: self.client(cluster, node, attempts=ATTEMPTS_COUNT)
        pairs = zip(nodes, nodes[1:] + nodes[:1], strict=True)
        loads = [Clients(f"from-{into}", client(into), client(out), BUCKET) for into, out in pairs]
        for load in loads:
            load.start()
            self.addCleanup(load.ended.set)
        return loads

    def moved(self, loads, count):
        harness.wait_until(
            lambda: all(load.count >= count or load.failure for load in loads), LOAD_SECONDS_MAX, "objects of all clients"
        )
        self.assertEqual([load.failure for load in loads], [None] * len(loads))

    def end(self, cluster, loads, nodes):
        for load in loads:
            load.ended.set()
        for load in loads:
            load.join(LOAD_SECONDS_MAX)
            self.assertIsNone(load.failure)
        pauses = ", ".join(f"{load.pause_seconds:.1f} s" for load in loads)
        print(f"\nclients waited {pauses} at most", flush=True)
        self.assertLess(max(load.pause_seconds for load in loads), PAUSE_SECONDS_MAX)
        for node in nodes:
            client = self.client(cluster, node)
            for load in loads:
                for index in range(load.count):
                    load.compare(client, index)

    def test_the_loss_of_the_owner_is_a_pause(self):
        cluster = self.s3_cluster()
        others = cluster.others(self.owner)
        loads = self.loaded(cluster, others)
        self.moved(loads, OBJECTS_COUNT)
        cluster.kill(self.owner)
        self.moved(loads, max(load.count for load in loads) + OBJECTS_COUNT)
        self.end(cluster, loads, others)

    def test_a_volume_that_moves_takes_its_clients_along(self):
        cluster = self.s3_cluster()
        to = cluster.others(self.owner)[0]
        loads = self.loaded(cluster, cluster.names)
        self.moved(loads, OBJECTS_COUNT)
        cluster.cairn(self.owner, "volume", "move", "main", "--to", to)
        harness.wait_until(lambda: cluster.owner() == to, LOAD_SECONDS_MAX, "that the other node owns the volume")
        self.moved(loads, max(load.count for load in loads) + OBJECTS_COUNT)
        self.end(cluster, loads, cluster.names)

    def test_random_losses_of_nodes_leave_what_was_acknowledged(self):
        cluster = self.s3_cluster()
        rng = random.Random(SEED)
        versioned = {"Bucket": BUCKET, "VersioningConfiguration": {"Status": "Enabled"}}
        self.client(cluster, self.owner).put_bucket_versioning(**versioned)
        clients = [self.client(cluster, node) for node in cluster.names]
        with S3Load(clients, BUCKET, SEED) as load:
            for number in range(LOSSES_COUNT):
                load.await_progress(LOSS_STEPS_COUNT, LOAD_SECONDS_MAX)
                # The owner every second time, so that the volume moves.
                struck = cluster.owner() if number % 2 == 0 else rng.choice(cluster.names)
                kind = rng.choice(("kill", "stop", "pause"))
                print(f"\n{kind} {struck}", flush=True)
                getattr(cluster, kind)(struck)
                load.await_progress(LOSS_STEPS_COUNT, LOAD_SECONDS_MAX, without=[cluster.names.index(struck)])
                cluster.heal()
            load.await_progress(LOSS_STEPS_COUNT, LOAD_SECONDS_MAX)
            load.end(LOAD_SECONDS_MAX)
        print(f"{load.acknowledged_count()} requests acknowledged, {load.unknown_count()} of unknown outcome", flush=True)
        self.assertGreater(load.unknown_count(), 0)
        for node in cluster.names:
            with libnfs.Mount(cluster.url(node)) as mount:
                load.verify(self.client(cluster, node, attempts=ATTEMPTS_COUNT), mount)

    def test_without_an_owner_requests_wait_and_are_refused_in_time(self):
        cluster = self.s3_cluster()
        other = cluster.others(self.owner)[0]
        client = self.client(cluster, other)
        client.put_object(Bucket=BUCKET, Key="before", Body=b"bytes")
        # With one of three nodes left there is no etcd, and so no owner.
        cluster.kill(*[name for name in cluster.names if name != other])
        begun = time.monotonic()
        self.assertEqual(self.code(lambda: client.put_object(Bucket=BUCKET, Key="during", Body=b"bytes")), (503, "ServiceUnavailable"))
        self.assertLess(time.monotonic() - begun, PAUSE_SECONDS_MAX)
        cluster.start_nodes(*cluster.names)
        patient = self.client(cluster, other, attempts=10)
        harness.wait_until(lambda: cluster.owner() is not None, COPIES_SECONDS_MAX, "an owner")
        self.assertEqual(patient.get_object(Bucket=BUCKET, Key="before")["Body"].read(), b"bytes")

    def test_what_breaks_between_two_nodes_is_to_be_sent_again(self):
        """A PUT and a part whose owner is lost in the middle of the body: 503, which clients try again, and no half of it."""
        cluster = self.s3_cluster()
        other = cluster.others(self.owner)[0]
        client = self.client(cluster, other, attempts=10)
        old, new = content("old", SMALL_BYTES), content("new", LARGE_BYTES)
        client.put_object(Bucket=BUCKET, Key="one", Body=old)
        upload = client.create_multipart_upload(Bucket=BUCKET, Key="two")["UploadId"]
        part = {"Bucket": BUCKET, "Key": "two", "UploadId": upload, "PartNumber": 1}
        for call, about in (("put_object", {"Bucket": BUCKET, "Key": "one"}), ("upload_part", part)):
            owner = cluster.owner()
            through = next(name for name in cluster.names if name != owner)
            url = urllib.parse.urlsplit(self.client(cluster, through).generate_presigned_url(call, Params=about))
            with contextlib.closing(http.client.HTTPConnection(url.netloc, timeout=COPIES_SECONDS_MAX)) as connection:
                connection.putrequest("PUT", f"{url.path}?{url.query}")
                connection.putheader("Content-Length", str(len(new)))
                connection.endheaders()
                connection.send(new[: LARGE_BYTES // 2])
                cluster.kill(owner)
                # It may be refused before all of it is sent.
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    connection.send(new[LARGE_BYTES // 2 :])
                answer = connection.getresponse()
                text = answer.read().decode()
            self.assertEqual((answer.status, "<Code>ServiceUnavailable</Code>" in text), (503, True), text)
            cluster.start_nodes(owner)
            harness.wait_until(lambda: cluster.owner() is not None, COPIES_SECONDS_MAX, "an owner")
            again = self.client(cluster, through, attempts=10)
            self.assertTrue(again.get_object(Bucket=BUCKET, Key="one")["Body"].read() == (old if call == "put_object" else new))
            tag = getattr(again, call)(**about, Body=new)["ETag"]
            cluster.await_serving()
        self.assertEqual([found["Size"] for found in again.list_parts(Bucket=BUCKET, Key="two", UploadId=upload)["Parts"]], [len(new)])
        again.complete_multipart_upload(
            Bucket=BUCKET, Key="two", UploadId=upload, MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": tag}]}
        )
        self.assertTrue(again.get_object(Bucket=BUCKET, Key="two")["Body"].read() == new)
