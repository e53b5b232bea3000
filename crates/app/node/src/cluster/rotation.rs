//! This node's part in a rotation of the cluster's CA.
//!
//! Owns: this node's next step, and the note that it is done. Must not know: which step is next
//! (`cairn_cluster::map::RotationRecord`), certificates (`cairn_trust`).
//!
//! After a kill, a step is repeated, or found to be done: this node's progress is read from its trusted CAs, and not
//! remembered.

use std::collections::BTreeSet;
use std::sync::Arc;

use cairn_base::NodeId;
use cairn_cluster::MapError;
use cairn_cluster::map::{
    MapView, RotationNote, RotationOwn, RotationPhase, RotationRecord, RotationStep, Versioned,
};
use cairn_owner::ClusterMember;
use cairn_trust::{Authorities, Authority, Fingerprint};

use super::etcd::EtcdSide;

/// Attempts to write a note when notes of other nodes come in between; then again a moment later.
const NOTE_TRIES_MAX: usize = 8;

/// The reason why no rotation was begun.
#[derive(Debug)]
pub enum BeginError {
    Refused(String),
    Failed(String),
}

/// The CAs of nodes, and the progress of a rotation.
#[derive(Clone, Debug)]
pub struct AuthorityProgress {
    /// The CA that issued this node's certificates.
    pub issuing: Fingerprint,
    /// The running rotation, or the last one.
    pub rotation: Option<RotationProgress>,
}

#[derive(Clone, Debug)]
pub struct RotationProgress {
    pub record: RotationRecord,
    pub old: Fingerprint,
    pub new: Option<Fingerprint>,
    /// Nodes that the phase waits for.
    pub awaited: Vec<Awaited>,
    /// The fault that keeps this node from its next step.
    pub problem: Option<String>,
}

#[derive(Clone, Debug)]
pub struct Awaited {
    pub node: String,
    pub is_away: bool,
    pub what: &'static str,
}

/// The two CAs of a record.
struct Pair {
    old: Authority,
    new: Option<Authority>,
}

impl Pair {
    fn of(record: &RotationRecord) -> Result<Self, String> {
        let load = |pem: &str| {
            let loaded = Authority::load_certificate(pem);
            loaded.map_err(|error| format!("the rotation of the authority in the map: {error}"))
        };
        Ok(Self {
            old: load(&record.old_pem)?,
            new: record.new_pem.as_deref().map(load).transpose()?,
        })
    }

    fn new_print(&self) -> Option<Fingerprint> {
        self.new.as_ref().map(Authority::fingerprint)
    }

    fn has(&self, fingerprint: Fingerprint) -> bool {
        self.old.fingerprint() == fingerprint || self.new_print() == Some(fingerprint)
    }

    /// Whether a node is moving from the old CA to the new one, or has done so. Before the map names the new one, a
    /// node may have come further: a map that was recovered from a copy is older.
    fn is_of(&self, authorities: &Authorities) -> bool {
        let has_old = authorities.of(self.old.fingerprint()).is_some();
        self.has(authorities.issuing().fingerprint()) || self.new.is_none() && has_old
    }

    /// This node's progress with the two CAs. `issuer`: the CA of its certificate.
    fn own(
        &self,
        authorities: &Authorities,
        issuer: Fingerprint,
        is_member_current: bool,
    ) -> RotationOwn {
        let new = self.new_print();
        let trusted = new.and_then(|new| authorities.of(new));
        RotationOwn {
            trusts_old: authorities.of(self.old.fingerprint()).is_some(),
            trusts_new: trusted.is_some(),
            has_new_key: trusted.is_some_and(|it| it.has_key()),
            prefers_new: new == Some(authorities.issuing().fingerprint()),
            has_new_certificate: new == Some(issuer),
            is_member_current,
        }
    }
}

fn told(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn nodes_of(view: &MapView) -> BTreeSet<NodeId> {
    view.nodes.keys().copied().collect()
}

/// The node that makes CAs: the first live one with that right.
fn maker(view: &MapView, makers: &BTreeSet<NodeId>) -> Option<NodeId> {
    let mut there = makers.iter().filter(|id| view.alive.contains_key(*id));
    there.next().copied()
}

/// Does the next step of this node, if there is one.
pub async fn tend(side: &EtcdSide, cluster: &ClusterMember) -> Result<(), String> {
    let view = cluster.view();
    let node = cluster.node();
    // An unseen or unreadable part of the map may be a node that has to be waited for.
    if !view.nodes.contains_key(&node) || view.is_unsure_of_nodes(cluster.map().keys()) {
        return Ok(());
    }
    let Some(found) = &view.rotation else {
        return resume(side, cluster, None).await;
    };
    let record = &found.value;
    let pair = Pair::of(record)?;
    let trust = side.trust();
    let authorities = trust.authorities();
    if !record.is_running() {
        let is_of_it = authorities.all().all(|it| pair.has(it.fingerprint()));
        if authorities.other().is_none() {
            return Ok(());
        }
        if !is_of_it {
            return resume(side, cluster, Some(found)).await;
        }
    } else if !pair.is_of(&authorities) {
        return Err(
            "the cluster map has other CAs than this node, because it was recovered from an old copy; `cairn cluster rotate-ca` starts a new rotation"
                .to_owned(),
        );
    }
    let own = pair.own(&authorities, trust.issuer(), side.is_member_current());
    let holders = side.holders(&view);
    let makes = maker(&view, &side.makers(&view)) == Some(node);
    let step = record.step(node, holders.contains(&node), makes, own);
    let mut note = None;
    match (step, &pair.new) {
        (Some(RotationStep::Make), _) => return make(side, cluster, found, &pair).await,
        (Some(RotationStep::Trust), Some(new)) => {
            trust.trust_also(new.without_key()).map_err(told)?;
            side.trust_changed();
        }
        (Some(RotationStep::FetchKey), Some(new)) => {
            trust.fetch_key(new.fingerprint()).await.map_err(told)?;
        }
        (Some(RotationStep::Prefer), Some(new)) => {
            trust.prefer(new.fingerprint()).map_err(told)?;
            trust.renew_soon();
            side.look_at_keeping();
        }
        (Some(RotationStep::Renew), _) => {
            // The problem from before this attempt, reported before the attempt ends.
            let problem = trust.problem();
            trust.renew_soon();
            if let Some(problem) = problem {
                return Err(format!("another certificate: {problem}"));
            }
        }
        (Some(RotationStep::Distrust), _) => {
            trust.distrust(pair.old.fingerprint()).map_err(told)?;
            side.trust_changed();
        }
        (Some(RotationStep::AwaitMember), _) => {
            if let Some(why) = side.unwell_member() {
                return Err(format!(
                    "this node's etcd member has to restart, and does so once all members are healthy: {why}"
                ));
            }
        }
        (Some(RotationStep::Note), _) => {
            // Other nodes may drop the old CA as soon as this is noted.
            side.show_certificate();
            note = Some((node, own.has_new_key));
        }
        _ => {}
    }
    if !side.writes_guarded() {
        return match note {
            Some((_, has_key)) => leave_note(cluster, &view, record, has_key).await,
            None => Ok(()),
        };
    }
    let now = trust.env().clock.now();
    let is_over = || record.advanced(&nodes_of(&view), &holders, now).is_some();
    let mut notes = view.rotation_notes.values();
    let is_told = notes.any(|note| note.value.is_missed_by(record));
    match note.is_some() || is_told || is_over() {
        true => write_note(side, cluster, record, note, &holders).await,
        false => Ok(()),
    }
}

/// Leaves a note for nodes with a member of etcd that this node, which has none, has done the step of a record.
async fn leave_note(
    cluster: &ClusterMember,
    view: &MapView,
    record: &RotationRecord,
    has_key: bool,
) -> Result<(), String> {
    // Another machine may have become this node since its lease ended: this node's notes went with the lease.
    let process = cluster.process().filter(|_| cluster.lease_is_valid());
    let Some(process) = process else {
        return Ok(());
    };
    let note = RotationNote::of(record, cluster.node(), has_key);
    let is_there = view.rotation_notes.get(&note.node);
    if is_there.is_some_and(|there| there.value == note) {
        return Ok(());
    }
    match cluster.map().note_rotation(process, &note).await {
        Ok(()) | Err(MapError::Changed { .. }) => Ok(()),
        Err(error) => Err(told(error)),
    }
}

/// The CA that an earlier attempt to replace this one made, if there was one. An error: another CA, whose key this
/// node does not have, issued its certificates already, and a third one must not replace either.
fn already_made(
    authorities: &Authorities,
    old: Fingerprint,
) -> Result<Option<&Arc<Authority>>, String> {
    let mut others = authorities.all().filter(|it| it.fingerprint() != old);
    match others.find(|it| it.has_key()) {
        None if authorities.issuing().fingerprint() != old => Err(
            "this node's certificates are already from the next CA; the node waits for that CA's key"
                .to_owned(),
        ),
        made => Ok(made),
    }
}

/// Makes the new CA; its key is in this node's folder before the map names it.
async fn make(
    side: &EtcdSide,
    cluster: &ClusterMember,
    found: &Versioned<RotationRecord>,
    pair: &Pair,
) -> Result<(), String> {
    let trust = side.trust();
    let authorities = trust.authorities();
    // An earlier attempt may have come so far.
    let made = match already_made(&authorities, pair.old.fingerprint())? {
        Some(made) => Arc::clone(made),
        None => trust.make_another().map_err(told)?,
    };
    side.trust_changed();
    let pem = made.certificate_pem().to_owned();
    let next = found.value.made(pem, cluster.node());
    match cluster.map().set_rotation(Some(found), &next).await {
        // Another node was faster: this one will trust that node's CA.
        Err(MapError::Changed { .. }) => Ok(()),
        Err(error) => Err(told(error)),
        Ok(()) => {
            let fingerprint = made.fingerprint();
            tracing::info!(%fingerprint, "this node has created the next CA of the cluster");
            Ok(())
        }
    }
}

/// The two CAs that a node trusts, the older one first; whichever issues certificates. `None` if it trusts only one.
fn by_age(authorities: &Authorities) -> Result<Option<(&Authority, &Authority)>, String> {
    let Some(other) = authorities.other() else {
        return Ok(None);
    };
    let (issuing, other): (&Authority, &Authority) = (authorities.issuing(), other);
    let is_younger = other.begins().map_err(told)? >= issuing.begins().map_err(told)?;
    Ok(Some(match is_younger {
        true => (issuing, other),
        false => (other, issuing),
    }))
}

/// Continues a rotation that the map does not have, if this node trusts two CAs and has the key of the younger one:
/// the map was recovered from an earlier copy.
async fn resume(
    side: &EtcdSide,
    cluster: &ClusterMember,
    found: Option<&Versioned<RotationRecord>>,
) -> Result<(), String> {
    let trust = side.trust();
    let authorities = trust.authorities();
    let Some((old, new)) = by_age(&authorities)? else {
        return Ok(());
    };
    if !new.has_key() || !side.writes_guarded() {
        return Ok(());
    }
    let now = trust.env().clock.now();
    let begun = RotationRecord::begin(old.certificate_pem().to_owned(), now);
    let record = begun.made(new.certificate_pem().to_owned(), cluster.node());
    match cluster.map().set_rotation(found, &record).await {
        Ok(()) => {
            tracing::info!(
                "this node trusts two CAs of the cluster, and the map does not say why: the younger CA replaces the older one"
            );
            Ok(())
        }
        Err(MapError::Changed { .. }) => Ok(()),
        Err(error) => Err(told(error)),
    }
}

/// Notes that this node, and those that left notes, have done the step of a record; starts the next phase if those
/// were all.
async fn write_note(
    side: &EtcdSide,
    cluster: &ClusterMember,
    seen: &RotationRecord,
    note: Option<(NodeId, bool)>,
    holders: &BTreeSet<NodeId>,
) -> Result<(), String> {
    // Another machine may have become this node since its lease ended, and does not have the CAs that this node would
    // note.
    if !cluster.lease_is_valid() {
        return Ok(());
    }
    let map = cluster.map();
    for _ in 0..NOTE_TRIES_MAX {
        let Some(current) = map.rotation().await.map_err(told)? else {
            return Ok(());
        };
        // After the record: a node that joins from now on changes the record.
        let (nodes, _) = map.nodes().await.map_err(told)?;
        let nodes: BTreeSet<NodeId> = nodes.iter().map(|node| node.value.id).collect();
        let now = side.trust().env().clock.now();
        // Also after the record: another machine that becomes a node removes the note of the former one, and changes
        // the record.
        let left = map.rotation_notes().await.map_err(told)?.into_iter();
        let left = left.filter(|left| nodes.contains(&left.node) && left.is_missed_by(seen));
        let left = left.map(|left| Some((left.node, left.has_key)));
        let mut next: Option<RotationRecord> = None;
        for note in left.chain([note]) {
            let before = next.as_ref().unwrap_or(&current.value);
            let after = before.after(seen, note, (&nodes, holders), now);
            next = after.or(next);
        }
        let Some(next) = next else {
            return Ok(());
        };
        match map.set_rotation(Some(&current), &next).await {
            Ok(()) => {
                if next.phase != current.value.phase {
                    tracing::info!(phase = ?next.phase, "the CA of the cluster is being replaced");
                }
                return Ok(());
            }
            Err(MapError::Changed { .. }) => {}
            Err(error) => return Err(told(error)),
        }
    }
    Ok(())
}

/// Starts a rotation of the CA. Does nothing during one.
pub async fn begin(side: &EtcdSide, cluster: &ClusterMember) -> Result<(), BeginError> {
    if let Some(url) = side.given_with_tls() {
        return Err(BeginError::Refused(format!(
            "the cluster's etcd is run by somebody else ({url}), with certificates of the cluster's authority that the nodes cannot \
             replace"
        )));
    }
    let failed = |error: MapError| BeginError::Failed(error.to_string());
    let map = cluster.map();
    let found = map.rotation().await.map_err(failed)?;
    let authorities = side.trust().authorities();
    let issuing = authorities.issuing();
    if let Some(found) = &found {
        let pair = Pair::of(&found.value).map_err(BeginError::Failed)?;
        if found.value.is_running() && pair.has(issuing.fingerprint()) {
            return Ok(());
        }
    }
    if authorities.other().is_some() {
        return Err(BeginError::Failed(
            "this node still trusts two CAs: the last rotation ends or continues here in a moment. Try again then"
                .to_owned(),
        ));
    }
    let pem = issuing.certificate_pem().to_owned();
    let record = RotationRecord::begin(pem, side.trust().env().clock.now());
    match map.set_rotation(found.as_ref(), &record).await {
        // Another caller began it at the same moment.
        Ok(()) | Err(MapError::Changed { .. }) => Ok(()),
        Err(error) => Err(failed(error)),
    }
}

/// The progress, by the present map.
pub async fn progress(
    side: &EtcdSide,
    cluster: &ClusterMember,
) -> Result<AuthorityProgress, String> {
    let found = cluster.map().rotation().await.map_err(told)?;
    let view = cluster.view();
    let holders = side.holders(&view);
    let rotation = found.map(|found| {
        let record = found.value;
        let pair = Pair::of(&record)?;
        let is_running = record.is_running();
        Ok::<_, String>(RotationProgress {
            old: pair.old.fingerprint(),
            new: pair.new_print(),
            awaited: awaited(&view, &record, &holders, &side.makers(&view)),
            problem: side.rotation_problem().filter(|_| is_running),
            record,
        })
    });
    Ok(AuthorityProgress {
        issuing: side.trust().issuer(),
        rotation: rotation.transpose()?,
    })
}

/// The nodes that a phase waits for, and the next step of each.
fn awaited(
    view: &MapView,
    record: &RotationRecord,
    holders: &BTreeSet<NodeId>,
    makers: &BTreeSet<NodeId>,
) -> Vec<Awaited> {
    let ids = match (record.phase, maker(view, makers)) {
        (RotationPhase::Make, Some(maker)) => BTreeSet::from([maker]),
        // Any of them can.
        (RotationPhase::Make, None) => makers.clone(),
        _ => record.awaited(&nodes_of(view), holders),
    };
    let awaited = ids.into_iter().filter_map(|id| {
        let node = &view.nodes.get(&id)?.value;
        Some(Awaited {
            node: node.name.clone(),
            is_away: !view.alive.contains_key(&id),
            what: match record.phase {
                RotationPhase::Make => "has to create the new authority",
                RotationPhase::Trust if record.done.contains(&id) => {
                    "has to get the key of the new authority"
                }
                RotationPhase::Trust => "has to trust the new authority",
                RotationPhase::Renew => "has to get a certificate from the new authority",
                RotationPhase::Drop | RotationPhase::Done => "has to drop the old authority",
            },
        })
    });
    awaited.collect()
}

#[cfg(test)]
mod tests {
    use cairn_base::{PoolId, Timestamp};

    use super::*;

    const NOW: Timestamp = Timestamp::new(1_767_225_600, 0);

    fn authority() -> Authority {
        Authority::create(PoolId(9), NOW).unwrap()
    }

    #[test]
    fn what_a_node_has_of_two_authorities_is_read_from_what_it_trusts() {
        let (old, new) = (authority(), authority());
        let (first, second) = (old.fingerprint(), new.fingerprint());
        let begun = RotationRecord::begin(old.certificate_pem().to_owned(), NOW);
        let pair = Pair::of(&begun).unwrap();
        let alone = Authorities::new(old.without_key(), None).unwrap();
        let before = RotationOwn {
            trusts_old: true,
            trusts_new: false,
            has_new_key: false,
            prefers_new: false,
            has_new_certificate: false,
            is_member_current: true,
        };
        assert_eq!(pair.own(&alone, first, true), before);
        let pem = new.certificate_pem().to_owned();
        let record = begun.made(pem, NodeId(1));
        let pair = Pair::of(&record).unwrap();
        assert_eq!(pair.own(&alone, first, true), before);
        let both = Authorities::new(old.without_key(), Some(new.without_key())).unwrap();
        let trusting = RotationOwn {
            trusts_new: true,
            ..before
        };
        assert_eq!(pair.own(&both, first, true), trusting);
        let turned = Authorities::new(new, Some(old)).unwrap();
        let renewed = RotationOwn {
            has_new_key: true,
            prefers_new: true,
            has_new_certificate: true,
            is_member_current: false,
            ..trusting
        };
        assert_eq!(pair.own(&turned, second, false), renewed);
        assert!(pair.has(first) && pair.has(second));
        assert!(!pair.has(authority().fingerprint()));
        let wrong = RotationRecord::begin("x".to_owned(), NOW);
        assert!(Pair::of(&wrong).is_err());
    }

    #[test]
    fn what_an_earlier_try_has_made_is_not_made_again() {
        let (old, new) = (authority(), authority());
        let (first, second) = (old.fingerprint(), new.fingerprint());
        let made = |authorities: &Authorities| {
            let found = already_made(authorities, first);
            found.map(|made| made.map(|made| made.fingerprint()))
        };
        let with_key = || new.with_key(new.key_pem().unwrap()).unwrap();
        let pair = |first: &Authority, second: Option<Authority>| {
            Authorities::new(first.without_key(), second).unwrap()
        };
        assert_eq!(made(&pair(&old, None)), Ok(None));
        // Its key is lost: no node has a certificate of it.
        assert_eq!(made(&pair(&old, Some(new.without_key()))), Ok(None));
        assert_eq!(made(&pair(&old, Some(with_key()))), Ok(Some(second)));
        // This node came further than the map says.
        let further = Authorities::new(with_key(), Some(old.without_key())).unwrap();
        assert_eq!(made(&further), Ok(Some(second)));
        assert!(made(&pair(&new, Some(old.without_key()))).is_err());

        let begun = RotationRecord::begin(old.certificate_pem().to_owned(), NOW);
        let made = begun.made(authority().certificate_pem().to_owned(), NodeId(1));
        let [begun, made] = [begun, made].map(|record| Pair::of(&record).unwrap());
        assert!(begun.is_of(&pair(&old, None)) && made.is_of(&pair(&old, None)));
        assert!(begun.is_of(&further) && !made.is_of(&further));
        assert!(!begun.is_of(&pair(&new, None)));
    }

    /// As after a recovery, after which the map no longer says which CA replaces which.
    #[test]
    fn the_younger_of_two_authorities_is_the_new_one_however_far_it_was() {
        let later = Timestamp::new(NOW.seconds + 60, 0);
        let old = authority();
        let new = Authority::create(PoolId(9), later).unwrap();
        let want = (old.fingerprint(), new.fingerprint());
        let prints = |authorities: &Authorities| {
            let found = by_age(authorities).unwrap();
            found.map(|(old, new)| (old.fingerprint(), new.fingerprint()))
        };
        let alone = Authorities::new(old.without_key(), None).unwrap();
        assert_eq!(prints(&alone), None);
        let trusting = Authorities::new(old.without_key(), Some(new.without_key())).unwrap();
        assert_eq!(prints(&trusting), Some(want));
        let renewed = Authorities::new(new, Some(old)).unwrap();
        assert_eq!(prints(&renewed), Some(want));
    }
}
