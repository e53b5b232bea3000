"""The boot scripts of all nodes of a cluster, run as they are from the user data of a stack, at the same time: they form a cluster,
its volume has an address, and both outlive the loss of the first node.

Real and stand-ins: as in `test_boot`; each node has a network namespace with the addresses that the stack gave it. Real, too: etcd,
the hook that moves the address. Not real: that EC2's network follows an address that was assigned to another interface.
"""

import concurrent.futures
import contextlib
import http.server
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import unittest

import yaml

from lib import harness
from plan import kit
from plan.test_boot import BOOT_SECONDS_MAX, PORT, Booting, Machine, Metadata

NODES = 4
DISKS = 2
BRIDGE = "boot0"
# This machine, on both networks of the nodes.
OUTSIDE, INSIDE = "10.0.1.250", "10.0.250.250"
MOVED_SECONDS_MAX = 60
COPIES_SECONDS_MAX = 120


@unittest.skipUnless(os.environ.get("CAIRN_PLAN_NAMESPACE"), "needs root: NOT TESTED: the boot script of a cluster")
@unittest.skipUnless(shutil.which("etcd"), "needs etcd: NOT TESTED: the boot script of a cluster")
class ClusterBoot(Booting):

    def setUp(self):
        self.folder = self.enterContext(harness.scratch("cluster-boot-"))
        kit.run(["ip", "link", "add", BRIDGE, "type", "bridge"])
        self.addCleanup(subprocess.run, ["ip", "link", "delete", BRIDGE], capture_output=True)
        for address in (OUTSIDE, INSIDE):
            kit.run(["ip", "address", "add", f"{address}/24", "dev", BRIDGE])
        kit.run(["ip", "link", "set", BRIDGE, "up"])
        self.aws = self.enterContext(kit.aws(OUTSIDE))
        self.metadata = http.server.ThreadingHTTPServer((OUTSIDE, 0), Metadata)
        threading.Thread(target=self.metadata.serve_forever, daemon=True).start()
        self.addCleanup(self.metadata.server_close)
        self.addCleanup(self.metadata.shutdown)
        self.addCleanup(Metadata.more.clear)

    def stack(self):
        """A stack of the cluster's template; the files of its user data, and the addresses of nodes."""
        parameters = {**self.aws.network(), "InternalNetwork": "10.0.250.0/24", "PackageSha256": self.package(),
                      "LoginAddress": f"{OUTSIDE}/32"}
        tree = yaml.safe_load((kit.templates() / "cluster-4" / "cairn.yaml").read_text())
        # The stand-in does not know the secondary addresses of an interface.
        del tree["Outputs"]["FloatingAddresses"]
        template = self.folder / "cairn.yaml"
        template.write_text(yaml.safe_dump(tree))
        outputs = self.aws.create("cluster", template, parameters)
        self.resources = self.aws.resources("cluster")
        config = yaml.safe_load(self.aws.user_data(self.resources["NodeTemplate"]))
        files = config["write_files"]
        # Of the design's twelve disks: nothing differs but the number.
        files[0]["content"], count = re.subn(r"CAIRN_DISK_COUNT='\d+'", f"CAIRN_DISK_COUNT='{DISKS}'", files[0]["content"])
        self.assertEqual(count, 1)
        return files, outputs["NodeAddresses"].split(","), outputs["InternalAddresses"].split(",")

    def node(self, number, files, external, internal):
        name = f"boot-node{number}"
        kit.run(["ip", "netns", "add", name])
        self.addCleanup(subprocess.run, ["ip", "netns", "delete", name], capture_output=True)
        within = ["nsenter", f"--net=/run/netns/{name}"]
        kit.run(["ip", "link", "add", f"boot{number}", "master", BRIDGE, "type", "veth", "peer", "name", "eth0", "netns", name])
        kit.run(["ip", "link", "set", f"boot{number}", "up"])
        for words in (["link", "set", "lo", "up"], ["link", "set", "eth0", "up"], ["address", "add", f"{external}/24", "dev", "eth0"],
                      ["address", "add", f"{internal}/24", "dev", "eth0"]):
            kit.run([*within, "ip", *words])
        interface = self.resources[f"Node{number}External"]
        mac = f"02:00:00:00:00:{number:02x}"
        at = f"/latest/meta-data/network/interfaces/macs/{mac}"
        Metadata.more[external] = {
            "/latest/meta-data/instance-id": self.resources[f"Node{number}"],
            "/latest/meta-data/local-ipv4": external,
            "/latest/meta-data/mac": mac,
            f"{at}/interface-id": interface,
            f"{at}/local-ipv4s": f"{external}\n{self.floating(number)}\n",
            "/latest/meta-data/tags/instance/cairn-signal": f"Node{number}",
        }
        links = {f"nvme-Amazon_Elastic_Block_Store_vol{number}a{disk}": self.disk(f"node{number}disk{disk}")
                 for disk in range(DISKS)}
        environment = {**self.aws.environment, "CAIRN_WAIT_SECONDS_MAX": str(BOOT_SECONDS_MAX // 3), "CAIRN_RETRY_SECONDS": "1",
                       "CAIRN_METADATA": f"http://{OUTSIDE}:{self.metadata.server_port}"}
        machine = Machine(self.folder / name, files, environment, links, within)
        self.addCleanup(machine.end)
        # The hook runs as the user of the server, and the AWS CLI of this test may be in a folder of root's.
        for program in (shutil.which("aws", path=environment["PATH"]), sys.executable, os.path.realpath(sys.executable)):
            for folder in pathlib.Path(program or "/").parents:
                inside = machine.root / folder.relative_to("/")
                inside.chmod(inside.stat().st_mode | 0o011)
        return machine

    def floating(self, number):
        return f"10.0.1.{200 + number}"

    def status(self, machine):
        done, text = machine.run("/usr/bin/cairn", "cluster", "status", "--json")
        return json.loads(text) if done == 0 else None

    def await_address(self, machines):
        """Waits until somebody serves at the volume's address; else tells what its owner says of that."""

        def serves():
            with contextlib.suppress(OSError), socket.create_connection((self.floating(1), PORT), timeout=5):
                return True
            return False

        try:
            harness.wait_until(serves, MOVED_SECONDS_MAX, "the address of the volume")
        except harness.Failure as failure:
            seen = [self.status(machine) for machine in machines]
            raise AssertionError(f"{failure}: {[status and status['volumes'] for status in seen]}") from failure

    def kill(self, number, machine):
        """The machine is lost: its processes and its network."""
        kit.run(["ip", "link", "set", f"boot{number}", "down"])
        with contextlib.suppress(OSError):
            os.killpg(int((machine.root / "cairn.pid").read_text()), signal.SIGKILL)

    def test_nodes_form_a_cluster_whose_address_moves(self):
        files, externals, internals = self.stack()
        machines = [
            self.node(number, files, external, internal)
            for number, external, internal in zip(range(1, NODES + 1), externals, internals, strict=True)
        ]
        with concurrent.futures.ThreadPoolExecutor(NODES) as together:
            booted = list(together.map(lambda machine: machine.run("/usr/local/sbin/cairn-boot"), machines))
        for number, (status, text) in enumerate(booted, 1):
            self.assertEqual(status, 0, f"node{number}: {text[-4000:]}")
            self.assertIn(f"node{number} of {NODES} serves", text)
        # No ticket is left, and none was in a log.
        self.assertEqual(self.aws("ssm", "describe-parameters")["Parameters"], [])
        seen = self.status(machines[1])
        self.assertEqual(sorted(node["name"] for node in seen["nodes"]), [f"node{number}" for number in range(1, NODES + 1)])
        self.assertTrue(all(node["alive"] for node in seen["nodes"]))

        source, back = self.folder / "file", self.folder / "back"
        source.write_bytes(os.urandom(3_000_000))
        url = f"nfs://{self.floating(1)}:{PORT}/main/file"
        cairn = str(harness.cairn_path())
        self.await_address(machines)
        kit.run([cairn, "cp", source, url])

        def has_copies():
            seen = self.status(machines[1])
            volume = seen["volumes"][0]
            return len(seen["etcd"]["members"]) >= 3 and volume["log_copies"] >= 2 and volume["state_copies"] >= 1

        harness.wait_until(has_copies, COPIES_SECONDS_MAX, "members of etcd, and copies of the volume's log, on other nodes")
        owner = next(int(volume["owner"].removeprefix("node")) for volume in self.status(machines[1])["volumes"])
        self.kill(owner, machines[owner - 1])

        def moved():
            interfaces = self.aws("ec2", "describe-network-interfaces")["NetworkInterfaces"]
            # The stand-in leaves it at the interface that had it, too.
            has_it = {
                each["NetworkInterfaceId"] for each in interfaces
                if self.floating(1) in [address["PrivateIpAddress"] for address in each["PrivateIpAddresses"]]
            }
            return has_it - {self.resources[f"Node{owner}External"]}

        harness.wait_until(moved, MOVED_SECONDS_MAX, "the address on the interface of another node")
        survivors = [machine for number, machine in enumerate(machines, 1) if number != owner]
        self.await_address(survivors)
        kit.run([cairn, "cp", url, back])
        self.assertEqual(back.read_bytes(), source.read_bytes())

        # A boot that comes again leaves everything as it is.
        survivor = survivors[0]
        survivor.end_server()
        status, text = survivor.run("/usr/local/sbin/cairn-boot")
        self.assertEqual(status, 0, text[-4000:])
        self.assertNotIn("making a file system", text)
        self.assertTrue(pathlib.Path(survivor.root / "var/lib/cairn/cluster/cluster.json").exists())
