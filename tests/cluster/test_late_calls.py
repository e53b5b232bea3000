"""A call that waits in a process which stands still is not done after newer ones: over NFS, S3, iSCSI and the admin API.

A client's call lies in a node that is stopped (SIGSTOP). The client turns to another node after a second, sends the call again and
then newer ones, which are acknowledged; then the stopped node goes on. Nothing of the old call may be seen.
"""

import http.client
import json
import pathlib
import struct
import time
import urllib.parse

from cluster.world import ClusterTest
from lib import harness, iscsi, s3
from lib.rawnfs import FILE_SYNC, NFS, OK, Peer, opaque

OLD, NEW = b"old" * 1000, b"new" * 1000
# A client waits so long before it turns to another node.
TURN_SECONDS = 1.2
TAKEOVER_SECONDS_MAX = 90
# An old call would be done at once when its node goes on; it is looked for this long.
LOOK_SECONDS = 4
INITIATOR = "iqn.2025-11.test:late"
LUN_BYTES = 8 << 20
BUCKET = "late"


def tried(step):
    """What a client does that keeps trying while a volume has no owner."""

    def done():
        try:
            return step()
        except (OSError, AssertionError, http.client.HTTPException, iscsi.LoginRefused, iscsi.CommandFailed):
            return None

    return harness.wait_until(done, TAKEOVER_SECONDS_MAX, "an answer")


class LateCalls(ClusterTest):
    def setUp(self):
        super().setUp()
        self.nodes = self.cluster(3, netns="no")

    def has_copies(self):
        copies = lambda kind: min(volume[kind] or 0 for volume in self.nodes.status()["volumes"])
        ready = lambda: copies("log_copies") >= 2 and copies("state_copies") >= 1
        harness.wait_until(ready, TAKEOVER_SECONDS_MAX, "copies of log and state on other nodes")

    def all_alive(self):
        alive = lambda: all(node["alive"] for node in self.nodes.status()["nodes"])
        harness.wait_until(alive, TAKEOVER_SECONDS_MAX, "all nodes")

    def ways(self):
        """Which node the client talks to, which one is stopped, and to which one it turns."""
        for name in ("the node that passes on", "the owner itself", "the owner, behind another node"):
            self.all_alive()
            owner = self.nodes.owner()
            first, second = self.nodes.others(owner)
            through, stopped = {
                "the node that passes on": (first, first),
                "the owner itself": (owner, owner),
                "the owner, behind another node": (first, owner),
            }[name]
            print(f"{self.id()}: a call waits in {name}", flush=True)
            yield name, through, stopped, second

    def seen_is(self, wanted, look):
        """What is looked at stays as it is, while the stopped node goes on."""
        ends = time.monotonic() + LOOK_SECONDS
        while time.monotonic() < ends:
            self.assertEqual(tried(look), wanted)

    def turn(self):
        # It is the client's patience that is tested: it waits for nothing else.
        time.sleep(TURN_SECONDS)

    def test_an_old_write_over_nfs(self):
        self.has_copies()
        for name, through, stopped, other in self.ways():
            with Peer(self.nodes.nfs_port(through)) as peer:
                root = peer.mount("/main")[1]
                file = peer.create(root, name.replace(" ", "-"))[1]
                self.assertEqual(peer.write(file, b"first"), OK)
                self.nodes.pause(stopped)
                try:
                    arguments = opaque(file) + struct.pack(">QII", 0, len(OLD), FILE_SYNC) + opaque(OLD)
                    peer.send(NFS, 3, 7, arguments)
                    self.turn()
                    for data in (OLD, NEW):
                        # With a number of its own, so that no cache of replies helps.
                        self.assertEqual(tried(lambda data=data: self.written(other, file, data)), True)
                finally:
                    self.nodes.resume(stopped)
                self.seen_is(NEW, lambda: self.read(other, file))
                tried(lambda: self.read(stopped, file))
                self.seen_is(NEW, lambda: self.read(stopped, file))

    def written(self, node, file, data):
        with Peer(self.nodes.nfs_port(node), answer_seconds_max=10) as peer:
            return peer.write(file, data) == OK or None

    def read(self, node, file):
        with Peer(self.nodes.nfs_port(node), answer_seconds_max=10) as peer:
            status, data = peer.read_bytes(file, 0, len(NEW))
            return data if status == OK else None

    def test_an_old_put_over_s3(self):
        run = lambda *words: self.nodes.cairn(self.nodes.owner(), *words)
        run("bucket", "create", BUCKET, "--uid", "1000", "--gid", "100")
        made = json.loads(run("s3", "key", "create", "--uid", "1000", "--gid", "100", "--json").stdout)

        class Made:
            id, secret = made["id"], made["secret"]

        client = lambda node: s3.client(self.nodes.s3_port(node), Made, retries={"total_max_attempts": 1}, read_timeout=10)
        self.has_copies()
        failures = (*s3.connection_errors(), s3.errors().ClientError)
        for name, through, stopped, other in self.ways():
            key = name.replace(" ", "-")
            client(through).put_object(Bucket=BUCKET, Key=key, Body=b"first")
            url = client(through).generate_presigned_url("put_object", Params={"Bucket": BUCKET, "Key": key})
            parts = urllib.parse.urlsplit(url)
            waiting = http.client.HTTPConnection(parts.hostname, parts.port, timeout=TAKEOVER_SECONDS_MAX)
            waiting.connect()
            self.nodes.pause(stopped)

            def put(data, key=key, other=other):
                try:
                    return client(other).put_object(Bucket=BUCKET, Key=key, Body=data)
                except failures:
                    return None

            def get(node, key=key):
                try:
                    return client(node).get_object(Bucket=BUCKET, Key=key)["Body"].read()
                except failures:
                    return None

            try:
                waiting.request("PUT", f"{parts.path}?{parts.query}", OLD)
                self.turn()
                for data in (OLD, NEW):
                    harness.wait_until(lambda data=data: put(data), TAKEOVER_SECONDS_MAX, "a PUT")
            finally:
                self.nodes.resume(stopped)
            self.seen_is(NEW, lambda: get(other))
            self.seen_is(NEW, lambda: get(stopped))
            waiting.close()

    def test_an_old_command_over_iscsi(self):
        run = lambda *words: self.nodes.cairn(self.nodes.owner(), *words)
        run("lun", "create", "main/disk", "--size", str(LUN_BYTES))
        run("igroup", "create", "main/hosts", "--initiator", INITIATOR, "--os", "linux")
        run("lun", "map", "main/disk", "--igroup", "hosts")
        target = json.loads(run("lun", "show", "main/disk", "--json").stdout)["target"]
        self.has_copies()

        def session(node):
            found = iscsi.Session(("127.0.0.1", self.nodes.iscsi_port(node)), INITIATOR, target, timeout_seconds=10)
            found.clear_attentions()
            return found

        old, new = (data.ljust(4096, b".") for data in (OLD, NEW))
        for _name, through, stopped, other in self.ways():
            with tried(lambda through=through: session(through)) as waiting:
                self.nodes.pause(stopped)
                try:
                    waiting.send_command(struct.pack(">BBQI2x", 0x8A, 0, 0, len(old) // 512), data=old)
                    self.turn()
                    for data in (old, new):
                        tried(lambda data=data, other=other: self.lun_written(session(other), data))
                finally:
                    self.nodes.resume(stopped)
                self.seen_is(new, lambda other=other: self.lun_read(session(other), len(new)))
                self.seen_is(new, lambda stopped=stopped: self.lun_read(session(stopped), len(new)))

    def lun_written(self, session, data):
        with session:
            session.write(0, data)
            return True

    def lun_read(self, session, length):
        with session:
            return session.read(0, length)

    def test_an_old_deletion_over_the_admin_api(self):
        self.nodes.cairn(self.nodes.owner(), "volume", "create", "second")
        for _name, through, stopped, other in self.ways():
            if through != stopped:
                # The node that was asked deletes it by itself: no owner is asked.
                continue
            machine = self.nodes.machine(through)
            token = pathlib.Path(machine["token_file"]).read_text().strip()
            parts = urllib.parse.urlsplit(machine["admin"])
            waiting = http.client.HTTPConnection(parts.hostname, parts.port, timeout=TAKEOVER_SECONDS_MAX)
            waiting.connect()
            self.nodes.pause(stopped)
            run = lambda *words, other=other: self.nodes.cairn(other, *words, check=False).returncode == 0 or None
            try:
                waiting.request("DELETE", "/api/v1/volumes/second?force=true", headers={"Authorization": f"Bearer {token}"})
                self.turn()
                deleted = ("volume", "delete", "second", "--force", "--yes")
                harness.wait_until(lambda: run(*deleted), TAKEOVER_SECONDS_MAX, "the deletion")
                harness.wait_until(lambda: run("volume", "create", "second"), TAKEOVER_SECONDS_MAX, "a new volume")
            finally:
                self.nodes.resume(stopped)
            self.seen_is(True, lambda: run("volume", "show", "second"))
            self.all_alive()
            self.seen_is(True, lambda: run("volume", "show", "second"))
            waiting.close()
