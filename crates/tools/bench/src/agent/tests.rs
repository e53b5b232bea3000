use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;

use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use super::protocol::COORDINATOR_SILENCE_MAX;
use super::*;
use crate::engine::Control;
use crate::plan::DataPattern;
use crate::result::{PhaseResult, RunResult};
use crate::suite::fake::{FakeEngine, Shared};
use crate::suite::{Driver, Job, Observer, Plan, iozone, metadata, run};

const TOKEN: &str = "0123456789abcdef";

/// An agent in this process, on a port of its own.
struct Agent {
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Agent {
    fn start(world: &Shared) -> Self {
        let world = Arc::clone(world);
        let (tell, told) = std::sync::mpsc::channel();
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async {
                let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
                tell.send(listener.local_addr().unwrap()).unwrap();
                let stop = async {
                    let _ = stopped.await;
                };
                server(&world).serve(listener, stop).await;
            });
        });
        Self {
            address: told.recv().unwrap(),
            stop: Some(stop),
            thread: Some(thread),
        }
    }

    fn name(&self) -> String {
        self.address.to_string()
    }

    fn stop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.stop();
    }
}

fn server(world: &Shared) -> AgentServer {
    let world = Arc::clone(world);
    let factory: EngineFactory = Arc::new(move |_| {
        Ok(Box::new(FakeEngine {
            world: Arc::clone(&world),
        }))
    });
    let authorize: Authorize = Arc::new(|header| header == format!("Bearer {TOKEN}").as_bytes());
    let next = AtomicU64::new(1);
    AgentServer::new(factory, authorize, move || {
        u128::from(next.fetch_add(1, Ordering::Relaxed))
    })
}

fn target() -> Target {
    "/somewhere".parse().unwrap()
}

fn connect(names: &[String]) -> Result<Cluster, ClusterError> {
    Cluster::connect(names, &target(), TOKEN, false)
}

fn metadata_plan(client_count: u32) -> Plan {
    let settings = metadata::Settings {
        files: 1000,
        jobs: 2,
        one_directory: false,
        iterations: 1,
        depth: 1,
    };
    metadata::plan(&settings, client_count).unwrap()
}

fn iozone_plan(client_count: u32) -> Plan {
    let settings = iozone::Settings {
        tests: vec![0],
        record_bytes: 1 << 20,
        file_bytes: 64 << 20,
        threads: 2,
        fsync: true,
        direct: false,
        depth: 1,
    };
    iozone::plan(&settings, client_count).unwrap()
}

#[derive(Default)]
struct Told {
    warnings: Vec<String>,
    /// Stops the run as soon as the clock of a phase runs.
    stops: bool,
}

impl Observer for Told {
    fn phase_begins(&mut self, _: usize, _: &Plan, control: &Control) {
        if self.stops {
            control.stop();
        }
    }

    fn phase_ends(&mut self, _: &PhaseResult) {}

    fn warn(&mut self, message: &str) {
        self.warnings.push(message.to_owned());
    }
}

fn run_on(cluster: &mut Cluster, plan: &Plan, told: &mut Told) -> RunResult {
    let job = Job {
        label: "here".to_owned(),
        target: target().info(),
        pattern: DataPattern {
            compressible_percent: 0,
            dedupe_percent: 0,
            seed: 1,
        },
        allow_files: false,
        keep: false,
        keep_caches: false,
    };
    run(plan, &job, cluster, &Control::default(), told).unwrap()
}

#[test]
fn two_agents_are_as_one() {
    let worlds = [Shared::default(), Shared::default()];
    let agents = [Agent::start(&worlds[0]), Agent::start(&worlds[1])];
    let names = [agents[0].name(), agents[1].name()];
    let mut cluster = connect(&names).unwrap();
    assert_eq!(cluster.count(), 2);
    // While one run goes on there is no other.
    let error = connect(&names).err().unwrap().to_string();
    assert!(error.contains("busy with another run"), "{error}");

    let result = run_on(&mut cluster, &iozone_plan(2), &mut Told::default());
    assert_eq!(result.partial, None);
    assert_eq!(result.clients.len(), 2);
    assert_eq!(result.clients[1].engine, "fake 1");
    assert_eq!(result.clients[1].name, names[1]);
    assert_eq!(result.phases.len(), 2);
    for phase in &result.phases {
        assert_eq!(phase.operations, 2 * 2 * 64);
        let clients: Vec<usize> = phase.workers.iter().map(|worker| worker.client).collect();
        assert_eq!(clients, [0, 0, 1, 1]);
        let sampled: u64 = phase.samples.iter().map(|sample| sample.operations).sum();
        assert_eq!(sampled, phase.operations);
    }
    let bytes = 2 * 2 * (64u64 << 20);
    // The first looks whether there is room for all, the others for themselves.
    let log = |index: usize| worlds[index].lock().log.clone();
    let first = format!("prepare {bytes}");
    let want = [&first, "write 0/2", "rewrite 0/2", "clean up"];
    assert_eq!(log(0), want);
    let second = format!("prepare {}", bytes / 2);
    let want = [&second, "write 1/2", "rewrite 1/2", "clean up"];
    assert_eq!(log(1), want);
    drop(cluster);
    assert!(worlds.iter().all(|world| world.lock().files.is_empty()));
}

#[test]
fn agents_can_be_used_again() {
    let world = Shared::default();
    let agent = Agent::start(&world);
    for _ in 0..2 {
        // The agent may still be at work on the end of the last session.
        let mut cluster = loop {
            match connect(&[agent.name()]) {
                Ok(cluster) => break cluster,
                Err(error) => assert!(error.to_string().contains("busy"), "{error}"),
            }
        };
        let result = run_on(&mut cluster, &metadata_plan(1), &mut Told::default());
        assert_eq!((result.partial, result.phases.len()), (None, 5));
    }
}

#[test]
fn a_run_goes_on_without_a_client_that_fails() {
    type Change = fn(&mut crate::suite::fake::World);
    let cases: [(&str, Change, &str); 2] = [
        (
            "error",
            |world| world.fail = Some("stat".to_owned()),
            "it broke",
        ),
        (
            "panic",
            |world| world.panic = Some("stat".to_owned()),
            "the engine broke",
        ),
    ];
    for (case, change, part) in cases {
        let worlds = [Shared::default(), Shared::default()];
        change(&mut worlds[0].lock());
        let agents = [Agent::start(&worlds[0]), Agent::start(&worlds[1])];
        let mut cluster = connect(&[agents[0].name(), agents[1].name()]).unwrap();
        let mut told = Told::default();
        let result = run_on(&mut cluster, &metadata_plan(2), &mut told);
        assert_eq!(result.phases.len(), 5, "{case}");
        assert!(
            told.warnings[0].contains("a client failed in phase \"stat\""),
            "{case}"
        );
        let why = result.partial.unwrap();
        assert!(
            why.contains(part) && why.contains(&agents[0].name()),
            "{case}: {why}"
        );
        let failed = result.clients[0].failed.as_ref().unwrap();
        assert!(failed.contains(part), "{case}: {failed}");
        assert_eq!(result.clients[1].failed, None);
        // With both, then with one; its place stays what it was.
        assert_eq!(result.phases[0].operations, 4000);
        assert_eq!(result.phases[1].operations, 2000);
        assert!(result.phases[1].partial.is_some());
        let log = worlds[1].lock().log.clone();
        assert!(log.contains(&"unlink 1/2".to_owned()), "{case}: {log:?}");
    }
}

#[test]
fn an_agent_that_goes_away_is_named() {
    let worlds = [Shared::default(), Shared::default()];
    let mut agents = [Agent::start(&worlds[0]), Agent::start(&worlds[1])];
    let mut cluster = connect(&[agents[0].name(), agents[1].name()]).unwrap();
    let control = Control::default();
    cluster.prepare(0, false, &control).unwrap();
    agents[1].stop();
    let plan = metadata_plan(2);
    let pattern = DataPattern {
        compressible_percent: 0,
        dedupe_percent: 0,
        seed: 1,
    };
    let result = cluster
        .run(&plan.steps[0].phase, &pattern, &control)
        .unwrap();
    let why = result.partial.unwrap();
    assert!(why.contains(&agents[1].name()), "{why}");
    assert_eq!(cluster.count(), 1);
    // An agent that is stopped removes what it has.
    assert!(worlds[1].lock().files.is_empty());
}

#[test]
fn clients_that_cannot_be_used_are_named() {
    let world = Shared::default();
    let agent = Agent::start(&world);
    // A port that nobody listens on any more.
    let gone = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let names = [agent.name(), gone.to_string()];
    let mut cluster = connect(&names).unwrap();
    assert_eq!(cluster.count(), 1);
    assert!(
        cluster.failures().contains("no answer"),
        "{}",
        cluster.failures()
    );
    let result = run_on(&mut cluster, &metadata_plan(1), &mut Told::default());
    assert!(result.partial.unwrap().contains(&names[1]));
    drop(cluster);

    let refused = [
        (vec![gone.to_string()], TOKEN, "no answer"),
        (vec![agent.name()], "wrong", "token is missing or not"),
        (vec![agent.name(), agent.name()], TOKEN, "named twice"),
        (vec!["a b".to_owned()], TOKEN, "is not HOST"),
        (vec![], TOKEN, "1 to 64 clients"),
    ];
    for (names, token, part) in refused {
        let error = Cluster::connect(&names, &target(), token, false)
            .err()
            .unwrap();
        assert!(error.to_string().contains(part), "{part}: {error}");
    }
}

#[test]
fn a_target_that_all_refuse_ends_the_run() {
    let world = Shared::default();
    world.lock().refuse_prepare = true;
    let agents = [Agent::start(&world), Agent::start(&world)];
    let mut cluster = connect(&[agents[0].name(), agents[1].name()]).unwrap();
    let error = cluster.prepare(0, false, &Control::default()).unwrap_err();
    assert!(error.to_string().contains("not empty"), "{error}");
    assert!(world.lock().log.is_empty());
}

#[test]
fn a_stop_reaches_all_agents() {
    let world = Shared::default();
    world.lock().hang = Some("create".to_owned());
    let agents = [Agent::start(&world), Agent::start(&world)];
    let mut cluster = connect(&[agents[0].name(), agents[1].name()]).unwrap();
    let mut told = Told {
        stops: true,
        ..Told::default()
    };
    let result = run_on(&mut cluster, &metadata_plan(2), &mut told);
    assert_eq!(result.phases.len(), 1);
    assert_eq!(result.phases[0].operations, 2000);
    assert!(result.partial.unwrap().contains("it ended early"));
    assert!(world.lock().files.is_empty());
}

#[test]
fn a_silent_coordinator_is_given_up() {
    let world = Shared::default();
    let server = server(&world);
    let target = target();
    let mut session =
        super::session::Session::start("1".to_owned(), target, false, server.factory());
    session.heard_at = Instant::now();
    let order = serde_json::from_value(json!({
        "number": 1, "command": {"do": "prepare", "bytes_needed": 0, "allow_files": false}
    }));
    session.order(order.unwrap()).unwrap();
    let now = session.heard_at;
    server.put(session);
    server.give_up_if_silent(now + COORDINATOR_SILENCE_MAX);
    assert!(server.has_session());
    server.give_up_if_silent(now + COORDINATOR_SILENCE_MAX * 2);
    assert!(!server.has_session());
    server.join();
    let world = world.lock();
    assert_eq!(world.log, ["prepare 0", "clean up"]);
}

#[test]
fn requests_are_refused_with_a_reason() {
    let world = Shared::default();
    let agent = Agent::start(&world);
    let http = ureq::Agent::config_builder()
        .http_status_as_error(false)
        .build()
        .new_agent();
    let call = |path: &str, token: &str, body: String| {
        let url = format!("http://{}{path}", agent.address);
        let mut answer = http
            .post(url)
            .header("Authorization", format!("Bearer {token}"))
            .send(body)
            .unwrap();
        let text = answer.body_mut().read_to_string().unwrap();
        (answer.status().as_u16(), text)
    };
    let sessions = "/bench/v1/sessions";
    let open = |protocol: &str, target: &str| {
        json!({"protocol": protocol, "target": target, "keep": false}).to_string()
    };
    let cases = [
        (sessions, "wrong", String::new(), 401, "token"),
        (sessions, TOKEN, "{".to_owned(), 400, "not understood"),
        (
            sessions,
            TOKEN,
            open("x/9", "/tmp"),
            400,
            "use the same cairn",
        ),
        (
            sessions,
            TOKEN,
            open(PROTOCOL, "s3://b"),
            400,
            "names no bucket",
        ),
        (sessions, TOKEN, "x".repeat(300 << 10), 413, ""),
        (
            "/bench/v1/sessions/1/stop",
            TOKEN,
            String::new(),
            404,
            "no such session",
        ),
        (
            "/elsewhere",
            TOKEN,
            String::new(),
            404,
            "nothing at this path",
        ),
        (sessions, TOKEN, open(PROTOCOL, "/tmp"), 200, "session"),
    ];
    let mut session = String::new();
    for (path, token, body, status, part) in cases {
        let (got, text) = call(path, token, body);
        assert!(
            got == status && text.contains(part),
            "{path} {status}: {got} {text}"
        );
        if status == 200 {
            let opened: Value = serde_json::from_str(&text).unwrap();
            session = opened["session"].as_str().unwrap().to_owned();
        }
    }
    let orders = format!("{sessions}/{session}/orders");
    let phase = serde_json::to_value(&metadata_plan(1).steps[0].phase).unwrap();
    let run = |change: &dyn Fn(&mut Value)| {
        let mut order = json!({"number": 1, "command": {
            "do": "run", "phase": phase, "client": 0, "client_count": 1,
            "pattern": {"compressible_percent": 0, "dedupe_percent": 0, "seed": 1}
        }});
        change(&mut order);
        order.to_string()
    };
    type Change = fn(&mut Value);
    let cases: [(Change, &str); 6] = [
        (|order| order["number"] = json!(2), "does not come after"),
        (|order| order["number"] = json!(0), "does not come after"),
        (
            |order| order["command"]["phase"]["fileset"] = json!("../x"),
            "file set",
        ),
        (
            |order| order["command"]["phase"]["jobs"] = json!(100_000),
            "jobs",
        ),
        (
            |order| order["command"]["client"] = json!(1),
            "no client 1 of 1",
        ),
        (
            |order| order["command"]["pattern"]["dedupe_percent"] = json!(101),
            "percentage",
        ),
    ];
    for (change, part) in cases {
        let (status, text) = call(&orders, TOKEN, run(&change));
        assert!(
            status == 409 && text.contains(part),
            "{part}: {status} {text}"
        );
    }
}

#[test]
fn nothing_is_done_without_the_token() {
    let world = Shared::default();
    let agent = Agent::start(&world);
    let http = ureq::Agent::config_builder()
        .http_status_as_error(false)
        .build()
        .new_agent();
    let open = json!({"protocol": PROTOCOL, "target": "/tmp", "keep": false}).to_string();
    for path in [
        "hello",
        "sessions",
        "sessions/1",
        "sessions/1/orders",
        "sessions/1/go",
        "sessions/1/stop",
        "elsewhere",
    ] {
        let url = format!("http://{}/bench/v1/{path}", agent.address);
        for header in [
            "",
            "Bearer ",
            "Bearer wrong",
            "Bearer 0123456789abcde",
            TOKEN,
        ] {
            let status = |answer: Result<ureq::http::Response<ureq::Body>, ureq::Error>| {
                answer.unwrap().status().as_u16()
            };
            let got = [
                status(http.get(&url).header("Authorization", header).call()),
                status(http.delete(&url).header("Authorization", header).call()),
                status(http.post(&url).header("Authorization", header).send(&open)),
            ];
            assert_eq!(got, [401; 3], "{path} {header:?}");
        }
        // A token in the query is none.
        let query = format!("{url}?token={TOKEN}");
        assert_eq!(http.get(&query).call().unwrap().status().as_u16(), 401);
    }
}
