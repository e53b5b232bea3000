"""A whole cluster on this machine, by `cairn dev-cluster`, for tests.

Owns: its life, what is done to its nodes, what it says of itself, load on it. Must not know: what is tested with it.
"""

import json
import os
import pathlib
import re
import signal
import subprocess
import time
from typing import Any

from lib import harness

# On a busy machine each node takes seconds.
NODE_SECONDS_MAX = 60
END_SECONDS_MAX = 120
COMMAND_SECONDS_MAX = 180
# A lease, a takeover and what a busy machine adds: in a test that measures something else.
SERVE_SECONDS_MAX = 90
OUTPUT_TAIL_LINES = 40
MEMBERS_OF_NODES = {1: 1, 2: 1, 3: 3, 4: 3}
MEMBERS_MAX = 5
LOAD_END_SECONDS_MAX = 90


def can_have_namespaces():
    """Whether nodes get networks of their own: root, iproute2, nftables, and a kernel that lets root."""
    probe = f"cairn-probe-{os.getpid()}"
    if os.getuid() != 0:
        return False
    try:
        made = subprocess.run(["ip", "netns", "add", probe], capture_output=True)
        if made.returncode:
            return False
        try:
            rules = "add table bridge probe\n"
            argv = ["ip", "netns", "exec", probe, "nft", "-f", "-"]
            return subprocess.run(argv, input=rules, text=True, capture_output=True).returncode == 0
        finally:
            subprocess.run(["ip", "netns", "del", probe], capture_output=True)
    except OSError:
        return False


class Cluster:
    """One `cairn dev-cluster` in the foreground, in a folder of its own."""

    def __init__(self, folder, nodes=3, disks=1, netns="auto", external_etcd=False, serve_flags=(), program=None):
        self.folder = pathlib.Path(folder)
        self.nodes, self.disks, self.netns = nodes, disks, netns
        self.external_etcd, self.serve_flags = external_etcd, list(serve_flags)
        # Nodes of another version than the commands, or a program that becomes `cairn`.
        self.program = program or os.environ.get("CAIRN_NODES")
        # A range of this cluster's own, as long as this object is there.
        self.ports = harness.Ports()
        self.output_path = self.folder.with_suffix(".output")
        self.process: Any = None

    def __enter__(self):
        return self.start()

    def __exit__(self, *_):
        if self.process and self.process.poll() is None:
            self.end()

    @property
    def names(self):
        return [f"node{index}" for index in range(1, self.nodes + 1)]

    def argv(self):
        argv = [str(harness.cairn_path()), "dev-cluster", "--dir", str(self.folder), "--nodes", str(self.nodes)]
        argv += ["--disks", str(self.disks), "--base-port", str(self.ports.first), "--netns", self.netns]
        argv += ["--external-etcd"] if self.external_etcd else []
        argv += ["--program", str(self.program)] if self.program else []
        # What a test adds lies beside the folder of the cluster.
        return [*argv, "--", "--disk-root", str(self.folder.absolute().parent), *self.serve_flags]

    def output(self):
        return self.output_path.read_text(errors="replace") if self.output_path.exists() else ""

    def start(self, seconds=None):
        """Returns once all nodes serve."""
        begun = len(self.output())
        with open(self.output_path, "ab") as output:
            self.process = subprocess.Popen(self.argv(), stdin=subprocess.DEVNULL, stdout=output, stderr=output)

        def ready():
            if self.process.poll() is not None:
                raise harness.Failure(f"cairn dev-cluster ended with {self.process.returncode}:\n{self.tail()}")
            return "a cluster of" in self.output()[begun:]

        try:
            harness.wait_until(ready, seconds or NODE_SECONDS_MAX * (self.nodes + 1), "the start of the cluster")
        except harness.Failure as failure:
            text = f"{failure}\n{self.tail()}\n{self.logs()}"
            if self.process.poll() is None:
                self.end(check=False)
            raise harness.Failure(text) from failure
        return self

    def end(self, check=True):
        """As by Ctrl-C."""
        self.process.send_signal(signal.SIGINT)
        status = self.process.wait(END_SECONDS_MAX)
        if check and status:
            raise harness.Failure(f"cairn dev-cluster ended with {status}:\n{self.tail()}")

    def tail(self):
        return "\n".join(self.output().splitlines()[-OUTPUT_TAIL_LINES:])

    def logs(self, lines_count=15):
        """The end of each node's log, for who looks for what went wrong."""
        parts = []
        for path in sorted(self.folder.glob("*/log")):
            lines = path.read_text(errors="replace").splitlines()[-lines_count:]
            parts.append(f"-- {path.parent.name}\n" + "\n".join(lines))
        return "\n".join(parts)

    def run(self, *words, check=True):
        """Runs a command of `cairn dev-cluster` on this cluster."""
        argv = [str(harness.cairn_path()), "dev-cluster", *map(str, words), "--dir", str(self.folder)]
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=COMMAND_SECONDS_MAX,
        )
        if check and done.returncode:
            raise harness.Failure(f"{' '.join(argv)} ended with {done.returncode}:\n{done.stderr}")
        return done

    # What can be done to nodes.

    def kill(self, *nodes):
        self.run("kill", *nodes)

    def kill_etcd(self, node):
        self.run("kill", node, "--etcd")

    def pause(self, *nodes):
        self.run("pause", *nodes)

    def resume(self, *nodes):
        self.run("resume", *nodes)

    def partition(self, *nodes, one_way=None, peers=(), clients=False):
        words = ["partition", *nodes]
        words += ["--one-way", one_way] if one_way else []
        for peer in peers:
            words += ["--peer", peer]
        self.run(*words, *(["--clients"] if clients else []))

    def slow(self, *nodes, **how):
        words = [word for key, value in how.items() for word in (f"--{key}", value)]
        return self.run("slow", *nodes, *words, check=False)

    def heal(self, *nodes):
        self.run("heal", *nodes)

    def stop(self, *nodes):
        self.run("stop", *nodes)

    def start_nodes(self, *nodes):
        self.run("start", *nodes)

    def add(self, count=1):
        self.run("add", "--nodes", count)
        self.nodes += count

    # What it says of itself.

    def machines(self):
        """What `cairn dev-cluster status` says, by the name of the machine."""
        status = json.loads(self.run("status", "--json").stdout)
        return {machine["name"]: machine for machine in status["machines"]}

    def machine(self, node):
        return self.machines()[node]

    def cairn(self, node, *words, check=True, seconds=COMMAND_SECONDS_MAX):
        """Runs a command of `cairn` against the admin API of a node."""
        machine = self.machine(node)
        argv = [str(harness.cairn_path()), *map(str, words), "--server", machine["admin"]]
        argv += ["--token-file", machine["token_file"]]
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds)
        if check and done.returncode:
            raise harness.Failure(f"{' '.join(argv)} ended with {done.returncode}:\n{done.stderr}\n{self.logs()}")
        return done

    def status_of(self, node):
        """The cluster as a node sees it; none if that does not answer in time."""
        try:
            done = self.cairn(node, "cluster", "status", "--json", check=False, seconds=10)
        except subprocess.TimeoutExpired:
            return None
        return json.loads(done.stdout) if done.returncode == 0 else None

    def status(self, without=()):
        """The cluster as the first node sees it that answers."""
        for name, machine in self.machines().items():
            if machine["life"] == "ready" and name not in without:
                found = self.status_of(name)
                if found:
                    return found
        raise harness.Failure(f"no node answers `cluster status`\n{self.logs()}")

    def owner(self, volume="main", without=()):
        """The node that owns a volume, once there is one: not one of `without`, nor by what those say."""

        def owner():
            volumes = self.status(without)["volumes"]
            name = next(found["owner"] for found in volumes if found["name"] == volume)
            return name if name not in without else None

        return harness.wait_until(owner, SERVE_SECONDS_MAX, f"an owner of {volume}")

    def others(self, *nodes):
        return [name for name in self.names if name not in nodes]

    def await_etcd(self, count=None):
        """Waits until etcd has as many members as so many nodes should have, and each of them runs."""
        wanted = count or MEMBERS_OF_NODES.get(self.nodes, MEMBERS_MAX)
        runs = lambda: sum(machine["etcd_pid"] is not None for machine in self.machines().values()) == wanted
        harness.wait_until(runs, SERVE_SECONDS_MAX, f"that {wanted} members of etcd run")
        known = lambda: len(self.status()["etcd"]["members"]) == wanted
        harness.wait_until(known, SERVE_SECONDS_MAX, f"that etcd has {wanted} members")

    def etcd_leader(self):
        """The node whose member of etcd leads, by the last line in which members tell of a leader."""
        found = []
        for name, machine in self.machines().items():
            if machine["etcd_pid"] is None:
                continue
            for text in self.etcd_logs(name):
                for line in re.findall(r".*became leader at term (\d+)", text):
                    found.append((int(line), name))
        return max(found)[1] if found else None

    def etcd_logs(self, node):
        """What a node's member of etcd wrote, wherever the node keeps that."""
        paths = [self.folder / node / "log", *(self.folder / node).glob("**/etcd*/log")]
        return [path.read_text(errors="replace") for path in paths if path.is_file()]

    # Where clients go.

    def nfs_port(self, node=None):
        """Of a node, or of whichever serves."""
        if node is None:
            return self.ports.first
        return int(self.machine(node)["nfs"].rpartition(":")[2])

    def iscsi_port(self, node):
        """Where clients on this machine find the targets of all nodes through this one."""
        return int(self.machine(node)["iscsi"].rpartition(":")[2])

    def s3_port(self, node):
        """Where clients on this machine find the objects of all nodes through this one."""
        return int(self.machine(node)["s3"].rpartition(":")[2])

    def url(self, node=None, volume="main"):
        """A URL for libnfs."""
        port = self.nfs_port(node)
        return f"nfs://127.0.0.1/{volume}?nfsport={port}&mountport={port}&version=3"

    def await_serving(self, node=None, seconds=SERVE_SECONDS_MAX):
        """Waits until a volume can be listed through a node, or through any."""
        from lib import libnfs

        def listed():
            try:
                with libnfs.Mount(self.url(node)) as mount:
                    mount.names("/")
                    return True
            except OSError:
                return False

        harness.wait_until(listed, seconds, f"that {node or 'some node'} serves")


class Loads:
    """Load over libnfs from several clients, which goes on whatever happens."""

    def __init__(self, urls):
        from lib.load import Load

        self.loads = [Load(url, index) for index, url in enumerate(urls)]

    def __enter__(self):
        for load in self.loads:
            load.start()
        self.await_progress()
        return self

    def __exit__(self, *_):
        for load in self.loads:
            load.ended.set()

    def check(self):
        failures = [f"{load.folder}: {load.failure!r}" for load in self.loads if load.failure]
        if failures:
            raise harness.Failure("; ".join(failures))

    def await_progress(self, step_count=20, seconds=SERVE_SECONDS_MAX):
        """Waits until each client had so many more answers; returns the seconds until the slowest had."""
        begun = time.monotonic()
        wanted = [load.acknowledged_count + step_count for load in self.loads]

        def done():
            self.check()
            return all(load.acknowledged_count >= count for load, count in zip(self.loads, wanted))

        harness.wait_until(done, seconds, "answers to all clients")
        return time.monotonic() - begun

    def forget_pauses(self):
        for load in self.loads:
            load.pause_seconds = 0.0

    def pause_seconds(self):
        """The longest pause of a client since they were forgotten."""
        return max(load.pause_seconds for load in self.loads)

    def acknowledged_count(self):
        return sum(load.acknowledged_count for load in self.loads)

    def end(self):
        for load in self.loads:
            load.end(LOAD_END_SECONDS_MAX)

    def verify(self, url):
        """Compares everything that was acknowledged, through a mount of its own; returns how many bytes that are."""
        from lib import libnfs

        with libnfs.Mount(url) as mount:
            return sum(load.verify(mount) for load in self.loads)
