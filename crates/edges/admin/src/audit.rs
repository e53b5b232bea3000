//! Who changed what and when: an entry for each request that changes something, and for each log-in.
//!
//! Owns: what is in an entry, and that no secret is; how entries are looked for; which become a line of the server's log.
//! Must not know: what a request does, where entries are kept.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{Method, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use cairn_config::{Role, TOKEN_USER, UserName};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::api::{ErrorDetail, ErrorKind};
use crate::control::{Answer, ControlError};
use crate::endpoint::{
    Argument, Endpoint, Parameters, Url, UrlParts, any_text, endpoints, get, number, switch,
};
use crate::entries::{ENTRY_LIMIT_MAX, Entry, LogRange};
use crate::failures::{FAILURES_EVERY, Noted};
use crate::joined::{LogPage, OfNode, PageParts, SilentNode};
use crate::query::Query;
use crate::server::caller::{Caller, Peer, Via};
use crate::server::{Api, ServerCore};

/// Longest path that is kept, in characters.
pub const AUDIT_PATH_CHARS_MAX: usize = 512;
/// Longest line of an entry as it is kept, in bytes; above it the line is none.
pub const AUDIT_LINE_LEN_BYTES_MAX: usize = 4096;
/// A part of the path of all log-ins.
const LOG_INS: &str = "/api/v1/session";
/// Failed log-ins before a start slow further ones down if they are not older, in seconds.
const RECALLED_SECONDS: i64 = 300;
/// What an entry calls somebody of whom nothing is known.
const UNKNOWN: &str = "?";

/// A change, or an attempt at one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AuditEntry {
    /// Grows with each entry.
    pub id: u64,
    /// Time of the answer, in seconds since 1970 UTC.
    pub at_seconds: i64,
    /// The user, `token`, or `?` if unknown. For a failed log-in: the claimed user.
    #[schema(example = "alice")]
    pub user: String,
    /// The way of authentication: `token`, `session`, `password`, `oidc` (an OpenID provider, or a session that it started), or
    /// `nothing`.
    #[schema(example = "session")]
    pub via: String,
    /// Address of the client.
    #[schema(example = "10.1.2.3")]
    pub address: String,
    #[schema(example = "POST")]
    pub method: String,
    #[schema(example = "/api/v1/volumes")]
    pub path: String,
    /// HTTP status of the answer; 400 and above mean refused or failed.
    #[schema(example = 201)]
    pub status: u16,
    /// Number of failed log-ins, if the entry summarizes those of a minute. User and address are the most frequent ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// In answers of a cluster: the node that got the request. Not stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
}

impl Entry for AuditEntry {
    const LINE_LEN_BYTES_MAX: usize = AUDIT_LINE_LEN_BYTES_MAX;

    fn id(&self) -> u64 {
        self.id
    }

    fn set_id(&mut self, id: u64) {
        self.id = id;
    }

    fn at_seconds(&self) -> i64 {
        self.at_seconds
    }
}

impl OfNode for AuditEntry {
    fn set_node(&mut self, node: &str) {
        self.node = Some(node.to_owned());
    }

    fn node(&self) -> &str {
        self.node.as_deref().unwrap_or_default()
    }
}

/// A page of entries, newest first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AuditPage {
    pub entries: Vec<AuditEntry>,
    /// The `before` of the next page; left out on the last page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_before: Option<u64>,
    /// Time of the oldest stored entry, whatever the filter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_seconds: Option<i64>,
    /// Why entries cannot be written to disk now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// Nodes that did not answer, and why. The answer lacks requests to them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub silent: Vec<SilentNode>,
}

impl LogPage for AuditPage {
    type Entry = AuditEntry;
    const LOG: &'static str = "the audit log";

    fn parts(&mut self) -> PageParts<'_, AuditEntry> {
        PageParts {
            entries: &mut self.entries,
            next_before: &mut self.next_before,
            first_seconds: &mut self.first_seconds,
            problem: &mut self.problem,
            silent: &mut self.silent,
        }
    }
}

/// A filter of entries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuditQuery {
    pub user: Option<String>,
    /// A part of the path.
    pub path: Option<String>,
    pub method: Option<String>,
    /// Only refused and failed requests, or only the others.
    pub refused: Option<bool>,
    pub part: LogRange,
}

impl AuditQuery {
    pub const KEYS: &'static [&'static str] = &[
        "user", "path", "method", "from", "to", "refused", "node", "before", "after", "limit",
    ];

    /// Reads what was asked. Fails with what is wrong with it.
    pub fn of(query: &Query, now_seconds: i64) -> Result<Self, String> {
        let text = |key: &str| query.values(key).last().map(str::to_owned);
        let refused = match text("refused").as_deref() {
            None => None,
            Some("true") => Some(true),
            Some("false") => Some(false),
            Some(_) => return Err("refused is true or false".to_owned()),
        };
        Ok(Self {
            user: text("user"),
            path: text("path"),
            method: text("method").map(|method| method.to_ascii_uppercase()),
            refused,
            part: LogRange::of(query, now_seconds)?,
        })
    }

    /// The filter as a query string.
    pub fn to_query(&self) -> String {
        let refused = self.refused.map(|refused| refused.to_string());
        self.part.to_query(&[
            ("user", self.user.as_deref()),
            ("path", self.path.as_deref()),
            ("method", self.method.as_deref()),
            ("refused", refused.as_deref()),
        ])
    }

    fn is_met(&self, entry: &AuditEntry) -> bool {
        let text = |want: &Option<String>, is_it: &dyn Fn(&str) -> bool| {
            want.as_ref().is_none_or(|want| is_it(want))
        };
        text(&self.user, &|user| entry.user == user)
            && text(&self.path, &|part| entry.path.contains(part))
            && text(&self.method, &|method| entry.method == method)
            && self
                .refused
                .is_none_or(|refused| refused == (entry.status >= 400))
            && self.part.has(entry)
    }

    /// The page of these entries, which are given newest first.
    pub fn page<'a>(&self, newest_first: impl Iterator<Item = &'a AuditEntry>) -> AuditPage {
        let (entries, next_before) = self
            .part
            .cut(newest_first.filter(|entry| self.is_met(entry)));
        AuditPage {
            entries,
            next_before,
            ..AuditPage::default()
        }
    }
}

/// What a node does about the audit log.
pub trait AuditControl: Send + Sync {
    /// Stores an entry and assigns its id; durable once this returns.
    fn note(&self, entry: AuditEntry) -> Answer<'_, ()>;
    fn audit(&self, query: AuditQuery) -> Answer<'_, AuditPage>;
}

/// Of the answer to somebody who was not let in: who it was to be.
#[derive(Clone)]
pub(crate) struct Tried {
    user: String,
    /// `None`: by what the request showed.
    via: Option<&'static str>,
}

impl Tried {
    /// The name of nobody is not kept: it may be a password, or the token, in the wrong field.
    pub fn new(shared: &ServerCore, user: &str) -> Self {
        let is_user = || {
            let name = user.parse::<UserName>().ok()?;
            shared.user(&name)
        };
        let is_known = user == cairn_config::TOKEN_USER || is_user().is_some();
        Self {
            user: if is_known { user } else { UNKNOWN }.to_owned(),
            via: None,
        }
    }

    /// Somebody whom the OpenID provider vouched for, or a log-in by it of which it is not known whose.
    pub fn by_oidc(name: Option<&str>) -> Self {
        Self {
            user: name.unwrap_or(UNKNOWN).to_owned(),
            via: Some(Via::Oidc.as_str()),
        }
    }
}

/// Records a request and its status, without body and query, which may contain secrets.
pub(crate) async fn note(State(shared): Api, request: Request, next: Next) -> Response {
    let reads = [Method::GET, Method::HEAD, Method::OPTIONS];
    if reads.contains(request.method()) {
        return noted(shared, request, next, true).await;
    }
    // To the end, also if the client hangs up: the change goes on, and so does its entry.
    match tokio::spawn(noted(shared, request, next, false)).await {
        Ok(response) => response,
        Err(error) => {
            tracing::error!(%error, "a request of the admin API was interrupted");
            let message = "the request was interrupted; see the server's log";
            ControlError::new(ErrorKind::Internal, message).into_response()
        }
    }
}

/// Of what only reads, that somebody was not let in is noted.
async fn noted(shared: Arc<ServerCore>, request: Request, next: Next, is_read: bool) -> Response {
    let method = request.method().clone();
    let path: String = request
        .uri()
        .path()
        .chars()
        .take(AUDIT_PATH_CHARS_MAX)
        .collect();
    let peer = request.extensions().get::<Peer>().copied();
    let shown = shown(&request);
    let response = next.run(request).await;
    let status = response.status();
    let caller = response.extensions().get::<Caller>();
    let tried = response.extensions().get::<Tried>();
    if is_read && tried.is_none() {
        return response;
    }
    let (user, via) = match (caller, tried) {
        (Some(caller), _) => (caller.name().to_owned(), caller.via.as_str()),
        (None, Some(tried)) => (tried.user.clone(), tried.via.unwrap_or(shown)),
        (None, None) => (UNKNOWN.to_owned(), shown),
    };
    let address = peer.map_or_else(
        || UNKNOWN.to_owned(),
        |peer| peer.0.ip().to_canonical().to_string(),
    );
    if shared.audits() {
        let status = status.as_u16();
        tracing::info!(target: "audit", protocol = "admin", peer = %address, user, by = via, %method, path, status);
    }
    let is_kept = match caller {
        // They change nothing but their own password, and must not push out what others did.
        Some(caller) if caller.role == Role::Viewer => shared.may_note_viewer(),
        Some(_) => true,
        None => false,
    };
    // Anybody can try, again and again.
    let is_failure = caller.is_none() && tried.is_some();
    let entry = AuditEntry {
        id: 0,
        at_seconds: shared.now_seconds(),
        user,
        via: via.to_owned(),
        address,
        method: method.to_string(),
        path,
        status: status.as_u16(),
        count: None,
        node: None,
    };
    if is_failure {
        keep_failure(&shared, entry).await;
    } else if is_kept {
        keep(&shared, entry).await;
    }
    response
}

/// Stores a failed log-in, or counts it for the next summary.
async fn keep_failure(shared: &Arc<ServerCore>, entry: AuditEntry) {
    let noted = shared.failures().add(entry);
    let Noted::Now(entry) = noted else {
        return;
    };
    // The server is not kept for the sake of a minute that has begun.
    let (weak, clock) = (Arc::downgrade(shared), shared.clock());
    tokio::spawn(async move {
        loop {
            clock.sleep(FAILURES_EVERY).await;
            let Some(shared) = weak.upgrade() else {
                return;
            };
            if !keep_failures(&shared).await {
                return;
            }
        }
    });
    keep(shared, *entry).await;
}

/// Stores the summary of the counted failed log-ins; returns false if there were none.
pub(crate) async fn keep_failures(shared: &ServerCore) -> bool {
    let summary = shared.failures().summary();
    let Some(mut summary) = summary else {
        return false;
    };
    summary.at_seconds = shared.now_seconds();
    keep(shared, summary).await;
    true
}

/// What the audit log knows of log-ins before this process began: it counts for how often somebody may try.
pub(crate) async fn recall(shared: &ServerCore) {
    let Some(audit) = shared.audit_control() else {
        return;
    };
    let part = LogRange {
        limit: ENTRY_LIMIT_MAX,
        ..LogRange::default()
    };
    let query = AuditQuery {
        path: Some(LOG_INS.to_owned()),
        part,
        ..AuditQuery::default()
    };
    let page = match audit.audit(query).await {
        Ok(page) => page,
        Err(error) => {
            tracing::warn!(%error, "earlier log-ins cannot be read from the audit log");
            return;
        }
    };
    for entry in page.entries.iter().rev() {
        let Ok(address) = entry.address.parse() else {
            continue;
        };
        let age_seconds = shared.now_seconds().saturating_sub(entry.at_seconds);
        let user = Some(&*entry.user).filter(|user| ![UNKNOWN, TOKEN_USER].contains(user));
        match (entry.status, user) {
            (..=399, Some(user)) if entry.via == Via::Password.as_str() => {
                shared.attempts().recall_right(user, address);
            }
            (401, _) if age_seconds < RECALLED_SECONDS => {
                let count = entry.count.unwrap_or(1);
                let now = shared.clock().monotonic();
                shared.attempts().recall_wrong(user, address, count, now);
            }
            _ => {}
        }
    }
}

/// The change is made, and was answered so: that its entry cannot be kept does not change the answer.
async fn keep(shared: &ServerCore, entry: AuditEntry) {
    let Some(audit) = shared.audit_control() else {
        return;
    };
    let shown = format!("{} {} by {}", entry.method, entry.path, entry.user);
    if let Err(error) = audit.note(entry).await {
        tracing::error!(%error, change = shown, "the audit log could not record this change");
    }
}

/// By what a request shows who it is from; what it shows may be wrong.
fn shown(request: &Request) -> &'static str {
    let headers = request.headers();
    match (
        headers.contains_key(header::AUTHORIZATION),
        headers.contains_key(header::COOKIE),
    ) {
        (true, _) => "token",
        (false, true) => "session",
        (false, false) => "nothing",
    }
}

endpoints! {
    /// The audit log, newest first: each request that changes something, and each log-in. `next_before` is the `before` of the next
    /// page. `user` is the whole name, `path` a part of the path; `from` and `to` are seconds since 1970, or relative to now if
    /// negative or zero; `refused=true` shows only requests that were refused or failed; `after` shows only entries with a higher id;
    /// `limit` is 1 to 1000, by default 100. In a cluster the log has the requests to all nodes, or only those to `node`; `silent`
    /// names nodes that did not answer. A page may have a few more entries than `limit`, with the id of the last one.
    AUDIT_LIST: Endpoint<AuditQuery, (), AuditPage> = get("/api/v1/audit");

}

impl Argument for AuditQuery {
    fn describe(to: &mut Parameters) {
        for key in ["node", "user", "path", "method"] {
            to.in_query(key, any_text());
        }
        to.in_query("from", number::<i64>());
        to.in_query("to", number::<i64>());
        to.in_query("refused", switch());
        LogRange::describe_ids(to);
    }

    fn read(from: &mut UrlParts<'_>) -> Result<Self, ControlError> {
        let query = from.query(Self::KEYS)?;
        Self::of(&query, from.now_seconds())
            .map_err(|problem| ControlError::new(ErrorKind::Invalid, problem))
    }

    fn write(&self, to: &mut Url) -> Result<(), ErrorDetail> {
        to.ask_text(&self.to_query());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(id: u64) -> AuditEntry {
        AuditEntry {
            id,
            at_seconds: 1000 + i64::try_from(id).unwrap(),
            user: ["alice", "bob", "token"][usize::try_from(id % 3).unwrap()].to_owned(),
            via: "session".to_owned(),
            address: "::1".to_owned(),
            method: "POST".to_owned(),
            path: format!("/api/v1/volumes/v{id}"),
            status: if id.is_multiple_of(2) { 200 } else { 403 },
            count: None,
            node: None,
        }
    }

    fn ids(query: &str, count: u64) -> Result<(Vec<u64>, Option<u64>), String> {
        let query =
            Query::parse(Some(query), AuditQuery::KEYS).map_err(|error| error.to_string())?;
        let query = AuditQuery::of(&query, 1010)?;
        let entries: Vec<AuditEntry> = (1..=count).rev().map(entry).collect();
        let page = query.page(entries.iter());
        Ok((
            page.entries.iter().map(|entry| entry.id).collect(),
            page.next_before,
        ))
    }

    /// Whatever nodes have, with the same ids in several of them: pages of a cluster have each entry once, newest first.
    #[test]
    fn pages_of_several_nodes_have_each_entry_once() {
        const IDS: u64 = 4;
        // A bit for each id that a node has.
        let masks = 0..1_u64 << (3 * IDS);
        for (mask, limit) in masks.flat_map(|mask| (1..=3).map(move |limit| (mask, limit))) {
            let ids =
                |node: u64| (1..=IDS).filter(move |id| mask >> (node * IDS + id - 1) & 1 == 1);
            let page = |before: Option<u64>| {
                let pages = (0..3).map(|node| {
                    let kept: Vec<AuditEntry> = ids(node).map(entry).rev().collect();
                    let part = LogRange {
                        before,
                        limit,
                        ..LogRange::default()
                    };
                    let query = AuditQuery {
                        part,
                        ..AuditQuery::default()
                    };
                    (format!("n{node}"), query.page(kept.iter()))
                });
                crate::joined::joined(limit, pages.collect())
            };
            let mut seen = Vec::new();
            let mut before = None;
            loop {
                let found = page(before);
                seen.extend(
                    found
                        .entries
                        .into_iter()
                        .map(|it| (it.id, it.node.unwrap())),
                );
                before = found.next_before;
                if before.is_none() {
                    break;
                }
            }
            let mut want: Vec<(u64, String)> = (0..3)
                .flat_map(|node| ids(node).map(move |id| (id, format!("n{node}"))))
                .collect();
            want.sort_by(|one, other| other.0.cmp(&one.0).then_with(|| one.1.cmp(&other.1)));
            assert_eq!(seen, want, "{mask:b} {limit}");
        }
    }

    #[test]
    fn entries_are_found_by_page() {
        let cases: &[(&str, &[u64], Option<u64>)] = &[
            ("", &[10, 9, 8, 7, 6, 5, 4, 3, 2, 1], None),
            ("limit=3", &[10, 9, 8], Some(8)),
            ("limit=3&before=8", &[7, 6, 5], Some(5)),
            ("limit=3&before=4", &[3, 2, 1], None),
            ("after=8", &[10, 9], None),
            ("user=bob", &[10, 7, 4, 1], None),
            ("user=bo", &[], None),
            ("path=/v1&limit=2", &[10, 9], Some(9)),
            ("path=es/v1", &[10, 1], None),
            ("refused=true&method=post", &[9, 7, 5, 3, 1], None),
            ("refused=false&limit=5", &[10, 8, 6, 4, 2], None),
            ("method=DELETE", &[], None),
            ("from=1009", &[10, 9], None),
            ("from=-1", &[10, 9], None),
            ("to=1002", &[2, 1], None),
        ];
        for (query, want, next) in cases {
            assert_eq!(ids(query, 10), Ok((want.to_vec(), *next)), "{query}");
        }
        for query in [
            "limit=0",
            "limit=1001",
            "from=x",
            "refused=1",
            "before=-1",
            "id=1",
        ] {
            assert!(ids(query, 10).is_err(), "{query}");
        }
    }

    #[test]
    fn a_client_asks_what_it_means() {
        let asked = AuditQuery {
            user: Some("alice".to_owned()),
            path: Some("/a&b=\u{e9}".to_owned()),
            method: None,
            refused: Some(true),
            part: LogRange {
                node: Some("node two".to_owned()),
                from_seconds: Some(5),
                to_seconds: None,
                before: Some(u64::MAX),
                after: None,
                limit: 7,
            },
        };
        let text = asked.to_query();
        let read = Query::parse(Some(&text), AuditQuery::KEYS).unwrap();
        assert_eq!(AuditQuery::of(&read, 1000), Ok(asked));
    }

    #[test]
    fn what_is_kept_is_read_and_a_torn_line_costs_itself_alone() {
        let all: Vec<AuditEntry> = (1..=3).map(entry).collect();
        let text: String = all.iter().map(AuditEntry::to_line).collect();
        assert_eq!(AuditEntry::of_lines(text.as_bytes()), (all.clone(), 0));
        for len in 0..text.len() {
            let (read, wrong) = AuditEntry::of_lines(&text.as_bytes()[..len]);
            assert!(all.starts_with(&read) && wrong <= 1, "{len}");
        }
        let torn = format!("{}{{\"id\":4{}", all[0].to_line(), all[1].to_line());
        let (read, wrong) = AuditEntry::of_lines(torn.as_bytes());
        assert_eq!((read.len(), wrong), (1, 1));
        let long = format!("{}\n", " ".repeat(AUDIT_LINE_LEN_BYTES_MAX + 1));
        assert_eq!(AuditEntry::of_lines(long.as_bytes()), (Vec::new(), 1));
    }

    #[test]
    fn the_longest_entry_fits_a_line() {
        let mut long = entry(1);
        (long.id, long.at_seconds) = (u64::MAX, i64::MIN);
        long.count = Some(u64::MAX);
        long.path = "\u{1}".repeat(AUDIT_PATH_CHARS_MAX);
        assert!(long.to_line().len() <= AUDIT_LINE_LEN_BYTES_MAX);
        assert_eq!(AuditEntry::of_lines(long.to_line().as_bytes()).0, [long]);
    }
}
