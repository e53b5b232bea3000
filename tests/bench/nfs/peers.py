"""The servers under test: Cairn on folders, NFS-Ganesha with its VFS backend on a folder.

Owns: how NFS-Ganesha is configured, started and stopped; that both look the same to the loads.
Must not know: workloads.
"""

import contextlib
import os
import pathlib
import shutil
import socket
import subprocess
from typing import Any

from lib import harness

DROP_CACHES = pathlib.Path("/proc/sys/vm/drop_caches")
GANESHA_SECONDS_MAX = 60
PORTMAP_PORT = 111


def answers(port):
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
        return True
    except OSError:
        return False


class Ganesha:
    """NFS-Ganesha; here with its VFS backend on a folder."""

    # Its backend, as its configuration names it.
    fsal = "Name=VFS;"

    def __init__(self, root):
        self.root, self.export = root, self.make_export(root)
        (root / "recovery").mkdir(parents=True)
        self.port, self.mount_port = harness.next_port(), harness.next_port()
        self.config = root / "ganesha.conf"
        self.config.write_text(f"""
            NFS_Core_Param {{ NFS_Port={self.port}; MNT_Port={self.mount_port}; NLM_Port={harness.next_port()};
                Rquota_Port={harness.next_port()}; Enable_NLM=false; Enable_RQUOTA=false; Protocols=3; Bind_addr=127.0.0.1; }}
            NFSV4 {{ Graceless = true; RecoveryRoot = {root}/recovery; }}
            EXPORT {{ Export_Id=1; Path={self.export}; Pseudo=/x; Access_Type=RW; Squash=No_Root_Squash;
                SecType=sys; Protocols=3; Transports=TCP; FSAL {{ {self.fsal} }} }}
            LOG {{ Default_Log_Level = WARN; }}""")
        self.process: Any = None

    def make_export(self, root):
        """Makes what is exported; gives its path."""
        export = root / "export"
        export.mkdir(parents=True)
        return export

    def start(self):
        argv = ["ganesha.nfsd", "-F", "-L", str(self.root / "log"), "-f", str(self.config), "-p", str(self.root / "pid")]
        self.process = subprocess.Popen(argv, stdin=subprocess.DEVNULL)

        def serves():
            if self.process.poll() is not None:
                raise harness.Failure("ganesha.nfsd ended (is rpcbind running?):\n" + (self.root / "log").read_text()[-2000:])
            return answers(self.port) and answers(self.mount_port)

        harness.wait_until(serves, GANESHA_SECONDS_MAX, "the start of NFS-Ganesha")
        return self

    def url(self, path=""):
        return f"nfs://127.0.0.1:{self.port}{self.export / path}?mountport={self.mount_port}"

    def libnfs_url(self, path=""):
        return f"nfs://127.0.0.1{self.export / path}?nfsport={self.port}&mountport={self.mount_port}&version=3"

    def make_folder(self, name):
        (self.export / name).mkdir()

    def stop(self):
        self.process.terminate()
        self.process.wait(GANESHA_SECONDS_MAX)

    def restart(self):
        self.stop()
        return self.start()

    def kill(self):
        if self.process and self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    @property
    def pid(self):
        return self.process.pid

    def cpu_seconds(self):
        return harness.cpu_seconds(self.pid)


def cairn(root, disks=1):
    return harness.Server(root, disks).start()


def ganesha(root):
    return Ganesha(root / "ganesha").start()


@contextlib.contextmanager
def portmapper():
    """NFS-Ganesha does not start without one."""
    if answers(PORTMAP_PORT):
        yield
        return
    process = subprocess.Popen(["rpcbind", "-f", "-w"], stdin=subprocess.DEVNULL)
    try:
        harness.wait_until(lambda: answers(PORTMAP_PORT), GANESHA_SECONDS_MAX, "the start of rpcbind")
        yield
    finally:
        process.terminate()
        process.wait()


def check_installed():
    if os.geteuid() != 0:
        raise harness.Failure("NFS-Ganesha and emptying the page cache need root")
    for program in ("ganesha.nfsd", "rpcbind", "fio"):
        if not shutil.which(program):
            raise harness.Failure(f"{program} is not installed: run `scripts/setup bench`")


def make_cold(server):
    """Empties the caches of server and kernel, the same way for all."""
    server.restart()
    os.sync()
    DROP_CACHES.write_text("3")


def lose_disks(server, count):
    """Stops the server, deletes so many of its disks, and starts it cold."""
    status = server.stop()
    if status != 0:
        raise harness.Failure(f"cairn serve ended with {status} after SIGTERM:\n{server.log_tail()}")
    for disk in server.disks[:count]:
        shutil.rmtree(disk)
    os.sync()
    DROP_CACHES.write_text("3")
    server.start()
