use super::observed::{
    LostDisk, LowVolume, MemoryUse, ObservedCluster, ObservedEtcd, ObservedLog, ObservedMember,
    ObservedNode,
};
use super::*;
use crate::warning::DiskLoss;

fn lost_disk(label: &str) -> LostDisk {
    LostDisk {
        label: label.to_owned(),
        loss: DiskLoss::Missing,
        why: "the folder is empty".to_owned(),
    }
}

/// Four disks on each of three nodes, of which so many are lost, on so many nodes.
fn on_three_nodes(disks_lost: usize, nodes_lost: usize) -> Observed {
    Observed {
        disk_count: 12,
        disks_lost: vec![lost_disk("/d"); disks_lost],
        tolerated: 2,
        node_count: 3,
        nodes_tolerated: 2,
        nodes_lost,
        layout: "3 mirrors".to_owned(),
        free_percent: Some(50),
        ..Observed::default()
    }
}

#[test]
fn disks_of_one_node_are_lost_with_it() {
    // Disks and nodes lost, health, and whether it is said that no further disk may be lost.
    let cases = [
        ((0, 0), Health::Healthy, false),
        ((2, 1), Health::Degraded, false),
        ((4, 1), Health::Degraded, false),
        ((8, 2), Health::Degraded, true),
        ((2, 2), Health::Degraded, true),
        ((3, 3), Health::Failed, true),
    ];
    for ((disks, nodes), health, is_at_the_limit) in cases {
        let got = judge(&on_three_nodes(disks, nodes));
        assert_eq!(got.health, health, "{disks} on {nodes}");
        let mut warnings = got.warnings.iter();
        let is_told = warnings.any(|warning| *warning == Warning::AtTheLimit);
        assert_eq!(is_told, is_at_the_limit, "{disks} on {nodes}");
    }
}

#[test]
fn it_is_said_how_many_nodes_are_survived() {
    let with = |tolerated, nodes_tolerated| Observed {
        tolerated,
        nodes_tolerated,
        ..on_three_nodes(0, 0)
    };
    let cases = [
        (2, 2, "any 2 disks or any 2 nodes"),
        (2, 1, "any 2 disks or any 1 node"),
        (1, 0, "any 1 disk, of no node"),
        (0, 0, "no disk"),
    ];
    for (tolerated, nodes_tolerated, want) in cases {
        let summary = judge(&with(tolerated, nodes_tolerated)).summary;
        let want = format!("12 disks on 3 nodes, 3 mirrors, survives the loss of {want}");
        assert_eq!(summary, want);
    }
}

fn six() -> Observed {
    Observed {
        disk_count: 6,
        tolerated: 2,
        layout: "4+2".to_owned(),
        free_percent: Some(50),
        ..Observed::default()
    }
}

#[test]
fn the_worst_counts() {
    let lost = |count: usize| Observed {
        disks_lost: (0..count).map(|i| lost_disk(&format!("/d{i}"))).collect(),
        ..six()
    };
    let cases: Vec<(&str, Observed, Health, usize)> = vec![
        ("well", six(), Health::Healthy, 0),
        ("one lost", lost(1), Health::Degraded, 1),
        ("two lost", lost(2), Health::Degraded, 3),
        ("three lost", lost(3), Health::Failed, 4),
        (
            "three lost, and all that was on two of them is on others",
            Observed {
                disks_lost_empty: 2,
                ..lost(3)
            },
            Health::Degraded,
            3,
        ),
        (
            "one disk",
            Observed {
                disk_count: 1,
                tolerated: 0,
                layout: "1 copy, NO REDUNDANCY".to_owned(),
                ..Observed::default()
            },
            Health::NoRedundancy,
            1,
        ),
        (
            "volume read-only",
            Observed {
                volumes_read_only: vec![("main".to_owned(), "no room".to_owned())],
                ..six()
            },
            Health::Degraded,
            1,
        ),
        (
            "volume down",
            Observed {
                volumes_failed: vec![("main".to_owned(), "damaged".to_owned())],
                ..six()
            },
            Health::Failed,
            1,
        ),
        (
            "nearly full",
            Observed {
                free_percent: Some(9),
                ..six()
            },
            Health::Healthy,
            1,
        ),
        (
            "metadata failed on a disk",
            Observed {
                disks_troubled: vec![("/d1".to_owned(), "metadata failed there".to_owned())],
                ..six()
            },
            Health::Degraded,
            1,
        ),
        (
            "data with too few copies",
            Observed {
                narrow_segments: 3,
                ..six()
            },
            Health::Degraded,
            1,
        ),
        (
            "data with one copy",
            Observed {
                narrow_segments: 3,
                single_segments: 1,
                ..six()
            },
            Health::Degraded,
            2,
        ),
        (
            "a disk was taken out, and what was on it is not rebuilt",
            Observed {
                segments_short: Some((7, 1)),
                ..six()
            },
            Health::Degraded,
            1,
        ),
        (
            "two disks were",
            Observed {
                segments_short: Some((7, 0)),
                ..six()
            },
            Health::Degraded,
            2,
        ),
        (
            "a volume may lose less than the others",
            Observed {
                segments_short: Some((7, -1)),
                ..lost(2)
            },
            Health::Failed,
            4,
        ),
        (
            "files are damaged",
            Observed {
                damaged_places: 3,
                ..six()
            },
            Health::Degraded,
            1,
        ),
        (
            "bytes were given up",
            Observed {
                lost_bytes: 65_536,
                ..six()
            },
            Health::Degraded,
            1,
        ),
        (
            "found by too few",
            Observed {
                disks_named: Some(2),
                ..six()
            },
            Health::Healthy,
            1,
        ),
        (
            "found by enough",
            Observed {
                disks_named: Some(3),
                ..six()
            },
            Health::Healthy,
            0,
        ),
        (
            "unprotected volume",
            Observed {
                volumes_unprotected: vec!["scratch".to_owned()],
                ..six()
            },
            Health::Healthy,
            1,
        ),
        (
            "unprotected directory",
            Observed {
                directories_unprotected: vec!["main".to_owned()],
                ..six()
            },
            Health::Healthy,
            1,
        ),
    ];
    for (name, observed, health, warnings) in cases {
        let got = judge(&observed);
        assert_eq!(got.health, health, "{name}");
        assert_eq!(got.warnings.len(), warnings, "{name}: {:?}", got.warnings);
    }
    assert_eq!(
        judge(&lost(1)).summary,
        "6 disks, 1 of them LOST, 4+2, survives the loss of any 1 more"
    );
}

/// What an operator is told in a situation: how the pool is, in words, what may be lost next, and of what they are warned.
struct Told<'a> {
    situation: &'a str,
    observed: Observed,
    health: Health,
    summary: &'a str,
    /// Disks, and where they share drives how many there are and how many may be lost.
    protection: (usize, Option<(usize, usize)>),
    warnings: Vec<Warning>,
}

#[test]
fn the_verdict_of_each_situation_is_exact() {
    let lost = |labels: &[&str], loss| Observed {
        disks_lost: labels
            .iter()
            .map(|label| LostDisk {
                loss,
                ..lost_disk(label)
            })
            .collect(),
        ..six()
    };
    let disk_lost = |label: &str, loss| Warning::DiskLost {
        disk: label.to_owned(),
        loss,
        why: "the folder is empty".to_owned(),
    };
    let low = |free_percent| Observed {
        volumes_low: vec![LowVolume {
            volume: "main".to_owned(),
            limit_bytes: 1 << 30,
            free_percent,
        }],
        ..six()
    };
    let on_drives = |disks_by_drive: &[usize]| Observed {
        disks_by_drive: disks_by_drive.to_vec(),
        ..six()
    };
    let shared = |devices, survived| Warning::SharedDevice {
        disks: 6,
        devices,
        survived,
    };
    let (missing, failed) = (DiskLoss::Missing, DiskLoss::Failed);
    let well = "6 disks, 4+2, survives the loss of any 2";
    let why = || "it does not answer".to_owned();
    let memory = |resident_bytes| {
        Some(MemoryUse {
            resident_bytes,
            limit_bytes: 1000 << 20,
            largest: vec![("dirty", 700 << 20), ("other", 200 << 20)],
        })
    };
    let cases = vec![
        Told {
            situation: "all is well",
            observed: on_drives(&[1; 6]),
            health: Health::Healthy,
            summary: well,
            protection: (2, None),
            warnings: vec![],
        },
        Told {
            situation: "a full volume",
            observed: low(0),
            health: Health::Degraded,
            summary: well,
            protection: (2, None),
            warnings: vec![Warning::VolumeFull {
                volume: "main".to_owned(),
                limit_bytes: 1 << 30,
            }],
        },
        Told {
            situation: "a volume that is nearly full",
            observed: low(9),
            health: Health::Healthy,
            summary: well,
            protection: (2, None),
            warnings: vec![Warning::VolumeLow {
                volume: "main".to_owned(),
                limit_bytes: 1 << 30,
                percent: 9,
            }],
        },
        Told {
            situation: "a full pool",
            observed: Observed {
                free_percent: Some(1),
                is_full: true,
                ..six()
            },
            health: Health::Degraded,
            summary: well,
            protection: (2, None),
            warnings: vec![Warning::PoolFull],
        },
        Told {
            situation: "a lost disk",
            observed: lost(&["/d1"], missing),
            health: Health::Degraded,
            summary: "6 disks, 1 of them LOST, 4+2, survives the loss of any 1 more",
            protection: (1, None),
            warnings: vec![disk_lost("/d1", missing)],
        },
        Told {
            situation: "two lost disks",
            observed: lost(&["/d1", "/d2"], missing),
            health: Health::Degraded,
            summary: "6 disks, 2 of them LOST, 4+2, survives the loss of no disk more",
            protection: (0, None),
            warnings: vec![
                disk_lost("/d1", missing),
                disk_lost("/d2", missing),
                Warning::AtTheLimit,
            ],
        },
        Told {
            situation: "three lost disks",
            observed: lost(&["/d1", "/d2", "/d3"], missing),
            health: Health::Failed,
            summary: "6 disks, 3 of them LOST, 4+2: more is lost than data survives",
            protection: (0, None),
            warnings: vec![
                disk_lost("/d1", missing),
                disk_lost("/d2", missing),
                disk_lost("/d3", missing),
                Warning::AtTheLimit,
            ],
        },
        Told {
            situation: "a lost disk whose data is on others again",
            observed: Observed {
                disks_lost_empty: 1,
                ..lost(&["/d1"], missing)
            },
            health: Health::Degraded,
            summary: "6 disks, 1 of them LOST, 4+2, survives the loss of any 2 more",
            protection: (2, None),
            warnings: vec![disk_lost("/d1", missing)],
        },
        Told {
            situation: "a disk that takes no writes any more",
            observed: lost(&["/d1"], failed),
            health: Health::Degraded,
            summary: "6 disks, 1 of them LOST, 4+2, survives the loss of any 1 more",
            protection: (1, None),
            warnings: vec![disk_lost("/d1", failed)],
        },
        Told {
            situation: "segments that are not rebuilt yet",
            observed: Observed {
                segments_short: Some((7, 1)),
                ..six()
            },
            health: Health::Degraded,
            summary: "6 disks, 4+2, survives the loss of any 1",
            protection: (1, None),
            warnings: vec![Warning::SegmentsShort { count: 7 }],
        },
        Told {
            situation: "segments of one copy",
            observed: Observed {
                narrow_segments: 3,
                single_segments: 1,
                ..six()
            },
            health: Health::Degraded,
            summary: "6 disks, 4+2, survives the loss of no disk",
            protection: (0, None),
            warnings: vec![
                Warning::SegmentsNarrow { count: 3 },
                Warning::SegmentsSingle { count: 1 },
            ],
        },
        Told {
            situation: "six folders on one device",
            observed: on_drives(&[6]),
            health: Health::NoRedundancy,
            summary: "6 folders on 1 device, 4+2: survives no loss of a device",
            protection: (2, Some((1, 0))),
            warnings: vec![shared(1, 0)],
        },
        Told {
            situation: "six folders on two devices",
            observed: on_drives(&[3, 3]),
            health: Health::NoRedundancy,
            summary: "6 folders on 2 devices, 4+2: survives no loss of a device",
            protection: (2, Some((2, 0))),
            warnings: vec![shared(2, 0)],
        },
        Told {
            situation: "six folders on three devices",
            observed: on_drives(&[2, 2, 2]),
            health: Health::Healthy,
            summary: "6 folders on 3 devices, 4+2: survives the loss of any 1 device",
            protection: (2, Some((3, 1))),
            warnings: vec![shared(3, 1)],
        },
        Told {
            situation: "five devices, one of them with two folders",
            observed: on_drives(&[1, 1, 2, 1, 1]),
            health: Health::Healthy,
            summary: "6 folders on 5 devices, 4+2: survives the loss of any 1 device",
            protection: (2, Some((5, 1))),
            warnings: vec![shared(5, 1)],
        },
        Told {
            situation: "a folder that is lost beside five on three devices",
            observed: Observed {
                disks_by_drive: vec![2, 2, 1],
                ..lost(&["/d1"], failed)
            },
            health: Health::Degraded,
            summary: "6 folders on 3 devices, 1 of them LOST, 4+2: survives no loss of a device",
            protection: (1, Some((3, 0))),
            warnings: vec![disk_lost("/d1", failed), shared(3, 0)],
        },
        Told {
            situation: "one disk",
            observed: Observed {
                disk_count: 1,
                tolerated: 0,
                layout: "1 copy, NO REDUNDANCY".to_owned(),
                disks_by_drive: vec![1],
                ..Observed::default()
            },
            health: Health::NoRedundancy,
            summary: "1 disk, 1 copy, NO REDUNDANCY",
            protection: (0, None),
            warnings: vec![Warning::OneDisk],
        },
        Told {
            situation: "a tier that is absent",
            observed: Observed {
                tiers_away: vec![("cold".to_owned(), why())],
                ..six()
            },
            health: Health::Degraded,
            summary: well,
            protection: (2, None),
            warnings: vec![Warning::TierAway {
                tier: "cold".to_owned(),
                why: why(),
            }],
        },
        Told {
            situation: "a memory limit that is exceeded",
            observed: Observed {
                memory: memory((1050 << 20) + 1),
                ..six()
            },
            health: Health::Degraded,
            summary: well,
            protection: (2, None),
            warnings: vec![Warning::MemoryOver {
                resident_bytes: (1050 << 20) + 1,
                limit_bytes: 1000 << 20,
                largest: vec![("dirty", 700 << 20), ("other", 200 << 20)],
            }],
        },
        Told {
            situation: "a memory limit that is reached",
            observed: Observed {
                memory: memory(1050 << 20),
                ..six()
            },
            health: Health::Healthy,
            summary: well,
            protection: (2, None),
            warnings: vec![],
        },
        Told {
            situation: "an encrypted volume whose key is away",
            observed: Observed {
                keys_away: vec![("main".to_owned(), why())],
                ..six()
            },
            health: Health::Failed,
            summary: well,
            protection: (2, None),
            warnings: vec![Warning::KeyAway {
                volume: "main".to_owned(),
                why: why(),
            }],
        },
        Told {
            situation: "secrets that cannot be wrapped",
            observed: Observed {
                secrets_unwrapped: Some(why()),
                ..six()
            },
            health: Health::Degraded,
            summary: well,
            protection: (2, None),
            warnings: vec![Warning::SecretsUnwrapped { why: why() }],
        },
        Told {
            situation: "a scrub that waits for its window",
            observed: Observed {
                scrub_overdue: Some(SCRUB_OVERDUE_MIN - Duration::from_secs(1)),
                ..six()
            },
            health: Health::Healthy,
            summary: well,
            protection: (2, None),
            warnings: vec![],
        },
        Told {
            situation: "a scrub that does not come to its turn",
            observed: Observed {
                scrub_overdue: Some(SCRUB_OVERDUE_MIN),
                ..six()
            },
            health: Health::Healthy,
            summary: well,
            protection: (2, None),
            warnings: vec![Warning::ScrubOverdue {
                late: SCRUB_OVERDUE_MIN,
            }],
        },
    ];
    for case in cases {
        let got = judge(&case.observed);
        let (disks, devices) = case.protection;
        let want = Judgement {
            health: case.health,
            summary: case.summary.to_owned(),
            protection: LossesSurvived { disks, devices },
            warnings: case.warnings,
            survives: None,
        };
        assert_eq!(got, want, "{}", case.situation);
    }
}

/// However folders are spread over drives: as many as are said to be survived can go, and one more could be too many.
#[test]
fn the_drives_that_may_be_lost_are_never_too_many() {
    for by_drive in [
        vec![6],
        vec![5, 1],
        vec![4, 2],
        vec![3, 2, 1],
        vec![2, 2, 1, 1],
        vec![2, 1, 1, 1, 1],
    ] {
        for tolerated in 1..=4 {
            let observed = Observed {
                disks_by_drive: by_drive.clone(),
                tolerated,
                ..six()
            };
            let (devices, survived) = observed.protection().devices.expect("they share");
            assert_eq!(devices, by_drive.len());
            // They are in the order of the worst.
            let worst = |count: usize| by_drive.iter().take(count).sum::<usize>();
            assert!(worst(survived) <= tolerated, "{by_drive:?} {tolerated}");
            assert!(worst(survived + 1) > tolerated, "{by_drive:?} {tolerated}");
        }
    }
}

/// Five nodes with a member of etcd each, a volume with three copies of its log; all is well.
fn cluster() -> Observed {
    let names = || (1..=5).map(|number| format!("node{number}"));
    let node = |name: String| ObservedNode {
        name,
        is_alive: true,
        is_reached: true,
        ..ObservedNode::default()
    };
    let member = |name: String| ObservedMember {
        name,
        problem: None,
    };
    Observed {
        disk_count: 5,
        tolerated: 2,
        node_count: 5,
        nodes_tolerated: 2,
        cluster: Some(ObservedCluster {
            has_lease: true,
            nodes: names().map(node).collect(),
            etcd: ObservedEtcd {
                is_own: true,
                members: names().map(member).collect(),
                problem: None,
                plain: Vec::new(),
            },
            logs: vec![ObservedLog {
                volume: "main".to_owned(),
                copies: 3,
                wanted: 3,
            }],
            ..ObservedCluster::default()
        }),
        ..six()
    }
}

#[test]
fn of_a_cluster_it_is_said_what_may_be_lost_next() {
    type Harm = fn(&mut ObservedCluster);
    // Without loss, and with service.
    type Survived = (usize, usize);
    // The fault, how bad it is, how many warnings, and the nodes that may go without loss and with service.
    let cases: [(&str, Harm, Health, usize, Survived); 16] = [
        ("well", |_| {}, Health::Healthy, 0, (2, 2)),
        (
            "a member of etcd hangs",
            |it| it.etcd.members[0].problem = Some("does not answer".to_owned()),
            Health::Degraded,
            1,
            (2, 1),
        ),
        (
            "so many that none may go",
            |it| {
                for member in &mut it.etcd.members[..2] {
                    member.problem = Some("does not answer".to_owned());
                }
            },
            Health::Degraded,
            2,
            (2, 0),
        ),
        (
            "too many",
            |it| {
                for member in &mut it.etcd.members[..3] {
                    member.problem = Some("does not answer".to_owned());
                }
            },
            Health::Degraded,
            4,
            (2, 0),
        ),
        (
            "etcd does not say who is a member",
            |it| it.etcd.problem = Some("no answer".to_owned()),
            Health::Degraded,
            1,
            (2, 0),
        ),
        (
            "somebody else's etcd",
            |it| it.etcd.is_own = false,
            Health::Healthy,
            0,
            (2, 2),
        ),
        (
            "somebody else's etcd without TLS",
            |it| {
                it.etcd.is_own = false;
                it.etcd.plain = vec!["http://etcd.example:2379".to_owned()];
            },
            Health::Healthy,
            1,
            (2, 2),
        ),
        (
            "a node is away",
            |it| it.nodes[4].is_alive = false,
            Health::Degraded,
            1,
            (1, 1),
        ),
        (
            "a node is meant to be away",
            |it| {
                it.nodes[4].is_alive = false;
                it.nodes[4].maintenance = Some(std::time::Duration::from_secs(60));
            },
            Health::Healthy,
            1,
            (1, 1),
        ),
        (
            "too few copies of a log",
            |it| it.logs[0].copies = 2,
            Health::Degraded,
            1,
            (1, 1),
        ),
        (
            "a volume nobody owns",
            |it| it.without_owner.push(("main".to_owned(), Vec::new())),
            Health::Failed,
            1,
            (2, 0),
        ),
        (
            "no lease",
            |it| it.has_lease = false,
            Health::Failed,
            1,
            (2, 2),
        ),
        (
            "a full file system below etcd",
            |it| it.nodes[1].folder_is_low = true,
            Health::Degraded,
            1,
            (2, 2),
        ),
        (
            "more volumes than memory",
            |it| (it.nodes[1].volumes, it.nodes[1].volumes_max) = (5, Some(4)),
            Health::Degraded,
            1,
            (2, 2),
        ),
        (
            "as many volumes as memory",
            |it| (it.nodes[1].volumes, it.nodes[1].volumes_max) = (4, Some(4)),
            Health::Healthy,
            0,
            (2, 2),
        ),
        (
            "one node alone has a key",
            |it| it.openers_least = Some(1),
            Health::Healthy,
            0,
            (2, 0),
        ),
    ];
    for (name, harm, health, warnings, (data, service)) in cases {
        let mut observed = cluster();
        if let Some(cluster) = &mut observed.cluster {
            harm(cluster);
        }
        let got = judge(&observed);
        assert_eq!(got.health, health, "{name}");
        assert_eq!(got.warnings.len(), warnings, "{name}: {:?}", got.warnings);
        let want = NodesSurvived { data, service };
        assert_eq!(got.survives, Some(want), "{name}");
    }
}
