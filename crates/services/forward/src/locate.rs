//! Which volume has what a client names without naming its volume: a target, a bucket, an access key.
//!
//! Owns: the order in which this node, what it remembers, and all other nodes are asked, and when nobody has it for certain.
//! Must not know: the kind of thing that is sought, how a question looks.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::io;
use std::time::Duration;

use cairn_base::{NodeId, VolumeId};
use futures_util::future::join_all;
use parking_lot::Mutex;

use crate::forward::Nodes;

#[derive(Debug, PartialEq, Eq)]
pub enum Located {
    Here,
    On(NodeId, VolumeId),
    /// It may be somewhere: a volume has no owner, or a node does not answer.
    Unsure,
    Nowhere,
}

/// What a node answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocateAnswer {
    pub volume: Option<VolumeId>,
    /// The node serves all volumes that it was asked about, and knows their contents.
    pub is_sure: bool,
}

/// A search for something that one of the nodes has.
pub trait Search: Send + Sync {
    fn is_here(&self) -> bool;
    /// Whether this node may speak for itself: its lease is valid, and it has read the volumes that it serves.
    fn is_sure_of_own(&self) -> bool;
    /// Whether this node serves the volume, which it owns.
    fn serves(&self, volume: VolumeId) -> bool;
    /// Where it was found a while ago.
    fn remembered(&self) -> Option<VolumeId>;
    fn remember(&self, volume: VolumeId);
    /// Asks a node about volumes that it owns, as far as this node knows.
    fn ask(
        &self,
        node: NodeId,
        volumes: Vec<VolumeId>,
    ) -> impl Future<Output = io::Result<LocateAnswer>> + Send;
}

/// Looks for it on all nodes.
pub async fn locate(nodes: &dyn Nodes, search: &impl Search) -> Located {
    let was_here = search.is_here();
    if was_here && search.is_sure_of_own() {
        return Located::Here;
    }
    let own = nodes.own();
    let owners = nodes.owners();
    if let Some(volume) = search.remembered() {
        let owner = owners.iter().find(|(id, _)| *id == volume);
        match owner {
            Some((_, Some(owner))) if *owner != own => return Located::On(*owner, volume),
            // It is being taken over, or opened here.
            Some(_) => return Located::Unsure,
            None => {}
        }
    }
    let mut is_sure = search.is_sure_of_own() && !was_here;
    let mut others: BTreeMap<NodeId, Vec<VolumeId>> = BTreeMap::new();
    for (volume, owner) in &owners {
        match owner {
            None => is_sure = false,
            Some(owner) if *owner == own => is_sure &= search.serves(*volume),
            Some(owner) => others.entry(*owner).or_default().push(*volume),
        }
    }
    let answers = others.into_iter();
    let answers = answers.map(|(node, volumes)| async move {
        let answer = search.ask(node, volumes).await;
        (node, answer)
    });
    for (node, answer) in join_all(answers).await {
        match answer {
            Ok(LocateAnswer {
                volume: Some(volume),
                ..
            }) => {
                search.remember(volume);
                return Located::On(node, volume);
            }
            Ok(found) => is_sure &= found.is_sure,
            Err(_) => is_sure = false,
        }
    }
    // It may have come here meanwhile; and a node without a lease does not know who has what.
    match is_sure && search.is_sure_of_own() && !search.is_here() {
        true => Located::Nowhere,
        false => Located::Unsure,
    }
}

/// Where something was found, for a while.
pub struct Remembered<K> {
    /// How long that counts; `None`: it never moves to another volume.
    counts_for: Option<Duration>,
    /// Over so many all are forgotten, and asked for again.
    count_max: usize,
    known: Mutex<HashMap<K, (VolumeId, Option<Duration>)>>,
}

impl<K: Hash + Eq> Remembered<K> {
    pub fn new(counts_for: Option<Duration>, count_max: usize) -> Self {
        Self {
            counts_for,
            count_max,
            known: Mutex::default(),
        }
    }

    /// `now`: of any clock that does not step back, always the same one.
    pub fn volume<Q>(&self, what: &Q, now: Duration) -> Option<VolumeId>
    where
        K: std::borrow::Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let known = self.known.lock();
        let (volume, until) = known.get(what)?;
        until.is_none_or(|until| until > now).then_some(*volume)
    }

    pub fn note(&self, what: K, volume: VolumeId, now: Duration) {
        let until = self.counts_for.map(|it| now.saturating_add(it));
        let mut known = self.known.lock();
        if known.len() >= self.count_max {
            known.clear();
        }
        known.insert(what, (volume, until));
    }

    pub fn forget<Q>(&self, what: &Q)
    where
        K: std::borrow::Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.known.lock().remove(what);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_found_counts_for_a_while() {
        let counts_for = Duration::from_secs(5);
        let known: Remembered<String> = Remembered::new(Some(counts_for), 4);
        known.note("photos".to_owned(), VolumeId(3), Duration::ZERO);
        let almost = counts_for - Duration::from_nanos(1);
        for (what, now, want) in [
            ("photos", Duration::ZERO, Some(VolumeId(3))),
            ("films", Duration::ZERO, None),
            ("photos", almost, Some(VolumeId(3))),
            ("photos", counts_for, None),
        ] {
            assert_eq!(known.volume(what, now), want, "{what} at {now:?}");
        }
        known.note("photos".to_owned(), VolumeId(4), counts_for);
        known.forget("photos");
        assert_eq!(known.volume("photos", counts_for), None);
        for index in 0..9 {
            known.note(index.to_string(), VolumeId(1), Duration::ZERO);
            assert!(known.known.lock().len() <= 4);
        }
        let for_ever: Remembered<u8> = Remembered::new(None, 4);
        for_ever.note(7, VolumeId(1), Duration::ZERO);
        assert_eq!(for_ever.volume(&7, Duration::MAX), Some(VolumeId(1)));
    }
}
