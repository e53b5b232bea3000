"""Faults of all kinds in a cluster of six nodes under load, at random; then everything that was acknowledged is there.

    scripts/test-cluster-faults [--minutes N] [--seed N] [--nodes N] [--vm]

Up to two nodes at a time are killed, stopped, paused, cut off or slowed down, and one member of etcd is killed. Then all is
healed, the load has to go on, and now and then everything that it was told is compared, through each node; in the end also what
S3 clients were told, as objects, as versions and as files. The seed
decides what happens; the same seed does the same again, though not at the same moments. The log of all steps is
target/cluster-faults/nemesis.log, beside the logs of the nodes; results are in results.json.
--vm: in addition the Linux kernel's NFS client in a VM, with fsx, tar, git and SQLite on a mount of the floating address.
"""

import argparse
import contextlib
import json
import random
import shutil
import statistics
import time

from lib import harness, libnfs, s3
from lib.cluster import Cluster, Loads, can_have_namespaces
from lib.s3load import S3Load

NODES_COUNT, CLIENTS_COUNT = 6, 3
FAULT_SECONDS_MIN, FAULT_SECONDS_MAX = 2, 25
# Until clients go on once two nodes at most are disturbed, and once all is healed.
RESUME_SECONDS_MAX = 90
VERIFY_EVERY_ROUNDS = 4
NODES_MAX = 2
VM_SECONDS_SPARE = 1200
BUCKET = "photos"
# Requests of each S3 client after all is healed; one that got no answer was of a node that is gone.
S3_STEPS_COUNT = 5
S3_READ_SECONDS_MAX = 30
S3_END_SECONDS_MAX = 120
KINDS = ("kill", "stop", "pause", "partition", "slow")


class Nemesis:
    """What happens to a cluster, by a seed."""

    def __init__(self, cluster, seed, log, with_network):
        self.cluster, self.log = cluster, log
        self.random = random.Random(seed)
        self.kinds = KINDS if with_network else KINDS[:3]

    def strike(self):
        """Does something to up to two nodes and a member of etcd; returns what, in words."""
        chosen = self.random.sample(self.cluster.names, self.random.randint(1, NODES_MAX))
        told = []
        # Both at the same time, or each in its own way.
        if self.random.random() < 0.5:
            kind = self.random.choice(self.kinds)
            told.append(self.do(kind, chosen))
        else:
            told += [self.do(self.random.choice(self.kinds), [node]) for node in chosen]
        if self.random.random() < 0.4:
            told.append(self.kill_etcd(chosen))
        return ", ".join(told)

    def do(self, kind, nodes):
        told = f"{kind} {' '.join(nodes)}"
        if kind == "partition":
            options = self.partition_options(nodes)
            told += f" {options}"
            self.say(told)
            self.cluster.partition(*nodes, **options)
        elif kind == "slow":
            how = self.slow_options()
            told += f" {how}"
            self.say(told)
            if self.cluster.slow(*nodes, **how).returncode:
                # A kernel without netem can do no delay.
                rate = {"rate": "10mbit", "loss": "1%"}
                told += f": {rate} instead"
                done = self.cluster.slow(*nodes, **rate)
                if done.returncode:
                    raise harness.Failure(done.stderr)
        else:
            self.say(told)
            getattr(self.cluster, kind)(*nodes)
        return told

    def partition_options(self, nodes):
        options: dict = {"one_way": self.random.choice((None, None, "to", "from"))}
        others = self.cluster.others(*nodes)
        if self.random.random() < 0.3:
            options["peers"] = sorted(self.random.sample(others, self.random.randint(1, len(others))))
        options["clients"] = self.random.random() < 0.3
        return options

    def slow_options(self):
        ways = ({"delay": "20ms"}, {"delay": "200ms", "loss": "1%"}, {"rate": "10mbit"}, {"loss": "5%"})
        return self.random.choice(ways)

    def kill_etcd(self, struck):
        runs = [
            name for name, machine in self.cluster.machines().items()
            if machine["etcd_pid"] is not None and machine["life"] == "ready" and name not in struck
        ]
        if not runs:
            return "no member of etcd"
        node = self.random.choice(runs)
        self.say(f"kill the etcd of {node}")
        self.cluster.kill_etcd(node)
        return f"kill the etcd of {node}"

    def hold_seconds(self):
        return self.random.uniform(FAULT_SECONDS_MIN, FAULT_SECONDS_MAX)

    def say(self, what):
        self.log(f"  {what}")


class Log:
    """Every step with its moment, on the terminal and in a file."""

    def __init__(self, path):
        self.begun, self.path = time.monotonic(), path

    def __call__(self, what):
        line = f"{time.monotonic() - self.begun:8.1f} s  {what}"
        print(line, flush=True)
        with open(self.path, "a") as file:
            file.write(line + "\n")


def objects(cluster, seed):
    """S3 clients, each of another node, of a bucket that keeps versions."""
    run = lambda *words: cluster.cairn(cluster.owner(), *words)
    run("bucket", "create", BUCKET, "--uid", "1000", "--gid", "100")
    made = json.loads(run("s3", "key", "create", "--uid", "1000", "--gid", "100", "--json").stdout)

    class Made:
        id, secret = made["id"], made["secret"]

    client = lambda node: s3.client(cluster.s3_port(node), Made, read_timeout=S3_READ_SECONDS_MAX)
    client(cluster.owner()).put_bucket_versioning(Bucket=BUCKET, VersioningConfiguration={"Status": "Enabled"})
    return S3Load([client(node) for node in cluster.names[:CLIENTS_COUNT]], BUCKET, seed), client


def verify_objects(cluster, s3_load, client, log):
    s3_load.end(S3_END_SECONDS_MAX)
    count = 0
    for node in cluster.names:
        cluster.await_serving(node)
        with libnfs.Mount(cluster.url(node)) as mount:
            count = s3_load.verify(client(node), mount)
    log(
        f"  {count} objects and versions compared through each node; {s3_load.acknowledged_count()} requests acknowledged, "
        f"{s3_load.unknown_count()} of unknown outcome"
    )
    return count


def run(cluster, options, log, guest_check=lambda: None):
    """Faults until the time is over; returns the results."""
    with_network = can_have_namespaces()
    if not with_network:
        log("NOT TESTED: partitions and slow networks, which need root, iproute2 and nftables")
    nemesis = Nemesis(cluster, options.seed, log, with_network)
    rounds: list[dict] = []
    verified_bytes = 0
    deadline = time.monotonic() + options.minutes * 60
    s3_load, s3_client = objects(cluster, options.seed)
    with Loads([cluster.url()] * CLIENTS_COUNT) as load, s3_load:
        while time.monotonic() < deadline:
            log(f"round {len(rounds) + 1}, the owner is {cluster.owner()}")
            load.forget_pauses()
            struck = time.monotonic()
            what = nemesis.strike()
            # How long a fault is there is part of it.
            seconds = nemesis.hold_seconds()
            while time.monotonic() < struck + seconds:
                load.check()
                s3_load.check()
                guest_check()
                time.sleep(harness.POLL_SECONDS)
            during_pause = load.pause_seconds()
            cluster.heal()
            log("  healed")
            resumed = load.await_progress(seconds=RESUME_SECONDS_MAX)
            s3_load.await_progress(S3_STEPS_COUNT, RESUME_SECONDS_MAX)
            guest_check()
            rounds.append({
                "what": what, "seconds": round(seconds, 1), "pause_seconds": round(load.pause_seconds(), 1),
                "pause_before_healed_seconds": round(during_pause, 1), "resumed_seconds": round(resumed, 1),
            })
            log(f"  all went on; the longest pause was {load.pause_seconds():.1f} s")
            if len(rounds) % VERIFY_EVERY_ROUNDS == 0:
                load = renewed(cluster, load, log)
                verified_bytes += load.before_bytes
        load.end()
        verified_bytes += verify(cluster, load, log)
        verified_objects = verify_objects(cluster, s3_load, s3_client, log)
    pauses = [done["pause_seconds"] for done in rounds]
    return {
        "seed": options.seed, "nodes": cluster.nodes, "rounds": rounds, "verified_bytes": verified_bytes,
        "verified_objects": verified_objects,
        "pause_seconds_median": statistics.median(pauses) if pauses else None,
        "pause_seconds_max": max(pauses, default=None),
    }


class Renewed(Loads):
    """Clients that come after others, beside whose files they put theirs."""

    def __init__(self, urls, first_index):
        super().__init__(urls)
        for index, load in enumerate(self.loads):
            load.index = first_index + index
            load.folder = f"/load{load.index}"
        self.before_bytes = 0


def renewed(cluster, load, log):
    """Ends the load, compares all of it through each node, and begins another."""
    load.end()
    before_bytes = verify(cluster, load, log)
    first = max(one.index for one in load.loads) + 1
    new = Renewed([cluster.url()] * CLIENTS_COUNT, first)
    new.before_bytes = before_bytes
    new.__enter__()
    return new


def verify(cluster, load, log):
    """Compares everything through each node; returns the bytes of the load."""
    verified_bytes = 0
    for node in cluster.names:
        cluster.await_serving(node)
        verified_bytes = load.verify(cluster.url(node))
    log(f"  {verified_bytes >> 10} KiB of {load.acknowledged_count()} answers compared through each node")
    return verified_bytes


def with_guest(cluster, options, log):
    """The same, with the kernel's client in a VM beside it."""
    from lib import vm
    from vm.faults import FSX_VERSION, REPEATED, WORKLOADS_SHORT, Guest

    results: dict = {}
    problems: list[BaseException] = []

    def conduct(folder):
        guest = Guest(folder)
        try:
            guest.first_progress(VM_SECONDS_SPARE)
            guest.await_progress()
            results.update(run(cluster, options, log, guest_check=guest.told))
            guest.await_progress()
        except (Exception, AssertionError) as problem:
            problems.append(problem)
        finally:
            (folder / "enough").touch()

    def last_kill():
        cluster.kill(cluster.owner())
        cluster.heal()

    suite = harness.REPOSITORY / "tests" / "vm" / "guest" / "faults.py"
    status = vm.run(
        None, suite, {vm.cargo_tool("fsx", FSX_VERSION).parent: "/tools"}, round(options.minutes * 60) + VM_SECONDS_SPARE,
        WORKLOADS_SHORT, port=cluster.nfs_port(), conduct=conduct,
        requests={"last-kill": last_kill, "done": lambda: None},
        environment={"REFUSALS": "|".join(REPEATED), "OPTIONS": ""},
    )
    if problems:
        raise problems[0]
    if status:
        raise harness.Failure(f"the programs in the VM ended with {status}")
    return results


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=1)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--nodes", type=int, default=NODES_COUNT)
    parser.add_argument("--vm", action="store_true", help="needs the tool linux-client, as `make test-vm` does")
    options = parser.parse_args()
    options.seed = random.SystemRandom().randrange(1 << 32) if options.seed is None else options.seed
    out = harness.target_dir() / "cluster-faults"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    log = Log(out / "nemesis.log")
    log(f"seed {options.seed}: scripts/test-cluster-faults --seed {options.seed} --minutes {options.minutes:g}")
    if options.vm:
        from lib import vm

        vm.image()
    with harness.scratch("nemesis-") as scratch:
        cluster = Cluster(scratch / "cluster", options.nodes)
        try:
            with cluster:
                log(f"{options.nodes} nodes are there")
                results = with_guest(cluster, options, log) if options.vm else run(cluster, options, log)
        except BaseException:
            log(f"FAILED with the seed {options.seed}; the logs of the nodes are in {out}")
            raise
        finally:
            keep_logs(cluster, out)
    (out / "results.json").write_text(json.dumps(results, indent=2) + "\n")
    log(
        f"{len(results['rounds'])} rounds, {results['verified_bytes'] >> 20} MiB compared; pauses: median "
        f"{results['pause_seconds_median']} s, longest {results['pause_seconds_max']} s; seed {options.seed}"
    )
    return 0


def keep_logs(cluster, out):
    for path in cluster.folder.glob("*/log"):
        with contextlib.suppress(OSError):
            shutil.copy(path, out / f"{path.parent.name}.log")
    with contextlib.suppress(OSError):
        shutil.copy(cluster.output_path, out / "dev-cluster.output")
