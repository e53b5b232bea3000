"""What the end-to-end tests of S3 share: a server with a bucket, its key, a client, and errors that are expected.

Owns: these. Must not know: what is tested.
"""

import contextlib

from lib import harness, s3
from lib.worlds import WorldTest

UID, GID = 1000, 100


class S3Test(WorldTest):
    """A test of one server that listens for S3: `world`, at `port`."""

    def listen(self, disks=1, flags=()):
        self.port = harness.next_port()
        self.world = self.server(disks, ["--listen-s3", f"127.0.0.1:{self.port}", *flags])
        self.world.waits.append(lambda: s3.await_keys(self.port))

    def serve(self, *buckets, flags=()):
        """Listens, with buckets of one user, a key of that user and a client with it."""
        self.listen(flags=flags)
        for bucket in buckets:
            self.world.cairn("bucket", "create", bucket, "--uid", UID, "--gid", GID)
        self.keys = s3.Keys(self.world, uid=UID, gid=GID)
        self.client = s3.client(self.port, self.keys)

    @contextlib.contextmanager
    def fails(self, code, status=None):
        """A request of a client that is answered with this error."""
        with self.assertRaises(s3.errors().ClientError) as caught:
            yield caught
        error = caught.exception.response
        self.assertEqual(error["Error"]["Code"], code, error["Error"].get("Message"))
        if status:
            self.assertEqual(error["ResponseMetadata"]["HTTPStatusCode"], status)
