"""The master key from AWS KMS, as docs/guide/encryption.md says: the commands of the recipe, run as they are.

Real: the server, the AWS CLI. Stand-in: AWS (moto).
"""

import base64
import json
import os
import pathlib
from unittest import mock

from lib import harness, libnfs
from lib.worlds import content
from plan import kit

FOUND_SECONDS_MAX = 120
ALIAS = "alias/cairn"


class Kms(kit.Test):
    def shown(self):
        return json.loads(self.world.cairn("volume", "show", "secret", "--json").stdout)

    def mount(self):
        return libnfs.Mount(self.world.libnfs_url().replace("/main", "/secret"))

    def generate(self, aws, number):
        """A new master key, that only KMS can decrypt; nobody has seen it."""
        made = aws("kms", "generate-data-key-without-plaintext", "--key-id", ALIAS, "--number-of-bytes", "32")
        (self.folder / f"master.key.{number}.kms").write_bytes(base64.b64decode(made["CiphertextBlob"]))

    def test_a_volume_needs_the_key_service(self):
        aws = self.enterContext(kit.aws())
        self.enterContext(mock.patch.dict(os.environ, aws.environment, clear=True))
        self.folder = self.enterContext(harness.scratch("kms-"))
        key = aws("kms", "create-key")["KeyMetadata"]["KeyId"]
        aws("kms", "create-alias", "--alias-name", ALIAS, "--target-key-id", key)
        self.generate(aws, 1)
        # The newest first.
        command = (f"for file in $(ls -r {self.folder}/master.key.*.kms); do "
                   "aws kms decrypt --ciphertext-blob fileb://$file --query Plaintext --output text || exit 1; done")
        root = pathlib.Path(self.folder) / "pool"
        root.mkdir()
        self.world = world = self.enterContext(harness.Server(root, 1, ["--master-key-command", command]))
        world.cairn("volume", "create", "secret", "--encrypt")
        world.cairn("export", "set", "secret", "--client", "127.0.0.1", "--rw", "--squash", "none")
        data = content("kms", 300_000)
        with self.mount() as mount:
            mount.write_file("/file", data)

        # Whoever cannot ask the service has no volume. (The stand-in decrypts with disabled keys, too.)
        world.kill()
        nobody = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{harness.next_port()}", "AWS_MAX_ATTEMPTS": "1"}
        with mock.patch.dict(os.environ, nobody):
            world.start()
        self.assertEqual((self.shown()["serving"], self.shown()["encryption"]["state"]), (False, "locked"))
        listed = json.loads(world.cairn("key", "list", "--json").stdout)
        self.assertIn("Could not connect", listed["problem"])
        world.kill()
        world.start()
        harness.wait_until(lambda: self.shown()["serving"], FOUND_SECONDS_MAX, "the volume is served")
        with self.mount() as mount:
            self.assertEqual(mount.read_file("/file"), data)

        # A new master key; the earlier one can go then.
        self.generate(aws, 2)
        rotated = json.loads(world.cairn("key", "rotate", "--json").stdout)
        self.assertEqual((rotated["wrapped"], rotated["failed"]), (["secret"], []))
        (self.folder / "master.key.1.kms").unlink()
        world.kill()
        world.start()
        harness.wait_until(lambda: self.shown()["serving"], FOUND_SECONDS_MAX, "the volume is served")
        with self.mount() as mount:
            self.assertEqual(mount.read_file("/file"), data)
