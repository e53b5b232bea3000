"""Runs scripts in a VM with a stock Linux kernel, against a server on this machine.

Owns: what the tool `linux-client` (tests/vm/linux-client) is told, the folder through which a script asks this
side for something, the network of its own; machines with drives of their own whose power can be cut. Must not know:
what the scripts test.
"""

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from typing import Any

from lib import harness

HOST_SEEN_FROM_GUEST = "10.0.2.2"
IN_NAMESPACE = "CAIRN_VM_NAMESPACE"
REQUESTS_FOLDER = "/requests"
STOP_SECONDS_MAX = 60
QEMU = "qemu-system-x86_64"
TOOL = harness.REPOSITORY / "tests" / "vm" / "linux-client" / "linux-client"


def qemu():
    """The path of qemu, which the tool boots the guest with."""
    path = shutil.which(QEMU, path=os.environ["PATH"] + ":/usr/local/sbin:/usr/sbin:/sbin")
    if path is None:
        raise harness.Failure(f"{QEMU} is not installed, so nothing was tested: run `scripts/setup vm`")
    return path


def cargo_tool(name, version):
    """A program from crates.io, built once below target/tools."""
    root = harness.target_dir() / "tools"
    path = root / "bin" / name
    if not path.exists():
        argv = ["cargo", "install", "--quiet", "--locked", "--root", str(root), "--version", version, name]
        if subprocess.run(argv).returncode:
            raise harness.Failure(f"could not build {name} {version} from crates.io; is the internet there?")
    return path


def image():
    """Makes the image of the VM if it is not there: that needs the network of this machine."""
    if IN_NAMESPACE in os.environ:
        return
    if subprocess.run([str(TOOL), "build"], stdin=subprocess.DEVNULL).returncode:
        raise harness.Failure("linux-client could not make its image; its messages are above")


def own_network():
    """Starts this program again in a network of its own, where port 111 is free, if that is allowed.

    Returns whether it is in one.
    """
    if IN_NAMESPACE in os.environ:
        return os.environ[IN_NAMESPACE] == "yes"
    user = [] if os.getuid() == 0 else ["--map-root-user"]
    unshare = ["unshare", *user, "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
    with contextlib.suppress(OSError):
        if subprocess.run([*unshare, "true"], capture_output=True).returncode == 0:
            os.environ[IN_NAMESPACE] = "yes"
            os.execvp(unshare[0], [*unshare, sys.executable, *sys.argv])
    return False


def run(
    server, script, shares, seconds_max, arguments=(), cpus=1, requests=None, port=None, environment=None, conduct=None
):
    """Runs a script of the repository in the guest; returns its status.

    `requests`: what the script may ask for, name to function. It makes a file NAME in REQUESTS and
    waits for NAME.done. `port`: where it finds the server, if not where that is. `conduct`: called once with
    that folder, in a thread of its own, while the script runs.
    """
    argv = [str(TOOL), "run", "--timeout", str(seconds_max), "--cpus", str(cpus)]
    with harness.scratch("requests-") as folder:
        for host, guest in {**shares, folder: REQUESTS_FOLDER}.items():
            argv += ["--share", f"{host}:{guest}"]
        argv += ["--env", f"SERVER={HOST_SEEN_FROM_GUEST}", "--env", f"PORT={port or server.port}"]
        argv += ["--env", f"REQUESTS={REQUESTS_FOLDER}"]
        for name, value in (environment or {}).items():
            argv += ["--env", f"{name}={value}"]
        argv += ["--script", str(script), "--", *arguments]
        guest = subprocess.Popen(argv, stdin=subprocess.DEVNULL)
        if conduct:
            threading.Thread(target=conduct, args=(folder,), daemon=True).start()
        try:
            serve_requests(guest, folder, dict(requests or {}))
            return guest.returncode
        finally:
            # It stops its VM when it is told to end.
            guest.terminate()
            guest.wait(STOP_SECONDS_MAX)


def serve_requests(guest, folder, open_requests):
    """Does what the guest asks for, until it ends."""
    while True:
        try:
            guest.wait(harness.POLL_SECONDS)
            return
        except subprocess.TimeoutExpired:
            asked = [name for name in open_requests if (folder / name).exists()]
        for name in asked:
            open_requests.pop(name)()
            (folder / f"{name}.done").touch()


class Machine:
    """A guest with drives that outlive it, in which a script of the repository runs until its power is cut.

    `drives`: what qemu takes as the file of each; the guest sees them as /dev/vdb, /dev/vdc, ... `forward`: ports of
    this machine to those of the guest that they lead to.
    """

    def __init__(self, folder, drives, shares, forward, cpus=1):
        self.folder, self.drives, self.shares, self.forward, self.cpus = folder, drives, shares, forward, cpus
        self.pid_path = folder / "qemu.pid"
        self.output_path = folder / "guest.log"
        self.guest: Any = None
        self.output_begin = 0
        self.make_wrapper()

    def make_wrapper(self):
        """The tool gives a guest no drives, but starts the first qemu in PATH: this one, which adds them."""
        real = qemu()
        argv = []
        for index, drive in enumerate(self.drives):
            # What the guest writes may be kept back until it flushes; what fails is told to it.
            options = f"id=drive{index},if=none,format=raw,cache=writeback,werror=report,rerror=report"
            argv += ["-drive", f"{options},file={drive}", "-device", f"virtio-blk-pci,drive=drive{index}"]
        (self.folder / "bin").mkdir(exist_ok=True)
        wrapper = self.folder / "bin" / QEMU
        pid_path = shlex.quote(str(self.pid_path))
        wrapper.write_text(f'#!/bin/sh\necho $$ >{pid_path}\nexec {real} "$@" {shlex.join(argv)}\n')
        wrapper.chmod(0o755)

    def start(self, script, arguments=(), variables=None):
        """Boots; does not wait for it. `variables`: of the script's environment."""
        argv = [str(TOOL), "run", "--cpus", str(self.cpus)]
        for host, guest in self.shares.items():
            argv += ["--share", f"{host}:{guest}"]
        for host, guest in self.forward.items():
            argv += ["--forward", f"{host}:{guest}"]
        for name, value in (variables or {}).items():
            argv += ["--env", f"{name}={value}"]
        argv += ["--kernel-log", str(self.folder / "kernel.log"), "--script", str(script), "--", *arguments]
        environment = os.environ | {"PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}"}
        self.pid_path.unlink(missing_ok=True)
        with open(self.output_path, "ab") as output:
            self.output_begin = output.tell()
            self.guest = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment
            )

    def check(self):
        """Fails if it has ended by itself."""
        if self.guest.poll() is not None:
            tail = "\n".join(self.output_path.read_text(errors="replace").splitlines()[-harness.LOG_TAIL_LINES :])
            raise harness.Failure(f"the guest ended with {self.guest.returncode}:\n{tail}")

    def failed_to_boot(self):
        """Whether it ended before the script began."""
        if self.guest.poll() is None:
            return False
        return "went down by itself (boot" in self.output_path.read_text(errors="replace")[self.output_begin :]

    def cut_power(self):
        """SIGKILL for qemu, in the middle of whatever it does."""
        if self.guest is None:
            return
        with contextlib.suppress(OSError, ValueError):
            os.kill(int(self.pid_path.read_text()), signal.SIGKILL)
        try:
            self.guest.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self.guest.kill()
            self.guest.wait()
        self.guest = None
