"""What can happen to a server that is in use, short of losing its disks: killed, stopped, starved, cut off.

Owns: doing it and, where it does not end by itself, ending it. Must not know: who uses the server, what is
checked afterwards.
"""

import contextlib
import os
import pathlib
import resource
import signal
import socket
import struct
import subprocess
import threading
import time

from lib import harness

CHUNK_LEN_BYTES = 1 << 18
# Closes a socket with a reset instead of a farewell.
RESET_AT_CLOSE = struct.pack("ii", 1, 0)
# On a busy machine its clients take long to make it ask for memory.
DEATH_SECONDS_MAX = 300
STOPPED_SECONDS_MAX = 30
# What a process may still use until SIGSTOP has reached all its threads.
CPU_SECONDS_MAX = 0.2
CGROUPS_1 = pathlib.Path("/sys/fs/cgroup/memory")
CGROUPS_2 = pathlib.Path("/sys/fs/cgroup")
# What a server that is to run out of memory may still take; it needs more within moments.
MEMORY_LEFT_BYTES = 16 << 20
HELD_SECONDS_MAX = 60


def kill(server):
    """kill -9, and a start where clients look for it."""
    server.port_wanted = server.port
    server.kill()
    server.start()


def stop(server, seconds):
    """SIGSTOP for so long: the length is the fault."""
    state = lambda: pathlib.Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()[0]
    server.process.send_signal(signal.SIGSTOP)
    try:
        harness.wait_until_equal(state, "T", STOPPED_SECONDS_MAX, "that the server stands still")
        before = harness.cpu_seconds(server.pid)
        time.sleep(seconds)
        if state() != "T" or harness.cpu_seconds(server.pid) - before > CPU_SECONDS_MAX:
            raise harness.Failure(f"the server did not stand still: its state is {state()}")
    finally:
        server.process.send_signal(signal.SIGCONT)


def await_death(server):
    """Waits until the process ends by itself; returns how: a negative signal number, or an exit status."""
    ended = lambda: server.process.poll() is not None
    harness.wait_until(ended, DEATH_SECONDS_MAX, "the end of the server")
    return server.process.returncode


def out_of_address_space(server):
    """No more memory can be asked for; returns how the server ended. It is not started again."""
    server.port_wanted = server.port
    now_bytes = int(pathlib.Path(f"/proc/{server.pid}/statm").read_text().split()[0]) * resource.getpagesize()
    resource.prlimit(server.pid, resource.RLIMIT_AS, (now_bytes, now_bytes))
    return await_death(server)


def has_memory_groups():
    """Whether the kernel can be told to kill for want of memory: root, and cgroups."""
    try:
        with memory_group("probe"):
            return True
    except OSError:
        return False


@contextlib.contextmanager
def memory_group(name):
    """A new memory cgroup: the file of its limit, that of its members, and how many it killed."""
    old = (CGROUPS_1 / "memory.limit_in_bytes").exists()
    folder = (CGROUPS_1 if old else CGROUPS_2) / f"cairn-{name}-{os.getpid()}"
    folder.mkdir()
    try:
        limit = folder / ("memory.limit_in_bytes" if old else "memory.max")
        events = folder / ("memory.oom_control" if old else "memory.events")
        limit.write_text(str(1 << 40))

        def kills_count():
            words = events.read_text().split()
            return int(words[words.index("oom_kill") + 1])

        yield limit, folder / "cgroup.procs", kills_count
    finally:
        # The kernel lets go of a member a moment after its end.
        def removed():
            with contextlib.suppress(OSError):
                folder.rmdir()
                return True

        harness.wait_until(removed, DEATH_SECONDS_MAX, f"the end of {folder}")


def out_of_memory(server):
    """The kernel kills the server for want of memory, under the load that it has; then a start."""
    server.port_wanted = server.port
    with memory_group("oom") as (limit, members, kills_count):
        # What it has counts where it was; what it takes from now on counts here.
        limit.write_text(str(MEMORY_LEFT_BYTES))
        members.write_text(str(server.pid))
        ended = await_death(server)
        if ended != -signal.SIGKILL or not kills_count():
            raise harness.Failure(f"the server ended with {ended} instead of being killed for want of memory")
    server.start()


@contextlib.contextmanager
def descriptors_left(server, count):
    """The running server can have so many more file descriptors, until the end of the block."""
    before = resource.prlimit(server.pid, resource.RLIMIT_NOFILE)
    used = {int(name) for name in os.listdir(f"/proc/{server.pid}/fd")}
    # The limit is one of numbers: those below it that are free are free for use.
    free = [number for number in range(len(used) + count + 1) if number not in used]
    resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (free[count], before[1]))
    try:
        yield
    finally:
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, before)


@contextlib.contextmanager
def small_disk(folder, len_bytes):
    """A file system of its own, which others can fill: needs root."""
    image = folder.with_suffix(".image")
    with open(image, "wb") as file:
        file.truncate(len_bytes)
    # Root has no blocks of its own here: full is full for everybody.
    run(["mkfs.ext4", "-q", "-m", "0", "-O", "^has_journal", str(image)])
    folder.mkdir()
    run(["mount", "-o", "loop", str(image), str(folder)])
    try:
        yield folder
    finally:
        run(["umount", "--lazy", str(folder)])


def run(argv):
    done = subprocess.run(argv, capture_output=True, text=True)
    if done.returncode:
        raise harness.Failure(f"{' '.join(argv)} ended with {done.returncode}: {done.stderr}")


@contextlib.contextmanager
def read_only(folder):
    """Whoever opens a file below a folder to write it is refused, until the end of the block."""
    run(["mount", "--bind", str(folder), str(folder)])
    try:
        run(["mount", "-o", "remount,bind,ro", str(folder)])
        yield
    finally:
        run(["umount", "--lazy", str(folder)])


@contextlib.contextmanager
def filled(folder):
    """Somebody else takes all space of a file system, and what becomes free, until the end of the block."""
    path, full = folder / "of-somebody-else", threading.Event()
    ended = threading.Event()

    def fill():
        block = os.urandom(1 << 20)
        with open(path, "wb", buffering=0) as file:
            while not ended.is_set():
                try:
                    file.write(block)
                    os.fsync(file.fileno())
                except OSError:
                    full.set()
                    block = block[:4096]
                    ended.wait(harness.POLL_SECONDS)

    thread = threading.Thread(target=fill, daemon=True)
    thread.start()
    try:
        if not full.wait(DEATH_SECONDS_MAX):
            raise harness.Failure(f"{folder} cannot be filled")
        yield
    finally:
        ended.set()
        thread.join()
        path.unlink()


class Link:
    """One connection through the network: a client's side, and one to the server."""

    def __init__(self, client, server):
        self.client, self.server = client, server
        self.changed = threading.Condition()
        # Nothing gets through; calls do not, while replies do.
        self.frozen = self.holds_calls = False
        self.deaf = self.cut = False
        # Replies that the client never gets; what came while it did not get through, replies or not.
        self.lost_bytes = self.held_bytes = 0
        self.pumps_count = 2

    def set(self, **changes):
        with self.changed:
            for name, value in changes.items():
                setattr(self, name, value)
            self.changed.notify_all()

    def pump(self, source, target, is_reply):
        def holds():
            return self.frozen or (self.holds_calls and not is_reply)

        with contextlib.suppress(OSError):
            while data := source.recv(CHUNK_LEN_BYTES):
                with self.changed:
                    if holds():
                        self.held_bytes += len(data)
                    self.changed.wait_for(lambda: not holds())
                if self.cut:
                    break
                if is_reply and self.deaf:
                    self.lost_bytes += len(data)
                else:
                    target.sendall(data)
        if not self.cut:
            with contextlib.suppress(OSError):
                target.shutdown(socket.SHUT_WR)
        with self.changed:
            self.pumps_count -= 1
            if not self.pumps_count:
                self.client.close()
                self.server.close()

    def reset(self):
        self.set(frozen=False, holds_calls=False, cut=True)
        for end in (self.client, self.server):
            with contextlib.suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_AT_CLOSE)
                # Wakes the threads that wait for it; the last of them closes both.
                end.shutdown(socket.SHUT_RDWR)


class Network:
    """A way to a server that can be disturbed. Clients use its `port`."""

    def __init__(self, server):
        self.target = server
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.links = []
        self.lock = threading.Lock()
        self.is_down = False
        self.stalls = False

    def __enter__(self):
        threading.Thread(target=self.accept, daemon=True).start()
        return self

    def __exit__(self, *_):
        # Wakes the thread that accepts.
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.cut()

    def accept(self):
        with contextlib.suppress(OSError):
            while True:
                client, _ = self.listener.accept()
                self.connect(client)

    def connect(self, client):
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            if self.is_down:
                raise ConnectionRefusedError
            server = socket.create_connection(("127.0.0.1", self.target.port))
            server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_AT_CLOSE)
            client.close()
            return
        link = Link(client, server)
        with self.lock:
            link.frozen = self.stalls
            self.links.append(link)
        if self.is_down:  # Since then, by another thread.
            self.cut()  # type: ignore[unreachable]
        for pair in ((client, server, False), (server, client, True)):
            threading.Thread(target=link.pump, args=pair, daemon=True).start()

    def taken(self):
        """The links that are there, which new ones do not join any more."""
        with self.lock:
            links, self.links = self.links, []
        return links

    def cut(self):
        """All connections end at once, whatever is on its way."""
        links = self.taken()
        for link in links:
            link.reset()
        return len(links)

    @contextlib.contextmanager
    def down(self):
        """No connection is there or can be made, until the end of the block."""
        self.is_down = True
        self.cut()
        try:
            yield
        finally:
            self.is_down = False

    @contextlib.contextmanager
    def stalled(self):
        """Nothing gets through and nobody is told, until the end of the block; then it does."""
        links = self.set_stalls(True)
        try:
            yield
            # It was in somebody's way.
            harness.wait_until(lambda: any(link.held_bytes for link in links), HELD_SECONDS_MAX, "something that is held")
        finally:
            self.set_stalls(False)

    def set_stalls(self, stalls):
        with self.lock:
            self.stalls = stalls
            links = list(self.links)
        for link in links:
            link.set(frozen=stalls)
        return links

    def lose_replies(self, seconds_max):
        """What the server answers is lost, until something was; then all connections end."""
        with self.lock:
            links = list(self.links)
        for link in links:
            link.set(deaf=True)
        harness.wait_until(lambda: any(link.lost_bytes for link in links), seconds_max, "a reply that is lost")
        self.cut()

    @contextlib.contextmanager
    def late(self):
        """Connections end for the client; what it had sent reaches the server at the end of the block."""
        old = self.taken()
        for link in old:
            link.set(holds_calls=True)
        harness.wait_until(lambda: any(link.held_bytes for link in old), HELD_SECONDS_MAX, "a call that is held")
        for link in old:
            with contextlib.suppress(OSError):
                link.client.shutdown(socket.SHUT_WR)
        try:
            yield
        finally:
            for link in old:
                link.set(holds_calls=False)
