"""One pool and its clients, over many lives.

Owns: the load, the cuts, and what must be there after each. Must not know: which parts of the test there are.
"""

import collections
import json
import threading
from typing import Any

from lib import harness, lunhost, remembered
from power.server import BOOT_SECONDS_MAX, DRIVES_COUNT, POOL_DISKS_COUNT

# What that pool survives the loss of.
DISKS_LOST_COUNT = 2
NFS_CLIENTS_COUNT = 4
# They share a LUN.
HOSTS_COUNT = 2
LUN_PART_LEN_BYTES = 16 << 20
CALLS_BEFORE_CUT = 60, 500
WRITES_BEFORE_CUT = 1, 400
# The log's files are recycled, and a checkpoint is shipped, after each 128 MiB of it.
LOG_BYTES_BEFORE_CUT = 20 << 20, 300 << 20
LONE_CHANGES = 1, 8
DONE = {
    "cairn_log_written_bytes_total", "cairn_log_ships_total", "cairn_gc_segments_removed_total",
    "cairn_gc_rewritten_bytes_total", "cairn_volume_journaled_writes_total", "cairn_volume_flushed_bytes_total",
}
VOLUMES_COUNT_MAX = 3
SETTLE_SECONDS_MAX = 300
LOAD_SECONDS_MAX = 240
# In each of these, all clients get on by so much.
CALLS_OF_EACH = 15
# What every client waits at most while a drive hangs and its volume is opened on another one.
STALL_SECONDS_MAX = 150


class Pool:
    """One pool and its clients, over many lives."""

    def __init__(self, server, rng, seed):
        self.server, self.rng, self.seed = server, rng, seed
        self.clients: list[Any] = [remembered.Client(server.nfs_port, index, seed) for index in range(NFS_CLIENTS_COUNT)]
        # Volumes that must be there; names of those that may be, because a call had no answer.
        self.volumes, self.volumes_unsure, self.volumes_count = {"main"}, set(), 0
        self.lost_count = self.kept_count = self.cuts_count = 0
        self.done: collections.Counter = collections.Counter()

    # Load.

    def first_boot(self):
        self.server.boot()
        self.server.await_ready()
        self.server.cairn("export", "set", "main", "--client", "10.0.2.2", "--squash", "none")
        target, initiator = lunhost.map_lun(self.server, "disk", HOSTS_COUNT * LUN_PART_LEN_BYTES)
        for index in range(HOSTS_COUNT):
            first, length = index * LUN_PART_LEN_BYTES, LUN_PART_LEN_BYTES
            self.clients.append(lunhost.Host(self.server.iscsi_port, index, self.seed, target, initiator, first, length))

    def start_load(self, burst_weight=1):
        self.clients = [client.next_life() for client in self.clients]
        for client in self.clients:
            client.burst_weight = burst_weight
            client.start()

    def calls_count(self):
        return sum(client.acknowledged_count for client in self.clients)

    def check_load(self):
        self.server.machine.check()
        self.check_clients()

    def check_clients(self):
        for client in self.clients:
            if client.failure or client.lost_connection:
                raise harness.Failure(f"{client.folder_name}: {client.failure or client.lost_connection!r}")

    def wait_while_loaded(self, done, seconds, what):
        def is_done():
            self.check_load()
            return done()

        return harness.wait_until(is_done, seconds, what)

    def await_calls(self, count):
        wanted = self.calls_count() + count
        self.wait_while_loaded(lambda: self.calls_count() >= wanted, LOAD_SECONDS_MAX, f"{count} calls of clients")

    def await_each(self, seconds=LOAD_SECONDS_MAX):
        """Every client gets on."""
        wanted = [client.acknowledged_count + CALLS_OF_EACH for client in self.clients]
        done = lambda: all(client.acknowledged_count >= count for client, count in zip(self.clients, wanted))
        self.wait_while_loaded(done, seconds, "that all clients get on")

    def end_load(self):
        for client in self.clients:
            client.ended.set()
        for client in self.clients:
            client.join(STALL_SECONDS_MAX)
            if client.is_alive():
                raise harness.Failure(f"{client.folder_name} has no answer")
        self.check_load()
        self.count_what_was_done()

    # Cuts.

    def cut(self):
        """The power goes while clients work."""
        self.check_load()
        self.count_what_was_done()
        self.cut_idle()
        for client in self.clients:
            client.ended.set()
        for client in self.clients:
            client.join(STALL_SECONDS_MAX)
            if client.failure:
                raise harness.Failure(f"{client.folder_name}: {client.failure!r}")

    def count_what_was_done(self):
        """What the server did since its start, so that one sees whether the load reached that."""
        for name, value in self.server.metrics().items():
            name = name.partition("{")[0]
            if name in DONE:
                self.done[name] += int(value)

    def cut_idle(self):
        lost_count, kept_count = self.server.cut_power(self.rng)
        self.lost_count, self.kept_count = self.lost_count + lost_count, self.kept_count + kept_count
        self.cuts_count += 1
        return lost_count, kept_count

    def cut_at_start(self, writes=WRITES_BEFORE_CUT):
        """The power goes while the server starts on what the last cut left, or for the first time."""
        self.server.boot()
        mounted = lambda: self.server.is_ready() or self.server.mounted_path.exists()
        harness.wait_until(mounted, BOOT_SECONDS_MAX, "the mounting of drives")
        wanted = self.server.written_count() + self.rng.randrange(*writes)
        over = lambda: self.server.is_ready() or self.server.written_count() >= wanted
        harness.wait_until(over, BOOT_SECONDS_MAX, "the start of the server in the guest")
        self.cut_idle()

    # What must be there.

    def verify_clients(self):
        problems = []

        def verify(client):
            try:
                client.verify()
            except Exception as problem:
                problems.append(f"{type(problem).__name__}: {problem}")

        threads = [threading.Thread(target=verify, args=(client,)) for client in self.clients]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if problems:
            raise remembered.Wrong("; ".join(problems))

    def verify_volumes(self):
        listed = json.loads(self.server.cairn("volume", "list", "--json").stdout)
        listed = listed["volumes"] if isinstance(listed, dict) else listed
        names = {volume["name"] for volume in listed}
        lost, back = self.volumes - names, names - self.volumes - self.volumes_unsure
        if lost or back:
            raise remembered.Wrong(f"volumes lost: {sorted(lost)}, there: {sorted(back)}")
        for volume in listed:
            if not volume["serving"]:
                raise remembered.Wrong(f"the volume {volume['name']} is not served: {volume['problem']}")
        self.volumes, self.volumes_unsure = names, set()

    def is_settled(self):
        self.server.machine.check()
        status = self.server.status()
        if status["health"] == "failed":
            raise remembered.Wrong(f"the status is failed: {status['summary']}; {status['warnings']}")
        disks, rebuild = self.server.listed()
        if rebuild["lost_bytes"]:
            raise remembered.Wrong(f"{rebuild['lost_bytes']} bytes are lost")
        return (
            status["health"] == "healthy" and not rebuild["shards_left"] and not rebuild["running"]
            and len(disks) == POOL_DISKS_COUNT
        )

    def await_settled(self):
        """The pool becomes healthy by itself, and what was to be moved is moved."""
        try:
            harness.wait_until(self.is_settled, SETTLE_SECONDS_MAX, "a healthy pool")
        except harness.Failure as failure:
            status = self.server.status()
            raise harness.Failure(f"{failure}: {status['summary']}; {status['warnings']}; {self.server.listed()[1]}") from failure

    def scrub(self):
        self.server.cairn("scrub", "start", "--rate", "0", "--restart")
        done = lambda: self.server.scrub_status()["stage"] == "done"
        harness.wait_until(done, SETTLE_SECONDS_MAX, "the end of a scrub")
        scrub = self.server.scrub_status()
        for name in ("wrong_bytes", "damaged", "errors", "shards_away"):
            if scrub[name]:
                raise remembered.Wrong(f"a scrub found: {scrub}")

    def verify_without_disks(self):
        """The same on as many disks as must be enough; nothing of that is kept."""
        away = self.rng.sample(self.server.members, DISKS_LOST_COUNT)
        self.server.boot(away, throw_away=True)
        self.server.await_ready()
        self.verify_clients()
        self.cut_idle()

    # What goes on at a cut.

    def make_volumes(self, enough):
        """Makes and deletes volumes until the power is cut; nothing is known of the last call."""
        while not enough.is_set() and self.change_volumes():
            pass

    def change_volumes(self):
        """Makes or deletes one; false if there was no answer."""
        others = sorted(self.volumes - {"main"})
        if len(others) >= VOLUMES_COUNT_MAX or (others and self.rng.random() < 0.4):
            name = self.rng.choice(others)
            arguments = ["delete", name, "--yes"]
            after = self.volumes - {name}
        else:
            self.volumes_count += 1
            name = f"volume-{self.volumes_count}"
            arguments = ["create", name]
            after = self.volumes | {name}
        self.volumes_unsure |= {name}
        self.volumes = self.volumes & after
        if self.server.cairn("volume", *arguments, check=False).returncode:
            return False
        self.volumes = after
        self.volumes_unsure -= {name}
        return True

    def replace(self):
        """One disk after the other gives its place to the drive that is free."""
        old = self.rng.choice(self.server.members)
        (new,) = set(range(DRIVES_COUNT)) - set(self.server.members)
        # It was a disk of this pool before, or will be one for the first time.
        self.server.cairn("disk", "replace", "--wipe", self.server.folder(old), self.server.folder(new))
        self.server.members[self.server.members.index(old)] = new
        return new

    def cut_lone(self):
        """One client, or somebody who makes volumes, changes a few things while nothing else goes on, and the power
        goes at once: no sync but those of these changes can have made them durable.
        """
        self.end_load()
        idle = lambda: not self.server.metrics()['cairn_volume_dirty_bytes{volume="main"}']
        harness.wait_until(idle, SETTLE_SECONDS_MAX, "a server with nothing to do")
        count = self.rng.randrange(*LONE_CHANGES)
        if self.rng.random() < 0.3:
            for _ in range(min(count, 2)):
                self.change_volumes()
        else:
            number = self.rng.randrange(len(self.clients))
            self.clients[number] = client = self.clients[number].next_life()
            client.changes_left = count
            client.start()
            client.join(STALL_SECONDS_MAX)
        self.cut_idle()
        self.check_clients()

    def cut_while(self, what):
        """Load, something else beside it, a cut."""
        if what == "lone":
            self.await_each()
            self.cut_lone()
            return
        enough, volumes = threading.Event(), None
        if what == "volumes":
            volumes = threading.Thread(target=self.make_volumes, args=(enough,))
            volumes.start()
        elif what == "scrub":
            self.server.cairn("scrub", "start", "--rate", "0", "--restart")
        elif what == "replace":
            self.replace()
        elif what == "drain":
            self.drained = self.rng.choice(self.server.members)
            # There is room for what is on it on the free drive.
            (new,) = set(range(DRIVES_COUNT)) - set(self.server.members)
            self.server.cairn("disk", "add", "--wipe", self.server.folder(new))
            self.server.members.append(new)
            self.server.cairn("disk", "drain", self.server.folder(self.drained))
        if what == "log":
            wanted_bytes = self.rng.randrange(*LOG_BYTES_BEFORE_CUT)
            while self.server.metrics()['cairn_log_written_bytes_total{volume="main"}'] < wanted_bytes:
                self.await_calls(CALLS_OF_EACH * len(self.clients))
        self.await_calls(self.rng.randrange(*CALLS_BEFORE_CUT))
        enough.set()
        self.cut()
        if volumes:
            volumes.join()

    def after_cut(self, what):
        """What was begun goes on, or can be ended."""
        if what == "drain":
            disks, _ = self.server.listed()
            if disks[self.drained]["state"] not in ("draining", "drained"):
                raise remembered.Wrong(f"the drain of a disk is forgotten: {disks[self.drained]}")
            drained = lambda: self.server.listed()[0][self.drained]["state"] == "drained"
            harness.wait_until(drained, SETTLE_SECONDS_MAX, "the draining of a disk")
            self.server.cairn("disk", "remove", self.server.folder(self.drained))
            self.server.members.remove(self.drained)
        self.await_settled()
        disks, _ = self.server.listed()
        if set(disks) != set(self.server.members):
            raise remembered.Wrong(f"the pool has the disks {sorted(disks)} instead of {self.server.members}")
