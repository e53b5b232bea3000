//! `cairn plan`: ranks designs, checks, explains and deploys them.
//!
//! Owns: files, addresses, formats, exit codes. Must not know: the model; that is crate `plan`.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::time::Duration;

use cairn_plan::catalog::Catalog;
use cairn_plan::check::{self, Config};
use cairn_plan::deploy::{
    ClientValues, DeployOptions, Format, MachineValues, Package, Rendered, check_login, client,
    render,
};
use cairn_plan::deployable::is_region;
use cairn_plan::design::Design;
use cairn_plan::evaluate::{EvaluateError, evaluate};
use cairn_plan::offer::read_offer;
use cairn_plan::prices::{Day, PriceList};
use cairn_plan::rules::RULES;
use cairn_plan::validate::validate;
use cairn_plan::whatif::{self, Change, Comparison};
use cairn_plan::{page, text};
use serde::Serialize;
use ureq::unversioned::resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::{DefaultConnector, NextTimeout};

use crate::exit::Failure;
use crate::plan_args::{
    CheckArgs, CompareArgs, DeployArgs, ExplainArgs, Output, OutputArgs, PlanArgs, PlanCommand,
    PricesCommand, PricesUpdateArgs, WhatifArgs,
};
use crate::print;
use crate::print::note;

/// A configuration or a saved plan at most; a plan has some hundred kilobytes.
const CONFIG_LEN_BYTES_MAX: u64 = 64 << 20;
/// A source of prices that says nothing for so long is given up.
const SILENCE_MAX: Duration = Duration::from_secs(60);
/// An offer file has gigabytes, and comes within so long over a slow line too.
const DOWNLOAD_MAX: Duration = Duration::from_secs(6 * 3600);
/// Least and most that text is made for; in wider terminals lines are no longer easy to read.
const WIDTH_MIN: usize = 60;
const WIDTH_MAX: usize = 160;
/// Where nobody says how wide the output is: files and pipes.
const WIDTH_DEFAULT: usize = 120;

pub fn plan(args: &PlanArgs) -> Result<(), Failure> {
    let catalog = catalog(args.prices.prices.as_deref())?;
    match &args.command {
        None => ranking(&catalog, args),
        Some(PlanCommand::Check(args)) => checked(&catalog, args),
        Some(PlanCommand::Explain(args)) => explain(args),
        Some(PlanCommand::Compare(args)) => compare(&catalog, args),
        Some(PlanCommand::Whatif(args)) => changed(&catalog, args),
        Some(PlanCommand::Validate(args)) => validated(&catalog, args),
        Some(PlanCommand::Prices(PricesCommand::List(args))) => prices(&catalog, args),
        Some(PlanCommand::Prices(PricesCommand::Update(args))) => update(&catalog, args),
        Some(PlanCommand::Deploy(args)) => deploy(&catalog, args),
    }
}

fn usage(error: impl std::fmt::Display) -> Failure {
    Failure::usage(error.to_string())
}

fn catalog(prices: Option<&Path>) -> Result<Catalog, Failure> {
    let mut catalog = Catalog::embedded();
    if let Some(path) = prices {
        let list = PriceList::parse(&path.display().to_string(), &read(path)?).map_err(usage)?;
        catalog.prices = catalog.prices.with(list);
    }
    let now = cairn_base::Timestamp::from(std::time::SystemTime::now());
    catalog.today = Some(Day::from_unix_seconds(now.seconds));
    Ok(catalog)
}

fn read(path: &Path) -> Result<String, Failure> {
    let failed = |error: std::io::Error| usage(format!("reading {}: {error}", path.display()));
    let mut text = String::new();
    // Bounded by what is read, not by what the system says: pipes and devices have no length.
    let file = File::open(path).map_err(failed)?;
    let read = file
        .take(CONFIG_LEN_BYTES_MAX + 1)
        .read_to_string(&mut text);
    if read.map_err(failed)? as u64 > CONFIG_LEN_BYTES_MAX {
        return Err(usage(format!(
            "{} is larger than {CONFIG_LEN_BYTES_MAX} bytes, the limit for a configuration or plan",
            path.display()
        )));
    }
    Ok(text)
}

fn write(out: Option<&Path>, content: &str) -> Result<(), Failure> {
    match out {
        None => print::text(content),
        Some(path) => std::fs::write(path, content)
            .map_err(|error| Failure::failed(format!("writing {}: {error}", path.display()))),
    }
}

fn json(value: &impl Serialize) -> Result<String, Failure> {
    serde_json::to_string_pretty(value)
        .map(|json| cairn_base::printable::in_json(&json).into_owned() + "\n")
        .map_err(|error| Failure::failed(format!("writing JSON: {error}")))
}

fn ranking(catalog: &Catalog, args: &PlanArgs) -> Result<(), Failure> {
    let goal = args.goals.goal().ok_or_else(|| {
        usage("--capacity is missing: how much must it hold?").hint(
            "for example: cairn plan --capacity 200TiB --read 6GB/s --write 2GB/s --survive 2",
        )
    })?;
    let report = cairn_plan::plan(catalog, &goal).map_err(usage)?;
    let content = match args.output {
        Output::Table => text::terminal(&report, args.details, width()),
        Output::Json => json(&report)?,
        Output::Markdown => text::markdown(&report),
        Output::Html => page::html(&report),
    };
    write(args.out.as_deref(), &content)?;
    match &report.ranking.collision {
        None => Ok(()),
        Some(collision) => Err(usage(format!("nothing fits: {}", collision.words))),
    }
}

/// How many characters a line may have: of `COLUMNS`, else of the terminal.
fn width() -> usize {
    let of_terminal = || {
        let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok()?;
        (size.ws_col > 0).then(|| usize::from(size.ws_col))
    };
    std::env::var("COLUMNS")
        .ok()
        .and_then(|columns| columns.parse().ok())
        .or_else(of_terminal)
        .unwrap_or(WIDTH_DEFAULT)
        .clamp(WIDTH_MIN, WIDTH_MAX)
}

/// Writes what is no ranking: a table, JSON or Markdown.
fn show(
    args: &OutputArgs,
    value: &impl Serialize,
    table: impl FnOnce() -> String,
    markdown: impl FnOnce() -> String,
) -> Result<(), Failure> {
    match args.output {
        Output::Table => print::text(&table()),
        Output::Json => print::text(&json(value)?),
        Output::Markdown => print::text(&markdown()),
        Output::Html => Err(usage(
            "only a ranking can become a page: use --output table, json or markdown",
        )),
    }
}

fn config(path: &Path) -> Result<Config, Failure> {
    check::parse(&path.display().to_string(), &read(path)?).map_err(usage)
}

/// The design of a file: a configuration, or the one of this rank of a saved plan.
fn design(path: &Path, rank: usize) -> Result<Design, Failure> {
    check::design_of_rank(&path.display().to_string(), &read(path)?, rank).map_err(usage)
}

fn checked(catalog: &Catalog, args: &CheckArgs) -> Result<(), Failure> {
    let found = check::check(catalog, &config(&args.file)?);
    let words = |width| text::checked(&found, width);
    show(
        &args.output,
        &found,
        || words(width()),
        || words(usize::MAX),
    )?;
    match (found.violations.len(), &found.unknown) {
        (0, None) => Ok(()),
        (0, Some(why)) => Err(usage(format!(
            "{} has no figures: {why}",
            args.file.display()
        ))),
        (count, _) => Err(usage(format!(
            "{} breaks {}",
            args.file.display(),
            rules(count)
        ))),
    }
}

fn rules(count: usize) -> String {
    match count {
        1 => "1 rule".to_owned(),
        count => format!("{count} rules"),
    }
}

fn explain(args: &ExplainArgs) -> Result<(), Failure> {
    let wanted = |id: &str| {
        args.rules.is_empty()
            || args
                .rules
                .iter()
                .any(|name| id == name || id.starts_with(&format!("{name}.")))
    };
    let rules: Vec<_> = RULES
        .iter()
        .filter(|rule| wanted(rule.id.as_str()))
        .collect();
    if rules.is_empty() {
        let known = RULES.iter().map(|rule| rule.id.as_str());
        let nearest = cairn_plan::catalog::nearest(&args.rules[0], known);
        return Err(usage(format!(
            "there is no rule \"{}\"; nearest: {}",
            args.rules[0],
            nearest.join(", ")
        )));
    }
    show(
        &args.output,
        &rules,
        || text::explain_plain(&rules, width()),
        || text::explain(&rules).markdown(),
    )
}

fn compare(catalog: &Catalog, args: &CompareArgs) -> Result<(), Failure> {
    let (left, right) = match (args.files.as_slice(), args.ranks.as_slice()) {
        ([file], [left, right]) => (design(file, *left)?, design(file, *right)?),
        ([left, right], []) => (design(left, 1)?, design(right, 1)?),
        _ => {
            return Err(usage(
                "compare takes two files, or one saved plan with --ranks A,B",
            ));
        }
    };
    let comparison = whatif::compare(catalog, &left, &right).map_err(usage)?;
    show_comparison(catalog, &args.output, &comparison)
}

fn show_comparison(
    catalog: &Catalog,
    args: &OutputArgs,
    comparison: &Comparison,
) -> Result<(), Failure> {
    let table = text::comparison(comparison);
    let region = |design: &Design| {
        catalog
            .prices
            .book(&design.region)
            .map(|book| text::prices(&book.stamp(catalog.today)))
            .map_err(usage)
    };
    let left = region(&comparison.before.design)?;
    let right = region(&comparison.after.design)?;
    let prices = if left == right {
        left
    } else {
        format!("A: {left} B: {right}")
    };
    let head = format!(
        "A: {}\nB: {}\n{}{}{prices}\n\n",
        comparison.before.name,
        comparison.after.name,
        text::broken("A", &comparison.before_breaks),
        text::broken("B", &comparison.after_breaks)
    );
    show(
        args,
        comparison,
        || text::fold(&head, width()) + &table.plain(width()),
        || head.replace('\n', "\n\n") + &table.markdown(),
    )?;
    for (name, broken) in [
        ("A", &comparison.before_breaks),
        ("B", &comparison.after_breaks),
    ] {
        if !broken.is_empty() {
            return Err(usage(format!("{name} breaks {}", rules(broken.len())))
                .hint("`cairn plan check` shows the nearest configuration that keeps all rules"));
        }
    }
    Ok(())
}

fn changed(catalog: &Catalog, args: &WhatifArgs) -> Result<(), Failure> {
    let design = design(&args.file, args.rank)?;
    let changes: Vec<Change> = [
        args.instance.clone().map(Change::Instance),
        args.volume_type.clone().map(Change::VolumeType),
        args.volume_size.map(Change::VolumeSize),
        args.volumes.map(Change::Volumes),
        args.volume_iops.map(Change::VolumeIops),
        args.volume_mib_s.map(Change::VolumeMibS),
        args.level.clone().map(Change::Level),
        args.host.clone().map(Change::Host),
        args.nodes.map(Change::Nodes),
    ]
    .into_iter()
    .flatten()
    .collect();
    if changes.is_empty() {
        return Err(usage(
            "nothing to change: give --nodes, --instance, --volume-type, --volume-size, --volumes, \
             --volume-iops, --volume-mib-s, --level or --host",
        ));
    }
    let comparison = whatif::whatif(catalog, &design, &changes).map_err(usage)?;
    show_comparison(catalog, &args.output, &comparison)
}

fn validated(catalog: &Catalog, args: &OutputArgs) -> Result<(), Failure> {
    let found = validate(catalog).map_err(usage)?;
    show(
        args,
        &found,
        || text::validation_plain(&found, width()),
        || {
            format!(
                "{}\n{}",
                text::validation(&found).markdown(),
                text::validation_families(&found).markdown()
            )
        },
    )
}

fn prices(catalog: &Catalog, args: &OutputArgs) -> Result<(), Failure> {
    let books = &catalog.prices.books;
    let table = text::Table {
        headings: vec![
            "region",
            "date",
            "older than a year, or without a date",
            "instances",
            "volumes",
            "source",
        ],
        rows: books
            .iter()
            .map(|book| {
                let volumes: Vec<&str> = book.ebs.keys().map(String::as_str).collect();
                vec![
                    book.name.clone(),
                    book.date.clone(),
                    book.stamp(catalog.today).stale.join(", "),
                    book.ec2_usd_per_hour.len().to_string(),
                    volumes.join(", "),
                    book.source.clone(),
                ]
            })
            .collect(),
    };
    show(args, books, || table.plain(width()), || table.markdown())
}

fn update(catalog: &Catalog, args: &PricesUpdateArgs) -> Result<(), Failure> {
    let failed = |error: &dyn std::fmt::Display| usage(format!("reading {}: {error}", args.from));
    let input: Box<dyn BufRead> =
        if args.from.starts_with("http://") || args.from.starts_with("https://") {
            let tls = system_tls()?;
            download(&args.from, SILENCE_MAX, tls).map_err(|error| failed(&error))?
        } else {
            Box::new(BufReader::new(
                File::open(&args.from).map_err(|error| failed(&error))?,
            ))
        };
    // The embedded list tells a region that is none from one without prices.
    let old = match catalog.prices.book(&args.region) {
        Ok(book) => Some(book),
        Err(cairn_plan::prices::PriceError::Region { .. }) => None,
        Err(error) => return Err(usage(error)),
    };
    let list = read_offer(input, &args.region, old).map_err(|error| failed(&error))?;
    write(Some(&args.out), &list.to_toml().map_err(usage)?)?;
    let book = list.book(&args.region).map_err(usage)?;
    print::text(&format!(
        "{}: {} instance types, {} volume types of {}, {}\n",
        args.out.display(),
        book.ec2_usd_per_hour.len(),
        book.ebs.len(),
        book.name,
        book.date
    ))
}

/// Where systems keep the certificates that they trust.
const SYSTEM_CERTIFICATES: [&str; 3] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/cert.pem",
];

/// TLS that trusts what the system trusts; nobody, where it has no certificates.
fn system_tls() -> Result<ureq::tls::TlsConfig, Failure> {
    let mut files = SYSTEM_CERTIFICATES.iter();
    let pem = files.find_map(|path| std::fs::read_to_string(path).ok());
    Ok(cairn_admin::tls_trusting(pem.as_deref())?)
}

/// Addresses as the system resolves them, if they may be contacted; those of redirects, too.
#[derive(Debug)]
struct CheckedResolver(DefaultResolver);

impl Resolver for CheckedResolver {
    fn resolve(
        &self,
        uri: &ureq::http::Uri,
        config: &ureq::config::Config,
        timeout: NextTimeout,
    ) -> Result<ResolvedSocketAddrs, ureq::Error> {
        let found = self.0.resolve(uri, config, timeout)?;
        let host = uri.host().unwrap_or_default();
        let addresses = found.iter().map(|address| address.ip());
        match cairn_outbound::check_addresses(host, addresses) {
            Ok(()) => Ok(found),
            Err(refused) => Err(ureq::Error::Other(Box::new(refused))),
        }
    }
}

fn download(
    address: &str,
    silence_max: Duration,
    tls: ureq::tls::TlsConfig,
) -> Result<Box<dyn BufRead>, ureq::Error> {
    let refused = |error: cairn_outbound::Refused| ureq::Error::Other(Box::new(error));
    cairn_outbound::check_text(address).map_err(refused)?;
    let config = ureq::Agent::config_builder()
        .tls_config(tls)
        // A redirect may lead to another host, but not to one without TLS.
        .https_only(address.starts_with("https://"))
        .timeout_resolve(Some(silence_max))
        .timeout_connect(Some(silence_max))
        .timeout_recv_response(Some(silence_max))
        .timeout_per_read(Some(silence_max))
        .timeout_recv_body(Some(DOWNLOAD_MAX))
        .build();
    let resolver = CheckedResolver(DefaultResolver::default());
    let agent = ureq::Agent::with_parts(config, DefaultConnector::default(), resolver);
    let response = agent.get(address).call()?;
    Ok(Box::new(BufReader::new(response.into_body().into_reader())))
}

fn deploy(catalog: &Catalog, args: &DeployArgs) -> Result<(), Failure> {
    let rendered = match (&args.client, &args.file) {
        (Some(server), _) => client(&ClientValues {
            server: server.clone(),
            volume: args.volume.clone(),
            mount_point: args.mount_point.clone(),
            nconnect: args.nconnect,
        })
        .map_err(usage)?,
        (None, Some(file)) => {
            let design = design(file, args.rank)?;
            refuse_undeployable(catalog, file, &design)?;
            template(args, &design)?
        }
        (None, None) => return Err(usage("deploy takes a configuration or a saved plan")),
    };
    write(args.out.as_deref(), &rendered.content)?;
    for notice in &rendered.notices {
        note!("cairn: {notice}");
    }
    Ok(())
}

/// A template is written only of what AWS sells, in a region that is one. A price is not needed to deploy:
/// that it is missing is said.
fn refuse_undeployable(catalog: &Catalog, file: &Path, design: &Design) -> Result<(), Failure> {
    let mut broken = text::broken("it", &check::violations(catalog, design));
    if !is_region(&design.region) {
        broken += &format!(
            "its region \"{}\" is not one in which it can be deployed\n",
            design.region
        );
    }
    if !broken.is_empty() {
        return Err(usage(format!(
            "{} cannot be deployed as it stands: {}",
            file.display(),
            broken.trim_end()
        ))
        .hint("`cairn plan check` shows the nearest configuration that can be deployed"));
    }
    if let Err(error @ EvaluateError::Price(_)) = evaluate(catalog, design) {
        note!("cairn: its cost is not known: {error}");
    }
    Ok(())
}

fn template(args: &DeployArgs, design: &Design) -> Result<Rendered, Failure> {
    // Also where it is not used: nobody shall believe that it was taken.
    if let Some(login) = &args.login {
        check_login(login).map_err(usage)?;
        if args.format != Format::CloudInit {
            note!(
                "cairn: --login is for cloud-init; a template asks for LoginAddress when it is deployed"
            );
        }
    }
    let package = args.package_url.clone().zip(args.package_sha256.clone());
    let options = DeployOptions {
        planned: args.planned,
        protocols: args.protocols.iter().map(|name| name.protocol()).collect(),
        machine: package.map(|(url, sha256)| MachineValues {
            name: args.name.clone(),
            user: args.user.clone(),
            login: args.login.clone(),
            client_networks: args.client_networks.clone(),
            package: Package { url, sha256 },
            devices: Vec::new(),
        }),
    };
    render(design, &options, args.format).map_err(usage)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_server_that_falls_silent_is_given_up() {
        const HALF: &str = "HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf";
        for said in ["", HALF] {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = format!("http://{}/offer", listener.local_addr().unwrap());
            std::thread::spawn(move || {
                let (mut stream, _) = listener.accept().unwrap();
                stream.write_all(said.as_bytes()).unwrap();
                // Until the other end hangs up.
                let _ = stream.read_to_end(&mut Vec::new());
            });
            let tls = system_tls().unwrap();
            let offer = download(&address, Duration::from_millis(200), tls);
            let read = offer.map(|mut offer| offer.read_to_end(&mut Vec::new()));
            assert!(!matches!(read, Ok(Ok(_))), "{said:?}");
        }
    }

    #[test]
    fn metadata_services_offer_no_prices() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let redirecting = format!("http://{}/offer", listener.local_addr().unwrap());
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.read(&mut [0; 4096]);
            let answer =
                "HTTP/1.1 302 Found\r\nlocation: http://0xa9fea9fe/\r\ncontent-length: 0\r\n\r\n";
            stream.write_all(answer.as_bytes()).unwrap();
        });
        for address in [
            "http://169.254.169.254/latest",
            "http://2852039166/",
            &redirecting,
        ] {
            let offer = download(address, Duration::from_secs(60), system_tls().unwrap());
            let why = offer.err().map(|error| error.to_string());
            assert!(
                why.is_some_and(|why| why.contains("169.254.169.254")),
                "{address}"
            );
        }
    }

    /// The system says of a pipe, and of a device that never ends, that they have no bytes.
    #[test]
    fn a_file_without_a_length_is_read_up_to_a_limit() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pipe");
        let (cwd, mode) = (rustix::fs::CWD, rustix::fs::Mode::from_raw_mode(0o600));
        rustix::fs::mknodat(cwd, &path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        let found = std::thread::scope(|scope| {
            scope.spawn(|| std::fs::write(&path, "[shape]"));
            read(&path)
        });
        assert_eq!(found.ok().as_deref(), Some("[shape]"));
        let found = std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut pipe = std::fs::OpenOptions::new().write(true).open(&path)?;
                let zeros = vec![0; 1 << 20];
                // Until nobody reads any more, and at most twice what may be read.
                for _ in 0..2 * (CONFIG_LEN_BYTES_MAX >> 20) {
                    pipe.write_all(&zeros)?;
                }
                std::io::Result::Ok(())
            });
            read(&path)
        });
        let why = found.err().map(|failure| format!("{failure:?}"));
        assert!(why.is_some_and(|why| why.contains("is larger than")));
    }
}
