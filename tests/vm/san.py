"""LUNs with the kernel's initiator, multipath, LVM and file systems of a stock Linux, in a VM: tests/vm/guest/san.py.

    scripts/test-san [NAME...]    all but the demonstration, or some: discovery chap multipath ext4 xfs fstrim grow
                                  reservations postgres failover
    scripts/test-san demo         ten LUNs of ten volumes as one disk; `demo_ext4` is the same with ext4
"""

import argparse
import contextlib
import json
import os
import subprocess
import threading

from lib import harness, vm

SECONDS_MAX = 1500
INITIATOR = "iqn.2025-11.test:host"
OTHER_INITIATOR = "iqn.2025-11.test:other"
# XFS wants 300 MB.
LUN_BYTES = 320 << 20
# What the guest finds on one server, in this order: later ones use what earlier ones left logged in.
ON_ONE_SERVER = ("discovery", "chap", "multipath", "ext4", "xfs", "fstrim", "grow", "reservations", "postgres")
NEEDS_LOGIN = set(ON_ONE_SERVER[3:])
ON_A_CLUSTER = ("failover",)
DEMOS = ("demo", "demo_ext4")
DEMO_LUNS = 10
DEMO_LUN_BYTES = 64 << 20
CLUSTER_NODES = 3
PORTALS_SECONDS_MAX = 30
COPIES_SECONDS_MAX = 90
POLL_SECONDS = 0.1
PACKAGES = ("lvm2", "postgresql")


class Answers(threading.Thread):
    """Does what the guest asks for: by name, with the text of the question; what is returned is the answer."""

    def __init__(self, folder, functions):
        super().__init__(daemon=True)
        self.folder, self.functions = folder, functions
        self.ended = threading.Event()

    def run(self):
        while not self.ended.wait(POLL_SECONDS):
            for path in self.folder.glob("*.ask"):
                try:
                    text = self.functions[path.stem](path.read_text())
                except (harness.Failure, subprocess.SubprocessError, OSError, KeyError, ValueError) as failure:
                    text = f"!{failure}"
                path.unlink()
                answer = path.with_suffix(".part")
                answer.write_text(str(text or ""))
                answer.rename(path.with_suffix(".answer"))


def in_guest(server, names, given, functions, files=None):
    """Runs tests in the VM; returns whether they passed. `files`: what the guest finds in its folder of requests."""

    def conduct(folder):
        for name, text in (files or {}).items():
            (folder / name).write_text(text)
        Answers(folder, {name: lambda text, act=act, folder=folder: act(text, folder) for name, act in functions.items()}).start()
        (folder / "go").touch()

    wrapper = "while ! [ -e $REQUESTS/go ]; do sleep 0.2; done; exec python3 /suite/san.py"
    with harness.scratch("san-script-") as folder:
        script = folder / "san.sh"
        script.write_text(f'{wrapper} "$@"\n')
        shares = {harness.REPOSITORY / "tests" / "vm" / "guest": "/suite"}
        environment = {"GIVEN": json.dumps({"initiator": INITIATOR, "other_initiator": OTHER_INITIATOR} | given)}
        status = vm.run(server, script, shares, SECONDS_MAX, names, environment=environment, conduct=conduct, port=1)
    return status == 0


def lun_server(root, portals, volumes=(), **options):
    flags = [word for portal in portals for word in ("--listen-iscsi", portal)]
    server = harness.Server(root, flags=flags, **options)
    server.start()
    for volume in volumes:
        server.cairn("volume", "create", volume, "--access-pattern", "random")
    return server


def make_lun(run, path, size_bytes):
    volume = path.partition("/")[0]
    run("lun", "create", path, "--size", str(size_bytes))
    run("igroup", "create", f"{volume}/hosts", "--initiator", INITIATOR, "--initiator", OTHER_INITIATOR, "--os", "linux")
    run("lun", "map", path, "--igroup", "hosts")
    return json.loads(run("lun", "show", path, "--json").stdout)


def portals_of(ports):
    return [f"127.0.0.1:{port}" for port in ports]


def test_on_one_server(names):
    print("== one server with two portals", flush=True)
    portals = portals_of([harness.next_port(), harness.next_port()])
    with harness.scratch("san-") as root:
        server = lun_server(root, portals)
        lun = make_lun(server.cairn, "main/disk", LUN_BYTES)
        secret, other = root / "secret", root / "other-secret"
        secret.write_text("a secret of the host")
        other.write_text("a secret of the target")

        def kill(_text, _folder):
            server.kill()
            server.start()

        def secrets(_text, _folder):
            server.cairn("initiator", "set", "main", INITIATOR, "--chap-user", "host", "--secret-file", str(secret),
                         "--mutual-user", "cairn", "--mutual-secret-file", str(other))

        def used(_text, _folder):
            (volume,) = [volume for volume in server.status()["volumes"] if volume["name"] == "main"]
            return volume["used_bytes"]

        functions = {
            "kill": kill, "secrets": secrets, "used": used,
            "no-secrets": lambda *_: server.cairn("initiator", "remove", "main", INITIATOR) and None,
            "grow": lambda *_: server.cairn("lun", "resize", "main/disk", "--size", str(2 * LUN_BYTES)) and None,
        }
        # A path that comes is logged in to by the test of paths.
        wanted = list(names)
        if NEEDS_LOGIN & set(names) and "multipath" not in names:
            wanted.insert(0, "multipath")
        if "discovery" not in wanted:
            wanted.insert(0, "discovery")
        try:
            given = {"portals": portals, "groups": [1, 1], "target": lun["target"], "size_bytes": LUN_BYTES}
            passed = in_guest(server, wanted, given, functions)
            stopped = server.stop()
            if not passed or stopped:
                print(f"the server ended with {stopped}:\n{server.log_tail()}")
            return passed and stopped == 0
        finally:
            server.kill()


def test_on_a_cluster(names):
    from lib.cluster import Cluster

    print(f"== a cluster of {CLUSTER_NODES} nodes", flush=True)
    with harness.scratch("san-cluster-") as root, Cluster(root / "cluster", CLUSTER_NODES, netns="no") as cluster:
        cluster.await_etcd()
        owner = cluster.owner()
        run = lambda *words: cluster.cairn(owner, *words)
        lun = make_lun(run, "main/disk", LUN_BYTES)
        shown = lambda: json.loads(run("lun", "show", "main/disk", "--json").stdout)["portals"]
        harness.wait_until(lambda: len(shown()) == CLUSTER_NODES, PORTALS_SECONDS_MAX, "the portals of all nodes")
        # Until then the loss of the first node is the loss of the log.
        copies = lambda kind: min(volume[kind] or 0 for volume in cluster.status()["volumes"])
        has_copies = lambda: copies("log_copies") >= 2 and copies("state_copies") >= 1
        harness.wait_until(has_copies, COPIES_SECONDS_MAX, "copies of log and state on other nodes")
        given = {"portals": shown(), "groups": list(range(1, CLUSTER_NODES + 1)), "target": lun["target"], "size_bytes": LUN_BYTES}
        functions = {"kill-owner": lambda *_: cluster.kill(owner)}
        passed = in_guest(None, ["discovery", *names], given, functions)
        if not passed:
            print(cluster.logs())
        return passed


def test_demo(name):
    print(f"== {DEMO_LUNS} LUNs of {DEMO_LUNS} volumes as one disk", flush=True)
    portals = portals_of([harness.next_port(), harness.next_port()])
    volumes = [f"v{index}" for index in range(DEMO_LUNS)]
    with harness.scratch("san-demo-") as root:
        server = lun_server(root, portals, volumes)
        try:
            secret = root / "secret"
            secret.write_text("a secret of the host")
            luns = [make_lun(server.cairn, f"{volume}/data", DEMO_LUN_BYTES) for volume in volumes]
            for volume in volumes:
                server.cairn("initiator", "set", volume, INITIATOR, "--chap-user", "host", "--secret-file", str(secret))
            kind = "ext4" if name == "demo_ext4" else "xfs"
            plan = server.cairn("san", "plan-host", *(f"{volume}/data" for volume in volumes), "--initiator", INITIATOR,
                                "--mount", "/srv/data", "--fs", kind).stdout
            if "a secret of" in plan:
                raise harness.Failure("a secret is in the script")

            def clone(_text, folder):
                naas = []
                for volume in volumes:
                    server.cairn("lun", "clone", f"{volume}/data", "restored", "--snapshot", "together")
                    server.cairn("lun", "map", f"{volume}/restored", "--igroup", "hosts")
                    naas.append(json.loads(server.cairn("lun", "show", f"{volume}/restored", "--json").stdout)["naa"])
                (folder / "clones").write_text(json.dumps(naas))

            functions = {
                "snapshot": lambda *_: server.cairn("snapshot", "create", "--group", ",".join(volumes), "together") and None,
                "clone": clone,
            }
            given = {"portals": portals, "groups": [1, 1], "naas": [lun["naa"] for lun in luns], "target": luns[0]["target"]}
            files = {"plan.sh": plan, "chap": "host\ta secret of the host\n"}
            passed = in_guest(server, [name], given, functions, files)
            if not passed:
                print(server.log_tail())
            return passed
        finally:
            server.kill()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join((*ON_ONE_SERVER, *ON_A_CLUSTER, *DEMOS)))
    names = parser.parse_args().names or [*ON_ONE_SERVER, *ON_A_CLUSTER]
    unknown = set(names) - {*ON_ONE_SERVER, *ON_A_CLUSTER, *DEMOS}
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    vm.qemu()
    packages = os.environ.get("LINUX_CLIENT_PACKAGES", "").split()
    os.environ["LINUX_CLIENT_PACKAGES"] = " ".join([*packages, *(name for name in PACKAGES if name not in packages)])
    vm.image()
    passed = True
    with contextlib.suppress(KeyboardInterrupt):
        if on_server := [name for name in ON_ONE_SERVER if name in names]:
            passed &= test_on_one_server(on_server)
        if on_cluster := [name for name in ON_A_CLUSTER if name in names]:
            passed &= test_on_a_cluster(on_cluster)
        for name in DEMOS:
            if name in names:
                passed &= test_demo(name)
    print("test-san: all passed" if passed else "test-san: FAILED")
    return 0 if passed else 1
