"""The boot script of a client, run as it is from its user data, in a VM with Debian's kernel; twice, as it may be."""

import unittest

import yaml

from lib import harness, vm
from plan import kit

SECONDS_MAX = 300
SCRIPT = """set -eu
export CAIRN_DEPLOY_ENV=/client/deploy.env
bash /client/mount.sh
bash /client/mount.sh
[ "$(grep -c ' /mnt/files nfs ' /etc/fstab)" = 1 ]
findmnt --noheadings --output FSTYPE,OPTIONS /mnt/files
echo hello >/mnt/files/greeting
umount /mnt/files
mount -a
[ "$(cat /mnt/files/greeting)" = hello ]
"""


def has_vm():
    try:
        return bool(vm.qemu())
    except harness.Failure:
        return False


@unittest.skipUnless(has_vm(), "qemu is not installed: NOT TESTED: mounting by the client's boot script")
class Mount(kit.Test):
    def test_a_client_mounts_at_boot(self):
        folder = self.enterContext(harness.scratch("mount-"))
        config = yaml.safe_load((kit.templates() / "client.cloud-init.yaml").read_text())
        settings, script = (file["content"] for file in config["write_files"])
        client = folder / "client"
        client.mkdir()
        (client / "mount.sh").write_text(script)
        (folder / "suite.sh").write_text(SCRIPT)
        vm.image()
        with harness.Server(folder, 1) as server:
            settings = settings.replace("SERVER='10.0.0.7'", f"SERVER='{vm.HOST_SEEN_FROM_GUEST}'")
            (client / "deploy.env").write_text(settings.replace("PORT='2049'", f"PORT='{server.port}'"))
            status = vm.run(server, folder / "suite.sh", {client: "/client"}, SECONDS_MAX)
            self.assertEqual((status, server.stop()), (0, 0))
