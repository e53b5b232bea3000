"""The load generators: libnfs's nfsload where it is, else our own client.

Owns: building and calling them, and the CPU time that they and the server take.
Must not know: which workloads there are.
"""

import dataclasses
import json
import pathlib
import resource
import subprocess

from lib import harness

NFSLOAD = harness.REPOSITORY.parent / "shared" / "nfsload" / "nfsload.c"
LOAD_SECONDS_MAX = 300


@dataclasses.dataclass
class Load:
    name: str
    program: pathlib.Path
    is_libnfs: bool

    def argv(self, server, arguments, folder=""):
        workload, *keys = arguments.split()
        url = server.libnfs_url(folder) if self.is_libnfs else server.url(folder)
        return [str(self.program), workload, url, *keys]

    def run(self, server, arguments, folder=""):
        """One run: what the load says, and the CPU seconds of server and load."""
        before, load_before = server.cpu_seconds(), children_cpu_seconds()
        argv = self.argv(server, arguments, folder)
        done = subprocess.run(argv, capture_output=True, text=True, timeout=LOAD_SECONDS_MAX)
        if done.returncode != 0:
            raise harness.Failure(f"{self.name} {arguments} failed: {done.stdout}{done.stderr}")
        return json.loads(done.stdout) | {
            "server_cpu_seconds": server.cpu_seconds() - before,
            "load_cpu_seconds": children_cpu_seconds() - load_before,
        }

    def spawn(self, server, arguments):
        """Starts a run that is not measured, in a process group of its own."""
        quiet = subprocess.DEVNULL
        argv = self.argv(server, arguments)
        return subprocess.Popen(argv, stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True)


def children_cpu_seconds():
    """Of the children that have ended; while a load runs, no other child does."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def own():
    program = harness.build_dir() / "examples" / "nfs_load"
    if not program.exists():
        raise harness.Failure(f"{program} is not there: run `make bench-nfs`, which builds it")
    return Load("Cairn's own NFS client (crates/tools/bench)", program, is_libnfs=False)


def nfsload(source):
    if not source.exists():
        raise harness.Failure(f"the load generator {source} is not there; name it with --load, or say --load own")
    program = harness.target_dir() / "bench" / "nfsload"
    program.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["cc", "-O2", "-o", str(program), str(source), "-lnfs"], check=True)
    return Load("nfsload (libnfs)", program, is_libnfs=True)


def choose(wanted):
    """`own`, the path of nfsload.c, or by default nfsload if its source is where it usually is."""
    if wanted == "own":
        return own()
    if wanted:
        return nfsload(pathlib.Path(wanted))
    if NFSLOAD.exists():
        return nfsload(NFSLOAD)
    print(f"bench-nfs: {NFSLOAD} is not there; the load is our own NFS client", flush=True)
    return own()
