//! The config file: TOML, one key per setting, read strictly.

use std::ops::Range;
use std::path::Path;

use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};

use crate::declare::Shape;
use crate::problem::{ConfigError, Problem, nearest};
use crate::server::Settings;

/// A config file is not longer than this, in bytes.
pub const CONFIG_FILE_LEN_BYTES_MAX: u64 = 1 << 20;

/// Reads a config file's `content`; relative paths in it count from `folder`.
///
/// Reports everything that is wrong, with lines; an unknown key with the key that is most like it.
pub fn parse_file(content: &str, folder: &Path) -> Result<Settings, ConfigError> {
    let (table, syntax_errors) = DeTable::parse_recoverable(content);
    let mut problems: Vec<Problem> = syntax_errors
        .iter()
        .map(|error| Problem {
            line: error.span().map(|span| line_of(content, span.start)),
            what: error.message().to_owned(),
        })
        .collect();
    let mut settings = Settings::default();
    // After a syntax error the rest of the table is a guess: only the error is worth telling.
    if problems.is_empty() {
        let span = table.span();
        // Each key by itself: serde ends at the first error, and all are told.
        for (key, value) in table.into_inner() {
            let start = key.span().start;
            match read(span.clone(), key, value) {
                // A key is there once.
                Ok(given) => settings = settings.over(given.under(folder)),
                Err(refused) => {
                    let line = Some(line_of(content, start));
                    problems.extend(refused.into_iter().map(|what| Problem { line, what }));
                }
            }
        }
    }
    if problems.is_empty() {
        return Ok(settings);
    }
    problems.sort_by_key(|problem| problem.line);
    Err(ConfigError { problems })
}

/// Reads one key with its value; the error is all that is wrong with it.
fn read(
    span: Range<usize>,
    key: Spanned<DeString<'_>>,
    value: Spanned<DeValue<'_>>,
) -> Result<Settings, Vec<String>> {
    let name = key.get_ref().to_string();
    let Some(setting) = Settings::all().into_iter().find(|it| it.key == name) else {
        return Err(vec![unknown(&name)]);
    };
    if setting.shape == Shape::List && !value.get_ref().is_array() {
        let example = setting.example();
        return Err(vec![format!("{name}: is a list: {name} = {example}")]);
    }
    let entry: DeTable<'_> = [(key, value)].into_iter().collect();
    let given = Settings::read(&name, Spanned::new(span, entry))
        .map_err(|error| vec![format!("{name}: {}", error.message())])?;
    let mut refused = Vec::new();
    given.refuse_values(&mut |what| refused.push(what));
    match refused.is_empty() {
        true => Ok(given),
        false => Err(refused),
    }
}

fn unknown(key: &str) -> String {
    let mut known: Vec<&str> = Settings::all().iter().map(|setting| setting.key).collect();
    known.sort_unstable();
    match nearest(key, &known) {
        Some(meant) => format!("unknown key \"{key}\"; did you mean \"{meant}\"?"),
        None => format!("unknown key \"{key}\"; there are: {}", known.join(", ")),
    }
}

fn line_of(content: &str, offset: usize) -> usize {
    let before = content.as_bytes().get(..offset).unwrap_or_default();
    1 + before.iter().filter(|byte| **byte == b'\n').count()
}

#[cfg(test)]
mod tests {
    use clap::{Args, Command, FromArgMatches};
    use proptest::prelude::*;

    use super::*;
    use crate::oidc::OidcSettings;
    use crate::server::{DiskIo, LogFormat, Size};

    #[test]
    fn every_flag_is_a_key() {
        let command = Settings::augment_args(Command::new("serve"));
        let mut flags: Vec<String> = command
            .get_arguments()
            .filter_map(|arg| arg.get_long())
            .map(|flag| flag.replace('-', "_"))
            .collect();
        flags.sort();
        // For tests, and for disks that are slow as a rule: nobody needs it on the command line.
        let in_file_only = [
            "hang_after",
            "idle_after",
            "tier_interval",
            "write_deadline",
        ];
        let (without, with): (Vec<_>, Vec<_>) = Settings::all()
            .into_iter()
            .partition(|setting| setting.facts.in_file_only);
        let mut keys: Vec<&str> = with.iter().map(|setting| setting.key).collect();
        keys.sort_unstable();
        assert_eq!(flags, keys);
        for key in in_file_only {
            assert!(without.iter().any(|setting| setting.key == key), "{key}");
        }
    }

    #[test]
    fn flags_are_read_as_the_file_is() {
        let command = Settings::augment_args(Command::new("serve"));
        command.clone().debug_assert();
        let read = |flags: &str| {
            let line = std::iter::once("serve").chain(flags.split_whitespace());
            let matches = command.clone().try_get_matches_from(line)?;
            Settings::from_arg_matches(&matches)
        };
        let given = read(
            "--data a --data b --create --rpcbind=false --listen-iscsi :1 --listen-iscsi localhost:2 \
             --memory-limit 1GiB --threads 3 --log-format json --s3-region eu-west-1 --oidc-scope email",
        );
        let file = r#"
            data = ["a", "b"]
            create = true
            rpcbind = false
            listen_iscsi = ["[::]:1", "127.0.0.1:2"]
            memory_limit = "1GiB"
            threads = 3
            log_format = "json"
            s3_region = "eu-west-1"
            oidc_scope = ["email"]
        "#;
        assert_eq!(given.unwrap(), parse_file(file, Path::new("")).unwrap());
        let refused = [
            "--threads many",
            "--rpcbind false",
            "--listen-nfs 2049",
            "--s3-region a --s3-region b",
            // It is in the file only.
            "--hang-after 3",
            "--master-key-file a --master-key-command b",
        ];
        for flags in refused {
            assert!(read(flags).is_err(), "{flags}");
        }
    }

    // Settings that come later are read from their examples, in `documents`.
    #[allow(clippy::needless_update)]
    #[test]
    fn a_full_file_is_read() {
        let content = r#"
            data = ["disk1", "/srv/disk2"]
            create = true
            disk_root = ["disks", "/srv"]
            listen_nfs = "0.0.0.0:2049"
            listen_iscsi = "0.0.0.0:3260"
            iscsi_portal = ["10.0.0.1:3260", "10.1.0.1:3260"]
            listen_s3 = "0.0.0.0:9000"
            listen_dns = "0.0.0.0:53"
            s3_audit = true
            admin_audit = true
            s3_certificate = "s3.crt"
            s3_key = "/etc/s3.key"
            s3_domain = ["s3.example.org"]
            s3_region = "eu-west-1"
            listen_admin = "localhost:0"
            insecure = false
            admin_certificate = "admin.crt"
            admin_key = "/etc/admin.key"
            admin_self_signed = false
            admin_name = ["cairn.example.org", "::1"]
            oidc_address = ["https://cairn.example.org:8049"]
            oidc_admin = ["admins"]
            oidc_client_id = "cairn"
            oidc_client_secret_file = "oidc.secret"
            oidc_issuer = "https://id.example.org"
            oidc_name_claim = "email"
            oidc_role_claim = "realm_access.roles"
            oidc_scope = ["email", "groups"]
            oidc_text = "Example"
            oidc_viewer = ["staff", "guests"]
            rpcbind = true
            credential_host = ["minio.example.org:9000"]
            cluster_dir = "cluster"
            address_hook = "address-hook"
            internal_encryption = false
            ready_file = "ready.json"
            state_dir = "state"
            token_file = "/etc/token"
            master_key_file = "master.key"
            master_key_command = "pass cairn"
            memory_limit = "4GiB"
            threads = 8
            log_format = "json"
            metrics_open = false
            disk_size_limit = 1073741824
            disk_spare = "1GiB"
            scrub_rate = "10MiB"
            rebuild_rate = 0
            rebuild_delay = 30
            hang_after = 5
            write_deadline = 2000
            idle_after = 2
            tier_interval = 1
            disk_io = "threads"
        "#;
        let want = Settings {
            data: vec!["/etc/cairn/disk1".into(), "/srv/disk2".into()],
            create: Some(true),
            disk_root: vec!["/etc/cairn/disks".into(), "/srv".into()],
            listen_nfs: Some("0.0.0.0:2049".parse().unwrap()),
            listen_iscsi: vec!["0.0.0.0:3260".parse().unwrap()],
            iscsi_portal: vec![
                "10.0.0.1:3260".parse().unwrap(),
                "10.1.0.1:3260".parse().unwrap(),
            ],
            listen_s3: Some("0.0.0.0:9000".parse().unwrap()),
            listen_dns: Some("0.0.0.0:53".parse().unwrap()),
            s3_audit: Some(true),
            admin_audit: Some(true),
            s3_certificate: Some("/etc/cairn/s3.crt".into()),
            s3_key: Some("/etc/s3.key".into()),
            s3_domain: vec!["s3.example.org".to_owned()],
            s3_region: Some("eu-west-1".to_owned()),
            listen_admin: Some("127.0.0.1:0".parse().unwrap()),
            insecure: Some(false),
            admin_certificate: Some("/etc/cairn/admin.crt".into()),
            admin_key: Some("/etc/admin.key".into()),
            admin_self_signed: Some(false),
            admin_name: vec!["cairn.example.org".to_owned(), "::1".to_owned()],
            oidc: OidcSettings {
                oidc_address: vec!["https://cairn.example.org:8049".to_owned()],
                oidc_admin: vec!["admins".to_owned()],
                oidc_client_id: Some("cairn".to_owned()),
                oidc_client_secret_file: Some("/etc/cairn/oidc.secret".into()),
                oidc_issuer: Some("https://id.example.org".to_owned()),
                oidc_name_claim: Some("email".to_owned()),
                oidc_role_claim: Some("realm_access.roles".to_owned()),
                oidc_scope: vec!["email".to_owned(), "groups".to_owned()],
                oidc_text: Some("Example".to_owned()),
                oidc_viewer: vec!["staff".to_owned(), "guests".to_owned()],
            },
            rpcbind: Some(true),
            credential_host: vec!["minio.example.org:9000".to_owned()],
            cluster_dir: Some("/etc/cairn/cluster".into()),
            address_hook: Some("/etc/cairn/address-hook".into()),
            internal_encryption: Some(false),
            ready_file: Some("/etc/cairn/ready.json".into()),
            state_dir: Some("/etc/cairn/state".into()),
            token_file: Some("/etc/token".into()),
            master_key_file: Some("/etc/cairn/master.key".into()),
            master_key_command: Some("pass cairn".to_owned()),
            memory_limit: Some(Size(4 << 30)),
            threads: Some(8),
            log_format: Some(LogFormat::Json),
            metrics_open: Some(false),
            disk_size_limit: Some(Size(1 << 30)),
            disk_spare: Some(Size(1 << 30)),
            scrub_rate: Some(Size(10 << 20)),
            rebuild_rate: Some(Size(0)),
            rebuild_delay: Some(30),
            hang_after: Some(5),
            write_deadline: Some(2000),
            idle_after: Some(2),
            tier_interval: Some(1),
            disk_io: Some(DiskIo::Threads),
            ..Settings::default()
        };
        assert_eq!(parse_file(content, Path::new("/etc/cairn")), Ok(want));
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line() {
        let cases: &[(&str, &[&str])] = &[
            ("", &[]),
            ("# nothing\n", &[]),
            (
                "listen_nsf = \"x\"",
                &["line 1: unknown key \"listen_nsf\"; did you mean \"listen_nfs\"?"],
            ),
            (
                "\nmemory = 1\n\nrpcbind = 1\nzzz = 1",
                &[
                    "line 2: unknown key \"memory\"; did you mean \"memory_limit\"?",
                    "line 4: rpcbind: is true or false, not an integer",
                    "line 5: unknown key \"zzz\"; there are: address_hook, admin_audit, admin_certificate,",
                ],
            ),
            ("[nfs]\nlisten = 1", &["line 1: unknown key \"nfs\""]),
            ("data = \"/a\"", &["line 1: data: is a list"]),
            ("data = [1]", &["line 1: data: is a string in quotes"]),
            (
                "memory_limit = \"lots\"",
                &["line 1: memory_limit: \"lots\" is not a size"],
            ),
            ("threads = -1", &["line 1: threads: "]),
            (
                "threads = 0\nmemory_limit = \"1MiB\"\nthread = 1",
                &[
                    "line 1: threads: 0 is not between 1 and 256",
                    "line 2: memory_limit: 1 MiB is too little; the minimum is 256 MiB",
                    "line 3: unknown key \"thread\"; did you mean \"threads\"?",
                ],
            ),
            (
                "listen_nfs = \"2049\"",
                &["line 1: listen_nfs: \"2049\" is not an address"],
            ),
            (
                "write_deadline = 2",
                &["line 1: write_deadline: 2 is not between 100 and 30000: it is in milliseconds"],
            ),
            (
                "idle_after = 0\ntier_interval = 601",
                &[
                    "line 1: idle_after: 0 is not between 1 and 3600: it is in seconds",
                    "line 2: tier_interval: 601 is not between 1 and 600: it is in seconds",
                ],
            ),
            ("disk_io = \"fast\"", &["auto, uring or threads"]),
            (
                "s3_domain = [\"ok\", \"a:1\"]\ns3_region = \"Mars\"\noidc_text = \"\"",
                &[
                    "line 1: s3_domain: \"a:1\" is no domain",
                    "line 2: s3_region: \"Mars\" is no region",
                    "line 3: oidc_text: a value has 1 to 512 bytes",
                ],
            ),
            (
                "iscsi_portal = \"10.0.0.1:0\"\n\noidc = 1\noidc_scope = \"a\"",
                &[
                    "line 1: iscsi_portal: no host finds anything at 10.0.0.1:0",
                    "line 3: unknown key \"oidc\"; did you mean \"oidc_",
                    "line 4: oidc_scope: is a list: oidc_scope = [\"profile\"]",
                ],
            ),
            (
                "oidc_issuer = 1979-05-27",
                &["line 1: oidc_issuer: is a string in quotes, not a datetime"],
            ),
            (
                "data = [[\"a\"]]",
                &["line 1: data: is a string in quotes, not an array"],
            ),
            ("rpcbind = true\nrpcbind = true", &["line 2: "]),
            ("a = ", &["line 1: "]),
        ];
        for (content, want) in cases {
            let problems = match parse_file(content, Path::new("/")) {
                Ok(_) => Vec::new(),
                Err(error) => error.problems,
            };
            assert_eq!(problems.len(), want.len(), "{content:?}: {problems:?}");
            for (problem, part) in problems.iter().zip(*want) {
                assert!(problem.to_string().contains(part), "{content:?}: {problem}");
            }
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(content in "\\PC*") {
            let _ = parse_file(&content, Path::new("/"));
        }
    }
}
