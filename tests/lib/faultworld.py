"""A cluster of real nodes with several volumes for clients that roam: where each protocol is, disks that can be full or lost, clocks.

Owns: volumes with their LUNs and buckets, the addresses of clients, a file system below the disk of each node and a clock for each,
waiting for a cluster that is well. Must not know: which faults happen, what clients do.
"""

import contextlib
import json
import os
import pathlib
import shutil
import subprocess
import time

from lib import harness
from lib.cells import Objects
from lib.cluster import SERVE_SECONDS_MAX, Cluster, can_have_namespaces
from lib.roaming import IscsiRoamer, NfsRoamer, Place, Roamer, S3Roamer

# Each volume with its protection, and how many nodes it does without. On six nodes: 4+2, two copies, three copies, 5+1, 3+3.
VOLUMES = {"main": ("+2n", 2), "mirror": ("2x", 1), "copies": ("3x", 2), "single": ("+1n", 1), "triple": ("+3n", 3)}
MEMBERS_OF_ETCD = 5
HOSTS_OF_A_LUN = 2
INITIATOR = "iqn.2025-11.test:host"
# A file system of its own for each disk: its image is sparse and takes only what is written. Each volume takes log files and a segment that
# is not full, on each disk, and after a takeover another segment until the collection has been there.
DISK_LEN_BYTES, DISK_LEN_BYTES_PER_VOLUME = 4 << 30, 256 << 20
# Of clients, in the network of the nodes and on the loopback network.
CLIENT_NUMBER_FIRST, LOOPBACK_NUMBER_FIRST = 100, 100
CLIENTS_COUNT_MAX = 90
LISTENS = {"nfs": "--listen-nfs", "iscsi": "--listen-iscsi", "s3": "--listen-s3"}
WELL_SECONDS_MAX = 120
COMMAND_SECONDS_MAX = 60


def can_have_disks():
    """Whether each disk gets a file system of its own: root, loop devices, mkfs.ext4."""
    found = os.getuid() == 0 and shutil.which("mkfs.ext4")
    return bool(found) and subprocess.run(["losetup", "-f"], capture_output=True).returncode == 0


def command(*words):
    done = subprocess.run([str(word) for word in words], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        raise harness.Failure(f"{' '.join(map(str, words))} ended with {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def clock_library():
    """What gives a process a wall clock of its own (libfaketime); none if it is not installed."""
    found = sorted(pathlib.Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
    return found[0] if found else None


class Clocks:
    """Wall clocks of nodes that can jump: the program of the nodes is a script that becomes `cairn` with a clock of its own."""

    def __init__(self, folder, cluster_folder, library):
        self.cluster_folder = cluster_folder
        self.program = folder / "cairn-with-clock"
        self.program.write_text(
            "#!/bin/sh\n"
            "# Becomes `cairn`; a node's wall clock is what the file `clock` beside its folder says.\n"
            'for word; do [ "$before" = --cluster-dir ] && folder=$(dirname "$word"); before=$word; done\n'
            'if [ "$1" = serve ]; then\n'
            f'    export LD_PRELOAD={library} FAKETIME_TIMESTAMP_FILE="$folder/clock" FAKETIME_CACHE_DURATION=1\n'
            "    export FAKETIME_DONT_FAKE_MONOTONIC=1 DONT_FAKE_MONOTONIC=1 NO_FAKE_STAT=1\n"
            "fi\n"
            f'exec {harness.cairn_path()} "$@"\n'
        )
        self.program.chmod(0o755)

    def set(self, node, seconds):
        """How far a node's wall clock is ahead from now on; below zero: behind."""
        path = self.cluster_folder / node / "clock"
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_suffix(".new")
        new.write_text(f"{seconds:+d}s\n")
        new.rename(path)


class Disks:
    """A file system for the disk of each node, in a file beside the cluster."""

    def __init__(self, folder, names, len_bytes):
        self.len_bytes = len_bytes
        self.folder, self.names = folder, names
        self.mounted: list[str] = []

    def __enter__(self):
        try:
            for node in self.names:
                self.make(node)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for node in list(self.mounted):
            self.unmount(node)

    def path(self, node):
        return self.folder / node / "disk1"

    def make(self, node):
        image = self.folder.parent / f"{node}.disk"
        image.unlink(missing_ok=True)
        with open(image, "wb") as file:
            file.truncate(self.len_bytes)
        command("mkfs.ext4", "-q", "-m", "0", image)
        self.path(node).mkdir(parents=True, exist_ok=True)
        command("mount", "-o", "loop", image, self.path(node))
        self.mounted.append(node)

    def unmount(self, node):
        # What is killed may hold it for a moment.
        gone = lambda: subprocess.run(["umount", self.path(node)], capture_output=True).returncode == 0
        harness.wait_until(gone, COMMAND_SECONDS_MAX, f"that {self.path(node)} is unmounted")
        self.mounted.remove(node)

    def fill(self, node):
        """All the room is taken by something else."""
        path = self.path(node) / "lost+found" / "filler"
        with open(path, "wb") as file:
            step = 1 << 30
            while step >= 4096:
                try:
                    os.posix_fallocate(file.fileno(), os.fstat(file.fileno()).st_size, step)
                except OSError:
                    step //= 2

    def empty(self, node):
        (self.path(node) / "lost+found" / "filler").unlink(missing_ok=True)

    def lose(self, node):
        """All that was on it is gone; the node does not run."""
        self.unmount(node)
        self.make(node)


class World:
    """The cluster with its volumes, and its clients once they are started."""

    def __init__(self, folder, nodes_count, run, with_clocks=False, volumes_count=0):
        library = clock_library() if with_clocks else None
        self.clocks = Clocks(folder, folder / "cluster", library) if library else None
        self.cluster = Cluster(folder / "cluster", nodes_count, program=self.clocks.program if self.clocks else None)
        self.objects = Objects(run)
        self.has_network = can_have_namespaces()
        len_bytes = DISK_LEN_BYTES + volumes_count * DISK_LEN_BYTES_PER_VOLUME
        self.disks = Disks(self.cluster.folder, self.cluster.names, len_bytes) if can_have_disks() else None
        self.ends = contextlib.ExitStack()
        self.listens: dict[tuple[str, str], tuple[str, int]] = {}
        self.clients: list[Roamer] = []
        self.cut_clients = False

    def __enter__(self):
        with contextlib.ExitStack() as ends:
            if self.disks:
                ends.enter_context(self.disks)
            if self.clocks:
                for node in self.cluster.names:
                    self.clocks.set(node, 0)
            ends.enter_context(self.cluster)
            self.cluster.await_etcd()
            machines = self.cluster.machines()
            for name in self.cluster.names:
                for protocol, flag in LISTENS.items():
                    argv = machines[name]["argv"]
                    host, _, port = argv[argv.index(flag) + 1].rpartition(":")
                    self.listens[name, protocol] = host, int(port)
            self.ends = ends.pop_all()
        return self

    def __exit__(self, *_):
        for client in self.clients:
            client.ended.set()
            client.given_up.set()
        self.ends.close()

    def run(self, *words, node=None, check=True):
        return self.cluster.cairn(node or self.cluster.names[0], *words, check=check, seconds=COMMAND_SECONDS_MAX)

    def sources(self):
        """Addresses of clients: each has its own, as different machines do."""
        host = self.listens[self.cluster.names[0], "nfs"][0]
        if host.startswith("127."):
            for number in range(CLIENTS_COUNT_MAX):
                yield f"127.0.0.{LOOPBACK_NUMBER_FIRST + number}"
            return
        network = host.rpartition(".")[0]
        links = json.loads(command("ip", "-j", "-4", "addr", "show"))
        link = next(link["ifname"] for link in links for address in link["addr_info"] if address["local"].startswith(f"{network}."))
        for number in range(CLIENTS_COUNT_MAX):
            address = f"{network}.{CLIENT_NUMBER_FIRST + number}"
            command("ip", "addr", "add", f"{address}/24", "dev", link)
            yield address

    # Volumes and clients.

    def make_volumes(self):
        for volume, (protection, _) in VOLUMES.items():
            words = ("volume", "set") if volume == "main" else ("volume", "create")
            self.run(*words, volume, "--protection", protection)
            self.run("export", "set", volume, "--client", "0.0.0.0/0", "--squash", "none")

    def move(self, volume, to):
        # Also where it is there: from then on it comes back.
        self.run("volume", "move", volume, "--to", to, node=self.cluster.owner(volume))
        harness.wait_until(lambda: self.cluster.owner(volume) == to, SERVE_SECONDS_MAX, f"that {to} owns {volume}")

    def make_clients(self, seed, nfs_count, s3_count, iscsi_count, volumes=tuple(VOLUMES)):
        """Clients of each volume by each protocol."""
        sources = self.sources()
        for volume in volumes:
            place = Place(
                volume, self.cluster.names, lambda node, protocol: self.listens[node, protocol], self.objects,
                lambda: self.cut_clients,
            )
            for index in range(nfs_count):
                self.clients.append(NfsRoamer(place, index, seed, next(sources)))
            if s3_count:
                bucket, keys = self.make_bucket(volume)
                for index in range(s3_count):
                    self.clients.append(S3Roamer(place, index, seed, next(sources), bucket, keys))
            if iscsi_count:
                target = self.make_lun(volume)
                for index in range(iscsi_count):
                    self.clients.append(IscsiRoamer(place, index, seed, next(sources), target, INITIATOR))
        self.await_places(volumes)
        for client in self.clients:
            client.start()

    def make_bucket(self, volume):
        bucket = f"objects-{volume}"
        self.run("bucket", "create", bucket, "--path", f"{volume}/{bucket}", "--uid", "1000", "--gid", "100")
        made = json.loads(self.run("s3", "key", "create", "--volume", volume, "--uid", "1000", "--gid", "100", "--json").stdout)

        class Made:
            id, secret = made["id"], made["secret"]

        return bucket, Made

    def make_lun(self, volume):
        size = HOSTS_OF_A_LUN * IscsiRoamer.PART_CELLS * 512
        self.run("lun", "create", f"{volume}/disk", "--size", str(size))
        self.run("igroup", "create", f"{volume}/hosts", "--initiator", INITIATOR, "--os", "linux")
        self.run("lun", "map", f"{volume}/disk", "--igroup", "hosts")
        return json.loads(self.run("lun", "show", f"{volume}/disk", "--json").stdout)["target"]

    def await_places(self, volumes):
        """Waits until each node knows the volumes, their targets and buckets: what is new reaches them a moment later."""
        from lib import libnfs

        def mounted(node, volume):
            host, port = self.listens[node, "nfs"]
            try:
                with libnfs.Mount(f"nfs://{host}/{volume}?nfsport={port}&mountport={port}&version=3") as mount:
                    mount.names("/")
                    return True
            except OSError:
                return False

        for node in self.cluster.names:
            for volume in volumes:
                harness.wait_until(lambda node=node, volume=volume: mounted(node, volume), SERVE_SECONDS_MAX, f"{volume} at {node}")
        portals = lambda volume: len(json.loads(self.run("lun", "show", f"{volume}/disk", "--json").stdout)["portals"])
        for volume in volumes:
            if any(client.protocol == "iscsi" and client.place.volume == volume for client in self.clients):
                enough = lambda volume=volume: portals(volume) == len(self.cluster.names)
                harness.wait_until(enough, SERVE_SECONDS_MAX, f"all portals of {volume}")

    # How it is.

    def warnings(self):
        """What a node warns of, and which volumes lack an owner or copies of their log; none if nobody says anything."""
        try:
            status = self.cluster.status()
        except harness.Failure:
            return ["no node answers"]
        found = [f"{warning['kind']} {warning['subject']}" for warning in status["warnings"]]
        found += [f"no owner of {volume['name']}" for volume in status["volumes"] if not volume["owner"]]
        found += [
            f"{volume['log_copies']} of {volume['log_copies_wanted']} copies of the log of {volume['name']}"
            for volume in status["volumes"] if (volume["log_copies"] or 0) < volume["log_copies_wanted"]
        ]
        found += [f"{node['name']} is not there" for node in status["nodes"] if not node["alive"]]
        return found

    def await_well(self, seconds=WELL_SECONDS_MAX):
        """Waits until nothing needs to be done; returns how long that took, and what is left if it did not come."""
        begun = time.monotonic()
        left: list[str] = []

        def well():
            left[:] = self.warnings()
            return not left

        try:
            harness.wait_until(well, seconds, "a cluster that is well")
        except harness.Late:
            return time.monotonic() - begun, left
        return time.monotonic() - begun, []

    def etcd_members(self):
        """Processes of the members of etcd, by the node that runs them."""
        return {name: machine["etcd_pid"] for name, machine in self.cluster.machines().items() if machine["etcd_pid"] is not None}

    def disk_of(self, node, asked):
        nodes = {found["name"]: found for found in self.cluster.status_of(asked)["nodes"]}
        return nodes[node]["disks"][0]["id"]
