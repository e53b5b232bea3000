"""A change that a client sends again, because its owner was lost before the reply came, is answered as the first time."""

import struct

from cluster.world import ClusterTest
from lib import harness
from lib.rawnfs import NFS, NOENT, OK, Peer, opaque

EXIST = 17
TAKEOVER_SECONDS_MAX = 60
FIFO = 7


def guarded_create(peer, directory, name):
    arguments = opaque(directory) + opaque(name.encode()) + struct.pack(">8I", 1, 1, 0o644, 0, 0, 0, 0, 0)
    answer = peer.call(NFS, 3, 8, arguments)
    status = answer.u32()
    assert status or answer.u32() == 1, "a file that was made has a handle"
    return status, answer.opaque() if status == OK else None


def symlink(peer, directory, name, target):
    arguments = opaque(directory) + opaque(name.encode()) + bytes(24) + opaque(target.encode())
    return peer.call(NFS, 3, 10, arguments).u32()


def mkfifo(peer, directory, name):
    arguments = opaque(directory) + opaque(name.encode()) + struct.pack(">I", FIFO) + bytes(24)
    return peer.call(NFS, 3, 11, arguments).u32()


class Repeats(ClusterTest):
    def changes(self, root, file):
        """One of each kind, in this order; none could be done a second time."""
        return [
            ("create", lambda peer: guarded_create(peer, root, "made")),
            ("mkdir", lambda peer: peer.mkdir(root, "made.dir")),
            ("symlink", lambda peer: symlink(peer, root, "made.link", "made")),
            ("mknod", lambda peer: mkfifo(peer, root, "made.fifo")),
            ("link", lambda peer: peer.link(file, root, "linked")),
            ("rename", lambda peer: peer.rename(root, "before", root, "after")),
            ("remove", lambda peer: peer.remove(root, "gone")),
            ("rmdir", lambda peer: peer.rmdir(root, "gone.dir")),
        ]

    def test_each_change_is_answered_by_the_next_owner_as_by_the_first(self):
        cluster = self.cluster(3)
        owner = cluster.owner()
        others = cluster.others(owner)
        # Once as a client of the owner, once of a node that passes calls on.
        for through in (owner, others[0]):
            self.check(cluster, through)

    def test_programs_see_no_error_of_a_change_that_was_done(self):
        cluster = self.cluster(3)
        load = self.load(cluster)
        self.kill_owners_in_turn(cluster, load)
        load.end()
        self.assertGreater(load.verify(cluster.url()), 0)
        # libnfs sends again what it has no reply to.
        self.assertEqual([one.repeated_count for one in load.loads], [0, 0])

    def check(self, cluster, through):
        with Peer(cluster.nfs_port(through)) as peer:
            status, root = peer.mount("/main")
            self.assertEqual(status, OK)
            for name in ("before", "gone", "kept"):
                self.assertEqual(peer.create(root, name)[0], OK)
            status, file = peer.lookup(root, "kept")
            self.assertEqual((status, peer.mkdir(root, "gone.dir")[0]), (OK, OK))
            changes = self.changes(root, file)
            first = {}
            for name, change in changes:
                answer = change(peer)
                first[name] = (peer.xid, answer)
                self.assertEqual(answer if isinstance(answer, int) else answer[0], OK, name)
            last = peer.xid
        # To the client it is the same whether the owner was lost before it sent the replies, or the network lost them.
        owner = cluster.owner()
        cluster.kill(owner)
        new = cluster.owner(without=[owner])
        next_node = cluster.others(owner, new)[0]
        cluster.await_serving(next_node)
        with Peer(cluster.nfs_port(next_node)) as peer:
            for name, change in changes:
                xid, answer = first[name]
                peer.xid = xid - 1
                self.assertEqual(change(peer), answer, name)
            # It is the request that is known, not what it asks for.
            peer.xid = last + 1000
            self.assertEqual(peer.remove(root, "gone"), NOENT)
            self.assertEqual(guarded_create(peer, root, "made")[0], EXIST)
            status, names = peer.names(root)
            self.assertEqual(status, OK)
            listed = sorted(name.decode() if isinstance(name, bytes) else name for name in names)
            want = ["after", "kept", "linked", "made", "made.dir", "made.fifo", "made.link"]
            self.assertEqual(listed, want)
            for name in ("after", "kept", "linked", "made", "made.fifo", "made.link"):
                self.assertEqual(peer.remove(root, name), OK, name)
            self.assertEqual(peer.rmdir(root, "made.dir"), OK)
        cluster.heal()
        harness.wait_until(
            lambda: all(node["alive"] for node in cluster.status()["nodes"]), TAKEOVER_SECONDS_MAX, "all nodes",
        )
