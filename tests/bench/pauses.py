"""Measures how long clients wait when a volume of a cluster gets another owner: by plan, and because the owner is lost.

    scripts/bench-pauses [--tries N] [--nodes N] [--volumes N,N] [--write]

A client of each volume whose owner changes writes a block, stable, and reads it, every few milliseconds, by way of a node that nothing
happens to. Its longest time between two answers is the pause. --write puts the table into docs/results/reliability.md.
"""

import argparse
import contextlib
import os
import signal
import statistics
import time

from bench.nfs import report
from lib import document, harness
from lib.cells import Objects
from lib.cluster import SERVE_SECONDS_MAX
from lib.faultworld import World
from lib.roaming import NfsRoamer, Place

# A block every so often from each of the clients at the same time, of which one machine runs only so many.
EVERY_SECONDS_MIN = 0.004
EVERY_SECONDS_PER_CLIENT = 0.002
# Longer than any pause: the client stays where it is, and the node holds the call.
PATIENCE_SECONDS = 60
QUIET_ANSWERS, ENOUGH_ANSWERS = 50, 50
WELL_SECONDS_MAX = 180
REST_SECONDS = 21
MAIN = "main"


class Feeler(NfsRoamer):
    """A client that stays with its node, and notes its longest wait."""

    RETRY_SECONDS = 0.005
    FILES_CELLS: tuple[int, ...] = (64,)

    def __init__(self, place, index, node, source):
        super().__init__(place, index, 0, source)
        self.at = self.wanted = node
        self.patience_seconds, self.every_seconds = PATIENCE_SECONDS, EVERY_SECONDS_MIN
        self.answered_at, self.pause_seconds = time.monotonic(), 0.0

    def run(self):
        try:
            self.prepare()
            while not self.ended.wait(self.every_seconds):
                if self.at != self.wanted:
                    self.drop(leave=False)
                    self.at = self.wanted
                self.step()
        except Exception as failure:  # noqa: BLE001
            self.failure = failure
        finally:
            self.drop(leave=False)

    def step(self):
        (ledger, handle) = self.files[0]
        at = self.rng.randrange(ledger.cells_count)
        counter, data = ledger.begin(at, 1)
        self.write_stable(handle, at, data)
        ledger.acknowledge(at, 1, counter)
        self.read(ledger, handle, (at, 1))

    def answered(self, attempt, what):
        answer = super().answered(attempt, what)
        now = time.monotonic()
        self.pause_seconds = max(self.pause_seconds, now - self.answered_at)
        self.answered_at = now
        return answer

    def turn(self):
        # The connection was reset: as a Linux client it connects again at once.
        self.drop(leave=False)


class Bench:
    """A cluster with so many volumes, each with a client that can feel."""

    def __init__(self, world, volumes_count):
        self.world, self.cluster = world, world.cluster
        self.volumes = [MAIN, *(f"volume{number}" for number in range(2, volumes_count + 1))]
        self.clients: dict[str, Feeler] = {}
        # Where each volume was put: it goes back there by itself.
        self.homes: dict[str, str] = {}
        # Whether the node of the last measurement led etcd as well.
        self.leads = False
        self.objects = Objects(1)

    def make(self):
        names = self.cluster.names
        for index, volume in enumerate(self.volumes):
            if volume != MAIN:
                self.world.run("volume", "create", volume)
            self.world.run("export", "set", volume, "--client", "0.0.0.0/0", "--squash", "none")
            self.homes[volume] = names[index % len(names)]
            self.world.move(volume, self.homes[volume])
        self.world.await_places(self.volumes)
        sources = self.world.sources()
        address = lambda node, protocol: self.world.listens[node, protocol]
        for volume in self.volumes:
            place = Place(volume, names, address, self.objects, lambda: False)
            self.clients[volume] = Feeler(place, 0, names[0], next(sources))
            self.world.clients.append(self.clients[volume])
        for client in self.world.clients:
            client.start()
        self.await_answers(self.volumes, QUIET_ANSWERS)

    def await_answers(self, volumes, count):
        clients = [self.clients[volume] for volume in volumes]
        wanted = [client.answers_count + count for client in clients]

        def done():
            for client in clients:
                if client.failure:
                    raise harness.Failure(f"{client.client}: {client.failure!r}")
            return all(client.answers_count >= number for client, number in zip(clients, wanted))

        harness.wait_until(done, SERVE_SECONDS_MAX, "answers to all clients")

    def owners(self):
        return {volume["name"]: volume["owner"] for volume in self.cluster.status()["volumes"]}

    def await_homes(self):
        """Waits until volumes are back where they were put."""
        away = lambda: {name: owner for name, owner in self.owners().items() if owner != self.homes[name]}
        try:
            harness.wait_until(lambda: not away(), WELL_SECONDS_MAX, "that volumes are back where they were put")
        except harness.Failure as failure:
            left = ", ".join(f"{name} of {self.homes[name]} at {owner}" for name, owner in away().items())
            raise harness.Failure(f"{failure}: {left}") from failure

    def busiest(self):
        """The node that owns most, and what it owns."""
        nodes = list(self.homes.values())
        node = max(self.cluster.names, key=lambda name: (nodes.count(name), name))
        return node, [volume for volume in self.volumes if self.homes[volume] == node]

    def measure(self, event):
        """Pauses of the clients whose volumes get another owner."""
        seconds, left = self.world.await_well(WELL_SECONDS_MAX)
        if left:
            raise harness.Failure(f"the cluster is not well after {seconds:.0f} s: {left}")
        self.await_homes()
        # A node that gave a volume away leaves it to others for a while.
        since = time.monotonic()
        harness.wait_until(lambda: time.monotonic() - since > REST_SECONDS, WELL_SECONDS_MAX, "that no node rests", 1)
        node, volumes = self.busiest()
        volumes = event.of(volumes)
        elsewhere = self.cluster.others(node)
        for index, volume in enumerate(self.volumes):
            client = self.clients[volume]
            client.wanted = elsewhere[index % len(elsewhere)]
            # Whoever feels nothing of it does not disturb.
            client.every_seconds = max(EVERY_SECONDS_MIN, len(volumes) * EVERY_SECONDS_PER_CLIENT) if volume in volumes else 1.0
        self.await_answers(volumes, QUIET_ANSWERS)
        for volume in volumes:
            self.clients[volume].pause_seconds = 0.0
        with contextlib.ExitStack() as ends:
            self.leads = self.cluster.etcd_leader() == node
            event.do(self, ends, node, volumes, elsewhere)
            owned = lambda: all(self.owners()[volume] not in (None, node) for volume in volumes)
            harness.wait_until(owned, SERVE_SECONDS_MAX, f"other owners of what {node} owned")
            self.await_answers(volumes, ENOUGH_ANSWERS)
            return [self.clients[volume].pause_seconds for volume in volumes]


class Move:
    title, aim = "planned move of a volume (`volume move`)", 0.3

    @staticmethod
    def of(volumes):
        return volumes[:1]

    @staticmethod
    def do(bench, _, node, volumes, elsewhere):
        bench.homes[volumes[0]] = elsewhere[0]
        bench.world.run("volume", "move", volumes[0], "--to", elsewhere[0], node=node)


class Maintenance:
    title, aim = "all volumes of a node move (`node maintenance on`)", 0.3

    @staticmethod
    def of(volumes):
        return volumes

    @staticmethod
    def do(bench, ends, node, _, elsewhere):
        ends.callback(bench.world.run, "node", "maintenance", "off", node, node=elsewhere[0])
        bench.cluster.cairn(elsewhere[0], "node", "maintenance", "on", node, "--for", "10m")


class Killed:
    title, aim = "the owner's process is killed (SIGKILL)", 2

    @staticmethod
    def of(volumes):
        return volumes

    @staticmethod
    def do(bench, ends, node, _, elsewhere):
        ends.callback(bench.cluster.start_nodes, node)
        os.kill(bench.cluster.machine(node)["pid"], signal.SIGKILL)


class Still:
    title, aim = "the owner's node stands still (SIGSTOP)", 5

    @staticmethod
    def of(volumes):
        return volumes

    @staticmethod
    def do(bench, ends, node, _, elsewhere):
        ends.callback(bench.cluster.heal)
        bench.cluster.pause(node)


class Cut:
    title, aim = "the owner's node is cut off from all", 5

    @staticmethod
    def of(volumes):
        return volumes

    @staticmethod
    def do(bench, ends, node, _, elsewhere):
        ends.callback(bench.cluster.heal)
        bench.cluster.partition(node, clients=True)


EVENTS = (Move, Maintenance, Killed, Still, Cut)


def numbers(text):
    return [int(part) for part in text.split(",")]


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tries", type=int, default=5)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--volumes", type=numbers, default=[1, 30], help="a cluster of each of these numbers of volumes")
    parser.add_argument("--write", action="store_true", help="write the table into docs/results/reliability.md")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    # Of a number of volumes and an event: each try with the pauses of its volumes.
    found: dict[tuple[int, type], list[list[float]]] = {}
    for count in options.volumes:
        with harness.scratch("pauses-") as scratch, World(scratch, options.nodes, 1, volumes_count=count) as world:
            bench = Bench(world, count)
            bench.make()
            for number in range(options.tries):
                for event in EVENTS:
                    if event is Cut and not world.has_network:
                        continue
                    pauses = bench.measure(event)
                    found.setdefault((count, event), []).append(pauses)
                    print(
                        f"bench-pauses: {count} volumes, try {number + 1}, {event.title}: {len(pauses)} clients waited "
                        f"{min(pauses):.2f} to {max(pauses):.2f} s{', it led etcd' if bench.leads else ''}, load average {os.getloadavg()[0]:.1f}", flush=True,
                    )
    text = table(options, found, load)
    print(text)
    if options.write:
        document.write("bench-pauses", text, document.RELIABILITY_PATH)


def table(options, found, load):
    lines = [
        f"Measured {report.today()}, {options.tries} tries of each on {options.nodes} nodes of one machine with {os.cpu_count()} CPUs, which "
        f"the clients share; load average when it began: {load:.1f}, with other work on it. Each figure: median (least to most), in seconds.",
        "",
        "| | volumes | their clients in all tries | pause of a client | longest of each try | aim | reached |",
        "|---|---|---|---|---|---|---|",
    ]
    for (count, event), tries in sorted(found.items(), key=lambda item: (EVENTS.index(item[0][1]), item[0][0])):
        every = [pause for pauses in tries for pause in pauses]
        longest = [max(pauses) for pauses in tries]
        reached = report.yes(statistics.median(longest) <= event.aim)
        lines.append(
            f"| {event.title} | {count} | {len(every)} | {span(every)} | {span(longest)} | {event.aim} | {reached} |"
        )
    return "\n".join(lines)


def span(values):
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"
