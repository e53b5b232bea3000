//! Rendered templates, refusals, and properties that must hold in every template.

use super::*;
use crate::design::{
    Cluster, NfsServer, ParallelFs, Product, Protection, SanArray, SanSystem, Shape, Storage,
    Volume,
};
use crate::units::{Bytes, Rate};

fn ebs(volumes: u32, volume_type: &str, gib: f64) -> Storage {
    Storage::Ebs {
        volumes,
        volume: Volume {
            volume_type: volume_type.to_string(),
            size_bytes: Bytes::from_gib(gib),
            iops: None,
            mib_s: None,
        },
    }
}

fn server_of(storage: Storage, data: u32, parity: u32) -> NfsServer {
    NfsServer {
        instance: "m6i.4xlarge".to_string(),
        storage,
        protection: Protection { data, parity },
    }
}

fn design(product: Product, shape: Shape) -> Design {
    Design {
        product,
        region: "eu-west-1".to_string(),
        shape,
    }
}

fn cairn_server(storage: Storage, data: u32, parity: u32) -> Design {
    design(
        Product::Cairn,
        Shape::NfsServer(server_of(storage, data, parity)),
    )
}

fn cairn_cluster(nodes: u32) -> Design {
    let shape = Shape::Cluster(Cluster {
        nodes,
        instance: "m5dn.12xlarge".to_string(),
        storage: ebs(12, "gp3", 1024.0),
        protection: Protection {
            data: nodes.saturating_sub(2),
            parity: 2,
        },
    });
    design(Product::Cairn, shape)
}

fn machine_values() -> MachineValues {
    MachineValues {
        name: "files".to_string(),
        user: "admin".to_string(),
        client_networks: vec!["10.0.0.0/8".to_string(), "192.0.2.7".to_string()],
        login: Some("10.0.0.7".to_string()),
        package: Package {
            url: "https://example.com/cairn.deb".to_string(),
            sha256: "0".repeat(64),
        },
        devices: Vec::new(),
    }
}

fn planned() -> DeployOptions {
    DeployOptions {
        planned: true,
        ..DeployOptions::default()
    }
}

#[test]
fn designs_have_a_template_or_a_reason() {
    let published = || published_server("eu-west-1");
    let san = |system| {
        design(
            Product::Cairn,
            Shape::SanArray(SanArray {
                systems: 2,
                system,
                host: None,
            }),
        )
    };
    let smb = DeployOptions {
        protocols: vec![Protocol::Nfs, Protocol::Smb],
        ..DeployOptions::default()
    };
    let with_s3 = DeployOptions {
        protocols: vec![Protocol::Nfs, Protocol::S3],
        ..DeployOptions::default()
    };
    let cases: &[(&str, Design, DeployOptions, Option<&str>)] = &[
        (
            "the published server",
            published(),
            DeployOptions::default(),
            None,
        ),
        (
            "one volume",
            cairn_server(ebs(1, "st1", 5000.0), 1, 0),
            DeployOptions::default(),
            None,
        ),
        (
            "no disks",
            cairn_server(ebs(0, "st1", 5000.0), 1, 0),
            DeployOptions::default(),
            Some("0 data disks"),
        ),
        (
            "64 disks",
            cairn_server(ebs(64, "gp3", 100.0), 16, 2),
            DeployOptions::default(),
            None,
        ),
        (
            "65 disks",
            cairn_server(ebs(65, "gp3", 100.0), 16, 2),
            DeployOptions::default(),
            Some("1 to 64"),
        ),
        (
            "a volume too large",
            cairn_server(ebs(1, "gp3", 16385.0), 1, 0),
            DeployOptions::default(),
            Some("16385 GiB"),
        ),
        (
            "no such type",
            cairn_server(ebs(1, "gp9", 100.0), 1, 0),
            DeployOptions::default(),
            Some("gp9"),
        ),
        (
            "a vendor's",
            design(Product::Vendor, published().shape),
            DeployOptions::default(),
            Some("vendor"),
        ),
        (
            "a cluster",
            cairn_cluster(6),
            DeployOptions::default(),
            None,
        ),
        ("a cluster with S3", cairn_cluster(6), with_s3, None),
        (
            "a cluster of two",
            cairn_cluster(2),
            planned(),
            Some("3 to 24"),
        ),
        ("SMB", published(), smb, Some("SMB")),
        (
            "a SAN array",
            san(SanSystem::Server(server_of(ebs(1, "gp3", 100.0), 1, 0))),
            DeployOptions::default(),
            None,
        ),
        (
            "a vendor's system in a SAN array",
            san(SanSystem::Ontap {
                ssd_bytes: Bytes::from_tib(1.0),
                iops: 1,
                mb_s: Rate::from_mb_s(1.0),
            }),
            planned(),
            Some("vendor"),
        ),
        (
            "a parallel file system",
            design(
                Product::Cairn,
                Shape::ParallelFs(ParallelFs::Servers {
                    servers: 2,
                    server: server_of(ebs(1, "gp3", 100.0), 1, 0),
                }),
            ),
            planned(),
            Some("spread over servers"),
        ),
    ];
    for (name, design, options, refused) in cases {
        for format in [
            Format::CloudFormation,
            Format::CloudFormationJson,
            Format::Terraform,
        ] {
            let got = render(design, options, format);
            match (got, refused) {
                (Ok(rendered), None) => assert!(!rendered.content.is_empty(), "{name}"),
                (Err(error), Some(word)) => {
                    assert!(error.to_string().contains(word), "{name}: {error}")
                }
                (got, want) => panic!("{name}: {got:?}, wanted {want:?}"),
            }
        }
    }
}

#[test]
fn yaml_and_json_say_the_same_and_keep_to_the_promises() {
    for design in [published_server("us-east-1"), cairn_cluster(4)] {
        let json = render(&design, &planned(), Format::CloudFormationJson)
            .unwrap()
            .content;
        let tree: serde_json::Value = serde_json::from_str(&json).unwrap();
        let resources = tree["Resources"].as_object().unwrap();
        let of_type = |kind: &str| -> Vec<&serde_json::Value> {
            resources
                .values()
                .filter(|each| each["Type"] == kind)
                .map(|each| &each["Properties"])
                .collect()
        };
        for template in of_type("AWS::EC2::LaunchTemplate") {
            let data = &template["LaunchTemplateData"];
            assert_eq!(data["MetadataOptions"]["HttpTokens"], "required");
            let devices = data["BlockDeviceMappings"].as_array().unwrap();
            assert!(devices.iter().all(|each| each["Ebs"]["Encrypted"] == true));
            assert_eq!(devices[0]["Ebs"]["VolumeSize"], 100);
        }
        assert!(
            of_type("AWS::EC2::Volume")
                .iter()
                .all(|each| each["Encrypted"] == true)
        );
        for group in of_type("AWS::EC2::SecurityGroup") {
            let rules = group["SecurityGroupIngress"]
                .as_array()
                .cloned()
                .unwrap_or_default();
            assert!(
                rules.iter().all(|each| each["CidrIp"] != "0.0.0.0/0"),
                "{group}"
            );
        }
        for role in of_type("AWS::IAM::Role") {
            let text = role["Policies"].to_string();
            assert!(
                !text.contains("\"ec2:*\"") && !text.contains("\"Action\":\"*\""),
                "{text}"
            );
        }
    }
}

#[test]
fn a_design_that_is_no_storage_type_is_one_of_its_own() {
    let mut design = cairn_server(ebs(4, "gp3", 1000.0), 2, 2);
    if let Shape::NfsServer(NfsServer {
        storage: Storage::Ebs { volume, .. },
        ..
    }) = &mut design.shape
    {
        volume.iops = Some(6000);
        volume.mib_s = Some(500);
    }
    let json = render(
        &design,
        &DeployOptions::default(),
        Format::CloudFormationJson,
    )
    .unwrap()
    .content;
    let tree: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(tree["Parameters"]["StorageType"]["Default"], "Planned");
    let types = &tree["Mappings"]["StorageTypes"];
    assert_eq!(types["Planned"]["VolumeGib"], 1000);
    // 2+2: what the name says is usable.
    assert_eq!(types["Medium-5TB"]["VolumeGib"], 2500);
    let volume = &tree["Resources"]["DataVolume4"]["Properties"];
    assert_eq!(volume["Iops"]["Fn::If"][1], 6000);
    assert_eq!(volume["Throughput"]["Fn::If"][1], 500);
    let published = render(
        &published_server("x"),
        &DeployOptions::default(),
        Format::CloudFormationJson,
    )
    .unwrap();
    let tree: serde_json::Value = serde_json::from_str(&published.content).unwrap();
    assert_eq!(
        tree["Parameters"]["StorageType"]["Default"],
        STORAGE_TYPE_DEFAULT
    );
    assert_eq!(
        tree["Parameters"]["StorageType"]["AllowedValues"]
            .as_array()
            .unwrap()
            .len(),
        STORAGE_TYPES.len()
    );
}

#[test]
fn the_volume_has_the_protection_that_was_planned() {
    let cases: &[(u32, u32, u32, &str, &str)] = &[
        (1, 1, 0, "main", ""),
        (2, 1, 1, "main", ""),
        (6, 4, 2, "main", ""),
        (6, 5, 1, "data", "+1n"),
        (6, 6, 0, "data", "none"),
        (3, 1, 1, "data", "2x"),
    ];
    for (disks, data, parity, volume, protection) in cases {
        let design = cairn_server(ebs(*disks, "gp3", 100.0), *data, *parity);
        let options = DeployOptions {
            machine: Some(machine_values()),
            ..DeployOptions::default()
        };
        let text = render(&design, &options, Format::CloudInit)
            .unwrap()
            .content;
        assert!(
            text.contains(&format!("CAIRN_VOLUME='{volume}'")),
            "{disks} {data}+{parity}"
        );
        assert!(
            text.contains(&format!("CAIRN_PROTECTION='{protection}'")),
            "{disks} {data}+{parity}"
        );
    }
}

#[test]
fn user_data_of_a_machine_needs_its_values() {
    let design = cairn_server(ebs(2, "gp3", 100.0), 1, 1);
    let check = |change: &dyn Fn(&mut MachineValues), refused: Option<&str>| {
        let mut values = machine_values();
        change(&mut values);
        let options = DeployOptions {
            machine: Some(values),
            ..DeployOptions::default()
        };
        match (render(&design, &options, Format::CloudInit), refused) {
            (Ok(got), None) => {
                assert!(got.content.starts_with("#cloud-config\n"));
                assert!(!got.content.contains(['\u{e000}', '\u{e001}']));
            }
            (Err(error), Some(word)) => assert!(error.to_string().contains(word), "{error}"),
            (got, want) => panic!("{got:?}, wanted {want:?}"),
        }
    };
    check(&|_| {}, None);
    check(
        &|it| it.devices = vec!["/dev/sdb".into(), "/dev/disk/by-id/x_1".into()],
        None,
    );
    check(
        &|it| it.devices = vec!["/dev/sdb".into()],
        Some("1 devices"),
    );
    check(
        &|it| it.devices = vec!["/dev/sdb".into(), "/dev/$(id)".into()],
        Some("a device"),
    );
    check(&|it| it.client_networks = vec![], Some("client network"));
    check(
        &|it| it.client_networks = vec!["10.0.0.0/8' rm".into()],
        Some("client network"),
    );
    check(
        &|it| it.client_networks = vec!["::1".into(); 65],
        Some("65 client networks"),
    );
    check(&|it| it.login = None, None);
    check(&|it| it.login = Some("me".into()), Some("login node"));
    for everyone in ["0.0.0.0/0", "10.0.0.0/8", "::/0"] {
        check(&|it| it.login = Some(everyone.into()), Some("login node"));
    }
    check(
        &|it| it.client_networks = vec!["0.0.0.0/0".into()],
        Some("client network"),
    );
    check(&|it| it.name = "A'".into(), Some("cluster name"));
    check(&|it| it.user = "a\nb".into(), Some("a user"));
    let refused = render(&design, &DeployOptions::default(), Format::CloudInit).unwrap_err();
    assert!(
        refused.to_string().contains("cloud-init needs"),
        "{refused}"
    );
    assert!(render(&cairn_cluster(4), &planned(), Format::CloudInit).is_err());
}

#[test]
fn a_client_is_told_all_it_needs() {
    let check = |change: &dyn Fn(&mut ClientValues), refused: Option<&str>| {
        let mut values = ClientValues {
            server: "10.0.0.7".to_string(),
            volume: "main".to_string(),
            mount_point: "/mnt/files".to_string(),
            nconnect: NCONNECT_DEFAULT,
        };
        change(&mut values);
        match (client(&values), refused) {
            (Ok(got), None) => assert!(got.content.contains("CAIRN_SERVER='")),
            (Err(error), Some(word)) => assert!(error.to_string().contains(word), "{error}"),
            (got, want) => panic!("{got:?}, wanted {want:?}"),
        }
    };
    check(&|_| {}, None);
    check(&|it| it.nconnect = 16, None);
    check(&|it| it.nconnect = 17, Some("17 connections"));
    check(&|it| it.nconnect = 0, Some("0 connections"));
    check(&|it| it.server = "a b".into(), Some("a server"));
    check(&|it| it.mount_point = "/".into(), Some("a mount point"));
    check(&|it| it.volume = "../x".into(), Some("a volume"));
}

#[test]
fn formats_are_named() {
    for (name, format) in Format::ALL {
        assert_eq!(name.parse::<Format>(), Ok(format));
        assert_eq!(format.to_string(), name);
    }
    assert!("pulumi".parse::<Format>().is_err());
}
