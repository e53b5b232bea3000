//! The coordinator: many agents as one [`Driver`].
//!
//! Owns: the calls to the agents, the common start, adding up, giving up those that fail.
//! Must not know: suites, how an agent does a phase.

use std::collections::BTreeSet;
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::protocol::{
    AGENT_PORT_DEFAULT, ANSWER_LEN_BYTES_MAX, Command, Go, Hello, Open, Opened, Order, Outcome,
    PROTOCOL, Refusal, Stage, State,
};
use crate::engine::{Control, EngineError};
use crate::merge::merge_phase;
use crate::plan::{DataPattern, Phase};
use crate::result::{ClientInfo, Machine, PhaseResult};
use crate::suite::{CLIENT_COUNT_MAX, Driver, Target};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Of one request; agents answer at once.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// A request is sent so often before its agent is given up.
const ATTEMPTS: u32 = 3;
const ATTEMPT_INTERVAL: Duration = Duration::from_millis(500);
/// Between two looks at the agents.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// From the call to the common start: longer than a call takes.
const START_DELAY: Duration = Duration::from_millis(300);
/// How long a stopped agent may take to end its phase.
const STOP_PATIENCE: Duration = Duration::from_secs(120);

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClusterError {
    #[error("there can be 1 to {CLIENT_COUNT_MAX} clients, not {0}")]
    Count(usize),
    #[error("\"{0}\" is not HOST or HOST:PORT of an agent")]
    Address(String),
    #[error("the client {0} is named twice")]
    Twice(String),
    #[error("no client can be used: {0}")]
    None(String),
}

/// The agents of one run. Sessions that are left end when it is dropped.
pub struct Cluster {
    clients: Vec<Client>,
    /// Clients that were there when the run began: all places are among so many, also later.
    client_count: u32,
}

struct Client {
    /// `HOST:PORT`
    name: String,
    http: Http,
    session: Option<String>,
    /// Of the last order.
    number: u64,
    place: u32,
    machine: Machine,
    engine: String,
    mount: Option<String>,
    notes: Vec<String>,
    /// Operations and bytes that were told to the display of progress.
    told: (u64, u64),
    failed: Option<String>,
}

impl Cluster {
    /// Opens a session on each agent. One that cannot be used is a failed client; it is an error only
    /// when there is no other. Addresses are `HOST` or `HOST:PORT`; `token` is that of all agents.
    pub fn connect(
        addresses: &[String],
        target: &Target,
        token: &str,
        keep: bool,
    ) -> Result<Self, ClusterError> {
        if !(1..=CLIENT_COUNT_MAX as usize).contains(&addresses.len()) {
            return Err(ClusterError::Count(addresses.len()));
        }
        let mut names = BTreeSet::new();
        let mut clients = Vec::new();
        for address in addresses {
            let name = with_port(address)?;
            if !names.insert(name.clone()) {
                return Err(ClusterError::Twice(name));
            }
            clients.push(Client::new(name, token));
        }
        let mut cluster = Self {
            clients,
            client_count: 0,
        };
        let open = Open {
            protocol: PROTOCOL.to_owned(),
            target: target.to_string(),
            keep,
        };
        let all = cluster.left();
        cluster.each(&all, |client| client.open(&open));
        if cluster.left().is_empty() {
            return Err(ClusterError::None(cluster.failures()));
        }
        Ok(cluster)
    }

    /// Clients that have not failed.
    pub fn count(&self) -> u32 {
        self.left().len() as u32
    }

    /// Those that have failed, with their reasons; empty when there is none.
    pub fn failures(&self) -> String {
        let failures: Vec<String> = self
            .clients
            .iter()
            .filter_map(|client| Some(format!("{}: {}", client.name, client.failed.as_ref()?)))
            .collect();
        failures.join("; ")
    }

    /// The places in [`Self::clients`] of those that have not failed.
    fn left(&self) -> Vec<usize> {
        let clients = self.clients.iter().enumerate();
        clients
            .filter(|(_, client)| client.failed.is_none())
            .map(|(index, _)| index)
            .collect()
    }

    /// Calls some clients side by side. A call that fails ends its client. Results are in the order of
    /// the clients.
    fn each<T: Send>(
        &mut self,
        which: &[usize],
        call: impl Fn(&mut Client) -> Result<T, String> + Sync,
    ) -> Vec<(usize, T)> {
        let call = &call;
        thread::scope(|scope| {
            let calls: Vec<_> = self
                .clients
                .iter_mut()
                .enumerate()
                .filter(|(index, client)| client.failed.is_none() && which.contains(index))
                .map(|(index, client)| {
                    scope.spawn(move || match call(client) {
                        Ok(value) => Some((index, value)),
                        Err(why) => {
                            client.failed = Some(why);
                            None
                        }
                    })
                })
                .collect();
            let done = calls.into_iter();
            // A thread ends only by returning: nothing in it panics on what an agent says.
            done.filter_map(|call| call.join().ok().flatten()).collect()
        })
    }

    /// Gives an order to some clients and waits until all have done it, with a common start of phases.
    fn perform(
        &mut self,
        which: &[usize],
        control: &Control,
        command: impl Fn(&Client) -> Command + Sync,
    ) -> Vec<(usize, Outcome)> {
        self.each(which, |client| {
            let command = command(client);
            client.order(command)
        });
        let states = self.wait(which, control);
        let mut outcomes = Vec::new();
        for (index, state) in states {
            let client = &mut self.clients[index];
            match state.outcome {
                Some(Outcome::Failed { why }) => client.failed = Some(why),
                Some(outcome) => outcomes.push((index, outcome)),
                None => client.failed = Some("it is done and does not say how".to_owned()),
            }
        }
        outcomes
    }

    fn wait(&mut self, which: &[usize], control: &Control) -> Vec<(usize, State)> {
        let mut has_begun = false;
        let mut stopped_at: Option<Instant> = None;
        loop {
            let states = self.each(which, |client| client.state());
            for (index, state) in &states {
                self.clients[*index].tell(state, control);
            }
            if states.iter().all(|(_, state)| state.stage == Stage::Done) {
                return states;
            }
            let is_so_far = |(_, state): &(usize, State)| {
                matches!(state.stage, Stage::Ready | Stage::Begun | Stage::Done)
            };
            if !has_begun && states.iter().all(is_so_far) {
                has_begun = true;
                let waiting: Vec<usize> = states
                    .iter()
                    .filter(|(_, state)| state.stage == Stage::Ready)
                    .map(|(index, _)| *index)
                    .collect();
                let start = Instant::now() + START_DELAY;
                self.each(&waiting, |client| client.go(start));
                control.begin();
            }
            match stopped_at {
                None if control.is_stopped() => {
                    stopped_at = Some(Instant::now());
                    self.each(which, Client::stop);
                }
                Some(at) if at.elapsed() > STOP_PATIENCE => {
                    for (index, state) in &states {
                        if state.stage != Stage::Done {
                            let why = "it did not stop when it was told to".to_owned();
                            self.clients[*index].failed = Some(why);
                        }
                    }
                }
                None | Some(_) => {}
            }
            thread::sleep(POLL_INTERVAL);
        }
    }

    fn none_left(&self) -> EngineError {
        EngineError::Target(format!("no client is left: {}", self.failures()))
    }

    /// `Ok` while a client is left.
    fn check_left(&self) -> Result<(), EngineError> {
        if self.left().is_empty() {
            return Err(self.none_left());
        }
        Ok(())
    }

    fn keep_prepared(&mut self, outcomes: Vec<(usize, Outcome)>) {
        for (index, outcome) in outcomes {
            match outcome {
                Outcome::Prepared { engine, mount } => {
                    let client = &mut self.clients[index];
                    (client.engine, client.mount) = (engine, mount);
                }
                _ => self.clients[index].fail_odd(),
            }
        }
    }
}

impl Driver for Cluster {
    fn prepare(
        &mut self,
        bytes_needed: u64,
        allow_files: bool,
        control: &Control,
    ) -> Result<(), EngineError> {
        // The first one looks whether the target is empty and large enough for all, and makes the
        // folder; for those after it the target is no longer empty.
        let mut rest = self.left();
        while !rest.is_empty() {
            let first = rest.remove(0);
            let outcomes = self.perform(&[first], control, |_| Command::Prepare {
                bytes_needed,
                allow_files,
            });
            self.keep_prepared(outcomes);
            if self.clients[first].failed.is_none() {
                break;
            }
        }
        let share = bytes_needed / u64::from(self.count().max(1));
        let outcomes = self.perform(&rest, control, |_| Command::Prepare {
            bytes_needed: share,
            allow_files: true,
        });
        self.keep_prepared(outcomes);
        self.check_left()?;
        self.client_count = self.count();
        for (place, index) in (0..).zip(self.left()) {
            self.clients[index].place = place;
        }
        Ok(())
    }

    fn run(
        &mut self,
        phase: &Phase,
        pattern: &DataPattern,
        control: &Control,
    ) -> Result<PhaseResult, EngineError> {
        self.check_left()?;
        control.arm(false);
        let left = self.left();
        let client_count = self.client_count;
        let outcomes = self.perform(&left, control, |client| Command::Run {
            phase: phase.clone(),
            pattern: *pattern,
            client: client.place,
            client_count,
        });
        let mut results = Vec::new();
        for (index, outcome) in outcomes {
            let Outcome::Ran { mut result, notes } = outcome else {
                self.clients[index].fail_odd();
                continue;
            };
            for worker in &mut result.workers {
                worker.client = index;
            }
            self.clients[index].notes.extend(notes);
            results.push(*result);
        }
        if results.is_empty() {
            return Err(self.none_left());
        }
        let mut merged = merge_phase(results);
        let lost: Vec<String> = left
            .iter()
            .filter_map(|index| self.clients.get(*index))
            .filter_map(|client| Some(format!("{}: {}", client.name, client.failed.as_ref()?)))
            .collect();
        if !lost.is_empty() {
            let why = format!("without the client {}", lost.join("; "));
            merged.partial = Some(match merged.partial.take() {
                Some(other) => format!("{other}; {why}"),
                None => why,
            });
        }
        Ok(merged)
    }

    fn drop_caches(&mut self, control: &Control) -> String {
        let left = self.left();
        let outcomes = self.perform(&left, control, |_| Command::DropCaches);
        let mut ways = BTreeSet::new();
        for (index, outcome) in outcomes {
            match outcome {
                Outcome::Dropped { how } => {
                    ways.insert(how);
                }
                _ => self.clients[index].fail_odd(),
            }
        }
        Vec::from_iter(ways).join("; ")
    }

    fn clean_up(&mut self) -> Result<(), EngineError> {
        self.check_left()?;
        // One after the other: all have their files in one folder, and each removes it.
        let mut errors = Vec::new();
        for index in self.left() {
            let outcomes = self.perform(&[index], &Control::default(), |_| Command::CleanUp);
            for (index, outcome) in outcomes {
                if !matches!(outcome, Outcome::CleanedUp) {
                    self.clients[index].fail_odd();
                }
            }
            // Everything was measured by then: the client did not fail, cleaning up did.
            let client = &mut self.clients[index];
            if let Some(why) = client.failed.take() {
                errors.push(format!("{}: {why}", client.name));
            }
        }
        if errors.is_empty() {
            return Ok(());
        }
        Err(EngineError::Target(errors.join("; ")))
    }

    fn clients(&self) -> Vec<ClientInfo> {
        let info = |client: &Client| ClientInfo {
            name: client.name.clone(),
            machine: client.machine.clone(),
            engine: client.engine.clone(),
            failed: client.failed.clone(),
        };
        self.clients.iter().map(info).collect()
    }

    fn mount(&self) -> Option<String> {
        self.clients.iter().find_map(|client| client.mount.clone())
    }

    fn notes(&mut self) -> Vec<String> {
        let clients = self.clients.iter_mut();
        clients.flat_map(|client| client.notes.drain(..)).collect()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        thread::scope(|scope| {
            for client in &mut self.clients {
                // An agent that cannot be told finds out by itself that nobody is there.
                scope.spawn(|| client.close());
            }
        });
    }
}

impl Client {
    fn new(name: String, token: &str) -> Self {
        Self {
            http: Http::new(&name, token),
            name,
            session: None,
            number: 0,
            place: 0,
            machine: Machine::default(),
            engine: String::new(),
            mount: None,
            notes: Vec::new(),
            told: (0, 0),
            failed: None,
        }
    }

    fn open(&mut self, open: &Open) -> Result<(), String> {
        let hello: Hello = self.http.get("/bench/v1/hello")?;
        if hello.protocol != PROTOCOL {
            return Err(format!(
                "it speaks {}, not {PROTOCOL}: use the same cairn on all machines",
                hello.protocol
            ));
        }
        self.machine = hello.machine;
        // Sent once: a session whose id was lost could not be told from that of another coordinator.
        let opened: Opened = self.http.post_once("/bench/v1/sessions", open)?;
        if opened.session.is_empty() || !opened.session.bytes().all(|byte| byte.is_ascii_hexdigit())
        {
            return Err("it answers something that is no session".to_owned());
        }
        self.session = Some(opened.session);
        Ok(())
    }

    /// The path of something in the session.
    fn path(&self, rest: &str) -> String {
        let session = self.session.as_deref().unwrap_or_default();
        format!("/bench/v1/sessions/{session}{rest}")
    }

    fn order(&mut self, command: Command) -> Result<(), String> {
        self.number += 1;
        let order = Order {
            number: self.number,
            command,
        };
        let _: State = self.http.post(&self.path("/orders"), &order)?;
        Ok(())
    }

    fn state(&mut self) -> Result<State, String> {
        let state: State = self.http.get(&self.path(""))?;
        if state.number != self.number {
            return Err("it lost count of its orders".to_owned());
        }
        Ok(state)
    }

    fn go(&mut self, start: Instant) -> Result<(), String> {
        let path = self.path("/go");
        let number = self.number;
        let go = || {
            let left = start.saturating_duration_since(Instant::now());
            Go {
                number,
                in_ms: left.as_millis() as u64,
            }
        };
        let _: State = self.http.attempts(|http| http.post_one(&path, &go()))?;
        Ok(())
    }

    fn stop(&mut self) -> Result<(), String> {
        let _: State = self.http.post(&self.path("/stop"), &())?;
        Ok(())
    }

    fn close(&mut self) {
        if self.session.is_some() {
            let path = self.path("");
            let _ = self.http.delete(&path);
            self.session = None;
        }
    }

    /// Passes on what was done since the last time.
    fn tell(&mut self, state: &State, control: &Control) {
        let (operations, bytes) = self.told;
        control.done(
            state.operations.saturating_sub(operations),
            state.bytes.saturating_sub(bytes),
        );
        self.told = (state.operations.max(operations), state.bytes.max(bytes));
    }

    fn fail_odd(&mut self) {
        self.failed = Some("it did something else than it was told to".to_owned());
    }
}

/// Calls to one agent.
struct Http {
    agent: ureq::Agent,
    url: String,
    authorization: String,
}

enum CallError {
    /// No answer: the same call can be made again.
    Lost(String),
    Refused(String),
}

type Called = Result<ureq::http::Response<ureq::Body>, ureq::Error>;

impl Http {
    fn new(name: &str, token: &str) -> Self {
        let agent = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_connect(Some(CONNECT_TIMEOUT))
            .timeout_global(Some(ANSWER_TIMEOUT))
            .max_redirects(0)
            .proxy(None)
            .build()
            .new_agent();
        Self {
            agent,
            url: format!("http://{name}"),
            authorization: format!("Bearer {token}"),
        }
    }

    fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, String> {
        self.attempts(|http| {
            let request = http.agent.get(http.at(path));
            http.answer(request.header("Authorization", &http.authorization).call())
        })
    }

    fn post<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<T, String> {
        self.attempts(|http| http.post_one(path, body))
    }

    fn post_once<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, String> {
        self.post_one(path, body).map_err(CallError::into_text)
    }

    fn post_one<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, CallError> {
        let request = self.agent.post(self.at(path));
        self.answer(
            request
                .header("Authorization", &self.authorization)
                .send_json(body),
        )
    }

    fn delete(&self, path: &str) -> Called {
        let request = self.agent.delete(self.at(path));
        request.header("Authorization", &self.authorization).call()
    }

    fn at(&self, path: &str) -> String {
        format!("{}{path}", self.url)
    }

    fn attempts<T>(&self, call: impl Fn(&Self) -> Result<T, CallError>) -> Result<T, String> {
        let mut attempt = 1;
        loop {
            match call(self) {
                Ok(answer) => return Ok(answer),
                Err(CallError::Lost(_)) if attempt < ATTEMPTS => {}
                Err(error) => return Err(error.into_text()),
            }
            attempt += 1;
            thread::sleep(ATTEMPT_INTERVAL);
        }
    }

    fn answer<T: DeserializeOwned>(&self, called: Called) -> Result<T, CallError> {
        let lost = |error: ureq::Error| {
            CallError::Lost(match error {
                ureq::Error::Io(error) => format!("no answer: {error}"),
                error => format!("no answer: {error}"),
            })
        };
        let mut response = called.map_err(lost)?;
        let status = response.status();
        let body = response
            .body_mut()
            .with_config()
            .limit(ANSWER_LEN_BYTES_MAX)
            .read_to_string()
            .map_err(lost)?;
        if !status.is_success() {
            return Err(CallError::Refused(
                match serde_json::from_str::<Refusal>(&body) {
                    Ok(refusal) => refusal.error,
                    Err(_) => format!("it is no agent of `cairn bench`: status {status}"),
                },
            ));
        }
        serde_json::from_str(&body).map_err(|error| {
            CallError::Refused(format!("it answers what is not understood: {error}"))
        })
    }
}

impl CallError {
    fn into_text(self) -> String {
        match self {
            Self::Lost(text) | Self::Refused(text) => text,
        }
    }
}

/// `HOST:PORT` of an address whose port may be missing.
fn with_port(address: &str) -> Result<String, ClusterError> {
    let error = || ClusterError::Address(address.chars().take(100).collect());
    let host_len = match address.strip_prefix('[') {
        Some(rest) => rest.find(']').ok_or_else(error)? + 2,
        None => address.find(':').unwrap_or(address.len()),
    };
    let (host, port) = address.split_at_checked(host_len).ok_or_else(error)?;
    let is_host = match host.strip_prefix('[') {
        Some(inside) => inside
            .trim_end_matches(']')
            .parse::<std::net::Ipv6Addr>()
            .is_ok(),
        None => {
            !host.is_empty()
                && host
                    .chars()
                    .all(|char| char.is_ascii_alphanumeric() || matches!(char, '-' | '.' | '_'))
        }
    };
    let port = match port.strip_prefix(':') {
        Some(port) => port.parse::<u16>().ok().filter(|port| *port > 0),
        None => port.is_empty().then_some(AGENT_PORT_DEFAULT),
    };
    match port {
        Some(port) if is_host => Ok(format!("{host}:{port}")),
        _ => Err(error()),
    }
}

#[cfg(test)]
mod address_tests {
    use super::*;

    #[test]
    fn addresses_are_read_or_refused() {
        let cases = [
            ("host", Some("host:7117")),
            ("host:80", Some("host:80")),
            ("10.0.0.1", Some("10.0.0.1:7117")),
            ("[::1]", Some("[::1]:7117")),
            ("[::1]:80", Some("[::1]:80")),
            ("::1", None),
            ("[::1", None),
            ("[x]:1", None),
            ("", None),
            (":80", None),
            ("host:0", None),
            ("host:99999", None),
            ("host/path", None),
            ("http://host", None),
            ("user@host", None),
        ];
        for (text, want) in cases {
            assert_eq!(with_port(text).ok().as_deref(), want, "{text}");
        }
    }
}
