//! Nodes as plain data, which do what the record asks in any order, die, are away, leave and come.

use std::collections::BTreeMap;

use super::*;

const NOW: Timestamp = Timestamp::new(7, 0);
const SEEDS: u64 = 1500;
const ACTIONS: usize = 150;
const NODES_MAX: usize = 6;
/// More rounds than the longest way has steps.
const ROUNDS_MAX: usize = 80;

/// The first CA of the cluster is 0.
type Ca = u32;

fn pem(ca: Ca) -> String {
    format!("ca {ca}")
}

fn ca(pem: &str) -> Ca {
    pem.trim_start_matches("ca ").parse().expect("a CA")
}

/// What a node has in its folder, and what its member of etcd read when it began.
#[derive(Clone, Debug)]
struct Machine {
    prefers: Ca,
    other: Option<Ca>,
    certificate: Ca,
    keys: BTreeSet<Ca>,
    member: Option<BTreeSet<Ca>>,
    is_alive: bool,
    /// Which of the records it has seen.
    seen: usize,
}

impl Machine {
    fn trusted(&self) -> BTreeSet<Ca> {
        std::iter::once(self.prefers).chain(self.other).collect()
    }

    fn own(&self, record: &RotationRecord) -> RotationOwn {
        let (old, new) = (ca(&record.old_pem), record.new_pem.as_deref().map(ca));
        let is_new = |ca: Ca| Some(ca) == new;
        RotationOwn {
            trusts_old: self.trusted().contains(&old),
            trusts_new: self.trusted().into_iter().any(is_new),
            has_new_key: self.keys.iter().copied().any(is_new),
            prefers_new: is_new(self.prefers),
            has_new_certificate: is_new(self.certificate),
            is_member_current: self.member.as_ref().is_none_or(|it| *it == self.trusted()),
        }
    }

    /// Trusts these two; it cannot be without the one that its certificate is of.
    fn trust(&mut self, prefers: Ca, other: Option<Ca>) {
        if self.certificate == prefers || Some(self.certificate) == other {
            (self.prefers, self.other) = (prefers, other);
            let trusted = self.trusted();
            self.keys.retain(|key| trusted.contains(key));
        }
    }
}

struct World {
    seed: u64,
    /// All records there were; the last one is in the map.
    records: Vec<Option<RotationRecord>>,
    /// The nodes of the map; `None`: it is in the map, and has not been told yet what to trust.
    nodes: BTreeMap<NodeId, Option<Machine>>,
    next_node: u128,
    next_ca: Ca,
}

impl World {
    fn new(seed: u64) -> Self {
        let machine = |id: u128| Machine {
            prefers: 0,
            other: None,
            certificate: 0,
            keys: if id <= 3 {
                BTreeSet::from([0])
            } else {
                BTreeSet::new()
            },
            member: (id <= 3).then(|| BTreeSet::from([0])),
            is_alive: true,
            seen: 0,
        };
        Self {
            seed,
            records: vec![None],
            nodes: (1..=4).map(|id| (NodeId(id), Some(machine(id)))).collect(),
            next_node: 5,
            next_ca: 1,
        }
    }

    /// SplitMix64.
    fn below(&mut self, end: usize) -> usize {
        self.seed = self.seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.seed;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        usize::try_from(mixed % end.max(1) as u64).expect("it is small")
    }

    fn record(&self) -> Option<RotationRecord> {
        self.records.last().cloned().flatten()
    }

    fn write(&mut self, record: RotationRecord) {
        self.records.push(Some(record));
    }

    fn ids(&self) -> BTreeSet<NodeId> {
        self.nodes.keys().copied().collect()
    }

    fn holders(&self) -> BTreeSet<NodeId> {
        self.nodes.keys().copied().take(3).collect()
    }

    fn alive(&self) -> Vec<NodeId> {
        let alive = self.nodes.iter();
        let alive = alive.filter(|(_, it)| matches!(it, Some(machine) if machine.is_alive));
        alive.map(|(id, _)| *id).collect()
    }

    fn any(&mut self, of: &[NodeId]) -> Option<NodeId> {
        let index = self.below(of.len());
        of.get(index).copied()
    }

    fn machine(&mut self, node: NodeId) -> &mut Machine {
        let machine = self.nodes.get_mut(&node).and_then(Option::as_mut);
        machine.expect("a node that was told")
    }

    fn has_key(&self, of: Ca) -> bool {
        let machines = self.nodes.values().flatten();
        machines
            .filter(|it| it.is_alive)
            .any(|it| it.keys.contains(&of))
    }

    /// Whether there is a node without this one, and the key of the CA that certificates are of.
    fn can_lose(&self, node: NodeId) -> bool {
        let others = self.nodes.iter().filter(|(id, _)| **id != node);
        let others: Vec<&Machine> = others.filter_map(|(_, it)| it.as_ref()).collect();
        let needed = self.record().filter(|it| it.phase > RotationPhase::Trust);
        let needed = needed.and_then(|it| it.new_pem.as_deref().map(ca));
        let is_there = |key: Ca| others.iter().any(|it| it.keys.contains(&key));
        !others.is_empty() && needed.is_none_or(is_there)
    }

    /// One node does one step, by a record that may be older than that of the map; or it dies within it.
    fn tick(&mut self, node: NodeId, is_late: bool) {
        let latest = self.records.len() - 1;
        let seen = self.machine(node).seen;
        let seen = match is_late {
            true => seen + self.below(latest - seen + 1),
            false => latest,
        };
        self.machine(node).seen = seen;
        let Some(record) = self.records[seen].clone() else {
            return;
        };
        let holders = self.holders();
        // As a node gets the key of the CA whenever it is to have it.
        let prefers = self.machine(node).prefers;
        if holders.contains(&node) && self.has_key(prefers) {
            self.machine(node).keys.insert(prefers);
        }
        let makes = self.alive().into_iter().find(|id| holders.contains(id)) == Some(node);
        let machine = self.machine(node).clone();
        let (old, new) = (ca(&record.old_pem), record.new_pem.as_deref().map(ca));
        if machine.prefers != old && Some(machine.prefers) != new {
            return;
        }
        let own = machine.own(&record);
        let step = record.step(node, holders.contains(&node), makes, own);
        let mut note = None;
        match (step, new) {
            (Some(RotationStep::Make), _) => {
                let made = machine.other.filter(|it| machine.keys.contains(it));
                let made = made.unwrap_or_else(|| {
                    self.next_ca += 1;
                    self.next_ca
                });
                let dies = self.below(4) == 0 && is_late;
                let machine = self.machine(node);
                machine.trust(machine.prefers, Some(made));
                machine.keys.insert(made);
                machine.is_alive = !dies;
                if !dies && seen == latest {
                    self.write(record.made(pem(made), node));
                }
                return;
            }
            (Some(RotationStep::Trust), Some(new)) => {
                let machine = self.machine(node);
                machine.trust(machine.prefers, Some(new));
            }
            (Some(RotationStep::FetchKey), Some(new)) if self.has_key(new) => {
                self.machine(node).keys.insert(new);
            }
            (Some(RotationStep::Prefer), Some(new)) => {
                let machine = self.machine(node);
                let before = machine.trusted().into_iter().find(|it| *it != new);
                machine.trust(new, before);
            }
            (Some(RotationStep::Renew), Some(new)) if self.has_key(new) => {
                self.machine(node).certificate = new;
            }
            (Some(RotationStep::Distrust), Some(_)) => {
                let machine = self.machine(node);
                let left = machine.trusted().into_iter().filter(|it| *it != old);
                let left: Vec<Ca> = left.collect();
                machine.trust(left[0], left.get(1).copied());
            }
            (Some(RotationStep::AwaitMember), _) => self.restart_member(node),
            (Some(RotationStep::Note), _) => note = Some((node, own.has_new_key)),
            _ => {}
        }
        let (nodes, holders) = (self.ids(), self.holders());
        let current = self.record().expect("there was one");
        if let Some(next) = current.after(&record, note, (&nodes, &holders), NOW) {
            self.write(next);
        }
    }

    fn restart_member(&mut self, node: NodeId) {
        let machine = self.machine(node);
        if machine.member.is_some() {
            machine.member = Some(machine.trusted());
        }
    }

    /// What a node that joined gets from one that admits.
    fn tell(&mut self, node: NodeId, admits: NodeId) {
        let latest = self.records.len() - 1;
        let from = self.machine(admits).clone();
        if !from.keys.contains(&from.prefers) {
            return;
        }
        let told = Machine {
            certificate: from.prefers,
            keys: BTreeSet::new(),
            member: None,
            is_alive: true,
            seen: latest,
            ..from
        };
        self.nodes.insert(node, Some(told));
    }

    fn act(&mut self) {
        let (ids, alive) = (Vec::from_iter(self.ids()), self.alive());
        let untold: Vec<NodeId> = ids
            .iter()
            .copied()
            .filter(|id| self.nodes[id].is_none())
            .collect();
        let Some(node) = self.any(&ids) else { return };
        let is_alive = alive.contains(&node);
        let is_running = self.record().is_some_and(|it| it.is_running());
        match self.below(20) {
            0 if !is_running && is_alive => {
                let old = self.machine(node).prefers;
                self.write(RotationRecord::begin(pem(old), NOW));
            }
            1 if is_alive => self.machine(node).is_alive = false,
            2 | 3 if !is_alive && !untold.contains(&node) => {
                self.machine(node).is_alive = true;
                self.restart_member(node);
            }
            // It reads what its node trusts whenever it begins again.
            4 if !untold.contains(&node) => self.restart_member(node),
            5 if ids.len() < NODES_MAX => {
                let joins = NodeId(self.next_node);
                self.next_node += 1;
                if let Some(record) = self.record() {
                    self.write(record);
                }
                self.nodes.insert(joins, None);
            }
            6 if self.can_lose(node) => drop(self.nodes.remove(&node)),
            // Another machine becomes this node.
            7 if !is_alive && self.can_lose(node) => {
                if let Some(record) = self.record() {
                    self.write(record.without(node));
                }
                self.nodes.insert(node, None);
            }
            8..=10 => {
                if let (Some(node), Some(admits)) = (self.any(&untold), self.any(&alive)) {
                    self.tell(node, admits);
                }
            }
            // It has a member from now on.
            11 if is_alive && self.machine(node).member.is_none() => {
                let trusted = self.machine(node).trusted();
                self.machine(node).member = Some(trusted);
            }
            _ if is_alive => self.tick(node, true),
            _ => {}
        }
    }

    fn check(&self, what: &str) {
        let machines: Vec<_> = self
            .nodes
            .iter()
            .filter_map(|(id, it)| Some((id, it.as_ref()?)))
            .collect();
        for (one, trusts) in &machines {
            for (other, shows) in &machines {
                let shown = shows.certificate;
                assert!(
                    trusts.trusted().contains(&shown),
                    "{what}: {one} does not trust {other}"
                );
                assert!(
                    trusts.member.as_ref().is_none_or(|it| it.contains(&shown)),
                    "{what}: the member of {one} does not trust {other}"
                );
            }
        }
    }

    /// All are there again, and nothing else happens.
    fn settle(&mut self) {
        for id in self.ids() {
            if self.nodes[&id].is_none() {
                self.nodes.remove(&id);
            } else {
                self.machine(id).is_alive = true;
                self.restart_member(id);
            }
        }
        for _ in 0..ROUNDS_MAX {
            for id in self.ids() {
                self.tick(id, false);
            }
            let is_running = self.record().is_some_and(|it| it.is_running());
            if !is_running && self.nodes.values().flatten().all(|it| it.other.is_none()) {
                return;
            }
        }
    }
}

#[test]
fn nodes_trust_one_another_at_each_moment_and_all_come_to_the_end() {
    let mut done_count = 0;
    for seed in 0..SEEDS {
        let mut world = World::new(seed);
        for action in 0..ACTIONS {
            world.act();
            world.check(&format!("seed {seed}, action {action}"));
        }
        world.settle();
        world.check(&format!("seed {seed}, settled"));
        let Some(record) = world.record() else {
            continue;
        };
        assert_eq!(record.phase, RotationPhase::Done, "seed {seed}");
        done_count += 1;
        let new = ca(record.new_pem.as_deref().expect("it is done"));
        for (id, machine) in &world.nodes {
            let machine = machine.as_ref().expect("it was told");
            let what = format!("seed {seed}, node {id}");
            assert_eq!(machine.trusted(), BTreeSet::from([new]), "{what}");
            assert_eq!(machine.certificate, new, "{what}");
            assert!(machine.keys.iter().all(|key| *key == new), "{what}");
            let holders = world.holders();
            assert_eq!(machine.keys.contains(&new), holders.contains(id), "{what}");
        }
    }
    assert!(done_count > SEEDS / 2, "most of them begin: {done_count}");
}

fn ids(ids: &[u128]) -> BTreeSet<NodeId> {
    ids.iter().copied().map(NodeId).collect()
}

#[test]
fn a_phase_waits_for_all_nodes_and_names_those_that_it_waits_for() {
    let (nodes, holders) = (ids(&[1, 2, 3, 4]), ids(&[1, 2]));
    let begun = RotationRecord::begin(pem(0), NOW);
    assert_eq!(begun.advanced(&nodes, &holders, NOW), None);
    assert_eq!(begun.awaited(&nodes, &holders), ids(&[]));
    let mut record = begun.made(pem(1), NodeId(1));
    assert_eq!(record.awaited(&nodes, &holders), nodes);
    for (node, has_key) in [(1, true), (2, false), (3, false)] {
        record = record.noted(NodeId(node), has_key);
    }
    // One has no key yet, one was not there.
    assert_eq!(record.awaited(&nodes, &holders), ids(&[2, 4]));
    record = record.noted(NodeId(2), true);
    assert_eq!(record.advanced(&nodes, &holders, NOW), None);
    // It is removed.
    let nodes = ids(&[1, 2, 3]);
    let mut record = record.advanced(&nodes, &holders, NOW).expect("all have");
    for phase in [RotationPhase::Renew, RotationPhase::Drop] {
        assert_eq!((record.phase, record.ended), (phase, None));
        assert_eq!(record.awaited(&nodes, &holders), nodes);
        for node in &nodes {
            assert_eq!(record.advanced(&nodes, &holders, NOW), None);
            record = record.noted(*node, true);
        }
        record = record.advanced(&nodes, &holders, NOW).expect("all have");
    }
    assert_eq!(record.phase, RotationPhase::Done);
    assert_eq!(record.ended, Some(NOW));
    assert_eq!(record.advanced(&nodes, &holders, NOW), None);
}

#[test]
fn an_authority_whose_key_is_lost_is_made_again_before_anybody_needs_it() {
    let record = RotationRecord::begin(pem(0), NOW).made(pem(1), NodeId(1));
    let record = record.noted(NodeId(2), false);
    let without = |nodes: &[u128]| record.advanced(&ids(nodes), &ids(nodes), NOW);
    assert_eq!(without(&[1, 2]), None, "it may come back");
    let again = without(&[2, 3]).expect("its node was removed");
    assert_eq!(again, RotationRecord::begin(pem(0), NOW));
    // Another machine is that node now.
    let again = record
        .without(NodeId(1))
        .advanced(&ids(&[1, 2]), &ids(&[]), NOW);
    assert_eq!(again.map(|it| it.phase), Some(RotationPhase::Make));
}

#[test]
fn records_that_cannot_be_are_refused() {
    let begun = RotationRecord::begin(pem(0), NOW);
    let made = begun.made(pem(1), NodeId(1));
    assert_eq!((begun.problem(), made.problem()), (None, None));
    let of = |phase: RotationPhase, new: Option<String>| RotationRecord {
        phase,
        new_pem: new,
        ..begun.clone()
    };
    let bad = [
        of(RotationPhase::Make, Some(pem(1))),
        of(RotationPhase::Drop, None),
        of(RotationPhase::Trust, Some(pem(0))),
        of(
            RotationPhase::Trust,
            Some("x".repeat(PEM_LEN_BYTES_MAX + 1)),
        ),
    ];
    for record in bad {
        assert!(record.problem().is_some(), "{record:?}");
    }
    let text = serde_json::to_string(&made).unwrap();
    assert_eq!(serde_json::from_str::<RotationRecord>(&text).unwrap(), made);
}

#[test]
fn a_note_counts_for_its_own_record_until_that_has_it() {
    let (one, two) = (NodeId(1), NodeId(2));
    let begun = RotationRecord::begin(pem(0), NOW);
    let made = begun.made(pem(1), one);
    let note = |has_key: bool| RotationNote::of(&made, two, has_key);
    let again = begun.made(pem(2), one);
    let renew = RotationRecord {
        phase: RotationPhase::Renew,
        ..made.clone()
    };
    for (what, record, has_key, want) in [
        ("not there yet", made.clone(), false, true),
        ("there", made.noted(two, false), false, false),
        ("there without the key", made.noted(two, false), true, true),
        ("there with the key", made.noted(two, true), true, false),
        ("of another CA", again, false, false),
        ("of an earlier phase", renew, false, false),
        ("before the CA was made", begun.clone(), false, false),
    ] {
        assert_eq!(note(has_key).is_missed_by(&record), want, "{what}");
    }
}
