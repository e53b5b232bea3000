//! `cairn bench` from the outside: real processes, real folders, real sockets.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const CAIRN: &str = env!("CARGO_BIN_EXE_cairn");

/// A scratch folder with a target in it.
struct Scratch(tempfile::TempDir);

impl Scratch {
    fn new() -> Self {
        let scratch = Self(tempfile::tempdir().unwrap());
        std::fs::create_dir(scratch.target()).unwrap();
        std::fs::write(scratch.path("token"), "0123456789abcdef\n").unwrap();
        scratch
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn target(&self) -> PathBuf {
        self.path("target")
    }

    fn command(&self, line: &str) -> Command {
        let mut command = Command::new(CAIRN);
        command
            .arg("bench")
            .args(line.split_whitespace())
            .env_remove("CAIRN_BENCH_TOKEN_FILE")
            .env("RUST_LOG", "warn")
            .stdin(Stdio::null())
            .current_dir(self.0.path());
        command
    }

    /// Runs a command; its exit code, standard output and standard error.
    fn bench(&self, line: &str) -> (i32, String, String) {
        finished(&self.command(line).output().unwrap())
    }

    fn result(&self, name: &str) -> Value {
        serde_json::from_slice(&std::fs::read(self.path(name)).unwrap()).unwrap()
    }

    fn agent(&self) -> Agent {
        let mut command = self.command("agent --listen 127.0.0.1:0 --token-file token");
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        stdout.read_line(&mut line).unwrap();
        let rest = line
            .strip_prefix("agent on ")
            .unwrap_or_else(|| panic!("{line}"));
        let (address, _) = rest.split_once(';').unwrap();
        Agent {
            address: address.to_owned(),
            child,
        }
    }
}

/// An agent, killed when it goes out of scope.
struct Agent {
    address: String,
    child: Child,
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn finished(output: &Output) -> (i32, String, String) {
    (
        output.status.code().unwrap_or(-1),
        String::from_utf8_lossy(&output.stdout).into_owned(),
        String::from_utf8_lossy(&output.stderr).into_owned(),
    )
}

fn is_empty(folder: &Path) -> bool {
    std::fs::read_dir(folder).unwrap().next().is_none()
}

#[test]
fn a_run_leaves_a_result_and_nothing_else() {
    let scratch = Scratch::new();
    let (code, out, err) = scratch.bench("metadata target -n 20 --jobs 2 -o r.json --seed 7");
    assert_eq!(code, 0, "{err}");
    assert!(
        out.contains("File creation") && out.contains("seed 7"),
        "{out}"
    );
    assert!(err.contains("create: ") && err.contains("r.json"), "{err}");
    assert!(is_empty(&scratch.target()));
    assert!(!scratch.path("r.json.part").exists());
    let result = scratch.result("r.json");
    assert_eq!(result["suite"], "metadata");
    assert_eq!(result["phases"].as_array().unwrap().len(), 5);
    assert_eq!(result["phases"][0]["operations"], 40);
    assert_eq!(result.get("partial"), None);

    let (code, shown, _) = scratch.bench("show r.json");
    assert_eq!((code, shown), (0, out));
    let (code, table, err) = scratch.bench("report r.json r.json -o page.html");
    assert_eq!(code, 0, "{err}");
    assert!(table.contains('|'), "{table}");
    let page = std::fs::read_to_string(scratch.path("page.html")).unwrap();
    assert!(page.contains("<html") && page.contains("metadata"));
    let (code, _, err) = scratch.bench("report r.json -o page.md");
    assert_eq!(code, 0, "{err}");
}

#[test]
fn what_cannot_be_done_is_said() {
    let scratch = Scratch::new();
    std::fs::write(scratch.target().join("precious"), "x").unwrap();
    std::fs::write(scratch.path("broken.json"), "{").unwrap();
    std::fs::write(scratch.path("short"), "x").unwrap();
    let cases = [
        ("metadata target -n 5", 1, "not empty"),
        ("metadata missing -n 5", 1, "missing"),
        ("metadata s3://bucket", 2, "names no bucket"),
        ("metadata smb://host/share", 2, "is not known"),
        ("metadata nfs://127.0.0.1:1/main -n 5", 1, "127.0.0.1"),
        ("metadata target -n 0", 2, "files of each job"),
        ("ior target -t 3MiB -b 4MiB", 2, "whole number"),
        ("iozone target -i 7", 2, "there is no test 7"),
        ("all target -o r.json", 2, "several results"),
        ("metadata target -o nowhere/r.json", 2, "does not exist"),
        ("metadata target --clients 127.0.0.1:1", 2, "--token-file"),
        (
            "metadata target --clients 127.0.0.1:1 --token-file none",
            2,
            "token file none",
        ),
        (
            "metadata target --clients 127.0.0.1:1 --token-file short",
            2,
            "16 to 256",
        ),
        (
            "metadata target --clients 127.0.0.1:1 --token-file token",
            1,
            "no client can be used",
        ),
        ("show missing.json", 1, "missing.json"),
        ("show broken.json", 1, "broken.json"),
        ("report broken.json", 1, "broken.json"),
        ("import broken.json", 1, "broken.json"),
        (
            "agent --listen 127.0.0.1:0 --token-file none",
            2,
            "token file none",
        ),
    ];
    for (line, want, part) in cases {
        let (code, out, err) = scratch.bench(line);
        assert_eq!(code, want, "{line}: {out}{err}");
        assert!(err.contains(part), "{line}: {err}");
    }
    let left: Vec<_> = std::fs::read_dir(scratch.0.path()).unwrap().collect();
    assert_eq!(left.len(), 4, "{left:?}");
    let (code, _, err) = scratch.bench("metadata target -n 5 --allow-files --keep -o r.json");
    assert_eq!(code, 0, "{err}");
    assert!(scratch.target().join("cairn-bench").is_dir());
    assert!(scratch.target().join("precious").exists());
}

#[test]
fn agents_work_together() {
    let scratch = Scratch::new();
    let agents = [scratch.agent(), scratch.agent()];
    let target = scratch.target();
    let clients = format!("{},{}", agents[0].address, agents[1].address);
    let line = |clients: &str| {
        format!(
            "metadata {} -n 50 --jobs 2 --one-directory --clients {clients} --token-file token -o r.json",
            target.display()
        )
    };
    let (code, _, err) = scratch.bench(&line(&clients));
    assert_eq!(code, 0, "{err}");
    let result = scratch.result("r.json");
    assert_eq!(result["clients"].as_array().unwrap().len(), 2);
    for (index, operation) in ["create", "stat", "readdir", "rename", "unlink"]
        .iter()
        .enumerate()
    {
        let phase = &result["phases"][index];
        assert_eq!(phase["name"], **operation);
        assert_eq!(phase["errors"], 0, "{phase}");
        let sampled: u64 = phase["samples"]
            .as_array()
            .unwrap()
            .iter()
            .map(|sample| sample["operations"].as_u64().unwrap())
            .sum();
        assert_eq!(phase["operations"], sampled, "{operation}");
    }
    assert_eq!(result["phases"][0]["operations"], 200);
    assert_eq!(result["phases"][0]["workers"].as_array().unwrap().len(), 4);
    assert!(is_empty(&target));

    // With one that is not there the run goes on, and says so.
    let [first, second] = agents;
    let gone = second.address.clone();
    drop(second);
    let clients = format!("{},{gone}", first.address);
    let (code, _, err) = scratch.bench(&line(&clients));
    assert_eq!(code, 1, "{err}");
    assert!(err.contains("PARTIAL") && err.contains(&gone), "{err}");
    let result = scratch.result("r.json");
    assert_eq!(result["phases"][0]["operations"], 100);
    assert!(result["partial"].as_str().unwrap().contains(&gone));
    assert!(result["clients"][1]["failed"].is_string());
    assert!(is_empty(&target));
}

#[test]
fn an_interrupt_keeps_what_there_is() {
    let scratch = Scratch::new();
    let mut command = scratch.command("metadata target -n 1000000 --jobs 1 -o r.json");
    let child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let folder = scratch.target().join("cairn-bench");
    // Until it is at work.
    while std::fs::read_dir(&folder).map_or(0, Iterator::count) == 0 {
        std::thread::yield_now();
    }
    let pid = Pid::from_child(&child);
    kill_process(pid, Signal::INT).unwrap();
    let (code, out, err) = finished(&child.wait_with_output().unwrap());
    assert_eq!(code, 1, "{out}{err}");
    assert!(err.contains("stopping"), "{err}");
    assert!(is_empty(&scratch.target()));
    let result = scratch.result("r.json");
    assert!(result["partial"].is_string());
    assert!(out.contains("PARTIAL"), "{out}");
}
