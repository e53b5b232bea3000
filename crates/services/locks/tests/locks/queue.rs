//! Those who wait: their order, their grants, and that nobody waits for ever.

use std::collections::BTreeMap;

use cairn_base::Ino;
use cairn_locks::{
    Answer, EntryKind, LockMode, Notice, Owner, Refusal, Request, WaiterId, Waiting,
};
use proptest::prelude::*;

use crate::ranges::{Bytewise, any_mode, any_range, real};
use crate::world::{FILE, QUEUE, World, is_denied, lock, owner, range, unlock};
use LockMode::{Exclusive, Shared};

fn queued(answer: Result<Answer, Refusal>) -> WaiterId {
    match answer {
        Ok(Answer::Queued(waiter)) => waiter,
        other => panic!("{other:?}"),
    }
}

fn granted(world: &mut World) -> Vec<WaiterId> {
    let notices = std::mem::take(&mut world.notices);
    let granted = notices.into_iter().filter_map(|notice| match notice {
        Notice::Granted { waiter, .. } => Some(waiter),
        _ => None,
    });
    granted.collect()
}

fn three() -> (World, Owner, Owner, Owner) {
    let mut world = World::new();
    let clients = ["a", "b", "c"].map(|name| world.nlm_client(name));
    let [a, b, c] = clients.map(|client| owner(client, "1"));
    (world, a, b, c)
}

#[test]
fn readers_do_not_pass_a_writer_that_waits() {
    let (mut world, a, b, c) = three();
    assert_eq!(
        world.ask(lock(&a, (0, 9), Shared, QUEUE)),
        Ok(Answer::Locked)
    );
    let writer = queued(world.ask(lock(&b, (5, 5), Exclusive, QUEUE)));
    let reader = queued(world.ask(lock(&c, (0, 9), Shared, QUEUE)));
    // Nor does one that would not wait.
    assert!(is_denied(&world.ask(lock(&c, (0, 9), Shared, Waiting::No))));
    // What does not overlap passes, and so does the reader that has its range already.
    assert_eq!(
        world.ask(lock(&c, (0, 4), Shared, Waiting::No)),
        Ok(Answer::Locked)
    );
    assert_eq!(
        world.ask(lock(&a, (3, 7), Shared, Waiting::No)),
        Ok(Answer::Locked)
    );
    assert_eq!(granted(&mut world), []);
    assert_eq!(world.ask(unlock(&a, (0, 9))), Ok(Answer::Unlocked));
    assert_eq!(granted(&mut world), [writer]);
    assert_eq!(world.ask(unlock(&b, (5, 5))), Ok(Answer::Unlocked));
    assert_eq!(granted(&mut world), [reader]);
    assert_eq!(world.locks.waiter_count(), 0);
}

#[test]
fn a_request_that_comes_again_keeps_its_place() {
    let (mut world, a, b, c) = three();
    assert_eq!(
        world.ask(lock(&a, (0, 9), Exclusive, QUEUE)),
        Ok(Answer::Locked)
    );
    let first = queued(world.ask(lock(&b, (0, 9), Exclusive, QUEUE)));
    let second = queued(world.ask(lock(&c, (0, 9), Exclusive, QUEUE)));
    assert_eq!(queued(world.ask(lock(&b, (0, 9), Exclusive, QUEUE))), first);
    assert_eq!(world.locks.waiter_count(), 2);
    assert_eq!(world.ask(unlock(&a, (0, 9))), Ok(Answer::Unlocked));
    assert_eq!(granted(&mut world), [first]);
    // One that was granted, and asks because it did not hear of it, has its lock.
    assert_eq!(
        world.ask(lock(&b, (0, 9), Exclusive, QUEUE)),
        Ok(Answer::Locked)
    );
    assert_eq!(granted(&mut world), []);
    assert_eq!(world.ask(unlock(&b, (0, 9))), Ok(Answer::Unlocked));
    assert_eq!(granted(&mut world), [second]);
}

#[test]
fn a_request_that_is_cancelled_is_in_nobodys_way() {
    let (mut world, a, b, c) = three();
    assert_eq!(
        world.ask(lock(&a, (0, 9), Shared, QUEUE)),
        Ok(Answer::Locked)
    );
    queued(world.ask(lock(&b, (0, 9), Exclusive, QUEUE)));
    let reader = queued(world.ask(lock(&c, (0, 9), Shared, QUEUE)));
    let cancel = |mode| Request::Cancel {
        owner: b.clone(),
        ino: FILE,
        range: range(0, 9),
        mode,
    };
    assert_eq!(world.ask(cancel(Shared)), Ok(Answer::NotWaiting));
    assert_eq!(granted(&mut world), []);
    assert_eq!(world.ask(cancel(Exclusive)), Ok(Answer::Cancelled));
    assert_eq!(granted(&mut world), [reader]);
    assert_eq!(world.ask(cancel(Exclusive)), Ok(Answer::NotWaiting));
}

#[test]
fn a_client_that_goes_is_in_nobodys_way_where_it_only_waited() {
    let (mut world, a, b, c) = three();
    assert_eq!(
        world.ask(lock(&a, (0, 9), Shared, QUEUE)),
        Ok(Answer::Locked)
    );
    queued(world.ask(lock(&b, (0, 9), Exclusive, QUEUE)));
    let reader = queued(world.ask(lock(&c, (0, 9), Shared, QUEUE)));
    let release = Request::Release(cairn_locks::Release::Client(b.client));
    assert_eq!(world.ask(release), Ok(Answer::Released));
    assert_eq!(granted(&mut world), [reader]);
}

fn lock_in(ino: Ino, owner: &Owner, mode: LockMode, waiting: Waiting) -> Request {
    Request::Lock {
        owner: owner.clone(),
        ino,
        range: range(0, 0),
        mode,
        waiting,
    }
}

#[test]
fn a_deadlock_is_refused_where_there_is_a_word_for_it() {
    for detects_deadlock in [true, false] {
        let (mut world, a, b, c) = three();
        let waiting = Waiting::Queue { detects_deadlock };
        for (ino, who) in [(1, &a), (2, &b), (3, &c)] {
            let answer = world.ask(lock_in(Ino(ino), who, Exclusive, waiting));
            assert_eq!(answer, Ok(Answer::Locked));
        }
        // Each waits for the next; the third closes the circle.
        queued(world.ask(lock_in(Ino(2), &a, Exclusive, waiting)));
        queued(world.ask(lock_in(Ino(3), &b, Exclusive, waiting)));
        let answer = world.ask(lock_in(Ino(1), &c, Exclusive, waiting));
        if detects_deadlock {
            assert_eq!(answer, Err(Refusal::Deadlock));
            assert_eq!(world.locks.waiter_count(), 2);
        } else {
            queued(answer);
        }
        // A request that does not wait is only denied.
        assert!(is_denied(&world.ask(lock_in(
            Ino(1),
            &c,
            Shared,
            Waiting::No
        ))));
    }
}

#[test]
fn two_upgrades_of_one_range_are_a_deadlock() {
    let (mut world, a, b, _) = three();
    for who in [&a, &b] {
        assert_eq!(
            world.ask(lock(who, (0, 9), Shared, QUEUE)),
            Ok(Answer::Locked)
        );
    }
    let first = queued(world.ask(lock(&a, (0, 9), Exclusive, QUEUE)));
    let answer = world.ask(lock(&b, (0, 9), Exclusive, QUEUE));
    assert_eq!(answer, Err(Refusal::Deadlock));
    assert_eq!(world.ask(unlock(&b, (0, 9))), Ok(Answer::Unlocked));
    assert_eq!(granted(&mut world), [first]);
}

#[test]
fn the_order_of_requests_makes_no_deadlock() {
    let (mut world, a, b, _) = three();
    assert_eq!(
        world.ask(lock(&a, (0, 4), Shared, QUEUE)),
        Ok(Answer::Locked)
    );
    let writer = queued(world.ask(lock(&b, (0, 9), Exclusive, QUEUE)));
    // By its turn it would wait for the writer, which waits for it.
    assert_eq!(
        world.ask(lock(&a, (0, 9), Shared, QUEUE)),
        Ok(Answer::Locked)
    );
    assert_eq!(world.ask(unlock(&a, (0, 9))), Ok(Answer::Unlocked));
    assert_eq!(granted(&mut world), [writer]);
}

#[test]
fn a_circle_that_only_the_order_closes_is_opened() {
    let (mut world, a, b, c) = three();
    // `c` has a range that the writer waits for, and `a` waits behind the writer.
    assert_eq!(
        world.ask(lock_in(Ino(1), &c, Shared, QUEUE)),
        Ok(Answer::Locked)
    );
    queued(world.ask(lock_in(Ino(1), &b, Exclusive, QUEUE)));
    assert_eq!(
        world.ask(lock_in(Ino(2), &a, Exclusive, QUEUE)),
        Ok(Answer::Locked)
    );
    let behind = queued(world.ask(lock_in(Ino(1), &a, Shared, QUEUE)));
    // `c` waits for `a`, which waits for its turn alone: it goes ahead.
    queued(world.ask(lock_in(Ino(2), &c, Exclusive, QUEUE)));
    assert_eq!(granted(&mut world), [behind]);
}

#[test]
fn who_polls_has_a_place_for_a_while() {
    let (mut world, a, b, c) = three();
    let poll = |who: &Owner| lock(who, (0, 9), Exclusive, Waiting::Polled);
    assert_eq!(world.ask(poll(&a)), Ok(Answer::Locked));
    assert!(is_denied(&world.ask(poll(&b))));
    assert!(is_denied(&world.ask(poll(&c))));
    assert_eq!(world.ask(unlock(&a, (0, 9))), Ok(Answer::Unlocked));
    let available = world.notices.iter().filter_map(|notice| match notice {
        Notice::Available { owner, .. } => Some((**owner).clone()),
        _ => None,
    });
    assert_eq!(available.collect::<Vec<_>>(), std::slice::from_ref(&b));
    // Nobody passes it, until it has not come for long.
    assert!(is_denied(&world.ask(poll(&c))));
    assert!(is_denied(&world.ask(lock(&a, (0, 9), Shared, Waiting::No))));
    world.wait_ms(world.limits.polled_free_ms - 1);
    assert!(is_denied(&world.ask(poll(&c))));
    world.wait_ms(1);
    assert_eq!(world.ask(poll(&c)), Ok(Answer::Locked));
    // The one that comes in time gets it.
    assert!(is_denied(&world.ask(poll(&b))));
    assert_eq!(world.ask(unlock(&c, (0, 9))), Ok(Answer::Unlocked));
    assert_eq!(world.ask(poll(&b)), Ok(Answer::Locked));
    assert_eq!(world.locks.waiter_count(), 0);
    // One that stops asking while it could not have it either.
    assert!(is_denied(&world.ask(poll(&c))));
    world.wait_ms(world.limits.polled_ms);
    world.tick();
    assert_eq!(world.locks.waiter_count(), 0);
}

/// Who has what, who waits for what in which order: ranges are granted in turn.
#[derive(Default)]
struct InTurn {
    held: Bytewise,
    waiting: BTreeMap<u64, (usize, (u64, u64), LockMode)>,
}

impl InTurn {
    fn is_free(&self, before: u64, who: usize, at: (u64, u64), mode: LockMode) -> bool {
        let overlaps = |other: (u64, u64)| other.0 <= at.1 && at.0 <= other.1;
        let passes = self
            .waiting
            .range(..before)
            .any(|(_, (other, range, other_mode))| {
                *other != who && overlaps(*range) && (mode == Exclusive || *other_mode == Exclusive)
            });
        !passes && !self.held.conflicts(who, at, mode)
    }

    fn grant_all(&mut self) -> Vec<u64> {
        let mut granted = Vec::new();
        let numbers: Vec<u64> = self.waiting.keys().copied().collect();
        for number in numbers {
            let (who, at, mode) = self.waiting[&number];
            if self.is_free(number, who, at, mode) {
                self.waiting.remove(&number);
                self.held.set(who, at, Some(mode));
                granted.push(number);
            }
        }
        granted
    }
}

const OWNERS: usize = 6;

fn many() -> (World, Vec<Owner>) {
    let mut world = World::new();
    let client = world.nlm_client("a");
    let owners = (0..OWNERS).map(|who| owner(client, &who.to_string()));
    let owners = owners.collect();
    (world, owners)
}

proptest! {
    /// Owners that wait have nothing, so there are no circles, and the order is exact.
    #[test]
    fn requests_are_granted_in_turn(
        steps in proptest::collection::vec((0..OWNERS, any_range(), any_mode(), any::<bool>()), 1..60),
    ) {
        let (mut world, owners) = many();
        let mut model = InTurn::default();
        for (who, at, mode, cancels) in steps {
            let waits = model.waiting.iter().find(|(_, (other, ..))| *other == who);
            let waits = waits.map(|(number, (_, at, mode))| (*number, *at, *mode));
            let has = model.held.0.keys().any(|(_, other)| *other == who);
            match waits {
                Some((number, at, mode)) => {
                    if cancels {
                        let (first, last) = real(at);
                        let cancel = Request::Cancel {
                            owner: owners[who].clone(),
                            ino: FILE,
                            range: range(first, last),
                            mode,
                        };
                        prop_assert_eq!(world.ask(cancel), Ok(Answer::Cancelled));
                        model.waiting.remove(&number);
                    }
                }
                None if has => {
                    let answer = world.ask(unlock(&owners[who], (0, u64::MAX)));
                    prop_assert_eq!(answer, Ok(Answer::Unlocked));
                    model.held.set(who, (0, crate::ranges::BYTES - 1), None);
                }
                None => {
                    let answer = world.ask(lock(&owners[who], real(at), mode, QUEUE));
                    if model.is_free(u64::MAX, who, at, mode) {
                        prop_assert_eq!(answer, Ok(Answer::Locked));
                        model.held.set(who, at, Some(mode));
                    } else {
                        let WaiterId(number) = queued(answer);
                        model.waiting.insert(number, (who, at, mode));
                    }
                }
            }
            let mut found: Vec<u64> = granted(&mut world).into_iter().map(|waiter| waiter.0).collect();
            found.sort_unstable();
            prop_assert_eq!(found, model.grant_all());
            prop_assert_eq!(&Bytewise::of(&world.list(), &owners), &model.held);
        }
    }

    /// Owners lock, wait, and hold while they wait, in two files. Then each owner that does not wait releases all, again and again: nobody
    /// waits in the end.
    #[test]
    fn nobody_waits_for_ever(
        steps in proptest::collection::vec((0..OWNERS, 1..3u64, any_range(), any_mode(), 0..4u8), 1..60),
    ) {
        let (mut world, owners) = many();
        let files = [Ino(1), Ino(2)];
        for (who, ino, at, mode, what) in steps {
            let waits = world.list().iter().any(|entry| {
                matches!(entry.kind, EntryKind::Waiter { .. }) && entry.owner == owners[who].name
            });
            if waits {
                continue;
            }
            let (first, last) = real(at);
            let (owner, ino, range) = (owners[who].clone(), Ino(ino), range(first, last));
            let request = match what {
                0 => Request::Unlock { owner, ino, range },
                1 => Request::Lock { owner, ino, range, mode, waiting: Waiting::No },
                _ => Request::Lock { owner, ino, range, mode, waiting: QUEUE },
            };
            match world.ask(request) {
                Ok(_) | Err(Refusal::Deadlock) => {}
                other => panic!("{other:?}"),
            }
        }
        for _ in 0..OWNERS + 1 {
            for owner in &owners {
                let waits = world.list().iter().any(|entry| {
                    matches!(entry.kind, EntryKind::Waiter { .. }) && entry.owner == owner.name
                });
                for ino in files.iter().filter(|_| !waits) {
                    let request = Request::Unlock {
                        owner: owner.clone(),
                        ino: *ino,
                        range: cairn_locks::ByteRange::ALL,
                    };
                    prop_assert_eq!(world.ask(request), Ok(Answer::Unlocked));
                }
            }
        }
        prop_assert_eq!(world.locks.waiter_count(), 0, "{:?}", world.list());
        prop_assert_eq!(world.list(), vec![]);
    }
}
