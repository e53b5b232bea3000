"""A model of calls that nodes pass on to the owner of a volume, small enough to try every order of its steps.

It has the rules of docs/design/forwarding.md that concern terms and the map, as `forward` keeps them. A client writes 1, waits for the
reply, then writes 2, all through one address that moves. Node F has the address first, then G. Owner O (or F itself) owns the volume
first, then P. Any process may stop for any time, so a call may wait in F's socket, in F, on a stream, or in the owner, and go on
much later. No history may have 1 over 2.

    forward_model.py            all orders, some seconds
    forward_model.py --bugs     the same without each rule: each must be needed, or stand behind others that are named, a minute

Rules:
 term      a connection belongs to the term in which it was accepted, and a call keeps that term however often it is sent
 refuse    the owner takes no call of a term that it knows to have ended
 end       a node that knows that its term ended does no calls of its connections of that term by itself
 catch_up  a call brings the map revision of the node that sends it; the owner first learns the map up to it
 drop      once the owner learns that a term ended, it begins no call of it that it has taken
 hold      what a term that ended has begun is done before any call that came with that news is begun
 hold_all  so is, or is dropped, what was taken of it and not begun
 address   a node gives its addresses up before it begins a new term
 early     an address moves after the term of its holder has ended
 unaware   who takes an address knows that revision
 epoch     the log refuses the change of an owner that is none any more

Not in it: how old bytes may be, standstills, clients that turn by themselves.
"""

import sys
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

RULES = ("term", "catch_up", "hold", "address", "early", "unaware", "epoch")
# Rules that are not needed as long as others hold, and those. In the program `refuse` is: what ends calls of a term looks at those that
# are there then.
SHADOWED = {"refuse": ("drop",), "drop": ("hold_all", "end"), "end": ("drop",), "hold_all": ("drop",)}
STATE_COUNT_MAX = 3_000_000


class Call(NamedTuple):
    """A write: its number, the node that passes it on and the term there, and the process that has it now."""

    write: int
    node: str
    term: int
    at: str
    number: int = 0  # the revision that it brings, or the epoch that it was begun in


class State(NamedTuple):
    rev: int = 1
    # At which revision the term of F ended, the address moved, the volume moved; 0: not yet.
    term_ended: int = 0
    address_moved: int = 0
    volume_moved: int = 0
    second: bool = False  # F has its second term
    knows: tuple[int, ...] = (1, 1, 1, 1)  # of F, G, O, P
    socket_f: tuple[tuple[int, int], ...] = ()
    held_f: tuple[tuple[int, int], ...] = ()
    socket_g: tuple[int, ...] = ()
    held_g: tuple[int, ...] = ()
    sent: frozenset[Call] = frozenset()
    taken: tuple[Call, ...] = ()
    begun: frozenset[Call] = frozenset()
    log: tuple[int, ...] = ()
    stage: int = 1  # the client's write that is outstanding; 3: all are answered
    asked: frozenset[tuple[int, str]] = frozenset()

    def view(self, node: str) -> int:
        return self.knows["FGOP".index(node)]

    def learn(self, node: str, revision: int) -> "State":
        at = "FGOP".index(node)
        known = max(revision, self.knows[at])
        return self._replace(knows=self.knows[:at] + (known,) + self.knows[at + 1 :])

    def has_ended(self, node: str, term: int, view: int) -> bool:
        return node == "F" and term == 1 and 0 < self.term_ended <= view

    def is_bad(self) -> bool:
        return 2 in self.log and 1 in self.log[self.log.index(2) :]


def without(items: tuple, index: int) -> tuple:
    return items[:index] + items[index + 1 :]


class Model:
    def __init__(self, broken: frozenset[str], owner_is_f: bool) -> None:
        self.broken = broken
        self.first = "F" if owner_is_f else "O"

    def has(self, rule: str) -> bool:
        return rule not in self.broken

    def successors(self, s: State) -> Iterator[State]:
        yield from self.of_map(s)
        yield from self.of_client(s)
        yield from self.of_nodes(s)
        yield from self.of_owners(s)

    def of_map(self, s: State) -> Iterator[State]:
        after = s._replace(rev=s.rev + 1)
        if not s.term_ended:
            yield after._replace(term_ended=after.rev)
        if not s.address_moved and (s.term_ended or not self.has("early")):
            moved = after._replace(address_moved=after.rev)
            yield moved.learn("G", after.rev) if self.has("unaware") else moved
        if not s.volume_moved and (s.term_ended or self.first != "F"):
            yield after._replace(volume_moved=after.rev).learn("P", after.rev)
        if s.term_ended and not s.second:
            yield after._replace(second=True).learn("F", after.rev)
        for node in "FGOP":
            if s.view(node) < s.rev and not (node == "O" and self.first == "F"):
                yield s.learn(node, s.rev)

    def of_client(self, s: State) -> Iterator[State]:
        holder = "G" if s.address_moved else "F"
        if s.stage == 3 or (s.stage, holder) in s.asked:
            return
        asked = s._replace(asked=s.asked | {(s.stage, holder)})
        if holder == "G":
            yield asked._replace(socket_g=(*s.socket_g, s.stage))
        elif not s.second or not self.has("address"):
            yield asked._replace(socket_f=(*s.socket_f, (s.stage, 2 if s.second else 1)))

    def of_nodes(self, s: State) -> Iterator[State]:
        if s.socket_f:
            yield s._replace(socket_f=s.socket_f[1:], held_f=(*s.held_f, s.socket_f[0]))
        if s.socket_g:
            yield s._replace(socket_g=s.socket_g[1:], held_g=(*s.held_g, s.socket_g[0]))
        for index, (write, accepted) in enumerate(s.held_f):
            gone = s._replace(held_f=without(s.held_f, index))
            term = accepted
            if not self.has("term"):
                term = 2 if s.second else 1
            elif s.second and accepted == 1:
                yield gone
                continue
            to = "P" if 0 < s.volume_moved <= s.view("F") else self.first
            call = Call(write, "F", term, to, s.view("F"))
            if to != "F":
                yield gone._replace(sent=s.sent | {call})
            elif self.has("end") and s.has_ended("F", term, s.view("F")):
                yield gone
            else:
                yield gone._replace(taken=(*s.taken, call))
        for index, write in enumerate(s.held_g):
            gone = s._replace(held_g=without(s.held_g, index))
            to = "P" if 0 < s.volume_moved <= s.view("G") else self.first
            yield gone._replace(sent=s.sent | {Call(write, "G", 1, to, s.view("G"))})

    def of_owners(self, s: State) -> Iterator[State]:
        for call in s.sent:
            arrived = s._replace(sent=s.sent - {call})
            if self.has("catch_up"):
                arrived = arrived.learn(call.at, call.number)
            if arrived.has_ended(call.node, call.term, arrived.view(call.at)) and self.has("refuse"):
                yield arrived
                continue
            yield arrived._replace(taken=(*s.taken, call))
            yield self.held_again(arrived, call)  # the stream broke
        for index, call in enumerate(s.taken):
            view = s.view(call.at)
            left = s._replace(taken=without(s.taken, index))
            if s.has_ended(call.node, call.term, view):
                if self.has("drop"):
                    yield left
                    continue
            elif self.must_wait(s, call.at, view):
                continue
            epoch = 1 if call.at == self.first else 2
            yield left._replace(begun=s.begun | {call._replace(number=epoch)})
        for call in s.begun:
            left = s._replace(begun=s.begun - {call})
            if call.number == 1 and s.volume_moved and self.has("epoch"):
                yield self.held_again(left, call).learn(call.node, s.volume_moved)
            elif call.number == 1 or s.volume_moved:
                done = left._replace(log=(*s.log, call.write))
                listens = "G" if any(holder == "G" for _, holder in s.asked) else "F"
                if s.stage == call.write and call.node == listens:
                    yield done._replace(stage=s.stage + 1)
                yield done  # the reply is lost

    def must_wait(self, s: State, at: str, view: int) -> bool:
        older = list(s.begun) if self.has("hold") else []
        older += s.taken if self.has("hold_all") else ()
        return any(it.at == at and s.has_ended(it.node, it.term, view) for it in older)

    def held_again(self, s: State, call: Call) -> State:
        if call.node == "F":
            return s._replace(held_f=(*s.held_f, (call.write, call.term)))
        return s._replace(held_g=(*s.held_g, call.write))


def is_small(s: State) -> bool:
    return len(s.log) <= 3 and len(s.held_f) <= 2 and len(s.held_g) <= 2 and len(s.taken) <= 3


def walk(broken: tuple[str, ...], owner_is_f: bool) -> tuple[int, list[State]]:
    """How many states there are, and the way to a bad one, if there is one."""
    model = Model(frozenset(broken), owner_is_f)
    seen: dict[State, State | None] = {State(): None}
    todo = deque(seen)
    while todo:
        state = todo.popleft()
        if state.is_bad():
            way: list[State] = []
            at: State | None = state
            while at is not None:
                way.append(at)
                at = seen[at]
            return len(seen), way[::-1]
        for after in model.successors(state):
            if after not in seen and is_small(after):
                seen[after] = state
                todo.append(after)
        if len(seen) > STATE_COUNT_MAX:
            raise SystemExit(f"more than {STATE_COUNT_MAX} states without {broken}")
    return len(seen), []


def show(way: list[State]) -> None:
    for before, after in zip(way, way[1:], strict=False):
        pairs = zip(before._asdict().items(), after, strict=True)
        print("   ", {name: now for (name, was), now in pairs if was != now})


def look(broken: tuple[str, ...], is_found: bool) -> bool:
    """Walks with either owner; whether there is a bad history in one of them as expected."""
    found = False
    for owner_is_f in (False, True):
        count, way = walk(broken, owner_is_f)
        name = f"without {' and '.join(broken)}" if broken else "all rules"
        print(f"{name}, owner {'F' if owner_is_f else 'O'}: {count} states, {'1 over 2' if way else 'holds'}", flush=True)
        found = found or bool(way)
        if way and (not is_found or "-v" in sys.argv):
            show(way)
    if found != is_found:
        print("    which is wrong")
    return found == is_found


def main() -> int:
    good = look((), False)
    if "--bugs" in sys.argv:
        for rule in RULES:
            good = look((rule,), True) and good
        for rule, others in SHADOWED.items():
            good = look((rule,), False) and good
            for other in others:
                good = look((rule, other), True) and good
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
