"""A small OpenID provider for tests, with keys of its own, and a server that takes its word.

Owns: what a provider checks (client, secret, address to return to, PKCE, a code once), what it is told to do wrong.
Must not know: what becomes of whoever comes back.
"""

import base64
import contextlib
import hashlib
import html
import http.server
import json
import secrets
import subprocess
import threading
import time
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import parse_qs, parse_qsl, unquote, urlencode, urlparse

from lib import harness

CLIENT_ID = "cairn console"
TOKEN_SECONDS = 300


def base64url(data):
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def openssl(*words, data=None):
    return subprocess.run(["openssl", *map(str, words)], input=data, capture_output=True, check=True).stdout


class Key:
    """An RSA key, made now."""

    def __init__(self, root, name):
        self.name = name
        self.path = root / f"{name}.pem"
        openssl("genrsa", "-out", self.path, "2048")
        modulus = openssl("rsa", "-in", self.path, "-noout", "-modulus").decode().strip().partition("=")[2]
        self.modulus = bytes.fromhex(modulus)

    def public(self):
        return {"kty": "RSA", "use": "sig", "alg": "RS256", "kid": self.name, "n": base64url(self.modulus), "e": "AQAB"}

    def signed(self, claims, name=None):
        head = {"alg": "RS256", "kid": name or self.name}
        words = ".".join(base64url(json.dumps(part).encode()) for part in (head, claims))
        return f"{words}.{base64url(openssl('dgst', '-sha256', '-sign', self.path, data=words.encode()))}"


class Provider:
    """Serves at `http://localhost:PORT` while it is entered. What it is to do is in its fields, which tests set."""

    def __init__(self, root):
        self.root = root
        self.key, self.other_key = Key(root, "first"), Key(root, "second")
        self.keys = [self.key]
        self.port = harness.next_port()
        self.issuer = f"http://localhost:{self.port}"
        self.secret = secrets.token_urlsafe(24)
        self.secret_path = root / "oidc.secret"
        self.secret_path.write_text(self.secret + "\n")
        self.secret_path.chmod(0o600)
        # Where it sends people back.
        self.allowed: list[str] = []
        self.person: dict[str, Any] = {"preferred_username": "alice@example.org", "groups": ["storage-admins"]}
        self.wrong: dict[str, Any] = {}
        self.sign = lambda claims: self.key.signed(claims)
        self.codes: dict[str, dict[str, str]] = {}
        self.asked: list[str] = []
        self.server: Any = None

    def __enter__(self):
        provider = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def log_message(self, format, *args):
                del format, args

            def send(self, status, kind, body, **headers):
                data = body.encode()
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(data)))
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data)

            def do_GET(self):
                self.send(*provider.shown(urlparse(self.path)))

            def do_POST(self):
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
                path = urlparse(self.path).path
                if path == "/authorize":
                    status, location = provider.approved(dict(parse_qsl(body)))
                    self.send(status, "text/plain", "", **({"Location": location} if location else {}))
                else:
                    status, answer = provider.token(self.headers.get("Authorization", ""), dict(parse_qsl(body)))
                    self.send(status, "application/json", json.dumps(answer))

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()

    def shown(self, url):
        self.asked.append(url.path)
        answer: dict[str, Any]
        if url.path == "/.well-known/openid-configuration":
            answer = {
                "issuer": self.issuer,
                "authorization_endpoint": f"{self.issuer}/authorize",
                "token_endpoint": f"{self.issuer}/token",
                "jwks_uri": f"{self.issuer}/keys",
            }
            return 200, "application/json", json.dumps(answer)
        if url.path == "/keys":
            # One of a kind that nobody knows is beside them, as with real providers.
            return 200, "application/json", json.dumps({"keys": [{"kty": "new"}, *[key.public() for key in self.keys]]})
        if url.path == "/authorize":
            asked = dict(parse_qsl(url.query))
            problem = self.problem(asked)
            if problem:
                return 400, "text/plain", problem
            fields = "".join(
                f'<input type="hidden" name="{html.escape(name)}" value="{html.escape(value)}">' for name, value in asked.items()
            )
            page = f'<!doctype html><html lang="en"><title>Provider</title><form method="post" action="/authorize">{fields}'
            return 200, "text/html", page + "<button>Yes, it is me</button></form>"
        return 404, "text/plain", "nothing"

    def problem(self, asked):
        """What is wrong with a request to log in, if something is."""
        if asked.get("client_id") != CLIENT_ID:
            return "this client is not known"
        if asked.get("redirect_uri") not in self.allowed:
            return "this address to return to is not allowed"
        is_flow = asked.get("response_type") == "code" and asked.get("code_challenge_method") == "S256"
        is_whole = all(asked.get(name) for name in ("state", "nonce", "code_challenge"))
        if not is_flow or not is_whole or "openid" not in asked.get("scope", "").split():
            return "this is not the authorisation code flow with PKCE"
        return None

    def approved(self, asked):
        problem = self.problem(asked)
        if problem:
            return 400, None
        code = secrets.token_urlsafe(16)
        self.codes[code] = asked
        return 303, f"{asked['redirect_uri']}?{urlencode({'code': code, 'state': asked['state']})}"

    def token(self, authorization, fields):
        def refused(why):
            return 400, {"error": "invalid_grant", "error_description": why}

        shown = base64.b64decode(authorization.removeprefix("Basic ")).decode()
        user, _, secret = shown.partition(":")
        if (unquote(user.replace("+", " ")), unquote(secret)) != (CLIENT_ID, self.secret):
            return 401, {"error": "invalid_client"}
        # A code is good for once.
        asked = self.codes.pop(fields.get("code", ""), None)
        if asked is None:
            return refused("this code is not known")
        if fields.get("redirect_uri") != asked["redirect_uri"]:
            return refused("this is another address")
        verifier = hashlib.sha256(fields.get("code_verifier", "").encode()).digest()
        if base64url(verifier) != asked["code_challenge"]:
            return refused("the verifier does not fit")
        now = int(time.time())
        claims = {"iss": self.issuer, "sub": "7", "aud": CLIENT_ID, "iat": now, "exp": now + TOKEN_SECONDS}
        claims |= {"nonce": asked["nonce"]} | self.person | self.wrong
        return 200, {"access_token": "unused", "token_type": "Bearer", "id_token": self.sign(claims)}

    def say_yes(self, address):
        """What somebody does who is sent to the provider: looks at the page, and presses its button. Where that leads."""
        opener = urllib.request.build_opener(NoRedirect)
        with opener.open(address, timeout=30) as page:
            assert "Yes, it is me" in page.read().decode()
        url = urlparse(address)
        try:
            opener.open(f"{self.issuer}/authorize", url.query.encode(), timeout=30)
        except urllib.error.HTTPError as error:
            with contextlib.closing(error):
                assert error.code == 303, error.code
                return error.headers["location"]
        raise harness.Failure("the provider sent nobody back")


class NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_):
        return None


class OidcServer(harness.Server):
    """A server whose people log in by a provider; its port stays the same, for the provider knows its address."""

    def __init__(self, root, provider, flags=()):
        self.admin_port = harness.next_port()
        self.origin = f"http://127.0.0.1:{self.admin_port}"
        self.provider = provider
        provider.allowed.append(f"{self.origin}/console/login")
        own = ["--oidc-issuer", provider.issuer, "--oidc-client-id", CLIENT_ID, "--oidc-address", self.origin]
        own += ["--oidc-client-secret-file", str(provider.secret_path), "--oidc-text", "Example"]
        own += ["--oidc-admin", "storage-admins", "--oidc-viewer", "staff"]
        super().__init__(root, 1, [*own, *flags])

    def argv(self):
        argv = super().argv()
        argv[argv.index("--listen-admin") + 1] = f"127.0.0.1:{self.admin_port}"
        return argv


def returned(location):
    """What the page sends to the server, of the address that somebody came back to."""
    return {name: value for name, (value,) in parse_qs(urlparse(location).query).items()}
