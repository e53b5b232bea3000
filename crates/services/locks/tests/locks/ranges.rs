//! Ranges against a model of POSIX locks that has a map of owners for each byte.

use std::collections::BTreeMap;

use cairn_base::Ino;
use cairn_locks::{
    Answer, ConflictKind, EntryKind, LockMode, Owner, Refusal, Release, Request, Waiting,
};
use proptest::prelude::*;

use crate::world::{
    FILE, World, is_denied, lock, owner, range, smb_handle, test as test_lock, unlock,
};
use LockMode::{Exclusive, Shared};

/// Bytes of the model. The last stands for all that follow.
pub const BYTES: u64 = 12;

/// Who has what, byte by byte.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bytewise(pub BTreeMap<(u64, usize), LockMode>);

impl Bytewise {
    pub fn conflicts(&self, who: usize, (first, last): (u64, u64), mode: LockMode) -> bool {
        (first..=last).any(|byte| {
            self.0.iter().any(|((of_byte, other), held)| {
                *of_byte == byte && *other != who && (mode == Exclusive || *held == Exclusive)
            })
        })
    }

    pub fn set(&mut self, who: usize, (first, last): (u64, u64), mode: Option<LockMode>) {
        for byte in first..=last {
            match mode {
                Some(mode) => self.0.insert((byte, who), mode),
                None => self.0.remove(&(byte, who)),
            };
        }
    }

    /// What the list of the state machine says.
    pub fn of(world: &[cairn_locks::Entry], owners: &[Owner]) -> Self {
        let mut found = Self::default();
        for entry in world {
            let EntryKind::Range { range, mode, .. } = entry.kind else {
                continue;
            };
            let mut all = owners.iter();
            let who =
                all.position(|owner| owner.client == entry.client && owner.name == entry.owner);
            for byte in range.first()..=range.last().min(BYTES - 1) {
                let before = found
                    .0
                    .insert((byte, who.expect("it is one of them")), mode);
                assert_eq!(before, None, "a byte is locked twice by one owner");
            }
        }
        found
    }
}

/// Bytes as the machine has them: the last of the model is the end of the file.
pub fn real((first, last): (u64, u64)) -> (u64, u64) {
    match last {
        last if last == BYTES - 1 => (first, u64::MAX),
        last => (first, last),
    }
}

pub fn any_range() -> impl Strategy<Value = (u64, u64)> {
    (0..BYTES, 0..BYTES).prop_map(|(a, b)| (a.min(b), a.max(b)))
}

pub fn any_mode() -> impl Strategy<Value = LockMode> {
    prop_oneof![Just(Shared), Just(Exclusive)]
}

/// Three owners of two clients.
pub fn owners(world: &mut World) -> Vec<Owner> {
    let (a, b) = (world.nlm_client("a"), world.nlm_client("b"));
    vec![owner(a, "1"), owner(a, "2"), owner(b, "1")]
}

#[derive(Clone, Debug)]
enum Try {
    Lock(usize, (u64, u64), LockMode),
    Unlock(usize, (u64, u64)),
    Test(usize, (u64, u64), LockMode),
    TakeOver,
}

fn tries() -> impl Strategy<Value = Vec<Try>> {
    let one = prop_oneof![
        6 => (0..3usize, any_range(), any_mode()).prop_map(|(who, at, mode)| Try::Lock(who, at, mode)),
        3 => (0..3usize, any_range()).prop_map(|(who, at)| Try::Unlock(who, at)),
        1 => (0..3usize, any_range(), any_mode()).prop_map(|(who, at, mode)| Try::Test(who, at, mode)),
        1 => Just(Try::TakeOver),
    ];
    proptest::collection::vec(one, 1..40)
}

proptest! {
    #[test]
    fn ranges_are_those_of_posix(tries in tries()) {
        let mut world = World::new();
        let owners = owners(&mut world);
        let mut model = Bytewise::default();
        for one in tries {
            match one {
                Try::Lock(who, at, mode) => {
                    let answer = world.ask(lock(&owners[who], real(at), mode, Waiting::No));
                    if model.conflicts(who, at, mode) {
                        prop_assert!(is_denied(&answer), "{answer:?}");
                    } else {
                        prop_assert_eq!(answer, Ok(Answer::Locked));
                        model.set(who, at, Some(mode));
                    }
                }
                Try::Unlock(who, at) => {
                    let answer = world.ask(unlock(&owners[who], real(at)));
                    prop_assert_eq!(answer, Ok(Answer::Unlocked));
                    model.set(who, at, None);
                }
                Try::Test(who, at, mode) => {
                    let answer = world.ask(test_lock(&owners[who], real(at), mode));
                    if model.conflicts(who, at, mode) {
                        prop_assert!(is_denied(&answer), "{answer:?}");
                    } else {
                        prop_assert_eq!(answer, Ok(Answer::Free));
                    }
                }
                Try::TakeOver => world.take_over(),
            }
            let entries = world.list();
            prop_assert_eq!(&Bytewise::of(&entries, &owners), &model);
            // Equal sets of bytes are equal lists: adjacent ranges of one owner differ in mode.
            let mut ends = BTreeMap::new();
            for entry in &entries {
                if let EntryKind::Range { range, mode, .. } = entry.kind {
                    ends.insert((entry.client, entry.owner.clone(), range.last()), mode);
                }
            }
            for entry in &entries {
                if let EntryKind::Range { range, mode, .. } = entry.kind
                    && let Some(before) = range.first().checked_sub(1)
                {
                    let left = ends.get(&(entry.client, entry.owner.clone(), before));
                    prop_assert!(left != Some(&mode), "{entries:?}");
                }
            }
        }
        for owner in &owners {
            prop_assert_eq!(world.ask(unlock(owner, (0, u64::MAX))), Ok(Answer::Unlocked));
        }
        prop_assert_eq!(world.list(), vec![]);
        // Only the two clients are left.
        prop_assert_eq!(world.log.len(), 2);
        let fresh = { let mut fresh = World::new(); owners_of(&mut fresh); fresh.locks.memory_bytes() };
        prop_assert_eq!(world.locks.memory_bytes(), fresh);
    }
}

fn owners_of(world: &mut World) {
    owners(world);
}

#[test]
fn a_denial_says_who_has_what() {
    let mut world = World::new();
    let owners = owners(&mut world);
    let answer = world.ask(lock(&owners[0], (5, u64::MAX), Exclusive, Waiting::No));
    assert_eq!(answer, Ok(Answer::Locked));
    for request in [
        lock(&owners[2], (0, 9), Shared, Waiting::No),
        test_lock(&owners[2], (0, 9), Shared),
    ] {
        let Ok(Answer::Denied(conflict)) = world.ask(request) else {
            panic!("it is not denied");
        };
        assert_eq!(*conflict.owner, owners[0]);
        let (range, mode) = (range(5, u64::MAX), Exclusive);
        assert_eq!(conflict.kind, ConflictKind::Range { range, mode });
    }
}

#[test]
fn files_have_ranges_of_their_own() {
    let mut world = World::new();
    let owners = owners(&mut world);
    for (ino, who) in [(Ino(10), 0), (Ino(11), 2)] {
        let request = Request::Lock {
            owner: owners[who].clone(),
            ino,
            range: cairn_locks::ByteRange::ALL,
            mode: Exclusive,
            waiting: Waiting::No,
        };
        assert_eq!(world.ask(request), Ok(Answer::Locked));
    }
}

#[test]
fn exact_ranges_follow_smb() {
    let mut world = World::new();
    let (a, b) = (world.client("a"), world.client("b"));
    let (handle, other) = (smb_handle(a, "h"), smb_handle(a, "i"));
    let posix = owner(b, "p");
    let mut ask = |request| world.ask(request);
    assert_eq!(
        ask(lock(&handle, (0, 9), Shared, Waiting::No)),
        Ok(Answer::Locked)
    );
    assert_eq!(
        ask(lock(&handle, (5, 14), Shared, Waiting::No)),
        Ok(Answer::Locked)
    );
    // A handle excludes itself: there is no upgrade.
    assert!(is_denied(&ask(lock(
        &handle,
        (0, 0),
        Exclusive,
        Waiting::No
    ))));
    assert!(is_denied(&ask(lock(
        &other,
        (0, 0),
        Exclusive,
        Waiting::No
    ))));
    assert!(is_denied(&ask(lock(
        &posix,
        (14, 14),
        Exclusive,
        Waiting::No
    ))));
    assert_eq!(ask(unlock(&handle, (0, 14))), Err(Refusal::NotLocked));
    assert_eq!(ask(unlock(&handle, (0, 9))), Ok(Answer::Unlocked));
    // The bytes of the second range are locked still.
    assert!(is_denied(&ask(lock(
        &posix,
        (5, 5),
        Exclusive,
        Waiting::No
    ))));
    assert_eq!(ask(unlock(&handle, (5, 14))), Ok(Answer::Unlocked));
    assert_eq!(
        ask(lock(&posix, (0, 99), Exclusive, Waiting::No)),
        Ok(Answer::Locked)
    );
}

#[test]
fn an_operator_releases_one_range() {
    let mut world = World::new();
    let owners = owners(&mut world);
    for at in [(0, 4), (10, 14)] {
        let answer = world.ask(lock(&owners[0], at, Exclusive, Waiting::No));
        assert_eq!(answer, Ok(Answer::Locked));
    }
    let number = world.list()[0].number;
    let item = |number| Request::Release(Release::Item { ino: FILE, number });
    assert_eq!(world.ask(item(number)), Ok(Answer::Released));
    assert_eq!(world.ask(item(number)), Err(Refusal::UnknownItem));
    let left: Vec<_> = world.list().into_iter().map(|entry| entry.kind).collect();
    let kept = EntryKind::Range {
        range: range(10, 14),
        mode: Exclusive,
        style: cairn_locks::RangeStyle::Replace,
    };
    assert_eq!(left, [kept]);
}
