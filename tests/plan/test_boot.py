"""The boot script of a server, run as it is from the user data of a stack: it attaches volumes, formats and mounts
disks, installs the .deb of Cairn, starts it, exports the volume; then again on a new machine with the same disks.

Real: the script, XFS on loop devices, `cairn`, its unit's commands, the AWS CLI. Stand-ins: AWS (moto), the instance's
metadata, apt-get (what Debian has is installed before, the .deb goes to dpkg), systemctl. Needs root and namespaces of its own (scripts/test-plan).
"""

import contextlib
import http.server
import os
import pathlib
import shutil
import signal
import subprocess
import threading
import unittest

import yaml

from lib import harness
from plan import kit

DISK_BYTES = 2 << 30
BOOT_SECONDS_MAX = 300
PORT = 2049
TOKEN = "a-token"
APT_GET = """#!/bin/sh
for word; do last=$word; done
case $last in
/*.deb) exec dpkg --install "$last" ;;
esac
"""
SYSTEMCTL = r"""#!/bin/bash
# What systemd does with cairn.service, as far as the test needs it.
set -eu
[[ $* == "restart cairn.service" ]] || exit 0
unit=/usr/lib/systemd/system/cairn.service
[[ $(. /etc/os-release && echo "$ID") == debian ]]
install -d -o cairn -g cairn /run/cairn /var/lib/cairn
command=$(sed -n "s/^ExecStart=//p" $unit)
caps=+net_bind_service
# As systemd does with drop-ins.
! grep -qs CAP_NET_ADMIN /etc/systemd/system/cairn.service.d/*.conf || caps+=,+net_admin,+net_raw
as=(setpriv --reuid cairn --regid cairn --clear-groups --inh-caps $caps --ambient-caps $caps)
RUNTIME_DIRECTORY=/run/cairn setsid "${as[@]}" $command >/cairn.log 2>&1 </dev/null &
echo $! >/cairn.pid
"""


class Metadata(http.server.BaseHTTPRequestHandler):
    """Metadata of an instance, with a token only."""

    instance = ""
    # Of instances that are told apart by their addresses.
    more: dict[str, dict[str, str]] = {}

    def do_PUT(self):
        self.answer(TOKEN if self.path == "/latest/api/token" else None)

    def do_GET(self):
        known = {"/latest/meta-data/instance-id": self.instance} | self.more.get(self.client_address[0], {})
        self.answer(known.get(self.path) if self.headers["X-aws-ec2-metadata-token"] == TOKEN else None)

    def answer(self, text):
        self.send_response(200 if text else 401)
        self.end_headers()
        self.wfile.write((text or "").encode())

    def log_message(self, *_):
        pass


class Machine:
    """A fresh root over that of this machine; what is written there is gone with it."""

    def __init__(self, folder, files, environment, links, within=()):
        self.within = list(within)
        self.root = folder / "root"
        self.folder = folder
        layers = folder / "layers"
        for path in (self.root, layers):
            path.mkdir(parents=True)
        kit.run(["mount", "-t", "tmpfs", "tmpfs", layers])
        for name in ("upper", "work"):
            (layers / name).mkdir()
        options = f"lowerdir=/,upperdir={layers}/upper,workdir={layers}/work"
        kit.run(["mount", "-t", "overlay", "overlay", "-o", options, self.root])
        for name in ("dev", "proc", "sys"):
            kit.run(["mount", "--rbind", f"/{name}", self.root / name])
        kit.run(["mount", "-t", "tmpfs", "tmpfs", self.root / "run"])
        shutil.rmtree(self.root / "srv" / "cairn", ignore_errors=True)
        (self.root / "etc" / "fstab").write_text("")
        for name, text in {"shims/systemctl": SYSTEMCTL, "shims/apt-get": APT_GET}.items():
            self.write(name, text, 0o755)
        for file in files:
            self.write(file["path"].lstrip("/"), file["content"], int(file["permissions"], 8))
        (self.root / "by-id").mkdir()
        for name, device in links.items():
            (self.root / "by-id" / name).symlink_to(device)
        self.environment = {**environment, "PATH": f"/shims:{environment['PATH']}", "CAIRN_BY_ID": "/by-id"}

    def write(self, name, text, mode):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(mode)

    def run(self, *words):
        done = subprocess.run([*self.within, "chroot", self.root, *words], env=self.environment, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=BOOT_SECONDS_MAX)
        return done.returncode, done.stdout

    def end_server(self):
        """The server and what it runs are killed."""
        with contextlib.suppress(OSError, ValueError):
            pid = int((self.root / "cairn.pid").read_text())
            os.killpg(pid, signal.SIGKILL)
            harness.wait_until(lambda: not pathlib.Path(f"/proc/{pid}/fd/0").exists(), 30, "the end of cairn")

    def end(self):
        """Power off: the server is killed, everything is unmounted."""
        self.end_server()
        for disk in sorted((self.root / "srv" / "cairn").glob("disk*")):
            subprocess.run(["umount", disk], capture_output=True)
        subprocess.run(["umount", "--recursive", "--lazy", self.root], capture_output=True)
        subprocess.run(["umount", "--lazy", self.folder / "layers"], capture_output=True)


class Booting(kit.Test):
    """A test whose machines install the package on disks that are files."""

    folder: pathlib.Path
    aws: kit.Aws

    def package(self):
        """The .deb, in the stand-in's S3; returns its SHA-256."""
        kit.run([harness.REPOSITORY / "scripts/package", harness.cairn_path(), self.folder / "dist"])
        (deb,) = (self.folder / "dist").glob("*.deb")
        self.aws("s3api", "create-bucket", "--bucket", "packages")
        kit.run(["aws", "s3", "cp", "--only-show-errors", deb, "s3://packages/cairn.deb"], env=self.aws.environment)
        return kit.run(["sha256sum", deb]).split()[0]

    def disk(self, name):
        image = self.folder / name
        with open(image, "wb") as file:
            file.truncate(DISK_BYTES)
        device = kit.run(["losetup", "--find", "--show", image]).strip()
        self.addCleanup(subprocess.run, ["losetup", "--detach", device], capture_output=True)
        return device


@unittest.skipUnless(os.environ.get("CAIRN_PLAN_NAMESPACE"), "needs root: NOT TESTED: the boot script")
class Boot(Booting):
    def setUp(self):
        self.folder = self.enterContext(harness.scratch("boot-"))
        self.aws = self.enterContext(kit.aws())
        self.metadata = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Metadata)
        threading.Thread(target=self.metadata.serve_forever, daemon=True).start()
        self.addCleanup(self.metadata.server_close)
        self.addCleanup(self.metadata.shutdown)

    def stack(self):
        """A stack of the published template: its user data's files and its volumes."""
        parameters = {**self.aws.network(), "PackageSha256": self.package(), "ClientNetwork": "127.0.0.0/8",
                      "LoginAddress": "127.0.0.1/32"}
        outputs = self.aws.create("boot", kit.templates() / "published" / "cairn.yaml", parameters)
        config = yaml.safe_load(self.aws.user_data(self.aws.resources("boot")["ServerTemplate"]))
        return config["write_files"], outputs["DataVolumes"].split(",")

    def machine(self, name, files, links):
        instance = self.aws("ec2", "run-instances", "--image-id", "ami-12c6146b")["Instances"][0]["InstanceId"]
        Metadata.instance = instance
        environment = {**self.aws.environment, "CAIRN_WAIT_SECONDS_MAX": "30",
                       "CAIRN_METADATA": f"http://127.0.0.1:{self.metadata.server_port}"}
        machine = Machine(self.folder / name, files, environment, links)
        self.addCleanup(machine.end)
        return machine, instance

    def links(self, volumes, devices):
        return {f"nvme-Amazon_Elastic_Block_Store_{volume.replace('-', '')}": device for volume, device in zip(volumes, devices)}

    def cairn(self, *words):
        return kit.run([harness.cairn_path(), *words])

    def test_data_outlives_the_machine(self):
        files, volumes = self.stack()
        devices = [self.disk(f"disk{number}") for number in range(len(volumes))]
        first, instance = self.machine("first", files, self.links(volumes, devices))
        status, text = first.run("/usr/local/sbin/cairn-boot")
        self.assertEqual(status, 0, text)
        self.assertIn("4+2", text)
        attached = self.aws("ec2", "describe-volumes", "--volume-ids", *volumes)["Volumes"]
        at = {volume["VolumeId"]: volume["Attachments"][0] for volume in attached}
        self.assertEqual([at[volume]["Device"] for volume in volumes], [f"/dev/sd{letter}" for letter in "fghijk"])
        self.assertEqual({each["InstanceId"] for each in at.values()}, {instance})
        self.check_that_health_is_watched(first)
        fstab = (first.root / "etc/fstab").read_text().splitlines()
        self.assertEqual(len(fstab), len(volumes), fstab)

        source = self.folder / "file"
        source.write_bytes(os.urandom(5_000_000))
        url = f"nfs://127.0.0.1:{PORT}/main/file"
        self.cairn("cp", source, url)
        first.end()
        for volume in volumes:
            self.aws("ec2", "detach-volume", "--volume-id", volume, "--instance-id", instance)

        second, _ = self.machine("second", files, self.links(volumes, devices))
        status, text = second.run("/usr/local/sbin/cairn-boot")
        self.assertEqual(status, 0, text)
        self.assertNotIn("making a file system", text)
        back = self.folder / "back"
        self.cairn("cp", url, back)
        self.assertEqual(back.read_bytes(), source.read_bytes())

    def check_that_health_is_watched(self, machine):
        timer = (machine.root / "etc/systemd/system/cairn-health.timer").read_text()
        self.assertIn("OnUnitActiveSec=1min", timer)
        status, text = machine.run("/usr/local/sbin/cairn-health")
        self.assertEqual(status, 0, text)
        found = self.aws("cloudwatch", "list-metrics", "--namespace", "Cairn")["Metrics"]
        self.assertEqual({each["MetricName"] for each in found}, {"Serving", "Degraded", "UsedPercent"})
        sources = (machine.root / "etc/apt").rglob("*.sources")
        self.assertFalse([file for file in sources if "http://" in file.read_text()])

    def test_disks_that_are_missing_or_not_empty_stop_it(self):
        files, volumes = self.stack()
        devices = [self.disk(f"disk{number}") for number in range(len(volumes))]
        kit.run(["mkfs.ext4", "-q", devices[2]])
        machine, instance = self.machine("other", files, self.links(volumes, devices))
        status, text = machine.run("/usr/local/sbin/cairn-boot")
        self.assertEqual(status, 1, text)
        self.assertIn("holds ext4, not XFS: it is left alone", text)
        self.assertFalse((machine.root / "cairn.pid").exists())
        machine.end()
        for volume in volumes:
            self.aws("ec2", "detach-volume", "--volume-id", volume, "--instance-id", instance)
        settings = [{**files[0], "content": files[0]["content"].replace(f",{volumes[-1]}", "")}, files[1]]
        kit.run(["wipefs", "--all", "--quiet", devices[2]])
        machine, _ = self.machine("fewer", settings, self.links(volumes, devices))
        status, text = machine.run("/usr/local/sbin/cairn-boot")
        self.assertEqual(status, 1, text)
        self.assertIn("there are 5 data disks, not 6", text)
