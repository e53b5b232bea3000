//! Says how the pool is, in one word and in sentences.
//!
//! Owns: the judgement, a pure function of what was observed.

use cairn_base::domain::{Losses, Survives};

/// How the pool is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// All disks serve and data is protected as set.
    Healthy,
    /// All is well, but a lost disk would be lost data: there is only one, or one copy.
    NoRedundancy,
    /// Everything is served; some protection is lost.
    Degraded,
    /// Something cannot be served.
    Failed,
}

/// What there is to judge.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    pub disk_count: usize,
    /// Labels, each with what is wrong: missing at start, or failed since.
    pub disks_lost: Vec<String>,
    /// How many of them hold nothing that anybody needs: all that was on them is on others.
    pub disks_lost_empty: usize,
    /// Labels of disks that are used in spite of what is wrong with them, each with what that is.
    pub disks_troubled: Vec<String>,
    /// Disks that data of the default protection can lose.
    pub tolerated: usize,
    /// How many nodes the disks are on.
    pub node_count: usize,
    /// Nodes that data of the default protection can lose; none if there is one.
    pub nodes_tolerated: usize,
    /// How many nodes have a lost disk that holds something that is needed.
    pub nodes_lost: usize,
    /// How that data is laid out.
    pub layout: String,
    /// Volumes that are not served, each with why.
    pub volumes_failed: Vec<String>,
    /// Volumes whose metadata has fewer copies than it should.
    pub volumes_degraded: Vec<String>,
    /// Volumes that one lost disk would damage although the pool could protect them.
    pub volumes_unprotected: Vec<String>,
    /// Volumes with directories that ask for no protection.
    pub directories_unprotected: Vec<String>,
    /// Parts of the data that have less protection than is asked for.
    pub narrow_segments: u64,
    /// Of these, those that survive no loss.
    pub single_segments: u64,
    /// Parts of the data with shards that are lost and not rebuilt yet, and how many more the worst of them may lose.
    pub segments_short: Option<(u64, i16)>,
    /// Places of files that the last scrub found damaged beyond repair.
    pub damaged_places: u64,
    /// Bytes that were given up while data was moved or rebuilt, since the start, and that no scrub has looked for.
    pub lost_bytes: u64,
    /// Reads that failed for good since the start, without those before the last scrub that read all.
    pub damaged_reads: u64,
    /// Disks that work and that the configuration names; `None` if it names all that work.
    pub disks_named: Option<usize>,
    /// Free space left, in percent.
    pub free_percent: Option<u64>,
}

/// Below this many percent of free space there is a warning.
const FREE_PERCENT_LOW: u64 = 10;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Judgement {
    pub health: Health,
    pub summary: String,
    pub warnings: Vec<String>,
}

impl Observed {
    /// Lost disks that hold something: what was on the others can be had without them.
    fn needed(&self) -> usize {
        self.disks_lost.len().saturating_sub(self.disks_lost_empty)
    }

    /// Whether more is lost than data survives: neither are the lost disks few, nor are they on few nodes.
    fn is_beyond(&self) -> bool {
        let survives = Survives {
            disks: self.tolerated,
            nodes: self.nodes_tolerated,
        };
        let lost = Losses {
            disks: self.needed(),
            // With one node it is either there or nothing is.
            nodes: match self.node_count > 1 {
                true => self.nodes_lost,
                false => self.needed(),
            },
        };
        !survives.covers(lost)
    }

    /// Whether data may be lost with the next disk, whichever it is.
    fn is_at_the_limit(&self) -> bool {
        let next_node_may_go = self.node_count > 1 && self.nodes_lost < self.nodes_tolerated;
        self.needed() > 0 && self.needed() >= self.tolerated && !next_node_may_go
    }
}

pub fn judge(observed: &Observed) -> Judgement {
    let lost = observed.disks_lost.len();
    let mut warnings = Vec::new();
    if observed.disk_count > 0 && observed.tolerated == 0 {
        warnings.push(
            "NO REDUNDANCY: there is one disk, and losing it loses everything. Start a new pool with \
             two or more --data folders on different disks to be safe."
                .to_owned(),
        );
    }
    for disk in observed.disks_lost.iter().chain(&observed.disks_troubled) {
        warnings.push(format!("disk {disk}"));
    }
    let least_spare = observed.segments_short.map(|(_, spare)| spare);
    if observed.is_at_the_limit() || least_spare == Some(0) {
        warnings.push(
            "no further disk can be lost without losing data: bring the missing disks back"
                .to_owned(),
        );
    }
    match observed.segments_short {
        Some((count, spare)) if spare < 0 => warnings.push(format!(
            "{count} segments of data have lost shards, some of them more than they may: bring the missing disks \
             back, or `cairn scrub start` finds the files that are damaged"
        )),
        Some((count, _)) => warnings.push(format!(
            "{count} segments of data have lost shards that are not rebuilt yet; `cairn disk list` says how far that is"
        )),
        None => {}
    }
    for volume in &observed.volumes_failed {
        warnings.push(format!("volume {volume}"));
    }
    for volume in &observed.volumes_degraded {
        warnings.push(format!(
            "volume {volume}: its metadata has fewer copies than it should have"
        ));
    }
    for volume in &observed.volumes_unprotected {
        warnings.push(format!(
            "volume {volume} has protection none: NO REDUNDANCY, a lost disk loses its data"
        ));
    }
    for volume in &observed.directories_unprotected {
        warnings.push(format!(
            "directories of volume {volume} have protection none: NO REDUNDANCY, a lost disk loses their data; `cairn policy \
             list {volume}` shows them"
        ));
    }
    if let Some(named) = observed
        .disks_named
        .filter(|named| *named <= observed.tolerated)
    {
        warnings.push(format!(
            "a start finds the pool by {named} of its disks only, which `data` in the configuration or --data names; \
             if those are lost it makes a new pool: name more of them"
        ));
    }
    if observed.narrow_segments > 0 {
        warnings.push(format!(
            "{} segments of data have less protection than is asked for, and are written anew as soon as \
             there are disks and room for it; `cairn disk list` says how far that is",
            observed.narrow_segments
        ));
    }
    if observed.single_segments > 0 {
        warnings.push(format!(
            "{} of them have ONE COPY and no parity, since one disk alone could be written to: the loss of that disk loses \
             what was acknowledged",
            observed.single_segments
        ));
    }
    if observed.damaged_places > 0 {
        warnings.push(format!(
            "{} places of files are damaged beyond repair; `cairn scrub report` names them",
            observed.damaged_places
        ));
    }
    if observed.lost_bytes > 0 {
        warnings.push(format!(
            "{} bytes could not be had from anywhere when data was moved or rebuilt; `cairn scrub start` finds the files",
            observed.lost_bytes
        ));
    }
    if observed.damaged_reads > 0 {
        warnings.push(format!(
            "{} reads met data that is damaged beyond repair; the log names it, and `cairn scrub start` finds all of it",
            observed.damaged_reads
        ));
    }
    if let Some(percent) = observed
        .free_percent
        .filter(|percent| *percent < FREE_PERCENT_LOW)
    {
        warnings.push(format!(
            "only {percent}% of the space is free: delete data or add a disk"
        ));
    }
    let is_beyond = observed.is_beyond() || least_spare.is_some_and(|spare| spare < 0);
    let health = if !observed.volumes_failed.is_empty() || is_beyond {
        Health::Failed
    } else if lost > 0
        || !observed.disks_troubled.is_empty()
        || !observed.volumes_degraded.is_empty()
        || observed.narrow_segments > 0
        || observed.segments_short.is_some()
        || observed.damaged_places > 0
        || observed.lost_bytes > 0
        || observed.damaged_reads > 0
    {
        Health::Degraded
    } else if observed.tolerated == 0 {
        Health::NoRedundancy
    } else {
        Health::Healthy
    };
    Judgement {
        health,
        summary: summary(observed),
        warnings,
    }
}

fn summary(observed: &Observed) -> String {
    let mut disks = match observed.disk_count {
        1 => "1 disk".to_owned(),
        count => format!("{count} disks"),
    };
    let mut survives = match observed.tolerated {
        0 => String::new(),
        1 => ", survives the loss of any 1".to_owned(),
        count => format!(", survives the loss of any {count}"),
    };
    if observed.node_count > 1 {
        disks = format!("{disks} on {} nodes", observed.node_count);
        survives = match (observed.tolerated, observed.nodes_tolerated) {
            (0, _) => ", survives the loss of no disk".to_owned(),
            (disks, 0) => format!(
                ", survives the loss of any {}, of no node",
                counted(disks, "disk")
            ),
            (disks, nodes) => format!(
                ", survives the loss of any {} or any {}",
                counted(disks, "disk"),
                counted(nodes, "node")
            ),
        };
    }
    let lost = match observed.disks_lost.len() {
        0 => String::new(),
        count => format!("; {count} of them LOST"),
    };
    format!("{disks}, {}{survives}{lost}", observed.layout)
}

fn counted(count: usize, what: &str) -> String {
    let ending = if count == 1 { "" } else { "s" };
    format!("{count} {what}{ending}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Four disks on each of three nodes, of which so many are lost, on so many nodes.
    fn on_three_nodes(disks_lost: usize, nodes_lost: usize) -> Observed {
        Observed {
            disk_count: 12,
            disks_lost: vec!["is missing".to_owned(); disks_lost],
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
            let is_told = warnings.any(|warning| warning.starts_with("no further disk"));
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
            disks_lost: (0..count).map(|i| format!("/d{i} is missing")).collect(),
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
                "volume down",
                Observed {
                    volumes_failed: vec!["main: damaged".to_owned()],
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
                    disks_troubled: vec!["/d1: metadata failed there".to_owned()],
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
            "6 disks, 4+2, survives the loss of any 2; 1 of them LOST"
        );
    }
}
