"""Runs scripts in a VM with a stock Linux kernel, against a server on this machine.

Owns: finding the tool `linux-client`, what it is told, the folder through which a script asks this
side for something, the network of its own. Must not know: what the scripts test.
"""

import contextlib
import os
import pathlib
import subprocess
import sys
import threading

import harness

HOST_SEEN_FROM_GUEST = "10.0.2.2"
IN_NAMESPACE = "CAIRN_VM_NAMESPACE"
REQUESTS_FOLDER = "/requests"
STOP_SECONDS_MAX = 60
MISSING = """the VM tool `linux-client` is not here, so nothing was tested.
It boots Debian's stock kernel in qemu and runs a command in it. Set CAIRN_LINUX_CLIENT to its path, or
put it at ../shared/linux-client/linux-client. Everything else in this repository works without it."""


def tool():
    """The path of `linux-client`."""
    usual = harness.REPOSITORY.parent / "shared" / "linux-client" / "linux-client"
    path = pathlib.Path(os.environ.get("CAIRN_LINUX_CLIENT") or usual)
    if not path.exists():
        raise harness.Failure(MISSING)
    return path


def cargo_tool(name, version):
    """A program from crates.io, built once below target/tools."""
    root = harness.target_dir() / "tools"
    path = root / "bin" / name
    if not path.exists():
        argv = ["cargo", "install", "--quiet", "--locked", "--root", str(root), "--version", version, name]
        if subprocess.run(argv).returncode:
            raise harness.Failure(f"could not build {name} {version} from crates.io; is the internet there?")
    return path


def image():
    """Makes the image of the VM if it is not there: that needs the network of this machine."""
    if IN_NAMESPACE in os.environ:
        return
    if subprocess.run([str(tool()), "build"], stdin=subprocess.DEVNULL).returncode:
        raise harness.Failure("linux-client could not make its image; its messages are above")


def own_network():
    """Starts this program again in a network of its own, where port 111 is free, if that is allowed.

    Returns whether it is in one.
    """
    if IN_NAMESPACE in os.environ:
        return os.environ[IN_NAMESPACE] == "yes"
    user = [] if os.getuid() == 0 else ["--map-root-user"]
    unshare = ["unshare", *user, "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
    with contextlib.suppress(OSError):
        if subprocess.run([*unshare, "true"], capture_output=True).returncode == 0:
            os.environ[IN_NAMESPACE] = "yes"
            os.execvp(unshare[0], [*unshare, sys.executable, *sys.argv])
    return False


def run(
    server, script, shares, seconds_max, arguments=(), cpus=1, requests=None, port=None, environment=None, conduct=None
):
    """Runs a script of the repository in the guest; returns its status.

    `requests`: what the script may ask for, name to function. It makes a file NAME in REQUESTS and
    waits for NAME.done. `port`: where it finds the server, if not where that is. `conduct`: called once with
    that folder, in a thread of its own, while the script runs.
    """
    argv = [str(tool()), "run", "--timeout", str(seconds_max), "--cpus", str(cpus)]
    with harness.scratch("requests-") as folder:
        for host, guest in {**shares, folder: REQUESTS_FOLDER}.items():
            argv += ["--share", f"{host}:{guest}"]
        argv += ["--env", f"SERVER={HOST_SEEN_FROM_GUEST}", "--env", f"PORT={port or server.port}"]
        argv += ["--env", f"REQUESTS={REQUESTS_FOLDER}"]
        for name, value in (environment or {}).items():
            argv += ["--env", f"{name}={value}"]
        argv += ["--script", str(script), "--", *arguments]
        guest = subprocess.Popen(argv, stdin=subprocess.DEVNULL)
        if conduct:
            threading.Thread(target=conduct, args=(folder,), daemon=True).start()
        try:
            serve_requests(guest, folder, dict(requests or {}))
            return guest.returncode
        finally:
            # It stops its VM when it is told to end.
            guest.terminate()
            guest.wait(STOP_SECONDS_MAX)


def serve_requests(guest, folder, open_requests):
    """Does what the guest asks for, until it ends."""
    while True:
        try:
            guest.wait(harness.POLL_SECONDS)
            return
        except subprocess.TimeoutExpired:
            asked = [name for name in open_requests if (folder / name).exists()]
        for name in asked:
            open_requests.pop(name)()
            (folder / f"{name}.done").touch()
