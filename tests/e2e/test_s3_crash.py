"""kill -9 under load of S3 clients: every acknowledged object is there, over S3 and as a file, and nothing else in its place."""

import contextlib
import os
import threading

from lib import harness, libnfs, s3
from lib.s3load import S3Load
from lib.worlds import WorldTest, content

BUCKET = "photos"
CLIENTS_COUNT = 4
STEPS_COUNT = 50
CHANGES_COUNT = 15
# Each change waits for a disk that may take seconds for it.
LOAD_SECONDS_MAX = 300
SEED = 20261127


class Changer(threading.Thread):
    """Puts objects, and changes or removes each as a file; the version that was put must be there all the same."""

    def __init__(self, client, url, name):
        super().__init__(daemon=True)
        self.client, self.url, self.name = client, url, name
        self.versions, self.count = [], 0

    def run(self):
        # When the server is gone this ends, or libnfs tries for ever to reach it.
        with contextlib.suppress(OSError, *s3.connection_errors()), libnfs.Mount(self.url) as mount:
            for number in range(1 << 30):
                self.step(mount, number)

    def step(self, mount, number):
        key = f"{self.name}/{number % 7}"
        body = content(f"{key} {number}", (10, 5_000, 200_000)[number % 3])
        put = self.client.put_object(Bucket=BUCKET, Key=key, Body=body)
        self.versions.append((key, put["VersionId"], body))
        path = f"/{BUCKET}/{key}"
        match number % 4:
            case 0:
                with mount.open(path, os.O_RDWR) as handle:
                    handle.write(3, b"over NFS")
            case 1:
                mount.truncate(path, 4)
            case 2:
                mount.unlink(path)
            case _:
                mount.write_file(f"{path}.new", b"renamed")
                mount.rename(f"{path}.new", path)
        self.count += 1


class S3Crash(WorldTest):
    def check(self, disks, rounds, versions):
        port = harness.next_port()
        server = self.server(disks, ["--listen-s3", f"127.0.0.1:{port}"])
        server.waits.append(lambda: s3.await_keys(port))
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

    def test_kill_while_files_are_changed_that_the_bucket_keeps(self):
        port = harness.next_port()
        server = self.server(1, ["--listen-s3", f"127.0.0.1:{port}"])
        server.waits.append(lambda: s3.await_keys(port))
        keys = s3.Keys(server)
        client = s3.client(port, keys)
        client.create_bucket(Bucket=BUCKET)
        client.put_bucket_versioning(Bucket=BUCKET, VersioningConfiguration={"Status": "Enabled"})
        server.cairn("bucket", "set", BUCKET, "--nfs-versions", "on")
        noted = []
        for round_number in range(3):
            names = [f"changer{round_number}-{index}" for index in range(CLIENTS_COUNT)]
            changers = [Changer(s3.client(port, keys), server.libnfs_url(), name) for name in names]
            for changer in changers:
                changer.start()
            harness.wait_until(lambda: min(changer.count for changer in changers) >= CHANGES_COUNT, LOAD_SECONDS_MAX, "changes")
            server.kill()
            # What they are told from now on is of the next life.
            noted += [entry for changer in changers for entry in list(changer.versions)]
            server.start()
            for key, version, body in noted:
                got = client.get_object(Bucket=BUCKET, Key=key, VersionId=version)["Body"].read()
                self.assertTrue(got == body, (key, version))
            listed = []
            for page in client.get_paginator("list_object_versions").paginate(Bucket=BUCKET):
                listed += [(entry["Key"], entry["VersionId"]) for entry in page.get("Versions", []) + page.get("DeleteMarkers", [])]
            self.assertEqual(len(listed), len(set(listed)), "a version is there twice")
            self.assertLessEqual({(key, version) for key, version, _ in noted}, set(listed))

    def test_kill_on_one_disk(self):
        self.check(1, rounds=3, versions=False)

    def test_kill_on_six_disks_with_versions(self):
        self.check(6, rounds=2, versions=True)
