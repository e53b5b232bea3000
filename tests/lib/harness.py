"""Starts and stops real `cairn` servers for tests, the demo and the benchmarks.

Owns: where the program is, a server's life (start, kill, stop), its admin API, its process numbers.
Must not know: what is tested or measured with it.
"""

import contextlib
import fcntl
import functools
import itertools
import json
import os
import pathlib
import platform
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from typing import Any, TextIO

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
START_SECONDS_MAX = 60
STOP_SECONDS_MAX = 120
POLL_SECONDS = 0.005
LOG_TAIL_LINES = 30
# Of tests' servers: below what the kernel chooses from.
PORT_FIRST, PORTS_COUNT, PORT_RANGES_COUNT = 10_000, 200, 100
# Folders of disks are made where a test names them; who tests that they are not says so (`CAIRN_CREATE=false`).
os.environ.setdefault("CAIRN_CREATE", "true")
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


# A script that is told to end still stops its servers and removes its folders.
signal.signal(signal.SIGTERM, lambda number, _frame: raise_exit(number))


def raise_exit(signal_number):
    raise SystemExit(128 + signal_number)


class Failure(Exception):
    """Something did not work; the text is for the person who ran the script."""


class Late(Failure):
    """Something did not happen in time: wrong, or slow on a machine that does much else."""


def set_up(what):
    """Has `scripts/setup` install a tool of the tests. Returns the folder with it."""
    done = subprocess.run([str(REPOSITORY / "scripts" / "setup"), what], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise Failure(f"scripts/setup {what}: {done.stderr}")
    return pathlib.Path(done.stdout.strip().splitlines()[-1])


def set_up_packages(what):
    """Has `scripts/setup` install packages of Python, and lets this program import them."""
    (packages,) = set_up(what).glob("lib/python*/site-packages")
    # Before what else is installed: the version that is tested with.
    sys.path.insert(0, str(packages))


def cpu_name():
    lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def target_dir():
    """The folder cargo builds into."""
    return pathlib.Path(os.environ.get("CARGO_TARGET_DIR") or REPOSITORY / "target")


_profile = "fast"


def use_profile(name):
    """Says with which cargo profile the program was built: tests take `fast`, benchmarks `release`."""
    global _profile
    _profile = name


def build_dir():
    """The folder of the programs that were built with that profile."""
    return target_dir() / _profile


def cairn_path():
    """The program under test: $CAIRN, or what cargo built."""
    path = pathlib.Path(os.environ.get("CAIRN") or build_dir() / "cairn")
    if not path.exists():
        raise Failure(
            f"{path} does not exist: run `cargo build --locked --profile {_profile} -p cairn`, or set CAIRN to the program"
        )
    return path


def wait_until(done, seconds, what, poll_seconds=POLL_SECONDS):
    """Polls `done` until it returns something true, and returns that.

    Looking takes at most a fifth of the time: what runs a command leaves the processors to what it waits for.
    """
    deadline = time.monotonic() + seconds
    while True:
        began = time.monotonic()
        result = done()
        took = time.monotonic() - began
        if result:
            return result
        if time.monotonic() > deadline:
            raise Late(f"{what} did not happen within {seconds} s")
        time.sleep(max(poll_seconds, 4 * took))


class Ports:
    """Ports that no other test has: a server that is killed and started again finds its own still free.

    A port that the kernel chooses may be given to somebody else's connection meanwhile. These lie below those, and
    a lock on a file keeps each range of them for one process.
    """

    def __init__(self):
        folder = pathlib.Path(tempfile.gettempdir()) / f"cairn-test-ports-{os.getuid()}"
        folder.mkdir(exist_ok=True)
        for index in range(PORT_RANGES_COUNT):
            # Open, and so locked, until this process ends.
            self.lock: TextIO = open(folder / str(index), "w")  # noqa: SIM115
            with contextlib.suppress(OSError):
                fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self.first = PORT_FIRST + index * PORTS_COUNT
                self.left = itertools.cycle(range(self.first, self.first + PORTS_COUNT))
                return
            self.lock.close()
        raise Failure(f"all ranges of ports for tests are in use: {folder}")

    def next(self):
        """One that nobody uses now."""
        for port in itertools.islice(self.left, PORTS_COUNT):
            with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
                return port
        raise Failure("no port for tests is free")


@functools.cache
def ports():
    return Ports()


def next_port():
    """A port for one server of this process."""
    return ports().next()


@contextlib.contextmanager
def scratch(prefix, parent=None):
    """A folder that is gone afterwards, on a real disk: /tmp is often memory, without O_DIRECT."""
    parent = pathlib.Path(parent or os.environ.get("CAIRN_SCRATCH") or target_dir() / "tmp")
    parent.mkdir(parents=True, exist_ok=True)
    path = pathlib.Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


class Server:
    """One `cairn serve` on folders below `root`, on a free port; `rpcbind`: True, False, or None for its default."""

    def __init__(self, root, disks=1, flags=(), wrapper=(), rpcbind=False, port=0):
        self.root = pathlib.Path(root)
        self.disks = [self.root / f"disk{index}" for index in range(disks)]
        self.flags = list(flags)
        self.wrapper = list(wrapper)
        # Port 111 belongs to the machine: only tests of it touch it.
        self.rpcbind = rpcbind
        self.port_wanted = port
        self.log_path = self.root / "cairn.log"
        self.ready_path = self.root / "ready.json"
        self.token_path = self.root / "admin-token"
        self.state_path = self.root / "state"
        # Both from its start on.
        self.process: Any = None
        self.ready: Any = None

    def __enter__(self):
        return self.start()

    def __exit__(self, *_):
        self.kill()

    def argv(self):
        argv = [*self.wrapper, str(cairn_path()), "serve"]
        for disk in self.disks:
            argv += ["--data", str(disk)]
        argv += ["--listen-nfs", f"127.0.0.1:{self.port_wanted or next_port()}", "--listen-admin", "127.0.0.1:0"]
        if self.rpcbind is not None:
            argv.append(f"--rpcbind={str(self.rpcbind).lower()}")
        argv += ["--ready-file", str(self.ready_path), "--token-file", str(self.token_path)]
        # What a test adds lies beside the disks, or beside their folder.
        argv += ["--disk-root", str(self.root.absolute().parent)]
        return argv + self.flags

    def environment(self):
        # A runtime folder of its own: `cairn` must not find another server of this user. A state folder of its own, which
        # is on no disk.
        run = self.root / "run"
        run.mkdir(exist_ok=True)
        environment = {key: value for key, value in os.environ.items() if key != "CAIRN_SERVER"}
        return environment | {"CAIRN_RUNTIME_DIR": str(run.absolute()), "CAIRN_STATE_DIR": str(self.state_path.absolute())}

    def spawn(self):
        """Starts the process and does not wait for it."""
        self.ready_path.unlink(missing_ok=True)
        with open(self.log_path, "ab") as log:
            return subprocess.Popen(
                self.argv(), stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.environment()
            )

    def start(self, seconds=START_SECONDS_MAX):
        """Returns once it serves."""
        self.process = self.spawn()

        def ready():
            if self.process.poll() is not None:
                raise Failure(f"cairn serve ended with {self.process.returncode}:\n{self.log_tail()}")
            # It is renamed into place, so that what can be read is whole.
            return self.ready_path.exists() and json.loads(self.ready_path.read_text())

        self.ready = wait_until(ready, seconds, "the start of cairn serve")
        return self

    def kill(self):
        """kill -9."""
        if self.process and self.process.poll() is None:
            self.process.kill()
        if self.process:
            self.process.wait()

    def stop(self):
        """SIGTERM; returns the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(STOP_SECONDS_MAX)

    def restart(self, seconds=START_SECONDS_MAX):
        status = self.stop()
        if status != 0:
            raise Failure(f"cairn serve ended with {status} after SIGTERM:\n{self.log_tail()}")
        return self.start(seconds)

    def log_tail(self):
        lines = self.log_path.read_text(errors="replace").splitlines()
        return "\n".join(lines[-LOG_TAIL_LINES:])

    @property
    def pid(self):
        return self.process.pid

    @property
    def port(self):
        return self.ready["nfs"]["port"]

    def url(self, path=""):
        """A URL for our own file commands."""
        return f"nfs://127.0.0.1:{self.port}/main/{path}"

    def libnfs_url(self, path=""):
        """A URL for libnfs."""
        port = self.port
        top = f"/main/{path}".rstrip("/")
        return f"nfs://127.0.0.1{top}?nfsport={port}&mountport={port}&version=3"

    def make_folder(self, name):
        """Makes a folder in the volume, by copying an empty one."""
        with scratch("folder-") as root:
            (root / name).mkdir()
            self.cairn("cp", "-r", str(root / name), self.url())

    def get(self, path):
        """The body of GET from the admin API."""
        request = urllib.request.Request(
            self.ready["admin"]["url"] + path,
            headers={"Authorization": f"Bearer {self.token_path.read_text().strip()}"},
        )
        with urllib.request.urlopen(request, timeout=30) as response:
            return response.read().decode()

    def status(self):
        return json.loads(self.cairn("status", "--json").stdout)

    def is_well(self):
        """Whether all is as it should be, but that the folders are on one drive, as those of a test are."""
        status = self.status()
        kinds = [warning["kind"] for warning in status["warnings"]]
        return status["health"] == "healthy" or (status["health"] == "no_redundancy" and "one_disk" not in kinds)

    def metrics(self):
        """Each series of /metrics with its value."""
        series = {}
        for line in self.get("/metrics").splitlines():
            if line and not line.startswith("#"):
                name, _, value = line.rpartition(" ")
                series[name] = float(value)
        return series

    def cairn(self, *arguments, check=True, **options):
        """Runs a command of `cairn` against this server."""
        words = [str(argument) for argument in arguments]
        if words[0] not in ("ls", "cp", "cat", "rm", "stat", "serve", "config", "plan"):
            words += ["--server", self.ready["admin"]["url"], "--token-file", str(self.token_path)]
        options = {"text": True} | options
        if "input" not in options:
            options["stdin"] = subprocess.DEVNULL
        done = subprocess.run([str(cairn_path()), *words], capture_output=True, env=self.environment(), **options)
        if check and done.returncode != 0:
            raise Failure(f"cairn {' '.join(words)} ended with {done.returncode}:\n{done.stderr}")
        return done

    def spawn_cairn(self, *arguments):
        """Starts a file command and does not wait for it."""
        argv = [str(cairn_path()), *map(str, arguments)]
        quiet = subprocess.DEVNULL
        return subprocess.Popen(argv, stdin=quiet, stdout=quiet, stderr=quiet, env=self.environment())

    def cpu_seconds(self):
        """CPU time of the process so far, in user and kernel."""
        return cpu_seconds(self.pid)


def cpu_seconds(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND


def resident_bytes(pid, key="VmRSS"):
    """Resident memory of a process now, or with VmHWM the most it ever had."""
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) * 1024
    raise Failure(f"/proc/{pid}/status has no {key}")
