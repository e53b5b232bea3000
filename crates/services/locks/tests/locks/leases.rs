//! Delegations and oplocks: when they are given, what recalls them, when they are taken.

use cairn_locks::{
    Answer, ClientId, EntryKind, GoneReason, LeaseBits, LeaseId, LeaseStyle, LockMode, Notice,
    Pause, Refusal, Request, ShareBits, Step, Use, Waiting,
};

use proptest::prelude::*;

use crate::world::{FILE, LEASE_MS, World, lock, owner};

const READ: LeaseBits = LeaseBits::READ;
const READ_HANDLE: LeaseBits = READ.with(LeaseBits::HANDLE);
const ALL: LeaseBits = READ_HANDLE.with(LeaseBits::WRITE);

fn grant(client: ClientId, level: LeaseBits, style: LeaseStyle) -> Request {
    Request::GrantLease {
        owner: owner(client, "key"),
        ino: FILE,
        level,
        style,
    }
}

fn open(client: ClientId, access: ShareBits, deny: ShareBits) -> Request {
    Request::Open {
        owner: owner(client, "1"),
        ino: FILE,
        access,
        deny,
    }
}

fn check(by: Option<ClientId>, what: Use) -> Request {
    Request::Check {
        by: by.map(|client| owner(client, "1")),
        ino: FILE,
        what,
        range: None,
    }
}

fn give_back(client: ClientId, lease: LeaseId, left: LeaseBits) -> Request {
    Request::ReturnLease {
        client,
        ino: FILE,
        lease,
        left,
    }
}

fn leased(world: &mut World, client: ClientId, level: LeaseBits, style: LeaseStyle) -> LeaseId {
    match world.ask(grant(client, level, style)) {
        Ok(Answer::Leased { lease, .. }) => lease,
        other => panic!("{other:?}"),
    }
}

fn is_recalled(step: &Result<Step, Refusal>) -> bool {
    matches!(step, Ok(Step::Wait(Pause::Recall { .. })))
}

fn recalls(world: &World) -> Vec<(ClientId, LeaseBits)> {
    let recalls = world.notices.iter().filter_map(|notice| match notice {
        Notice::Recall { client, left, .. } => Some((*client, *left)),
        _ => None,
    });
    recalls.collect()
}

#[test]
fn a_delegation_is_recalled_once_and_returned() {
    let mut world = World::new();
    let (a, b) = (world.client("a"), world.client("b"));
    let lease = leased(&mut world, a, ALL, LeaseStyle::Whole);
    // Its own client does not disturb it.
    let own = world.ask(open(a, ShareBits::WRITE, ShareBits::NONE));
    assert!(matches!(own, Ok(Answer::Opened { .. })));
    let read = open(b, ShareBits::READ, ShareBits::NONE);
    assert!(is_recalled(&world.try_once(read.clone())));
    assert!(is_recalled(&world.try_once(read.clone())));
    assert_eq!(recalls(&world), [(a, LeaseBits::NONE)]);
    assert_eq!(
        world.ask(give_back(b, lease, LeaseBits::NONE)),
        Err(Refusal::UnknownLease)
    );
    assert_eq!(
        world.ask(give_back(a, lease, LeaseBits::NONE)),
        Ok(Answer::Returned)
    );
    assert!(matches!(world.ask(read), Ok(Answer::Opened { .. })));
    assert_eq!(
        world.ask(give_back(a, lease, LeaseBits::NONE)),
        Err(Refusal::UnknownLease)
    );
}

#[test]
fn each_use_recalls_as_the_matrix_says() {
    let uses = [
        (Use::ReadData, false),
        (Use::WriteData, true),
        (Use::ChangeAttributes, true),
        (Use::ChangeName, true),
    ];
    for (what, recalls_read) in uses {
        for by_stranger in [true, false] {
            let mut world = World::new();
            let (a, b) = (world.client("a"), world.client("b"));
            leased(&mut world, a, READ_HANDLE, LeaseStyle::Whole);
            let by = (!by_stranger).then_some(b);
            let step = world.try_once(check(by, what));
            assert_eq!(is_recalled(&step), recalls_read, "{what:?}");
            let own = world.try_once(check(Some(a), what));
            assert_eq!(own, Ok(Step::Done(Answer::Allowed)), "{what:?}");
        }
    }
    for (mode, recalls_read) in [(LockMode::Shared, false), (LockMode::Exclusive, true)] {
        let mut world = World::new();
        let (a, b) = (world.client("a"), world.nlm_client("b"));
        leased(&mut world, a, READ_HANDLE, LeaseStyle::Whole);
        for request in [
            crate::world::test(&owner(b, "1"), (0, 0), mode),
            lock(&owner(b, "1"), (0, 0), mode, Waiting::No),
        ] {
            assert_eq!(
                is_recalled(&world.try_once(request)),
                recalls_read,
                "{mode:?}"
            );
        }
    }
}

#[test]
fn an_oplock_goes_down_by_levels() {
    let mut world = World::new();
    let (a, b) = (world.client("a"), world.client("b"));
    let lease = leased(&mut world, a, ALL, LeaseStyle::Levels);
    let read = open(b, ShareBits::READ, ShareBits::NONE);
    assert!(is_recalled(&world.try_once(read.clone())));
    assert_eq!(recalls(&world), [(a, READ_HANDLE)]);
    // More than what it had is no part of it; keeping all changes nothing.
    assert_eq!(world.ask(give_back(a, lease, ALL)), Ok(Answer::Returned));
    assert!(is_recalled(&world.try_once(read.clone())));
    assert_eq!(
        world.ask(give_back(a, lease, READ_HANDLE)),
        Ok(Answer::Returned)
    );
    assert_eq!(world.ask(give_back(a, lease, ALL)), Err(Refusal::NotPart));
    assert!(matches!(world.ask(read), Ok(Answer::Opened { .. })));
    world.notices.clear();
    assert!(is_recalled(&world.try_once(check(None, Use::WriteData))));
    assert_eq!(recalls(&world), [(a, LeaseBits::NONE)]);
}

#[test]
fn a_lease_that_is_not_returned_is_taken() {
    for by_tick in [true, false] {
        let mut world = World::new();
        let (a, b) = (world.nlm_client("a"), world.nlm_client("b"));
        leased(&mut world, a, ALL, LeaseStyle::Whole);
        let read = open(b, ShareBits::READ, ShareBits::NONE);
        assert!(is_recalled(&world.try_once(read.clone())));
        world.wait_ms(world.limits.recall_ms - 1);
        world.tick();
        assert!(is_recalled(&world.try_once(read.clone())));
        world.wait_ms(1);
        if by_tick {
            world.tick();
            assert_eq!(world.list(), vec![]);
        }
        assert!(matches!(world.ask(read), Ok(Answer::Opened { .. })));
        let revoked = world
            .notices
            .iter()
            .filter(|notice| matches!(notice, Notice::Revoked { client, .. } if *client == a));
        assert_eq!(revoked.count(), 1);
    }
}

#[test]
fn a_silent_holder_goes_at_once() {
    let mut world = World::new();
    let (a, b) = (world.client("a"), world.nlm_client("b"));
    leased(&mut world, a, ALL, LeaseStyle::Whole);
    world.wait_ms(u64::from(LEASE_MS));
    let answer = world.ask(open(b, ShareBits::READ, ShareBits::NONE));
    assert!(matches!(answer, Ok(Answer::Opened { .. })));
    let gone = Notice::ClientGone {
        client: a,
        reason: GoneReason::Expired,
    };
    assert!(world.notices.contains(&gone));
    assert_eq!(recalls(&world), []);
}

#[test]
fn a_lease_is_given_only_where_nothing_speaks_against_it() {
    type Made = fn(ClientId) -> Request;
    // What another client has, whether a lease for reading, and for writing, is given.
    let cases: [(&str, Option<Made>, bool, bool); 8] = [
        ("nothing", None, true, true),
        (
            "reads",
            Some(|b| open(b, ShareBits::READ, ShareBits::NONE)),
            true,
            false,
        ),
        (
            "writes",
            Some(|b| open(b, ShareBits::WRITE, ShareBits::NONE)),
            false,
            false,
        ),
        (
            "denies",
            Some(|b| open(b, ShareBits::READ, ShareBits::READ)),
            false,
            false,
        ),
        (
            "shared range",
            Some(|b| lock(&owner(b, "1"), (0, 0), LockMode::Shared, Waiting::No)),
            true,
            false,
        ),
        (
            "exclusive range",
            Some(|b| lock(&owner(b, "1"), (0, 0), LockMode::Exclusive, Waiting::No)),
            false,
            false,
        ),
        (
            "leased to read",
            Some(|b| grant(b, READ, LeaseStyle::Whole)),
            true,
            false,
        ),
        (
            "leased to write",
            Some(|b| grant(b, ALL, LeaseStyle::Levels)),
            false,
            false,
        ),
    ];
    for (name, made, may_read, may_write) in cases {
        for (level, want) in [(READ_HANDLE, may_read), (ALL, may_write)] {
            let mut world = World::new();
            let (a, b) = (world.client("a"), world.client("b"));
            if let Some(made) = made {
                assert!(world.ask(made(b)).is_ok());
            }
            let answer = world.ask(grant(a, level, LeaseStyle::Whole));
            let is_given = matches!(answer, Ok(Answer::Leased { .. }));
            assert_eq!(is_given, want, "{name}, {level:?}: {answer:?}");
            assert_eq!(recalls(&world), []);
        }
    }
    let mut world = World::new();
    let a = world.client("a");
    let answer = world.ask(grant(a, LeaseBits::WRITE, LeaseStyle::Whole));
    assert_eq!(answer, Err(Refusal::BadLevel));
}

#[test]
fn a_lease_survives_a_takeover_and_none_is_given_until_opens_are_back() {
    let mut world = World::new();
    let (a, b) = (world.client("a"), world.client("b"));
    let lease = leased(&mut world, a, READ_HANDLE, LeaseStyle::Whole);
    world.take_over();
    let kinds: Vec<_> = world.list().into_iter().map(|entry| entry.kind).collect();
    let kept = EntryKind::Lease {
        level: READ_HANDLE,
        style: LeaseStyle::Whole,
        recalled_to: None,
    };
    assert_eq!(kinds, [kept]);
    assert_eq!(
        world.ask(grant(b, READ, LeaseStyle::Whole)),
        Ok(Answer::NotLeased)
    );
    world.locks.reclaimed(a);
    world.wait_ms(u64::from(LEASE_MS));
    assert_eq!(world.locks.renew(world.now, a), Ok(()));
    leased(&mut world, b, READ, LeaseStyle::Whole);
    assert_eq!(
        world.ask(give_back(a, lease, LeaseBits::NONE)),
        Ok(Answer::Returned)
    );
}

#[test]
fn a_handle_that_is_kept_closed_is_asked_for_before_a_denial() {
    let mut world = World::new();
    let (a, b) = (world.client("a"), world.client("b"));
    assert!(
        world
            .ask(open(a, ShareBits::READ, ShareBits::WRITE))
            .is_ok()
    );
    let lease = leased(&mut world, a, READ_HANDLE, LeaseStyle::Levels);
    let write = open(b, ShareBits::WRITE, ShareBits::NONE);
    assert!(is_recalled(&world.try_once(write.clone())));
    assert_eq!(recalls(&world), [(a, READ)]);
    assert_eq!(world.ask(give_back(a, lease, READ)), Ok(Answer::Returned));
    // It has it open in truth.
    let answer = world.ask(write);
    assert!(matches!(answer, Ok(Answer::Denied(_))), "{answer:?}");
}

#[test]
fn a_waiting_request_goes_on_when_a_lease_is_back() {
    let mut world = World::new();
    let (a, b, c) = (
        world.client("a"),
        world.nlm_client("b"),
        world.nlm_client("c"),
    );
    let shared = |client| lock(&owner(client, "1"), (0, 9), LockMode::Shared, Waiting::No);
    assert_eq!(world.ask(shared(b)), Ok(Answer::Locked));
    let request = lock(
        &owner(c, "1"),
        (0, 9),
        LockMode::Exclusive,
        crate::world::QUEUE,
    );
    assert!(matches!(world.ask(request), Ok(Answer::Queued(_))));
    // Nobody gets a lease while somebody waits.
    assert_eq!(
        world.ask(grant(a, READ, LeaseStyle::Whole)),
        Ok(Answer::NotLeased)
    );
}

#[derive(Clone, Debug)]
enum Act {
    Open(usize, u8, u8),
    Close(usize),
    Lock(usize, LockMode),
    Unlock(usize),
    Grant(usize, bool),
    Return(usize),
    /// Of the operations under way the one at this place becomes durable, or never does.
    End(usize, bool),
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let who = 0..3usize;
    let deny = prop_oneof![3 => Just(0u8), 1 => 1..4u8];
    let one = prop_oneof![
        3 => (who.clone(), 1..4u8, deny).prop_map(|(who, access, deny)| Act::Open(who, access, deny)),
        2 => who.clone().prop_map(Act::Close),
        2 => (who.clone(), crate::ranges::any_mode()).prop_map(|(who, mode)| Act::Lock(who, mode)),
        2 => who.clone().prop_map(Act::Unlock),
        4 => (who.clone(), any::<bool>()).prop_map(|(who, writes)| Act::Grant(who, writes)),
        2 => who.prop_map(Act::Return),
        8 => (0..4usize, proptest::bool::weighted(0.8)).prop_map(|(at, well)| Act::End(at, well)),
    ];
    proptest::collection::vec(one, 1..80)
}

fn number_of(world: &World, client: ClientId, is_it: impl Fn(&EntryKind) -> bool) -> u64 {
    let entries = world.list();
    let mut entries = entries.iter().filter(|entry| entry.client == client);
    let found = entries.find(|entry| is_it(&entry.kind));
    found.map_or(u64::MAX, |entry| entry.number)
}

/// What the delegation `level` of one client says of what another one has.
fn allows(level: LeaseBits, other: &EntryKind) -> bool {
    let is_exclusive = level.has(LeaseBits::WRITE);
    !is_exclusive
        && match other {
            EntryKind::Open { access, deny } => !access.has(ShareBits::WRITE) && deny.is_none(),
            EntryKind::Range { mode, .. } => *mode == LockMode::Shared,
            EntryKind::Lease { level, .. } => !level.has(LeaseBits::WRITE),
            EntryKind::Waiter { .. } => true,
        }
}

proptest! {
    /// Whatever is under way in which order, nobody has what a delegation of somebody else excludes.
    #[test]
    fn a_delegation_is_true(acts in acts()) {
        let mut world = World::new();
        let clients = ["a", "b", "c"].map(|name| world.nlm_client(name));
        let mut under_way = Vec::new();
        for act in acts {
            let bits = |bits| ShareBits::of_bits(bits).expect("they have a meaning");
            let whole = (0, u64::MAX);
            let request = match act {
                Act::Open(who, access, deny) => open(clients[who], bits(access), bits(deny)),
                Act::Close(who) => Request::Close {
                    client: clients[who],
                    ino: FILE,
                    open: cairn_locks::OpenId(number_of(&world, clients[who], |kind| {
                        matches!(kind, EntryKind::Open { .. })
                    })),
                    owners: Vec::new(),
                },
                Act::Lock(who, mode) => lock(&owner(clients[who], "1"), whole, mode, Waiting::No),
                Act::Unlock(who) => crate::world::unlock(&owner(clients[who], "1"), whole),
                Act::Grant(who, writes) => {
                    let level = if writes { ALL } else { READ_HANDLE };
                    grant(clients[who], level, LeaseStyle::Whole)
                }
                Act::Return(who) => {
                    let number = number_of(&world, clients[who], |kind| {
                        matches!(kind, EntryKind::Lease { .. })
                    });
                    give_back(clients[who], LeaseId(number), LeaseBits::NONE)
                }
                Act::End(at, well) => {
                    if under_way.is_empty() {
                        continue;
                    }
                    let cairn_locks::Write { op, deltas } = under_way.remove(at % under_way.len());
                    let mut effects = cairn_locks::Effects::default();
                    if well {
                        crate::world::write_to(&mut world.log, deltas);
                        prop_assert!(world.locks.commit(world.now, op, &mut effects).is_ok());
                    } else {
                        world.locks.abort(world.now, op, &mut effects);
                    }
                    prop_assert_eq!(effects, cairn_locks::Effects::default());
                    world.check();
                    continue;
                }
            };
            let mut effects = cairn_locks::Effects::default();
            if let Ok(Step::Write(write)) = world.locks.prepare(world.now, request, &mut effects) {
                under_way.push(write);
            }
            prop_assert!(effects.writes.is_empty());
            world.check();
            let entries = world.list();
            for lease in &entries {
                let EntryKind::Lease { level, .. } = lease.kind else {
                    continue;
                };
                let mut others = entries.iter().filter(|other| other.client != lease.client);
                prop_assert!(others.all(|other| allows(level, &other.kind)), "{entries:?}");
            }
        }
    }
}
