"""Machines of a network, as far as programs can tell: each has addresses, folders and processes of its own.

Owns: network namespaces at two switches, one for nodes and one for clients; the folder of each machine; running commands there.
Must not know: what is tested. Needs root and iproute2.
"""

import contextlib
import ctypes
import json
import os
import pathlib
import shlex
import signal
import subprocess
import threading
from typing import Any

from lib import harness

COMMAND_SECONDS_MAX = 120
START_SECONDS_MAX = 90
END_SECONDS_MAX = 60
# Folders that any machine has: each machine of a test has its own there, so that all have the same names.
OWN_FOLDERS = ("/mnt", "/srv")
STATE_FOLDER = "/var/lib/cairn"
INTERNAL, EXTERNAL = "10.0.0.", "192.168.1."
# Source: sched.h of Linux.
CLONE_NEWNET = 0x40000000
# `ip` has names of links of at most 15 characters.
TAG = f"cg{os.getpid() % 0xFFFFF:x}"


def ip(*words):
    done = subprocess.run(["ip", *words], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        raise harness.Failure(f"ip {' '.join(words)}: {done.stderr}")
    return done.stdout


class Network:
    """The switches, and what is at them; gone with all processes in it when it ends."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.switch = f"{TAG}-switch"
        self.machines = {}

    def __enter__(self):
        ip("netns", "add", self.switch)
        for bridge in ("internal", "external"):
            ip("-n", self.switch, "link", "add", bridge, "type", "bridge")
            ip("-n", self.switch, "link", "set", bridge, "up")
        return self

    def __exit__(self, *_):
        for machine in self.machines.values():
            machine.power_off()
            with contextlib.suppress(harness.Failure):
                ip("netns", "del", machine.namespace)
        ip("netns", "del", self.switch)

    def machine(self, name, number):
        """A machine with the addresses of this number, at both switches."""
        machine = Machine(self, name, number)
        self.machines[name] = machine
        return machine


class Machine:
    def __init__(self, network, name, number):
        self.name, self.number = name, number
        self.internal, self.external = f"{INTERNAL}{number}", f"{EXTERNAL}{number}"
        self.folder = network.folder / name
        self.namespace = f"{TAG}-{name}"
        for own in (*OWN_FOLDERS, STATE_FOLDER, "/run"):
            self.path(own).mkdir(parents=True)
        ip("netns", "add", self.namespace)
        ip("-n", self.namespace, "link", "set", "lo", "up")
        for link, bridge, address in (("eth0", "internal", self.internal), ("eth1", "external", self.external)):
            port = f"{name}-{link}"
            ip("-n", self.namespace, "link", "add", link, "type", "veth", "peer", "name", port, "netns", network.switch)
            ip("-n", network.switch, "link", "set", port, "master", bridge, "up")
            ip("-n", self.namespace, "addr", "add", f"{address}/24", "dev", link)
            ip("-n", self.namespace, "link", "set", link, "up")
        self.server: Any = None
        self.served = ""

    # Commands.

    def path(self, own):
        """Where this machine finds what that one has in a folder of its own."""
        return self.folder / own.strip("/")

    def argv(self, line):
        """A command line, as somebody types it on this machine."""
        program, *words = shlex.split(line)
        program = str(harness.cairn_path()) if program == "cairn" else program
        # The process that is started becomes the program.
        mounts = [f"mount --bind {self.path(own)} {own}" for own in OWN_FOLDERS]
        mounts += ["mount -t tmpfs none /var/lib", f"mkdir {STATE_FOLDER}", f"mount --bind {self.path(STATE_FOLDER)} {STATE_FOLDER}"]
        script = " && ".join([*mounts, 'exec "$@"'])
        return ["nsenter", f"--net=/run/netns/{self.namespace}", "unshare", "--mount", "sh", "-c", script, "sh", program, *words]

    def environment(self):
        environment = {key: value for key, value in os.environ.items() if not key.startswith("CAIRN_")}
        # The guide's reader has made the folders.
        return environment | {"CAIRN_RUNTIME_DIR": str(self.path("/run")), "CAIRN_CREATE": "true"}

    def run(self, line, check=True, said=""):
        """Runs a command to its end; `said` is what somebody types into it."""
        done = subprocess.run(
            self.argv(line), input=said, capture_output=True, text=True, env=self.environment(), timeout=COMMAND_SECONDS_MAX
        )
        if check and done.returncode:
            raise harness.Failure(f"on {self.name}: {line}: ended with {done.returncode}\n{done.stdout}{done.stderr}\n{self.log_tail()}")
        return done

    def cairn(self, line, check=True):
        """What a command of `cairn` prints; it finds the server of this machine by itself."""
        return self.run(f"cairn {line}", check=check)

    def json(self, line):
        return json.loads(self.cairn(f"{line} --json").stdout)

    # The server.

    @property
    def log_path(self):
        return self.folder / "log"

    def log_tail(self):
        lines = self.log_path.read_text(errors="replace").splitlines() if self.log_path.exists() else []
        return "\n".join(lines[-harness.LOG_TAIL_LINES :])

    def spawn(self, line):
        """Starts a server, and does not wait for it."""
        with open(self.log_path, "ab") as log:
            self.server = subprocess.Popen(
                self.argv(line), stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.environment()
            )
        return self.server

    def serve(self, line):
        """Starts a server, and waits until it serves."""
        ready = self.path("/run") / "ready"
        ready.unlink(missing_ok=True)
        server = self.spawn(f"{line} --ready-file {ready}")

        def is_ready():
            if server.poll() is not None:
                raise harness.Failure(f"on {self.name}: {line}: ended with {server.returncode}\n{self.log_tail()}")
            return ready.exists()

        harness.wait_until(is_ready, START_SECONDS_MAX, f"the start of the server of {self.name}")
        self.served = line

    def stop(self):
        """As `systemctl stop cairn`; the exit status."""
        self.server.terminate()
        return self.server.wait(END_SECONDS_MAX)

    def restart(self):
        self.stop()
        self.serve(self.served)

    def kill_server(self):
        """kill -9 of the server, and of nothing else."""
        self.server.kill()
        self.server.wait(END_SECONDS_MAX)

    def power_off(self):
        """All processes are gone, and nobody on the network hears of it."""
        with contextlib.suppress(harness.Failure):
            for link in ("eth0", "eth1"):
                ip("-n", self.namespace, "link", "set", link, "down")

        def is_off():
            with contextlib.suppress(harness.Failure):
                for pid in map(int, ip("netns", "pids", self.namespace).split()):
                    # Threads of the test that are a client there end by themselves.
                    if pid != os.getpid():
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(pid, signal.SIGKILL)
                            return False
            return True

        harness.wait_until(is_off, END_SECONDS_MAX, f"the end of all processes of {self.name}")
        if self.server:
            self.server.wait(END_SECONDS_MAX)

    def power_on(self):
        for link in ("eth0", "eth1"):
            ip("-n", self.namespace, "link", "set", link, "up")

    # Clients in this process.

    @contextlib.contextmanager
    def inside(self):
        """Connections that this thread makes in here, and threads that it starts, are of this machine."""
        libc = ctypes.CDLL(None, use_errno=True)
        with open(f"/proc/self/task/{threading.get_native_id()}/ns/net") as own, open(f"/run/netns/{self.namespace}") as its:
            if libc.setns(its.fileno(), CLONE_NEWNET):
                raise harness.Failure(f"setns: {os.strerror(ctypes.get_errno())}")
            try:
                yield
            finally:
                if libc.setns(own.fileno(), CLONE_NEWNET):
                    raise harness.Failure(f"setns: {os.strerror(ctypes.get_errno())}")

    def has_address(self, address):
        return f" {address}/" in ip("-n", self.namespace, "-o", "addr", "show")
