//! Numbers that nobody plans with: they are refused with what they break, and nothing ends in a panic.

use std::sync::LazyLock;

use cairn_plan::candidates::candidates;
use cairn_plan::catalog::Catalog;
use cairn_plan::check::{self, Config, parse};
use cairn_plan::design::{
    CloudVolumes, Cluster, Design, Elastic, NfsServer, ParallelFs, Product, Protection, SanArray,
    SanSystem, Shape, Storage, Volume,
};
use cairn_plan::evaluate::evaluate;
use cairn_plan::goal::{Goal, GoalError};
use cairn_plan::rank::{RankError, rank};
use cairn_plan::units::{Bytes, Rate};
use cairn_plan::whatif::{self, Change};
use proptest::prelude::*;

static CATALOG: LazyLock<Catalog> = LazyLock::new(Catalog::embedded);

/// Counts: usual ones, at the bounds, and those whose products no longer fit.
fn count() -> impl Strategy<Value = u32> {
    prop_oneof![
        0..20_u32,
        Just(10_000),
        Just(10_001),
        Just(65_536),
        Just(250_000_000),
        Just(u32::MAX - 1),
        Just(u32::MAX),
    ]
}

fn iops() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0), Just(3000), Just(1 << 53), Just(u64::MAX)]
}

fn bytes() -> impl Strategy<Value = Bytes> {
    let sizes = prop_oneof![
        Just(0.0),
        Just(1.0),
        Just(1e12),
        Just(14.2 * 1024.0 * 1024.0 * 1024.0 * 1024.0),
        Just(u64::MAX as f64),
        Just(1e36),
    ];
    sizes.prop_map(Bytes::new)
}

fn protection() -> impl Strategy<Value = Protection> {
    (count(), count()).prop_map(|(data, parity)| Protection { data, parity })
}

fn instance() -> impl Strategy<Value = String> {
    let names = prop_oneof![
        Just("m5dn.12xlarge"),
        Just("i3en.3xlarge"),
        Just("none.such"),
        Just("")
    ];
    names.prop_map(str::to_owned)
}

fn storage() -> impl Strategy<Value = Storage> {
    let types = prop_oneof![Just("gp3"), Just("st1"), Just("io2"), Just("no-type")];
    let provisioned = (prop::option::of(iops()), prop::option::of(count()));
    let ebs = (count(), types, bytes(), provisioned).prop_map(
        |(volumes, volume_type, size_bytes, (iops, mib_s))| Storage::Ebs {
            volumes,
            volume: Volume {
                volume_type: volume_type.to_owned(),
                size_bytes,
                iops,
                mib_s,
            },
        },
    );
    let local = (count(), bytes())
        .prop_map(|(disks, disk_bytes)| Storage::InstanceStore { disks, disk_bytes });
    prop_oneof![ebs, local]
}

fn server() -> impl Strategy<Value = NfsServer> {
    (instance(), storage(), protection()).prop_map(|(instance, storage, protection)| NfsServer {
        instance,
        storage,
        protection,
    })
}

fn shape() -> impl Strategy<Value = Shape> {
    let cluster = (count(), instance(), storage(), protection()).prop_map(
        |(nodes, instance, storage, protection)| {
            Shape::Cluster(Cluster {
                nodes,
                instance,
                storage,
                protection,
            })
        },
    );
    let servers = (count(), server()).prop_map(|(systems, server)| {
        Shape::SanArray(SanArray {
            systems,
            system: SanSystem::Server(server),
            host: None,
        })
    });
    let ontap = (count(), bytes(), iops(), bytes()).prop_map(|(systems, ssd_bytes, iops, rate)| {
        Shape::SanArray(SanArray {
            systems,
            system: SanSystem::Ontap {
                ssd_bytes,
                iops,
                mb_s: Rate::from_bytes_s(rate.get()),
            },
            host: Some("m5dn.12xlarge".to_owned()),
        })
    });
    let lustre = bytes().prop_map(|capacity_bytes| {
        Shape::ParallelFs(ParallelFs::Lustre {
            level: "persistent-12".to_owned(),
            capacity_bytes,
            ssd_read_cache: true,
        })
    });
    let parallel = (count(), server())
        .prop_map(|(servers, server)| Shape::ParallelFs(ParallelFs::Servers { servers, server }));
    let service = (count(), bytes()).prop_map(|(volumes, quota_bytes)| {
        Shape::CloudVolumes(CloudVolumes::Service {
            level: "premium".to_owned(),
            volumes,
            quota_bytes,
        })
    });
    let spread = (count(), server()).prop_map(|(servers, server)| {
        Shape::CloudVolumes(CloudVolumes::Servers { servers, server })
    });
    let efs = (bytes(), prop::option::of(count())).prop_map(|(capacity_bytes, mib_s)| {
        Shape::Elastic(Elastic::Efs {
            level: "regional".to_owned(),
            capacity_bytes,
            mib_s,
        })
    });
    prop_oneof![
        4 => cluster,
        2 => server().prop_map(Shape::NfsServer),
        1 => servers,
        1 => ontap,
        1 => lustre,
        1 => parallel,
        1 => service,
        1 => spread,
        1 => efs,
    ]
}

fn design() -> impl Strategy<Value = Design> {
    let products = prop_oneof![Just(Product::Vendor), Just(Product::Cairn)];
    (products, shape()).prop_map(|(product, shape)| Design {
        product,
        region: "us-east-1".to_owned(),
        shape,
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, max_shrink_iters: 32, ..ProptestConfig::default() })]

    #[test]
    fn no_configuration_ends_in_a_panic(design in design()) {
        let config = Config { design, different: Vec::new() };
        let checked = check::check(&CATALOG, &config);
        // What breaks a rule is told, and what is advised instead breaks none.
        let evaluated = evaluate(&CATALOG, &config.design);
        prop_assert!(!checked.violations.is_empty() || checked.unknown.is_some() || evaluated.is_ok());
        if let Some(nearest) = &checked.nearest {
            prop_assert!(check::violations(&CATALOG, nearest).is_empty());
        }
        let _ = whatif::grow(&CATALOG, &config.design);
        for factor in [0.0, 0.5, 1e6, f64::INFINITY] {
            let _ = whatif::scaled(&CATALOG, &config.design, factor);
        }
        let _ = whatif::neighbours(&CATALOG, &config.design);
        for change in [Change::Nodes(i32::MAX), Change::Nodes(i32::MIN), Change::Volumes(u32::MAX)] {
            let _ = whatif::whatif(&CATALOG, &config.design, &[change]);
        }
    }
}

/// As it was found: the paper's cluster with nodes whose volumes are more than a number holds.
#[test]
fn a_cluster_of_too_many_nodes_is_refused_with_the_number() {
    let text = |nodes: u32| {
        format!(
            "product = \"vendor\"\nregion = \"us-east-1\"\n[shape]\nfamily = \"cluster\"\nnodes = {nodes}\n\
             instance = \"m5dn.12xlarge\"\n[shape.storage]\nstorage = \"ebs\"\nvolumes = 20\n\
             [shape.storage.volume]\nvolume_type = \"gp3\"\nsize_bytes = \"1TiB\"\n\
             [shape.protection]\ndata = 4\nparity = 2\n"
        )
    };
    for nodes in [250_000_000, u32::MAX] {
        let config = parse("cluster.toml", &text(nodes)).unwrap();
        let checked = check::check(&CATALOG, &config);
        let told: Vec<&str> = checked.violations.iter().map(|it| &*it.words).collect();
        let wanted = format!("{nodes} nodes, not 1 to 10,000");
        assert!(told.contains(&&*wanted), "{told:?}");
    }
    let refused = parse(
        "cluster.toml",
        &text(6).replace("nodes = 6", "nodes = 99999999999"),
    );
    assert!(refused.is_err());
}

#[test]
fn goals_beyond_all_plans_are_refused_with_their_flag() {
    let goal = || Goal::capacity(Bytes::from_tib(1.0), "us-east-1");
    let cases: [(&str, Goal); 9] = [
        (
            "--capacity",
            Goal {
                capacity_bytes: Bytes::new(1e36),
                ..goal()
            },
        ),
        (
            "--capacity",
            Goal {
                capacity_bytes: Bytes::new(1e20),
                growth_per_year: 9.0,
                years: 10,
                ..goal()
            },
        ),
        (
            "--growth",
            Goal {
                growth_per_year: f64::INFINITY,
                years: 1,
                ..goal()
            },
        ),
        (
            "--read",
            Goal {
                read_mb_s: Some(Rate::from_mb_s(1e30)),
                ..goal()
            },
        ),
        (
            "--write",
            Goal {
                write_mb_s: Some(Rate::from_mb_s(1e30)),
                ..goal()
            },
        ),
        (
            "--iops",
            Goal {
                iops: Some(u64::MAX),
                ..goal()
            },
        ),
        (
            "--write-iops",
            Goal {
                write_iops: Some(u64::MAX),
                ..goal()
            },
        ),
        (
            "--survive",
            Goal {
                survive: u32::MAX,
                ..goal()
            },
        ),
        (
            "--namespaces",
            Goal {
                namespaces: u32::MAX,
                ..goal()
            },
        ),
    ];
    for (wanted, goal) in cases {
        match goal.check() {
            Err(GoalError::TooMuch { flag, .. }) => assert_eq!(flag, wanted),
            other => panic!("{wanted}: {other:?}"),
        }
        // Designs are made for none of them; a caller that makes some all the same ends in no panic.
        let _ = candidates(&CATALOG, &goal);
        assert!(
            matches!(rank(&CATALOG, &goal), Err(RankError::Goal(_))),
            "{wanted}"
        );
    }
    assert_eq!(goal().check(), Ok(()));
}
