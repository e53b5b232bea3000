"""Log-in by an OpenID provider: who gets in and as what, and each thing that must be wrong for nobody to get in."""

import json
import pathlib
import time
import urllib.error
import urllib.request
from urllib.parse import parse_qs, urlparse

from lib import harness, oidc
from lib.worlds import WorldTest

BEGINS_COUNT = 2000
KNOWN_SECONDS_MAX = 90
# Of memory that this may take: nothing is kept of a log-in that is under way.
GROWTH_BYTES_MAX = 16 << 20
# Requests of nobody that fail.
LOG_FLOOD = 100


class Oidc(WorldTest):
    def setUp(self):
        super().setUp()
        self.provider = self.enterContextHere(oidc.Provider(self.scratch))

    def oidc_server(self, flags=()):
        root = self.scratch / "pool"
        root.mkdir()
        return self.enterContextHere(oidc.OidcServer(root, self.provider, flags))

    def ask(self, server, method, path, body=None, cookies=None, **headers):
        """Status, headers and JSON of an answer; cookies are kept as a browser keeps them."""
        headers = {name.replace("_", "-"): value for name, value in headers.items()} | {"X-Cairn-Console": "1"}
        headers = {"Origin": server.origin} | headers
        if cookies:
            headers["Cookie"] = "; ".join(f"{name}={value}" for name, value in cookies.items())
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(server.origin + path, data, headers=headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                status, found, text = answer.status, answer.headers, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                status, found, text = error.code, error.headers, error.read()
        for line in found.get_all("set-cookie") or []:
            name, _, value = line.partition(";")[0].partition("=")
            if cookies is not None:
                cookies[name] = value
                if not value:
                    del cookies[name]
        return status, found, json.loads(text or "null")

    def begin(self, server, cookies):
        status, _, body = self.ask(server, "POST", "/api/v1/session/oidc/begin", cookies=cookies)
        self.assertEqual(status, 200, body)
        return body["address"]

    def finish(self, server, cookies, back):
        return self.ask(server, "POST", "/api/v1/session/oidc/finish", back, cookies=cookies)

    def log_in(self, server):
        """The whole way; gives back cookies, status and body."""
        cookies: dict[str, str] = {}
        back = self.provider.say_yes(self.begin(server, cookies))
        self.assertTrue(back.startswith(f"{server.origin}/console/login?"), back)
        status, _, body = self.finish(server, cookies, oidc.returned(back))
        return cookies, status, body

    def changes(self, server):
        entries = json.loads(server.cairn("audit", "list", "--json").stdout)["entries"]
        return [(one["user"], one["via"], one["method"], one["path"], one["status"]) for one in entries]

    def test_an_admin_and_a_viewer_log_in_and_out(self):
        server = self.oidc_server()
        self.assertEqual(self.ask(server, "GET", "/api/v1/session/ways")[2], {"oidc": "Example"})
        cookies, status, body = self.log_in(server)
        self.assertEqual((status, body["user"], body["role"], body["by"]), (200, "alice@example.org", "admin", "oidc"))
        # The log-in's own cookie is gone, the session's is there.
        self.assertEqual(list(cookies), [f"cairn-session-{server.admin_port}"])
        self.assertEqual(self.ask(server, "POST", "/api/v1/volumes", {"name": "two"}, cookies)[0], 201)
        # A change without the header of the console's pages is not theirs.
        cookie = next(f"{name}={value}" for name, value in cookies.items())
        request = urllib.request.Request(f"{server.origin}/api/v1/volumes/two", headers={"Cookie": cookie}, method="DELETE")
        with self.assertRaises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request, timeout=30)
        with refused.exception:
            self.assertEqual(refused.exception.code, 401)
        password = {"password": "correct horse battery", "new_password": "another horse entirely"}
        self.assertEqual(self.ask(server, "PUT", "/api/v1/session/password", password, cookies)[0], 409)

        self.provider.person = {"preferred_username": "bob", "groups": ["staff", "others"]}
        viewer, status, body = self.log_in(server)
        self.assertEqual((status, body["user"], body["role"]), (200, "bob", "viewer"))
        self.assertEqual(self.ask(server, "GET", "/api/v1/volumes", cookies=viewer)[0], 200)
        status, _, body = self.ask(server, "POST", "/api/v1/volumes", {"name": "three"}, viewer)
        self.assertEqual(status, 403)
        self.assertIn("oidc_admin", body["error"]["hint"])
        # A user of the same name is somebody else.
        server.cairn("user", "create", "bob", "--role", "admin", input="correct horse battery\n")
        self.assertEqual(self.ask(server, "POST", "/api/v1/volumes", {"name": "three"}, viewer)[0], 403)
        server.cairn("user", "delete", "bob")
        self.assertEqual(self.ask(server, "GET", "/api/v1/session", cookies=viewer)[2]["role"], "viewer")

        # Sessions survive kill -9; a log-out ends one.
        server.kill()
        server.start()
        self.assertEqual(self.ask(server, "GET", "/api/v1/session", cookies=cookies)[2]["user"], "alice@example.org")
        before = dict(viewer)
        self.assertEqual(self.ask(server, "DELETE", "/api/v1/session", cookies=viewer)[0], 204)
        self.assertEqual(self.ask(server, "GET", "/api/v1/volumes", cookies=before)[0], 401)
        changes = self.changes(server)
        for want in [
            ("alice@example.org", "oidc", "POST", "/api/v1/session/oidc/finish", 200),
            ("alice@example.org", "oidc", "POST", "/api/v1/volumes", 201),
            ("bob", "oidc", "POST", "/api/v1/volumes", 403),
            ("bob", "oidc", "DELETE", "/api/v1/session", 204),
        ]:
            self.assertIn(want, changes)
        # Other settings let other people in: sessions of those before end.
        server.flags[server.flags.index("storage-admins")] = "nobody"
        server.restart()
        self.assertEqual(self.ask(server, "GET", "/api/v1/session", cookies=cookies)[0], 401)
        self.assertEqual(self.log_in(server)[1], 200)
        # The secret is nowhere that others can read.
        argv = pathlib.Path(f"/proc/{server.pid}/cmdline").read_bytes()
        for text in (server.log_path.read_bytes(), argv, server.get("/metrics").encode()):
            self.assertNotIn(self.provider.secret.encode(), text)

    def test_what_proves_nothing_lets_nobody_in(self):
        server = self.oidc_server()
        now = int(time.time())
        provider = self.provider
        cases = [
            ("wrong key", {}, lambda claims: provider.other_key.signed(claims, "first"), 401, "signature is wrong"),
            ("a key that is not published", {}, provider.other_key.signed, 401, "does not publish"),
            ("no signature", {}, lambda claims: unsigned(provider, claims), 401, "signed by none"),
            ("another audience", {"aud": "other"}, None, 401, "another audience, other"),
            ("several audiences", {"aud": ["other", oidc.CLIENT_ID]}, None, 401, "another audience"),
            ("another issuer", {"iss": "http://localhost:1"}, None, 401, "which is not the provider"),
            ("another nonce", {"nonce": "n"}, None, 401, "nonce"),
            ("expired", {"exp": now - 3600}, None, 401, "clock"),
            ("of tomorrow", {"iat": now + 86400}, None, 401, "clock"),
            ("no role", {"groups": ["others"]}, None, 403, "the OpenID provider tells others"),
            ("no groups", {"groups": None}, None, 403, "the OpenID provider tells none"),
            ("no name", {"preferred_username": None}, None, 403, "no claim preferred_username"),
            ("a name that is the token's", {"preferred_username": "token"}, None, 403, "calls you"),
        ]
        for name, wrong, sign, want, part in cases:
            with self.subTest(name):
                provider.wrong = wrong
                provider.sign = sign or provider.key.signed
                cookies, status, body = self.log_in(server)
                self.assertEqual(status, want, body)
                self.assertIn(part, body["error"]["message"] + body["error"]["hint"])
                self.assertEqual(cookies, {}, "nobody is in, and the log-in is over")
        # The first is told at once, the others of the minute together.
        self.assertIn(("?", "oidc", "POST", "/api/v1/session/oidc/finish", 401), self.changes(server))
        # Nothing of that keeps the right one out; new keys are asked for.
        provider.wrong, provider.sign = {}, provider.other_key.signed
        provider.keys = [provider.other_key]
        harness.wait_until(lambda: self.log_in(server)[1] == 200, KNOWN_SECONDS_MAX, "that the provider's new keys are known", 1)

    def test_a_log_in_is_of_the_browser_that_began_it(self):
        server = self.oidc_server()
        cookies: dict[str, str] = {}
        back = oidc.returned(self.provider.say_yes(self.begin(server, cookies)))
        kept = dict(cookies)
        for name, others, given in [
            ("no cookie", {}, back),
            ("another state", dict(kept), back | {"state": "0" * 64}),
            ("a changed cookie", {name: value[:-1] + "x" for name, value in kept.items()}, back),
        ]:
            with self.subTest(name):
                status, _, body = self.finish(server, others, given)
                self.assertEqual(status, 401, body)
                self.assertIn("did not start this log-in", body["error"]["message"])
        # Another one that was begun since is the one that counts.
        self.begin(server, cookies)
        self.assertEqual(self.finish(server, dict(cookies), back)[0], 401)
        status, _, body = self.finish(server, dict(kept), {"state": back["state"], "error": "access_denied"})
        self.assertEqual(status, 401)
        self.assertIn("access_denied", body["error"]["message"])
        self.assertEqual(self.finish(server, dict(kept), {"state": back["state"]})[0], 400)
        self.assertEqual(self.finish(server, dict(kept), back)[0], 200)
        # A code is good for once.
        status, _, body = self.finish(server, dict(kept), back)
        self.assertEqual(status, 401)
        self.assertIn("invalid_grant", body["error"]["message"])

    def test_nobody_is_sent_to_where_somebody_else_says(self):
        server = self.oidc_server()
        address = self.begin(server, {})
        query = parse_qs(urlparse(address).query)
        self.assertEqual(query["redirect_uri"], [f"{server.origin}/console/login"])
        self.assertEqual(query["scope"], ["openid profile"])
        for name, headers, part in [
            ("a page of another site", {"Origin": "https://evil.example"}, "another site"),
            ("another site by a browser's word", {"Sec_Fetch_Site": "cross-site"}, "another site"),
            ("a name that is not in the settings", {"Origin": "http://evil.example", "Host": "evil.example"}, "oidc_address"),
        ]:
            with self.subTest(name):
                status, _, body = self.ask(server, "POST", "/api/v1/session/oidc/begin", **headers)
                self.assertEqual(status, 403, body)
                self.assertIn(part, body["error"]["message"] + body["error"]["hint"])
        # The provider looks at it as well.
        self.provider.allowed.clear()
        with self.assertRaises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(address, timeout=30)
        with refused.exception:
            self.assertIn("not allowed", refused.exception.read().decode())

    def test_a_provider_that_is_away_is_told_and_the_token_works(self):
        with oidc.Provider(self.scratch) as provider:
            root = self.scratch / "pool"
            root.mkdir()
            server = self.enterContextHere(oidc.OidcServer(root, provider))
        status, _, body = self.ask(server, "POST", "/api/v1/session/oidc/begin")
        self.assertEqual(status, 503, body)
        self.assertIn("does not answer", body["error"]["message"])
        # Whoever asks as often as they like causes a line of the log in 5 s.
        for _ in range(LOG_FLOOD):
            self.assertEqual(self.ask(server, "POST", "/api/v1/session/oidc/begin")[0], 503)
        lines = server.log_path.read_text(errors="replace").count("a log-in through the OpenID provider cannot start")
        self.assertGreater(lines, 0)
        self.assertLess(lines, LOG_FLOOD // 4)
        token = server.token_path.read_text().strip()
        self.assertEqual(self.ask(server, "POST", "/api/v1/session", {"token": token})[0], 200)
        with provider:
            again = lambda: self.ask(server, "POST", "/api/v1/session/oidc/begin")[0] == 200
            harness.wait_until(again, KNOWN_SECONDS_MAX, "that the provider is asked again")
            # The wrong secret is told as what it is.
            provider.secret = "another"
            cookies: dict[str, str] = {}
            back = oidc.returned(provider.say_yes(self.begin(server, cookies)))
            status, _, body = self.finish(server, cookies, back)
            self.assertEqual(status, 401)
            self.assertIn("invalid_client", body["error"]["message"])
            provider.issuer += "/other"
            server.restart()
            status, _, body = self.ask(server, "POST", "/api/v1/session/oidc/begin")
            self.assertEqual(status, 503)
            self.assertIn("alike to the letter", body["error"]["message"])

    def test_log_ins_under_way_take_no_memory(self):
        server = self.oidc_server()
        for _ in range(100):
            self.begin(server, {})
        before = harness.resident_bytes(server.pid)
        for _ in range(BEGINS_COUNT):
            self.begin(server, {})
        self.assertLess(harness.resident_bytes(server.pid) - before, GROWTH_BYTES_MAX)
        # The provider was asked once for all of them.
        self.assertEqual(self.provider.asked.count("/keys"), 1)
        self.assertEqual(self.log_in(server)[1], 200)

    def test_a_server_without_its_secret_does_not_start(self):
        self.provider.secret_path.unlink()
        with self.assertRaises(harness.Failure) as failed:
            self.oidc_server()
        self.assertIn("oidc.secret", str(failed.exception))
        self.assertIn("client secret", str(failed.exception))


def unsigned(provider, claims):
    _, body, _ = provider.key.signed(claims).split(".")
    return f"{oidc.base64url(json.dumps({'alg': 'none'}).encode())}.{body}."
