"""Copies that the target makes: EXTENDED COPY and tokens (ODX), by an initiator of our own."""

import contextlib
import json
import time

from lib import harness, iscsi
from lib.lunworld import INITIATOR, LUN_BYTES, LunTest
from lib.worlds import content

MIB = 1 << 20
DONE, FAILED = 0x01, 0x02
POINT_IN_TIME, ON_REFERENCE = 0x00800000, 0x00010000
ILLEGAL_REQUEST, DATA_PROTECT = 5, 7
TOKEN_UNKNOWN, INVALID_FIELD_IN_LIST, LBA_OUT_OF_RANGE = (0x23, 0x04), (0x26, 0x00), (0x21, 0x00)
TOKENS_MAX = 64
# Nobody who is idle is waited for.
RESTORE_SECONDS_MAX = 20
AVAILABLE_SECONDS_MAX = 60
INACTIVE_SECONDS = 5
FREED_SECONDS_MAX = 120
ZERO_TOKEN = bytes([0xFF, 0xFF, 0x00, 0x01, 0, 0, 0x01, 0xF8]) + bytes(504)


class Copies(LunTest):
    def two_luns(self, **options):
        """A second LUN beside the first: number 1."""
        self.lun_server(**options)
        self.cairn("lun", "create", "main/other", "--size", str(LUN_BYTES))
        self.cairn("lun", "map", "main/other", "--igroup", "hosts", "--lun-id", "1")

    def luns(self):
        return json.loads(self.cairn("lun", "list", "--json").stdout)["luns"]

    @contextlib.contextmanager
    def host(self):
        with self.session() as session:
            session.clear_attentions(1)
            yield session

    def fill(self, session, at, length, seed, lun=0):
        data = content(seed, length)
        for start in range(0, length, 256 << 10):
            session.write(at + start, data[start : start + (256 << 10)], lun=lun)
        return data

    def read(self, session, at, length, lun=0):
        return b"".join(session.read(at + start, min(MIB, length - start), lun=lun) for start in range(0, length, MIB))

    def refused(self, key, code, call, *words, **options):
        with self.assertRaises(iscsi.CommandFailed) as failed:
            call(*words, **options)
        self.assertEqual((failed.exception.key, failed.exception.code), (key, code))

    def written_bytes(self):
        """Bytes that were written to files."""
        return self.lun_world.metrics()['cairn_volume_written_bytes_total{volume="main"}']

    def used_bytes(self):
        """Of all files of the volume, those without a name included."""
        (volume,) = json.loads(self.cairn("volume", "list", "--json").stdout)["volumes"]
        return volume["used_bytes"]

    def test_extended_copy_shares_what_is_aligned(self):
        self.two_luns()
        with self.host() as session:
            data = self.fill(session, 0, 8 * MIB, 1)
            other = self.fill(session, 0, 12 * MIB, 2, lun=1)
            names = session.identity(0), session.identity(1)
            before = self.written_bytes()
            session.extended_copy(*names, [(0, 2 * MIB, 4 * MIB), (4 * MIB, 7 * MIB, 4 * MIB)])
            self.assertEqual(self.written_bytes(), before, "a copy that is aligned writes nothing")
            want = bytearray(other)
            want[2 * MIB : 6 * MIB] = data[: 4 * MIB]
            want[7 * MIB : 11 * MIB] = data[4 * MIB :]
            self.assertEqual(self.read(session, 0, 12 * MIB, lun=1), want)
            # Holes become holes, and what is not aligned is copied.
            session.unmap(MIB, MIB)
            session.extended_copy(*names, [(0, 0, 2 * MIB), (512, 4 * MIB + 1024, 512 << 10)])
            self.assertEqual(self.written_bytes() - before, 512 << 10)
            want[: 2 * MIB] = data[:MIB] + bytes(MIB)
            want[4 * MIB + 1024 : 4 * MIB + 1024 + (512 << 10)] = data[512 : 512 + (512 << 10)]
            self.assertEqual(self.read(session, 0, 12 * MIB, lun=1), want)
            # Within one LUN, over itself.
            session.extended_copy(names[1], names[1], [(2 * MIB, 2 * MIB + (256 << 10), 256 << 10), (0, 8 * MIB, MIB)])
            want[2 * MIB + (256 << 10) : 2 * MIB + (512 << 10)] = want[2 * MIB : 2 * MIB + (256 << 10)]
            want[8 * MIB : 9 * MIB] = want[:MIB]
            # Each goes its way from here on.
            session.write(0, bytes(64 << 10))
            self.assertEqual(self.read(session, 0, 12 * MIB, lun=1), want)
        self.lun_world.kill()
        self.lun_world.start()
        with self.host() as session:
            self.assertEqual(self.read(session, 0, 12 * MIB, lun=1), want)

    def test_a_token_has_the_bytes_of_its_time(self):
        self.two_luns()
        with self.host() as session:
            data = self.fill(session, 0, 4 * MIB, 1)
            before = self.written_bytes()
            token = session.token([(MIB, MIB), (0, MIB), (3 * MIB, 4096)], kind=POINT_IN_TIME, inactivity_seconds=600)
            self.assertEqual(self.written_bytes(), before)
            then = data[MIB : 2 * MIB] + data[:MIB] + data[3 * MIB : 3 * MIB + 4096]
            # What comes later is nothing to it, whatever it is.
            self.fill(session, 0, MIB, 2)
            session.unmap(MIB, 512 << 10)
            session.write_same(MIB + (512 << 10), b"z" * 512, 1024)
            before = self.written_bytes()
            with self.host() as other:
                other.write_using_token(token, [(8 * MIB, len(then))], lun=1)
                self.assertEqual(other.token_information(2, lun=1)[:3], (DONE, len(then) // 512, None))
                self.assertEqual(self.read(other, 8 * MIB, len(then), lun=1), then)
            self.assertEqual(self.written_bytes(), before, "all is shared")
            # From somewhere within it, to two places; what is beyond its end is left as it was.
            session.write_using_token(token, [(0, 4096), (16 * MIB, 2 * MIB)], offset=MIB - 4096, deletes=True)
            moved = 4096 + MIB + 4096
            self.assertEqual(session.token_information(2)[:3], (DONE, moved // 512, None))
            self.assertEqual(session.read(0, 4096), then[MIB - 4096 : MIB])
            self.assertEqual(self.read(session, 16 * MIB, moved, lun=0)[: MIB + 4096], then[MIB:])
            self.assertFalse(session.is_allocated(16 * MIB + MIB + 4096))
            self.refused(ILLEGAL_REQUEST, TOKEN_UNKNOWN, session.write_using_token, token, [(0, 4096)])

    def test_zeros_have_a_token(self):
        self.two_luns()
        with self.host() as session:
            self.fill(session, 0, 2 * MIB, 1)
            session.write_using_token(ZERO_TOKEN, [(0, MIB), (MIB + 4096, 4096)])
            self.assertEqual(session.token_information(2)[:2], (DONE, (MIB + 4096) // 512))
            self.assertFalse(session.is_allocated(0))
            self.assertEqual(session.read(0, MIB), bytes(MIB))

    def test_tokens_that_are_refused(self):
        self.two_luns()
        with self.host() as session:
            self.fill(session, 0, MIB, 1)
            populate, write = session.populate_token, session.write_using_token
            self.refused(ILLEGAL_REQUEST, INVALID_FIELD_IN_LIST, populate, [(0, 4096)], kind=ON_REFERENCE)
            self.refused(ILLEGAL_REQUEST, INVALID_FIELD_IN_LIST, populate, [(0, 4096)], inactivity_seconds=601)
            self.refused(ILLEGAL_REQUEST, INVALID_FIELD_IN_LIST, populate, [(0, 4096), (2048, 4096)])
            self.refused(ILLEGAL_REQUEST, LBA_OUT_OF_RANGE, populate, [(LUN_BYTES - 4096, 8192)])
            self.refused(ILLEGAL_REQUEST, LBA_OUT_OF_RANGE, populate, [((1 << 72) - 512, 512)])
            # Nothing of that has a result.
            self.refused(ILLEGAL_REQUEST, (0x24, 0), session.token_information, 1)
            token = session.token([(0, MIB)])
            forged = bytearray(token)
            forged[140] ^= 1
            self.refused(ILLEGAL_REQUEST, TOKEN_UNKNOWN, write, bytes(forged), [(0, 4096)])
            forged = bytearray(token)
            forged[15] ^= 1
            self.refused(ILLEGAL_REQUEST, TOKEN_UNKNOWN, write, bytes(forged), [(0, 4096)])
            self.refused(ILLEGAL_REQUEST, (0x23, 0x01), write, bytes([0, 1]) + token[2:], [(0, 4096)])
            self.refused(ILLEGAL_REQUEST, (0x23, 0x0A), write, token[:7] + b"\x10" + token[8:], [(0, 4096)])
            self.refused(ILLEGAL_REQUEST, INVALID_FIELD_IN_LIST, write, token, [(0, 4096)], offset=MIB)
            self.refused(ILLEGAL_REQUEST, LBA_OUT_OF_RANGE, write, token, [(LUN_BYTES, 4096)])
            # The results are those of who asked.
            with self.host() as other:
                self.refused(ILLEGAL_REQUEST, (0x24, 0), other.token_information, 1)
            self.cairn("lun", "set", "main/other", "--read-only", "on")
            session.clear_attentions(1)
            self.refused(DATA_PROTECT, (0x27, 0), write, token, [(0, 4096)], lun=1)
            # Only so many live at a time; who asks without waiting is told later.
            for number in range(TOKENS_MAX - 1):
                session.populate_token([(0, 4096)], number=10 + number)
            self.refused(ILLEGAL_REQUEST, (0x55, 0x0D), populate, [(0, 4096)], number=200)
            populate([(0, 4096)], number=201, immediate=True)
            status, _, failure, none = session.token_information(201)
            self.assertEqual((status, failure, none), (FAILED, (ILLEGAL_REQUEST, (0x55, 0x0D)), None))
            # A token that is used up makes room.
            write(token, [(2 * MIB, 4096)], deletes=True)
            token = session.token([(0, 4096)], number=202)
            write(token, [(3 * MIB, 4096)])
        # A restart forgets them, and what they had.
        self.lun_world.restart()
        with self.host() as session:
            self.refused(ILLEGAL_REQUEST, TOKEN_UNKNOWN, session.write_using_token, token, [(0, 4096)])

    def test_tokens_end(self):
        """One that nobody uses for as long as the host said is gone, and gives its space back."""
        self.two_luns()
        with self.host() as session:
            self.fill(session, 0, 8 * MIB, 1)
            used = self.used_bytes()
            begun = time.monotonic()
            token = session.token([(0, 8 * MIB)], inactivity_seconds=INACTIVE_SECONDS)
            session.unmap(0, 8 * MIB)
            held = self.used_bytes()
            # Where this took longer than the token lives it says nothing.
            if time.monotonic() - begun < INACTIVE_SECONDS:
                self.assertGreaterEqual(held, used - MIB)
            gone = lambda: self.used_bytes() <= used - 8 * MIB
            harness.wait_until(gone, FREED_SECONDS_MAX, "the end of a token that nobody uses")
            self.refused(ILLEGAL_REQUEST, TOKEN_UNKNOWN, session.write_using_token, token, [(0, 4096)])

    def test_a_token_that_is_killed_leaves_nothing(self):
        self.two_luns()
        with self.host() as session:
            self.fill(session, 0, 8 * MIB, 1)
            used = self.used_bytes()
            session.token([(0, 8 * MIB)], inactivity_seconds=600)
            session.unmap(0, 8 * MIB)
        self.lun_world.kill()
        self.lun_world.start()
        gone = lambda: self.used_bytes() <= used - 8 * MIB
        harness.wait_until(gone, FREED_SECONDS_MAX, "the end of a token that was killed")

    def test_the_page_of_third_party_copies(self):
        self.two_luns()
        with self.host() as session:
            self.assertIn(0x8F, session.page(0x00)[4:])
            page = session.page(0x8F)
            kinds, at = {}, 4
            while at < len(page):
                kind, length = int.from_bytes(page[at : at + 2], "big"), int.from_bytes(page[at + 2 : at + 4], "big")
                kinds[kind] = page[at + 4 : at + 4 + length]
                at += 4 + length
            self.assertEqual(sorted(kinds), [0x0000, 0x0001, 0x0004, 0x0008, 0x000C, 0x0106, 0x0108, 0x8001])
            # 64 ranges, 1 GiB.
            self.assertEqual(int.from_bytes(kinds[0][6:8], "big"), 64)
            self.assertEqual(int.from_bytes(kinds[0][16:24], "big") * 512, 1 << 30)

    def test_a_restore_makes_no_access_weaker(self):
        """Secrets, groups and maps are as they are now, also after a restore from before there was any LUN."""
        self.iscsi_server()
        self.cairn("snapshot", "create", "main", "empty")
        self.make_lun()
        self.cairn("snapshot", "create", "main", "open")
        secret = self.scratch / "secret"
        secret.write_text("a secret of a host")
        self.cairn("initiator", "set", "main", INITIATOR, "--chap-user", "host", "--secret-file", str(secret))
        right = ("host", "a secret of a host")

        def status(**options):
            try:
                self.session(**options).stream.close()
            except iscsi.LoginRefused as refused:
                return refused.args
            return "let in"

        def refused(detail, **options):
            # Until its LUNs are read the volume is not available.
            harness.wait_until(lambda: status(**options) != iscsi.UNAVAILABLE, AVAILABLE_SECONDS_MAX, "the LUNs of the volume")
            self.assertEqual(status(**options), (2, detail))

        refused(1)
        self.assertEqual(status(chap=right), "let in")
        # Without the secret nobody gets in, and who was taken out of a map is not in it again.
        self.cairn("lun", "unmap", "main/disk", "--igroup", "hosts")
        self.cairn("snapshot", "restore", "main", "open", "--volume", "--keep", "masked")
        refused(1)
        refused(3, chap=right)
        self.cairn("lun", "map", "main/disk", "--igroup", "hosts")
        refused(1)
        self.assertEqual(status(chap=right), "let in")
        # There was no secret then, nor anything that could have one.
        self.cairn("snapshot", "restore", "main", "empty", "--volume", "--keep", "all")
        refused(1)
        self.assertEqual(self.luns(), [])
        self.cairn("lun", "create", "main/disk", "--size", str(LUN_BYTES))
        self.cairn("lun", "map", "main/disk", "--igroup", "hosts")
        refused(1)
        self.assertEqual(status(chap=right), "let in")
        # What comes back is offline, and nobody sees it.
        self.cairn("lun", "delete", "main/disk", "--yes", "--force")
        self.cairn("snapshot", "restore", "main", "all", "--volume", "--discard")
        refused(1)
        refused(3, chap=right)
        [lun] = self.luns()
        self.assertFalse(lun["online"])

    def test_a_volume_is_restored_below_a_host(self):
        self.lun_server()
        with self.session() as session:
            before = self.fill(session, 0, MIB, 7)
            self.cairn("snapshot", "create", "main", "good")
            self.fill(session, 0, MIB, 8)
            # Both the idle session and the token have the volume as it was.
            session.populate_token([(0, MIB)])
            restored = json.loads(self.cairn("snapshot", "restore", "main", "good", "--volume", "--json").stdout)
            with self.measured():
                self.assertLess(restored["seconds"], RESTORE_SECONDS_MAX)
        with self.session() as session:
            self.assertEqual(self.read(session, 0, MIB), before)
