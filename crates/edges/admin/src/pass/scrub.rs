//! The scrubs of all nodes, as one.
//!
//! Owns: how numbers and stages of several scrubs become those of one. Must not know: what a scrub reads.
//!
//! Each node reads the volumes that it owns. A volume that moves meanwhile is read by its new owner, unless that one is done.

use std::sync::Arc;

use axum::body::Body;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use cairn_base::NodeId;
use cairn_forward::Forward;
use futures_util::future::join_all;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{ForwardedRequest, LIST_MAX, page_in};
use crate::api::ErrorKind;
use crate::control::ControlError;
use crate::joined::SilentNode;
use crate::scrub::{ScrubReport, ScrubStage, ScrubView};

/// Places in files that a report of all nodes names.
const DAMAGED_MAX: usize = 10_000;

/// An answer about a scrub.
trait OfScrub: Serialize + DeserializeOwned {
    /// Adds what another node says to it.
    fn add(&mut self, other: Self);
    fn view(&mut self) -> &mut ScrubView;
}

impl OfScrub for ScrubView {
    fn add(&mut self, other: Self) {
        let never = |view: &Self| view.stage == ScrubStage::Never;
        // Also of a node that has never had one.
        let next_seconds = [self.next_seconds, other.next_seconds];
        let next_seconds = next_seconds.into_iter().flatten().min();
        self.next_seconds = next_seconds;
        // A node that joined later has none to tell of.
        if never(&other) {
            return;
        }
        if never(self) {
            let silent = std::mem::take(&mut self.silent);
            *self = Self {
                silent,
                next_seconds,
                ..other
            };
            return;
        }
        let runs = |view: &Self| view.stage == ScrubStage::Running;
        // One that goes on somewhere does not rest.
        self.rests_until_seconds = match (runs(self), runs(&other)) {
            (true, true) => {
                let both = self.rests_until_seconds.zip(other.rests_until_seconds);
                both.map(|(one, another)| one.min(another))
            }
            (false, true) => other.rests_until_seconds,
            (true, false) | (false, false) => self.rests_until_seconds,
        };
        self.by_schedule |= other.by_schedule;
        self.stage = match (self.stage, other.stage) {
            (ScrubStage::Running, _) | (_, ScrubStage::Running) => ScrubStage::Running,
            (ScrubStage::Paused, _) | (_, ScrubStage::Paused) => ScrubStage::Paused,
            (ScrubStage::Done | ScrubStage::Never, ScrubStage::Done | ScrubStage::Never) => {
                ScrubStage::Done
            }
        };
        self.started_seconds = self.started_seconds.min(other.started_seconds);
        self.finished_seconds = match self.stage {
            ScrubStage::Done => self.finished_seconds.max(other.finished_seconds),
            ScrubStage::Never | ScrubStage::Running | ScrubStage::Paused => 0,
        };
        // The slowest has the last word.
        self.seconds_left = self.seconds_left.max(other.seconds_left);
        // Of each node; what one of them may take without a limit, all may.
        self.rate_bytes_per_second = match (self.rate_bytes_per_second, other.rate_bytes_per_second)
        {
            (0, _) | (_, 0) => 0,
            (one, another) => one.max(another),
        };
        self.done_bytes += other.done_bytes;
        self.total_bytes += other.total_bytes;
        self.shards += other.shards;
        self.records += other.records;
        self.wrong_bytes += other.wrong_bytes;
        self.repaired_bytes += other.repaired_bytes;
        self.shards_rebuilt += other.shards_rebuilt;
        self.shards_sealed += other.shards_sealed;
        self.shards_away += other.shards_away;
        self.damaged += other.damaged;
        self.errors += other.errors;
    }

    fn view(&mut self) -> &mut ScrubView {
        self
    }
}

impl OfScrub for ScrubReport {
    fn add(&mut self, other: Self) {
        self.scrub.add(other.scrub);
        let room = DAMAGED_MAX.saturating_sub(self.damaged.len());
        let beyond = other.damaged.len().saturating_sub(room);
        self.damaged.extend(other.damaged.into_iter().take(room));
        self.damaged_more += other.damaged_more + beyond as u64;
    }

    fn view(&mut self) -> &mut ScrubView {
        &mut self.scrub
    }
}

/// The answer of this node with those of all others, to a question or a change that each of them gets.
pub(super) async fn of_all(
    forward: &Arc<Forward>,
    asked: &ForwardedRequest,
    own: Response,
) -> Response {
    // A node that has none to pause may not be the only one.
    let is_fine = |status: StatusCode| status.is_success() || status == StatusCode::CONFLICT;
    if !is_fine(own.status()) {
        return own;
    }
    match asked.uri.path().ends_with("/report") {
        true => joined::<ScrubReport>(forward, asked, own).await,
        false => joined::<ScrubView>(forward, asked, own).await,
    }
}

enum OwnerAnswer<T> {
    Has(T),
    /// It has none to pause.
    HasNone,
    Silent(String),
}

async fn ask<T: OfScrub>(
    forward: &Arc<Forward>,
    asked: &ForwardedRequest,
    node: NodeId,
) -> OwnerAnswer<T> {
    if !forward.nodes().is_alive(node) {
        return OwnerAnswer::Silent("it is away".to_owned());
    }
    match asked.of(forward, node, LIST_MAX).await {
        Ok(answer) if answer.status().is_success() => match page_in(answer).await {
            Ok(view) => OwnerAnswer::Has(view),
            Err(error) => OwnerAnswer::Silent(error.to_string()),
        },
        Ok(answer) if answer.status() == StatusCode::CONFLICT => OwnerAnswer::HasNone,
        Ok(answer) => OwnerAnswer::Silent(format!("it answers with {}", answer.status())),
        Err(error) => OwnerAnswer::Silent(error.to_string()),
    }
}

async fn joined<T: OfScrub>(
    forward: &Arc<Forward>,
    asked: &ForwardedRequest,
    own: Response,
) -> Response {
    let internal = |why: String| ControlError::new(ErrorKind::Internal, why).into_response();
    let others = forward.nodes().others().into_iter();
    let answers = others.map(|node| async move { (node, ask::<T>(forward, asked, node).await) });
    let answers = join_all(answers).await;
    let (mut head, body) = own.into_parts();
    let mut all: Option<T> = None;
    let mut refusal = None;
    if head.status.is_success() {
        match page_in(Response::new(body)).await {
            Ok(view) => all = Some(view),
            Err(error) => return internal(format!("this node's answer cannot be read: {error}")),
        }
    } else {
        refusal = Some(body);
    }
    let mut silent = Vec::new();
    for (node, told) in answers {
        match (told, &mut all) {
            (OwnerAnswer::Has(view), Some(all)) => all.add(view),
            (OwnerAnswer::Has(view), none @ None) => *none = Some(view),
            (OwnerAnswer::HasNone, _) => {}
            (OwnerAnswer::Silent(why), _) => silent.push(SilentNode {
                node: forward.nodes().name(node),
                why,
            }),
        }
    }
    let Some(mut all) = all else {
        return Response::from_parts(head, refusal.unwrap_or_else(Body::empty));
    };
    all.view().silent = silent;
    head.headers.remove(header::CONTENT_LENGTH);
    head.status = StatusCode::OK;
    match serde_json::to_vec(&all) {
        Ok(all) => Response::from_parts(head, Body::from(all)),
        Err(error) => internal(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scrubs_of_nodes_are_one() {
        let view = |stage, done_bytes, finished_seconds| ScrubView {
            stage,
            done_bytes,
            total_bytes: 10,
            started_seconds: 100,
            finished_seconds,
            ..ScrubView::default()
        };
        use ScrubStage::{Done, Never, Paused, Running};
        let cases = [
            ("one runs", Done, Running, (Running, 0)),
            ("one is paused", Paused, Done, (Paused, 0)),
            ("one runs, one is paused", Paused, Running, (Running, 0)),
            ("all are done", Done, Done, (Done, 300)),
            ("none was started", Never, Never, (Never, 200)),
        ];
        for (name, one, other, want) in cases {
            let mut all = view(one, 3, 200);
            all.add(view(other, 4, 300));
            assert_eq!((all.stage, all.finished_seconds), want, "{name}");
            let sums = match one {
                Never => (3, 10),
                Running | Paused | Done => (7, 20),
            };
            assert_eq!((all.done_bytes, all.total_bytes), sums, "{name}");
        }
        let resting = |stage, rests_until_seconds, next_seconds| ScrubView {
            rests_until_seconds,
            next_seconds,
            ..view(stage, 0, 0)
        };
        let cases = [
            (
                "both rest",
                (Running, Some(7), Some(90)),
                (Running, Some(7), Some(80)),
                (Some(7), Some(80)),
            ),
            (
                "one goes on",
                (Running, Some(7), None),
                (Running, None, None),
                (None, None),
            ),
            (
                "the other is done",
                (Done, None, Some(90)),
                (Running, Some(7), None),
                (Some(7), Some(90)),
            ),
            (
                "the other never had one",
                (Running, Some(7), Some(90)),
                (Never, None, Some(5)),
                (Some(7), Some(5)),
            ),
            (
                "this one never had one",
                (Never, None, Some(5)),
                (Done, None, Some(90)),
                (None, Some(5)),
            ),
        ];
        for (name, one, other, want) in cases {
            let mut all = resting(one.0, one.1, one.2);
            all.add(resting(other.0, other.1, other.2));
            assert_eq!((all.rests_until_seconds, all.next_seconds), want, "{name}");
        }
        // A node that joined after it has nothing to say of it.
        let mut all = view(Done, 3, 200);
        all.add(view(Never, 0, 0));
        assert_eq!((all.stage, all.total_bytes), (Done, 10));
        let mut all = view(Never, 0, 0);
        all.add(view(Running, 3, 0));
        assert_eq!((all.stage, all.done_bytes), (Running, 3));
    }
}
