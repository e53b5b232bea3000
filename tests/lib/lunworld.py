"""A server with a LUN, and sessions with it."""

import json

from lib import harness, iscsi
from lib.worlds import WorldTest

INITIATOR = "iqn.2025-11.test:host"
LUN_BYTES = 64 << 20


class LunTest(WorldTest):
    def lun_server(self, disks=1, flags=(), size_bytes=LUN_BYTES):
        self.iscsi_server(disks, flags)
        self.make_lun(size_bytes)

    def iscsi_server(self, disks=1, flags=()):
        """A server that has no LUN yet."""
        self.port = harness.next_port()
        self.lun_world = self.server(disks, flags=["--listen-iscsi", f"127.0.0.1:{self.port}", *flags])
        self.lun_world.waits.append(lambda: iscsi.await_targets(self.port))

    def make_lun(self, size_bytes=LUN_BYTES):
        self.cairn("lun", "create", "main/disk", "--size", str(size_bytes))
        self.cairn("igroup", "create", "main/hosts", "--initiator", INITIATOR)
        self.cairn("lun", "map", "main/disk", "--igroup", "hosts")
        self.target = json.loads(self.cairn("lun", "show", "main/disk", "--json").stdout)["target"]

    def cairn(self, *words, **options):
        return self.lun_world.cairn(*words, **options)

    def session(self, **options):
        session = iscsi.Session(("127.0.0.1", self.port), INITIATOR, self.target, **options)
        session.clear_attentions()
        return session
