"""LUNs in a cluster: every node is a portal, the owner's is optimised, and its loss is a change of paths."""

import json
import time

from cluster.world import ClusterTest
from lib import harness, iscsi, lunhost
from lib.worlds import content

INITIATOR = "iqn.2025-11.test:host"
STRANGER = "iqn.2025-11.test:stranger"
LUN_BYTES = 32 << 20
OPTIMISED, NON_OPTIMISED, UNAVAILABLE = 0, 1, 3
PUBLISHED_SECONDS_MAX = 30
COPIES_SECONDS_MAX = 90
CHANGES_COUNT = 30
LOAD_SECONDS_MAX = 120
# The lease is over, another node takes over, and initiators log in again. The issue wants 5 s on a machine of one's own.
PAUSE_SECONDS_MAX = 15
EXCLUSIVE = 3


class Paced(lunhost.Host):
    """A host that notes its longest wait for an answer."""

    pause_seconds = 0.0

    def ask(self, command):
        begun = time.monotonic()
        answer = super().ask(command)
        self.pause_seconds = max(self.pause_seconds, time.monotonic() - begun)
        return answer


class Iscsi(ClusterTest):
    def lun_cluster(self, nodes=3):
        cluster = self.cluster(nodes, netns="no")
        self.owner = cluster.owner()
        run = lambda *words: cluster.cairn(self.owner, *words)
        run("lun", "create", "main/disk", "--size", str(LUN_BYTES))
        run("igroup", "create", "main/hosts", "--initiator", INITIATOR, "--os", "linux")
        run("lun", "map", "main/disk", "--igroup", "hosts")
        shown = lambda: json.loads(run("lun", "show", "main/disk", "--json").stdout)
        harness.wait_until(lambda: len(shown()["portals"]) == nodes, PUBLISHED_SECONDS_MAX, "the portals of all nodes")
        self.target = shown()["target"]
        # Until then the loss of the first node is the loss of the log.
        copies = lambda kind: min(volume[kind] or 0 for volume in cluster.status()["volumes"])
        has_copies = lambda: copies("log_copies") >= 2 and copies("state_copies") >= 1
        harness.wait_until(has_copies, COPIES_SECONDS_MAX, "copies of log and state on other nodes")
        return cluster

    def session(self, cluster, node, initiator=INITIATOR):
        session = iscsi.Session(("127.0.0.1", cluster.iscsi_port(node)), initiator, self.target)
        session.clear_attentions()
        return session

    def test_every_node_is_a_portal(self):
        cluster = self.lun_cluster()
        for node in cluster.names:
            with iscsi.Session(("127.0.0.1", cluster.iscsi_port(node)), INITIATOR) as discovery:
                told = discovery.targets().split("\0")
            self.assertIn(f"TargetName={self.target}", told, node)
            addresses = [text.removeprefix("TargetAddress=") for text in told if text.startswith("TargetAddress=")]
            self.assertEqual({address.rpartition(",")[2] for address in addresses}, {"1", "2", "3"})
            wanted = {f"127.0.0.1:{cluster.iscsi_port(name)}" for name in cluster.names}
            self.assertEqual({address.rpartition(",")[0] for address in addresses}, wanted)
            # A name that is not known is answered like one whose secret is wrong, whatever it asks for. One that is known learns
            # that there is no such target, and not "come again later".
            other = self.target + "x"
            for initiator, target, status in (
                (STRANGER, None, (2, 1)),
                (STRANGER, self.target, (2, 1)),
                (STRANGER, other, (2, 1)),
                (INITIATOR, other, (2, 3)),
            ):
                with self.assertRaises(iscsi.LoginRefused) as refused:
                    iscsi.Session(("127.0.0.1", cluster.iscsi_port(node)), initiator, target)
                self.assertEqual(refused.exception.args, status, (node, initiator, target))
        groups = {}
        for index, node in enumerate(cluster.names):
            with self.session(cluster, node) as session:
                groups[node] = session.port_group()
                states = session.port_groups()
                optimised = [group for group, state in states.items() if state == OPTIMISED]
                self.assertEqual(len(states), 3)
                if node == self.owner:
                    self.assertEqual(optimised, [groups[node]])
                else:
                    self.assertEqual(states[groups[node]], NON_OPTIMISED)
                session.write(index << 20, content(node, 64 << 10))
        self.assertEqual(len(set(groups.values())), 3)
        for node in cluster.names:
            with self.session(cluster, node) as session:
                for index, name in enumerate(cluster.names):
                    self.assertEqual(session.read(index << 20, 64 << 10), content(name, 64 << 10))
        # A session has connections through one group of portals, also when they are passed on.
        node, other = cluster.others(self.owner)
        address = lambda name: ("127.0.0.1", cluster.iscsi_port(name))
        with iscsi.Session(address(node), INITIATOR, self.target, connections_max=4) as one:
            one.clear_attentions()
            with iscsi.Session(address(node), INITIATOR, self.target, joins=one, connection=1) as two:
                two.write(0, content("two", 64 << 10))
                self.assertEqual(one.read(0, 64 << 10), content("two", 64 << 10))
                for elsewhere in (self.owner, other):
                    with self.assertRaises(iscsi.LoginRefused) as refused:
                        iscsi.Session(address(elsewhere), INITIATOR, self.target, joins=one, connection=2)
                    self.assertEqual(refused.exception.args, (2, 0x0A))
        # What the owner tells of its LUN is the same through all.
        shown = json.loads(cluster.cairn(self.owner, "iscsi", "sessions", "--json").stdout)["sessions"]
        self.assertLessEqual({session["portal_group"] for session in shown}, {1, 2, 3})

    def test_secrets_are_asked_for_at_every_portal(self):
        cluster = self.lun_cluster()
        secret = self.scratch / "secret"
        secret.write_text("a secret of a host")
        words = ["initiator", "set", "main", INITIATOR, "--chap-user", "host", "--secret-file", str(secret)]
        cluster.cairn(self.owner, *words)
        for node in cluster.names:
            address = ("127.0.0.1", cluster.iscsi_port(node))
            for target in (self.target, None):
                for chap in (None, ("host", "a secret that is not")):
                    with self.assertRaises(iscsi.LoginRefused, msg=f"{node} {target} {chap}"):
                        iscsi.Session(address, INITIATOR, target, chap=chap)
            with iscsi.Session(address, INITIATOR, chap=("host", "a secret of a host")) as discovery:
                self.assertIn(self.target, discovery.targets())
            iscsi.Session(address, INITIATOR, self.target, chap=("host", "a secret of a host")).stream.close()
        self.assertNotIn("a secret of a host", cluster.logs(1000))

    def test_the_loss_of_the_owner_is_a_change_of_paths(self):
        cluster = self.lun_cluster()
        others = cluster.others(self.owner)
        part = LUN_BYTES // len(others)
        hosts = [
            Paced(cluster.iscsi_port(node), index, 7, self.target, INITIATOR, index * part, part)
            for index, node in enumerate(others)
        ]
        with self.session(cluster, others[0]) as session:
            # APTPL is not asked for: the volume keeps it all the same, since no power is lost.
            session.register(0x1234)
            group = session.port_group()
            isid = session.isid
        for host in hosts:
            host.start()
        moved = lambda count: harness.wait_until(
            lambda: all(host.stable_count >= count or host.failure for host in hosts), LOAD_SECONDS_MAX, "changes by all hosts"
        )
        moved(CHANGES_COUNT)
        cluster.kill(self.owner)
        counts = [host.stable_count for host in hosts]
        moved(max(counts) + CHANGES_COUNT)
        for host in hosts:
            host.ended.set()
        for host in hosts:
            host.join(LOAD_SECONDS_MAX)
            self.assertIsNone(host.failure)
            self.assertGreaterEqual(host.logins_count, 2)
        pauses = [host.pause_seconds for host in hosts]
        print(f"\nhosts waited {', '.join(f'{pause:.1f} s' for pause in pauses)} at most", flush=True)
        self.assertLess(max(pauses), PAUSE_SECONDS_MAX)
        for host in hosts:
            host.verify()
        owner = cluster.owner(without=[self.owner])
        self.assertIn(owner, others)
        with self.session(cluster, owner) as session:
            states = session.port_groups()
            self.assertEqual(states[session.port_group()], OPTIMISED)
            self.assertEqual(sorted(states.values()), [OPTIMISED, NON_OPTIMISED, UNAVAILABLE])
            self.assertEqual(session.reservation_keys(), [0x1234])
        # The path that was registered is the one that may reserve: the same initiator's session through the same node.
        session = self.session_with(cluster, others[0], isid)
        self.assertEqual(session.port_group(), group)
        session.reserve(0x1234, EXCLUSIVE)
        self.assertEqual(session.reservation(), (0x1234, EXCLUSIVE))
        session.stream.close()
        # The node that is back is a portal as before.
        cluster.start_nodes(self.owner)
        harness.wait_until(lambda: self.has_path(cluster, self.owner), LOAD_SECONDS_MAX, "the path of the node that is back")

    def session_with(self, cluster, node, isid):
        session = iscsi.Session(("127.0.0.1", cluster.iscsi_port(node)), INITIATOR, self.target, isid=isid)
        session.clear_attentions()
        return session

    def has_path(self, cluster, node):
        try:
            with self.session(cluster, node) as session:
                return UNAVAILABLE not in session.port_groups().values()
        except (OSError, iscsi.LoginRefused):
            return False

    def test_a_volume_that_moves_takes_its_sessions_along(self):
        cluster = self.lun_cluster()
        to = cluster.others(self.owner)[0]
        part = LUN_BYTES // 3
        hosts = [
            Paced(cluster.iscsi_port(node), index, 9, self.target, INITIATOR, index * part // 4096 * 4096, part // 4096 * 4096)
            for index, node in enumerate(cluster.names)
        ]
        for host in hosts:
            host.start()
        moved = lambda count: harness.wait_until(
            lambda: all(host.stable_count >= count or host.failure for host in hosts), LOAD_SECONDS_MAX, "changes by all hosts"
        )
        moved(CHANGES_COUNT)
        cluster.cairn(self.owner, "volume", "move", "main", "--to", to)
        harness.wait_until(lambda: cluster.owner() == to, LOAD_SECONDS_MAX, "that the other node owns the volume")
        moved(max(host.stable_count for host in hosts) + CHANGES_COUNT)
        for host in hosts:
            host.ended.set()
        for host in hosts:
            host.join(LOAD_SECONDS_MAX)
            self.assertIsNone(host.failure)
        for host in hosts:
            host.verify()
        with self.session(cluster, to) as session:
            self.assertEqual(session.port_groups()[session.port_group()], OPTIMISED)
