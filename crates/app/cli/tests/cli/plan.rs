//! `cairn plan` as it is used: what it prints, what it writes, and how it ends.

use std::path::Path;
use std::process::{Command, Output};

fn cairn(folder: &Path, args: &[&str]) -> Output {
    cairn_of_width(folder, args, 120)
}

fn cairn_of_width(folder: &Path, args: &[&str], width: usize) -> Output {
    Command::new(env!("CARGO_BIN_EXE_cairn"))
        .arg("plan")
        .args(args)
        .env("COLUMNS", width.to_string())
        .current_dir(folder)
        .output()
        .unwrap()
}

/// `code`: how it ends; `want`: what its output or its errors have.
fn check(folder: &Path, args: &[&str], code: i32, want: &str) {
    let output = cairn(folder, args);
    let text = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{args:?}: {text}");
    assert!(text.contains(want), "{args:?}: no {want:?} in {text}");
}

const CLUSTER: &str = r#"
product = "vendor"
region = "us-east-1"
[shape]
family = "cluster"
nodes = 6
instance = "m5dn.12xlarge"
protection = { data = 4, parity = 2 }
[shape.storage]
storage = "ebs"
volumes = 12
volume = { volume_type = "gp3", size_bytes = "1TiB", mib_s = 145 }
"#;

const OFFER: &str = r#"{"publicationDate": "2026-02-03T04:05:06Z",
  "products": {"A": {"productFamily": "Compute Instance", "attributes": {"regionCode": "us-east-1",
    "instanceType": "m5dn.12xlarge", "tenancy": "Shared", "operatingSystem": "Linux",
    "preInstalledSw": "NA", "capacitystatus": "Used"}}},
  "terms": {"OnDemand": {"A": {"A.X": {"priceDimensions": {"A.X.1": {"unit": "Hrs",
    "pricePerUnit": {"USD": "3.2640000000"}}}}}}}}"#;

#[test]
fn a_plan_from_goals_to_a_template() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    // So much is written that a single server comes first.
    let goals = [
        "--capacity",
        "20TiB",
        "--read",
        "0.5GB/s",
        "--write",
        "0.5GB/s",
        "--survive",
        "2",
    ];
    let with = |more: &[&'static str]| [&goals[..], more].concat();
    check(folder, &goals, 0, "known as         derived");
    check(
        folder,
        &with(&["--output", "markdown"]),
        0,
        "## What does not fit",
    );
    check(
        folder,
        &with(&["--output", "html", "--out", "plan.html"]),
        0,
        "",
    );
    check(
        folder,
        &with(&["--output", "json", "--out", "plan.json"]),
        0,
        "",
    );
    let page = std::fs::read_to_string(folder.join("plan.html")).unwrap();
    assert!(page.starts_with("<!doctype html>") || page.starts_with("<!DOCTYPE html>"));
    check(
        folder,
        &["compare", "plan.json", "--ranks", "1,2"],
        0,
        "cost a month",
    );
    check(
        folder,
        &["whatif", "plan.json", "--volume-type", "gp3"],
        0,
        "gp3",
    );
    check(
        folder,
        &["deploy", "plan.json"],
        0,
        "AWSTemplateFormatVersion",
    );
    check(
        folder,
        &["deploy", "plan.json", "--format", "terraform"],
        0,
        "resource",
    );
    check(folder, &["deploy", "--client", "10.0.0.5"], 0, "fstab");
    let sha256 = "0".repeat(64);
    let machine = |login: &'static str, format: &'static str| {
        vec![
            "deploy",
            "plan.json",
            "--format",
            format,
            "--client-networks",
            "10.0.0.0/8",
            "--package-url",
            "https://example.com/cairn.deb",
            "--package-sha256",
            sha256.as_str(),
            "--login",
            login,
        ]
    };
    check(
        folder,
        &machine("10.0.0.7", "cloud-init"),
        0,
        "#cloud-config",
    );
    // Root there is root of the volume: in no format it may be everybody.
    for format in ["cloud-init", "cloudformation", "terraform"] {
        check(folder, &machine("0.0.0.0/0", format), 2, "login node");
    }
    check(folder, &machine("10.0.0.7", "terraform"), 0, "LoginAddress");
}

#[test]
fn configurations_prices_and_the_model() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let write = |name: &str, text: &str| std::fs::write(folder.join(name), text).unwrap();
    write("good.toml", CLUSTER);
    write("bad.toml", &CLUSTER.replace("1TiB", "15TiB"));
    write("offer.json", OFFER);
    let huge = CLUSTER.replace("nodes = 6", "nodes = 250000000");
    write("huge.toml", &huge);
    check(
        folder,
        &["check", "huge.toml"],
        2,
        "250000000 nodes, not 1 to 10,000",
    );
    check(folder, &["--capacity", "1000000000PiB"], 2, "--capacity");
    check(folder, &["check", "good.toml"], 0, "keeps every rule");
    check(folder, &["check", "bad.toml"], 2, "14.2 TiB 145 MiB/s");
    check(folder, &["compare", "good.toml", "bad.toml"], 2, "14.2");
    check(folder, &["whatif", "good.toml", "--nodes", "-1"], 0, "3+2");
    check(folder, &["validate"], 0, "-30.9% MISS");
    check(folder, &["explain", "cluster"], 0, "Table 8");
    check(folder, &["prices", "list"], 0, "eu-west-1-2016");
    check(
        folder,
        &[
            "prices",
            "update",
            "--from",
            "offer.json",
            "--out",
            "p.toml",
        ],
        0,
        "1 instance type",
    );
    check(
        folder,
        &["--prices", "p.toml", "--capacity", "20TiB"],
        0,
        "2026-02-03",
    );
}

/// Peak memory of a process so far, in KiB.
fn peak_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:"));
    let digits = line.unwrap().split_whitespace().nth(1);
    digits.unwrap().parse().unwrap()
}

/// Writes an offer file of so many bytes into the pipe that `prices update` reads, and returns the peak of its
/// memory with all but the end read.
fn peak_of_offer(folder: &Path, bytes: u64) -> u64 {
    use std::io::Write;
    /// Written at a time; what a pipe holds besides is 64 KiB.
    const CHUNK: usize = 1 << 20;
    let pipe = folder.join(format!("offer-{bytes}"));
    let (cwd, mode) = (rustix::fs::CWD, rustix::fs::Mode::from_raw_mode(0o600));
    rustix::fs::mknodat(cwd, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    let child = Command::new(env!("CARGO_BIN_EXE_cairn"))
        .args(["plan", "prices", "update", "--out", "prices.toml", "--from"])
        .arg(&pipe)
        .current_dir(folder)
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = std::fs::OpenOptions::new().write(true).open(&pipe).unwrap();
    let (start, end) = OFFER.split_once("\"A\": {\"productFamily\"").unwrap();
    out.write_all(start.as_bytes()).unwrap();
    let (mut written, mut product) = (0, 0_u64);
    while written < bytes {
        let mut chunk = String::with_capacity(CHUNK + 1024);
        while chunk.len() < CHUNK {
            product += 1;
            // Windows, and instances of other regions: what an offer file mostly has.
            let region = if product % 2 == 0 {
                "us-east-1"
            } else {
                "eu-west-3"
            };
            chunk += &format!(
                "\"S{product}\": {{\"sku\": \"S{product}\", \"productFamily\": \"Compute Instance\", \"attributes\": \
                 {{\"servicecode\": \"AmazonEC2\", \"regionCode\": \"{region}\", \"instanceType\": \"x{product}.large\", \
                 \"tenancy\": \"Shared\", \"operatingSystem\": \"Windows\", \"preInstalledSw\": \"SQL Web\", \
                 \"capacitystatus\": \"Used\", \"licenseModel\": \"No License required\"}}}},\n"
            );
        }
        out.write_all(chunk.as_bytes()).unwrap();
        written += chunk.len() as u64;
    }
    let peak = peak_kib(child.id());
    out.write_all(b"\"A\": {\"productFamily\"").unwrap();
    out.write_all(end.as_bytes()).unwrap();
    drop(out);
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("1 instance type"), "{text}");
    peak
}

/// Offer files of AWS have gigabytes: twenty times as much takes no more memory.
#[test]
fn an_offer_file_of_a_gigabyte_is_read_in_flat_memory() {
    const SLACK_KIB: u64 = 4 << 10;
    let folder = tempfile::tempdir().unwrap();
    let small = peak_of_offer(folder.path(), 50_000_000);
    let large = peak_of_offer(folder.path(), 1_000_000_000);
    println!("50 MB: {small} KiB at most; 1 GB: {large} KiB");
    assert!(large <= small + SLACK_KIB, "{small} KiB, {large} KiB");
}

#[test]
fn bad_input_ends_with_2_and_a_sentence() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    std::fs::write(folder.join("no.toml"), "hello").unwrap();
    std::fs::write(folder.join("gap.toml"), "version = 1\n").unwrap();
    let cases: &[(&[&str], &str)] = &[
        (&[], "--capacity"),
        (&["--capacity", "200"], "no unit"),
        (&["--capacity", "-1TiB"], "negative"),
        (&["--capacity", "1TiB", "--read", "6GB"], "MiB/s"),
        (
            &["--capacity", "1TiB", "--region", "us-esat-1"],
            "us-east-1",
        ),
        (
            &["--capacity", "1TiB", "--region", "ap-south-1"],
            "--prices",
        ),
        (&["--capacity", "1TiB", "--growth", "30%/year"], "--years"),
        (&["--capacity", "500PiB"], "no design meets --capacity"),
        (
            &["--capacity", "200TiB", "--budget", "100USD/month"],
            "collide",
        ),
        (
            &["--prices", "gap.toml", "--capacity", "1TiB"],
            "not understood",
        ),
        (
            &["--prices", "none.toml", "--capacity", "1TiB"],
            "none.toml",
        ),
        (&["check", "no.toml"], "no configuration"),
        (&["explain", "ebss"], "nearest"),
        (&["whatif", "no.toml"], "no configuration"),
        (
            &["prices", "update", "--from", "none.json", "--out", "p.toml"],
            "none.json",
        ),
        (
            &[
                "prices",
                "update",
                "--from",
                "none.json",
                "--region",
                "us-esat-1",
                "--out",
                "p.toml",
            ],
            "none.json",
        ),
    ];
    for (args, want) in cases {
        check(folder, args, 2, want);
    }
}

/// Whatever the terminal is, no line is longer, and no number is broken.
#[test]
fn no_line_is_longer_than_the_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    std::fs::write(folder.join("good.toml"), CLUSTER).unwrap();
    std::fs::write(folder.join("bad.toml"), CLUSTER.replace("1TiB", "15TiB")).unwrap();
    let small = ["--capacity", "20TiB", "--read", "0.5GB/s", "--clients", "8"];
    let output = cairn(
        folder,
        &[&small[..], &["--output", "json", "--out", "plan.json"]].concat(),
    );
    assert!(output.status.success());
    let large =
        "--capacity 200TiB --read 6GB/s --write 2GB/s --survive 2 --include-planned --details 9";
    let hot = "--capacity 100TiB --growth 30%/year --years 3 --hot 20% --protocols nfs,smb";
    let commands = [
        small.join(" "),
        large.to_owned(),
        hot.to_owned(),
        "--capacity 10TiB --iops 100000 --region eu-west-1-2016".to_owned(),
        "--capacity 200TiB --budget 100USD/month".to_owned(),
        "--capacity 500TiB --workload database --protocols iscsi --clients 1".to_owned(),
        "check good.toml".to_owned(),
        "check bad.toml".to_owned(),
        "compare plan.json --ranks 1,2".to_owned(),
        "compare good.toml plan.json".to_owned(),
        "whatif good.toml --nodes -1".to_owned(),
        "validate".to_owned(),
        "explain".to_owned(),
        "prices list".to_owned(),
    ];
    for command in &commands {
        let args: Vec<&str> = command.split(' ').collect();
        for width in [80, 120] {
            let output = cairn_of_width(folder, &args, width);
            let text = String::from_utf8(output.stdout).unwrap();
            assert!(!text.is_empty(), "{command}");
            for line in text.lines() {
                assert!(
                    line.chars().count() <= width,
                    "{command}, {width} columns: {line:?}"
                );
            }
        }
    }
    let output = cairn_of_width(folder, &["prices", "list"], 80);
    let text = String::from_utf8(output.stdout).unwrap();
    for whole in ["eu-west-1-2016", "eu-central-1", "2025-03-02"] {
        assert!(text.contains(whole), "{whole} in {text}");
    }
}
