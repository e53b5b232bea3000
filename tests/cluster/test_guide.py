"""What docs/guide says of clusters is done as it is written there: its commands, on machines with the addresses that it has.

A command that the guide has and these tests do not know is a failure, as is one that they know and the guide has no more. The
folders of commands are those of each machine; what else is replaced is said at each step.
"""

import contextlib
import importlib
import json
import re
import shutil
import socket
import subprocess
import unittest
from typing import Any

from cluster.world import KILLED_PAUSE_SECONDS_MAX, ClusterTest, needs_namespaces
from lib import guide, harness, libnfs
from lib.cluster import Loads
from lib.machines import Network
from lib.worlds import content

SEEN_SECONDS_MAX = 60
# Of what little is on a node, on a busy machine.
MOVED_SECONDS_MAX = 120
# What `cairn` ends with when it failed, was used wrongly, and refuses.
FAILED, USAGE, REFUSED = 1, 2, 4
FILE_LEN_BYTES = 300_001
# What the guide's commands leave to the machine.
SERVE_FLAGS = "--memory-limit 512MiB --disk-root /srv --listen-iscsi 0.0.0.0:3260 --listen-s3 0.0.0.0:9000"
CLIENT_NUMBER = 100

PAGES = {
    "cluster.md": guide.Page("cluster.md"),
    "recovery.md": guide.Page("recovery.md"),
    "snapshots.md": guide.Page("snapshots.md"),
    "iscsi.md": guide.Page("iscsi.md"),
    "s3.md": guide.Page("s3.md"),
    "operations.md": guide.Page("operations.md", "## Disks"),
}
# Who does what is not done here. A test of clusters by its name; others by what runs them.
ELSEWHERE = {
    "cluster.md": {
        "make cluster": "it builds, and runs the next one",
        "cairn dev-cluster --nodes 6 --dir DIR": "test_failures.Failures.test_two_of_six_nodes_are_killed",
        "cairn disk replace DISK FOLDER": "test_operator.Status.test_a_folder_that_is_empty_in_place_of_a_disk_is_no_new_disk",
        "cairn disk remove DISK": "test_operator.Status.test_a_folder_that_is_empty_in_place_of_a_disk_is_no_new_disk",
        "cairn volume set VOLUME --protection +1n": "test_nodes.Nodes.test_what_would_leave_too_little_is_refused_with_the_numbers",
        "apt install ./cairn_VERSION.deb": "scripts/test-package; here the server is restarted in its place",
        "cairn plan deploy": "make test-plan",
        "cairn cluster rotate-ca": "test_rotation.Rotation.test_an_authority_is_replaced_while_clients_work_and_a_node_is_killed",
        "cairn cluster rotate-ca --status": "test_rotation.Rotation.test_a_node_that_is_away_is_waited_for_until_it_is_removed",
        "etcdctl role add cairn": "by etcd's API in crates/engine/trust/tests/trust/etcd.rs",
        "etcdctl role grant-permission cairn readwrite /cairn/NAME/ --prefix=true": "by etcd's API in crates/engine/trust/tests/trust/etcd.rs",
        "etcdctl user add ID --no-password": "by etcd's API in crates/engine/trust/tests/trust/etcd.rs",
        "etcdctl user grant-role ID cairn": "by etcd's API in crates/engine/trust/tests/trust/etcd.rs",
    },
    "recovery.md": {
        "cairn cluster backup FILE": "test_operator.Recovery",
        "cairn cluster recover --data /disk1 --data /disk2": "test_operator.Recovery",
        "cairn cluster recover --data /disk1 --data /disk2 --yes": "test_operator.Recovery",
        "cairn cluster accept-restored --member one,https://10.0.0.1:2379,https://10.0.0.1:2380 --data /disk1 --data /disk2":
            "test_operator.Recovery",
    },
    "snapshots.md": {
        "cairn snapshot create main nightly --before \"psql -c 'CHECKPOINT'; fsfreeze -f /mnt/db\" --after \"fsfreeze -u /mnt/db\"":
            "make test-e2e, with other commands",
        "cairn volume erase-key": "test_encryption.Encryption.test_a_key_is_changed_and_erased_for_all",
    },
    "iscsi.md": {
        "cairn san plan-host san/data --system https://array1:8049 --system https://array2:8049,/etc/array2.token "
        "--ca /etc/arrays.pem --initiator iqn.1993-08.org.debian:01:abc --mount /srv/data > plan.sh": "make demo-san",
    },
    "s3.md": {
        "cairn serve ... --listen-s3 0.0.0.0:9000 --s3-certificate /etc/cairn/s3.crt --s3-key /etc/cairn/s3.key": "make test-e2e",
        "cairn bucket set photos --nfs-versions on": "make test-e2e",
        "cairn bucket set photos --nfs-versions on --nfs-versions-seconds 300": "make test-e2e",
    },
    "operations.md": {
        "cairn volume set NAME --protection ...": "test_nodes.Nodes.test_what_would_leave_too_little_is_refused_with_the_numbers",
    },
}
# "What happens when nodes fail": what is not done here.
FAILS_ELSEWHERE = {
    "the owner, stopped cleanly": "test_failures.Failures.test_the_owner_stops",
    "a node that owns nothing": "test_failures.Failures.test_two_of_six_nodes_that_own_nothing_are_killed",
    "the owner stands still or is cut off": "test_failures.Failures.test_the_owner_stands_still_for_longer_than_its_lease",
    "the owner reaches etcd and not the other nodes, or some of them not":
        "test_waits.Waits.test_an_owner_that_reaches_no_other_node_gives_way",
    "so many nodes that data cannot be read": "test_waits.Waits.test_what_absent_disks_have_is_waited_for",
    "one member of etcd, the leader too": "test_failures.Failures.test_the_leader_of_etcd_is_killed",
    "a member of etcd returns after a cut": "test_waits.Waits.test_a_node_that_returns_after_a_cut_ends_no_lease",
    "most members of etcd": "test_failures.Failures.test_without_etcd_what_is_owned_goes_on_only_while_the_lease_lives",
    "more nodes than the protection covers": "test_failures.Failures.test_three_of_six_nodes_are_gone_and_return",
}
REFUSED_ELSEWHERE = {
    "empty folders at the start of a node whose disks the cluster knows":
        "test_operator.Status.test_a_folder_that_is_empty_in_place_of_a_disk_is_no_new_disk",
    "a start beside a running server of the same node": "test_operator.Status.test_a_copy_of_a_node_does_not_start_beside_it",
}
# Fields of `cairn cluster status --json` that are there in states which no step here makes.
FIELDS_ELSEWHERE = {
    "drain.seconds_left": "it needs a drain that takes more than a minute",
    "volumes[].problems": "it needs takeovers that fail",
    "etcd.problem": "it needs an etcd without a quorum",
}
# What was done here, by page.
DONE: set[tuple[str, str]] = set()
# Tests that ended well.
RAN: set[str] = set()
# Names of fields that a status had.
FIELDS: set[str] = set()


def fields_of(value, at=""):
    """The names of all fields of some JSON, as the guide writes them: `nodes[].alive`."""
    if isinstance(value, list):
        for each in value:
            yield from fields_of(each, f"{at}[]")
    elif isinstance(value, dict):
        for key, each in value.items():
            name = f"{at}.{key}" if at else key
            yield name
            yield from fields_of(each, name)


def names_of(cell):
    """The fields that a cell of a table names; later ones lie beside the first."""
    first, *others = re.findall(r"`([^`]+)`", cell)
    folder = first.rpartition(".")[0]
    return [first, *(f"{folder}.{other}" if folder else other for other in others)]


class Follower(ClusterTest):
    """A test that takes its commands from the guide."""

    page = "cluster.md"

    def run(self, result=None):
        bad = lambda: len(result.errors) + len(result.failures) + len(result.skipped) if result else 0
        before = bad()
        done = super().run(result)
        if bad() == before:
            RAN.add(".".join(self.id().split(".")[-2:]))
        return done

    def line(self, line, words=None, page=None):
        """A command of the guide, with other words in the place of some of its words."""
        page = page or self.page
        known = PAGES[page]
        self.assertIn(line, [*known.commands(), *known.inline()], f"docs/guide/{page} has no such command")
        DONE.add((page, line))
        for old, new in (words or {}).items():
            replaced = re.sub(rf"(?<![\w./-]){re.escape(old)}(?![\w-])", lambda _: str(new), line)
            self.assertNotEqual(replaced, line, f"{old} is no word of {line}")
            line = replaced
        return line

    def wait(self, done, what, seconds=SEEN_SECONDS_MAX):
        return harness.wait_until(done, seconds, what)

    def refused(self, done, *words, status=REFUSED):
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        for word in words:
            self.assertIn(word, done.stderr)


class Pages(unittest.TestCase):
    """What needs no cluster."""

    def test_what_other_tests_do_is_there(self):
        for page, lines in ELSEWHERE.items():
            known = [*PAGES[page].commands(), *PAGES[page].inline()]
            for line in lines:
                self.assertIn(line, known, f"docs/guide/{page} has no such command")
        tables = [*ELSEWHERE.values(), FAILS_ELSEWHERE, REFUSED_ELSEWHERE]
        for who in (who for table in tables for who in table.values()):
            if who.startswith("test_"):
                module, *path = who.split(".")
                found = importlib.import_module(f"cluster.{module}")
                for name in path:
                    found = getattr(found, name)

    def test_rows_of_what_fails_and_what_is_refused_are_known(self):
        page = PAGES["cluster.md"]
        self.assertEqual(set(page.rows("what fails")), {*Walk.FAILS, *FAILS_ELSEWHERE})
        self.assertEqual(set(page.rows("refused")), {*Walk.REFUSES, *REFUSED_ELSEWHERE})


@needs_namespaces
class Walk(Follower):
    """One cluster, from its first node to the replacement of one: steps in the order of their names, each on what is there."""

    FAILS = ("the server of the owner, killed", "the owner without power")
    REFUSES = (
        "a ticket that is wrong, used or expired",
        "a name or an internal address that a node has",
        "a disk of another cluster or pool",
    )
    JOIN = "cairn cluster join TICKET --node two --internal 10.0.0.2:7400 --external 192.168.1.2 --cluster-dir /var/lib/cairn/cluster"
    SERVE_FIRST = "cairn serve --data /disk1 --data /disk2 --listen-nfs 192.168.1.1:2049"
    SERVE = "cairn serve --data /disk1 --data /disk2 --listen-nfs 192.168.1.2:2049"
    SERVE_MOVED = "cairn serve --data /disk1 --data /disk2"

    network: Any = None
    client: Any = None
    nodes: dict = {}
    tickets: list = []

    @classmethod
    def setUpClass(cls):
        stack = contextlib.ExitStack()
        cls.addClassCleanup(stack.close)
        cls.network = stack.enter_context(Network(stack.enter_context(harness.scratch("guide-"))))
        cls.client = cls.network.machine("client", CLIENT_NUMBER)
        cls.nodes, cls.tickets = {}, []

    def setUp(self):
        super().setUp()
        if not self.nodes:
            self.form()

    def run(self, result=None):
        before = len(result.errors) + len(result.failures) if result else 0
        done = super().run(result)
        if result and len(result.errors) + len(result.failures) > before:
            for name, machine in self.nodes.items():
                print(f"== {self.id()}: {name}\n{machine.log_tail()}", flush=True)
        return done

    # What steps share.

    def on(self, name, line, words=None, page=None, check=True, more=""):
        """Runs a command of the guide on a node."""
        return self.ask(name, f"{self.line(line, words, page)} {more}", check)

    def ask(self, name, line, check=True):
        """Runs a command on a node, again while an owner that just got a volume says so."""
        answers: list = []

        def is_answered():
            answers[:] = [self.nodes[name].run(line, check=False)]
            return "is not open yet; try again" not in answers[0].stderr

        self.wait(is_answered, f"that the volume of {line} is open")
        if check:
            self.assertEqual(answers[0].returncode, 0, f"on {name}: {line}: {answers[0].stdout}{answers[0].stderr}")
        return answers[0]

    def serve(self, name, line, words=None, more=""):
        """Starts the server of a node, its disks below /mnt."""
        line = self.line(line, {"/disk1": "/mnt/disk1", "/disk2": "/mnt/disk2"} | (words or {}))
        self.nodes[name].serve(f"{line} {SERVE_FLAGS} {more}")

    def join_line(self, name, number, ticket):
        words = {"TICKET": ticket}
        if number != 2:
            words |= {"two": name, "10.0.0.2:7400": f"10.0.0.{number}:7400", "192.168.1.2": f"192.168.1.{number}"}
        return self.line(self.JOIN, words)

    def ticket(self, asked="one"):
        ticket = self.on(asked, "cairn cluster token").stdout.strip()
        self.tickets.append(ticket)
        return ticket

    def add_node(self, name, number, asked="one", by_input=False, host=None):
        """Steps 2 and 3, for one more machine."""
        machine = self.network.machine(host or name, number)
        ticket = self.ticket(asked)
        if by_input:
            self.line("cairn cluster join -")
            made = machine.run(self.join_line(name, number, "-"), said=ticket)
        else:
            made = machine.run(self.join_line(name, number, ticket))
        self.assertIn(f"this node is {name} of cluster lab", made.stdout)
        self.nodes[name] = machine
        self.serve(name, self.SERVE, {"192.168.1.2:2049": f"192.168.1.{number}:2049"} if number != 2 else None)

    def form(self):
        """Steps 1 to 3."""
        self.nodes["one"] = one = self.network.machine("one", 1)
        made = one.run(self.line(
            "cairn cluster init --name lab --node one --internal 10.0.0.1:7400 --external 192.168.1.1 --cluster-dir /var/lib/cairn/cluster"
        ))
        self.assertIn("cluster lab is prepared in /var/lib/cairn/cluster, with this node as one", made.stdout)
        self.serve("one", self.SERVE_FIRST)
        self.add_node("two", 2)
        self.add_node("three", 3, asked="two", by_input=True)
        self.await_well()
        # "three for three or four": they are added by themselves.
        members = lambda: len(self.status()["etcd"]["members"])
        self.wait(lambda: members() == len(self.nodes), "three members of etcd")
        one.run(self.line("cairn export set main --client 192.168.1.0/24"))
        # Root of the client may write.
        one.run(self.line("cairn export set main --client 192.168.1.100 --squash none"))
        self.await_copies()

    def status(self, asked="one"):
        status = self.nodes[asked].json("cluster status")
        FIELDS.update(fields_of(status))
        return status

    def await_well(self, asked="one", seconds=MOVED_SECONDS_MAX):
        seen = [""]

        def is_well():
            done = self.nodes[asked].cairn("cluster status", check=False)
            seen[:] = [done.stdout + done.stderr]
            return "nothing needs to be done" in done.stdout

        try:
            self.wait(is_well, "that nothing needs to be done", seconds)
        except harness.Failure as failure:
            raise harness.Failure(f"{failure}: {seen[0]}") from failure

    def await_copies(self, asked="one"):
        """Waits until the loss of the owner costs no data and little time."""
        has = lambda: all(it["log_copies"] > 1 and it["state_copies"] > 0 for it in self.status(asked)["volumes"])
        self.wait(has, "copies of logs and metadata on other nodes", MOVED_SECONDS_MAX)

    def node(self, name, asked="one"):
        return next((node for node in self.status(asked)["nodes"] if node["name"] == name), None)

    def owner(self, volume="main", asked="one"):
        return next(found["owner"] for found in self.status(asked)["volumes"] if found["name"] == volume)

    def place(self, volume, name, asked="one"):
        """Has a volume owned by a node."""
        line = self.line("cairn volume move VOLUME --to NODE", {"VOLUME": volume, "NODE": name})
        self.nodes[asked].run(line)
        is_served = lambda: self.owner(volume, asked) == name and self.nodes[name].json(f"volume show {volume}")["serving"]
        self.wait(is_served, f"that {name} serves {volume}")

    def free(self, volume, asked="one"):
        """Lets a volume go anywhere again."""
        line = self.line("cairn volume move VOLUME --to NODE", {"VOLUME": volume, "--to NODE": ""})
        return self.nodes[asked].run(line).stdout

    def url(self, host, volume="main"):
        return f"nfs://{host}/{volume}?version=3"

    def at(self, host, done, volume="main"):
        """Does something on a mount of the client."""
        with self.client.inside(), libnfs.Mount(self.url(host, volume)) as mount:
            return done(mount)

    def written(self, host, path, data, volume="main"):
        """Writes a file once the volume can be mounted there, which other nodes hear of a moment later."""

        def is_written():
            with contextlib.suppress(OSError):
                self.at(host, lambda mount: mount.write_file(path, data), volume)
                return True

        self.wait(is_written, f"that {volume} can be written through {host}")

    def load_at(self, host, volume):
        with self.client.inside():
            return self.entered(Loads([self.url(host, volume)] * 2))

    # The steps.

    def test_01_three_machines_step_by_step(self):
        for name, machine in self.nodes.items():
            said = self.on(name, "cairn cluster status").stdout
            self.assertIn(f"answers   {name}", said)
            self.assertIn("3 of 3 members healthy, on ", said)
            self.assertIn("survives  the loss of 2 nodes more: no data lost; of 1 node more: all volumes served", said)
            for other in self.nodes.values():
                self.assertRegex(said, rf"{other.name} +alive +{other.internal}:7400 +{other.external} +/mnt/disk[12] \(ok\), /mnt/disk[12] \(ok\)")
            self.written(machine.external, f"/of-{name}", content(name, FILE_LEN_BYTES))
        for machine in self.nodes.values():
            for name in self.nodes:
                found = self.at(machine.external, lambda mount, name=name: mount.read_file(f"/of-{name}"))
                self.assertTrue(found == content(name, FILE_LEN_BYTES), f"/of-{name} through {machine.name}")
        # Root of others may not.
        visitor = self.network.machine("visitor", 99)
        with visitor.inside(), libnfs.Mount(self.url(self.nodes["three"].external)) as mount:
            self.assertEqual(len(mount.names("/")), len(self.nodes))
            with self.assertRaises(PermissionError):
                mount.write_file("/of-root", b"root")

    def test_02_what_is_refused(self):
        stranger = self.network.machine("stranger", 50)
        join = lambda ticket, words: stranger.run(self.line(self.JOIN, {"TICKET": ticket} | words), check=False)
        apart = {"two": "stranger", "10.0.0.2:7400": "10.0.0.50:7400"}
        self.refused(join(self.tickets[0], apart), "expired, or already used; create another with `cairn cluster token`")
        self.refused(join("hello", apart), "ticket", status=USAGE)
        self.refused(join(self.ticket(), {"10.0.0.2:7400": "10.0.0.50:7400", "two": "one"}), "one")
        self.refused(join(self.ticket(), {"two": "stranger", "10.0.0.2:7400": "10.0.0.1:7400"}), "10.0.0.1:7400")
        # None of this made it a member.
        self.assertIsNone(self.node("stranger"))

    def test_03_disks_through_any_node(self):
        page = "operations.md"
        stranger = self.network.machine("other", 51)
        stranger.serve(f"cairn serve --data /srv/new --listen-nfs 127.0.0.1:2049 {SERVE_FLAGS}")
        self.assertEqual(stranger.stop(), 0)
        folder = self.nodes["two"].path("/srv/new")
        stranger.path("/srv/new").rename(folder)
        add, brackets = "cairn disk add /srv/new [--wipe]", {"[--wipe]": ""}
        refused = self.on("two", add, brackets, page, check=False)
        self.refused(refused, "/srv/new", "--wipe")
        self.line("cairn disk add --wipe")
        self.on("two", add, {"[--wipe]": "--wipe"}, page)
        disks = lambda asked: self.nodes[asked].json("disk list")["disks"]
        new = next(disk for disk in disks("one") if disk["label"].endswith("/srv/new"))
        self.assertEqual(len(disks("three")), 7)
        self.assertIn("/srv/new", self.on("three", "cairn disk list", page=page).stdout)
        self.assertIn("two:/srv/new", self.on("one", "cairn status", page=page).stdout)

        def await_state(disk, *states):
            states_now = lambda: [found["state"] for found in disks("one") if found["id"] == disk]
            self.wait(lambda: states_now() == list(states), f"that the disk is {states}", MOVED_SECONDS_MAX)

        drain = "cairn disk drain DISK [--cancel]"
        # Another node's by the name that the list has, or by the first digits of its id.
        self.on("one", drain, {"DISK": "two:/srv/new", "[--cancel]": ""}, page)
        self.on("three", drain, {"DISK": new["id"][:8], "[--cancel]": "--cancel"}, page)
        await_state(new["id"], "ok")
        self.on("three", drain, {"DISK": new["id"], "[--cancel]": ""}, page)
        await_state(new["id"], "drained")
        # The node that is asked sees it empty before the owners of volumes have told the map.
        remove, words = "cairn disk remove DISK [--force]", {"DISK": new["id"], "[--force]": ""}
        removed = lambda: self.on("one", remove, words, page, check=False).returncode == 0
        self.wait(removed, "that the drained disk is removed")
        self.assertNotIn(new["id"], [disk["id"] for disk in disks("two")])
        # The folder should be empty: `wipe` leaves the copy of the map there, and the folder is refused as long as it is.
        self.assertLessEqual({path.name for path in folder.iterdir()}, {"cluster-map.json", "lock"})
        (folder / "cluster-map.json").unlink(missing_ok=True)
        # Metadata that an owner works with does not move from disk to disk in a cluster.
        self.place("main", "one")
        old = next(disk for disk in self.node("two")["disks"] if disk["label"].endswith("/mnt/disk2"))
        replace, words = "cairn disk replace DISK /srv/new [--wipe]", {"DISK": old["id"], "[--wipe]": ""}
        self.refused(self.on("one", replace, words, page, check=False), "belongs to node two, which is up", "ask that node")
        self.on("two", replace, words, page)
        # In a cluster an operator takes it out.
        removed = lambda: self.on("one", remove, {"DISK": old["id"], "[--force]": ""}, page, check=False).returncode == 0
        self.wait(removed, "that the disk that was replaced is removed", MOVED_SECONDS_MAX)
        self.await_well()

    def test_04_maintenance_and_upgrade(self):
        self.place("main", "three")
        self.on("one", "cairn node maintenance on three --for 2h")
        self.assertNotEqual(self.owner(), "three")
        self.assertGreater(self.node("three")["maintenance_seconds"], 7000)
        self.assertIn("in maintenance for", self.on("two", "cairn node list").stdout)
        self.nodes["three"].restart()
        self.on("two", "cairn node maintenance off three")
        self.await_well()
        said = self.on("two", "cairn node upgrade").stdout
        self.assertIn("One node may stop now. One at a time, in this order:", said)
        self.on("two", "cairn node maintenance on one")
        self.nodes["one"].stop()
        refused = self.on("two", "cairn node upgrade", check=False)
        self.refused(refused, "node one is down")
        self.nodes["one"].serve(self.nodes["one"].served)
        self.on("two", "cairn node maintenance off one")
        self.on("two", "cairn node upgrade --wait")

    def test_05_balance(self):
        for index in range(5):
            self.nodes["one"].cairn(f"volume create b{index}")
        self.free("main")
        owners = lambda: [volume["owner"] for volume in self.status()["volumes"]]
        said = self.on("one", "cairn node weight three 0").stdout
        self.assertIn("takes none", said)
        self.wait(lambda: "three" not in owners() and None not in owners(), "that three owns nothing")
        self.assertIn("takes none", self.on("two", "cairn cluster balance --dry-run").stdout)
        self.on("two", "cairn node weight three 50")
        self.assertEqual(self.node("three")["weight"], 50)
        planned = self.on("one", "cairn cluster balance --dry-run").stdout
        self.assertIn(" to three: ", planned)
        self.assertRegex(planned, r"three \d+ -> \d+ volumes")
        self.assertNotIn("three", owners(), "it was only said")
        made = self.on("one", "cairn cluster balance").stdout
        self.assertIn("moved     ", made)
        self.assertIn("three", owners())
        refused = self.nodes["one"].cairn("node weight three 1001", check=False)
        self.assertNotEqual(refused.returncode, 0)
        self.nodes["one"].cairn("node weight three 100")
        # An operator places a volume, and lets it go.
        self.place("b0", "two")
        self.assertIn("any node may own", self.free("b0", "three"))
        for index in range(5):
            self.nodes["two"].cairn(f"volume delete b{index} --yes")

    def test_06_an_address_that_follows_its_volume(self):
        address = "192.168.1.9"
        self.await_copies()
        self.on("one", "cairn volume address set main 192.168.1.9/24")
        holders = lambda: [name for name, machine in self.nodes.items() if machine.has_address(address)]
        first = self.owner()
        self.wait(lambda: holders() == [first], f"{address} on {first} alone")
        self.assertIn(f"{address}/24", self.on("two", "cairn cluster status").stdout)
        self.assertEqual(next(it for it in self.status()["volumes"] if it["name"] == "main")["address"]["address"], f"{address}/24")
        # libnfs asks the port mapper as Linux does with these options.
        self.line("mount -t nfs -o vers=3,nolock 192.168.1.9:/main /mnt")
        self.written(address, "/at-the-address", b"first")
        # Those that listen on all addresses are there, too.
        with self.client.inside():
            for port in (3260, 9000):
                socket.create_connection((address, port), timeout=SEEN_SECONDS_MAX).close()
        # Clients that stay connected meanwhile: test_addresses.
        for name in [other for other in self.nodes if other != first]:
            self.place("main", name)
            self.wait(lambda name=name: holders() == [name], f"{address} on {name} alone")
            self.assertEqual(self.at(address, lambda mount: mount.read_file("/at-the-address")), b"first")
        self.on("two", "cairn volume address remove main")
        self.wait(lambda: holders() == [], f"that nobody has {address}")
        self.fails()

    def fails(self):
        """Rows of what happens when nodes fail, seen by clients of another node."""
        for fail in ("kill_server", "power_off"):
            # One that nobody gave away lately: for 20 s a node leaves such a volume to others, also if its next owner is lost.
            volume = fail.replace("_", "-")
            self.nodes["one"].cairn(f"volume create {volume}")
            self.on("one", "cairn export set main --client 192.168.1.0/24", {"main": volume}, more="--squash none")
            lost = self.wait(lambda: self.owner(volume), f"an owner of {volume}")
            asked = next(name for name in self.nodes if name != lost)
            self.await_well(asked)
            self.await_copies(asked)
            load = self.load_at(self.nodes[asked].external, volume)
            load.forget_pauses()
            getattr(self.nodes[lost], fail)()
            load.await_progress()
            self.assertNotIn(self.owner(volume, asked), (lost, None))
            load.end()
            pause_seconds = load.pause_seconds()
            print(f"{fail} of the owner: pause of {pause_seconds:.1f} s", flush=True)
            self.nodes[lost].power_on()
            self.nodes[lost].serve(self.nodes[lost].served)
            self.await_well(asked)
            self.assertLess(pause_seconds, KILLED_PAUSE_SECONDS_MAX)
            verified = lambda mount: sum(one.verify(mount) for one in load.loads)
            self.assertGreater(self.at(self.nodes[lost].external, verified, volume), 0)
            self.nodes["one"].cairn(f"volume delete {volume} --yes --force")

    def test_07_snapshots_through_a_node_that_does_not_own_the_volume(self):
        page = "snapshots.md"
        for volume, name in (("data", "two"), ("log", "three")):
            self.nodes["one"].cairn(f"volume create {volume}")
            self.place(volume, name)
        self.on("one", "cairn snapshot create --group data,log before-upgrade", page=page)
        for volume in ("data", "log"):
            listed = self.nodes["one"].json(f"snapshot list {volume}")["snapshots"]
            self.assertEqual([snapshot["name"] for snapshot in listed], ["before-upgrade"])
        self.place("main", "two")
        host = self.nodes["three"].external
        report = content("report", FILE_LEN_BYTES)

        def fill(mount):
            for folder in ("/project", "/images"):
                mount.mkdir(folder)
            mount.write_file("/project/report.odt", report)
            mount.write_file("/images/base.qcow2", report)

        self.at(host, fill)
        run = lambda line, **words: self.on("one", line, page=page, **words)
        run("cairn snapshot create main before-upgrade")
        self.at(host, lambda mount: mount.write_file("/project/report.odt", b"spoiled"))
        for line in ("cairn snapshot list main", "cairn snapshot show main before-upgrade"):
            self.assertIn("before-upgrade", run(line).stdout)
        run("cairn snapshot list main", more="--space")
        self.assertEqual(self.at(host, lambda mount: mount.names("/project/.snapshot")), ["before-upgrade"])
        run("cairn snapshot restore main before-upgrade /project/report.odt")
        run("cairn snapshot restore main before-upgrade /project --to /project-old")
        run("cairn clone main /images/base.qcow2 /images/vm7.qcow2")
        run("cairn clone main /project /project-trial")
        for path in ("/project/report.odt", "/project-old/report.odt", "/project-trial/report.odt", "/images/vm7.qcow2"):
            self.assertTrue(self.at(host, lambda mount, path=path: mount.read_file(path)) == report, path)
        for name in ("monday", "tuesday"):
            run("cairn snapshot create main before-upgrade", words={"before-upgrade": name})
            self.at(host, lambda mount, name=name: mount.write_file(f"/project/after-{name}", b"1"))
        self.assertIn("+ file", run("cairn snapshot diff main monday tuesday").stdout)
        self.assertIn("/project/after-tuesday", run("cairn snapshot diff main monday").stdout)
        for schedule in ("hourly 24, daily 7, weekly 4", "hourly 24, work 10 (30 8,12,17 * * MON-FRI), daily 7 (30 2 * * *)"):
            run(f'cairn snapshot schedule main "{schedule}"')
            self.assertIn("hourly", run("cairn snapshot schedule main").stdout)
        run("cairn snapshot schedule main none")
        # In place only before there are clones of it.
        self.at(host, lambda mount: mount.write_file("/later", b"1"))
        run("cairn snapshot restore main before-upgrade --volume")
        gone = lambda: "later" not in self.at(host, lambda mount: mount.names("/"))
        self.wait(gone, "the volume as it was")
        run("cairn volume clone main test")
        run("cairn export set test --client 10.0.0.0/8", words={"10.0.0.0/8": "192.168.1.0/24"}, more="--squash none")
        self.written(self.nodes["three"].external, "/in-the-clone", b"1", "test")
        run("cairn volume clone main@monday test", words={"test": "test2"})
        # Only the owner tells, so far.
        self.assertIn("main@monday", self.on("two", "cairn volume list", page=page).stdout)
        run("cairn quota list", more="main")
        for clone in ("test", "test2"):
            run("cairn volume delete", more=f"{clone} --yes --force")
        run("cairn snapshot lock main before-upgrade")
        locked = self.on("one", "cairn snapshot delete main good", {"good": "before-upgrade"}, page, check=False)
        self.assertEqual(locked.returncode, REFUSED, locked.stderr)
        self.nodes["one"].cairn("snapshot unlock main before-upgrade")
        run("cairn snapshot rename main before-upgrade good")
        run("cairn snapshot delete main good")

    def test_08_luns_and_buckets_through_a_node_that_does_not_own_the_volume(self):
        page = "iscsi.md"
        run = lambda line, words=None, page=page, **more: self.on("one", line, words, page, **more)
        run("cairn volume create san --access-pattern random")
        self.place("san", "two")
        run("cairn lun create san/db --size 500GiB")
        run("cairn igroup create san/hosts --initiator iqn.1993-08.org.debian:01:abc")
        run("cairn lun map san/db --igroup hosts")
        secret = self.nodes["one"].path("/srv/secret")
        secret.write_text("a secret of a host")
        mutual = self.nodes["one"].path("/srv/mutual")
        mutual.write_text("one of the server's")
        secrets = "--secret-file /srv/secret --mutual-secret-file /srv/mutual"
        run("cairn initiator set san iqn.1993-08.org.debian:01:abc --chap-user host1 --mutual-user cairn", more=secrets)
        shown = run("cairn lun show san/db").stdout
        self.assertIn("iqn.", shown)
        # Every node is a portal of all targets.
        for machine in self.nodes.values():
            self.assertIn(f"{machine.external}:3260", shown)
        run("cairn iscsi sessions")
        run("cairn lun snapshot san/db before-upgrade")
        run("cairn lun clone san/db db-test --snapshot before-upgrade")
        run("cairn igroup create san/hosts --initiator iqn.1993-08.org.debian:01:abc", {"san/hosts": "san/test", "01:abc": "01:def"})
        run("cairn lun map san/db-test --igroup test")
        early = self.on("one", "cairn lun restore san/db --snapshot before-upgrade", page=page, check=False)
        self.assertEqual(early.returncode, REFUSED, early.stderr)
        for line in ("cairn lun offline san/db", "cairn lun restore san/db --snapshot before-upgrade", "cairn lun online san/db"):
            run(line)
        run("cairn lun resize san/db --size 1TiB")
        run("cairn volume set VOLUME --quota SIZE", {"VOLUME": "san", "SIZE": "2TiB"})
        mapped = run("cairn lun delete", more="san/db-test --yes", check=False)
        self.assertEqual(mapped.returncode, REFUSED, mapped.stderr)
        run("cairn lun delete", more="san/db-test --yes --force")
        for index, name in enumerate(self.nodes, start=1):
            self.nodes["one"].cairn(f"volume create v{index}")
            self.place(f"v{index}", name)
            self.ask("one", f"cairn lun create v{index}/data --size 1GiB")
        run("cairn snapshot create --group v1,v2,v3 before-upgrade")
        for index in range(1, 4):
            line = "cairn lun clone v1/data restored --snapshot before-upgrade"
            run(line, {"v1/data": f"v{index}/data"} if index > 1 else None)
        self.assertEqual(len(self.nodes["three"].json("lun list")["luns"]), 7)
        for volume in ("san", "v1", "v2", "v3"):
            self.nodes["one"].cairn(f"volume delete {volume} --yes")
        self.buckets()

    def buckets(self):
        page = "s3.md"
        run = lambda line, words=None, **more: self.on("one", line, words, page, **more)
        self.place("main", "three")
        run("cairn bucket create photos")
        run("cairn bucket create archive --path main/old/archive")
        key = json.loads(run("cairn s3 key create --uid 1000 --gid 1000", more="--json").stdout)["id"]
        self.assertIn(key, self.nodes["two"].run(self.line("cairn s3 key list", page=page)).stdout)
        self.assertIn("photos", run("cairn bucket show photos").stdout)
        run("cairn s3 key revoke ID", {"ID": key})
        for name in ("photos", "archive"):
            run("cairn bucket delete NAME", {"NAME": name})
        # A directory that was a bucket becomes one again.
        again = lambda line, words: self.on("one", line, words, "snapshots.md")
        again("cairn bucket create NAME --path VOLUME/DIR", {"NAME": "trial", "VOLUME/DIR": "main/project-trial"})
        again("cairn bucket delete NAME --keep", {"NAME": "trial"})

    def test_09_another_machine_takes_the_place_of_one_that_broke(self):
        three = self.nodes["three"]
        disks = self.node("three")["disks"]
        three.power_off()
        self.wait(lambda: not self.node("three")["alive"], "that three is away")
        eight = self.network.machine("eight", 8)
        line = "cairn cluster join TICKET --takes-over three --internal 10.0.0.8:7400 --external 192.168.1.8 --cluster-dir /var/lib/cairn/cluster"
        joined = eight.run(self.line(line, {"TICKET": self.ticket()}))
        self.assertIn("this node is three of cluster lab", joined.stdout)
        shutil.rmtree(eight.path("/mnt"))
        three.path("/mnt").rename(eight.path("/mnt"))
        self.nodes["three"] = eight
        self.serve("three", self.SERVE_MOVED)
        self.await_well()
        found = self.node("three")
        self.assertEqual({disk["id"] for disk in found["disks"]}, {disk["id"] for disk in disks})
        self.assertEqual((found["internal"], found["external"]), ("10.0.0.8:7400", "192.168.1.8"))
        eight.restart()

    def test_10_grow_and_shrink(self):
        refused = self.on("one", "cairn node drain three", check=False)
        self.refused(refused, "2 nodes would stay, and its protection needs 3 at least")
        self.add_node("four", 4)
        self.await_well()
        members = lambda: sorted(member["name"] for member in self.status()["etcd"]["members"])
        self.wait(lambda: len(members()) == 3, "three members of etcd")
        self.place("main", "three")
        said = self.on("four", "cairn node drain three").stdout
        self.assertIn("three drains", said)
        early = self.on("two", "cairn node remove three", check=False)
        self.assertEqual(early.returncode, REFUSED, early.stdout)
        self.await_drained("three")
        self.assertIn("three drains: it is empty; `cairn node remove three`", self.on("two", "cairn node list").stdout)
        status = self.status()
        self.assertNotIn("three", [*members(), *(volume["owner"] for volume in status["volumes"])])
        self.on("two", "cairn node remove three")
        three = self.nodes.pop("three")
        # No failure, after which systemd would start it again.
        self.assertEqual(three.server.wait(SEEN_SECONDS_MAX), 0)
        again = three.run(f"{three.served} --listen-admin 127.0.0.1:0", check=False)
        # Why depends on how much of its disks was emptied before it ended.
        self.assertNotEqual(again.returncode, 0, again.stdout)
        self.assertIsNone(self.node("three"))
        self.await_well()

        # Another machine of that name, and one that replaces it.
        self.add_node("three", 33, host="again")
        self.add_node("seven", 7, asked="two")
        self.await_well()
        self.on("one", "cairn node replace three seven")
        replaced = self.node("three")["drain"]
        self.assertEqual(replaced["replaced_by"], "seven")
        self.on("two", "cairn node drain OLD --cancel", {"OLD": "three"})
        self.assertNotIn("drain", self.node("three"))
        self.await_well()
        self.on("one", "cairn node replace three seven")
        self.wait(lambda: self.node("three") is None, "that three was removed by itself", MOVED_SECONDS_MAX)
        three = self.nodes.pop("three")
        three.server.wait(SEEN_SECONDS_MAX)
        self.await_well()
        self.written(self.nodes["seven"].external, "/at-the-end", b"1")

    def await_drained(self, name):
        """Waits until a node is drained, and looks at what is said meanwhile."""

        def is_drained():
            listed = self.line("cairn node list --json")
            nodes = json.loads(self.nodes["one"].run(listed).stdout)
            FIELDS.update(fields_of(nodes, "nodes"))
            return next(node for node in nodes if node["name"] == name)["drain"]["done"]

        self.wait(is_drained, f"that {name} is drained", MOVED_SECONDS_MAX)

    def test_11_fields_of_the_status(self):
        """Those of the table were seen above."""
        for node in self.nodes:
            self.status(node)
        page = PAGES["cluster.md"]
        for header in ("field (`--json`)", "`cairn node list --json`"):
            for cell in page.rows(header):
                for field in names_of(cell):
                    known = field in FIELDS or f"nodes[].{field}" in FIELDS
                    with self.subTest(field):
                        self.assertTrue(known or field in FIELDS_ELSEWHERE, f"no status had {field}")


class OwnEtcd(Follower):
    """An etcd that others run comes back as it was earlier."""

    page = "recovery.md"

    def test_a_map_that_went_back_is_accepted_when_somebody_says_so(self):
        cluster = self.cluster(2, netns="no", external_etcd=True)
        members = [f"etcd{index}" for index in range(1, 4)]
        cluster.cairn("node1", "volume", "create", "kept")
        cluster.cairn("node1", "export", "set", "main", "--client", "0.0.0.0/0", "--squash", "none")
        data = content("kept", FILE_LEN_BYTES)
        with libnfs.Mount(cluster.url("node1")) as mount:
            mount.write_file("/kept", data)
        # A snapshot of its own: what members have that stand still for a moment. No log of a volume changes after it.
        saved = self.scratch / "snapshot"
        for member in members:
            cluster.pause(member)
            shutil.copytree(cluster.folder / member / "etcd", saved / member)
            cluster.resume(member)
        # What a node has seen is in its folder.
        seen = lambda: (cluster.folder / "node1" / "cluster" / "high-water.json").read_text()
        before = seen()
        cluster.cairn("node1", "class", "create", "lost", "--iops", "1000")
        self.wait(lambda: seen() != before, "that node1 has seen the change")
        cluster.kill(*cluster.names, *members)
        for member in members:
            shutil.rmtree(cluster.folder / member / "etcd")
            shutil.copytree(saved / member, cluster.folder / member / "etcd")
        cluster.start_nodes(*members)
        refused = cluster.run("start", "node1", check=False)
        self.assertNotEqual(refused.returncode, 0)
        self.assertIn("accept this one with `cairn cluster accept-restored`", (cluster.folder / "node1" / "log").read_text())
        line = self.line("cairn cluster accept-restored")
        argv = [str(harness.cairn_path()), *line.split()[1:], "--cluster-dir", str(cluster.folder / "node1" / "cluster")]
        accepted = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SEEN_SECONDS_MAX)
        self.assertEqual(accepted.returncode, 0, accepted.stderr)
        # For all: nobody says it on the other node.
        cluster.start_nodes(*cluster.names)
        for node in cluster.names:
            cluster.await_serving(node)
            with libnfs.Mount(cluster.url(node)) as mount:
                self.assertTrue(mount.read_file("/kept") == data, f"through {node}")
        self.assertEqual({volume["name"] for volume in cluster.status()["volumes"]}, {"main", "kept"})
        self.assertNotIn("lost", cluster.cairn("node2", "class", "list").stdout)


@needs_namespaces
class BreakIt(Follower):
    """The commands of `cairn dev-cluster`, one after the other, with a `heal` after each that breaks something."""

    LINES = (
        "cairn dev-cluster kill node2 node3",
        "cairn dev-cluster kill node1 --etcd",
        "cairn dev-cluster pause node2",
        "cairn dev-cluster partition node2",
        "cairn dev-cluster partition node2 --one-way from --peer node1 --clients",
        "cairn dev-cluster slow node2 --delay 20ms --rate 10mbit --loss 1%",
        "cairn dev-cluster stop node2",
    )

    def test_each_command_is_undone_by_heal(self):
        cluster = self.cluster(3)
        load = self.load(cluster)
        run = lambda line, words=None, **how: cluster.run(*self.line(line, words).split()[2:], **how)
        for line in self.LINES:
            done = run(line, check=False)
            # A kernel without sch_netem has no delay, and is told so.
            if "slow" in line and done.returncode:
                self.assertIn("sch_netem", done.stderr)
                done = cluster.run(*line.replace("--delay 20ms ", "").split()[2:])
            self.assertEqual(done.returncode, 0, f"{line}: {done.stderr}")
            lives = {name: machine["life"] for name, machine in cluster.machines().items()}
            if line.split()[2] in ("kill", "stop") and "--etcd" not in line:
                self.assertEqual(lives["node2"], "stopped", line)
            run("cairn dev-cluster heal")
            load.await_progress()
            cluster.await_etcd()
        run("cairn dev-cluster add")
        cluster.nodes += 1
        cluster.await_serving("node4")
        self.assertIn("node4", run("cairn dev-cluster status [--json]", {"[--json]": ""}).stdout)
        shown = json.loads(run("cairn dev-cluster status [--json]", {"[--json]": "--json"}).stdout)
        self.assertEqual({machine["name"] for machine in shown["machines"]}, set(cluster.names))
        load.end()
        self.assertGreater(load.verify(cluster.url("node4")), 0)


class Whole(unittest.TestCase):
    """Comes last: whether all of it was done."""

    def test_every_command_of_the_guide_was_run(self):
        if not {f"{each.__name__}.{name}" for each in (Walk, OwnEtcd, BreakIt) for name in dir(each) if name.startswith("test_")} <= RAN:
            self.skipTest("only some of the tests ran")
        for page, known in PAGES.items():
            done = {line for of, line in DONE if of == page} | set(ELSEWHERE[page])
            for line in known.commands():
                self.assertIn(line, done, f"docs/guide/{page} has a command that nobody runs")
            # A sentence may name a command without what follows it, or one of another page.
            anywhere = {line for _, line in DONE} | {line for lines in ELSEWHERE.values() for line in lines}
            for line in known.inline():
                words = line.split()
                is_known = any(words == other.split()[: len(words)] for other in anywhere)
                self.assertTrue(is_known, f"docs/guide/{page} names a command that nobody runs: {line}")
