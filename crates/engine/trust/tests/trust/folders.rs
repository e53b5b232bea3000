//! The folder of a node: what is missing, damaged or open to others.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cairn_base::PoolId;
use cairn_testkit::test_env;
use cairn_trust::{Authority, ClusterFolder, Stage, Trust, TrustError, TrustSettings};
use tempfile::TempDir;

use crate::common::{CLUSTER, Node, ONE, TWO, authority, membership, start};

const FILES: [&str; 5] = ["ca.key", "ca.pem", "cluster.json", "node.key", "node.pem"];

/// The folder of a node that has run once.
fn folder(authority: &Authority) -> (TempDir, PathBuf) {
    let node = Node::new(authority, ONE);
    let path = node.trust.folder().path().to_owned();
    let Node { folder, trust, .. } = node;
    drop(trust);
    (folder, path)
}

fn open(path: &Path) -> Result<Arc<Trust>, TrustError> {
    let folder = Arc::new(ClusterFolder::open(path)?);
    Trust::open(test_env(), folder, TrustSettings::default())
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

#[tokio::test]
async fn a_folder_is_for_its_owner_alone_and_is_read_again() {
    let authority = authority();
    let (_folder, path) = folder(&authority);
    assert_eq!(mode(&path), 0o700);
    let mut names: Vec<String> = fs::read_dir(&path)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(
        names,
        [
            "ca.key",
            "ca.pem",
            "cluster.json",
            "lock",
            "node.key",
            "node.pem"
        ]
    );
    for name in names {
        assert_eq!(mode(&path.join(&name)), 0o600, "{name}");
    }
    let kept = FILES.map(|name| fs::read(path.join(name)).unwrap());
    let trust = open(&path).expect("it is read again");
    assert_eq!(trust.cluster(), CLUSTER);
    assert_eq!(trust.node(), ONE);
    assert_eq!(trust.authority().fingerprint(), authority.fingerprint());
    assert_eq!(
        trust.folder().membership().unwrap(),
        membership(CLUSTER, ONE)
    );
    assert_eq!(kept, FILES.map(|name| fs::read(path.join(name)).unwrap()));

    let mut changed = membership(CLUSTER, ONE);
    changed.stage = Stage::Joining;
    trust.folder().save_membership(&changed).unwrap();
    assert_eq!(trust.folder().membership().unwrap(), changed);
    changed.node_name = "no name".to_owned();
    assert!(trust.folder().save_membership(&changed).is_err());
}

#[tokio::test]
async fn one_process_uses_a_folder() {
    let (_folder, path) = folder(&authority());
    let first = ClusterFolder::open(&path).unwrap();
    let pid = std::process::id().to_string();
    let busy = TrustError::Busy {
        path: path.clone(),
        pid,
    };
    assert_eq!(ClusterFolder::open(&path).map(|_| ()), Err(busy.clone()));
    assert_eq!(ClusterFolder::create(&path).map(|_| ()), Err(busy));
    drop(first);
    let exists = TrustError::Exists { path: path.clone() };
    assert_eq!(ClusterFolder::create(&path).map(|_| ()), Err(exists));
    assert!(ClusterFolder::open(&path).is_ok());
}

#[tokio::test]
async fn a_folder_of_no_member_is_none() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("deep").join("cluster");
    assert!(!ClusterFolder::is_one(&path).unwrap());
    assert!(matches!(
        ClusterFolder::open(&path),
        Err(TrustError::Missing { .. })
    ));
    // A join that failed leaves an empty one, and is repeated.
    drop(ClusterFolder::create(&path).unwrap());
    assert!(!ClusterFolder::is_one(&path).unwrap());
    assert!(matches!(
        ClusterFolder::open(&path),
        Err(TrustError::Missing { .. })
    ));
    let created = ClusterFolder::create(&path).unwrap();
    created
        .establish(&membership(CLUSTER, TWO), &authority())
        .unwrap();
    assert!(ClusterFolder::is_one(&path).unwrap());
    // Whether there is one cannot be seen: as where the server's user may not look into it.
    let around = folder.path().join("around");
    std::os::unix::fs::symlink(&around, &around).unwrap();
    assert!(ClusterFolder::is_one(&around).is_err());
}

#[tokio::test]
async fn what_the_node_can_make_anew_is_made_anew() {
    let authority = authority();
    let other = Authority::create(CLUSTER, start()).unwrap();
    let (_folder, path) = folder(&authority);
    let (_other_folder, other_path) = folder_of(&other);
    let foreign = |name: &str| fs::read(other_path.join(name)).unwrap();
    type Change<'a> = Box<dyn Fn(&Path) + 'a>;
    let put = |name: &'static str, bytes: Vec<u8>| -> Change<'_> {
        Box::new(move |path| fs::write(path.join(name), &bytes).unwrap())
    };
    let remove = |name: &'static str| -> Change<'_> {
        Box::new(move |path| fs::remove_file(path.join(name)).unwrap())
    };
    let cases: Vec<(&str, Vec<Change<'_>>)> = vec![
        ("no certificate", vec![remove("node.pem")]),
        ("no key", vec![remove("node.key")]),
        (
            "a cut certificate",
            vec![put("node.pem", b"-----BEGIN".to_vec())],
        ),
        ("an empty key", vec![put("node.key", Vec::new())]),
        ("no text", vec![put("node.pem", vec![0xff; 9])]),
        (
            "the key of another one",
            vec![put("node.key", foreign("node.key"))],
        ),
        (
            "the certificate of another CA",
            vec![
                put("node.pem", foreign("node.pem")),
                put("node.key", foreign("node.key")),
            ],
        ),
        (
            "what a crash left",
            vec![put("node.pem.new", b"x".to_vec()), remove("node.pem")],
        ),
    ];
    for (name, changes) in cases {
        changes.iter().for_each(|change| change(&path));
        let trust = open(&path).unwrap_or_else(|error| panic!("{name}: {error}"));
        let certificate = trust.folder().certificate().unwrap();
        assert_eq!(certificate, trust.certificate(), "{name}");
        assert_eq!(certificate.subject.node, ONE, "{name}");
        drop(trust);
    }
    // Another address of the node is in its certificate from the next start on.
    let before = open(&path).unwrap().certificate();
    let opened = ClusterFolder::open(&path).unwrap();
    let mut moved = membership(CLUSTER, ONE);
    moved.internal_address = "[fd00::1]:7700".to_owned();
    opened.save_membership(&moved).unwrap();
    drop(opened);
    let after = open(&path).unwrap().certificate();
    assert!(!before.subject.hosts.contains(&"fd00::1".to_owned()));
    assert!(after.subject.hosts.contains(&"fd00::1".to_owned()));
    assert_eq!(after.key_pem, before.key_pem);
}

fn folder_of(authority: &Authority) -> (TempDir, PathBuf) {
    folder(authority)
}

#[tokio::test]
async fn what_the_node_cannot_know_is_an_error() {
    let authority = authority();
    let abroad = Authority::create(PoolId(5), start()).unwrap();
    let text = |bytes: &str| Some(bytes.as_bytes().to_vec());
    let long = Some(vec![b' '; (4 << 20) + 1]);
    let cases: Vec<(&str, &str, Option<Vec<u8>>, &str)> = vec![
        (
            "no membership",
            "cluster.json",
            None,
            "this node is in no cluster",
        ),
        ("an empty one", "cluster.json", text(""), "damaged"),
        ("a long one", "cluster.json", long, "far too long"),
        (
            "a newer one",
            "cluster.json",
            text(r#"{"format":9}"#),
            "has format 9",
        ),
        ("no CA", "ca.pem", None, "copy it from another node"),
        ("no PEM", "ca.pem", text("x"), "damaged"),
        (
            "a cut key",
            "ca.key",
            text("-----BEGIN PRIVATE KEY-----\n"),
            "damaged",
        ),
        (
            "another key",
            "ca.key",
            text(abroad.key_pem().unwrap()),
            "of another one",
        ),
    ];
    for (name, file, bytes, want) in cases {
        let (_folder, path) = folder(&authority);
        match bytes {
            Some(bytes) => fs::write(path.join(file), bytes).unwrap(),
            None => fs::remove_file(path.join(file)).unwrap(),
        }
        let error = open(&path).expect_err(name).to_string();
        assert!(
            error.contains(want) && error.contains(file.split('.').next().unwrap()),
            "{name}: {error}"
        );
    }
    let (_folder, path) = folder(&authority);
    fs::write(path.join("ca.pem"), abroad.certificate_pem()).unwrap();
    fs::write(path.join("ca.key"), abroad.key_pem().unwrap()).unwrap();
    let error = open(&path)
        .expect_err("the CA of another cluster")
        .to_string();
    assert!(error.contains(&CLUSTER.to_string()), "{error}");
}

#[tokio::test]
async fn what_others_could_read_is_taken_from_them() {
    let (_folder, path) = folder(&authority());
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    for name in FILES {
        fs::set_permissions(path.join(name), fs::Permissions::from_mode(0o644)).unwrap();
    }
    open(&path).expect("it can be used");
    assert_eq!(mode(&path), 0o700);
    for name in FILES {
        assert_eq!(mode(&path.join(name)), 0o600, "{name}");
    }
}

#[tokio::test]
async fn a_link_in_the_place_of_a_file_is_not_followed() {
    let (folder, path) = folder(&authority());
    for name in ["ca.key", "node.key", "cluster.json"] {
        let elsewhere = folder.path().join(name);
        fs::rename(path.join(name), &elsewhere).unwrap();
        symlink(&elsewhere, path.join(name)).unwrap();
        let error = open(&path).expect_err(name);
        assert!(matches!(error, TrustError::File { .. }), "{name}: {error}");
        fs::remove_file(path.join(name)).unwrap();
        fs::create_dir(path.join(name)).unwrap();
        let error = open(&path).expect_err(name);
        assert!(
            matches!(error, TrustError::Unsafe { .. }),
            "{name}: {error}"
        );
        fs::remove_dir(path.join(name)).unwrap();
        fs::rename(&elsewhere, path.join(name)).unwrap();
    }
    open(&path).expect("it is as it was");
}
