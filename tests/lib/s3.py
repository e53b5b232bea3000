"""S3 clients for tests: boto3, minio-py and the AWS CLI, from an environment that `scripts/setup s3` makes; the AWS SDK for
JavaScript, from a folder that `scripts/setup s3-js` makes; requests signed by hand.

Owns: finding it, clients for a server of a test. Must not know: what is tested.
"""

import base64
import contextlib
import datetime
import functools
import hashlib
import hmac
import importlib
import json
import pathlib
import socket
import subprocess
import urllib.parse
import zlib
from typing import Any

from lib import harness

REGION = "us-east-1"


@functools.cache
def boto3() -> Any:
    harness.set_up_packages("s3")
    return importlib.import_module("boto3")


def module(name) -> Any:
    """A module of that environment."""
    boto3()
    return importlib.import_module(name)


def transfer_config(**settings):
    """How boto3 divides what it sends into parts."""
    return module("boto3.s3.transfer").TransferConfig(**settings)


@functools.cache
def javascript():
    """The folder with the AWS SDK for JavaScript."""
    return harness.set_up("s3-js") / "node_modules"


def errors() -> Any:
    return module("botocore.exceptions")


def connection_errors():
    """What a client raises that lost its server."""
    names = errors()
    return names.HTTPClientError, names.ConnectionError, names.EndpointConnectionError


class Keys:
    """An access key of the volume `main`."""

    def __init__(self, server, *words, uid=0, gid=0):
        made = server.cairn("s3", "key", "create", "--uid", uid, "--gid", gid, *words, "--json").stdout
        self.id, self.secret = (json.loads(made)[name] for name in ("id", "secret"))


def aws_cli():
    """The words that begin a command of the AWS CLI."""
    packages = pathlib.Path(boto3().__file__).parent.parent
    return [str(packages.parent.parent.parent / "bin" / "python"), "-m", "awscli"]


def client(port, keys, secret=None, scheme="http", host="127.0.0.1", verify=None, **settings):
    """A client of a server's port that does not try again. Without being told, boto3 makes presigned URLs of Version 2."""
    clients = boto3()
    config = importlib.import_module("botocore.config")
    options = {"signature_version": "s3v4", "retries": {"total_max_attempts": 1}, "s3": {"addressing_style": "path"}, "max_pool_connections": 64} | settings
    return clients.client(
        "s3", endpoint_url=f"{scheme}://{host}:{port}", region_name=REGION, aws_access_key_id=keys.id,
        aws_secret_access_key=secret or keys.secret, config=config.Config(**options), verify=verify,
    )


def certificate(folder, name):
    """A certificate of this machine that signs itself, and its key."""
    made, key = folder / f"{name}.crt", folder / f"{name}.key"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj",
         f"/CN={name}", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", str(key), "-out", str(made)],
        check=True, capture_output=True,
    )
    return made, key


@functools.cache
def _crc_table(polynomial):
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (polynomial if value & 1 else 0)
        table.append(value)
    return table


def _crc(data, polynomial, bits):
    """A CRC whose polynomial is given with its bits reversed, which starts with ones and ends inverted."""
    table, ones = _crc_table(polynomial), (1 << bits) - 1
    state = ones
    for byte in data:
        state = table[(state ^ byte) & 0xFF] ^ state >> 8
    return (state ^ ones).to_bytes(bits // 8, "big")


#: The checksums of S3 by the names that botocore has for them, over bytes.
CHECKSUMS = {
    "ChecksumCRC32": lambda data: zlib.crc32(data).to_bytes(4, "big"),
    "ChecksumCRC32C": lambda data: _crc(data, 0x82F63B78, 32),
    "ChecksumCRC64NVME": lambda data: _crc(data, 0x9A6C9329AC4BC9B5, 64),
    "ChecksumSHA1": lambda data: hashlib.sha1(data).digest(),
    "ChecksumSHA256": lambda data: hashlib.sha256(data).digest(),
}


def checksum(name, data):
    """As S3 tells it of a whole object."""
    return base64.b64encode(CHECKSUMS[name](data)).decode()


def checksum_of_parts(name, parts):
    """As S3 tells it of an object whose checksum is that of the checksums of its parts (COMPOSITE)."""
    of_each = b"".join(CHECKSUMS[name](part) for part in parts)
    return f"{checksum(name, of_each)}-{len(parts)}"


def by_name(parameter):
    """The order in which parameters of a query are signed: by their names, then by their values."""
    return parameter.split("=", 1)


class Signer:
    """Requests signed by hand, so that each part can be wrong (Signature Version 4)."""

    def __init__(self, port, keys, address="127.0.0.1", region=REGION, service="s3"):
        self.port, self.keys = port, keys
        self.host = f"{address}:{port}"
        self.region, self.service = region, service

    def _key(self, day):
        key = f"AWS4{self.keys.secret}".encode()
        for word in (day, self.region, self.service, "aws4_request"):
            key = hmac.digest(key, word.encode(), "sha256")
        return key

    def _scope(self, day):
        return f"{day}/{self.region}/{self.service}/aws4_request"

    def _signature(self, day, time, request):
        text = "\n".join(["AWS4-HMAC-SHA256", time, self._scope(day), hashlib.sha256(request.encode()).hexdigest()])
        return hmac.digest(self._key(day), text.encode(), "sha256").hex()

    def sign(self, method, path, payload="UNSIGNED-PAYLOAD", when=None, **headers):
        """The headers of a request, and what signs its chunks."""
        now = when or datetime.datetime.now(datetime.timezone.utc)
        day, time = now.strftime("%Y%m%d"), now.strftime("%Y%m%dT%H%M%SZ")
        path, _, query = path.partition("?")
        signed = {"host": self.host} if self.host else {}
        signed |= {"x-amz-content-sha256": payload, "x-amz-date": time}
        signed |= {name.replace("_", "-"): value for name, value in headers.items()}
        names = ";".join(sorted(signed))
        lines = "".join(f"{name}:{signed[name]}\n" for name in sorted(signed))
        words = sorted((part if "=" in part else f"{part}=" for part in query.split("&") if part), key=by_name)
        scope = self._scope(day)
        signature = self._signature(day, time, "\n".join([method, path, "&".join(words), lines, names, payload]))
        signed["authorization"] = (
            f"AWS4-HMAC-SHA256 Credential={self.keys.id}/{scope}, SignedHeaders={names}, Signature={signature}"
        )
        return signed, (time, scope, signature, self._key(day))

    def presign(self, method, path, expires=60, when=None, **headers):
        """A path with its signature in the query, and the headers that are signed with it."""
        now = when or datetime.datetime.now(datetime.timezone.utc)
        day, time = now.strftime("%Y%m%d"), now.strftime("%Y%m%dT%H%M%SZ")
        path, _, query = path.partition("?")
        signed = {"host": self.host} | {name.replace("_", "-"): value for name, value in headers.items()}
        names = ";".join(sorted(signed))
        fields = {
            "X-Amz-Algorithm": "AWS4-HMAC-SHA256", "X-Amz-Credential": f"{self.keys.id}/{self._scope(day)}", "X-Amz-Date": time,
            "X-Amz-Expires": str(expires), "X-Amz-SignedHeaders": names,
        }
        given = [f"{name}={urllib.parse.quote(value, safe='')}" for name, value in fields.items()]
        words = sorted([part if "=" in part else f"{part}=" for part in query.split("&") if part] + given, key=by_name)
        lines = "".join(f"{name}:{signed[name]}\n" for name in sorted(signed))
        request = "\n".join([method, path, "&".join(words), lines, names, "UNSIGNED-PAYLOAD"])
        return f"{path}?{'&'.join(words)}&X-Amz-Signature={self._signature(day, time, request)}", signed

    def sign_2(self, method, path, date, bucket_path=None):
        """The headers of a request by Signature Version 2."""
        text = f"{method}\n\n\n{date}\n{bucket_path or path}"
        signature = base64.b64encode(hmac.digest(self.keys.secret.encode(), text.encode(), "sha1")).decode()
        return {"host": self.host, "date": date, "authorization": f"AWS {self.keys.id}:{signature}"}

    def presign_2(self, method, path, expires):
        """A path with a signature of Version 2 in the query."""
        text = f"{method}\n\n\n{expires}\n{path}"
        signature = base64.b64encode(hmac.digest(self.keys.secret.encode(), text.encode(), "sha1")).decode()
        signature = urllib.parse.quote(signature, safe="")
        return f"{path}?AWSAccessKeyId={self.keys.id}&Expires={expires}&Signature={signature}"

    @staticmethod
    def chunk(data, state):
        """A chunk of a body with its signature, and what signs the next one."""
        time, scope, before, key = state
        empty = hashlib.sha256().hexdigest()
        text = "\n".join(["AWS4-HMAC-SHA256-PAYLOAD", time, scope, before, empty, hashlib.sha256(data).hexdigest()])
        signature = hmac.digest(key, text.encode(), "sha256").hex()
        return f"{len(data):x};chunk-signature={signature}\r\n".encode() + data + b"\r\n", (time, scope, signature, key)

    def send(self, method, path, headers, body=b"", ends=False, resets=True):
        """Status and body of the answer; status 0, if there is none.

        `ends`: nothing comes after this, whatever was said; a server may take it that nobody waits for its answer.
        `resets`: it may end the connection before it has got all of the body.
        """
        head = f"{method} {path} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        with socket.create_connection(("127.0.0.1", self.port), 30) as stream:
            answer = b""
            with contextlib.suppress(ConnectionError) if resets else contextlib.nullcontext():
                stream.sendall(head.encode("latin-1") + b"connection: close\r\n\r\n" + body)
                if ends:
                    stream.shutdown(socket.SHUT_WR)
            with contextlib.suppress(ConnectionError):
                while part := stream.recv(65536):
                    answer += part
        first, _, rest = answer.partition(b"\r\n\r\n")
        words = first.split(b" ")
        return int(words[1]) if len(words) > 1 else 0, rest.decode(errors="replace")
