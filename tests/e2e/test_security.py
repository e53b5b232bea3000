"""What SECURITY.md promises of a running server: its files, its log, its memory, its admin API.

Who gets in over NFS is in test_exports.py, and procedure by procedure in crates/edges/nfs3/tests.
"""

import contextlib
import json
import os
import re
import socket
import stat
import struct
import subprocess
import time
import unittest
import unittest.mock
import urllib.error
import urllib.request

from lib import harness
from lib.rawnfs import NOENT, OK, Peer, opaque
from lib.worlds import WorldTest, content

HERE, STRANGER = "127.0.0.1", "127.0.0.2"
# What a flood may take of memory: its share of buffers, and not a payload for each.
FLOOD_BYTES_MAX = 64 << 20
FLOOD_CONNECTIONS = 400
# More than any bound of connections to the admin port; and what an answer takes that waits for none of them, whose time is 5 s.
HALF_REQUESTS = 400
ANSWER_SECONDS_MAX = 4
SECONDS_MAX = 60
# What clients cause as often as they like is so many lines of a kind in so many seconds.
LOG_SECONDS = 5
LOG_LINES_MAX = {"connection closed: ": 1, "mount of /none refused": 1, "mounted /main": 20}
LOG_FLOOD = 200
# The only ones that take no token.
OPEN = {
    ("get", "/healthz"),
    ("get", "/api/v1/openapi.json"),
    ("post", "/api/v1/session"),
    ("get", "/api/v1/session/ways"),
    ("post", "/api/v1/session/oidc/begin"),
    ("post", "/api/v1/session/oidc/finish"),
}


def resident_bytes(pid):
    return harness.resident_bytes(pid)


class Security(WorldTest):
    def admin_address(self, server):
        address, _, port = server.ready["admin"]["url"].removeprefix("http://").rpartition(":")
        return address, int(port)

    def test_the_admin_api_is_not_read_on_the_way(self):
        server = self.server(1)
        other = ["--data", self.scratch / "other", "--listen-nfs", "127.0.0.1:0", "--listen-admin", "0.0.0.0:0"]
        refused = server.cairn("serve", *other, check=False)
        self.assertEqual(refused.returncode, 2, refused.stderr)
        self.assertIn("--insecure", refused.stderr)
        self.assertFalse((self.scratch / "other").exists())

        def status(address):
            argv = [str(harness.cairn_path()), "status", "--server", address, "--token-file", str(server.token_path)]
            return subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=server.environment())

        # Commands refuse it before they say anything to anybody: nobody is at this address (RFC 5737).
        refused = status("http://192.0.2.1:8049")
        self.assertEqual(refused.returncode, 2, refused.stderr)
        self.assertIn("--insecure", refused.stderr)
        address = server.ready["admin"]["url"].removeprefix("http://")
        self.assertIn(f"https://{address}", status(address).stderr)
        for path in ("/healthz", "/api/v1/status", "/none"):
            try:
                answer = urllib.request.urlopen(server.ready["admin"]["url"] + path, timeout=30)
            except urllib.error.HTTPError as error:
                answer = error
            with answer:
                self.assertEqual(answer.headers["Cache-Control"], "no-store", path)
                self.assertEqual(answer.headers["X-Content-Type-Options"], "nosniff", path)

    def test_files_are_the_users_own(self):
        # Whatever the caller's mask is.
        before = os.umask(0)
        self.addCleanup(os.umask, before)
        server = self.server(2)
        with harness.scratch("own-") as folder:
            (folder / "secret").write_bytes(content(1, 100_000))
            server.cairn("cp", folder / "secret", server.url())
        server.cairn("scrub", "start")
        for disk in server.disks:
            # The folder may be the operator's; what is in it is the server's alone.
            inside = list(disk.rglob("*"))
            self.assertGreater(len(inside), 5)
            for path in inside:
                try:
                    mode = stat.S_IMODE(path.lstat().st_mode)
                except FileNotFoundError:
                    continue  # it was renamed or removed since
                self.assertEqual(mode & 0o077, 0, f"{path} has mode {mode:o}")
        self.assertEqual(stat.S_IMODE(server.token_path.stat().st_mode), 0o600)
        # Where the server is may be known; the file says nothing else.
        ready = server.ready_path.read_text()
        self.assertNotIn(server.token_path.read_text().strip(), ready)

    def test_no_secret_is_in_the_log(self):
        with unittest.mock.patch.dict(os.environ, {"RUST_LOG": "trace"}):
            server = self.server(2)
        token = server.token_path.read_text().strip()
        # The key that signs handles is in the pool file, in hexadecimal digits.
        pool = next(path for path in server.disks[0].rglob("pool") if path.is_file())
        file = pool.read_bytes()
        copy = file[: len(file) // 2]
        key = json.loads(copy.partition(b"\n")[2])["handle_key"]
        self.assertRegex(key, r"^[0-9a-f]{32}$")
        with harness.scratch("log-") as folder:
            (folder / "file").write_bytes(content(2, 300_000))
            server.cairn("cp", folder / "file", server.url())
        server.cairn("volume", "create", "second")
        server.cairn("export", "set", "second", "--client", HERE)
        server.cairn("disk", "list")
        server.cairn("status")
        server.metrics()
        # A token that is wrong, or comes where it does not belong, is a secret still: of another server, mistyped.
        wrong = "f00dfeedf00dfeedf00dfeedf00dfeed"
        for path, header in [
            ("/api/v1/status", f"Bearer {wrong}"),
            ("/api/v1/nothing", f"Bearer {token}"),
            ("/api/v1/volumes/none", f"Bearer {token}"),
        ]:
            request = urllib.request.Request(server.ready["admin"]["url"] + path, headers={"Authorization": header})
            with self.assertRaises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(request, timeout=30)
            self.assertNotIn(token, refused.exception.read().decode())
        with Peer(server.port) as peer:
            peer.mount("/main")
            peer.getattr(bytes(32))
        self.assertEqual(server.stop(), 0)
        log = server.log_path.read_text(errors="replace")
        self.assertIn("DEBUG", log, "it was not written in full")
        number = int(key, 16)
        little = number.to_bytes(16, "little")
        for name, secret in [
            ("token", token),
            ("wrong token", wrong),
            ("key", key),
            ("key as a number", str(number)),
            ("key as bytes", ", ".join(map(str, little))),
            ("key as bytes, from the other end", ", ".join(map(str, little[::-1]))),
        ]:
            self.assertNotIn(secret, log, f"the {name} is in the log")

    def test_every_path_of_the_admin_api_takes_the_token(self):
        server = self.server(1)
        url = server.ready["admin"]["url"]
        document = json.loads(urllib.request.urlopen(f"{url}/api/v1/openapi.json", timeout=30).read())
        tried = 0
        for path, item in document["paths"].items():
            for method in item.keys() & {"get", "put", "post", "patch", "delete"}:
                if (method, path) in OPEN:
                    continue
                tried += 1
                real = re.sub(r"\{[^}]*\}", "main", path)
                for headers in ({}, {"Authorization": "Bearer 0123456789abcdef0123456789abcdef"}):
                    body = None if method in ("get", "delete") else b"{}"
                    request = urllib.request.Request(url + real, data=body, headers=headers, method=method.upper())
                    with self.assertRaises(urllib.error.HTTPError) as refused:
                        urllib.request.urlopen(request, timeout=30)
                    self.assertEqual(refused.exception.code, 401, f"{method} {real}")
        self.assertGreater(tried, 20)
        volumes = json.loads(server.cairn("volume", "list", "--json").stdout)["volumes"]
        self.assertEqual([volume["name"] for volume in volumes], ["main"])

    def connection(self, port, source):
        connection = socket.create_connection((HERE, port), timeout=SECONDS_MAX, source_address=(source, 0))
        self.addCleanup(connection.close)
        return connection

    def test_a_flood_of_strangers_leaves_room(self):
        server = self.server(1)
        server.cairn("export", "remove", "main")
        server.cairn("export", "set", "main", "--client", HERE, "--squash", "none")
        with Peer(server.port) as peer:
            status, root = peer.mount("/main")
            self.assertEqual(status, OK)
            _, file, _ = peer.create(root, "f")
            before = resident_bytes(server.pid)
            # Each announces a WRITE of 1 MiB to a file that there is, and sends no more than its beginning.
            len_bytes = 1 << 20
            credential = struct.pack(">I", 0) + opaque(b"raw") + struct.pack(">III", 0, 0, 0)
            head = struct.pack(">6I", 1, 0, 2, 100003, 3, 7) + struct.pack(">I", 1) + opaque(credential)
            head += struct.pack(">II", 0, 0) + opaque(file) + struct.pack(">QIII", 0, len_bytes, 0, len_bytes)
            mark = struct.pack(">I", 0x8000_0000 | (len(head) + len_bytes))
            for _ in range(FLOOD_CONNECTIONS):
                connection = self.connection(server.port, STRANGER)
                with contextlib.suppress(OSError):
                    connection.sendall(mark + head + bytes(20_000))
            # Some were refused, and who may come in still does.
            refused = harness.wait_until(
                lambda: server.metrics()["cairn_nfs_connections_refused_total"], SECONDS_MAX, "a refusal"
            )
            self.assertGreater(refused, 0)
            with Peer(server.port) as second:
                self.assertEqual(second.mount("/main")[0], OK)
                self.assertEqual(second.write(file, content(3, 100_000)), OK)
            self.assertEqual(peer.read(file), OK)
            held = server.metrics()["cairn_nfs_held_bytes"]
            self.assertLess(held, 1 << 20, "payloads of strangers are kept")
        self.assertLess(resident_bytes(server.pid) - before, FLOOD_BYTES_MAX)

    def test_a_flood_is_few_lines_of_the_log(self):
        server = self.server(1)
        started = time.monotonic()
        with Peer(server.port) as peer:
            for _ in range(LOG_FLOOD):
                self.assertEqual(peer.mount("/main")[0], OK)
                self.assertEqual(peer.mount("/none")[0], NOENT)
        for _ in range(LOG_FLOOD):
            # A record longer than any.
            with socket.create_connection((HERE, server.port), timeout=SECONDS_MAX) as connection:
                connection.sendall(b"\xff" * 4)
                self.assertEqual(connection.recv(1), b"")
        self.assertEqual(server.stop(), 0)
        # With the stop: the server may see the end of a connection after its client.
        intervals = 1 + int((time.monotonic() - started) / LOG_SECONDS)
        log = server.log_path.read_text(errors="replace")
        for line, count_max in LOG_LINES_MAX.items():
            count = log.count(line)
            self.assertGreater(count, 0, line)
            self.assertLessEqual(count, count_max * intervals, line)

    def test_half_requests_do_not_keep_the_admin_api(self):
        server = self.server(1)
        address = self.admin_address(server)
        halves = []
        for number in range(HALF_REQUESTS):
            # From the address that asks, and from another one.
            source = ("127.0.0.1", "127.0.0.2")[number % 2]
            connection = socket.create_connection(address, timeout=SECONDS_MAX, source_address=(source, 0))
            self.addCleanup(connection.close)
            with contextlib.suppress(ConnectionError):
                connection.sendall(b"GET /healthz HTTP/1.1\r\nHo")
            halves.append(connection)
        # They have no place, so nobody waits for theirs.
        for path in ("/healthz", "/api/v1/session/ways"):
            begun = time.monotonic()
            with urllib.request.urlopen(server.ready["admin"]["url"] + path, timeout=SECONDS_MAX) as answer:
                self.assertEqual(answer.status, 200)
            with self.measured():
                self.assertLess(time.monotonic() - begun, ANSWER_SECONDS_MAX, path)
        self.assertTrue(server.status()["version"])
        for connection in halves:
            with contextlib.suppress(ConnectionResetError):
                self.assertEqual(connection.recv(1), b"", "a half request is answered")

    def test_health_is_told_when_all_places_are_taken(self):
        server = self.server(1)
        address = self.admin_address(server)
        # Whole heads with bodies that do not come: as many as may have a place, and more.
        head = f"POST /api/v1/session HTTP/1.1\r\nHost: {address[0]}\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{{"
        for number in range(HALF_REQUESTS):
            connection = socket.create_connection(address, timeout=SECONDS_MAX, source_address=(f"127.0.0.{1 + number % 4}", 0))
            self.addCleanup(connection.close)
            with contextlib.suppress(ConnectionError):
                connection.sendall(head.encode())
        begun = time.monotonic()
        with urllib.request.urlopen(server.ready["admin"]["url"] + "/healthz", timeout=SECONDS_MAX) as answer:
            self.assertEqual(answer.read(), b"ok\n")
        with self.measured():
            self.assertLess(time.monotonic() - begun, ANSWER_SECONDS_MAX)
        # Nor do they take the places of who has the token, be it from one of their addresses.
        begun = time.monotonic()
        for _ in range(4):
            self.assertTrue(server.status()["version"])
        with self.measured():
            self.assertLess(time.monotonic() - begun, ANSWER_SECONDS_MAX)
