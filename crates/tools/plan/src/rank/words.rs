//! Why a design ranks where it does, and what it misses.
//!
//! Owns: the words. Must not know: the order.

use super::*;

pub(super) fn broken(
    catalog: &Catalog,
    goal: &Goal,
    it: &Evaluation,
    name: &'static str,
) -> Broken {
    let performance = &it.performance;
    let rate = |what: &str, got: Rate, wanted: Option<Rate>, by: &Bottleneck| {
        (
            format!(
                "{what} {got} of the {} asked for; limited by {}: {}",
                wanted.unwrap_or_default(),
                by.name,
                by.words
            ),
            by.rules.clone(),
        )
    };
    let limits = &catalog.designs.nfs_server;
    let paper_server = it.design.is_paper_server();
    let (words, rules) = match name {
        SOLD => (
            catalog.designs.cloud_volumes.withdrawn.clone(),
            vec![rules::CVS_LEVEL],
        ),
        "namespaces" => (
            format!(
                "{} separate name spaces, each with its own mount and its own free space, of the {} asked for",
                namespaces(&it.design),
                goal.namespaces
            ),
            Vec::new(),
        ),
        "read"
            if performance.cached_when.is_some()
                && it.design.shape.family() == Family::ParallelFs
                && it.design.product == Product::Vendor =>
        {
            (
                format!(
                    "reads {} of the {} asked for from its disks; the cache counts where --hot fits into it",
                    read_rate(goal, it),
                    goal.read_mb_s.unwrap_or_default()
                ),
                vec![rules::LUSTRE_DISK, rules::LUSTRE_CACHE],
            )
        }
        "read" => rate(
            "reads",
            read_rate(goal, it),
            goal.read_mb_s,
            &performance.seq_read.bottleneck,
        ),
        "write" => rate(
            "writes",
            performance.seq_write.sustained(),
            goal.write_mb_s,
            &performance.seq_write.bottleneck,
        ),
        "iops" => (
            format!(
                "{} random reads per second of the {} asked for; limited by {}",
                number(performance.random_read.steady_iops),
                number(goal.iops.unwrap_or(0) as f64),
                performance.random_read.bottleneck.words
            ),
            performance.random_read.bottleneck.rules.clone(),
        ),
        "write-iops" => (
            format!(
                "{} random writes per second of the {} asked for; limited by {}",
                number(performance.random_write.steady_iops),
                number(goal.write_iops.unwrap_or(0) as f64),
                performance.random_write.bottleneck.words
            ),
            performance.random_write.bottleneck.rules.clone(),
        ),
        "latency" => match latency_ms(catalog, &it.design) {
            Some((least, rule)) => (
                format!(
                    "a random operation takes {} ms or more, of the {} ms at most{}",
                    number(least),
                    number(goal.latency_bound_ms().unwrap_or_default()),
                    match goal.latency_ms {
                        Some(_) => " asked for",
                        None => " that such work is planned with (--latency sets another)",
                    }
                ),
                vec![rule],
            ),
            None => (
                "its latency is unknown: no figure is stated".to_owned(),
                Vec::new(),
            ),
        },
        "clients" if goal.clients.is_none() => (
            "one host uses the array: say --clients 1, or --protocols iscsi, if that is meant"
                .to_owned(),
            vec![rules::SAN_STRIPE],
        ),
        "clients" if paper_server => (
            format!(
                "rule of thumb: fewer than {} clients for one NFS server",
                limits.clients_below
            ),
            vec![rules::NFS_CLIENTS],
        ),
        "clients" if it.design.shape.family() == Family::Elastic => (
            format!(
                "one client gets at most {} MiB/s; {} clients are too few for {}",
                number(catalog.designs.elastic.efs_client_mib_s),
                goal.clients.unwrap_or(0),
                fastest_asked(goal)
            ),
            vec![rules::EFS_CLIENT],
        ),
        "clients" => (
            "one host mounts the file system on the array".to_owned(),
            vec![rules::SAN_STRIPE],
        ),
        "protocols" if goal.protocols.is_empty() => (
            "an object store, not a file system: say --protocols s3, if that is meant".to_owned(),
            vec![rules::S3_OBJECTS],
        ),
        "protocols" => (
            format!("does not serve {}", protocol_names(&goal.protocols)),
            Vec::new(),
        ),
        "survive" => (
            format!("survives {}, not any {}", it.survives_words, goal.survive),
            it.survives.rules.clone(),
        ),
        KEPT => (
            "an archive or a database has to outlive a stop of all its servers; instance store does not"
                .to_owned(),
            vec![rules::STORE_LOST],
        ),
        "availability" => (
            match it.reliability.availability {
                Availability::Single => "the service stops with its one server".to_owned(),
                _ => "the service is in one zone and stops with it".to_owned(),
            },
            it.reliability.rules.clone(),
        ),
        "budget" => (
            format!(
                "costs {} a month, more than {}",
                it.cost.month_usd,
                goal.budget_month_usd.unwrap_or_default()
            ),
            it.cost.rules.clone(),
        ),
        _ if paper_server && goal.capacity_planned().tib() >= limits.capacity_below_tib => (
            format!(
                "rule of thumb: less than {} TiB for one NFS server",
                number(limits.capacity_below_tib)
            ),
            vec![rules::NFS_CAPACITY],
        ),
        _ => (
            format!(
                "holds {} of the {} asked for",
                it.capacity.usable_bytes.value,
                goal.capacity_planned()
            ),
            it.capacity.usable_bytes.rules.clone(),
        ),
    };
    let thumb = paper_server
        && matches!(name, "read" | "write")
        && [goal.read_mb_s, goal.write_mb_s]
            .into_iter()
            .flatten()
            .any(|rate| rate.mb_s() >= limits.throughput_below_gb_s * 1000.0);
    let (words, rules) = if thumb {
        let words = format!(
            "{words} (rule of thumb: below {} GB/s for one NFS server)",
            number(limits.throughput_below_gb_s)
        );
        (words, [rules, vec![rules::NFS_THROUGHPUT]].concat())
    } else {
        (words, rules)
    };
    Broken {
        goal: name,
        words,
        rules,
    }
}

fn protocol_names(protocols: &[Protocol]) -> String {
    let names: Vec<&str> = protocols
        .iter()
        .map(|protocol| match protocol {
            Protocol::Nfs => "nfs",
            Protocol::Smb => "smb",
            Protocol::S3 => "s3",
            Protocol::Iscsi => "iscsi",
            Protocol::Lustre => "lustre",
        })
        .collect();
    names.join(", ")
}

pub(super) fn why(
    catalog: &Catalog,
    goal: &Goal,
    before: Option<&Evaluation>,
    it: &Evaluation,
) -> String {
    let month = it.cost.month_usd;
    let Some(before) = before else {
        let mut words = if it.available || goal.include_planned {
            let per = if per_operation(goal) {
                " of a random operation"
            } else {
                ""
            };
            let of = if per_operation(goal) {
                format!(
                    "what fits for at most {} times the least",
                    number(COST_TIMES_MAX)
                )
            } else {
                "all that fit".to_owned()
            };
            format!("the lowest cost{per} of {of}, {month} a month")
        } else {
            format!(
                "nothing that works today fits; of what is planned this costs least, {month} a month"
            )
        };
        if goal.survive == 0 && it.survives.value == 0 {
            words += &format!(
                "; it keeps nothing when a part fails: {}",
                it.reliability.loss_words
            );
        }
        if it.design.shape.family() == Family::NfsServer {
            words += &format!("; {}", rule_of_thumb(catalog, goal));
        }
        return words;
    };
    if before.available && !it.available && !goal.include_planned {
        return format!(
            "needs {}, which this version of Cairn does not have; costs {month} a month",
            it.needs.join(" and ")
        );
    }
    let more = month.0 - before.cost.month_usd.0;
    let percent = more / before.cost.month_usd.0.max(f64::MIN_POSITIVE) * 100.0;
    let mut words = if more.abs() < 0.005 {
        "costs the same".to_owned()
    } else if more < 0.0 {
        format!("costs {} a month less, but more per operation", Usd(-more))
    } else {
        format!(
            "costs {} a month more ({}%)",
            Usd(more),
            number(percent.round())
        )
    };
    let faster = |name: &str, left: f64, right: f64| {
        (right > left * 1.1).then(|| {
            format!(
                "{name} {} times as fast",
                number((right / left * 10.0).round() / 10.0)
            )
        })
    };
    let gains: Vec<String> = [
        faster(
            "reads",
            before.performance.uncached().sustained().mb_s(),
            it.performance.uncached().sustained().mb_s(),
        ),
        faster(
            "writes",
            before.performance.seq_write.sustained().mb_s(),
            it.performance.seq_write.sustained().mb_s(),
        ),
        (it.survives.value > before.survives.value)
            .then(|| format!("survives {}", it.survives_words)),
    ]
    .into_iter()
    .flatten()
    .collect();
    if !gains.is_empty() {
        words += &format!("; {}", gains.join(", "));
    }
    words
}

/// Which of the paper's three rules hold, with the goal's numbers.
fn rule_of_thumb(catalog: &Catalog, goal: &Goal) -> String {
    let limits = &catalog.designs.nfs_server;
    let capacity = goal.capacity_planned();
    let rate = goal
        .read_mb_s
        .unwrap_or_default()
        .mb_s()
        .max(goal.write_mb_s.unwrap_or_default().mb_s());
    let rules = [
        (
            capacity.tib() < limits.capacity_below_tib,
            format!("below {} TiB", number(limits.capacity_below_tib)),
        ),
        (
            rate < limits.throughput_below_gb_s * 1000.0,
            format!("below {} GB/s", number(limits.throughput_below_gb_s)),
        ),
        (
            goal.clients.unwrap_or(0) < limits.clients_below,
            format!("fewer than {} clients", limits.clients_below),
        ),
    ];
    let of = |wanted: bool| {
        let rules: Vec<&str> = rules
            .iter()
            .filter(|(holds, _)| *holds == wanted)
            .map(|(_, rule)| rule.as_str())
            .collect();
        rules.join(", ")
    };
    if rules.iter().all(|(holds, _)| *holds) {
        format!(
            "one NFS server is enough, by the rules of thumb: {}",
            of(true)
        )
    } else {
        format!(
            "beyond the rules of thumb of 2016 for one server ({}), which today's larger instances carry",
            of(false)
        )
    }
}
