"""Who is measured: Cairn, NFS-Ganesha, GlusterFS behind NFS-Ganesha, all of them servers of NFSv3 on this machine.

Owns: which contenders there are, how GlusterFS is set up in a folder of its own, what keeps one from starting.
Must not know: suites, sizes, results.
"""

import dataclasses
import pathlib
import shutil
import socket
import subprocess
from collections.abc import Callable
from typing import Any

from bench.nfs import peers
from lib import cluster, harness, libnfs

DISKS = 6
REDUNDANCY = 2
VOLUME = "main"
CLUSTER_VOLUME = "wide"
# libgfapi, by which NFS-Ganesha finds the volume, knows no other port.
GLUSTERD_PORT = 24007
GLUSTER_SECONDS_MAX = 60
# Bricks make their sockets here, whatever folder they are told, and leave them.
SOCKETS = pathlib.Path("/run/gluster")
FSAL_DIRECTORIES = ["/usr/lib", "/usr/lib64"]


class Missing(Exception):
    """A contender that is not here, or does not start; the text says why."""


def installed(program, package):
    if not shutil.which(program):
        raise Missing(f"{program} is not installed (package {package}; `scripts/setup peers` installs it)")


def fsal_installed(name, package):
    if not any(found for folder in FSAL_DIRECTORIES for found in pathlib.Path(folder).glob(f"**/ganesha/libfsal{name}.so")):
        raise Missing(f"NFS-Ganesha has no {name} backend here (package {package}; `scripts/setup peers` installs it)")


def package_version(package):
    done = subprocess.run(["dpkg-query", "-W", "-f", "${Version}", package], capture_output=True, text=True)
    return done.stdout.strip() or "unknown"


class Gluster:
    """glusterd and the bricks of one disperse volume, all below a folder, on a loopback address."""

    def __init__(self, root):
        self.root = root
        self.bricks = [root / f"brick{index}" for index in range(DISKS)]
        self.socket = root / "run" / "glusterd.socket"
        self.process: Any = None
        self.sockets_before = set(SOCKETS.glob("*.socket"))
        # glusterd refuses bricks on 127.0.0.1 by name, so they are on whatever the name of this machine means.
        self.host = socket.gethostname()
        try:
            self.address = socket.gethostbyname(self.host)
        except OSError as error:
            raise Missing(f"the name of this machine, {self.host}, has no address: {error}") from error

    def configuration(self):
        options = {
            "working-directory": self.root / "glusterd",
            "run-directory": self.root / "run",
            "glusterd-sockfile": self.socket,
            "transport-type": "socket",
            "transport.socket.bind-address": self.address,
            "transport.socket.listen-port": GLUSTERD_PORT,
        }
        lines = [f"    option {key} {value}" for key, value in options.items()]
        return "\n".join(["volume management", "    type mgmt/glusterd", *lines, "end-volume", ""])

    def command(self, *words):
        argv = ["gluster", "--mode=script", f"--glusterd-sock={self.socket}", f"--log-file={self.root}/log/cli.log", *map(str, words)]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=GLUSTER_SECONDS_MAX)
        if done.returncode != 0:
            raise Missing(f"gluster {' '.join(argv[4:7])} ended with {done.returncode}: {(done.stdout + done.stderr).strip()}")
        return done.stdout

    def answers(self):
        if self.process.poll() is not None:
            raise Missing(f"glusterd ended with {self.process.returncode}:\n{self.log_tail()}")
        try:
            return "Connected" in self.command("pool", "list")
        except Missing:
            return False

    def start(self):
        if peers.answers(GLUSTERD_PORT):
            raise Missing(f"port {GLUSTERD_PORT} is taken; if that is a glusterd, stop it (systemctl stop glusterd)")
        for folder in [*self.bricks, *(self.root / name for name in ("glusterd", "run", "log"))]:
            folder.mkdir(parents=True)
        (self.root / "glusterd.vol").write_text(self.configuration())
        argv = ["glusterd", "-N", "-f", self.root / "glusterd.vol", "-l", self.root / "log" / "glusterd.log",
                "-p", self.root / "run" / "glusterd.pid"]
        self.process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        harness.wait_until(self.answers, GLUSTER_SECONDS_MAX, "the start of glusterd")
        bricks = [f"{self.host}:{brick}" for brick in self.bricks]
        self.command("volume", "create", VOLUME, "disperse", DISKS, "redundancy", REDUNDANCY, *bricks, "force")
        self.command("volume", "set", VOLUME, "auth.allow", f"127.*,{self.address}")
        self.command("volume", "start", VOLUME)
        return self

    def log_tail(self):
        log = self.root / "log" / "glusterd.log"
        return log.read_text(errors="replace")[-2000:] if log.exists() else ""

    def kill(self):
        """Ends the bricks as well, which are no children of ours."""
        if not self.process:
            return
        try:
            self.command("volume", "stop", VOLUME, "force")
        except (Missing, subprocess.TimeoutExpired):
            for file in (self.root / "run").glob("**/*.pid"):
                end_process(file)
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for left in set(SOCKETS.glob("*.socket")) - self.sockets_before:
            left.unlink(missing_ok=True)


def end_process(pid_file):
    """kill -9 for the process of a file, if it is one of GlusterFS."""
    text = pid_file.read_text().strip()
    executable = pathlib.Path(f"/proc/{text}/exe")
    if text.isdigit() and executable.exists() and executable.resolve().name.startswith("gluster"):
        subprocess.run(["kill", "-9", text], check=False)


class GlusterGanesha(peers.Ganesha):
    """A disperse volume of GlusterFS, served by NFS-Ganesha without a mount in between."""

    def make_export(self, root):
        self.gluster = Gluster(root / "gluster")
        try:
            self.gluster.start()
        except BaseException:
            self.gluster.kill()
            raise
        self.fsal = f'Name=GLUSTER; Hostname="{self.gluster.address}"; Volume="{VOLUME}";'
        return pathlib.Path("/") / VOLUME

    def stop(self):
        # libgfapi takes ten seconds to end in order, and the data is in the bricks.
        super().kill()

    def kill(self):
        super().kill()
        self.gluster.kill()


class CairnCluster:
    """Six nodes of one disk each on this machine, and their etcd; the client talks to the owner of the volume."""

    def __init__(self, root, flags=()):
        self.cluster = cluster.Cluster(root / "cluster", nodes=DISKS, serve_flags=list(flags))
        self.owner = ""

    def start(self):
        self.cluster.start()
        self.cluster.await_etcd()
        self.cluster.cairn("node1", "volume", "create", CLUSTER_VOLUME, "--protection", f"+{REDUNDANCY}n")
        self.cluster.cairn("node1", "export", "set", CLUSTER_VOLUME, "--client", "0.0.0.0/0", "--rw", "--squash", "none")
        self.await_serving()
        return self

    def await_serving(self):
        self.owner = self.cluster.owner(CLUSTER_VOLUME)
        harness.wait_until(self.serves, cluster.SERVE_SECONDS_MAX, f"that {self.owner} serves {CLUSTER_VOLUME}")

    def serves(self):
        try:
            with libnfs.Mount(self.cluster.url(self.owner, CLUSTER_VOLUME)) as mount:
                mount.names("/")
                return True
        except OSError:
            return False

    def address(self, node):
        """Where a node answers itself: what the dev-cluster opens on this machine's loopback copies each byte once more."""
        argv = self.cluster.machine(node)["argv"]
        return argv[argv.index("--listen-nfs") + 1]

    def url(self, path=""):
        return f"nfs://{self.address(self.owner)}/{CLUSTER_VOLUME}/{path}"

    def restart(self):
        # All at once: in order the last ones would wait for those before them.
        self.cluster.kill(*self.cluster.names)
        self.cluster.start_nodes(*self.cluster.names)
        self.await_serving()

    def kill(self):
        if self.cluster.process and self.cluster.process.poll() is None:
            self.cluster.end(check=False)


def check_cluster():
    harness.cairn_path()
    installed("etcd", "etcd-server")


@dataclasses.dataclass(frozen=True)
class Contender:
    key: str
    title: str
    # Raises Missing when it cannot be had here.
    check: Callable[[], None]
    # A server in a folder, which serves.
    start: Callable[[pathlib.Path], object]
    # Of packages that its version is of.
    packages: tuple[str, ...] = ()

    def version(self):
        if not self.packages:
            argv = [str(harness.cairn_path()), "--version"]
            return subprocess.run(argv, capture_output=True, text=True).stdout.strip().removeprefix("cairn ")
        return ", ".join(f"{package} {package_version(package)}" for package in self.packages)


def check_ganesha():
    installed("ganesha.nfsd", "nfs-ganesha")
    installed("rpcbind", "rpcbind")
    fsal_installed("vfs", "nfs-ganesha-vfs")


def check_gluster():
    installed("ganesha.nfsd", "nfs-ganesha")
    installed("rpcbind", "rpcbind")
    for program in ("glusterd", "gluster"):
        installed(program, "glusterfs-server")
    fsal_installed("gluster", "nfs-ganesha-gluster")


def start_of(make):
    """Starts a server so that nothing of it is left when it does not start."""

    def start(root):
        server = make(root)
        try:
            return server.start()
        except BaseException:
            server.kill()
            raise

    return start


CONTENDERS = [
    Contender("cairn", "Cairn", harness.cairn_path, start_of(harness.Server)),
    Contender("ganesha", "NFS-Ganesha", check_ganesha, start_of(lambda root: peers.Ganesha(root / "ganesha")), ("nfs-ganesha-vfs",)),
    Contender("cairn-six", "Cairn 4+2", harness.cairn_path, start_of(lambda root: harness.Server(root, DISKS))),
    Contender("cairn-nodes", "Cairn, six nodes", check_cluster, start_of(CairnCluster)),
    Contender(
        "gluster", "GlusterFS 4+2", check_gluster, start_of(lambda root: GlusterGanesha(root / "ganesha")),
        ("glusterfs-server", "nfs-ganesha-gluster"),
    ),
]
BY_KEY = {contender.key: contender for contender in CONTENDERS}
