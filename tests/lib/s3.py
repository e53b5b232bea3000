"""S3 clients for tests: boto3, from an environment that `scripts/setup s3` makes.

Owns: finding it, clients for a server of a test. Must not know: what is tested.
"""

import functools
import importlib
import json
import pathlib
import subprocess
import sys
from typing import Any

from lib import harness

REGION = "us-east-1"


@functools.cache
def boto3() -> Any:
    done = subprocess.run(
        [str(harness.REPOSITORY / "scripts" / "setup"), "s3"], capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    if done.returncode:
        raise harness.Failure(f"scripts/setup s3: {done.stderr}")
    (packages,) = pathlib.Path(done.stdout.strip()).glob("lib/python*/site-packages")
    # Before what else is installed: the version that is tested with.
    sys.path.insert(0, str(packages))
    return importlib.import_module("boto3")


def errors() -> Any:
    boto3()
    return importlib.import_module("botocore.exceptions")


class Keys:
    """An access key of the volume `main`."""

    def __init__(self, server, *words, uid=0, gid=0):
        made = server.cairn("s3", "key", "create", "--uid", uid, "--gid", gid, *words, "--json").stdout
        self.id, self.secret = (json.loads(made)[name] for name in ("id", "secret"))


def client(port, keys, secret=None, **settings):
    """A client of a server's port that does not try again."""
    clients = boto3()
    config = importlib.import_module("botocore.config")
    options = {"retries": {"total_max_attempts": 1}, "s3": {"addressing_style": "path"}, "max_pool_connections": 64} | settings
    return clients.client(
        "s3", endpoint_url=f"http://127.0.0.1:{port}", region_name=REGION, aws_access_key_id=keys.id,
        aws_secret_access_key=secret or keys.secret, config=config.Config(**options),
    )
