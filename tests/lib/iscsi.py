"""A small iSCSI initiator for tests: sessions of one or more connections, one command at a time, bytes that nobody sends."""

import hashlib
import itertools
import os
import socket
import struct

from lib import harness

TIMEOUT_SECONDS = 30
READ_SECONDS_MAX = 60
# The status of a login that may succeed later.
UNAVAILABLE = (3, 1)
NOBODY, NOWHERE = "iqn.2025-11.test:nobody-at-all", "iqn.2025-11.test:nowhere-at-all"
GOOD, CHECK_CONDITION, BUSY = 0, 2, 8
# The data of a command comes in its own PDU: no more than this.
IMMEDIATE_LEN_BYTES_MAX = 256 << 10
UNTAGGED = 0xFFFFFFFF
NOP_OUT, SCSI_COMMAND, LOGIN, TEXT, LOGOUT = 0x00, 0x01, 0x03, 0x04, 0x06
NOP_IN, SCSI_RESPONSE, LOGIN_RESPONSE, TEXT_RESPONSE, DATA_IN, LOGOUT_RESPONSE = 0x20, 0x21, 0x23, 0x24, 0x25, 0x26
SECURITY, OPERATIONAL, FULL = 0, 1, 3


class LoginRefused(Exception):
    """The status of the login response: class and detail."""


class CommandFailed(Exception):
    """A command that ended with a check condition: sense key, code and qualifier."""

    def __init__(self, sense):
        self.key, self.code = sense[2] & 0x0F, (sense[12], sense[13])
        super().__init__(f"sense key {self.key:x}, code {self.code[0]:02x}/{self.code[1]:02x}")


class Busy(CommandFailed):
    """A command that ended with BUSY: it was not done, and the initiator sends it again. As NOT READY for who looks at keys."""

    def __init__(self):
        sense = bytearray(18)
        sense[2], sense[12], sense[13] = 2, 4, 1
        super().__init__(sense)


def await_targets(port):
    """Waits until a server that has started has read its targets: until then it says of none that it is not there."""

    def are_read():
        try:
            Session(("127.0.0.1", port), NOBODY, NOWHERE).stream.close()
        except LoginRefused as refused:
            return refused.args != UNAVAILABLE
        except ConnectionError:
            return False
        return True

    harness.wait_until(are_read, READ_SECONDS_MAX, "that the targets are read")


class Shared:
    """What all connections of a session have in common."""

    def __init__(self, isid=None):
        self.isid = isid or b"\x80" + os.urandom(5)
        self.tsih = 0
        self.tags = itertools.count(1)
        self.command_number = 1


class Session:
    """A session of an initiator with a target, or a discovery session without one.

    With `joins` it is one more connection of that session, with a number of its own.
    """

    def __init__(
        self, address, initiator, target=None, chap=None, block_len_bytes=512, timeout_seconds=TIMEOUT_SECONDS,
        joins=None, connection=0, connections_max=1, isid=None, source="",
    ):
        self.block_len_bytes = block_len_bytes
        self.shared = joins.shared if joins else Shared(isid)
        self.is_leading = joins is None
        self.connection, self.connections_max = connection, connections_max
        self.status_number = 0
        self.stream = socket.create_connection(address, timeout_seconds, (source, 0))
        try:
            self.login(initiator, target, chap)
        except BaseException:
            self.stream.close()
            raise

    @property
    def isid(self):
        return self.shared.isid

    @property
    def tags(self):
        return self.shared.tags

    @property
    def command_number(self):
        return self.shared.command_number

    @command_number.setter
    def command_number(self, number):
        self.shared.command_number = number

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stream.close()

    def send(self, opcode, flags, lun=0, tag=None, specific=b"", data=b"", immediate=False):
        """One PDU: `specific` has bytes 20 to 48 of its header."""
        tag = next(self.tags) if tag is None else tag
        opcode |= 0x40 if immediate else 0
        header = struct.pack(">BB2xB3sHHHHI", opcode, flags, 0, len(data).to_bytes(3, "big"), lun, 0, 0, 0, tag)
        self.stream.sendall(header + specific.ljust(28, b"\0") + data + bytes(-len(data) % 4))
        return tag

    def receive_exactly(self, length):
        parts = bytearray()
        while len(parts) < length:
            part = self.stream.recv(length - len(parts))
            if not part:
                raise ConnectionError("the target closed the connection")
            parts += part
        return bytes(parts)

    def receive(self):
        """The next PDU that is no question whether we are there: header and data."""
        while True:
            header = self.receive_exactly(48)
            length = int.from_bytes(header[5:8], "big")
            data = self.receive_exactly(length + -length % 4)[:length]
            opcode = header[0] & 0x3F
            if opcode == DATA_IN and not header[1] & 1:
                return header, data
            if opcode == NOP_IN and header[16:20] == b"\xff" * 4:
                target_tag = int.from_bytes(header[20:24], "big")
                if target_tag != UNTAGGED:
                    numbers = struct.pack(">III", target_tag, self.command_number, self.status_number)
                    self.send(NOP_OUT, 0x80, tag=UNTAGGED, specific=numbers, immediate=True)
                continue
            self.status_number = int.from_bytes(header[24:28], "big") + 1
            return header, data

    def login(self, initiator, target, chap):
        keys = {"InitiatorName": initiator, "SessionType": "Normal" if target else "Discovery"}
        if target:
            keys["TargetName"] = target
        operational = {
            "HeaderDigest": "None", "DataDigest": "None", "InitialR2T": "No", "ImmediateData": "Yes",
            "FirstBurstLength": IMMEDIATE_LEN_BYTES_MAX, "MaxRecvDataSegmentLength": IMMEDIATE_LEN_BYTES_MAX,
        }
        if self.connections_max > 1:
            operational["MaxConnections"] = self.connections_max
        if chap is None:
            self.login_step(OPERATIONAL, FULL, keys | operational)
            return
        user, secret = chap
        self.login_step(SECURITY, None, keys | {"AuthMethod": "CHAP"})
        asked = self.login_step(SECURITY, None, {"CHAP_A": "5"})
        challenge = bytes.fromhex(asked["CHAP_C"].removeprefix("0x"))
        digest = hashlib.md5(bytes([int(asked["CHAP_I"])]) + secret.encode() + challenge).hexdigest()
        self.login_step(SECURITY, OPERATIONAL, {"CHAP_N": user, "CHAP_R": f"0x{digest}"})
        self.login_step(OPERATIONAL, FULL, operational)

    def login_step(self, stage, wanted, keys):
        """Sends one login request; returns the keys of the answer, when the target goes on to the stage that is wanted."""
        text = b"".join(f"{key}={value}".encode() + b"\0" for key, value in keys.items())
        flags = stage << 2 | (0 if wanted is None else 0x80 | wanted)
        tag = next(self.tags)
        tsih = 0 if self.is_leading else self.shared.tsih
        header = struct.pack(">BBBBB3s6sHIHHII", LOGIN | 0x40, flags, 0, 0, 0, len(text).to_bytes(3, "big"), self.shared.isid,
                             tsih, tag, self.connection, 0, self.command_number, self.status_number)
        self.stream.sendall(header.ljust(48, b"\0") + text + bytes(-len(text) % 4))
        reply, data = self.receive()
        if reply[0] & 0x3F != LOGIN_RESPONSE:
            raise ConnectionError(f"a login was answered with {reply[0]:02x}")
        if reply[36] or reply[37]:
            raise LoginRefused(reply[36], reply[37])
        if wanted is not None and not reply[1] & 0x80:
            raise ConnectionError("the target does not go on")
        if self.is_leading and wanted == FULL:
            self.shared.tsih = int.from_bytes(reply[14:16], "big")
        pairs = (pair.split("=", 1) for pair in data.decode().split("\0") if pair)
        self.told = dict(pairs)
        return self.told

    def targets(self):
        """What SendTargets=All tells, as text."""
        numbers = struct.pack(">III", UNTAGGED, self.command_number, self.status_number)
        self.send(TEXT, 0x80, specific=numbers, data=b"SendTargets=All\0")
        self.command_number += 1
        _, data = self.receive()
        return data.decode()

    def command(self, cdb, data=b"", expects=0, lun=0):
        """One SCSI command with its data in the same PDU; returns what it reads."""
        self.send_command(cdb, data, expects, lun)
        return self.answer(expects)

    def send_command(self, cdb, data=b"", expects=0, lun=0, number=None, is_ordered=False, length=None):
        """Sends a command, as the next one or with another number; `length`: of data of which this is the beginning."""
        is_next = number is None
        number = self.command_number if is_next else number
        writes = data or length
        flags = 0x80 | (2 if is_ordered else 1) | (0x20 if writes else 0) | (0x40 if expects else 0)
        length = length or len(data) or expects
        specific = struct.pack(">III", length, number, self.status_number) + cdb.ljust(16, b"\0")
        tag = self.send(SCSI_COMMAND, flags, lun=lun, specific=specific, data=data)
        if is_next:
            self.command_number += 1
        return tag

    def answer(self, expects=0):
        """What a command that was sent is answered with."""
        got = bytearray(expects)
        received = 0
        while True:
            header, part = self.receive()
            opcode = header[0] & 0x3F
            if opcode == DATA_IN:
                at = int.from_bytes(header[40:44], "big")
                got[at : at + len(part)] = part
                received += len(part)
                if not header[1] & 1:
                    continue
                status = header[3]
            elif opcode == SCSI_RESPONSE:
                status = header[3]
            else:
                raise ConnectionError(f"a command was answered with {opcode:02x}")
            if status == CHECK_CONDITION:
                raise CommandFailed(part[2:])
            if status == BUSY:
                raise Busy
            if status != GOOD:
                raise ConnectionError(f"a command ended with status {status:02x}")
            return bytes(got[:received])

    def logout(self, reason=0, connection=None):
        """Ends the session (0) or a connection of it (1); returns the response."""
        connection = self.connection if connection is None else connection
        specific = struct.pack(">HHII", connection, 0, self.command_number, self.status_number)
        self.send(LOGOUT, 0x80 | reason, specific=specific)
        self.command_number += 1
        header, _ = self.receive()
        if header[0] & 0x3F != LOGOUT_RESPONSE:
            raise ConnectionError(f"a logout was answered with {header[0]:02x}")
        return header[2]

    def is_closed(self):
        """Waits until the target closes the connection."""
        try:
            while self.stream.recv(65536):
                pass
        except ConnectionError:
            pass
        return True

    def clear_attentions(self, lun=0):
        """A new session is told of what happened before it."""
        while True:
            try:
                return self.command(bytes(6), lun=lun)
            except CommandFailed as failed:
                if failed.key != 6:
                    raise

    def write(self, at, data, lun=0):
        """Durable when it returns."""
        count = len(data) // self.block_len_bytes
        self.command(struct.pack(">BBQI2x", 0x8A, 0, at // self.block_len_bytes, count), data=data, lun=lun)

    def read(self, at, length, lun=0):
        count = length // self.block_len_bytes
        return self.command(struct.pack(">BBQI2x", 0x88, 0, at // self.block_len_bytes, count), expects=length, lun=lun)

    def unmap(self, at, length):
        block = self.block_len_bytes
        descriptor = struct.pack(">QI4x", at // block, length // block)
        self.command(struct.pack(">BB4xBHx", 0x42, 0, 0, 8 + 16), data=struct.pack(">HH4x", 22, 16) + descriptor)

    def write_same(self, at, block, count):
        self.command(struct.pack(">BBQI2x", 0x93, 0, at // self.block_len_bytes, count), data=block)

    def compare_and_write(self, at, before, after):
        """Writes if these blocks are there; else the command fails with MISCOMPARE."""
        count = len(before) // self.block_len_bytes
        self.command(struct.pack(">BBQ3xB2x", 0x89, 0, at // self.block_len_bytes, count), data=before + after)

    def identity(self, lun=0):
        """The designator of a logical unit, as EXTENDED COPY wants it: its NAA."""
        got = self.command(struct.pack(">BBBH", 0x12, 1, 0x83, 1024) + b"\0", expects=1024, lun=lun)
        at = 4
        while at < len(got):
            if got[at + 1] & 0x3F == 0x03:
                return got[at + 4 : at + 4 + got[at + 3]]
            at += 4 + got[at + 3]
        raise ValueError("no NAA in page 83")

    def extended_copy(self, source, destination, parts):
        """Copies between two logical units of these identities: parts with the source's byte, the destination's, a length."""
        block = self.block_len_bytes
        targets = b"".join(struct.pack(">B3xBBBB20sBBH", 0xE4, 1, 3, 0, len(name), name, 0, 0, block) for name in (source, destination))
        segments = b"".join(
            struct.pack(">BBHHHHHQQ", 2, 0, 0x18, 0, 1, 0, length // block, start // block, at // block)
            for start, at, length in parts
        )
        header = struct.pack(">BBH4xII", 1, 0, len(targets), len(segments), 0)
        data = header + targets + segments
        self.command(struct.pack(">BB8xI2x", 0x83, 0, len(data)), data=data)

    def ranges(self, parts):
        """Descriptors of block ranges, from bytes and lengths."""
        block = self.block_len_bytes
        return b"".join(struct.pack(">QI4x", at // block, length // block) for at, length in parts)

    def populate_token(self, parts, number=1, inactivity_seconds=0, kind=None, immediate=False, lun=0):
        """Has the target make a token of these ranges; it is told by `token_information` of the same number."""
        ranges = self.ranges(parts)
        flags = (0 if kind is None else 2) | (1 if immediate else 0)
        header = struct.pack(">HBxII2xH", 14 + len(ranges), flags, inactivity_seconds, kind or 0, len(ranges))
        data = header + ranges
        self.command(struct.pack(">BB4xII2x", 0x83, 0x10, number, len(data)), data=data, lun=lun)

    def write_using_token(self, token, parts, number=2, offset=0, deletes=False, immediate=False, lun=0):
        ranges = self.ranges(parts)
        flags = (2 if deletes else 0) | (1 if immediate else 0)
        header = struct.pack(">HB5xQ512s6xH", 534 + len(ranges), flags, offset // self.block_len_bytes, token, len(ranges))
        data = header + ranges
        self.command(struct.pack(">BB4xII2x", 0x83, 0x11, number, len(data)), data=data, lun=lun)

    def token_information(self, number, lun=0):
        """How a copy by token went: status, blocks, sense key and code of an error, the token."""
        got = self.command(struct.pack(">BBI4xI2x", 0x84, 0x07, number, 1024), expects=1024, lun=lun)
        sense = got[32 : 32 + got[14]]
        at = 32 + got[13]
        length = int.from_bytes(got[at : at + 4], "big")
        token = got[at + 6 : at + 6 + 512] if length else None
        failure = (sense[2] & 0x0F, (sense[12], sense[13])) if sense else None
        return got[5], int.from_bytes(got[16:24], "big"), failure, token

    def token(self, parts, lun=0, **options):
        """A token of these ranges."""
        self.populate_token(parts, lun=lun, **options)
        status, _, failure, token = self.token_information(options.get("number", 1), lun=lun)
        if status != 1 or token is None:
            raise ValueError(f"no token: status {status:02x}, {failure}")
        return token

    def page(self, number):
        """A page of vital product data."""
        return self.command(struct.pack(">BBBHx", 0x12, 1, number, 4096), expects=4096)

    def is_allocated(self, at):
        """Whether the block is, by GET LBA STATUS."""
        got = self.command(struct.pack(">BBQI2x", 0x9E, 0x12, at // self.block_len_bytes, 24), expects=24)
        return got[8 + 12] & 0x0F == 0

    def port_groups(self):
        """By the number of the target port group, its state: 0 is active/optimised, 1 non-optimised, 3 unavailable."""
        got = self.command(struct.pack(">BB4xI2x", 0xA3, 0x0A, 1024), expects=1024)
        states, at = {}, 4
        while at < len(got):
            states[int.from_bytes(got[at + 2 : at + 4], "big")] = got[at] & 0x0F
            at += 8 + 4 * got[at + 7]
        return states

    def port_group(self):
        """The number of the group through which this session came, by INQUIRY page 83."""
        got = self.command(struct.pack(">BBBH", 0x12, 1, 0x83, 1024) + b"\0", expects=1024)
        at = 4
        while at < len(got):
            if got[at + 1] & 0x3F == 0x15:
                return int.from_bytes(got[at + 6 : at + 8], "big")
            at += 4 + got[at + 3]
        raise ValueError("no target port group in page 83")

    def register(self, key, before=0):
        """Registers a key for persistent reservations, in place of the one before; not to outlive a loss of power."""
        self.reservation_out(0, 0, before, key)

    def reserve(self, key, kind):
        self.reservation_out(1, kind, key, 0)

    def reservation_out(self, action, kind, key, action_key):
        self.command(struct.pack(">BBB2xI", 0x5F, action, kind, 24) + b"\0", data=struct.pack(">QQ8x", key, action_key))

    def reservation_keys(self):
        got = self.command(struct.pack(">BB5xH", 0x5E, 0, 1024) + b"\0", expects=1024)
        length = int.from_bytes(got[4:8], "big")
        return [int.from_bytes(got[at : at + 8], "big") for at in range(8, 8 + length, 8)]

    def reservation(self):
        """Key and type of the reservation that is held, or none."""
        got = self.command(struct.pack(">BB5xH", 0x5E, 1, 1024) + b"\0", expects=1024)
        return (int.from_bytes(got[8:16], "big"), got[21] & 0x0F) if len(got) > 8 else None

    def physical_exponent(self):
        """So many logical blocks, as a power of two, are a physical one."""
        return self.command(struct.pack(">BB8xI2x", 0x9E, 0x10, 32), expects=32)[13] & 0x0F

    def size_bytes(self):
        got = self.command(struct.pack(">BB8xI2x", 0x9E, 0x10, 32), expects=32)
        last, block_len = struct.unpack(">QI", got[:12])
        return (last + 1) * block_len
