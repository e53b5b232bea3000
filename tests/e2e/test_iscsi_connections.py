"""Sessions of several connections (RFC 7143, MaxConnections), by an initiator of our own."""

import contextlib
import json
import os
import resource
import socket
import struct
import threading
import time

from lib import harness, iscsi
from lib.lunworld import INITIATOR, LunTest

CONNECTIONS_MAX = 8
WINDOW = 128
BLOCK = 512
# What connections may take that take no answers, with what the allocator keeps: far less than 16 MiB for each.
BOMB_CONNECTIONS = 16
BOMB_BYTES_MAX = 64 << 20
# A connection that takes nothing for so long takes nothing any more; the server may stand still for less.
BOMB_SECONDS = 8
ANSWER_SECONDS_MAX = 60
# More than the server has places for connections.
HALF_LOGINS = 1100
LOG_FLOOD, LOG_SECONDS = 300, 5
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
        ended = lambda: not self.lun_world.metrics()["cairn_iscsi_sessions"]
        harness.wait_until(ended, ANSWER_SECONDS_MAX, "the end of the session")
        self.refused(NO_SESSION, self.more, four, 9)

    def numbers(self, session):
        """Which command the target expects next and which is the last that it takes, by a NOP that is immediate."""
        numbers = struct.pack(">III", iscsi.UNTAGGED, session.command_number, session.status_number)
        session.send(iscsi.NOP_OUT, 0x80, specific=numbers, immediate=True)
        header, _ = session.receive()
        return int.from_bytes(header[28:32], "big"), int.from_bytes(header[32:36], "big")

    def wait_for_numbers(self, session):
        """Until all commands have come that were sent."""
        come = lambda: self.numbers(session)[0] == session.command_number
        harness.wait_until(come, ANSWER_SECONDS_MAX, "that the commands come")

    def wait_for_window(self, session):
        """Until the target takes commands again: it is told of a lost connection in its own time."""

        def is_open():
            expected, last = self.numbers(session)
            return last >= expected

        harness.wait_until(is_open, ANSWER_SECONDS_MAX, "that the target takes commands again")
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


class Strangers(LunTest):
    """What those can do who do not log in."""

    def connect(self, source="127.0.0.1", receive_bytes=None):
        stream = socket.socket()
        self.addCleanup(stream.close)
        if receive_bytes:
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        stream.bind((source, 0))
        stream.connect(("127.0.0.1", self.port))
        return stream

    def login_pdu(self, flags=0x40, text=b""):
        # A login request whose text goes on (C), in the stage of security.
        head = bytes([0x43, flags, 0, 0, 0]) + len(text).to_bytes(3, "big") + b"\x40\0\0\0\0\1"
        return head.ljust(48, b"\0") + text + bytes(-len(text) % 4)

    def bomb(self, streams, pdu):
        """Sends PDUs as fast as they are taken, and takes no answer, until no connection takes more."""

        burst = pdu * ((1 << 20) // len(pdu))

        def flood(stream):
            stream.settimeout(BOMB_SECONDS)
            with contextlib.suppress(OSError):
                while True:
                    stream.sendall(burst)

        threads = [threading.Thread(target=flood, args=(stream,)) for stream in streams]
        most = 0
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            for thread in threads:
                thread.join(0.1)
            most = max(most, harness.resident_bytes(self.lun_world.pid))
        return most

    def test_answers_that_nobody_takes_are_few(self):
        self.lun_server()
        before = harness.resident_bytes(self.lun_world.pid)
        most = self.bomb([self.connect(receive_bytes=2048) for _ in range(BOMB_CONNECTIONS)], self.login_pdu())
        self.assertLess(most - before, BOMB_BYTES_MAX, "before the login")
        # Who has logged in for discovery, and asks whether the target is there.
        sessions = [iscsi.Session(("127.0.0.1", self.port), INITIATOR) for _ in range(BOMB_CONNECTIONS)]
        nop = struct.pack(">BB2xB3sQIII", 0x40, 0x80, 0, b"\0\x10\0", 0, 1, 0xFFFF_FFFF, 0).ljust(48, b"\0") + bytes(4096)
        most = self.bomb([session.stream for session in sessions], nop)
        for session in sessions:
            session.stream.close()
        self.assertLess(most - before, BOMB_BYTES_MAX, "in discovery sessions")
        with self.session() as session:
            self.assertEqual(session.read(0, BLOCK), bytes(BLOCK))

    def test_half_logins_keep_nobody_out(self):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        self.lun_server()
        with self.session() as first:
            first.write(0, b"1" * BLOCK)
            for number in range(HALF_LOGINS):
                stream = self.connect(f"127.0.0.{2 + number % 2}")
                with contextlib.suppress(OSError):
                    stream.sendall(self.login_pdu(0x40, b"InitiatorName=iqn.q:a\0"))
            # From an address that is known, and over the session that there was.
            with self.session() as second:
                self.assertEqual(second.read(0, BLOCK), b"1" * BLOCK)
            self.assertEqual(first.read(0, BLOCK), b"1" * BLOCK)
        # A newcomer comes in as well: half logins make way for it.
        stream = self.connect("127.0.0.9")
        stream.settimeout(ANSWER_SECONDS_MAX)
        stream.sendall(self.login_pdu())
        self.assertEqual(len(stream.recv(48, socket.MSG_WAITALL)), 48)
        self.assertGreater(self.lun_world.metrics()["cairn_iscsi_connections_refused_total"], 0)

    def test_a_flood_is_few_lines_of_the_log(self):
        self.lun_server()
        begun = time.monotonic()
        unknown = b"InitiatorName=iqn.2025-11.test:nobody\0SessionType=Discovery\0AuthMethod=None\0"
        for _ in range(LOG_FLOOD):
            for sent in (bytes(48), self.login_pdu(0x81, unknown)):
                stream = self.connect()
                stream.settimeout(ANSWER_SECONDS_MAX)
                stream.sendall(sent)
                with contextlib.suppress(ConnectionError):
                    while stream.recv(4096):
                        pass
                stream.close()
        self.assertEqual(self.lun_world.stop(), 0)
        # One in 5 s, and one when it ends; its beginning and its end may be in the middle of such a time.
        count_max = max(LOG_FLOOD // 10, 3 + int((time.monotonic() - begun) / LOG_SECONDS))
        log = self.lun_world.log_path.read_text(errors="replace")
        for line in ("iSCSI connection closed: ", "an initiator that sees no LUN here"):
            count = log.count(line)
            self.assertGreater(count, 0, line)
            self.assertLess(count, count_max, line)
