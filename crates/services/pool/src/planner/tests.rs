use cairn_segment::DiskRoom;

use super::*;

const VOLUME: VolumeId = VolumeId(1);
const DELAY: Duration = Duration::from_secs(600);

fn disk(id: u128) -> SeenDisk {
    SeenDisk {
        is_awaited: false,
        id: DiskId(id),
        is_draining: false,
        is_replaced: false,
        works: true,
        holds_nothing: false,
    }
}

fn segment(id: u64, disks: &[u128]) -> SegmentInfo {
    SegmentInfo {
        id: SegmentId(id),
        code: Code::new(disks.len() as u8 - 2, 2).unwrap(),
        disks: disks.iter().map(|disk| DiskId(*disk)).collect(),
        shard_len_bytes: 10,
        sealed: true,
        remote: None,
        media: None,
        protection: None,
    }
}

/// A pool of so many disks, with these segments in its one volume, whose metadata is on the first three disks.
fn seen(disk_count: u128, segments: Vec<SegmentInfo>) -> Observed {
    let records = segments.iter();
    let records = records.map(|info| (info.id, (5, info.disks.clone())));
    let room = |id| DiskRoom {
        disk: DiskId(id),
        media: None,
        node: cairn_base::NodeId::ONLY,
        free_bytes: 1 << 30,
        reserve_bytes: 0,
    };
    Observed {
        now: Duration::ZERO,
        disks: (1..=disk_count).map(disk).collect(),
        volumes: vec![SeenVolume {
            is_elsewhere: false,
            id: VOLUME,
            name: "main".to_owned(),
            content: Some(SeenContent {
                records: records.collect(),
                segments,
                codes: BTreeMap::from([(None, Code::new(2, 2).unwrap())]),
                metadata_disks: (1..=3).map(DiskId).collect(),
                primary: Some(DiskId(1)),
                copies: 3,
                copies_wanted: 3,
                ..SeenContent::default()
            }),
        }],
        room: MoveRoom::new((1..=disk_count).map(room)),
        free_bytes: 1 << 30,
        default_code: Code::new(2, 2).unwrap(),
    }
}

fn content(seen: &mut Observed) -> &mut SeenContent {
    seen.volumes[0].content.as_mut().unwrap()
}

/// The actions in short.
fn told(actions: &[Action]) -> Vec<String> {
    let one = |action: &Action| match action {
        Action::MoveState { off, .. } => format!("state off {}", off.0),
        Action::RetireMetadata { disk, .. } => format!("metadata off {}", disk.0),
        Action::SetCopies { .. } => "copies".to_owned(),
        Action::StateToFaster { .. } => "to a faster disk".to_owned(),
        Action::MoveShard { segment, index, .. } => format!("move {}.{index}", segment.0),
        Action::Rewrite { segments, .. } => {
            let ids: Vec<String> = segments.iter().map(|id| id.0.to_string()).collect();
            format!("rewrite {}", ids.join(" "))
        }
        Action::Forget { disk } => format!("forget {}", disk.0),
        Action::NoteEmpty { disk } => format!("note empty {}", disk.0),
    };
    actions.iter().map(one).collect()
}

fn step(planner: &mut Planner, seen: &Observed) -> Vec<String> {
    told(&planner.step(seen))
}

#[test]
fn what_is_done_follows_from_what_is_seen() {
    type Change = fn(&mut Observed);
    let cases: &[(&str, Change, &[&str])] = &[
        ("all is well", |_| {}, &[]),
        (
            "a disk with shards and a copy of the metadata drains",
            |seen| seen.disks[1].is_draining = true,
            &["metadata off 2", "move 1.1", "move 2.0"],
        ),
        (
            "the disk of the state drains",
            |seen| seen.disks[0].is_draining = true,
            &["state off 1", "move 1.0"],
        ),
        (
            "a disk is away, and may come back",
            |seen| seen.disks[4].works = false,
            &[],
        ),
        (
            "a lost disk drains: what has lost some comes before what only moves",
            |seen| {
                seen.disks[5].is_draining = true;
                seen.disks[4].is_draining = true;
                seen.disks[4].works = false;
            },
            &["move 2.3", "move 3.3"],
        ),
        (
            "a replaced disk with nothing on it",
            |seen| {
                seen.disks[5].is_draining = true;
                seen.disks[5].is_replaced = true;
                content(seen).segments.pop();
                content(seen).records.pop_last();
            },
            &["forget 6"],
        ),
        (
            "a drained disk stays until somebody removes it",
            |seen| {
                seen.disks[5].is_draining = true;
                content(seen).segments.pop();
                content(seen).records.pop_last();
            },
            &[],
        ),
        (
            "a replaced disk is not forgotten before all is moved",
            |seen| {
                seen.disks[1].is_draining = true;
                seen.disks[5].is_draining = true;
                seen.disks[5].is_replaced = true;
                content(seen).segments.pop();
                content(seen).records.pop_last();
            },
            &["metadata off 2", "move 1.1", "move 2.0"],
        ),
        (
            "the metadata has too few copies",
            |seen| content(seen).copies = 2,
            &["copies"],
        ),
        (
            "less protection than is asked for",
            |seen| content(seen).segments[1].code = Code::new(3, 1).unwrap(),
            &["rewrite 2"],
        ),
        (
            "the same, and not committed yet",
            |seen| {
                content(seen).segments[1].code = Code::new(3, 1).unwrap();
                content(seen).records.remove(&SegmentId(2));
            },
            &[],
        ),
        (
            "the same, and no room",
            |seen| {
                content(seen).segments[1].code = Code::new(3, 1).unwrap();
                seen.free_bytes = 79;
            },
            &[],
        ),
        (
            "nothing moves while the metadata is opened on other disks",
            |seen| {
                seen.disks[5].is_draining = true;
                content(seen).is_metadata_failing = true;
            },
            &[],
        ),
        (
            "nothing moves while a new place is not durable",
            |seen| {
                seen.disks[5].is_draining = true;
                content(seen).is_commit_late = true;
            },
            &[],
        ),
        (
            "nothing of a volume that is only read moves",
            |seen| {
                seen.disks[0].is_draining = true;
                seen.disks[1].is_draining = true;
                content(seen).is_beside_faster = true;
                content(seen).copies += 1;
                content(seen).is_read_only = true;
            },
            &[],
        ),
        (
            "nothing is known of a volume that is not served",
            |seen| {
                seen.disks[5].is_draining = true;
                seen.volumes[0].content = None;
            },
            &[],
        ),
    ];
    for (name, change, want) in cases {
        let segments = vec![
            segment(1, &[1, 2, 3, 4]),
            segment(2, &[2, 3, 4, 5]),
            segment(3, &[3, 4, 5, 6]),
        ];
        let mut seen = seen(6, segments);
        // Of those that two disks drain the one that is lost counts first.
        if name.starts_with("a lost disk drains") {
            content(&mut seen).segments[1].disks[3] = DiskId(5);
            content(&mut seen).segments[2].disks = [3, 4, 1, 6].map(DiskId).to_vec();
        }
        change(&mut seen);
        let mut planner = Planner::new(DELAY);
        assert_eq!(step(&mut planner, &seen), *want, "{name}");
    }
}

#[test]
fn a_lost_disk_is_waited_for_and_then_made_anew_elsewhere() {
    let mut seen = seen(5, vec![segment(1, &[1, 2, 3, 4])]);
    let mut planner = Planner::new(DELAY);
    seen.disks[3].works = false;
    assert_eq!(step(&mut planner, &seen), [""; 0]);
    seen.now = DELAY - Duration::from_secs(1);
    assert_eq!(step(&mut planner, &seen), [""; 0]);
    seen.now = DELAY;
    assert_eq!(step(&mut planner, &seen), ["move 1.3"]);
    assert_eq!(planner.left().shards_missing, 1);
    // It is back in the last moment.
    seen.disks[3].works = true;
    assert_eq!(step(&mut planner, &seen), [""; 0]);
    seen.disks[3].works = false;
    assert_eq!(
        step(&mut planner, &seen),
        [""; 0],
        "it is waited for once more"
    );
}

#[test]
fn a_lost_disk_holds_nothing_when_no_volume_needs_anything_from_it() {
    type Change = fn(&mut Observed);
    let cases: &[(&str, Change, &[&str])] = &[
        ("nothing is on it", |_| {}, &["note empty 5"]),
        (
            "that is known already",
            |seen| seen.disks[4].holds_nothing = true,
            &[],
        ),
        ("it works", |seen| seen.disks[4].works = true, &[]),
        (
            "a segment has a shard on it",
            |seen| content(seen).segments[0].disks[3] = DiskId(5),
            &["move 1.3"],
        ),
        (
            "a segment of the metadata has, which the store does not know",
            |seen| {
                let disks = vec![DiskId(5)];
                content(seen).records.insert(SegmentId(9), (5, disks));
            },
            &[],
        ),
        (
            "metadata is on it",
            |seen| {
                content(seen).metadata_disks.insert(DiskId(5));
            },
            &["metadata off 5"],
        ),
        (
            "the metadata lacks copies",
            |seen| content(seen).is_metadata_degraded = true,
            &[],
        ),
        (
            "a volume is not served",
            |seen| seen.volumes[0].content = None,
            &[],
        ),
    ];
    for (name, change, want) in cases {
        let mut seen = seen(6, vec![segment(1, &[1, 2, 3, 4])]);
        seen.disks[4].works = false;
        change(&mut seen);
        let mut planner = Planner::new(Duration::ZERO);
        assert_eq!(step(&mut planner, &seen), *want, "{name}");
    }
}

/// What cannot be moved is rewritten, if that helps; else it waits.
#[test]
fn what_comes_of_a_move_decides_what_follows() {
    let cases: &[(&str, Outcome, &[&str])] = &[
        (
            "all disks hold one",
            Outcome::MoveFailed(MoveError::NoTarget),
            &["rewrite 1"],
        ),
        (
            "nothing vouches for it",
            Outcome::MoveFailed(MoveError::Unsealed),
            &["rewrite 1"],
        ),
        (
            "bytes were lost",
            Outcome::Moved { lost_bytes: 1 },
            &["rewrite 1"],
        ),
        ("not durable", Outcome::NotPlaced, &[]),
        (
            "not now",
            Outcome::MoveFailed(MoveError::NotNow),
            &["move 1.3"],
        ),
        ("not tried", Outcome::NotNow, &["move 1.3"]),
    ];
    for (name, outcome, want) in cases {
        let mut seen = seen(5, vec![segment(1, &[1, 2, 3, 4])]);
        seen.disks[3].is_draining = true;
        let mut planner = Planner::new(DELAY);
        let actions = planner.step(&seen);
        assert_eq!(told(&actions), ["move 1.3"]);
        planner.note(seen.now, &actions[0], outcome);
        assert_eq!(planner.has_more(), want.first() == Some(&"rewrite 1"));
        assert_eq!(step(&mut planner, &seen), *want, "{name}");
        if want.is_empty() {
            seen.now += RETRY_AFTER;
            assert_eq!(step(&mut planner, &seen), ["move 1.3"], "{name}");
        }
    }
}

#[test]
fn a_disk_that_cannot_be_let_go_is_tried_again_later() {
    let mut seen = seen(5, Vec::new());
    seen.disks[4].is_draining = true;
    seen.disks[4].is_replaced = true;
    let mut planner = Planner::new(DELAY);
    let actions = planner.step(&seen);
    assert_eq!(told(&actions), ["forget 5"]);
    let why = "the replaced disk stays".to_owned();
    planner.note(seen.now, &actions[0], &Outcome::Stays(why.clone()));
    assert_eq!(step(&mut planner, &seen), [""; 0]);
    assert!(planner.problems(seen.now).contains(&why));
    planner.wake();
    assert_eq!(step(&mut planner, &seen), ["forget 5"]);
    planner.note(seen.now, &actions[0], &Outcome::Stays(why));
    seen.now += RETRY_AFTER;
    assert_eq!(step(&mut planner, &seen), ["forget 5"]);
}

#[test]
fn a_step_is_bounded_and_most_urgent_first() {
    let mut segments: Vec<SegmentInfo> = (1..=100).map(|id| segment(id, &[1, 2, 3, 6])).collect();
    segments.push(segment(101, &[1, 2, 5, 6]));
    let mut seen = seen(7, segments);
    seen.disks[5].is_draining = true;
    seen.disks[4].is_draining = true;
    seen.disks[4].works = false;
    let mut planner = Planner::new(DELAY);
    let actions = step(&mut planner, &seen);
    assert_eq!(actions.len(), STEP_SHARDS_MAX);
    assert_eq!(actions[..3], ["move 101.2", "move 101.3", "move 1.3"]);
    assert_eq!(planner.left().shards, 102);
}

/// A look at a million segments takes long, and the first moves that it finds are a small part of them.
#[test]
fn what_a_look_found_is_gone_through_before_the_next_look() {
    let segments = (1..=70).map(|id| segment(id, &[1, 2, 3, 6])).collect();
    let mut seen = seen(7, segments);
    seen.disks[5].is_draining = true;
    let mut planner = Planner::new(DELAY);
    assert_eq!(step(&mut planner, &seen).len(), STEP_SHARDS_MAX);
    // As long as looks take no time there is one for each step.
    assert_eq!(planner.go_on(&seen.disks, seen.now), None);
    let took = Duration::from_millis(100);
    planner.note_look(seen.now, took);
    let then = planner.go_on(&seen.disks, seen.now).expect("some are left");
    assert_eq!(then.len(), STEP_SHARDS_MAX);
    assert_eq!(told(&then)[0], "move 33.3");
    // What came of it is noted as ever.
    planner.note(
        seen.now,
        &then[0],
        &Outcome::MoveFailed(MoveError::NoTarget),
    );
    assert!(
        planner.has_more(),
        "it leaves for good: its records are rewritten"
    );
    assert_eq!(
        planner.go_on(&seen.disks, seen.now),
        None,
        "that comes first"
    );
    let actions = step(&mut planner, &seen);
    assert_eq!(actions, ["rewrite 33"]);
    // Not when disks are not as they were, nor when the next look may be afforded, nor when something changed.
    let refill = |planner: &mut Planner, seen: &Observed| {
        assert_eq!(step(planner, seen).len(), STEP_SHARDS_MAX);
        planner.note_look(seen.now, took);
    };
    refill(&mut planner, &seen);
    let mut disks = seen.disks.clone();
    disks[0].is_draining = true;
    assert_eq!(planner.go_on(&disks, seen.now), None);
    let later = seen.now + took * LOOK_PARTS;
    assert_eq!(planner.go_on(&seen.disks, later), None);
    planner.wake();
    assert_eq!(planner.go_on(&seen.disks, seen.now), None);
    // The rest, and then another look.
    refill(&mut planner, &seen);
    let mut left = Vec::new();
    while let Some(actions) = planner.go_on(&seen.disks, seen.now) {
        left.extend(told(&actions));
    }
    assert_eq!(left.len(), 70 - STEP_SHARDS_MAX);
    // However long a look takes, there is one soon.
    planner.note_look(seen.now, Duration::from_secs(3600));
    refill(&mut planner, &seen);
    planner.note_look(seen.now, Duration::from_secs(3600));
    assert_eq!(planner.go_on(&seen.disks, seen.now + LOOK_PAUSE_MAX), None);
}

/// Of a node that is meant to be away nothing is given up, and the delay begins when that is over.
#[test]
fn what_is_awaited_is_not_given_up() {
    let mut planner = Planner::new(DELAY);
    let mut away = disk(1);
    (away.works, away.is_awaited) = (false, true);
    let mut stands = |disk: SeenDisk, now: Duration| {
        let standings = planner.standings(&[disk], now);
        standings.get(&disk.id).copied()
    };
    assert_eq!(stands(away, Duration::ZERO), Some(Standing::Away));
    assert_eq!(stands(away, DELAY * 10), Some(Standing::Away));
    away.is_awaited = false;
    assert_eq!(stands(away, DELAY * 10 + DELAY / 2), Some(Standing::Away));
    assert_eq!(stands(away, DELAY * 11), Some(Standing::GivenUp));
    // One that is to leave is not waited for.
    (away.is_awaited, away.is_draining) = (true, true);
    assert_eq!(stands(away, DELAY * 12), Some(Standing::Gone));
}

/// With all disks fine all segments are looked at now and then only.
#[test]
fn nothing_is_looked_at_again_and_again_while_all_is_well() {
    let seen = seen(5, vec![segment(1, &[1, 2, 3, 4])]);
    let mut planner = Planner::new(DELAY);
    assert!(planner.is_due(&seen.disks, seen.now));
    assert_eq!(step(&mut planner, &seen), [""; 0]);
    assert!(!planner.is_due(&seen.disks, seen.now));
    assert!(planner.is_due(&seen.disks, seen.now + FINE_INTERVAL));
    let mut draining = seen.disks.clone();
    draining[0].is_draining = true;
    assert!(planner.is_due(&draining, seen.now));
}

#[test]
fn only_what_others_have_can_be_made_anew() {
    let info = segment(1, &[1, 2, 3, 4]);
    let stand = |standings: &[(u128, Standing)]| {
        let fine = (1..=4).map(|id| (DiskId(id), Standing::Fine));
        let other = standings
            .iter()
            .map(|(id, standing)| (DiskId(*id), *standing));
        fine.chain(other).collect::<BTreeMap<_, _>>()
    };
    let cases: &[(&[(u128, Standing)], bool)] = &[
        (&[], true),
        (&[(2, Standing::Draining), (3, Standing::Draining)], true),
        (&[(2, Standing::Away)], true),
        (&[(2, Standing::Away), (3, Standing::Fine)], true),
        (&[(2, Standing::Away), (3, Standing::GivenUp)], false),
        (&[(2, Standing::Gone), (3, Standing::Away)], false),
    ];
    for (standings, want) in cases {
        let got = is_rebuildable(&info, DiskId(1), &stand(standings));
        assert_eq!(got, *want, "{standings:?}");
        // Nothing of it is on that disk.
        assert!(is_rebuildable(&info, DiskId(9), &stand(standings)));
    }
}

#[test]
fn a_state_beside_a_faster_disk_moves_to_it_and_is_not_tried_all_the_time() {
    let mut seen = seen(4, Vec::new());
    let mut planner = Planner::new(Duration::ZERO);
    assert!(planner.step(&seen).is_empty());
    content(&mut seen).is_beside_faster = true;
    let action = Action::StateToFaster { volume: VOLUME };
    assert_eq!(planner.step(&seen), std::slice::from_ref(&action));
    let why = "it has no space".to_owned();
    planner.note(seen.now, &action, &Outcome::Stays(why.clone()));
    assert!(planner.step(&seen).is_empty());
    assert_eq!(planner.problems(seen.now), [why]);
    seen.now += RETRY_AFTER;
    assert_eq!(planner.step(&seen), std::slice::from_ref(&action));
    // While its disk fails it is opened elsewhere.
    content(&mut seen).is_metadata_failing = true;
    assert!(planner.step(&seen).is_empty());
}

/// Shards move to emptier disks where nothing else is to be done, one step after the other as long as that gets somewhere.
#[test]
fn what_is_spread_waits_for_all_else_and_goes_on_while_something_moves() {
    let mut planner = Planner::new(DELAY);
    let segments = || vec![segment(1, &[1, 2, 3, 4]), segment(2, &[2, 3, 4, 5])];
    let mut seen = seen(6, segments());
    let to_six = |info: &SegmentInfo| Work::spreading(VOLUME, info, 1, DiskId(6));
    assert_eq!(step(&mut planner, &seen), [""; 0]);
    assert!(planner.is_at_rest());
    let actions = planner.spread(segments().iter().map(to_six).collect());
    assert_eq!(told(&actions), ["move 1.1", "move 2.1"]);
    let goes_to_six = |action: &Action| {
        let Action::MoveShard { to, urgency, .. } = action else {
            return false;
        };
        *to == Some(DiskId(6)) && *urgency == Urgency::Calm
    };
    assert!(actions.iter().all(goes_to_six));

    // It fails: nothing is told, nothing is rewritten, and the next look is not at once.
    let later = Duration::from_secs(1);
    for error in [MoveError::Unsealed, MoveError::NoTarget] {
        planner.note(later, &actions[0], &Outcome::MoveFailed(error));
    }
    planner.note(later, &actions[1], &Outcome::NotPlaced);
    assert_eq!(planner.problems(later), [""; 0]);
    assert!(!planner.has_more());
    assert!(!planner.is_due(&seen.disks, later));
    assert!(planner.is_due(&seen.disks, FINE_INTERVAL));

    // It gets somewhere: it is looked at once what is next.
    planner.spread(segments().iter().map(to_six).collect());
    planner.note(later, &actions[0], &Outcome::Moved { lost_bytes: 0 });
    assert!(planner.is_due(&seen.disks, later));
    seen.disks[4].works = false;
    seen.now = later;
    step(&mut planner, &seen);
    assert!(!planner.is_at_rest(), "a disk is away");
    seen.disks[4].works = true;
    seen.disks[3].is_draining = true;
    assert_ne!(step(&mut planner, &seen), [""; 0]);
    assert!(!planner.is_at_rest(), "a disk drains");

    // Bytes that are lost are what they always are.
    seen.disks[3].is_draining = false;
    step(&mut planner, &seen);
    planner.spread(segments().iter().map(to_six).collect());
    planner.note(later, &actions[0], &Outcome::Moved { lost_bytes: 7 });
    assert_eq!(step(&mut planner, &seen), ["rewrite 1"]);
}
