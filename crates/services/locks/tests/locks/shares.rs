//! Share reservations against a model that compares each pair of opens.

use bytes::Bytes;
use cairn_locks::{
    Answer, EntryKind, LockMode, OpenId, Refusal, Release, Request, ShareBits, Step, Use, Waiting,
};
use proptest::prelude::*;

use crate::world::{FILE, World, is_denied, lock, owner, range, smb_handle};

fn bits(bits: u8) -> ShareBits {
    ShareBits::of_bits(bits).expect("they have a meaning")
}

#[derive(Clone, Debug)]
enum Try {
    Open(usize, u8, u8),
    /// Keeps of access and denial what is in these.
    Downgrade(usize, u8, u8),
    Close(usize),
}

fn tries() -> impl Strategy<Value = Vec<Try>> {
    let one = prop_oneof![
        5 => (0..4usize, 0..8u8, 0..8u8).prop_map(|(who, access, deny)| Try::Open(who, access, deny & access.wrapping_mul(3))),
        2 => (0..4usize, 0..8u8, 0..8u8).prop_map(|(who, access, deny)| Try::Open(who, access, deny)),
        2 => (0..4usize, 0..8u8, 0..8u8).prop_map(|(who, access, deny)| Try::Downgrade(who, access, deny)),
        3 => (0..4usize).prop_map(Try::Close),
    ];
    proptest::collection::vec(one, 1..40)
}

proptest! {
    #[test]
    fn opens_exclude_each_other_as_their_bits_say(tries in tries()) {
        let mut world = World::new();
        let (a, b) = (world.nlm_client("a"), world.nlm_client("b"));
        let owners = [owner(a, "1"), owner(a, "2"), owner(b, "1"), owner(b, "2")];
        let mut model: [Option<(OpenId, u8, u8)>; 4] = [None; 4];
        for one in tries {
            match one {
                Try::Open(who, access, deny) => {
                    let request = Request::Open {
                        owner: owners[who].clone(),
                        ino: FILE,
                        access: bits(access),
                        deny: bits(deny),
                    };
                    let answer = world.ask(request);
                    let before = model[who].unwrap_or((OpenId(0), 0, 0));
                    let (access, deny) = (before.1 | access, before.2 | deny);
                    let excluded = (0..4).filter(|other| *other != who).any(|other| {
                        model[other].is_some_and(|(_, has, denies)| access & denies != 0 || deny & has != 0)
                    });
                    if excluded {
                        prop_assert!(is_denied(&answer), "{answer:?}");
                    } else {
                        let Ok(Answer::Opened { open, access: has, deny: denies }) = answer else {
                            panic!("{answer:?}");
                        };
                        prop_assert_eq!((has.bits(), denies.bits()), (access, deny));
                        if let Some((known, ..)) = model[who] {
                            prop_assert_eq!(known, open);
                        }
                        model[who] = Some((open, access, deny));
                    }
                }
                Try::Downgrade(who, access, deny) => {
                    let Some((open, has, denies)) = model[who] else {
                        continue;
                    };
                    let request = |access, deny| Request::Downgrade {
                        client: owners[who].client,
                        ino: FILE,
                        open,
                        access: bits(access),
                        deny: bits(deny),
                    };
                    if access & !has != 0 || deny & !denies != 0 {
                        prop_assert_eq!(world.ask(request(access, deny)), Err(Refusal::NotPart));
                    }
                    let (access, deny) = (access & has, deny & denies);
                    prop_assert_eq!(world.ask(request(access, deny)), Ok(Answer::Downgraded));
                    model[who] = Some((open, access, deny));
                }
                Try::Close(who) => {
                    let open = model[who].map_or(OpenId(u64::MAX), |(open, ..)| open);
                    let answer = world.ask(close(&owners[who], open));
                    match model[who].take() {
                        Some(_) => prop_assert_eq!(answer, Ok(Answer::Closed)),
                        None => prop_assert_eq!(answer, Err(Refusal::UnknownOpen)),
                    }
                }
            }
            let mut found: Vec<_> = world
                .list()
                .into_iter()
                .map(|entry| match entry.kind {
                    EntryKind::Open { access, deny } => (OpenId(entry.number), access.bits(), deny.bits()),
                    other => panic!("{other:?}"),
                })
                .collect();
            let mut wanted: Vec<_> = model.iter().flatten().copied().collect();
            found.sort();
            wanted.sort();
            prop_assert_eq!(found, wanted);
            // Opens that deny nothing are not logged; the clients are.
            let denying = model.iter().flatten().filter(|(_, _, deny)| *deny != 0).count();
            prop_assert_eq!(world.log.len(), 2 + denying);
        }
    }
}

fn close(owner: &cairn_locks::Owner, open: OpenId) -> Request {
    Request::Close {
        client: owner.client,
        ino: FILE,
        open,
        owners: vec![owner.clone()],
    }
}

fn opened(answer: Result<Answer, Refusal>) -> OpenId {
    match answer {
        Ok(Answer::Opened { open, .. }) => open,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_close_releases_the_ranges_of_its_owners() {
    let mut world = World::new();
    let (a, b) = (world.client("a"), world.client("b"));
    let (mine, other) = (owner(a, "1"), owner(b, "1"));
    let open = opened(world.ask(Request::Open {
        owner: mine.clone(),
        ino: FILE,
        access: ShareBits::READ,
        deny: ShareBits::NONE,
    }));
    let exclusive = |owner| lock(owner, (0, 9), LockMode::Exclusive, Waiting::No);
    assert_eq!(world.ask(exclusive(&mine)), Ok(Answer::Locked));
    assert!(is_denied(&world.ask(exclusive(&other))));
    let of_other = Request::Close {
        client: a,
        ino: FILE,
        open,
        owners: vec![other.clone()],
    };
    assert_eq!(world.ask(of_other), Err(Refusal::OtherClient));
    let by_other = Request::Close {
        client: b,
        ino: FILE,
        open,
        owners: Vec::new(),
    };
    assert_eq!(world.ask(by_other), Err(Refusal::UnknownOpen));
    assert_eq!(world.ask(close(&mine, open)), Ok(Answer::Closed));
    assert_eq!(world.ask(exclusive(&other)), Ok(Answer::Locked));
}

#[test]
fn accesses_without_an_open_respect_denials_and_mandatory_ranges() {
    let mut world = World::new();
    let (a, b) = (world.client("a"), world.client("b"));
    let handle = smb_handle(a, "h");
    opened(world.ask(Request::Open {
        owner: handle.clone(),
        ino: FILE,
        access: ShareBits::READ.with(ShareBits::WRITE),
        deny: ShareBits::DELETE,
    }));
    let check = |by: Option<&cairn_locks::Owner>, what, at: Option<(u64, u64)>| Request::Check {
        by: by.cloned(),
        ino: FILE,
        what,
        range: at.map(|(first, last)| range(first, last)),
    };
    let nfs = owner(b, "p");
    for by in [None, Some(&nfs)] {
        assert!(is_denied(&world.ask(check(by, Use::ChangeName, None))));
        let answer = world.ask(check(by, Use::WriteData, Some((0, 9))));
        assert_eq!(answer, Ok(Answer::Allowed));
    }
    // Its own client is not stopped by it.
    let answer = world.ask(check(Some(&handle), Use::ChangeName, None));
    assert_eq!(answer, Ok(Answer::Allowed));
    let request = lock(&handle, (5, 5), LockMode::Exclusive, Waiting::No);
    assert_eq!(world.ask(request), Ok(Answer::Locked));
    let cases = [
        (None, Use::ReadData, (0, 9), false),
        (None, Use::ReadData, (6, 9), true),
        (None, Use::WriteData, (5, 5), false),
        (Some(&nfs), Use::ReadData, (0, 5), false),
        (Some(&handle), Use::WriteData, (0, 9), true),
    ];
    for (by, what, at, is_allowed) in cases {
        let answer = world.ask(check(by, what, Some(at)));
        assert_eq!(answer == Ok(Answer::Allowed), is_allowed, "{what:?} {at:?}");
    }
}

#[test]
fn after_a_takeover_denials_wait_for_opens_that_come_back() {
    let mut world = World::new();
    let (a, b) = (world.client("a"), world.client("b"));
    let open = |client, access, deny| Request::Open {
        owner: owner(client, "1"),
        ino: FILE,
        access,
        deny,
    };
    let (read, write, none) = (ShareBits::READ, ShareBits::WRITE, ShareBits::NONE);
    opened(world.ask(open(a, write, none)));
    world.take_over();
    // The next owner does not know yet that `a` writes.
    let step = world.try_once(open(b, read, write));
    assert!(
        matches!(step, Ok(Step::Wait(cairn_locks::Pause::Reclaim { .. }))),
        "{step:?}"
    );
    opened(world.ask(open(a, write, none)));
    world.locks.reclaimed(a);
    let step = world.try_once(open(b, read, write));
    assert!(matches!(step, Ok(Step::Wait(_))), "{step:?}");
    world.locks.reclaimed(b);
    assert!(is_denied(&world.ask(open(b, read, write))));
}

#[test]
fn what_a_file_had_goes_with_it() {
    let mut world = World::new();
    let (a, b) = (world.client("a"), world.client("b"));
    opened(world.ask(Request::Open {
        owner: owner(a, "1"),
        ino: FILE,
        access: ShareBits::READ,
        deny: ShareBits::WRITE,
    }));
    let exclusive =
        |client, waiting| lock(&owner(client, "1"), (0, 9), LockMode::Exclusive, waiting);
    assert_eq!(world.ask(exclusive(a, Waiting::No)), Ok(Answer::Locked));
    let answer = world.ask(exclusive(b, crate::world::QUEUE));
    assert!(matches!(answer, Ok(Answer::Queued(_))));
    assert_eq!(
        world.ask(Request::Remove { ino: FILE }),
        Ok(Answer::Released)
    );
    assert_eq!(world.list(), vec![]);
    assert_eq!(world.log.len(), 2);
    let refused = |notice: &cairn_locks::Notice| {
        matches!(
            notice,
            cairn_locks::Notice::Refused {
                refusal: Refusal::Removed,
                ..
            }
        )
    };
    assert_eq!(
        world
            .notices
            .iter()
            .filter(|notice| refused(notice))
            .count(),
        1
    );
    // Of nothing.
    let nothing = Request::Release(Release::File(FILE));
    assert_eq!(world.ask(nothing), Ok(Answer::Released));
}

#[test]
fn names_have_a_limit() {
    let mut world = World::new();
    let a = world.client("a");
    let mut too_long = owner(a, "1");
    too_long.name = Bytes::from(vec![1; 1025]);
    let request = lock(&too_long, (0, 0), LockMode::Shared, Waiting::No);
    assert_eq!(world.ask(request), Err(Refusal::BadName));
    too_long.name.truncate(1024);
    let request = lock(&too_long, (0, 0), LockMode::Shared, Waiting::No);
    assert_eq!(world.ask(request), Ok(Answer::Locked));
}
