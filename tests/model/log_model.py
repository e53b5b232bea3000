"""A model of the log of one volume on several nodes, small enough to try every order of its steps.

It has what docs/design/cluster.md says of the log: ensembles, promises of disks, takeovers that carry what is retained into a
new file or keep it in place, re-forming, copies of the state for which the log is cut, more copies of what is sealed, transactions of unknown
outcome, files that are used again with another volume's records in them. And owners that only read, where no disk has room: a proposal of
that page, which the program does not have. Every state is checked:

  kept       what was acknowledged is in the log that an owner begins to serve
  one        no two values are acknowledged at one position
  own        nothing that another volume wrote is in that log
  reachable  as long as each part that the map names has a node that lives, a takeover that hears all that live finds
             everything that was acknowledged

An owner may go on at any later step, whoever took the volume meanwhile; a request that it sent takes effect at any later
time, if the disk's promise allows that. A disk answers for what is durable. A node that is lost is lost with all it has.

    log_model.py                          the bounds of CI, some seconds
    log_model.py --bugs                   the same with a mistake each: all must be found
    log_model.py --nodes 4 --m 2 ...      other bounds

A file is used again as it is: what was in it stays behind what is written. In the worst case that are records of another
volume at the same positions, in a file of the same number, so that only the use of the file, a random number, tells them apart.

Not in it: shards of data, the clock of leases, damage, more than one group under way.
"""

import argparse
import sys
import time
from collections.abc import Iterator
from itertools import combinations
from typing import NamedTuple

OPEN = 0  # the end of the ensemble that is written to
OTHER = 99  # what another volume wrote

# Each with bounds in which it shows.
BUGS = {
    "answer-before-seal": ("a group is acknowledged before the transaction that seals", "reforms=1"),
    "seal-beyond": ("an ensemble is sealed beyond what all its members have", "reforms=1"),
    "no-fence": ("a takeover reads the open ensemble and fences nobody", ""),
    "no-member": ("a takeover goes on though no member of the open ensemble answered", ""),
    "no-copy": ("a takeover names disks to which it copied nothing", ""),
    "serve-early": ("a takeover serves before its transaction", "terms=3"),
    "epoch-unchecked": ("a disk takes appends of any epoch", ""),
    "promise-forgotten": ("a disk forgets its promise when it restarts", ""),
    "map-unchecked": ("transactions compare neither epoch nor revision", "reforms=1"),
    "cut-beyond-state": ("the log is cut for a state that only the owner has", "ships=1"),
    "state-named-first": ("the map names a copy of the state before it is there", "ships=1"),
    "wider-named-first": ("the map names another copy of a sealed range before it is there", "reforms=1 widens=1 losses=2 nodes=4"),
    "late-member-named": ("a sealed ensemble names a disk that lacks its end", "reforms=1 losses=2 nodes=4"),
    "unknown-is-done": ("a transaction of unknown outcome counts as made", "reforms=1 timeouts=1"),
    "kept-unasked": ("a takeover keeps a part in place on disks that did not promise, or lack its end", "keeps=1 losses=2 nodes=4"),
    "kept-unsynced": (
        "a takeover keeps a part on disks that promised, and does not ask them once more",
        "keeps=1 nodes=4 m=2 losses=2 writes=1",
    ),
    "look-unheard": ("an owner that only reads keeps members in the list that it did not hear", "looks=1 terms=3 writes=1"),
    "look-short": ("an owner that only reads keeps members in the list that lack the end", "looks=1 terms=3 writes=1"),
    "look-early": ("an owner that only reads shows what it found before its transaction", "looks=1 terms=3 nodes=4 m=2 losses=2 writes=1"),
    "number-again": ("numbers of log files come back", "terms=3"),
    "use-unchecked": ("what was in a file before it was used again counts", ""),
    "header-late": ("a file takes records before the header of its use is durable", ""),
}
BOUNDS = {"nodes": 3, "m": 1, "terms": 2, "writes": 2, "reforms": 0, "losses": 1, "ships": 0, "widens": 0, "timeouts": 0, "keeps": 0, "looks": 0}
# What CI walks through: each name of a bound and its value.
CI = [
    "reforms=1",
    "ships=1",
    "terms=3 writes=1",
    "reforms=1 timeouts=1 writes=1",
    "reforms=1 widens=1 losses=2 nodes=4 writes=1 terms=2",
    "nodes=4 m=2 losses=2 writes=1",
    "keeps=1 terms=3 writes=1",
    "keeps=1 reforms=1 writes=1",
    "keeps=1 nodes=4 m=2 losses=2 writes=1",
    "looks=1 terms=3 writes=1",
    "looks=1 reforms=1 timeouts=1 writes=1",
    "looks=1 nodes=4 m=2 losses=2 writes=1",
]

Values = tuple[int, ...]


class Part(NamedTuple):
    """An ensemble as the map has it: positions from 1, `to` included, the nodes as bits."""

    number: int
    start: int
    to: int
    nodes: int


class State(NamedTuple):
    """A copy of the state: what is applied, and the nodes that have it."""

    values: Values
    nodes: int


class Disk(NamedTuple):
    lives: bool
    promise: int
    files: tuple[tuple[int, Values], ...]
    state: Values | None
    free: Values = ()  # in the file that is used next
    under: tuple[tuple[int, Values], ...] = ()  # what was in files before they were used for these
    headless: tuple[int, ...] = ()  # files whose header is not durable yet


class Map(NamedTuple):
    epoch: int
    revision: int
    mark: tuple[int, int]
    parts: tuple[Part, ...]
    state: State


class Owner(NamedTuple):
    phase: str  # fence, carry, serve, reform, ship, widen, over
    revision: int
    parts: tuple[Part, ...]
    state: State
    values: Values
    told: int  # up to here acknowledged, or recovered
    plan: tuple[Part, ...] = ()
    plan_state: State | None = None
    answered: int = 0
    got: Values = ()
    counter: int = 0
    hidden: tuple[Part, ...] = ()  # files that nothing is appended to any more, but what was sent may arrive


class World(NamedTuple):
    map: Map
    disks: tuple[Disk, ...]
    owners: tuple[Owner, ...]
    late: tuple[tuple[int, int, Map], ...]
    told: Values
    left: tuple[tuple[str, int], ...]


def bits(nodes: int) -> list[int]:
    return [index for index in range(nodes.bit_length()) if nodes >> index & 1]


def put(items: tuple, index: int, item: object) -> tuple:
    return (*items[:index], item, *items[index + 1 :])


def agree(one: Values, other: Values) -> bool:
    return all(a == b for a, b in zip(one, other, strict=False))


def file_of(disk: Disk, number: int) -> Values | None:
    return dict(disk.files).get(number)


class Model:
    def __init__(self, bounds: dict[str, int], bug: str | None) -> None:
        self.bounds, self.bug = bounds, bug

    def begin(self) -> World:
        count, copies = self.bounds["nodes"], self.bounds["m"] + 1
        nodes = (1 << copies) - 1
        part, state = Part(self.number(1, 0), 1, OPEN, nodes), State((), 0)
        blank = Disk(True, 1, (), None, free=(OTHER, OTHER))
        made = self.with_file(blank, part.number, (), 1)._replace(headless=())
        disks = tuple(made if index < copies else blank for index in range(count))
        names = ("terms", "writes", "reforms", "losses", "ships", "widens", "timeouts", "keeps", "looks")
        left = {name: self.bounds[name] for name in names} | {"terms": self.bounds["terms"] - 1}
        return World(
            Map(1, 1, (0, 0), (part,), state),
            disks,
            (Owner("serve", 1, (part,), state, (), 0),),
            (),
            (),
            tuple(sorted(left.items())),
        )

    def with_file(self, disk: Disk, number: int, values: Values, epoch: int) -> Disk:
        """The file has these values, and with them it is made if it is not there: all of it durable at once, the header first."""
        if file_of(disk, number) is None:
            disk = disk._replace(free=(), under=tuple(sorted([*disk.under, (number, disk.free)])))
            if self.bug == "header-late":
                disk = disk._replace(headless=tuple(sorted([*disk.headless, number])))
        files = tuple(sorted([*(f for f in disk.files if f[0] != number), (number, values)]))
        return disk._replace(files=files, promise=max(disk.promise, epoch))

    def read(self, disk: Disk, number: int) -> Values | None:
        """What counts of a file for who reads it."""
        values = file_of(disk, number)
        if values is None or number in disk.headless:
            return None
        under = dict(disk.under).get(number, ())
        return values + under[len(values) :] if self.bug == "use-unchecked" else values

    def number(self, term: int, counter: int) -> int:
        return counter + 1 if self.bug == "number-again" else term * 10 + counter

    def takes(self, disk: Disk, term: int) -> bool:
        return disk.lives and (disk.promise <= term or self.bug == "epoch-unchecked")

    def spend(self, world: World, name: str) -> World | None:
        left = dict(world.left)
        if left[name] == 0:
            return None
        left[name] -= 1
        return world._replace(left=tuple(sorted(left.items())))

    def choices(self, world: World) -> list[int]:
        """Sets of nodes for a file: M+1, or as many as live, two at least."""
        lives = [index for index, disk in enumerate(world.disks) if disk.lives]
        count = min(self.bounds["m"] + 1, len(lives))
        return [sum(1 << i for i in some) for some in combinations(lives, count)] if count >= 2 else []

    # What a takeover makes of what it hears

    def sealed(self, world: World, part: Part) -> Values | None:
        """A sealed range as nodes that live have it."""
        best: Values = ()
        for index in bits(part.nodes):
            disk = world.disks[index]
            values = self.read(disk, part.number) if disk.lives else None
            best = max(best, values or (), key=len)
        length = part.to - part.start + 1
        return best[:length] if len(best) >= length else None

    def recovered(self, world: World, parts: tuple[Part, ...], state: State, opened: Values | None) -> Values | None:
        """All values, or None: wait."""
        if opened is None:
            if self.bug != "no-member":
                return None
            opened = ()
        values: Values = ()
        if state.values:
            holders = [world.disks[i].state for i in bits(state.nodes) if world.disks[i].lives]
            whole = [held for held in holders if held is not None and len(held) >= len(state.values)]
            if not whole:
                return None
            values = whole[0][: len(state.values)]
        for part in parts[:-1]:
            found = self.sealed(world, part)
            if found is None:
                return None
            values += found[max(len(values) - part.start + 1, 0) :]
        return values + opened[max(len(values) - parts[-1].start + 1, 0) :]

    def unreachable(self, world: World) -> str | None:
        parts, state = world.map.parts, world.map.state
        opened: Values | None = None
        for index in bits(parts[-1].nodes):
            disk = world.disks[index]
            values = self.read(disk, parts[-1].number) if disk.lives else None
            if values is not None:
                opened = max(opened or (), values, key=len)
        if opened is None:
            return "reachable: no member of the open ensemble has its file"
        values = self.recovered(world, parts, state, opened)
        if values is None:
            return "reachable: a part that the map names is not on the nodes that it names"
        return self.lost(world, values)

    def lost(self, world: World, values: Values) -> str | None:
        if values[: len(world.told)] != world.told:
            return f"kept: {world.told} was acknowledged, {values} is found"
        if OTHER in values:
            return f"own: {values} is found, with what another volume wrote"
        return None

    # Steps

    def steps(self, world: World) -> Iterator[tuple[str, World, str | None]]:
        yield from self.nodes_change(world)
        if (spent := self.spend(world, "terms")) is not None:
            epoch = world.map.epoch + 1
            owner = Owner("fence", world.map.revision, world.map.parts, world.map.state, (), 0)
            after = spent._replace(map=world.map._replace(epoch=epoch), owners=(*world.owners, owner))
            yield f"owner {epoch} takes the volume", after, None
        for term, owner in enumerate(world.owners, 1):
            yield from getattr(self, owner.phase)(world, term, owner)
            yield from self.arrive(world, term, owner)

    def nodes_change(self, world: World) -> Iterator[tuple[str, World, str | None]]:
        lives = sum(disk.lives << index for index, disk in enumerate(world.disks))
        named = [part.nodes for part in world.map.parts]
        named += [world.map.state.nodes] if world.map.state.values else []
        # Nor may all go that a part is about to be named on.
        named += [part.nodes for owner in world.owners for part in owner.plan]
        named += [owner.plan_state.nodes for owner in world.owners if owner.plan_state is not None]
        for index in bits(lives):
            rest = lives & ~(1 << index)
            # So many losses are promised to be survived: each part keeps one of the nodes that the map names.
            allowed = len(bits(rest)) >= 2 and all(nodes & rest for nodes in named)
            spent = self.spend(world, "losses") if allowed else None
            if spent is not None:
                lost = Disk(False, 0, world.disks[index].files, None)
                yield f"node {index} is lost", spent._replace(disks=put(world.disks, index, lost)), None
            if self.bug == "promise-forgotten" and world.disks[index].promise:
                forgot = world.disks[index]._replace(promise=0)
                yield f"node {index} restarts", world._replace(disks=put(world.disks, index, forgot)), None
            for number in world.disks[index].headless:
                headless = tuple(other for other in world.disks[index].headless if other != number)
                headed = world.disks[index]._replace(headless=headless)
                yield f"node {index} has the header of {number}", self.on(world, index, headed), None
        for at, (term, revision, changed) in enumerate(world.late):
            if self.may_change(world, term, revision):
                after = world._replace(map=changed, late=world.late[:at] + world.late[at + 1 :])
                yield f"etcd makes the late transaction of owner {term}", after, None

    def may_change(self, world: World, term: int, revision: int) -> bool:
        return self.bug == "map-unchecked" or (world.map.epoch == term and world.map.revision == revision)

    def set(self, world: World, term: int, owner: Owner) -> World:
        return world._replace(owners=put(world.owners, term - 1, owner))

    def on(self, world: World, index: int, disk: Disk) -> World:
        return world._replace(disks=put(world.disks, index, disk))

    def transact(
        self, world: World, term: int, owner: Owner, done: Owner, what: str
    ) -> Iterator[tuple[str, World, str | None]]:
        """One transaction puts the plan into the map; whoever does not hear of it sends it again."""
        state = owner.plan_state or owner.state
        mark = (term, owner.counter)
        changed = Map(world.map.epoch, owner.revision + 1, mark, owner.plan, state)
        made = done._replace(
            phase="serve", revision=owner.revision + 1, parts=owner.plan, state=state, plan=(), plan_state=None
        )
        bad = self.lost(world, made.values) if owner.phase == "carry" else None
        if world.map.mark == mark:
            yield f"{what} of owner {term} was made", self.set(world, term, made), bad
        elif self.may_change(world, term, owner.revision):
            after = self.set(world, term, made)._replace(map=changed)
            yield f"{what} of owner {term}", after, bad
            spent = self.spend(world, "timeouts")
            if spent is not None:
                late = spent._replace(late=(*world.late, (term, owner.revision, changed)))
                if self.bug == "unknown-is-done":
                    late = self.set(late, term, made)
                yield f"{what} of owner {term} has no answer", late, None
        else:
            yield f"{what} of owner {term} is refused", self.set(world, term, self.ended(owner)), None

    def ended(self, owner: Owner) -> Owner:
        return owner._replace(phase="over", plan=(), plan_state=None, answered=0, got=())

    def over(self, world: World, term: int, owner: Owner) -> Iterator[tuple[str, World, str | None]]:
        return iter(())

    def fence(self, world: World, term: int, owner: Owner) -> Iterator[tuple[str, World, str | None]]:
        opened = owner.parts[-1]
        for index in bits(opened.nodes & ~owner.answered):
            disk = world.disks[index]
            values = self.read(disk, opened.number)
            if not self.takes(disk, term) or values is None:
                continue
            if self.bug != "no-fence":
                disk = disk._replace(promise=max(disk.promise, term))
            heard = owner._replace(answered=owner.answered | 1 << index, got=max(owner.got, values, key=len))
            yield f"node {index} promises {term}", self.on(self.set(world, term, heard), index, disk), None
        values = self.recovered(world, owner.parts, owner.state, owner.got if owner.answered else None)
        if values is None:
            return
        applied = len(owner.state.values)
        for nodes in self.choices(world):
            part = Part(self.number(term, 0), applied + 1, OPEN, nodes)
            after = owner._replace(phase="carry", values=values, told=len(values), plan=(part,), answered=0, got=())
            yield f"owner {term} has {values} and chooses {bits(nodes)}", self.set(world, term, after), None
        yield from self.keep(world, term, owner, values)
        yield from self.begin_look(world, term, owner, values)

    def whole(self, world: World, owner: Owner, length: int) -> int:
        """Members that promised, have all of the open part, and sync it now: one that was lost since it promised does not."""
        number = owner.parts[-1].number
        lives = lambda disk: disk.lives or self.bug == "kept-unsynced"
        return sum(
            1 << index
            for index in bits(owner.answered)
            if lives(world.disks[index]) and len(self.read(world.disks[index], number) or ()) == length
        )

    def keep(self, world: World, term: int, owner: Owner, values: Values) -> Iterator[tuple[str, World, str | None]]:
        """What is retained stays where it is, and a new file is opened behind it: disks have no room for more."""
        opened, end = owner.parts[-1], len(values)
        length = end - opened.start + 1
        whole = self.whole(world, owner, length)
        holders = opened.nodes if self.bug == "kept-unasked" else whole
        # Never fewer than the least number.
        if length and len(bits(holders)) < 2:
            return
        if (spent := self.spend(world, "keeps")) is None:
            return
        kept = (opened._replace(to=end, nodes=holders),) if length else ()
        for nodes in self.choices(world):
            part = Part(self.number(term, 0), end + 1, OPEN, nodes)
            plan = (*owner.parts[:-1], *kept, part)
            after = owner._replace(phase="carry", values=values, told=end, plan=plan, answered=0, got=())
            yield f"owner {term} has {values}, keeps it and goes on on {bits(nodes)}", self.set(spent, term, after), None

    def begin_look(self, world: World, term: int, owner: Owner, values: Values) -> Iterator[tuple[str, World, str | None]]:
        """No disk has room for a file: the open part stays as it is, and the list names only those of its members that have all of it."""
        opened, end = owner.parts[-1], len(values)
        length = end - opened.start + 1
        named = {"look-unheard": opened.nodes, "look-short": owner.answered}
        nodes = named.get(self.bug or "", self.whole(world, owner, length))
        # Never fewer than the least number.
        if len(bits(nodes)) < 2 or (spent := self.spend(world, "looks")) is None:
            return
        plan = (*owner.parts[:-1], opened._replace(nodes=nodes))
        after = owner._replace(phase="narrow", values=values, told=end, plan=plan, answered=0, got=())
        begun = self.set(spent, term, after)
        yield f"owner {term} has {values}, writes nothing and names {bits(nodes)} alone", begun, None
        if self.bug == "look-early":
            yield f"owner {term} shows {values} before its transaction", self.shown(begun, values), None

    def shown(self, world: World, values: Values) -> World:
        """What a reader has seen may be lost no more than what was acknowledged."""
        return world._replace(told=max(values, world.told, key=len))

    def narrow(self, world: World, term: int, owner: Owner) -> Iterator[tuple[str, World, str | None]]:
        for label, after, bad in self.transact(world, term, owner, owner, "the shorter list"):
            made = after.owners[term - 1]
            if made.phase == "serve":
                bad = bad or self.lost(world, made.values)
                after = self.shown(self.set(after, term, made._replace(phase="look")), made.values)
            yield label, after, bad

    def look(self, world: World, term: int, owner: Owner) -> Iterator[tuple[str, World, str | None]]:
        """It answers reads alone. Where room came it takes the volume anew, in a later term."""
        return iter(())

    def carry(self, world: World, term: int, owner: Owner) -> Iterator[tuple[str, World, str | None]]:
        part = owner.plan[-1]
        missing = [i for i in bits(part.nodes) if file_of(world.disks[i], part.number) is None]
        values = () if self.bug == "no-copy" else owner.values[part.start - 1 :]
        for index in missing:
            if self.takes(world.disks[index], term):
                disk = self.with_file(world.disks[index], part.number, values, term)
                yield f"owner {term} copies to node {index}", self.on(world, index, disk), None
        if not missing or self.bug == "serve-early":
            yield from self.transact(world, term, owner, owner, "the takeover")
        if self.bug == "serve-early" and not missing:
            yield from self.serve(world, term, owner._replace(parts=owner.plan, phase="carry"))

    def serve(self, world: World, term: int, owner: Owner) -> Iterator[tuple[str, World, str | None]]:
        end, part = len(owner.values), owner.parts[-1]
        if end == owner.told and (spent := self.spend(world, "writes")) is not None:
            after = owner._replace(values=(*owner.values, term))
            yield f"owner {term} sends record {end + 1}", self.set(spent, term, after), None
        if end > owner.told and self.is_on_all(world, part, end):
            yield self.tell(world, term, owner)
        if owner.phase != "serve":
            return
        if end > owner.told and (spent := self.spend(world, "reforms")) is not None:
            for nodes in self.choices(world):
                if nodes == part.nodes:
                    continue
                plan = self.reformed(owner, term, nodes)
                hidden = (*owner.hidden, part)
                after = owner._replace(phase="reform", plan=plan, counter=owner.counter + 1, hidden=hidden)
                yield f"owner {term} goes on on {bits(nodes)}", self.set(spent, term, after), None
        if end == owner.told > len(owner.state.values):
            yield from self.begin_ship(world, term, owner)
        yield from self.begin_widen(world, term, owner)

    def is_on_all(self, world: World, part: Part, position: int) -> bool:
        files = (file_of(world.disks[i], part.number) for i in bits(part.nodes))
        return all(len(values or ()) > position - part.start for values in files)

    def tell(self, world: World, term: int, owner: Owner) -> tuple[str, World, str | None]:
        values = owner.values
        bad = None
        if not agree(values, world.told) or any(
            not agree(values, later.values) for later in world.owners[term:] if later.phase not in ("fence", "carry", "narrow", "over")
        ):
            bad = f"one: {values} is acknowledged, {world.told} was, or a later owner has something else"
        after = self.set(world, term, owner._replace(told=len(values)))
        told = max(values, world.told, key=len)
        return f"owner {term} acknowledges record {len(values)}", after._replace(told=told), bad

    def reformed(self, owner: Owner, term: int, nodes: int) -> tuple[Part, ...]:
        part = owner.parts[-1]
        to = len(owner.values) if self.bug == "seal-beyond" else owner.told
        members = part.nodes
        if self.bug == "late-member-named":
            # As if a disk that came later had all of it.
            members |= nodes
        ended = (part._replace(to=to, nodes=members),) if to >= part.start else ()
        return (*owner.parts[:-1], *ended, Part(self.number(term, owner.counter + 1), to + 1, OPEN, nodes))

    def reform(self, world: World, term: int, owner: Owner) -> Iterator[tuple[str, World, str | None]]:
        part = owner.plan[-1]
        missing = [i for i in bits(part.nodes) if file_of(world.disks[i], part.number) is None]
        for index in missing:
            if self.takes(world.disks[index], term):
                disk = self.with_file(world.disks[index], part.number, owner.values[part.start - 1 :], term)
                yield f"owner {term} sends its group to node {index} again", self.on(world, index, disk), None
        if missing:
            return
        if self.bug == "answer-before-seal":
            yield self.tell(world, term, owner)
        yield from self.transact(world, term, owner, owner, "the seal")

    def begin_ship(self, world: World, term: int, owner: Owner) -> Iterator[tuple[str, World, str | None]]:
        spent = self.spend(world, "ships")
        if spent is None:
            return
        for nodes in self.choices(world):
            state = State(owner.values[: owner.told], nodes)
            kept = tuple(part for part in owner.parts[:-1] if part.to > owner.told)
            plan = (*kept, owner.parts[-1]._replace(start=owner.parts[-1].start))
            after = owner._replace(phase="ship", plan=plan, plan_state=state, counter=owner.counter + 1)
            yield f"owner {term} puts its state on {bits(nodes)}", self.set(spent, term, after), None

    def ship(self, world: World, term: int, owner: Owner) -> Iterator[tuple[str, World, str | None]]:
        state = owner.plan_state
        assert state is not None
        missing = [i for i in bits(state.nodes) if len(world.disks[i].state or ()) < len(state.values)]
        for index in missing:
            if self.takes(world.disks[index], term):
                disk = world.disks[index]._replace(state=state.values, promise=max(term, world.disks[index].promise))
                yield f"node {index} has the state of owner {term}", self.on(world, index, disk), None
        if not missing or self.bug in ("state-named-first", "cut-beyond-state"):
            yield from self.transact(world, term, owner, owner, "the copy of the state")

    def begin_widen(self, world: World, term: int, owner: Owner) -> Iterator[tuple[str, World, str | None]]:
        for at, part in enumerate(owner.parts[:-1]):
            lives = [i for i in bits(part.nodes) if world.disks[i].lives]
            if len(lives) > self.bounds["m"] or (spent := self.spend(world, "widens")) is None:
                continue
            for index, disk in enumerate(world.disks):
                if disk.lives and not part.nodes >> index & 1:
                    wider = part._replace(nodes=part.nodes | 1 << index)
                    after = owner._replace(phase="widen", plan=put(owner.parts, at, wider), counter=owner.counter + 1)
                    yield f"owner {term} wants a copy of {part.number} on {index}", self.set(spent, term, after), None

    def widen(self, world: World, term: int, owner: Owner) -> Iterator[tuple[str, World, str | None]]:
        old, new = next(pair for pair in zip(owner.parts, owner.plan, strict=True) if pair[0] != pair[1])
        (index,) = bits(new.nodes & ~old.nodes)
        length = old.to - old.start + 1
        # What the disk has of it was not named: it is made anew.
        is_there = file_of(world.disks[index], old.number) == owner.values[old.start - 1 : old.to]
        values = self.sealed(world, old)
        if not is_there and values is not None and self.takes(world.disks[index], term):
            disk = self.with_file(world.disks[index], old.number, values[:length], term)
            yield f"node {index} has a copy of {old.number}", self.on(world, index, disk), None
        if is_there or self.bug == "wider-named-first":
            yield from self.transact(world, term, owner, owner, "another copy")

    def arrive(self, world: World, term: int, owner: Owner) -> Iterator[tuple[str, World, str | None]]:
        """What was sent is appended, now or later; a disk appends at the end of its file only."""
        sent = owner.hidden
        if owner.phase in ("serve", "ship", "widen") and owner.parts:
            sent = (*sent, owner.parts[-1])
        for part in sent:
            for index in bits(part.nodes):
                disk = world.disks[index]
                values = file_of(disk, part.number)
                if values is None or not self.takes(disk, term):
                    continue
                position = part.start + len(values)
                if position <= len(owner.values):
                    grown = self.with_file(disk, part.number, (*values, owner.values[position - 1]), term)
                    yield f"node {index} appends record {position} of owner {term}", self.on(world, index, grown), None


def walk(model: Model, seconds: float) -> tuple[int, bool, list[str], str | None]:
    """Breadth first: states seen, whether these are all, and the way to what is wrong."""
    start = model.begin()
    seen: dict[World, tuple[World | None, str]] = {start: (None, "the first owner serves")}
    queue, began = [start], time.monotonic()
    for world in queue:
        if len(seen) % 512 == 0 and time.monotonic() - began > seconds:
            return len(seen), False, [], None
        for label, after, bad in model.steps(world):
            if after in seen and not bad:
                continue
            bad = bad or model.unreachable(after)
            if bad:
                way = [label]
                at: World | None = world
                while at is not None:
                    at, label = seen[at]
                    way.append(label)
                return len(seen), True, way[::-1], bad
            seen[after] = (world, label)
            queue.append(after)
    return len(seen), True, [], None


def bounds_of(words: str, base: dict[str, int]) -> dict[str, int]:
    return base | {name: int(value) for name, value in (word.split("=") for word in words.split())}


def run(bounds: dict[str, int], bug: str | None, args: argparse.Namespace) -> bool:
    """True if something is wrong."""
    began = time.monotonic()
    count, complete, way, bad = walk(Model(bounds, bug), args.seconds)
    took = f"{count} states in {time.monotonic() - began:.1f} s"
    shown = " ".join(f"{name}={value}" for name, value in bounds.items() if value != BOUNDS[name]) or "the least bounds"
    if bug is None:
        verdict = "VIOLATED" if bad else "nothing is lost" if complete else "nothing found, NOT complete"
        print(f"{shown}: {verdict}, {took}", flush=True)
    else:
        verdict = f"found after {len(way) - 1} steps" if bad else "NOT FOUND" if complete else "NOT complete"
        print(f"{bug}: {verdict}, {took} ({BUGS[bug][0]})", flush=True)
    if bad and (bug is None or args.show):
        for number, label in enumerate(way):
            print(f"    {number:2} {label}")
        print(f"    => {bad}")
    return bool(bad) or not complete


def main() -> int:
    parser = argparse.ArgumentParser(description="Tries every order of the steps of a replicated log in small bounds.")
    parser.add_argument("--bugs", action="store_true", help="plant each mistake in turn; the exit status is 1 if one is not found")
    parser.add_argument("--bug", choices=sorted(BUGS), help="plant this mistake")
    parser.add_argument("--show", action="store_true", help="print the steps to each mistake")
    parser.add_argument("--seconds", type=float, default=120, help="give up a walk after so long (default 120)")
    for name, value in BOUNDS.items():
        parser.add_argument(f"--{name}", type=int, help=f"bound (default {value})")
    args = parser.parse_args()
    given = {name: getattr(args, name) for name in BOUNDS if getattr(args, name) is not None}
    if args.bugs or args.bug:
        names = list(BUGS) if args.bugs else [args.bug]
        found = [run(bounds_of(BUGS[name][1], BOUNDS) | given, name, args) for name in names]
        return 0 if all(found) else 1
    walks = [BOUNDS | given] if given else [bounds_of(words, BOUNDS) for words in CI]
    outcomes = [run(bounds, None, args) for bounds in walks]
    return 1 if any(outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
