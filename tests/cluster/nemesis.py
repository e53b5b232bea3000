"""Faults of all kinds in a cluster of six nodes under load, by a seed; each byte that clients see is one that they may see.

    scripts/test-cluster-faults [--seconds N] [--seed N] [--faults KIND,...] [--vm]

Five volumes of different codes have clients by NFS, S3 and iSCSI, which talk to any node and turn to another one when it does not
answer. Each round one or two faults happen, of kinds that come in an order which the seed decides; then all is healed and the clients
have to go on. The same seed does the same again, though not at the same moments.

It fails if a client sees older bytes than were acknowledged or seen before, bytes of another file, place or volume, or bytes that
nobody wrote; if a client is told an error where the rules say that it waits; if a request takes more than 10 s while no more nodes are
disturbed than the volume's code does without; if clients do not go on, or the cluster is not well again. In the end everything is
compared through each node. The log of all steps is target/cluster-faults/nemesis.log, beside the logs of the nodes; results are in
results.json.
--vm: in addition the Linux kernel's NFS client in a VM, with fsx, tar, git and SQLite on a mount of the floating address.
"""

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import threading
import time
from collections import Counter
from dataclasses import dataclass, field

from lib import harness, libnfs, s3
from lib.cluster import SERVE_SECONDS_MAX
from lib.faultworld import MEMBERS_OF_ETCD, VOLUMES, World
from lib.s3load import S3Load

NODES_COUNT = 6
NFS_CLIENTS, S3_CLIENTS, ISCSI_CLIENTS = 2, 1, 1
SECONDS_DEFAULT = 120
HOLD_SECONDS_MIN, HOLD_SECONDS_MAX = 2, 14
PAUSE_SECONDS_MAX = 10
# Until clients go on once all is healed, and how many answers each must have had.
RESUME_SECONDS_MAX = 90
RESUME_ANSWERS = 5
CHECK_SECONDS = 0.1
# More than the patience of any client.
AFTER_CUT_SECONDS = 6
VM_SECONDS_SPARE = 1200
DRAIN_SECONDS_MAX = 120
REBUILT_SECONDS_MAX = 180
BUCKET = "photos"
S3_READ_SECONDS_MAX = 30
S3_PACE_SECONDS = 0.3
S3_END_SECONDS_MAX = 120
# The newest of the machine's own pauses are told, so that nobody takes them for the cluster's.
STALL_SECONDS = 0.05

# What can happen to nodes in any combination, what happens by itself, and what an operator does.
OF_NODES = ("kill", "pause", "cut", "cut_one_way", "cut_not_transitive", "cut_clients", "slow", "full_disk", "clock", "most_hang")
OF_ETCD = ("etcd_hangs", "etcd_killed", "etcd_without_quorum")
OF_OPERATORS = ("move", "drain", "restart", "maintenance", "disk_lost")
KINDS = (*OF_NODES, *OF_ETCD, *OF_OPERATORS)
NEED_NETWORK = ("cut", "cut_one_way", "cut_not_transitive", "cut_clients", "slow")
NEED_DISKS = ("full_disk",)
NEED_CLOCKS = ("clock",)
# By how much a wall clock jumps. S3 servers refuse signatures that are a quarter of an hour off.
CLOCK_JUMPS_SECONDS = (-600, -60, -2, 2, 60, 600)
# With a second one at the same time, drawn from these.
SECONDS_OF_A_PAIR = ("kill", "pause", "cut", "cut_one_way", "cut_not_transitive", "slow", "move")
ALONE = ("disk_lost", "drain", "maintenance", "etcd_without_quorum", "most_hang")
# Servers that hang beside their members of etcd: owners keep their leases, and no volume has enough nodes for a write.
MOST = 4
PAIR_CHANCE = 0.5


@dataclass
class Fault:
    """One thing that happens: to whom, how; what ends it."""

    kind: str
    nodes: list[str]
    options: dict = field(default_factory=dict)

    def __str__(self):
        options = " ".join(f"{key}={value}" for key, value in self.options.items())
        return " ".join(part for part in (self.kind, *self.nodes, options) if part)

    def struck(self):
        """Nodes whose disks or services are not there, or not all of them."""
        return set() if self.kind in ("move", "drain", "clock", *OF_ETCD) else set(self.nodes)


@dataclass
class Round:
    """What happened, and for how long; times are of the monotonic clock."""

    faults: list[Fault]
    begun: float
    hold_seconds: float = 0
    healed: float = 0
    well: float = 0
    not_well: list[str] = field(default_factory=list)
    stall_seconds: float = 0

    @property
    def kinds(self):
        return " + ".join(fault.kind for fault in self.faults)

    def does_without(self, nodes_count):
        """Whether a volume that does without so many nodes has enough of them."""
        if any(fault.kind == "etcd_without_quorum" for fault in self.faults):
            return False
        return len(set().union(*(fault.struck() for fault in self.faults))) <= nodes_count


class Plan:
    """Which faults come, by a seed; nothing of it depends on what happens."""

    def __init__(self, seed, names, kinds):
        self.random = random.Random(seed)
        self.names, self.kinds = names, kinds
        self.deck: list[str] = []

    def next(self):
        """Faults of one round, and how long they are there."""
        if not self.deck:
            self.deck = list(self.kinds)
            self.random.shuffle(self.deck)
        kind = self.deck.pop()
        faults = [self.fault(kind, self.names)]
        pair = [other for other in SECONDS_OF_A_PAIR if other in self.kinds]
        if kind not in ALONE and pair and self.random.random() < PAIR_CHANCE:
            left = [name for name in self.names if name not in faults[0].nodes]
            faults.append(self.fault(self.random.choice(pair), left))
        return faults, self.random.uniform(HOLD_SECONDS_MIN, HOLD_SECONDS_MAX)

    def fault(self, kind, names):
        node = self.random.choice(names)
        others = [name for name in self.names if name != node]
        options: dict = {}
        if kind == "cut_one_way":
            options["one_way"] = self.random.choice(("to", "from"))
        elif kind == "cut_not_transitive":
            options["peers"] = sorted(self.random.sample(others, self.random.randint(1, 2)))
        elif kind == "clock":
            options["seconds"] = self.random.choice(CLOCK_JUMPS_SECONDS)
        elif kind == "slow":
            options = dict(self.random.choice(({"rate": "10mbit"}, {"loss": "5%"}, {"rate": "20mbit", "loss": "1%"})))
        elif kind == "move":
            moved = self.random.sample(sorted(VOLUMES), self.random.randint(1, len(VOLUMES)))
            options = {volume: self.random.choice(self.names) for volume in moved}
            return Fault(kind, [], options)
        elif kind == "etcd_killed" or kind == "etcd_hangs":
            options["leader"] = self.random.random() < 0.5
            return Fault(kind, [], options)
        elif kind == "etcd_without_quorum":
            return Fault(kind, [])
        elif kind == "most_hang":
            return Fault(kind, sorted(self.random.sample(names, MOST)))
        return Fault(kind, [node], options)


class Nemesis:
    """Does what the plan says, and ends it."""

    def __init__(self, world, log):
        self.world, self.cluster, self.log = world, world.cluster, log
        self.stopped_members: list[int] = []
        # What ends a fault before `heal`; the last one first.
        self.undone = contextlib.ExitStack()

    def strike(self, fault, others):
        self.log(f"  {fault}")
        getattr(self, fault.kind)(fault, others)

    def heal(self):
        """Ends all faults; the nodes serve then."""
        self.undone.close()
        for pid in self.stopped_members:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        self.stopped_members = []
        self.cluster.heal()
        if self.world.cut_clients:
            # What was sent into the cut arrives now; who gave it up must not leave its connection open either.
            threading.Timer(AFTER_CUT_SECONDS, self.clients_are_there).start()

    def clients_are_there(self):
        self.world.cut_clients = False

    def asked(self, fault, others):
        """A node that is not disturbed."""
        struck = {node for other in (fault, *others) for node in other.nodes}
        return next(name for name in self.cluster.names if name not in struck)

    # Nodes.

    def kill(self, fault, _):
        self.cluster.kill(*fault.nodes)

    def pause(self, fault, _):
        self.cluster.pause(*fault.nodes)

    def cut(self, fault, _):
        self.cluster.partition(*fault.nodes)

    def cut_one_way(self, fault, _):
        self.cluster.partition(*fault.nodes, one_way=fault.options["one_way"])

    def cut_not_transitive(self, fault, _):
        self.cluster.partition(*fault.nodes, peers=fault.options["peers"])

    def cut_clients(self, fault, _):
        self.world.cut_clients = True
        self.cluster.partition(*fault.nodes, clients=True)

    def slow(self, fault, _):
        done = self.cluster.slow(*fault.nodes, **fault.options)
        if done.returncode:
            raise harness.Failure(done.stderr)

    def full_disk(self, fault, _):
        for node in fault.nodes:
            self.undone.callback(self.world.disks.empty, node)
            self.world.disks.fill(node)

    def clock(self, fault, _):
        for node in fault.nodes:
            self.undone.callback(self.world.clocks.set, node, 0)
            self.world.clocks.set(node, fault.options["seconds"])

    def most_hang(self, fault, _):
        machines = self.cluster.machines()
        for node in fault.nodes:
            os.kill(machines[node]["pid"], signal.SIGSTOP)

    # etcd.

    def members(self, fault, others, count):
        """Members on nodes that nothing else happens to; the leader first or last."""
        struck = {node for other in others for node in other.nodes}
        members = {name: pid for name, pid in self.world.etcd_members().items() if name not in struck}
        leader = self.cluster.etcd_leader()
        wants_leader = fault.options.get("leader", True)
        names = sorted(members, key=lambda name: ((name == leader) != wants_leader, name))
        self.log(f"    members of etcd on {' '.join(names[:count])}; the leader is on {leader}")
        return [members[name] for name in names[:count]], names[:count]

    def etcd_hangs(self, fault, others):
        pids, _ = self.members(fault, others, 1)
        self.stop_members(pids)

    def etcd_without_quorum(self, fault, others):
        pids, _ = self.members(fault, others, MEMBERS_OF_ETCD // 2 + 1)
        self.stop_members(pids)

    def stop_members(self, pids):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
                self.stopped_members.append(pid)

    def etcd_killed(self, fault, others):
        _, names = self.members(fault, others, 1)
        for name in names:
            self.cluster.kill_etcd(name)

    # What operators do.

    def operator(self, node, *words):
        """A command that may be refused while something else happens."""
        done = self.world.run(*words, node=node, check=False)
        if done.returncode:
            self.log(f"    cairn {' '.join(words)}: {done.returncode}: {done.stderr.strip().splitlines()[:1]}")
        return done.returncode == 0

    def move(self, fault, others):
        struck = {node for other in others for node in other.nodes}
        asked = next(name for name in self.cluster.names if name not in struck)
        for volume, to in fault.options.items():
            if to not in struck:
                self.operator(asked, "volume", "move", volume, "--to", to)

    def drain(self, fault, others):
        (node,) = fault.nodes
        asked = self.asked(fault, others)
        if self.operator(asked, "node", "drain", node):
            self.undone.callback(self.operator, asked, "node", "drain", node, "--cancel")

    def restart(self, fault, _):
        self.cluster.stop(*fault.nodes)
        self.cluster.start_nodes(*fault.nodes)

    def maintenance(self, fault, others):
        (node,) = fault.nodes
        asked = self.asked(fault, others)
        if self.operator(asked, "node", "maintenance", "on", node, "--for", "10m"):
            self.undone.callback(self.operator, asked, "node", "maintenance", "off", node)
            self.undone.callback(self.cluster.start_nodes, node)
            self.cluster.stop(node)

    def disk_lost(self, fault, others):
        (node,) = fault.nodes
        asked = self.asked(fault, others)
        disk = self.world.disk_of(node, asked)
        self.cluster.kill(node)
        if self.world.disks:
            self.world.disks.lose(node)
        else:
            folder = self.cluster.folder / node / "disk1"
            shutil.rmtree(folder)
            folder.mkdir()
        self.undone.callback(self.replace_disk, node, asked, disk)

    def replace_disk(self, node, asked, disk):
        """Says that the disk is lost for good, and waits until nothing is missed."""
        folder = self.cluster.folder / node / "disk1"
        replaced = lambda: self.operator(asked, "disk", "replace", disk, str(folder))
        harness.wait_until(replaced, SERVE_SECONDS_MAX, f"that the lost disk of {node} is replaced")
        self.cluster.start_nodes(node)
        removed = lambda: self.world.run("disk", "remove", disk, node=asked, check=False).returncode == 0
        harness.wait_until(removed, REBUILT_SECONDS_MAX, f"that nothing is needed of the lost disk of {node}")


class Stalls(threading.Thread):
    """How long the machine itself stood still: a thread that wants to run every few milliseconds."""

    def __init__(self):
        super().__init__(daemon=True)
        self.ended = threading.Event()
        self.longest_seconds = 0.0

    def run(self):
        last = time.monotonic()
        while not self.ended.wait(STALL_SECONDS):
            now = time.monotonic()
            self.longest_seconds = max(self.longest_seconds, now - last - STALL_SECONDS)
            last = now

    def take(self):
        longest, self.longest_seconds = self.longest_seconds, 0.0
        return longest


class Log:
    """Every step with its moment, on the terminal and in a file."""

    def __init__(self, path):
        self.begun, self.path = time.monotonic(), path

    def __call__(self, what):
        line = f"{time.strftime('%H:%M:%S', time.gmtime())} {time.monotonic() - self.begun:8.1f} s  {what}"
        print(line, flush=True)
        with open(self.path, "a") as file:
            file.write(line + "\n")


class Judge:
    """What clients saw, beside what they may see."""

    def __init__(self, world, log):
        self.world, self.log = world, log
        self.rounds: list[Round] = []
        self.problems: list[str] = []
        # Of each client, how many of its refusals and pauses were told.
        self.told: Counter[tuple[str, str]] = Counter()

    def watch(self):
        """Fails if a client saw what it must not see, and tells what is new."""
        for client in self.world.clients:
            if client.failure:
                raise harness.Failure(f"{client.client}: {client.failure!r}")
            for _, text in self.new(client, "refusals"):
                self.problem(f"refused: {text}")
            for pause in self.new(client, "pauses"):
                seconds = self.counted_seconds(pause)
                if seconds > PAUSE_SECONDS_MAX:
                    self.problem(
                        f"a pause of {pause.seconds:.1f} s ({seconds:.1f} s of it with enough nodes): {pause.client}; it met "
                        f"{', '.join(pause.met[:12])}; {self.round_of(pause).kinds}"
                    )

    def new(self, client, what):
        found = getattr(client, what)
        first = self.told[client.client, what]
        self.told[client.client, what] = len(found)
        return found[first:]

    def problem(self, text):
        self.problems.append(text)
        self.log(f"  PROBLEM: {text}")

    def round_of(self, pause):
        """The round that a pause belongs to: the last that began before it, or during it."""
        before = [one for one in self.rounds if one.begun < pause.ended]
        return before[-1] if before else Round([], 0)

    def counted_seconds(self, pause):
        """How much of a pause is none that too few nodes explain."""
        begun = pause.begun
        for one in self.rounds:
            until = one.healed or pause.ended
            if one.begun < pause.ended and until > begun and not one.does_without(VOLUMES[pause.volume][1]):
                begun = max(begun, until)
        return max(0.0, pause.ended - begun)

    def await_answers(self):
        """Waits until each client had some more answers."""
        before = [client.answers_count for client in self.world.clients]

        def all_go_on():
            self.watch()
            return all(client.answers_count >= count + RESUME_ANSWERS for client, count in zip(self.world.clients, before))

        try:
            harness.wait_until(all_go_on, RESUME_SECONDS_MAX, "answers to all clients", CHECK_SECONDS)
        except harness.Late as late:
            now = time.monotonic()
            waiting = [
                f"{client.client} for {now - client.waits_since:.0f} s at {client.at}" for client in self.world.clients if client.waits_since
            ]
            raise harness.Failure(f"{late}; these wait: {'; '.join(waiting)}") from late

    # What it comes to.

    def results(self, options):
        clients = self.world.clients
        pauses = [(self.round_of(pause), pause) for client in clients for pause in client.pauses]
        protocols = sorted({client.protocol for client in clients})
        by_protocol = {name: max((pause.seconds for _, pause in pauses if pause.protocol == name), default=0.0) for name in protocols}
        by_fault: dict[str, dict] = {}
        for one, pause in pauses:
            worst = by_fault.setdefault(one.kinds or "none", dict.fromkeys(protocols, 0.0))
            worst[pause.protocol] = max(worst[pause.protocol], pause.seconds)
        return {
            "seed": options.seed, "rounds": len(self.rounds),
            "faults": dict(Counter(fault.kind for one in self.rounds for fault in one.faults)),
            "answers": {name: sum(client.answers_count for client in clients if client.protocol == name) for name in protocols},
            "turns_to_another_node": sum(client.turns_count for client in clients),
            "not_now": dict(sum((client.not_now for client in clients), Counter())),
            "checked_bytes": self.world.objects.checked_bytes,
            "longest_pause_seconds": {name: round(seconds, 1) for name, seconds in by_protocol.items()},
            "longest_pause_seconds_by_fault": {
                kinds: {name: round(seconds, 1) for name, seconds in worst.items()} for kinds, worst in sorted(by_fault.items())
            },
            "problems": self.problems,
        }


def told_lines(results):
    """The summary, for people."""
    protocols = list(results["answers"])
    lines = [
        f"{results['rounds']} rounds; requests answered: {', '.join(f'{count} {name}' for name, count in results['answers'].items())}; "
        f"{results['turns_to_another_node']} times a client turned to another node; "
        f"{results['checked_bytes'] >> 20} MiB compared",
        f"faults: {', '.join(f'{count} {kind}' for kind, count in sorted(results['faults'].items()))}",
        f"\"not now\": {', '.join(f'{count} {what}' for what, count in results['not_now'].items()) or 'never'}",
        f"longest pause: {', '.join(f'{name} {seconds} s' for name, seconds in results['longest_pause_seconds'].items())}",
    ]
    for kinds, worst in results["longest_pause_seconds_by_fault"].items():
        lines.append(f"  {kinds:44} " + "  ".join(f"{name} {worst[name]:5.1f} s" for name in protocols))
    lines.append(f"{len(results['problems'])} problems")
    return lines + [f"  {text}" for text in results["problems"]]


def versions(world, seed):
    """S3 clients of a bucket that keeps versions, with puts under conditions; each of one node."""
    run = world.run
    run("bucket", "create", BUCKET, "--uid", "1000", "--gid", "100")
    made = json.loads(run("s3", "key", "create", "--uid", "1000", "--gid", "100", "--json").stdout)

    class Made:
        id, secret = made["id"], made["secret"]

    client = lambda node: s3.client(world.cluster.s3_port(node), Made, read_timeout=S3_READ_SECONDS_MAX)
    client(world.cluster.names[0]).put_bucket_versioning(Bucket=BUCKET, VersioningConfiguration={"Status": "Enabled"})
    return S3Load([client(node) for node in world.cluster.names[:2]], BUCKET, seed, S3_PACE_SECONDS), client


def verify_all(world, judge, log):
    """Ends the work of all clients, and compares everything through each node."""
    for client in world.clients:
        client.ended.set()
    for client in world.clients:
        client.join(RESUME_SECONDS_MAX)
        if client.is_alive():
            raise harness.Failure(f"{client.client} did not end: it waits at {client.at}")
    judge.watch()
    problems: list[BaseException] = []

    def verify(client):
        try:
            for node in world.cluster.names:
                client.verify(node)
        except Exception as problem:  # noqa: BLE001
            problems.append(problem)

    before = world.objects.checked_bytes
    checks = [threading.Thread(target=verify, args=(client,)) for client in world.clients]
    for check in checks:
        check.start()
    for check in checks:
        check.join()
    if problems:
        raise harness.Failure("; ".join(repr(problem) for problem in problems))
    judge.watch()
    log(f"everything was compared through each node: {(world.objects.checked_bytes - before) >> 20} MiB")


def run(world, options, log, guest_check=lambda: None):
    """Faults until the time is over; returns the results."""
    kinds = [kind for kind in KINDS if not options.faults or kind in options.faults]
    for names, there, what in (
        (NEED_NETWORK, world.has_network, "root, iproute2 and nftables"),
        (NEED_DISKS, world.disks, "root, loop devices and mkfs.ext4"),
        (NEED_CLOCKS, world.clocks, "libfaketime (package faketime)"),
    ):
        left_out = [kind for kind in names if kind in kinds] if not there else []
        if left_out:
            log(f"NOT TESTED: {', '.join(left_out)}, which need {what}")
            kinds = [kind for kind in kinds if kind not in left_out]
    plan, nemesis, judge, stalls = Plan(options.seed, world.cluster.names, kinds), Nemesis(world, log), Judge(world, log), Stalls()
    world.make_volumes()
    world.make_clients(options.seed, NFS_CLIENTS, S3_CLIENTS, ISCSI_CLIENTS)
    s3_load, s3_client = versions(world, options.seed)
    try:
        with s3_load:
            seconds, left = world.await_well()
            log(f"{len(world.clients)} clients of {len(VOLUMES)} volumes; well after {seconds:.0f} s{f', but for {left}' if left else ''}")
            judge.await_answers()
            stalls.start()
            deadline = time.monotonic() + options.seconds
            while time.monotonic() < deadline:
                one_round(world, plan, nemesis, judge, stalls, log, (s3_load.check, guest_check))
            stalls.ended.set()
            verify_all(world, judge, log)
            s3_load.end(S3_END_SECONDS_MAX)
            with libnfs.Mount(world.cluster.url(world.cluster.names[1])) as mount:
                count = s3_load.verify(s3_client(world.cluster.names[2]), mount)
            log(f"{count} objects and versions of the bucket that keeps them compared; {s3_load.unknown_count()} of unknown outcome")
    except BaseException as failure:
        judge.problem(f"{failure}" if isinstance(failure, harness.Failure) else repr(failure))
        if not isinstance(failure, (harness.Failure, AssertionError)):
            raise
    return judge.results(options)


def one_round(world, plan, nemesis, judge, stalls, log, checks):
    faults, hold_seconds = plan.next()
    stalls.take()
    log(f"round {len(judge.rounds) + 1}, load average {os.getloadavg()[0]:.1f}")
    this = Round(faults, time.monotonic(), hold_seconds)
    judge.rounds.append(this)
    for fault in faults:
        nemesis.strike(fault, [other for other in faults if other is not fault])
    # How long a fault is there is part of it.
    ends = time.monotonic() + hold_seconds
    while time.monotonic() < ends:
        judge.watch()
        for check in checks:
            check()
        time.sleep(CHECK_SECONDS)
    nemesis.heal()
    this.healed = time.monotonic()
    log(f"  healed after {this.healed - this.begun:.1f} s")
    judge.await_answers()
    seconds, this.not_well = world.await_well()
    this.well = time.monotonic()
    this.stall_seconds = stalls.take()
    judge.watch()
    worst = max((pause for client in world.clients for pause in client.pauses if pause.ended > this.begun), key=lambda pause: pause.seconds, default=None)
    waited = f"; the longest pause was {worst.seconds:.1f} s: {worst.client}, which met {', '.join(worst.met[:6])}" if worst else ""
    log(f"  well after {seconds:.1f} s more{waited}; this machine stood still for {this.stall_seconds:.2f} s at most")
    if this.not_well:
        judge.problem(f"not well after {seconds:.0f} s: {', '.join(this.not_well)}; {this.kinds}")


def with_guest(world, options, log):
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
            results.update(run(world, options, log, guest_check=guest.told))
            guest.await_progress()
        except (Exception, AssertionError) as problem:
            problems.append(problem)
        finally:
            (folder / "enough").touch()

    def last_kill():
        world.cluster.kill(world.cluster.owner())
        world.cluster.heal()

    suite = harness.REPOSITORY / "tests" / "vm" / "guest" / "faults.py"
    status = vm.run(
        None, suite, {vm.cargo_tool("fsx", FSX_VERSION).parent: "/tools"}, round(options.seconds) + VM_SECONDS_SPARE,
        WORKLOADS_SHORT, port=world.cluster.nfs_port(), conduct=conduct,
        requests={"last-kill": last_kill, "done": lambda: None},
        environment={"REFUSALS": "|".join(REPEATED), "OPTIONS": ""},
    )
    if problems:
        raise problems[0]
    if status:
        raise harness.Failure(f"the programs in the VM ended with {status}")
    return results


def kinds_of(text):
    kinds = text.split(",")
    for kind in kinds:
        if kind not in KINDS:
            raise argparse.ArgumentTypeError(f"{kind} is none of {', '.join(KINDS)}")
    return kinds


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=SECONDS_DEFAULT, help="until no more faults come [default: %(default)s]")
    parser.add_argument("--minutes", type=float, default=None, help="the same in minutes")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--faults", type=kinds_of, default=None, metavar="KIND,...", help=f"only these [default: {', '.join(KINDS)}]")
    parser.add_argument("--vm", action="store_true", help="the kernel client in a VM, too: needs what `scripts/setup vm` installs")
    options = parser.parse_args()
    options.seed = random.SystemRandom().randrange(1 << 32) if options.seed is None else options.seed
    options.seconds = options.minutes * 60 if options.minutes else options.seconds
    out = harness.target_dir() / "cluster-faults"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    log = Log(out / "nemesis.log")
    faults = f" --faults {','.join(options.faults)}" if options.faults else ""
    log(f"seed {options.seed}: scripts/test-cluster-faults --seed {options.seed} --seconds {options.seconds:g}{faults}")
    if options.vm:
        from lib import vm

        vm.image()
    with harness.scratch("nemesis-") as scratch:
        wants_clocks = not options.faults or "clock" in options.faults
        world = World(scratch, NODES_COUNT, options.seed % (1 << 32), wants_clocks)
        try:
            with world:
                log(f"{NODES_COUNT} nodes are there")
                results = with_guest(world, options, log) if options.vm else run(world, options, log)
                if results["problems"]:
                    keep_state(world, out)
                    keep_histories(world, out)
        except BaseException:
            log(f"FAILED with the seed {options.seed}; the logs of the nodes are in {out}")
            raise
        finally:
            keep_logs(world.cluster, out)
    (out / "results.json").write_text(json.dumps(results, indent=2) + "\n")
    for line in told_lines(results):
        log(line)
    log(f"{'FAILED' if results['problems'] else 'passed'}, seed {options.seed}; logs and results are in {out}")
    return 1 if results["problems"] else 0


def keep_state(world, out):
    """What the cluster says of itself at the end of a run that failed."""
    with contextlib.suppress(Exception):
        (out / "status.json").write_text(json.dumps(world.cluster.status(), indent=2) + "\n")


def keep_histories(world, out):
    """What each client sent and heard last."""
    for client in world.clients:
        (out / f"{client.client.replace(' ', '-')}.history").write_text("\n".join(client.history) + "\n")


def keep_logs(cluster, out):
    for path in cluster.folder.glob("*/log"):
        with contextlib.suppress(OSError):
            shutil.copy(path, out / f"{path.parent.name}.log")
    with contextlib.suppress(OSError):
        shutil.copy(cluster.output_path, out / "dev-cluster.output")
