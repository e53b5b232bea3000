"""Runs scripts in a VM with a stock Linux kernel, against a server on this machine.

Owns: finding the tool `linux-client`, and what it is told. Must not know: what the scripts test.
"""

import os
import pathlib
import subprocess
import sys

import harness

HOST_SEEN_FROM_GUEST = "10.0.2.2"
MISSING = """skipped: the VM tool `linux-client` is not here.
It boots Debian's stock kernel in qemu and runs a command in it. Set CAIRN_LINUX_CLIENT to its path, or
put it at ../shared/linux-client/linux-client. Everything else in this repository works without it."""


def tool():
    """The path of `linux-client`; ends the process with a message if it is not there."""
    usual = harness.REPOSITORY.parent / "shared" / "linux-client" / "linux-client"
    path = pathlib.Path(os.environ.get("CAIRN_LINUX_CLIENT") or usual)
    if not path.exists():
        print(MISSING)
        sys.exit(0)
    return path


def cargo_tool(name, version):
    """A program from crates.io, built once below target/tools."""
    root = harness.target_dir() / "tools"
    path = root / "bin" / name
    if not path.exists():
        argv = ["cargo", "install", "--quiet", "--root", str(root), "--version", version, name]
        subprocess.run(argv, check=True)
    return path


def run(server, script, shares, seconds_max, arguments=(), cpus=1):
    """Runs a shell script of the repository in the guest; returns its status."""
    argv = [str(tool()), "run", "--timeout", str(seconds_max), "--cpus", str(cpus)]
    for host, guest in shares.items():
        argv += ["--share", f"{host}:{guest}"]
    argv += ["--env", f"SERVER={HOST_SEEN_FROM_GUEST}", "--env", f"PORT={server.port}"]
    argv += ["--script", str(script), "--", *arguments]
    return subprocess.run(argv, stdin=subprocess.DEVNULL).returncode
