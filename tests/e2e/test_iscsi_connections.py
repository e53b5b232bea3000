"""Sessions of several connections (RFC 7143, MaxConnections), by an initiator of our own."""

import json
import os
import struct

from lib import harness, iscsi
from lib.lunworld import INITIATOR, LunTest

CONNECTIONS_MAX = 8
WINDOW = 128
BLOCK = 512
INITIATOR_ERROR, TOO_MANY, NO_SESSION = 2, 0x06, 0x0A
NO_CONNECTION, NO_RECOVERY = 1, 2


def write_10(block, count):
    return struct.pack(">BBIBHB", 0x2A, 0, block, 0, count, 0)


def read_10(block, count):
    return struct.pack(">BBIBHB", 0x28, 0, block, 0, count, 0)


class Connections(LunTest):
    def first(self, **options):
        options = {"connections_max": 4} | options
        return self.session(**options)

    def more(self, session, connection, initiator=INITIATOR, target=None):
        return iscsi.Session(
            ("127.0.0.1", self.port), initiator, target or self.target, joins=session, connection=connection
        )

    def refused(self, detail, call, *words, **options):
        with self.assertRaises(iscsi.LoginRefused) as refused:
            call(*words, **options)
        self.assertEqual(refused.exception.args, (INITIATOR_ERROR, detail))

    def test_commands_are_of_the_session_and_answers_of_the_connection(self):
        self.lun_server()
        with self.first() as one:
            self.assertEqual(one.told["MaxConnections"], "4")
            with self.more(one, 1) as two, self.more(one, 2) as three:
                # There is one session, and what waits for it is told once.
                self.assertEqual(self.lun_world.metrics()["cairn_iscsi_sessions"], 1)
                (view,) = json.loads(self.cairn("iscsi", "sessions", "--json").stdout)["sessions"]
                self.assertEqual(view["connections"], 3)
                data = os.urandom(64 << 10)
                one.write(0, data)
                self.assertEqual(three.read(0, len(data)), data)
                two.write(4096, b"x" * 4096)
                self.assertEqual(one.read(4096, 4096), b"x" * 4096)
                # A command that comes before its turn waits for those before it, which come over other connections.
                number = one.command_number
                three.send_command(read_10(0, 1), expects=BLOCK, number=number + 2, is_ordered=True)
                two.send_command(write_10(0, 1), b"2" * BLOCK, number=number + 1, is_ordered=True)
                one.send_command(write_10(0, 1), b"1" * BLOCK, number=number, is_ordered=True)
                one.command_number = number + 3
                one.answer()
                two.answer()
                self.assertEqual(three.answer(BLOCK), b"2" * BLOCK)
                # One that comes twice, or long before its turn, is of no interest to anybody.
                two.send_command(write_10(0, 1), b"3" * BLOCK, number=number)
                two.send_command(write_10(0, 1), b"4" * BLOCK, number=one.command_number + WINDOW)
                self.assertEqual(two.read(0, BLOCK), b"2" * BLOCK)
                # Digests and lengths are those of each connection; the rest was agreed on by the first.
                self.assertNotIn("MaxConnections", two.told)

    def test_connections_that_are_refused(self):
        self.lun_server()
        with self.first(connections_max=2) as one:
            with self.more(one, 1):
                self.refused(TOO_MANY, self.more, one, 2)
            with self.session() as other:
                # It has agreed on one.
                self.assertNotIn("MaxConnections", other.told)
                self.refused(TOO_MANY, self.more, other, 1)
                tsih, other.shared.tsih = other.shared.tsih, 0xFFFF
                self.refused(NO_SESSION, self.more, other, 0)
                # The session of somebody else, under the number that it has.
                other.shared.tsih = tsih
                name = f"{INITIATOR}-2"
                self.cairn("igroup", "create", "main/others", "--initiator", name)
                self.cairn("lun", "create", "main/second", "--size", "1MiB")
                self.cairn("lun", "map", "main/second", "--igroup", "others")
                self.refused(NO_SESSION, self.more, other, 0, initiator=name)
                self.assertEqual(other.read(0, BLOCK), bytes(BLOCK))
            self.assertEqual(one.read(0, BLOCK), bytes(BLOCK))
        with self.first(connections_max=100) as most:
            self.assertEqual(most.told["MaxConnections"], str(CONNECTIONS_MAX))
        with iscsi.Session(("127.0.0.1", self.port), INITIATOR, connections_max=4) as discovery:
            self.assertEqual(discovery.told["MaxConnections"], "Irrelevant")
            discovery.shared.tsih = discovery.shared.tsih or 1
            self.refused(NO_SESSION, self.more, discovery, 1)

    def test_a_connection_that_is_lost_takes_its_commands_along_and_no_others(self):
        self.lun_server()
        with self.first() as one:
            one.write(0, b"k" * 4096)
            two, three = self.more(one, 1), self.more(one, 2)
            # As many writes as there may be, of which the data is missing, over two connections.
            for index in range(WINDOW):
                lane = (two, three)[index % 2]
                lane.send_command(write_10(0, 8), b"l" * BLOCK, length=8 * BLOCK)
            self.wait_for_numbers(one)
            two.stream.close()
            three.stream.close()
            # The window opens again: their commands have ended, without an effect.
            for _ in range(WINDOW + 1):
                self.assertEqual(self.wait_for_window(one).read(0, 4096), b"k" * 4096)
            # The first goes, and the session stays as long as it has another one.
            four = self.more(one, 3)
            one.stream.close()
            four.write(8192, b"f" * 4096)
            self.assertEqual(four.read(8192, 4096), b"f" * 4096)
            self.assertEqual(self.lun_world.metrics()["cairn_iscsi_sessions"], 1)
            five = self.more(four, 0)
            self.assertEqual(five.read(0, 4096), b"k" * 4096)
            self.assertEqual(five.logout(), 0)
            self.assertTrue(four.is_closed() and five.is_closed())
        harness.wait_until(lambda: not self.lun_world.metrics()["cairn_iscsi_sessions"], 30, "the end of the session")
        self.refused(NO_SESSION, self.more, four, 9)

    def numbers(self, session):
        """Which command the target expects next and which is the last that it takes, by a NOP that is immediate."""
        numbers = struct.pack(">III", iscsi.UNTAGGED, session.command_number, session.status_number)
        session.send(iscsi.NOP_OUT, 0x80, specific=numbers, immediate=True)
        header, _ = session.receive()
        return int.from_bytes(header[28:32], "big"), int.from_bytes(header[32:36], "big")

    def wait_for_numbers(self, session):
        """Until all commands have come that were sent."""
        while self.numbers(session)[0] != session.command_number:
            pass

    def wait_for_window(self, session):
        """Until the target takes commands again: it is told of a lost connection in its own time."""
        while True:
            expected, last = self.numbers(session)
            if last >= expected:
                return session

    def test_a_connection_is_logged_in_again(self):
        self.lun_server()
        with self.first() as one, self.more(one, 1) as two:
            two.send_command(write_10(0, 8), b"l" * BLOCK, length=8 * BLOCK)
            with self.more(one, 1) as again:
                self.assertTrue(two.is_closed())
                again.write(0, b"a" * 4096)
                self.assertEqual(one.read(0, 4096), b"a" * 4096)
                # Also the first one, and of a session that has no other.
                with self.more(again, 0) as first:
                    self.assertTrue(one.is_closed())
                    self.assertEqual(first.read(0, 4096), b"a" * 4096)
        with self.session() as alone, self.more(alone, 0) as again:
            self.assertTrue(alone.is_closed())
            self.assertEqual(again.read(0, 4096), b"a" * 4096)

    def test_a_session_that_begins_anew_ends_all_connections(self):
        self.lun_server()
        with self.first() as one, self.more(one, 1) as two:
            with self.first(isid=one.shared.isid) as new:
                self.assertTrue(one.is_closed() and two.is_closed())
                self.assertEqual(new.read(0, BLOCK), bytes(BLOCK))

    def test_logout_of_one_connection(self):
        self.lun_server()
        with self.first() as one, self.more(one, 1) as two, self.more(one, 2) as three:
            self.assertEqual(one.logout(reason=1, connection=7), NO_CONNECTION)
            self.assertEqual(one.logout(reason=2, connection=1), NO_RECOVERY)
            self.assertEqual(one.logout(reason=1, connection=1), 0)
            self.assertTrue(two.is_closed())
            self.assertEqual(three.logout(reason=1), 0)
            self.assertTrue(three.is_closed())
            self.assertEqual(one.read(0, BLOCK), bytes(BLOCK))
            self.assertEqual(one.logout(), 0)
            self.assertTrue(one.is_closed())
