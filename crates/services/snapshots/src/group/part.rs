//! The part of one node in groups: the steps that it takes with its own volumes.
//!
//! Owns: the order of steps, the time limit between two of them. Must not know: which nodes are in a group.
//!
//! ```text
//!            begin          hold         take          end
//!  (nothing) -----> begun -----> held -----> taken -----> (nothing)
//!                     |           |            |
//!                     +-----------+------------+---> (nothing), after a failure, `BREAK_OFF` or a decision
//! ```

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use cairn_base::Timestamp;
use cairn_base::env::Env;
use cairn_fs::{JointSnapshots, SnapshotFailure};
use parking_lot::Mutex;

use super::Step;

/// A group without any message for so long has failed. From the second step on clients wait for replies.
pub const BREAK_OFF: Duration = Duration::from_secs(5);

/// The snapshots that a node is taking of its volumes in a group. If it is dropped, clients are answered again.
pub trait Part: Sized + Send + 'static {
    type Error: Send;

    fn hold(&mut self) -> impl Future<Output = Result<(), Self::Error>> + Send;
    fn take(&mut self, taken: Timestamp, group: u64) -> Result<(), Self::Error>;
    /// Also fails if a client got a reply since [`Self::hold`].
    fn end(self) -> impl Future<Output = Result<(), Self::Error>> + Send;
}

/// Fails with the index of the volume.
impl Part for JointSnapshots {
    type Error = (usize, SnapshotFailure);

    async fn hold(&mut self) -> Result<(), Self::Error> {
        self.close().await?;
        JointSnapshots::hold(self);
        Ok(())
    }

    fn take(&mut self, taken: Timestamp, group: u64) -> Result<(), Self::Error> {
        JointSnapshots::take(self, taken, group)
    }

    async fn end(self) -> Result<(), Self::Error> {
        JointSnapshots::end(self).await.map(drop)
    }
}

/// The volumes of a group that this node owns.
pub trait Volumes: Sync {
    type Part: Part;
    type Shown: Send;
    type Error: Send;

    fn begin(&self) -> impl Future<Output = Result<Self::Part, Self::Error>> + Send;
    /// Shows the volumes' snapshots of the group, or deletes them; may be asked several times.
    fn decide(
        &self,
        group: u64,
        is_whole: bool,
    ) -> impl Future<Output = Result<Vec<Self::Shown>, Self::Error>> + Send;
    fn refused(&self, error: <Self::Part as Part>::Error) -> Self::Error;
    /// The error of a step whose group was given up here, or had another step before.
    fn broken(&self) -> Self::Error;
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Begun,
    Held,
    Taken,
}

struct Kept<P> {
    /// `None`: a step is running.
    part: Option<P>,
    stage: Stage,
    /// Number of ended steps.
    step_count: u64,
}

type Table<P> = Arc<Mutex<BTreeMap<u64, Kept<P>>>>;

/// Groups that this node takes part in, between two steps.
pub struct Parts<P>(Table<P>);

impl<P> Default for Parts<P> {
    fn default() -> Self {
        Self(Table::default())
    }
}

/// The place of a running step; frees the place of a group whose step fails or is dropped.
struct Running<P> {
    table: Table<P>,
    group: u64,
    step_count: u64,
}

impl<P> Drop for Running<P> {
    fn drop(&mut self) {
        let mut table = self.table.lock();
        let is_own = |kept: &Kept<P>| kept.part.is_none() && kept.step_count == self.step_count;
        if table.get(&self.group).is_some_and(is_own) {
            table.remove(&self.group);
        }
    }
}

impl<P: Part> Parts<P> {
    /// Takes a step of a group that this or another node coordinates.
    pub async fn step<V: Volumes<Part = P>>(
        &self,
        env: &Env,
        group: u64,
        step: Step,
        volumes: &V,
    ) -> Result<Vec<V::Shown>, V::Error> {
        let told = |error| volumes.refused(error);
        match step {
            Step::Begin => {
                let part = volumes.begin().await?;
                let is_first = self.begun(group, part);
                let step_count = is_first.then_some(1).ok_or_else(|| volumes.broken())?;
                self.watch(env, group, step_count);
            }
            Step::Hold => {
                let running = self.take_out(group, Stage::Begun);
                let (mut part, running) = running.ok_or_else(|| volumes.broken())?;
                part.hold().await.map_err(told)?;
                self.put_back(env, running, part, Stage::Held);
            }
            Step::Take { taken } => {
                let running = self.take_out(group, Stage::Held);
                let (mut part, running) = running.ok_or_else(|| volumes.broken())?;
                part.take(taken, group).map_err(told)?;
                self.put_back(env, running, part, Stage::Taken);
            }
            Step::End => {
                let running = self.take_out(group, Stage::Taken);
                let (part, _running) = running.ok_or_else(|| volumes.broken())?;
                part.end().await.map_err(told)?;
            }
            Step::Decide { is_whole } => {
                self.forget(group);
                return volumes.decide(group, is_whole).await;
            }
        }
        Ok(Vec::new())
    }

    /// Notes the part of a new group; returns false if this node has one of it already.
    fn begun(&self, group: u64, part: P) -> bool {
        let mut table = self.0.lock();
        if table.contains_key(&group) {
            drop(table);
            // Outside of the lock: it releases others.
            drop(part);
            return false;
        }
        let kept = Kept {
            part: Some(part),
            stage: Stage::Begun,
            step_count: 1,
        };
        table.insert(group, kept);
        true
    }

    /// Takes a part out for its next step, if it is at this stage.
    fn take_out(&self, group: u64, stage: Stage) -> Option<(P, Running<P>)> {
        let mut table = self.0.lock();
        let kept = table.get_mut(&group).filter(|kept| kept.stage == stage)?;
        let part = kept.part.take()?;
        let running = Running {
            table: Arc::clone(&self.0),
            group,
            step_count: kept.step_count,
        };
        Some((part, running))
    }

    /// Keeps a part for its next step, unless its group was decided meanwhile: then the part is dropped.
    fn put_back(&self, env: &Env, running: Running<P>, part: P, stage: Stage) {
        let group = running.group;
        let mut table = self.0.lock();
        let kept = table.get_mut(&group).filter(|kept| {
            // Nobody else took a step: the place is that of this one.
            kept.part.is_none() && kept.step_count == running.step_count
        });
        let Some(kept) = kept else {
            drop(table);
            // Outside of the lock: it releases others.
            drop(part);
            return;
        };
        kept.step_count += 1;
        kept.stage = stage;
        kept.part = Some(part);
        let step_count = kept.step_count;
        drop(table);
        self.watch(env, group, step_count);
    }

    /// Drops a part if no step follows in time.
    fn watch(&self, env: &Env, group: u64, step_count: u64) {
        let table = Arc::clone(&self.0);
        let clock = Arc::clone(&env.clock);
        let give_up = async move {
            clock.sleep(BREAK_OFF).await;
            let broken = {
                let mut table = table.lock();
                let is_idle = |kept: &Kept<P>| kept.step_count == step_count && kept.part.is_some();
                match table.get(&group).is_some_and(is_idle) {
                    true => table.remove(&group),
                    false => None,
                }
            };
            // The part releases its locks outside of this lock.
            if broken.is_some() {
                tracing::warn!(
                    group,
                    "a consistency group was not continued: its snapshots are given up"
                );
            }
        };
        env.spawner.spawn("a group of snapshots", Box::pin(give_up));
    }

    /// Drops the part of a group that is decided.
    fn forget(&self, group: u64) {
        let kept = self.0.lock().remove(&group);
        drop(kept);
    }

    #[cfg(test)]
    pub(super) fn crash(&self) {
        let kept = std::mem::take(&mut *self.0.lock());
        drop(kept);
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }
}
