"""What the random faults are judged by: wrong bytes are seen as such, right ones are not, and a seed says what happens."""

import unittest

from cluster import nemesis
from lib.cells import CELL_LEN_BYTES, Ledger, Objects, Whole, Wrong
from lib.roaming import Pause

RUN, CELLS = 7, 4
NODES = [f"node{index}" for index in range(1, 7)]
NOTHING = bytes(CELL_LEN_BYTES)
SEEDS = range(20)


class Cells(unittest.TestCase):
    def setUp(self):
        self.objects = Objects(RUN)
        self.ledger, self.other = Ledger(self.objects, "file", CELLS), Ledger(self.objects, "other", CELLS)
        # Two writes of all cells are acknowledged, a third is under way.
        self.writes = [NOTHING * CELLS]
        for _ in range(2):
            counter, data = self.ledger.begin(0, CELLS)
            self.writes.append(data)
            self.ledger.acknowledge(0, CELLS, counter)
        self.writes.append(self.ledger.begin(0, CELLS)[1])

    def sees(self, data):
        self.ledger.check(0, data, self.ledger.before(0, CELLS), "a client")

    def test_what_may_be_seen(self):
        half = CELLS // 2 * CELL_LEN_BYTES
        for data in (self.writes[2], self.writes[3][:half] + self.writes[2][half:], self.writes[3]):
            self.sees(data)

    def test_what_must_not_be_seen(self):
        first = self.writes[2][:CELL_LEN_BYTES]
        foreign = self.other.begin(0, CELLS)[1]
        rest = self.writes[2][CELL_LEN_BYTES:]
        for what, data in (
            ("what was overwritten", self.writes[1]),
            ("nothing", self.writes[0]),
            ("an early end", self.writes[2][:-CELL_LEN_BYTES]),
            ("another file", foreign),
            ("another place", rest[:CELL_LEN_BYTES] + rest),
            ("a flipped bit", bytes([first[0] ^ 1]) + self.writes[2][1:]),
            ("a flipped bit at the end", self.writes[2][:-1] + bytes([self.writes[2][-1] ^ 1])),
            ("what nobody sent", self.objects.data(self.ledger.number, 0, CELLS, 9)),
            ("another run", Objects(RUN + 1).data(self.ledger.number, 0, CELLS, 2)),
        ):
            with self.subTest(what), self.assertRaises(Wrong):
                self.sees(data)

    def test_what_was_seen_is_not_taken_back(self):
        self.sees(self.writes[3])
        with self.assertRaises(Wrong):
            self.sees(self.writes[2])

    def test_what_is_in_memory_may_be_taken_back(self):
        self.ledger.begin_unstable()
        self.sees(self.writes[3])
        self.sees(self.writes[2])
        with self.assertRaises(Wrong):
            self.sees(self.writes[1])

    def test_objects_are_replaced_as_a_whole(self):
        whole = Whole(self.objects, "object")
        sees = lambda data: whole.check(data, whole.before(), "a client")
        sees(None)
        first, one = whole.begin(2)
        whole.acknowledge(first)
        second, two = whole.begin(3)
        sees(one)
        for what, data in (
            ("nothing", None), ("no bytes", b""), ("parts of two", one[:CELL_LEN_BYTES] + two[CELL_LEN_BYTES:]),
            ("half", two[:-CELL_LEN_BYTES]),
        ):
            with self.subTest(what), self.assertRaises(Wrong):
                sees(data)
        sees(two)
        with self.assertRaises(Wrong):
            sees(one)
        removed, _ = whole.begin(None)
        sees(two)
        whole.acknowledge(removed)
        self.assertFalse(whole.is_there())
        sees(None)
        for data in (one, two):
            with self.assertRaises(Wrong):
                sees(data)


class Plans(unittest.TestCase):
    def rounds(self, seed, count):
        plan = nemesis.Plan(seed, NODES, nemesis.KINDS)
        return [plan.next() for _ in range(count)]

    def test_a_seed_says_what_happens(self):
        for seed in SEEDS:
            self.assertEqual(self.rounds(seed, 40), self.rounds(seed, 40))
        self.assertNotEqual(self.rounds(1, 5), self.rounds(2, 5))

    def test_each_kind_comes_and_no_more_than_two_nodes_are_disturbed(self):
        for seed in SEEDS:
            rounds = self.rounds(seed, len(nemesis.KINDS))
            self.assertEqual({faults[0].kind for faults, _ in rounds}, set(nemesis.KINDS))
            for faults, _ in rounds:
                struck = [node for fault in faults for node in fault.struck()]
                self.assertLessEqual(len(struck), nemesis.MOST if faults[0].kind == "most_hang" else 2, faults)
                self.assertEqual(len(struck), len(set(struck)), faults)


class Judged(unittest.TestCase):
    def judge(self, *rounds):
        judge = nemesis.Judge(None, print)
        judge.rounds = list(rounds)
        return judge

    def round(self, kinds_and_nodes, begun, healed):
        return nemesis.Round([nemesis.Fault(kind, [node]) for kind, node in kinds_and_nodes], begun, healed=healed)

    def pause(self, volume, begun, ended):
        return Pause(begun, ended, "a client", "nfs", volume, ())

    def test_a_pause_counts_where_enough_nodes_are_there(self):
        one = self.judge(self.round([("kill", "node1")], 100, 120))
        two = self.judge(self.round([("kill", "node1"), ("cut", "node2")], 100, 120))
        most = self.judge(nemesis.Round([nemesis.Fault("most_hang", NODES[:4])], 100, healed=120))
        cases = (
            ("one node less than it does without", one, "mirror", 105, 119, 14),
            ("two nodes, and it does without one", two, "mirror", 105, 119, 0),
            ("two nodes, and it goes on for too long", two, "mirror", 105, 135, 15),
            ("two nodes, as many as it does without", two, "main", 105, 119, 14),
            ("most nodes", most, "triple", 105, 125, 5),
            ("before anything happened", two, "mirror", 80, 90, 10),
            ("begun before that", two, "mirror", 95, 125, 5),
        )
        for what, judge, volume, begun, ended, wanted in cases:
            with self.subTest(what):
                self.assertEqual(judge.counted_seconds(self.pause(volume, begun, ended)), wanted)
