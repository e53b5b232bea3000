"""Tests with the kernel client of a stock Linux, in a VM: tests/vm/suite.sh, on one disk and on six.

    scripts/test-vm [DISKS...]
"""

import shutil
import sys

from lib import harness, vm

SECONDS_MAX = 900
FSX_VERSION = "0.3.2"
NFS_PORT = 2049
# What 4+2 can lose.
DISKS_LOST = slice(1, 3)


def lose_disks(server):
    """kill -9, two disks deleted, started again where the client looks for it."""
    server.kill()
    for disk in server.disks[DISKS_LOST]:
        shutil.rmtree(disk)
    server.port_wanted = server.port
    server.start()


def test(disks_count, shares, port_111):
    """Runs the suite once; returns whether all of it passed."""
    print(f"== {disks_count} disk{'s' if disks_count > 1 else ''}", flush=True)
    # The standard port where it is certainly free: mount.nfs behaves differently there.
    port = NFS_PORT if port_111 and disks_count > 1 else 0
    with harness.scratch("vm-") as root, harness.Server(root, disks_count, rpcbind=port_111, port=port) as server:
        arguments = ["port-111"] if port_111 else []
        requests = {}
        if disks_count > 1:
            arguments.append("lose-disks")
            requests["lose-disks"] = lambda: lose_disks(server)
        suite = harness.REPOSITORY / "tests" / "vm" / "guest" / "suite.sh"
        status = vm.run(server, suite, shares, SECONDS_MAX, arguments, requests=requests)
        stopped = server.stop()
        if status or stopped:
            print(f"the suite ended with {status}, the server with {stopped}:\n{server.log_tail()}")
        return status == 0 and stopped == 0


def main():
    vm.qemu()
    shares = {
        harness.REPOSITORY / ".git": "/repository.git",
        vm.cargo_tool("fsx", FSX_VERSION).parent: "/tools",
        harness.REPOSITORY / "tests" / "vm" / "guest": "/suite",
    }
    vm.image()
    port_111 = vm.own_network()
    if not port_111:
        print("test-vm: no network of its own is to be had (run it as root): NOT TESTED: mounting through port 111")
    passed = [test(count, shares, port_111) for count in [int(word) for word in sys.argv[1:]] or [1, 6]]
    print("test-vm: all passed" if all(passed) else "test-vm: FAILED")
    return 0 if all(passed) else 1
