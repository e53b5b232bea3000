//! A SAN array: file systems that serve LUNs, striped by the host.
//!
//! Owns: how the rules combine for this family. Must not know: the other families, prices but by name.

use super::*;
use crate::report::{Bottleneck, Limit, Throughput};

/// The array behind its host: all that is read and written crosses the network of that one machine.
pub(super) fn san_array<'a>(
    catalog: &Catalog,
    book: &'a PriceBook,
    it: &SanArray,
    detail: Detail,
) -> Result<Parts<'a>, EvaluateError> {
    let mut parts = array(catalog, book, it, detail)?;
    let host = match &it.host {
        Some(name) => {
            parts.costing.instances(name, 1)?;
            Some(catalog.instance(name)?)
        }
        None => {
            let known = catalog.instances.values().filter(|it| !it.previous);
            known.max_by(|left, right| {
                let [left, right] = [left, right].map(|it| it.network().steady.mb_s());
                left.total_cmp(&right)
            })
        }
    };
    let Some(host) = host else {
        return Ok(parts);
    };
    let network = host.network();
    let performance = &mut parts.performance;
    for of in [&mut performance.seq_read, &mut performance.seq_write] {
        behind(of, network, &host.name, detail);
    }
    for of in [&mut performance.random_read, &mut performance.random_write] {
        let most = network.steady.bytes_s() / RANDOM_BYTES;
        of.steady_iops = of.steady_iops.min(most.floor());
        of.burst_iops = of
            .burst_iops
            .min((network.burst.bytes_s() / RANDOM_BYTES).floor());
        of.burst_iops = of.burst_iops.max(of.steady_iops);
        for end in &mut of.range_iops {
            *end = end.min(most.floor());
        }
        if detail == Detail::Words {
            let limit = host_limit(&host.name, most, "/ 4 KiB", network.steady);
            bottleneck(&mut of.bottleneck, limit, "IOPS");
        }
    }
    match &it.host {
        Some(_) => parts.costing.without("data transfer"),
        None => {
            parts.costing.without(
                "the host that stripes over the array (--host prices it), and data transfer",
            );
            parts.notes.push(format!(
                "no host is planned: rates are bound by the network of the fastest, {} with {} Gb/s",
                host.name,
                number(network.steady.gbit_s())
            ));
        }
    }
    Ok(parts)
}

fn host_limit(host: &str, value: f64, what: &str, network: Rate) -> Limit {
    Limit {
        name: "network of the host".to_owned(),
        value,
        range: rules::NETWORK_INSTANCE.spread().map(|it| it * value),
        known: Known::Documented,
        words: format!("{host}: {} Gb/s {what}", number(network.gbit_s())),
        rule: rules::SAN_CLIENT,
    }
}

fn behind(of: &mut Throughput, network: Band<Rate>, host: &str, detail: Detail) {
    of.steady_mb_s = of.steady_mb_s.min(network.steady);
    of.burst_mb_s = of.burst_mb_s.min(network.burst);
    for (end, factor) in of
        .range_mb_s
        .iter_mut()
        .zip(rules::NETWORK_INSTANCE.spread())
    {
        *end = end.min(network.steady.times(factor));
    }
    if detail == Detail::Words {
        let limit = |rate: Rate| host_limit(host, rate.mb_s(), "/ 8", rate);
        bottleneck(&mut of.bottleneck, limit(network.steady), "MB/s");
        bottleneck(&mut of.bottleneck_burst, limit(network.burst), "MB/s");
    }
}

/// Puts one more limit among those of a figure.
fn bottleneck(of: &mut Bottleneck, limit: Limit, unit: &str) {
    let also = of.rules.split_off(1.min(of.rules.len()));
    of.limits.push(limit);
    of.limits
        .sort_by(|left, right| left.value.total_cmp(&right.value));
    let [first, next, ..] = of.limits.as_slice() else {
        return;
    };
    of.rules = vec![first.rule];
    of.rules.extend(also);
    of.name = first.name.clone();
    of.words = format!(
        "{} = {} {unit}; next is {} with {} {unit}",
        first.words,
        number(first.value.round()),
        next.name,
        number(next.value.round())
    );
}

fn array<'a>(
    catalog: &Catalog,
    book: &'a PriceBook,
    it: &SanArray,
    detail: Detail,
) -> Result<Parts<'a>, EvaluateError> {
    check_count(it.systems, "systems")?;
    let (ssd, iops_each, rate) = match &it.system {
        SanSystem::Server(server) => return servers(catalog, book, it.systems, server, detail),
        SanSystem::Ontap {
            ssd_bytes,
            iops,
            mb_s,
        } => (*ssd_bytes, *iops, *mb_s),
    };
    let of = &catalog.designs.san_array;
    let size = of.ssd_tb_min..=of.ssd_tb_max;
    if it.systems > of.systems_max
        || !size.contains(&(ssd.get() / 1e12))
        || iops_each > of.iops_max
        || rate.mb_s() > of.throughput_gb_s_max * 1024.0
    {
        return Err(invalid(format!(
            "an array is at most {} file systems of {} to {} TB SSD, {} IOPS and {} GB/s each",
            of.systems_max, of.ssd_tb_min, of.ssd_tb_max, of.iops_max, of.throughput_gb_s_max
        )));
    }
    let count = f64::from(it.systems);
    let (mut read, mut write, mut random) = (
        Limits::new(detail),
        Limits::new(detail),
        Limits::new(detail),
    );
    read.rate(
        "throughput capacity",
        rate.times(count),
        rules::SAN_THROUGHPUT,
        || format!("{} systems x {rate}", it.systems),
    );
    let each = rate.min(Rate::from_mb_s(of.write_mb_s_max));
    write.rate(
        "throughput capacity",
        rate.times(count),
        rules::SAN_THROUGHPUT,
        || format!("{} systems x {rate}", it.systems),
    );
    write.rate(
        "writes copied to the partner",
        each.times(count),
        rules::SAN_WRITE,
        || format!("{} systems x {each}", it.systems),
    );
    random.iops(
        "SSD IOPS",
        iops_each as f64 * count,
        rules::SAN_IOPS,
        || format!("{} systems x {iops_each} IOPS", it.systems),
    );
    random.iops(
        "throughput capacity",
        rate.bytes_s() * count / RANDOM_BYTES,
        rules::SAN_THROUGHPUT,
        || format!("{} systems x {rate} / 4 KiB", it.systems),
    );
    let mut random_write = random.clone();
    random_write.iops(
        "writes copied to the partner",
        each.bytes_s() * count / RANDOM_BYTES,
        rules::SAN_WRITE,
        || format!("{} systems x {each} / 4 KiB", it.systems),
    );
    let prices = book.ontap()?;
    let mut costing = Costing::new(book, catalog.today);
    let extra = iops_each as f64 - prices.iops_per_gib_included * ssd.gib();
    let month = prices.usd_per_gb_month * ssd.gib()
        + prices.usd_per_iops_month * extra.max(0.0)
        + prices.usd_per_mb_s_month * rate.mb_s();
    costing.service(
        "FSx for NetApp ONTAP file system".to_owned(),
        count,
        Usd(month * count),
        book.from(&prices.of, &prices.date),
    );
    let performance = Performance::without_cache(
        throughput(read.clone(), read, &[rules::SAN_STRIPE]),
        throughput(write.clone(), write, &[rules::SAN_STRIPE]),
        iops(random.clone(), random, &[rules::SAN_STRIPE]),
        iops(random_write.clone(), random_write, &[rules::SAN_STRIPE]),
    );
    Ok(Parts {
        capacity: service_capacity(ssd.times(count)),
        performance,
        costing,
        survives: figure(1, &[rules::SERVICE_REDUNDANCY]),
        survives_words: "one server of each system's pair; losing a whole system loses the array"
            .to_owned(),
        notes: vec![
            "one host uses the array; its network carries all of it".to_owned(),
            "random reads that its memory or NVMe caches answer come on top of the SSD IOPS"
                .to_owned(),
        ],
    })
}
