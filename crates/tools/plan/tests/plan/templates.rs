//! Writes templates of all kinds to `plan-templates` in the folder for tests' files, where
//! scripts/test-plan looks at them with the tools of their makers.

use std::fs;
use std::path::Path;

use cairn_plan::deploy::{
    ClientValues, DeployOptions, Format, MachineValues, Package, client, published_server, render,
};
use cairn_plan::design::{Cluster, Design, NfsServer, Product, Protection, Shape, Storage, Volume};
use cairn_plan::report::Protocol;
use cairn_plan::units::Bytes;

fn server(instance: &str, storage: Storage, data: u32, parity: u32) -> Design {
    Design {
        product: Product::Cairn,
        region: "us-east-1".to_string(),
        shape: Shape::NfsServer(NfsServer {
            instance: instance.to_string(),
            storage,
            protection: Protection { data, parity },
        }),
    }
}

fn gp3(volumes: u32, tib: f64) -> Storage {
    Storage::Ebs {
        volumes,
        volume: Volume {
            volume_type: "gp3".to_string(),
            size_bytes: Bytes::from_tib(tib),
            iops: Some(6000),
            mib_s: Some(300),
        },
    }
}

fn cluster(nodes: u32) -> Design {
    Design {
        product: Product::Cairn,
        region: "us-east-1".to_string(),
        shape: Shape::Cluster(Cluster {
            nodes,
            instance: "m5dn.12xlarge".to_string(),
            storage: gp3(12, 1.0),
            protection: Protection {
                data: nodes - 2,
                parity: 2,
            },
        }),
    }
}

#[test]
fn templates_are_written() {
    let local = Storage::InstanceStore {
        disks: 6,
        disk_bytes: Bytes::from_gb(2000.0),
    };
    let designs = [
        ("published", published_server("us-east-1")),
        ("one-volume", server("m6i.large", gp3(1, 2.0), 1, 0)),
        ("widest", server("m6i.16xlarge", gp3(18, 16.0), 16, 2)),
        ("other-protection", server("m6i.4xlarge", gp3(6, 1.0), 5, 1)),
        ("instance-store", server("d3.2xlarge", local, 4, 2)),
        ("cluster-4", cluster(4)),
        ("cluster-18", cluster(18)),
    ];
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("plan-templates");
    // What an earlier version wrote is not looked at again.
    if folder.exists() {
        fs::remove_dir_all(&folder).unwrap();
    }
    let options = DeployOptions {
        planned: false,
        protocols: vec![Protocol::Nfs],
        machine: Some(MachineValues {
            name: "files".to_string(),
            user: "cairn-admin".to_string(),
            client_networks: vec!["10.0.0.0/8".to_string(), "127.0.0.0/8".to_string()],
            login: None,
            package: Package {
                url: "https://example.com/cairn.deb".to_string(),
                sha256: "0".repeat(64),
            },
            devices: Vec::new(),
        }),
    };
    for (name, design) in &designs {
        for (_, format) in Format::ALL {
            let is_cluster = matches!(design.shape, Shape::Cluster(_));
            if format == Format::CloudInit && is_cluster {
                continue;
            }
            let rendered = render(design, &options, format).unwrap();
            let file = folder.join(name).join(rendered.file_name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, rendered.content).unwrap();
            let is_planned = |each: &String| each.contains("planned");
            assert!(!rendered.notices.iter().any(is_planned), "{name}");
        }
    }
    let values = ClientValues {
        server: "10.0.0.7".to_string(),
        volume: "main".to_string(),
        mount_point: "/mnt/files".to_string(),
        nconnect: 8,
    };
    let rendered = client(&values).unwrap();
    fs::write(folder.join(rendered.file_name), rendered.content).unwrap();
}
