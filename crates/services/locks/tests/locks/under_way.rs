//! Operations that are prepared and not durable yet: nobody sees them, and no two of them conflict.

use std::collections::BTreeMap;

use cairn_base::Ino;
use cairn_locks::{
    Answer, Delta, Effects, LockMode, Notice, OpId, Owner, Pause, Refusal, Release, Request,
    ShareBits, Step, Waiting,
};
use proptest::prelude::*;

use crate::ranges::{Bytewise, any_mode, any_range, real};
use crate::world::{FILE, QUEUE, World, lock, op_of, owner, range, unlock, write_to};
use LockMode::{Exclusive, Shared};

fn prepare(world: &mut World, request: Request) -> Result<Step, Refusal> {
    let mut effects = Effects::default();
    let step = world.locks.prepare(world.now, request, &mut effects);
    assert_eq!(effects, Effects::default());
    step
}

fn commit(world: &mut World, op: OpId) -> (Result<Answer, Refusal>, Effects) {
    let mut effects = Effects::default();
    let answer = world.locks.commit(world.now, op, &mut effects);
    (answer, effects)
}

fn abort(world: &mut World, op: OpId) -> Effects {
    let mut effects = Effects::default();
    world.locks.abort(world.now, op, &mut effects);
    effects
}

#[test]
fn two_requests_under_way_do_not_both_get_a_range() {
    for ends_well in [true, false] {
        let mut world = World::new();
        let (a, b) = (world.nlm_client("a"), world.nlm_client("b"));
        let (mine, other) = (owner(a, "1"), owner(b, "1"));
        let step = prepare(&mut world, lock(&mine, (0, 9), Exclusive, Waiting::No));
        let op = op_of(&step).expect("it is to be written");
        // It is not seen, and it is in the way.
        assert_eq!(world.list(), vec![]);
        for waiting in [Waiting::No, QUEUE] {
            let step = prepare(&mut world, lock(&other, (9, 9), Shared, waiting));
            assert_eq!(step, Ok(Step::Wait(Pause::Op(op))));
        }
        let step = prepare(&mut world, crate::world::test(&other, (9, 9), Shared));
        assert_eq!(step, Ok(Step::Wait(Pause::Op(op))));
        let free = prepare(&mut world, lock(&other, (10, 10), Exclusive, Waiting::No));
        let free = op_of(&free).expect("it overlaps nothing");
        assert_eq!(commit(&mut world, free).0, Ok(Answer::Locked));
        if ends_well {
            assert_eq!(commit(&mut world, op).0, Ok(Answer::Locked));
        } else {
            assert_eq!(abort(&mut world, op), Effects::default());
        }
        let step = prepare(&mut world, lock(&other, (9, 9), Shared, Waiting::No));
        match ends_well {
            true => assert!(
                matches!(step, Ok(Step::Done(Answer::Denied(_)))),
                "{step:?}"
            ),
            false => assert!(op_of(&step).is_some(), "{step:?}"),
        }
    }
}

#[test]
fn a_range_is_held_until_its_release_is_durable() {
    let mut world = World::new();
    let (a, b) = (world.nlm_client("a"), world.nlm_client("b"));
    let (mine, other) = (owner(a, "1"), owner(b, "1"));
    assert_eq!(
        world.ask(lock(&mine, (0, 9), Exclusive, Waiting::No)),
        Ok(Answer::Locked)
    );
    let op = op_of(&prepare(&mut world, unlock(&mine, (0, 9)))).expect("a record goes");
    let step = prepare(&mut world, lock(&other, (0, 9), Shared, QUEUE));
    assert!(
        matches!(step, Ok(Step::Done(Answer::Queued(_)))),
        "{step:?}"
    );
    let (answer, effects) = commit(&mut world, op);
    assert_eq!(answer, Ok(Answer::Unlocked));
    // The grant is an operation of its own: nobody is told before it is durable.
    assert_eq!(effects.notices, []);
    let [grant] = &effects.writes[..] else {
        panic!("{effects:?}");
    };
    let (_, effects) = commit(&mut world, grant.op);
    assert!(
        matches!(effects.notices[..], [Notice::Granted { .. }]),
        "{effects:?}"
    );
}

#[test]
fn a_grant_that_is_not_durable_leaves_the_place_in_the_queue() {
    let mut world = World::new();
    let clients = ["a", "b", "c"].map(|name| world.nlm_client(name));
    let [a, b, c] = clients.map(|client| owner(client, "1"));
    assert_eq!(
        world.ask(lock(&a, (0, 9), Exclusive, QUEUE)),
        Ok(Answer::Locked)
    );
    for who in [&b, &c] {
        let answer = world.ask(lock(who, (0, 9), Exclusive, QUEUE));
        assert!(matches!(answer, Ok(Answer::Queued(_))));
    }
    let op = op_of(&prepare(&mut world, unlock(&a, (0, 9)))).expect("a record goes");
    let (_, effects) = commit(&mut world, op);
    assert_eq!(abort(&mut world, effects.writes[0].op), Effects::default());
    assert_eq!(world.locks.waiter_count(), 2);
    world.locks.assert_consistent();
    // The next attempt is for the same one.
    let mut effects = Effects::default();
    world.locks.tick(world.now, &mut effects);
    let (_, effects) = commit(&mut world, effects.writes[0].op);
    let Notice::Granted { owner, .. } = &effects.notices[0] else {
        panic!("{effects:?}");
    };
    assert_eq!(**owner, b);
}

#[test]
fn what_goes_as_a_whole_waits_for_what_is_under_way() {
    let requests = |client| {
        [
            Request::Release(Release::Client(client)),
            Request::Release(Release::File(FILE)),
            Request::Remove { ino: FILE },
            Request::Confirm {
                identity: crate::world::identity("a", cairn_locks::LockProtocol::Nlm),
                verifier: [2; 8],
                lease_ms: 0,
            },
        ]
    };
    for index in 0..4 {
        let mut world = World::new();
        let a = world.nlm_client("a");
        let b = world.nlm_client("b");
        assert_eq!(
            world.ask(lock(&owner(b, "1"), (20, 20), Shared, QUEUE)),
            Ok(Answer::Locked)
        );
        let mine = owner(a, "1");
        let op = op_of(&prepare(&mut world, lock(&mine, (0, 9), Exclusive, QUEUE)));
        let op = op.expect("it is to be written");
        let request = || requests(a)[index].clone();
        assert_eq!(
            prepare(&mut world, request()),
            Ok(Step::Wait(Pause::Op(op)))
        );
        assert_eq!(commit(&mut world, op).0, Ok(Answer::Locked));
        let whole = op_of(&prepare(&mut world, request())).expect("records go");
        // And what comes meanwhile waits for it.
        let step = prepare(&mut world, lock(&mine, (30, 30), Shared, QUEUE));
        assert_eq!(step, Ok(Step::Wait(Pause::Op(whole))));
        assert!(commit(&mut world, whole).0.is_ok());
        assert!(world.list().iter().all(|entry| entry.client != a));
        world.locks.assert_consistent();
    }
}

#[test]
fn two_opens_under_way_do_not_exclude_each_other_unseen() {
    let mut world = World::new();
    let (a, b) = (world.nlm_client("a"), world.nlm_client("b"));
    let open = |client, access, deny| Request::Open {
        owner: owner(client, "1"),
        ino: FILE,
        access,
        deny,
    };
    let (read, write, none) = (ShareBits::READ, ShareBits::WRITE, ShareBits::NONE);
    let op = op_of(&prepare(&mut world, open(a, read, write))).expect("it denies");
    let step = prepare(&mut world, open(b, write, none));
    assert_eq!(step, Ok(Step::Wait(Pause::Op(op))));
    // A lease as well.
    let lease = Request::GrantLease {
        owner: owner(b, "key"),
        ino: FILE,
        level: cairn_locks::LeaseBits::READ,
        style: cairn_locks::LeaseStyle::Whole,
    };
    assert_eq!(
        prepare(&mut world, lease.clone()),
        Ok(Step::Wait(Pause::Op(op)))
    );
    let check = Request::Check {
        by: None,
        ino: FILE,
        what: cairn_locks::Use::WriteData,
        range: None,
    };
    assert_eq!(prepare(&mut world, check), Ok(Step::Wait(Pause::Op(op))));
    abort(&mut world, op);
    let op = op_of(&prepare(&mut world, lease)).expect("a lease has a record");
    let step = prepare(&mut world, open(a, write, none));
    assert_eq!(step, Ok(Step::Wait(Pause::Op(op))));
}

#[derive(Clone, Debug)]
enum Act {
    Lock(usize, (u64, u64), LockMode, bool),
    Unlock(usize, (u64, u64)),
    /// Of the operations under way the one at this place, from the oldest on.
    End(usize, bool),
    Release(usize),
    Remove,
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let one = prop_oneof![
        6 => (0..4usize, any_range(), any_mode(), any::<bool>())
            .prop_map(|(who, at, mode, waits)| Act::Lock(who, at, mode, waits)),
        3 => (0..4usize, any_range()).prop_map(|(who, at)| Act::Unlock(who, at)),
        8 => (0..4usize, proptest::bool::weighted(0.8)).prop_map(|(at, well)| Act::End(at, well)),
        1 => (0..4usize).prop_map(Act::Release),
        1 => Just(Act::Remove),
    ];
    proptest::collection::vec(one, 1..80)
}

/// What an operation under way does to the model when it is durable.
#[derive(Debug)]
enum Meant {
    Set(usize, (u64, u64), Option<LockMode>),
    Drop(usize),
    Clear,
}

struct UnderWay {
    op: OpId,
    deltas: Vec<Delta>,
    meant: Meant,
}

struct Run {
    world: World,
    owners: Vec<Owner>,
    model: Bytewise,
    under_way: Vec<UnderWay>,
}

impl Run {
    fn new() -> Self {
        let mut world = World::new();
        let names = ["a", "b", "c", "d"];
        let owners = names
            .map(|name| owner(world.nlm_client(name), "1"))
            .to_vec();
        Self {
            world,
            owners,
            model: Bytewise::default(),
            under_way: Vec::new(),
        }
    }

    fn begin(&mut self, request: Request, meant: Meant) {
        let mut effects = Effects::default();
        let step = self
            .world
            .locks
            .prepare(self.world.now, request, &mut effects);
        if let Ok(Step::Write(write)) = step {
            self.under_way.push(UnderWay {
                op: write.op,
                deltas: write.deltas,
                meant,
            });
        }
        self.follow(effects);
    }

    /// Grants are under way, too.
    fn follow(&mut self, effects: Effects) {
        for write in effects.writes {
            let mut granted = None;
            for Delta { value, .. } in &write.deltas {
                let Some(value) = value else { continue };
                let record = cairn_formats::metadata::LockRangeRecord::decode(value);
                let client = record.expect("only ranges are granted").client;
                granted = self
                    .owners
                    .iter()
                    .position(|owner| owner.client.0 == client);
            }
            let who = granted.expect("a grant puts a record");
            // Which range it is for the list shows when it is there.
            self.under_way.push(UnderWay {
                op: write.op,
                deltas: write.deltas,
                meant: Meant::Set(who, (1, 0), None),
            });
        }
    }

    fn end(&mut self, at: usize, well: bool) {
        if self.under_way.is_empty() {
            return;
        }
        let UnderWay { op, deltas, meant } = self.under_way.remove(at % self.under_way.len());
        let mut effects = Effects::default();
        let now = self.world.now;
        if !well {
            self.world.locks.abort(now, op, &mut effects);
            return self.follow(effects);
        }
        write_to(&mut self.world.log, deltas);
        let answer = self.world.locks.commit(now, op, &mut effects);
        assert!(answer.is_ok());
        match meant {
            Meant::Set(who, at, Some(mode)) => {
                assert!(!self.model.conflicts(who, at, mode), "granted twice");
                self.model.set(who, at, Some(mode));
            }
            Meant::Set(who, at, None) => self.model.set(who, at, None),
            Meant::Drop(who) => self.model.0.retain(|(_, other), _| *other != who),
            Meant::Clear => self.model.0.clear(),
        }
        for notice in &effects.notices {
            if let Notice::Granted {
                owner, range, mode, ..
            } = notice
            {
                let who = self.owners.iter().position(|other| *other == **owner);
                let who = who.expect("it is one of them");
                let at = (range.first(), range.last().min(crate::ranges::BYTES - 1));
                assert!(!self.model.conflicts(who, at, *mode), "granted twice");
                self.model.set(who, at, Some(*mode));
            }
        }
        self.follow(effects);
    }
}

proptest! {
    #[test]
    fn what_is_under_way_is_seen_by_nobody_and_taken_by_nobody(acts in acts()) {
        let mut run = Run::new();
        for act in acts {
            let owner = |who: usize| run.owners[who].clone();
            match act {
                Act::Lock(who, at, mode, waits) => {
                    let waiting = if waits { QUEUE } else { Waiting::No };
                    let request = lock(&owner(who), real(at), mode, waiting);
                    run.begin(request, Meant::Set(who, at, Some(mode)));
                }
                Act::Unlock(who, at) => {
                    let request = unlock(&owner(who), real(at));
                    run.begin(request, Meant::Set(who, at, None));
                }
                Act::End(at, well) => run.end(at, well),
                Act::Release(who) => {
                    let request = Request::Release(Release::Client(owner(who).client));
                    run.begin(request, Meant::Drop(who));
                }
                Act::Remove => run.begin(Request::Remove { ino: FILE }, Meant::Clear),
            }
            run.world.check();
            let entries = run.world.list();
            prop_assert_eq!(&Bytewise::of(&entries, &run.owners), &run.model);
        }
        // Whatever is under way, aborting all of it leaves the state as it was.
        let before = run.world.locks.records();
        let mut rounds = 0;
        while let Some(UnderWay { op, .. }) = run.under_way.pop() {
            let mut effects = Effects::default();
            run.world.locks.abort(run.world.now, op, &mut effects);
            run.follow(effects);
            rounds += 1;
            if rounds > 200 {
                break;
            }
        }
        prop_assert_eq!(run.world.locks.records(), before);
        run.world.locks.assert_consistent();
    }
}

#[test]
fn many_files_are_locked_side_by_side() {
    let mut world = World::new();
    let a = world.nlm_client("a");
    let who = owner(a, "1");
    let mut ops = BTreeMap::new();
    for ino in 1..=100 {
        let request = Request::Lock {
            owner: who.clone(),
            ino: Ino(ino),
            range: range(0, 0),
            mode: Exclusive,
            waiting: Waiting::No,
        };
        let Ok(Step::Write(write)) = prepare(&mut world, request) else {
            panic!("files do not wait for one another");
        };
        ops.insert(write.op, write.deltas);
    }
    // They become durable in any order.
    for (op, deltas) in ops.into_iter().rev() {
        write_to(&mut world.log, deltas);
        assert_eq!(commit(&mut world, op).0, Ok(Answer::Locked));
    }
    world.check();
    assert_eq!(world.list().len(), 100);
}

#[test]
fn a_lock_costs_so_many_bytes() {
    let mut world = World::new();
    let a = world.nlm_client("a");
    let empty = world.locks.memory_bytes();
    for ino in 1..=1000 {
        let request = Request::Lock {
            owner: owner(a, "0123456789abcdef0123456789abcdef"),
            ino: Ino(ino),
            range: range(0, 0),
            mode: Exclusive,
            waiting: Waiting::No,
        };
        let step = prepare(&mut world, request);
        let op = op_of(&step).expect("it is to be written");
        assert_eq!(commit(&mut world, op).0, Ok(Answer::Locked));
    }
    let each = (world.locks.memory_bytes() - empty) / 1000;
    // A file, an owner and a range of their own: the number that the design names.
    assert!((200..=600).contains(&each), "{each}");
}

#[test]
fn a_commit_after_the_volume_was_closed_is_refused() {
    let mut world = World::new();
    let a = world.nlm_client("a");
    let step = prepare(
        &mut world,
        lock(&owner(a, "1"), (0, 9), Exclusive, Waiting::No),
    );
    let op = op_of(&step).expect("it is to be written");
    world.locks.close(&mut Effects::default());
    assert_eq!(commit(&mut world, op).0, Err(Refusal::Closed));
    abort(&mut world, op);
}
