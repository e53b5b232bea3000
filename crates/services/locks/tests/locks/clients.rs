//! Clients: their lives, leases, limits, and lists of what they have.

use cairn_base::Epoch;
use cairn_formats::metadata::Key;
use cairn_locks::{
    Answer, ClientId, EntryKind, Filter, GoneReason, Limit, Limits, LockMode, LockProtocol, Locks,
    Notice, Refusal, Release, Request, RestoreError, ShareBits, Waiting,
};

use crate::world::{FILE, LEASE_MS, QUEUE, World, identity, is_denied, lock, owner, range, unlock};
use LockMode::{Exclusive, Shared};

const NO: Waiting = Waiting::No;

fn gone(world: &World) -> Vec<(ClientId, GoneReason)> {
    let gone = world.notices.iter().filter_map(|notice| match notice {
        Notice::ClientGone { client, reason } => Some((*client, *reason)),
        _ => None,
    });
    gone.collect()
}

#[test]
fn a_silent_client_keeps_its_locks_until_somebody_needs_them() {
    let mut world = World::new();
    let (a, b) = (world.client("a"), world.client("b"));
    let (mine, other) = (owner(a, "1"), owner(b, "1"));
    assert_eq!(
        world.ask(lock(&mine, (0, 9), Exclusive, NO)),
        Ok(Answer::Locked)
    );
    world.wait_ms(u64::from(LEASE_MS) - 1);
    assert_eq!(world.locks.renew(world.now, b), Ok(()));
    assert!(is_denied(&world.ask(lock(&other, (0, 9), Shared, NO))));
    world.wait_ms(1);
    world.tick();
    assert_eq!(gone(&world), []);
    // It comes back in time.
    assert_eq!(world.locks.renew(world.now, a), Ok(()));
    assert!(is_denied(&world.ask(lock(&other, (0, 9), Shared, NO))));
    world.wait_ms(u64::from(LEASE_MS));
    assert_eq!(
        world.ask(lock(&other, (0, 9), Shared, NO)),
        Ok(Answer::Locked)
    );
    assert_eq!(gone(&world), [(a, GoneReason::Expired)]);
    assert_eq!(world.locks.renew(world.now, a), Err(Refusal::UnknownClient));
    let answer = world.ask(lock(&mine, (0, 9), Shared, NO));
    assert_eq!(answer, Err(Refusal::UnknownClient));
}

#[test]
fn time_alone_frees_what_somebody_waits_for() {
    let mut world = World::new();
    let (a, b) = (world.client("a"), world.nlm_client("b"));
    assert_eq!(
        world.ask(lock(&owner(a, "1"), (0, 9), Exclusive, NO)),
        Ok(Answer::Locked)
    );
    let answer = world.ask(lock(&owner(b, "1"), (0, 9), Shared, QUEUE));
    assert!(matches!(answer, Ok(Answer::Queued(_))));
    world.wait_ms(u64::from(LEASE_MS));
    world.tick();
    assert_eq!(gone(&world), [(a, GoneReason::Expired)]);
    let granted = world
        .notices
        .iter()
        .filter(|notice| matches!(notice, Notice::Granted { .. }));
    assert_eq!(granted.count(), 1);
}

#[test]
fn denials_of_a_silent_client_give_way_as_well() {
    let mut world = World::new();
    let (a, b) = (world.client("a"), world.client("b"));
    let open = |client, deny| Request::Open {
        owner: owner(client, "1"),
        ino: FILE,
        access: ShareBits::READ,
        deny,
    };
    assert!(matches!(
        world.ask(open(a, ShareBits::READ)),
        Ok(Answer::Opened { .. })
    ));
    assert!(is_denied(&world.ask(open(b, ShareBits::NONE))));
    world.wait_ms(u64::from(LEASE_MS));
    assert!(matches!(
        world.ask(open(b, ShareBits::NONE)),
        Ok(Answer::Opened { .. })
    ));
    assert_eq!(gone(&world), [(a, GoneReason::Expired)]);
}

#[test]
fn a_client_without_a_lease_is_never_silent() {
    let mut world = World::new();
    let (a, b) = (world.nlm_client("a"), world.client("b"));
    assert_eq!(
        world.ask(lock(&owner(a, "1"), (0, 9), Exclusive, NO)),
        Ok(Answer::Locked)
    );
    world.wait_ms(u64::from(u32::MAX) * 1000);
    assert_eq!(world.locks.renew(world.now, b), Ok(()));
    assert!(is_denied(&world.ask(lock(
        &owner(b, "1"),
        (0, 9),
        Shared,
        NO
    ))));
}

#[test]
fn another_life_of_a_client_ends_the_one_before() {
    let mut world = World::new();
    let (a, b) = (world.client("a"), world.client("b"));
    assert_eq!(
        world.ask(lock(&owner(a, "1"), (0, 9), Exclusive, NO)),
        Ok(Answer::Locked)
    );
    // Neither an equal incarnation nor an equal name in another protocol ends anything.
    assert_eq!(world.client("a"), a);
    world.nlm_client("a");
    assert!(is_denied(&world.ask(lock(
        &owner(b, "1"),
        (0, 9),
        Shared,
        NO
    ))));
    let again = world.client_in("a", LockProtocol::Nfs4, 2, LEASE_MS);
    assert_ne!(again, a);
    assert_eq!(gone(&world), [(a, GoneReason::Restarted)]);
    assert_eq!(
        world.ask(lock(&owner(b, "1"), (0, 9), Shared, NO)),
        Ok(Answer::Locked)
    );
    assert_eq!(world.locks.renew(world.now, a), Err(Refusal::UnknownClient));
    world.take_over();
    let identity = identity("a", LockProtocol::Nfs4);
    assert_eq!(world.locks.client(&identity), Some(again));
}

#[test]
fn a_notification_of_a_restart_counts_once() {
    let mut world = World::new();
    let a = world.nlm_client("a");
    let restarted = |life| Request::Restarted {
        identity: identity("a", LockProtocol::Nlm),
        verifier: [life; 8],
    };
    assert_eq!(
        world.ask(lock(&owner(a, "1"), (0, 9), Exclusive, NO)),
        Ok(Answer::Locked)
    );
    assert_eq!(world.ask(restarted(2)), Ok(Answer::Released));
    assert_eq!(world.list(), vec![]);
    let again = world.client_in("a", LockProtocol::Nlm, 2, 0);
    assert_eq!(
        world.ask(lock(&owner(again, "1"), (0, 9), Exclusive, NO)),
        Ok(Answer::Locked)
    );
    // It comes again, late.
    assert_eq!(world.ask(restarted(2)), Ok(Answer::Released));
    assert_eq!(world.list().len(), 1);
}

#[test]
fn an_operator_releases_a_client() {
    let mut world = World::new();
    let (a, b) = (world.nlm_client("a"), world.nlm_client("b"));
    for (client, at) in [(a, (0, 4)), (b, (5, 9))] {
        let answer = world.ask(lock(&owner(client, "1"), at, Exclusive, NO));
        assert_eq!(answer, Ok(Answer::Locked));
    }
    let answer = world.ask(lock(&owner(a, "1"), (0, 9), Exclusive, QUEUE));
    assert!(matches!(answer, Ok(Answer::Queued(_))));
    let release = Request::Release(Release::Client(a));
    assert_eq!(world.ask(release.clone()), Ok(Answer::Released));
    assert_eq!(world.ask(release), Err(Refusal::UnknownClient));
    let left: Vec<_> = world.list().into_iter().map(|entry| entry.client).collect();
    assert_eq!(left, [b]);
    assert_eq!(world.locks.waiter_count(), 0);
}

#[test]
fn limits_refuse_with_their_names() {
    let base = Limits::default();
    let cases = [
        (
            Limit::Clients,
            2,
            Limits {
                clients_max: 2,
                ..base
            },
        ),
        (
            Limit::ClientItems,
            2,
            Limits {
                client_items_max: 2,
                ..base
            },
        ),
        (
            Limit::FileRanges,
            2,
            Limits {
                file_ranges_max: 2,
                ..base
            },
        ),
        (
            Limit::FileOpens,
            2,
            Limits {
                file_opens_max: 2,
                ..base
            },
        ),
        (
            Limit::FileWaiters,
            2,
            Limits {
                file_waiters_max: 2,
                ..base
            },
        ),
        (
            Limit::VolumeWaiters,
            2,
            Limits {
                volume_waiters_max: 2,
                ..base
            },
        ),
        (
            Limit::MemoryBytes,
            6000,
            Limits {
                memory_bytes_max: 6000,
                ..base
            },
        ),
    ];
    for (limit, max, limits) in cases {
        let mut world = World::with(limits);
        let (a, b) = (world.nlm_client("a"), world.nlm_client("b"));
        let (mut refused, mut done) = (None, 0);
        for at in 0..100u64 {
            let who = owner(
                if limit == Limit::ClientItems { a } else { b },
                &at.to_string(),
            );
            let request = match limit {
                Limit::Clients => Request::Confirm {
                    identity: identity(&format!("c{at}"), LockProtocol::Smb),
                    verifier: [0; 8],
                    lease_ms: 0,
                },
                Limit::FileOpens => Request::Open {
                    owner: who,
                    ino: FILE,
                    access: ShareBits::READ,
                    deny: ShareBits::NONE,
                },
                Limit::FileWaiters | Limit::VolumeWaiters => lock(&who, (0, 0), Exclusive, QUEUE),
                _ => lock(&who, (2 * at, 2 * at), Exclusive, NO),
            };
            match world.ask(request) {
                Ok(_) => done += 1,
                Err(refusal) => {
                    refused = Some(refusal);
                    break;
                }
            }
        }
        assert_eq!(refused, Some(Refusal::Limit { limit, max }), "{limit:?}");
        let want = match limit {
            Limit::Clients => 0,
            // The first of them has the lock.
            Limit::FileWaiters | Limit::VolumeWaiters => 3,
            Limit::MemoryBytes => done,
            _ => 2,
        };
        assert_eq!(done, want, "{limit:?}");
        assert!(world.locks.memory_bytes() <= limits.memory_bytes_max);
        world.check();
    }
}

#[test]
fn an_unlock_may_split_only_within_the_limit_and_always_shrink() {
    let limits = Limits {
        file_ranges_max: 1,
        ..Limits::default()
    };
    let mut world = World::with(limits);
    let who = owner(world.nlm_client("a"), "1");
    assert_eq!(
        world.ask(lock(&who, (0, 9), Exclusive, NO)),
        Ok(Answer::Locked)
    );
    let answer = world.ask(unlock(&who, (4, 4)));
    assert!(matches!(
        answer,
        Err(Refusal::Limit {
            limit: Limit::FileRanges,
            ..
        })
    ));
    assert_eq!(world.ask(unlock(&who, (4, 9))), Ok(Answer::Unlocked));
    assert_eq!(world.ask(unlock(&who, (0, 9))), Ok(Answer::Unlocked));
}

#[test]
fn silent_clients_make_room_for_others() {
    let mut world = World::with(Limits {
        clients_max: 2,
        ..Limits::default()
    });
    let a = world.client("a");
    world.wait_ms(1);
    world.client("b");
    world.wait_ms(u64::from(LEASE_MS));
    world.client("c");
    assert_eq!(gone(&world), [(a, GoneReason::Expired)]);
}

#[test]
fn a_list_comes_in_pages() {
    let mut world = World::new();
    let (a, b) = (world.client("a"), world.client("b"));
    for (client, ino) in [(a, 10), (b, 10), (a, 11), (b, 12), (a, 12)] {
        for at in [0, 10] {
            let request = Request::Lock {
                owner: owner(client, "1"),
                ino: cairn_base::Ino(ino),
                range: range(at, at),
                mode: Shared,
                waiting: NO,
            };
            assert_eq!(world.ask(request), Ok(Answer::Locked));
        }
    }
    let cases = [
        (Filter::default(), 10),
        (
            Filter {
                client: Some(a),
                ..Filter::default()
            },
            6,
        ),
        (
            Filter {
                ino: Some(cairn_base::Ino(12)),
                ..Filter::default()
            },
            4,
        ),
        (
            Filter {
                ino: Some(cairn_base::Ino(10)),
                client: Some(b),
            },
            2,
        ),
        (
            Filter {
                client: Some(ClientId(99)),
                ..Filter::default()
            },
            0,
        ),
        (
            Filter {
                ino: Some(cairn_base::Ino(99)),
                ..Filter::default()
            },
            0,
        ),
    ];
    for (filter, count) in cases {
        let whole = world.locks.list(world.now, filter, None, 100);
        assert_eq!(
            (whole.entries.len(), whole.next),
            (count, None),
            "{filter:?}"
        );
        for size in 1..4 {
            let (mut entries, mut after) = (Vec::new(), None);
            loop {
                let page = world.locks.list(world.now, filter, after, size);
                assert!(page.entries.len() <= size);
                entries.extend(page.entries);
                after = page.next;
                if after.is_none() {
                    break;
                }
            }
            assert_eq!(entries, whole.entries, "{filter:?} by {size}");
        }
    }
    let first = &world.list()[0];
    assert_eq!(
        (first.client, &first.owner[..], first.ino),
        (a, &b"1"[..], FILE)
    );
    assert_eq!(first.identity, identity("a", LockProtocol::Nfs4));
    assert_eq!(first.since, world.now.wall);
    assert!(matches!(first.kind, EntryKind::Range { mode: Shared, .. }));
}

#[test]
fn a_closed_volume_refuses_and_forgets() {
    let mut world = World::new();
    let (a, b) = (world.client("a"), world.client("b"));
    assert_eq!(
        world.ask(lock(&owner(a, "1"), (0, 9), Exclusive, NO)),
        Ok(Answer::Locked)
    );
    let answer = world.ask(lock(&owner(b, "1"), (0, 9), Shared, QUEUE));
    assert!(matches!(answer, Ok(Answer::Queued(_))));
    let mut effects = cairn_locks::Effects::default();
    world.locks.close(&mut effects);
    let refused = |notice: &Notice| {
        matches!(
            notice,
            Notice::Refused {
                refusal: Refusal::Closed,
                ..
            }
        )
    };
    assert_eq!(
        effects
            .notices
            .iter()
            .filter(|notice| refused(notice))
            .count(),
        1
    );
    assert_eq!(world.locks.memory_bytes(), 0);
    let mut effects = cairn_locks::Effects::default();
    let request = lock(&owner(a, "1"), (0, 9), Shared, NO);
    let step = world.locks.prepare(world.now, request, &mut effects);
    assert_eq!(step, Err(Refusal::Closed));
    // The next owner has it.
    world.take_over();
    assert_eq!(world.list().len(), 1);
}

#[test]
fn records_that_cannot_be_together_are_refused() {
    let mut world = World::new();
    let (a, b) = (world.client("a"), world.client("b"));
    for (client, at) in [(a, (0, 4)), (b, (5, 9))] {
        let answer = world.ask(lock(&owner(client, "1"), at, Exclusive, NO));
        assert_eq!(answer, Ok(Answer::Locked));
    }
    let restore = |log: &std::collections::BTreeMap<Key, bytes::Bytes>| {
        let records = log.iter().map(|(key, value)| (key.as_bytes(), &value[..]));
        Locks::restore(Limits::default(), Epoch(2), world.now, records).map(|_| ())
    };
    assert_eq!(restore(&world.log), Ok(()));
    let mut log = world.log.clone();
    log.remove(&Key::lock_client(a.0));
    assert!(matches!(restore(&log), Err(RestoreError::NoClient { .. })));
    let mut log = world.log.clone();
    let range = world.list()[0].number;
    let value = log[&Key::lock_range(FILE, range)].clone();
    log.insert(Key::lock_range(FILE, range + 100), value);
    assert!(matches!(restore(&log), Err(RestoreError::Conflict { .. })));
    let mut log = world.log.clone();
    log.insert(
        Key::lock_client(a.0 + 100),
        log[&Key::lock_client(a.0)].clone(),
    );
    assert!(matches!(restore(&log), Err(RestoreError::SameClient(..))));
    for number in [0, u64::MAX] {
        let mut log = world.log.clone();
        let value = log
            .remove(&Key::lock_range(FILE, range))
            .expect("it is there");
        log.insert(Key::lock_range(FILE, number), value);
        assert_eq!(restore(&log), Err(RestoreError::Number(number)));
    }
    let mut log = world.log.clone();
    log.insert(Key::orphan(FILE), bytes::Bytes::new());
    assert_eq!(restore(&log), Err(RestoreError::OtherKey));
}

#[test]
fn numbers_are_not_given_out_again_by_the_next_owner() {
    let mut world = World::new();
    let a = world.client("a");
    let before = World::new().client("z");
    let Ok(Answer::Opened { open, .. }) = world.ask(Request::Open {
        owner: owner(a, "1"),
        ino: FILE,
        access: ShareBits::READ,
        deny: ShareBits::NONE,
    }) else {
        panic!("it is free");
    };
    world.take_over();
    let b = world.client("b");
    assert!(b.0 > open.0 && b.0 > before.0);
}
