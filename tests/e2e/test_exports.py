"""Who gets in, and as whom: export rules and file handles, against clients that do not keep to them."""

import json
import os
import socket

from lib.rawnfs import ACCES, BADHANDLE, NOENT, OK, ROFS, STALE, Denied, Peer
from lib.worlds import WorldTest

NOBODY = 65534
# The whole of 127.0.0.0/8 is this machine, so clients at several addresses need no second one.
HERE, THERE = "127.0.0.1", "127.0.0.2"
EXIT_REFUSED = 4
RESERVED_PORTS = range(1023, 600, -1)


class Exports(WorldTest):
    def setUp(self):
        super().setUp()
        self.one = self.server(1)

    def export(self, *arguments, volume="main"):
        """Puts these rules in place of all there are; each is a list of flags."""
        self.one.cairn("export", "remove", volume, check=False)
        for rule in arguments:
            self.one.cairn("export", "set", volume, *rule)

    def peer(self, source=HERE, source_port=0):
        peer = Peer(self.one.port, source, source_port)
        self.addCleanup(peer.socket.close)
        return peer

    def test_a_client_outside_the_list_gets_nothing(self):
        self.export(["--client", HERE, "--squash", "none"])
        inside, outside = self.peer(), self.peer(THERE)
        status, root = inside.mount("/main")
        self.assertEqual(status, OK)
        _, file, _ = inside.create(root, "secret")
        self.assertEqual(inside.exports(), ["/main"])

        self.assertEqual(outside.exports(), [], "it sees what there is")
        self.assertEqual(outside.mount("/main"), (ACCES, None))
        # What it learned of the handles helps it no more.
        for handle in (root, file):
            self.assertEqual(outside.getattr(handle)[0], ACCES)
            self.assertEqual(outside.read(handle), ACCES)
            self.assertEqual(outside.write(handle, b"x"), ACCES)
        self.assertEqual(outside.remove(root, "secret"), ACCES)
        self.assertEqual(outside.create(root, "mine")[0], ACCES)
        self.assertEqual(outside.lookup(root, "secret"), (ACCES, None))
        self.assertEqual(inside.read(file), OK)

        # The pseudo root shows it nothing either.
        status, pseudo = outside.mount("/")
        if status == OK:
            self.assertEqual(outside.lookup(pseudo, "main"), (NOENT, None))

    def test_a_right_that_is_taken_away_is_gone_at_once(self):
        peer = self.peer()
        _, root = peer.mount("/main")
        _, file, _ = peer.create(root, "f")
        self.export(["--client", "10.0.0.0/8"])
        self.assertEqual(peer.read(file), ACCES)
        refused = self.one.cairn("ls", self.one.url(), check=False)
        self.assertEqual(refused.returncode, EXIT_REFUSED, refused.stderr)
        self.export()
        self.assertEqual(peer.read(file), STALE)
        self.assertEqual(peer.mount("/main"), (ACCES, None))
        self.export(["--client", HERE, "--squash", "none"])
        self.assertEqual(peer.read(file), OK)
        # Rules are kept over a restart.
        self.one.restart()
        listed = json.loads(self.one.cairn("export", "list", "--json").stdout)
        self.assertEqual([rule["client"] for rule in listed["exports"][0]["rules"]], [HERE])
        self.assertEqual(self.peer().read(file), OK)

    def test_the_narrowest_rule_decides(self):
        self.export(["--client", "127.0.0.0/8", "--squash", "none"], ["--client", THERE, "--ro"])
        writer, reader = self.peer(), self.peer(THERE)
        _, root = writer.mount("/main")
        _, file, _ = writer.create(root, "f", mode=0o666)
        self.assertEqual(writer.write(file, b"x"), OK)
        self.assertEqual(reader.mount("/main")[0], OK)
        self.assertEqual(reader.read(file), OK)
        self.assertEqual(reader.write(file, b"y"), ROFS)
        self.assertEqual(reader.create(root, "g")[0], ROFS)
        self.assertEqual(reader.remove(root, "f"), ROFS)

    def test_users_are_squashed(self):
        self.export(["--client", HERE, "--squash", "none"])
        peer = self.peer()
        _, root = peer.mount("/main")
        _, private, _ = peer.create(root, "private", mode=0o600)
        # Where anyone may make files, so that only the squash decides whose they are.
        self.one.cairn("volume", "create", "open")
        self.export(["--client", HERE, "--squash", "none"], volume="open")
        _, open_root = peer.mount("/open")
        self.assertEqual(peer.chmod(open_root, 0o777), OK)
        cases = [
            (["--squash", "none"], 0, (0, 0)),
            (["--squash", "none"], 1000, (1000, 1000)),
            (["--squash", "root"], 0, (NOBODY, NOBODY)),
            (["--squash", "root"], 1000, (1000, 1000)),
            (["--squash", "root", "--anonuid", "7", "--anongid", "8"], 0, (7, 8)),
            (["--squash", "all"], 0, (NOBODY, NOBODY)),
            (["--squash", "all", "--anonuid", "7", "--anongid", "8"], 1000, (7, 8)),
        ]
        for index, (flags, uid, want) in enumerate(cases):
            with self.subTest(flags=flags, uid=uid):
                for volume in ("main", "open"):
                    self.export(["--client", HERE, *flags], volume=volume)
                status, _, made = peer.create(open_root, f"f{index}", uid=uid, gid=uid)
                self.assertEqual((status, made and made[1:]), (OK, want))
                may_read = flags == ["--squash", "none"] and uid == 0
                self.assertEqual(peer.read(private, uid=uid, gid=uid), OK if may_read else ACCES)
        # A group of 0 is no way around it.
        self.export(["--client", HERE, "--squash", "root"], volume="open")
        _, _, made = peer.create(open_root, "group", uid=1000, gid=0, groups=(0,))
        self.assertEqual(made[1:], (1000, NOBODY))

    def test_a_reserved_port_can_be_required(self):
        self.export(["--client", HERE, "--require-reserved-port"])
        user = self.peer()
        self.assertGreater(user.socket.getsockname()[1], 1023)
        self.assertEqual(user.mount("/main"), (ACCES, None))
        if os.geteuid() == 0:
            root = self.from_reserved_port()
            status, handle = root.mount("/main")
            self.assertEqual(status, OK)
            self.assertEqual(root.getattr(handle)[0], OK)
            self.assertEqual(user.getattr(handle)[0], ACCES)

    def from_reserved_port(self):
        for port in RESERVED_PORTS:
            try:
                return self.peer(source_port=port)
            except OSError:
                continue
        raise AssertionError("all reserved ports are in use")

    def test_handles_cannot_be_made(self):
        peer = self.peer()
        _, root = peer.mount("/main")
        _, file, _ = peer.create(root, "f")
        for index in range(len(file)):
            flipped = bytearray(file)
            flipped[index] ^= 1
            self.assertEqual(peer.getattr(bytes(flipped))[0], BADHANDLE, f"byte {index}")
        # One more and one less, none, and the longest there is.
        for forged in (file + b"\0", file[:-1], b"", bytes(64), b"\xff" * 64):
            self.assertEqual(peer.getattr(forged)[0], BADHANDLE, forged)
        # Inode 1 of volume 1 is there in every pool, and still each pool signs its own.
        other = self.server(1, name="other")
        with Peer(other.port) as stranger:
            _, foreign = stranger.mount("/main")
            self.assertEqual(peer.getattr(foreign)[0], BADHANDLE)
            self.assertEqual(stranger.getattr(root)[0], BADHANDLE)
        self.assertEqual(peer.remove(root, "f"), OK)
        self.assertEqual(peer.getattr(file)[0], STALE)
        # Too long for the protocol: the call is refused as a whole.
        with self.assertRaises(Denied):
            peer.getattr(bytes(65))
        self.assertEqual(peer.getattr(root)[0], OK)

    def test_nothing_listens_beyond_this_machine_by_default(self):
        defaults = self.one.cairn("serve", "--help").stdout
        self.assertIn("[default: 127.0.0.1:2049]", defaults)
        self.assertIn("[default: 127.0.0.1:8049]", defaults)
        rules = json.loads(self.one.cairn("export", "list", "--json").stdout)["exports"][0]["rules"]
        self.assertEqual([rule["client"] for rule in rules], ["127.0.0.0/8", "::1"])

    def test_the_admin_api_takes_only_its_token(self):
        address, _, port = self.one.ready["admin"]["url"].removeprefix("http://").rpartition(":")
        self.assertEqual(address, "127.0.0.1")
        self.assertEqual(self.one.token_path.stat().st_mode & 0o777, 0o600)
        for path in ("/api/v1/status", "/api/v1/volumes", "/api/v1/exports", "/api/v1/disks", "/metrics"):
            for header in ("", "Authorization: Bearer 0123456789abcdef0123456789abcdef\r\n"):
                with socket.create_connection((address, int(port)), timeout=30) as connection:
                    request = f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{header}\r\n"
                    connection.sendall(request.encode())
                    self.assertIn(b"HTTP/1.1 401", connection.makefile("rb").read(), path)
