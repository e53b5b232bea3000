"""Users of the admin API: log-in, roles, sessions, limits, the audit log, HTTPS; and what survives kill -9."""

import base64
import csv
import http.client
import io
import json
import os
import socket
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from urllib.parse import urlparse

from lib import harness
from lib.worlds import WorldTest

PASSWORD, OTHER = "correct horse battery", "another horse entirely"
# Tries of one user at once.
TRIES_OF_A_USER = 10
# One more is let try after so long.
TRY_BACK_SECONDS = 30
REFUSED = 4
SEEN_SECONDS_MAX = 90


class Users(WorldTest):
    def ask(self, server, method, path, body=None, **headers):
        """Status, headers and JSON of an answer; `headers` with underscores."""
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(server.ready["admin"]["url"] + path, data, headers=headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, answer.headers, json.loads(answer.read() or "null")
        except urllib.error.HTTPError as error:
            return error.code, error.headers, json.loads(error.read() or "null")

    def make(self, server, name, role, password=PASSWORD, check=True):
        return server.cairn("user", "create", name, "--role", role, check=check, input=f"{password}\n")

    def log_in(self, server, user, password=PASSWORD):
        status, headers, body = self.ask(server, "POST", "/api/v1/session", {"user": user, "password": password})
        self.assertEqual(status, 200, body)
        return headers["set-cookie"].partition(";")[0]

    def by_cookie(self, server, cookie, method, path, body=None):
        return self.ask(server, method, path, body, Cookie=cookie, X_Cairn_Console="1")

    def as_user(self, server, user, *words, password=PASSWORD):
        """A command of `cairn` by a user instead of with the token."""
        argv = [str(harness.cairn_path()), *map(str, words), "--server", server.ready["admin"]["url"], "--login", user]
        environment = server.environment() | {"CAIRN_PASSWORD": password}
        return subprocess.run(argv, capture_output=True, text=True, stdin=subprocess.DEVNULL, env=environment)

    def what_a_change_would_touch(self, server):
        """Volumes, exports and users, without the room that is left: the server's own log takes some of it."""
        volumes = json.loads(server.cairn("volume", "list", "--json").stdout)["volumes"]
        for volume in volumes:
            del volume["total_bytes"], volume["free_bytes"]
        lists = [server.cairn(what, "list", "--json").stdout for what in ("export", "user")]
        return volumes, lists

    def test_a_user_survives_kill_9_and_other_users_changes_too(self):
        server = self.server(3)
        self.make(server, "alice", "admin")
        server.kill()
        server.start()
        cookie = self.log_in(server, "alice")
        self.assertEqual(self.by_cookie(server, cookie, "GET", "/api/v1/volumes")[0], 200)
        # A session survives as well; the user's role is what it was made.
        server.kill()
        server.start()
        # A cookie is of the server at its port, which is another one now.
        name, _, value = cookie.partition("=")
        cookie = f"{name.rpartition('-')[0]}-{urlparse(server.ready['admin']['url']).port}={value}"
        self.assertEqual(self.by_cookie(server, cookie, "POST", "/api/v1/volumes", {"name": "two"})[0], 201)
        # Neither the password nor a hash of it is in a log, an answer, or a file that others can read.
        listed = server.cairn("user", "list", "--json").stdout
        self.assertEqual([user["role"] for user in json.loads(listed)["users"]], ["admin"])
        log = server.log_path.read_text(errors="replace")
        for text in (listed, log):
            self.assertNotIn(PASSWORD, text)
            self.assertNotIn("argon2", text)
        server.cairn("user", "delete", "alice")
        server.kill()
        server.start()
        self.assertEqual(json.loads(server.cairn("user", "list", "--json").stdout)["users"], [])

    def test_a_viewer_changes_nothing(self):
        server = self.server(1)
        self.make(server, "bob", "viewer")
        cookie = self.log_in(server, "bob")
        before = self.what_a_change_would_touch(server)
        for method, path, body in (
            ("POST", "/api/v1/volumes", {"name": "two"}),
            ("DELETE", "/api/v1/volumes/main?force=true", None),
            ("PUT", "/api/v1/exports/main", {"rules": []}),
            ("POST", "/api/v1/users", {"name": "eve", "role": "admin", "password": PASSWORD}),
            ("PATCH", "/api/v1/users/bob", {"role": "admin"}),
            ("POST", "/api/v1/scrub/start", {}),
        ):
            status, _, body = self.by_cookie(server, cookie, method, path, body)
            self.assertEqual((status, body["error"]["kind"]), (403, "forbidden"), path)
            self.assertIn("bob is a viewer", body["error"]["message"])
        refused = self.as_user(server, "bob", "volume", "create", "two")
        self.assertEqual(refused.returncode, REFUSED)
        self.assertIn("bob is a viewer", refused.stderr)
        self.assertIn("main", self.as_user(server, "bob", "volume", "list").stdout)
        self.assertEqual(self.what_a_change_would_touch(server), before)
        # A viewer has a password of its own to change.
        words = ["user", "password", "bob", "--password-file"]
        path = self.scratch / "password"
        path.write_text(f"{OTHER}\n")
        changed = self.as_user(server, "bob", *words, path)
        self.assertEqual(changed.returncode, 0, changed.stderr)
        self.assertEqual(self.by_cookie(server, cookie, "GET", "/api/v1/volumes")[0], 401)
        self.log_in(server, "bob", OTHER)
        server.cairn("user", "set", "bob", "--role", "admin")
        self.assertEqual(self.as_user(server, "bob", "volume", "create", "two", password=OTHER).returncode, 0)

    def test_who_is_not_let_in(self):
        server = self.server(1)
        self.make(server, "alice", "admin")
        cookie = self.log_in(server, "alice")
        self.assertEqual(self.make(server, "alice", "viewer", check=False).returncode, REFUSED)
        for name, role, password in (
            ("eve", "viewer", "short"), ("token", "viewer", PASSWORD), ("eve", "root", PASSWORD),
            # Common ones, and her own name.
            ("eve", "viewer", "password123"), ("eve", "viewer", "1234567890"), ("eve.of.example", "viewer", "eve.of.example"),
        ):
            self.assertEqual(self.make(server, name, role, password, check=False).returncode, 2, password)
        wrong = {"user": "alice", "password": "wrong horse"}
        unknown = {"user": "nobody", "password": PASSWORD}
        answers = [self.ask(server, "POST", "/api/v1/session", body) for body in (wrong, unknown)]
        # Nobody learns which users there are.
        self.assertEqual([(status, body) for status, _, body in answers], [(401, answers[0][2])] * 2)
        # Tries are taken away faster than they come back: nothing here waits.
        statuses: list[int] = []
        while 429 not in statuses and len(statuses) < TRIES_OF_A_USER + 5:
            status, headers, body = self.ask(server, "POST", "/api/v1/session", wrong)
            statuses.append(status)
        self.assertEqual(statuses[-1], 429, statuses)
        self.assertGreaterEqual(int(headers["retry-after"]), 1)
        self.assertEqual(body["error"]["kind"], "too_many")
        limited = self.as_user(server, "alice", "volume", "list")
        self.assertEqual(limited.returncode, REFUSED)
        self.assertIn("too many tries", limited.stderr)
        # Sessions and the token go on; a session ends with its user.
        self.assertEqual(self.by_cookie(server, cookie, "GET", "/api/v1/volumes")[0], 200)
        server.cairn("user", "password", "alice", input=f"{OTHER}\n")
        self.assertEqual(self.by_cookie(server, cookie, "GET", "/api/v1/volumes")[0], 401)
        # A change by cookie needs the console's header; a browser's name and password are not taken.
        basic = "Basic " + base64.b64encode(f"alice:{OTHER}".encode()).decode()
        asked = self.ask(server, "GET", "/api/v1/volumes", Authorization=basic, Sec_Fetch_Site="cross-site")
        self.assertEqual(asked[0], 401)

    def test_a_log_out_survives_kill_9_and_sessions_end_one_by_one(self):
        server = self.server(1)
        for name, role in (("alice", "admin"), ("bob", "viewer")):
            self.make(server, name, role)
        alice = self.log_in(server, "alice")
        out, ended, other = (self.log_in(server, "bob") for _ in range(3))
        self.assertEqual(self.by_cookie(server, out, "DELETE", "/api/v1/session")[0], 204)
        _, _, listed = self.by_cookie(server, ended, "GET", "/api/v1/sessions")
        [own] = [one["id"] for one in listed["sessions"] if one["is_own"]]
        users = [one["user"] for one in listed["sessions"]]
        self.assertEqual(users, ["alice", "bob", "bob"], "the one that logged out is not there")
        # A viewer sees who is there, and ends nobody.
        self.assertEqual(self.by_cookie(server, other, "DELETE", f"/api/v1/sessions/{own}")[0], 403)
        self.assertIn(own, server.cairn("user", "sessions").stdout)
        server.cairn("user", "logout", "--session", own)
        again = server.cairn("user", "logout", "--session", own, check=False)
        self.assertNotEqual(again.returncode, 0)
        self.assertIn("session", again.stderr)

        def hold():
            # A cookie is named after the port, which is another one after a start.
            port = urlparse(server.ready["admin"]["url"]).port
            values = [cookie.partition("=")[2] for cookie in (alice, out, ended, other)]
            name = alice.partition("=")[0].rstrip("0123456789")
            return [self.by_cookie(server, f"{name}{port}={value}", "GET", "/api/v1/volumes")[0] for value in values]

        self.assertEqual(hold(), [200, 401, 401, 200])
        server.kill()
        server.start()
        self.assertEqual(hold(), [200, 401, 401, 200])
        server.cairn("user", "logout", "bob")
        self.assertEqual(hold(), [200, 401, 401, 401])
        # They log in again, once the second is over in which all ended.
        harness.wait_until(lambda: self.ask(server, "POST", "/api/v1/session", {"user": "bob", "password": PASSWORD})[0] == 200,
                           SEEN_SECONDS_MAX, "bob logs in again")

    def test_guesses_from_elsewhere_keep_nobody_out(self):
        server = self.server(1)
        self.make(server, "alice", "admin")

        def log_in(source, password=PASSWORD):
            address = urlparse(server.ready["admin"]["url"])
            connection = http.client.HTTPConnection(address.hostname, address.port, timeout=30, source_address=(source, 0))
            body = json.dumps({"user": "alice", "password": password})
            try:
                connection.request("POST", "/api/v1/session", body, {"Content-Type": "application/json"})
                return connection.getresponse().status
            finally:
                connection.close()

        guesser, home = "127.0.0.2", "127.0.0.3"
        begun = time.monotonic()

        def guess():
            """Guesses until it is not let try any more; how often it was."""
            statuses = [log_in(guesser, "wrong horse")]
            while statuses[-1] == 401:
                self.assertLess(len(statuses), 10 * TRIES_OF_A_USER)
                statuses.append(log_in(guesser, "wrong horse"))
            self.assertEqual(statuses[-1], 429)
            return len(statuses) - 1

        def tries_max():
            """Tries come back while this goes on: on a busy machine it takes longer."""
            return TRIES_OF_A_USER + 1 + int((time.monotonic() - begun) / TRY_BACK_SECONDS)

        guesses = guess()
        self.assertIn(guesses, range(TRIES_OF_A_USER, tries_max()))
        self.assertEqual((log_in(guesser), log_in(home)), (429, 200))
        # All of them are in the log: the first at once, the others counted, at the latest when the server stops.
        server.stop()
        server.start()
        entries = json.loads(server.cairn("audit", "list", "--refused", "--json").stdout)["entries"]
        failed = [one for one in entries if one["address"] == guesser]
        self.assertEqual(sum(one.get("count", 1) for one in failed), guesses, entries)
        self.assertLess(len(failed), guesses)
        # And they count after the start.
        self.assertIn(guesses + guess(), range(TRIES_OF_A_USER, tries_max()))
        self.assertEqual((log_in(guesser), log_in(home)), (429, 200))

    def test_a_stream_ends_with_its_session(self):
        server = self.server(1)
        self.make(server, "bob", "viewer")
        address = urlparse(server.ready["admin"]["url"])
        basic = base64.b64encode(f"bob:{PASSWORD}".encode()).decode()
        streams = []
        for headers in ({"Cookie": self.log_in(server, "bob")}, {"Authorization": f"Basic {basic}"}):
            connection = http.client.HTTPConnection(address.hostname, address.port, timeout=30)
            self.addCleanup(connection.close)
            connection.request("GET", "/api/v1/live/events", headers=headers)
            streams.append(connection.getresponse())
            self.assertEqual(streams[-1].readline().strip(), b"event: live")
        server.cairn("user", "delete", "bob")
        # They end by themselves; one that went on would run into the time limit.
        for stream in streams:
            while stream.readline():
                pass

    def test_a_change_of_somebody_who_hangs_up_is_kept(self):
        server = self.server(3)
        address = urlparse(server.ready["admin"]["url"])
        body = b'{"name":"two"}'
        head = f"POST /api/v1/volumes HTTP/1.1\r\nHost: h\r\nAuthorization: {self.bearer(server)}\r\nContent-Type: application/json\r\n"

        def hang_up():
            with socket.create_connection((address.hostname, address.port)) as connection:
                connection.sendall(head.encode() + f"Content-Length: {len(body)}\r\n\r\n".encode() + body)

        volumes = lambda: [volume["name"] for volume in json.loads(server.cairn("volume", "list", "--json").stdout)["volumes"]]
        # One whose end comes before the server has looked at it is no request.
        harness.wait_until(lambda: hang_up() or "two" in volumes(), SEEN_SECONDS_MAX, "the change is made")
        made = lambda: [one["path"] for one in json.loads(server.cairn("audit", "list", "--json").stdout)["entries"] if one["status"] == 201]
        self.assertEqual(harness.wait_until(made, SEEN_SECONDS_MAX, "it is kept"), ["/api/v1/volumes"])

    def test_it_is_kept_who_changed_what(self):
        server = self.server(3)
        self.make(server, "alice", "admin")
        self.make(server, "bob", "viewer")
        self.assertEqual(self.as_user(server, "alice", "volume", "create", "two").returncode, 0)
        self.as_user(server, "bob", "volume", "delete", "two", "--yes")
        self.ask(server, "POST", "/api/v1/session", {"user": "bob", "password": "wrong horse"})

        def entries(*words):
            page = json.loads(server.cairn("audit", "list", "--json", *words).stdout)
            return [(one["user"], one["via"], one["method"], one["path"], one["status"]) for one in page["entries"]]

        want = [
            ("bob", "nothing", "POST", "/api/v1/session", 401),
            ("bob", "password", "DELETE", "/api/v1/volumes/two", 403),
            ("alice", "password", "POST", "/api/v1/volumes", 201),
            ("token", "token", "POST", "/api/v1/users", 201),
            ("token", "token", "POST", "/api/v1/users", 201),
        ]
        self.assertEqual(entries(), want)
        # What was answered is durable, and on more than one disk.
        server.kill()
        for path in server.disks[0].rglob("entries"):
            path.unlink()
        server.start()
        self.assertEqual(entries(), want)
        self.assertEqual(entries("--by", "alice"), want[2:3])
        self.assertEqual(entries("--refused", "--limit", "1"), want[:1])
        self.assertEqual(entries("--path", "volumes", "--method", "delete", "--since", "1h"), want[1:2])
        rows = list(csv.DictReader(io.StringIO(server.cairn("audit", "export", "--format", "csv").stdout)))
        self.assertEqual([(row["user"], row["status"]) for row in rows], [(user, str(status)) for user, _, _, _, status in want])
        lines = server.cairn("audit", "export", "--format", "json", "--by", "bob").stdout.splitlines()
        self.assertEqual([json.loads(line)["status"] for line in lines], [401, 403])
        # Page by page.
        _, _, page = self.ask(server, "GET", "/api/v1/audit?limit=2", Authorization=self.bearer(server))
        _, _, rest = self.ask(server, "GET", f"/api/v1/audit?before={page['next_before']}", Authorization=self.bearer(server))
        self.assertEqual(len(page["entries"] + rest["entries"]), len(want))
        self.assertNotIn("next_before", rest)

    def bearer(self, server):
        return f"Bearer {server.token_path.read_text().strip()}"

    def test_https_with_a_certificate_of_its_own(self):
        server = self.server(2, ["--admin-self-signed", "--admin-name", "localhost"])
        url = server.ready["admin"]["url"]
        self.assertTrue(url.startswith("https://localhost:"), url)
        trusted = self.scratch / "ca.pem"
        trusted.write_text(server.ready["certificate"])
        self.assertNotIn("PRIVATE", server.ready["certificate"])
        context = ssl.create_default_context(cafile=str(trusted))

        def cookie_of(context):
            body = json.dumps({"token": server.token_path.read_text().strip()}).encode()
            request = urllib.request.Request(f"{server.ready['admin']['url']}/api/v1/session", body)
            with urllib.request.urlopen(request, timeout=30, context=context) as answer:
                return answer.headers["set-cookie"]

        # The browser is told to send it over encrypted connections alone.
        self.assertTrue(cookie_of(context).endswith("; Secure"))
        with self.assertRaises(urllib.error.URLError):
            cookie_of(ssl.create_default_context())
        listed = server.cairn("volume", "list", "--ca", trusted, "--json")
        self.assertEqual(json.loads(listed.stdout)["volumes"][0]["name"], "main")
        # On the server's machine a command finds it, and knows it, by itself; elsewhere nobody knows it yet.
        words = [str(harness.cairn_path()), "volume", "list", "--json"]
        options = {"capture_output": True, "text": True, "stdin": subprocess.DEVNULL, "cwd": self.scratch}
        found = subprocess.run(words, env=server.environment(), **options)
        self.assertEqual(found.returncode, 0, found.stderr)
        elsewhere = server.environment() | {"CAIRN_RUNTIME_DIR": str(self.scratch.absolute()), "CAIRN_SERVER": url}
        lost = subprocess.run(words, env=elsewhere, **options)
        self.assertEqual(lost.returncode, 2)
        self.assertIn("--ca", lost.stderr)
        # It is the same one after a restart; nobody else can read its key, and it is on no disk.
        kept = server.state_path / "admin-tls.pem"
        self.assertEqual(kept.stat().st_mode & 0o777, 0o600)
        for disk in server.disks:
            self.assertEqual(list(disk.rglob("*.pem")), [])
        server.restart()
        cookie_of(context)

    def test_https_with_a_certificate_that_is_replaced(self):
        def certificate(number):
            folder = self.scratch / f"made{number}"
            folder.mkdir()
            words = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
            words += ["-subj", f"/CN=made{number}", "-addext", "subjectAltName=IP:127.0.0.1", "-addext", "basicConstraints=critical,CA:FALSE"]
            words += ["-keyout", str(folder / "key.pem"), "-out", str(folder / "crt.pem")]
            subprocess.run(words, check=True, capture_output=True)
            return folder

        first, second = certificate(1), certificate(2)
        used = self.scratch / "used"
        used.mkdir()
        for name in ("crt.pem", "key.pem"):
            (used / name).write_bytes((first / name).read_bytes())
        server = self.server(1, ["--admin-certificate", str(used / "crt.pem"), "--admin-key", str(used / "key.pem")])
        self.assertEqual(server.cairn("status", "--ca", first / "crt.pem").returncode, 0)
        self.assertNotEqual(server.cairn("status", "--ca", second / "crt.pem", check=False).returncode, 0)
        for name in ("crt.pem", "key.pem"):
            new = used / f"{name}.new"
            new.write_bytes((second / name).read_bytes())
            os.replace(new, used / name)
        is_known = lambda: server.cairn("status", "--ca", second / "crt.pem", check=False).returncode == 0
        harness.wait_until(is_known, SEEN_SECONDS_MAX, "the new certificate")
        # A start with what is no certificate is refused, and says so.
        server.stop()
        (used / "key.pem").write_text("nonsense")
        with self.assertRaises(harness.Failure) as refused:
            server.start()
        self.assertIn("admin_certificate", str(refused.exception))
