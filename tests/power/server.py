"""A server in a VM, on drives whose power can be cut.

Owns: the guest, its drives and its network, the server's life in it. Must not know: what is tested with it.
"""

import contextlib
import json
import pathlib
import shutil
import socket
import subprocess
from typing import Any

from lib import harness, vm
from power import block_disks

GUEST_SCRIPT = pathlib.Path(__file__).with_name("guest.sh")
NFS_PORT, ADMIN_PORT, ISCSI_PORT = 2049, 8049, 3260
# One more than the pool has at a time, so that there is one to move to.
DRIVES_COUNT = 5
POOL_DISKS_COUNT = 4
DRIVE_LEN_BYTES = 3 << 30
BOOT_SECONDS_MAX = 240
BOOTS_AGAIN_COUNT_MAX = 3
CUT_SECONDS_MAX = 60


class GuestServer(harness.Server):
    """A server in the guest: commands reach it through forwarded ports."""

    def __init__(self, root, file_system, forgets=""):
        super().__init__(root, 0)
        self.file_system = file_system
        self.variables = {"CAIRN_FORGETS": forgets} if forgets else {}
        self.told = root / "told"
        self.log_path = self.told / "cairn.log"
        self.ready_path = self.told / "ready.json"
        # Made before the server is started.
        self.mounted_path = self.told / "mounted"
        self.token_path = self.told / "admin-token"
        for folder in (self.told, root / "program"):
            folder.mkdir()
        shutil.copy(harness.cairn_path(), root / "program" / "cairn")
        if forgets:
            build_forgetful(root / "program" / "forgetful.so")
        self.drives = [
            block_disks.Disk(root / f"drive{index}", root / f"drive{index}.socket", DRIVE_LEN_BYTES)
            for index in range(DRIVES_COUNT)
        ]
        self.nfs_port, self.admin_port, self.iscsi_port = free_ports(3)
        # Those in the pool, by their place among the drives.
        self.members = list(range(POOL_DISKS_COUNT))
        self.ready = {"nfs": {"port": self.nfs_port}, "admin": {"url": f"http://127.0.0.1:{self.admin_port}"}}
        self.flags = [
            "--listen-nfs", f"0.0.0.0:{NFS_PORT}", "--listen-admin", f"0.0.0.0:{ADMIN_PORT}", "--insecure",
            "--listen-iscsi", f"0.0.0.0:{ISCSI_PORT}", "--rpcbind=false",
            "--ready-file", "/told/ready.json", "--token-file", "/told/admin-token", "--rebuild-delay", "0",
            "--memory-limit", "512MiB",
        ]
        self.folder_name = "cairn"
        self.machine: Any = None
        self.arguments: list[str] = []
        self.boots_left = 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        if self.machine:
            self.machine.cut_power()
        while self.drives:
            self.drives.pop().close()

    def folder(self, index):
        """Of a drive, as the guest calls it."""
        return f"/disks/{index}/{self.folder_name}"

    def index_of(self, label):
        return int(label.split("/")[2])

    def boot(self, away=(), throw_away=False):
        """Switches the machine on. `away`: drives that are not there. `throw_away`: nothing is written to drives."""
        self.ready_path.unlink(missing_ok=True)
        self.mounted_path.unlink(missing_ok=True)
        shares = {self.root / "program": "/program", self.told: "/told"}
        forward = {self.nfs_port: NFS_PORT, self.admin_port: ADMIN_PORT, self.iscsi_port: ISCSI_PORT}
        option = ",snapshot=on" if throw_away else ""
        self.machine = vm.Machine(self.root, [drive.url + option for drive in self.drives], shares, forward)
        data = [word for index in self.members for word in ("--data", self.folder(index))]
        self.arguments = [self.file_system, *map(str, away), "--", *data, "--disk-root", "/disks", *self.flags]
        self.boots_left = BOOTS_AGAIN_COUNT_MAX
        self.start_machine()

    def start_machine(self):
        self.machine.start(GUEST_SCRIPT, self.arguments, self.variables)

    def is_ready(self):
        if self.machine.failed_to_boot() and self.boots_left:
            # Now and then an emulated machine does not get as far as our script; nobody has used a drive then.
            self.boots_left -= 1
            print("       the guest did not boot; once more", flush=True)
            self.start_machine()
        self.machine.check()
        return self.ready_path.exists()

    def await_ready(self):
        harness.wait_until(self.is_ready, BOOT_SECONDS_MAX, "the start of the server in the guest")

    def cut_power(self, rng):
        """Everything that was not flushed is lost, or a part of it. Returns how many writes were lost, and kept."""
        self.machine.cut_power()
        self.machine = None
        lost_count = kept_count = 0
        # What is on several drives is lost only if all of them lose it: so they do half of the time.
        leaves = rng.choice(("nothing", None))
        for drive in self.drives:
            drive.meets()
            drive.await_end(CUT_SECONDS_MAX)
            lost, kept = drive.lose_power(rng, leaves)
            lost_count, kept_count = lost_count + lost, kept_count + kept
        return lost_count, kept_count

    def listed(self):
        """The disks of the pool by drive, and what is being moved."""
        listed = json.loads(self.cairn("disk", "list", "--json").stdout)
        return {self.index_of(disk["label"]): disk for disk in listed["disks"]}, listed["rebuild"]

    def scrub_status(self):
        return json.loads(self.cairn("scrub", "status", "--json").stdout)

    def written_count(self):
        return sum(drive.written_count() for drive in self.drives)

    def log_tail(self):
        return super().log_tail() if self.log_path.exists() else "no log of the server"


def build_forgetful(library):
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise harness.Failure("no C compiler: run `scripts/setup build`")
    source = GUEST_SCRIPT.with_name("forgetful.c")
    argv = [compiler, "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"]
    subprocess.run(argv, check=True)


def free_ports(count):
    """Ports that nobody uses now."""
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [held.getsockname()[1] for held in sockets]
