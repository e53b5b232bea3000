"""kill -9 under load of S3 clients: every acknowledged object is there, over S3 and as a file, and nothing else in its place."""

from lib import harness, libnfs, s3
from lib.s3load import S3Load
from lib.worlds import WorldTest

BUCKET = "photos"
CLIENTS_COUNT = 4
STEPS_COUNT = 50
LOAD_SECONDS_MAX = 120
SEED = 20261127


class S3Crash(WorldTest):
    def check(self, disks, rounds, versions):
        port = harness.next_port()
        server = self.server(disks, ["--listen-s3", f"127.0.0.1:{port}"])
        keys = s3.Keys(server, uid=1000, gid=100)
        client = s3.client(port, keys)
        client.create_bucket(Bucket=BUCKET)
        if versions:
            client.put_bucket_versioning(Bucket=BUCKET, VersioningConfiguration={"Status": "Enabled"})
        with S3Load([s3.client(port, keys) for _ in range(CLIENTS_COUNT)], BUCKET, SEED) as load:
            for _ in range(rounds):
                load.await_progress(STEPS_COUNT, LOAD_SECONDS_MAX)
                server.kill()
                server.start()
            load.await_progress(STEPS_COUNT, LOAD_SECONDS_MAX)
            server.kill()
            load.end(LOAD_SECONDS_MAX)
        self.assertGreater(load.unknown_count(), 0)
        server.start()
        for _ in range(2):
            with libnfs.Mount(server.libnfs_url()) as mount:
                count = load.verify(s3.client(port, keys), mount)
            self.assertGreater(count, CLIENTS_COUNT * STEPS_COUNT // 4)
            # It is so after an orderly end, too.
            server.restart()

    def test_kill_on_one_disk(self):
        self.check(1, rounds=3, versions=False)

    def test_kill_on_six_disks_with_versions(self):
        self.check(6, rounds=2, versions=True)
