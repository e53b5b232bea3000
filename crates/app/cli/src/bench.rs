//! `cairn bench`: runs suites on a target, here or on agents, and keeps and shows results.
//!
//! Owns: files of results, what stops a run, exit codes. Must not know: suites, engines, charts.

use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::SystemTime;

use cairn_admin::{TOKEN_LEN_BYTES_MAX, Token};
use cairn_base::env::Entropy;
use cairn_base::real::OsEntropy;
use cairn_base::time::rfc3339_utc;
use cairn_bench::agent::{AgentServer, Authorize, Cluster, EngineFactory};
use cairn_bench::engine::{Control, Engine, EngineError, RUN_FOLDER};
use cairn_bench::iscsi_engine::IscsiEngine;
use cairn_bench::nfs_engine::NfsEngine;
use cairn_bench::path_engine::PathEngine;
use cairn_bench::plan::DataPattern;
use cairn_bench::result::{RunResult, load};
use cairn_bench::s3_engine::S3Engine;
use cairn_bench::suite::{
    Driver, Job, Local, Plan, SuiteError, Target, burst, four_corners, ior, iozone, metadata,
    objects, read_cache, run, text,
};
use cairn_bench::watch::Watched;
use cairn_bench::{import, report};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use crate::bench_args::{AgentArgs, BenchCommand, ImportArgs, ReportArgs, RunArgs, ShowArgs};
use crate::bench_progress::{Progress, announce};
use crate::bench_watch::{self, Watch};
use crate::exit::Failure;
use crate::print;
use crate::print::note;

/// Makes the plan for a number of clients.
type Planner<'a> = Box<dyn Fn(u32) -> Result<Plan, SuiteError> + 'a>;

pub fn bench(command: &BenchCommand) -> Result<ExitCode, Failure> {
    match command {
        BenchCommand::FourCorners(args) => measure(
            &args.run,
            &[Box::new(|clients| {
                four_corners::plan(&args.settings(), clients)
            })],
            None,
        ),
        BenchCommand::Iozone(args) => measure(
            &args.run,
            &[Box::new(|clients| iozone::plan(&args.settings(), clients))],
            None,
        ),
        BenchCommand::Ior(args) => measure(
            &args.run,
            &[Box::new(|clients| ior::plan(&args.settings(), clients))],
            None,
        ),
        BenchCommand::Metadata(args) => measure(
            &args.run,
            &[Box::new(|clients| {
                metadata::plan(&args.settings(), clients)
            })],
            None,
        ),
        BenchCommand::Objects(args) => measure(
            &args.run,
            &[Box::new(|clients| objects::plan(&args.settings(), clients))],
            None,
        ),
        BenchCommand::All(args) => measure(
            &args.run,
            &[
                Box::new(|clients| four_corners::plan(&args.four_corners(), clients)),
                Box::new(|clients| iozone::plan(&args.iozone(clients), clients)),
                Box::new(|clients| ior::plan(&args.ior(clients), clients)),
                Box::new(|clients| metadata::plan(&args.metadata(), clients)),
            ],
            None,
        ),
        BenchCommand::Burst(args) => {
            let (settings, watch) = bench_watch::burst(args)?;
            let planner: Planner<'_> = Box::new(|clients| burst::plan(&settings, clients));
            measure(&args.run, &[planner], Some(&watch))
        }
        BenchCommand::ReadCache(args) => {
            let settings = args.settings();
            let planner: Planner<'_> = Box::new(|clients| read_cache::plan(&settings, clients));
            planner(1).map_err(refused_plan)?;
            let watch = bench_watch::read_cache(args)?;
            measure(&args.run, &[planner], Some(&watch))
        }
        BenchCommand::Agent(args) => agent(args).map(|()| ExitCode::SUCCESS),
        BenchCommand::Server(command) => {
            crate::bench_server::bench(command).map(|()| ExitCode::SUCCESS)
        }
        BenchCommand::Report(args) => report(args).map(|()| ExitCode::SUCCESS),
        BenchCommand::Import(args) => import(args).map(|()| ExitCode::SUCCESS),
        BenchCommand::Show(args) => show(args).map(|()| ExitCode::SUCCESS),
    }
}

/// Runs suites one after the other. Partial results are kept, and fail the command.
fn measure(
    args: &RunArgs,
    planners: &[Planner<'_>],
    watch: Option<&Watch>,
) -> Result<ExitCode, Failure> {
    args.check()?;
    // Settings that cannot work are refused before anything is asked of the target.
    let expected = u32::try_from(args.clients.len().max(1)).unwrap_or(u32::MAX);
    for planner in planners {
        planner(expected).map_err(refused_plan)?;
    }
    let out = Out::new(args.out.as_deref(), planners.len() > 1)?;
    let seed = args.seed.unwrap_or_else(|| OsEntropy.u64());
    let control = Control::default();
    stop_on_signals(control.clone(), args)?;
    let mut agents = agents(args)?;
    let mut is_partial = false;
    for planner in planners {
        if control.is_stopped() {
            break;
        }
        let client_count = agents.as_ref().map_or(1, Cluster::count).max(1);
        let plan = planner(client_count).map_err(refused_plan)?;
        let mut file = out.create(plan.suite)?;
        let mut progress = Progress::new(client_count);
        progress.line(&announce(&plan, &args.target.to_string()));
        let job = job(args, seed);
        let mut drive = |driver: &mut dyn Driver| match watch {
            None => run(&plan, &job, driver, &control, &mut progress),
            Some(watch) => {
                let mut watched = Watched::new(driver, watch.server(), watch.ask.clone());
                let mut result = run(&plan, &job, &mut watched, &control, &mut progress)?;
                watch.add(&mut result, watched.seen);
                Ok(result)
            }
        };
        let done = match &mut agents {
            Some(agents) => drive(agents),
            None => local(args).and_then(|mut local| drive(&mut local)),
        };
        progress.finish();
        let result = match done {
            Ok(result) => result,
            Err(error) => {
                file.discard();
                return Err(failed_run(error, &control));
            }
        };
        file.write(&result)?;
        if args.json {
            print::json(&result)?;
        } else {
            print::text(&text(&result))?;
        }
        note!(
            "cairn: the result is in {}; `cairn bench report {}` makes a page of it",
            file.path.display(),
            file.path.display()
        );
        if let Some(why) = &result.partial {
            // The report has said why.
            let why = if args.json {
                format!(": {why}")
            } else {
                String::new()
            };
            note!("cairn: the result is PARTIAL{why}");
            is_partial = true;
        }
    }
    Ok(if is_partial || control.is_stopped() {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

fn refused_plan(error: SuiteError) -> Failure {
    Failure::usage(error.to_string())
}

fn failed_run(error: EngineError, control: &Control) -> Failure {
    if control.is_stopped() {
        return Failure::failed("stopped before anything was measured");
    }
    match error {
        EngineError::Setting(message) => Failure::usage(message),
        EngineError::Target(message) | EngineError::Engine(message) => Failure::failed(message),
    }
}

fn job(args: &RunArgs, seed: u64) -> Job {
    let target = args.target.info();
    Job {
        label: args.label.clone().unwrap_or_else(|| target.text.clone()),
        target,
        pattern: DataPattern {
            compressible_percent: args.compressible,
            dedupe_percent: args.dedupe,
            seed,
        },
        allow_files: args.allow_files,
        keep: args.keep,
        keep_caches: args.keep_caches,
    }
}

fn engine(target: &Target) -> Result<Box<dyn Engine>, EngineError> {
    Ok(match target {
        Target::Nfs(url) => Box::new(NfsEngine::new(url)?),
        Target::Iscsi(url) => Box::new(IscsiEngine::new(url)),
        Target::S3(url) => Box::new(S3Engine::new(url)),
        Target::Path(path) => Box::new(PathEngine::new(path)?),
    })
}

fn local(args: &RunArgs) -> Result<Local, EngineError> {
    engine(&args.target).map(Local::new)
}

/// The agents that were named; those that cannot be used are said at once.
fn agents(args: &RunArgs) -> Result<Option<Cluster>, Failure> {
    if args.clients.is_empty() {
        return Ok(None);
    }
    let path = args.token_file.as_deref().unwrap_or(Path::new(""));
    let token = token(path)?;
    let cluster = Cluster::connect(&args.clients, &args.target, token.as_str(), args.keep)
        .map_err(|error| {
            Failure::failed(error.to_string()).hint(
                "start `cairn bench agent --listen ADDRESS:PORT --token-file PATH` on each client",
            )
        })?;
    let failures = cluster.failures();
    if !failures.is_empty() {
        note!("cairn: the run continues without {failures}");
    }
    Ok(Some(cluster))
}

fn token(path: &Path) -> Result<Token, Failure> {
    let failed = |why: String| {
        Failure::usage(format!("the token file {}: {why}", path.display())).hint(
            "make one with `(umask 077; head -c 16 /dev/urandom | od -An -tx1 | tr -d ' \\n' > PATH)` \
             and copy it to all machines",
        )
    };
    let mut text = String::new();
    // Bounded by what is read, not by what the system says: devices have no length.
    let read = std::fs::File::open(path).and_then(|file| {
        file.take(2 * TOKEN_LEN_BYTES_MAX as u64)
            .read_to_string(&mut text)
    });
    read.map_err(|error| failed(error.to_string()))?;
    Token::parse(&text).map_err(|error| failed(error.to_string()))
}

/// The first signal ends the run with what there is; the second ends the program.
fn stop_on_signals(control: Control, args: &RunArgs) -> Result<(), Failure> {
    let failed = |error: std::io::Error| Failure::failed(format!("waiting for signals: {error}"));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(failed)?;
    let (mut interrupt, mut terminate) = {
        let _entered = runtime.enter();
        (
            signal(SignalKind::interrupt()).map_err(failed)?,
            signal(SignalKind::terminate()).map_err(failed)?,
        )
    };
    let target = args.target.to_string();
    let wait = async move {
        let mut signals = 0;
        loop {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            signals += 1;
            if signals > 1 {
                note!("cairn: files may remain in {RUN_FOLDER} in {target}");
                std::process::exit(130);
            }
            note!("cairn: stopping and removing the files of the run (again: stop at once)");
            control.stop();
        }
    };
    std::thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || runtime.block_on(wait))
        .map(drop)
        .map_err(failed)
}

/// Where results go.
struct Out {
    folder: PathBuf,
    /// What the user wants; else made of suite and time.
    name: Option<PathBuf>,
    started: String,
}

impl Out {
    /// `several` results need a folder.
    fn new(wanted: Option<&Path>, several: bool) -> Result<Self, Failure> {
        let started = rfc3339_utc(SystemTime::now()).replace(['-', ':'], "");
        let (folder, name) = match wanted {
            None => (PathBuf::from("."), None),
            Some(path) if path.is_dir() => (path.to_owned(), None),
            Some(path) if several => {
                return Err(Failure::usage(format!(
                    "{} is not a folder, and this run makes several results; create the folder first",
                    path.display()
                )));
            }
            Some(path) => (folder_of(path), Some(path.to_owned())),
        };
        if !folder.is_dir() {
            return Err(Failure::usage(format!(
                "the folder {} does not exist; create it first",
                folder.display()
            )));
        }
        Ok(Self {
            folder,
            name,
            started,
        })
    }

    /// Makes sure, before a long run, that there is a place for its result.
    fn create(&self, suite: &str) -> Result<ResultFile, Failure> {
        let path = match &self.name {
            Some(path) => path.clone(),
            None => {
                let name = format!("bench-{suite}-{}.json", self.started);
                // Without the `./` that nobody writes.
                if self.folder == Path::new(".") {
                    PathBuf::from(name)
                } else {
                    self.folder.join(name)
                }
            }
        };
        let mut temporary = path.clone().into_os_string();
        temporary.push(".part");
        let temporary = PathBuf::from(temporary);
        let file = std::fs::File::create(&temporary).map_err(|error| {
            Failure::failed(format!(
                "making the result file {}: {error}",
                path.display()
            ))
            .hint("name another place with --out")
        })?;
        Ok(ResultFile {
            path,
            temporary,
            file,
        })
    }
}

fn folder_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(folder) if folder != Path::new("") => folder.to_owned(),
        _ => PathBuf::from("."),
    }
}

struct ResultFile {
    path: PathBuf,
    /// Takes its name when it is whole.
    temporary: PathBuf,
    file: std::fs::File,
}

impl ResultFile {
    fn write(&mut self, result: &RunResult) -> Result<(), Failure> {
        let failed = |error: std::io::Error| {
            Failure::failed(format!(
                "writing the result {}: {error}",
                self.path.display()
            ))
        };
        let mut json = serde_json::to_vec_pretty(result).map_err(|error| failed(error.into()))?;
        json.push(b'\n');
        self.file.write_all(&json).map_err(failed)?;
        std::fs::rename(&self.temporary, &self.path).map_err(failed)
    }

    fn discard(self) {
        // It is empty: that it stays hurts nobody.
        let _ = std::fs::remove_file(&self.temporary);
    }
}

fn agent(args: &AgentArgs) -> Result<(), Failure> {
    let token = token(&args.token_file)?;
    crate::serve::start_logging(cairn_config::LogFormat::Text);
    let failed = |error: std::io::Error| Failure::failed(format!("serving as an agent: {error}"));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .map_err(failed)?;
    runtime.block_on(async {
        let listener = TcpListener::bind(args.listen).await.map_err(|error| {
            Failure::failed(format!("listening on {}: {error}", args.listen))
                .hint("choose another with --listen")
        })?;
        let address = listener.local_addr().map_err(failed)?;
        let (mut terminate, mut interrupt) = crate::serve::signals()?;
        print::text(&agent_banner(address))?;
        let factory: EngineFactory = Arc::new(engine);
        let authorize: Authorize = Arc::new(move |header| token.is_in(header));
        let stop = async {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        };
        AgentServer::new(factory, authorize, || OsEntropy.u128())
            .serve(listener, stop)
            .await;
        Ok(())
    })
}

fn agent_banner(address: SocketAddr) -> String {
    format!(
        "agent on {address}; use it with: cairn bench SUITE TARGET --clients {address} --token-file PATH"
    )
}

fn report(args: &ReportArgs) -> Result<(), Failure> {
    let results: Vec<RunResult> = args
        .results
        .iter()
        .map(|path| read(path))
        .collect::<Result<_, _>>()?;
    let markdown = report::markdown(&results);
    let is_markdown = args.out.extension().is_some_and(|end| end == "md");
    let page = if is_markdown {
        markdown.clone()
    } else {
        report::html(&results)
    };
    std::fs::write(&args.out, page)
        .map_err(|error| Failure::failed(format!("writing {}: {error}", args.out.display())))?;
    if !is_markdown {
        print::text(&markdown)?;
    }
    note!("cairn: the report is in {}", args.out.display());
    Ok(())
}

fn read(path: &Path) -> Result<RunResult, Failure> {
    load(path).map_err(|error| Failure::failed(error.to_string()))
}

fn show(args: &ShowArgs) -> Result<(), Failure> {
    let result = read(&args.result)?;
    if args.json {
        return print::json(&result);
    }
    print::text(&text(&result))
}

fn import(args: &ImportArgs) -> Result<(), Failure> {
    let mut result =
        import::import_file(&args.file).map_err(|error| Failure::failed(error.to_string()))?;
    if let Some(label) = &args.label {
        result.label.clone_from(label);
    }
    let out = match &args.out {
        Some(path) => path.clone(),
        None => {
            let mut name = args.file.clone().into_os_string();
            name.push(".cairn.json");
            PathBuf::from(name)
        }
    };
    let mut file = Out::new(Some(&out), false)?.create(&result.suite)?;
    file.write(&result)?;
    print::text(&text(&result))?;
    note!("cairn: the result is in {}", file.path.display());
    Ok(())
}
