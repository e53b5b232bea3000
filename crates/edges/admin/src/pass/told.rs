//! What of volumes only their owners can tell: asked of those, and filled into the answer of the node that was asked.
//!
//! Owns: which answers that is for, what is taken from an owner's. Must not know: how an owner finds it out.
//!
//! Settings of a volume are in the map that all nodes have, and the node that was asked has it first, if it was set there. So
//! its answer stays, and gets what is used from the owner's answer to the same request.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use cairn_base::NodeId;
use cairn_forward::Forward;
use futures_util::future::join_all;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use super::{ForwardedRequest, page_in};
use crate::api::{ErrorKind, Status};
use crate::classes::PartList;
use crate::control::ControlError;
use crate::volumes::{VolumeList, VolumeView};

/// Until an owner answers: without it the rest is shown.
const TOLD_MAX: Duration = Duration::from_secs(3);
const VOLUMES: &str = "/api/v1/volumes";
const STATUS: &str = "/api/v1/status";
const LIMITS: &str = "limits";

/// An answer of which the owners of volumes know a part.
trait MergedAnswer: Serialize + DeserializeOwned {
    /// The names of nodes that own what the answer is about.
    fn owners(&self) -> BTreeSet<String>;
    /// Fills in what the owner of that name answers to the same request, or that it does not answer.
    fn fill(&mut self, owner: &str, answer: Option<&Self>);
}

impl MergedAnswer for VolumeView {
    fn owners(&self) -> BTreeSet<String> {
        self.owner.iter().cloned().collect()
    }

    fn fill(&mut self, owner: &str, answer: Option<&Self>) {
        if self.owner.as_deref() != Some(owner) {
            return;
        }
        let Some(told) = answer else {
            self.problem.get_or_insert_with(|| {
                format!("node {owner}, which owns it, does not answer: what it uses is not known")
            });
            return;
        };
        // It may have gone to another node meanwhile.
        if told.id != self.id || told.owner.is_some() {
            return;
        }
        (self.serving, self.problem) = (told.serving, told.problem.clone());
        (self.rates, self.media_bytes) = (told.rates.clone(), told.media_bytes.clone());
        (self.used_bytes, self.inodes) = (told.used_bytes, told.inodes);
        (self.total_bytes, self.free_bytes) = (told.total_bytes, told.free_bytes);
        (self.snapshots, self.snapshot_bytes) = (told.snapshots, told.snapshot_bytes);
        (self.garbage_bytes, self.freeing_bytes) = (told.garbage_bytes, told.freeing_bytes);
        self.deduplicated_bytes = told.deduplicated_bytes;
        self.clone_of = told.clone_of.clone();
        if let (Some(tiering), Some(told)) = (&mut self.tiering, &told.tiering)
            && tiering.tier == told.tier
        {
            tiering.remote_bytes = told.remote_bytes;
        }
    }
}

impl MergedAnswer for Vec<VolumeView> {
    fn owners(&self) -> BTreeSet<String> {
        self.iter().filter_map(|view| view.owner.clone()).collect()
    }

    fn fill(&mut self, owner: &str, answer: Option<&Self>) {
        for view in self {
            match answer {
                None => view.fill(owner, None),
                Some(told) => {
                    if let Some(told) = told.iter().find(|told| told.id == view.id) {
                        view.fill(owner, Some(told));
                    }
                }
            }
        }
    }
}

impl MergedAnswer for VolumeList {
    fn owners(&self) -> BTreeSet<String> {
        self.volumes.owners()
    }

    fn fill(&mut self, owner: &str, answer: Option<&Self>) {
        self.volumes.fill(owner, answer.map(|told| &told.volumes));
    }
}

impl MergedAnswer for Status {
    fn owners(&self) -> BTreeSet<String> {
        self.volumes.owners()
    }

    fn fill(&mut self, owner: &str, answer: Option<&Self>) {
        self.volumes.fill(owner, answer.map(|told| &told.volumes));
    }
}

impl MergedAnswer for PartList {
    fn owners(&self) -> BTreeSet<String> {
        self.owner.iter().cloned().collect()
    }

    fn fill(&mut self, _: &str, answer: Option<&Self>) {
        let Some(told) = answer.filter(|told| told.owner.is_none()) else {
            return;
        };
        for view in &mut self.limits {
            let part = &view.limit.part;
            if let Some(told) = told.limits.iter().find(|told| told.limit.part == *part) {
                view.bytes_per_second = told.bytes_per_second;
                view.operations_per_second = told.operations_per_second;
            }
        }
    }
}

/// An answer with what the owners of its volumes know, if it is one of which they do.
pub(super) async fn complete(
    forward: &Arc<Forward>,
    asked: &ForwardedRequest,
    answer: Response,
) -> Response {
    if asked.method != Method::GET || answer.status() != StatusCode::OK {
        return answer;
    }
    let path = asked.uri.path();
    let below = path
        .strip_prefix(VOLUMES)
        .and_then(|rest| rest.strip_prefix('/'));
    match below.map(|below| below.split_once('/')) {
        None if path == VOLUMES => filled::<VolumeList>(forward, asked, answer).await,
        None if path == STATUS => filled::<Status>(forward, asked, answer).await,
        Some(None) => filled::<VolumeView>(forward, asked, answer).await,
        Some(Some((_, LIMITS))) => filled::<PartList>(forward, asked, answer).await,
        _ => answer,
    }
}

async fn filled<T: MergedAnswer>(
    forward: &Arc<Forward>,
    asked: &ForwardedRequest,
    answer: Response,
) -> Response {
    let (mut head, body) = answer.into_parts();
    let internal = |error: String| ControlError::new(ErrorKind::Internal, error).into_response();
    let mut own: T = match page_in(Response::new(body)).await {
        Ok(own) => own,
        Err(error) => return internal(format!("the answer of this node cannot be read: {error}")),
    };
    let owners = own.owners();
    let named: Vec<(NodeId, String)> = forward
        .nodes()
        .others()
        .into_iter()
        .map(|node| (node, forward.nodes().name(node)))
        .filter(|(_, name)| owners.contains(name))
        .collect();
    let answers = named.into_iter().map(|(node, name)| async move {
        let told = timeout(TOLD_MAX, told_by::<T>(forward, asked, node)).await;
        (
            name,
            told.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())),
        )
    });
    for (name, told) in join_all(answers).await {
        if let Err(error) = &told {
            tracing::debug!(node = name, %error, "an owner of volumes does not answer");
        }
        own.fill(&name, told.ok().as_ref());
    }
    head.headers.remove(header::CONTENT_LENGTH);
    match serde_json::to_vec(&own) {
        Ok(all) => Response::from_parts(head, Body::from(all)),
        Err(error) => internal(error.to_string()),
    }
}

async fn told_by<T: MergedAnswer>(
    forward: &Arc<Forward>,
    asked: &ForwardedRequest,
    node: NodeId,
) -> io::Result<T> {
    let answer = asked.of(forward, node, TOLD_MAX).await?;
    match answer.status() {
        StatusCode::OK => page_in(answer).await,
        status => Err(io::Error::other(format!("it answers with {status}"))),
    }
}
