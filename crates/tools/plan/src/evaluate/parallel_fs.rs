//! A parallel file system, whose rates are bought with its capacity.
//!
//! Owns: how the rules combine for this family. Must not know: the other families, prices but by name.

use super::*;
use crate::catalog::lustre_tib;

pub(super) fn parallel_fs<'a>(
    catalog: &Catalog,
    book: &'a PriceBook,
    it: &ParallelFs,
    detail: Detail,
) -> Result<Parts<'a>, EvaluateError> {
    let (level, capacity, cached) = match it {
        ParallelFs::Servers {
            servers: count,
            server,
        } => return servers(catalog, book, *count, server, detail),
        ParallelFs::Lustre {
            level,
            capacity_bytes,
            ssd_read_cache,
        } => (
            catalog.lustre_level(level)?,
            *capacity_bytes,
            *ssd_read_cache,
        ),
    };
    // The service states its rates by a TiB of 1,000 GiB, in which its sizes are round.
    let tib = lustre_tib(capacity);
    let of = &catalog.designs.parallel_fs;
    let cache_tib = tib * of.cache_share;
    let rate = |limits: &mut Limits, name: &str, size: f64, each: f64, rule, what: &str| {
        limits.rate(name, Rate::from_mb_s(size * each), rule, || {
            format!("{} TiB{what} x {} MB/s", number(size), number(each))
        });
    };
    let band = |steady: f64, burst: f64, disk: f64, disk_burst: f64| {
        let mut limits = Band {
            steady: Limits::new(detail),
            burst: Limits::new(detail),
        };
        for (limits, network, disk) in [
            (&mut limits.steady, steady, disk),
            (&mut limits.burst, burst, disk_burst),
        ] {
            rate(
                limits,
                "network of the servers",
                tib,
                network,
                rules::LUSTRE_NETWORK,
                "",
            );
            rate(limits, "disks", tib, disk, rules::LUSTRE_DISK, "");
        }
        limits
    };
    let write = band(
        level.network_mb_s_per_tib,
        level.network_burst_mb_s_per_tib,
        level.disk_mb_s_per_tib,
        level.disk_burst_write_mb_s_per_tib,
    );
    let uncached = band(
        level.network_mb_s_per_tib,
        level.network_burst_mb_s_per_tib,
        level.disk_mb_s_per_tib,
        level.disk_burst_read_mb_s_per_tib,
    );
    let mut cached_band = Band {
        steady: Limits::new(detail),
        burst: Limits::new(detail),
    };
    for (limits, network, burst) in [
        (
            &mut cached_band.steady,
            level.cache_network_mb_s_per_tib,
            false,
        ),
        (
            &mut cached_band.burst,
            level.cache_network_burst_mb_s_per_tib,
            true,
        ),
    ] {
        rate(
            limits,
            "network of the cache",
            cache_tib,
            network,
            rules::LUSTRE_CACHE,
            " of cache",
        );
        // A burst is answered by the cache servers' memory too: only their network limits it.
        if !burst {
            let disk = of.cache_disk_mb_s_per_tib;
            rate(
                limits,
                "disks of the cache",
                cache_tib,
                disk,
                rules::LUSTRE_CACHE,
                " of cache",
            );
        }
    }
    let uncached_read =
        cached.then(|| throughput(uncached.steady.clone(), uncached.burst.clone(), &[]));
    let read = if cached {
        cached_band.clone()
    } else {
        uncached
    };
    let random = |band: &Band<Limits>| {
        let mut limits = Limits::new(detail);
        limits.iops(
            "disks",
            band.steady.lowest() * 1e6 / (1024.0 * 1024.0),
            rules::LUSTRE_DISK,
            || "hard disks: one operation counted as 1 MiB of throughput".to_owned(),
        );
        limits
    };
    let (random_read, random_write) = (random(&read), random(&write));
    let price_of = if cached {
        format!("{} with cache", level.name)
    } else {
        level.name.clone()
    };
    let (usd, of_list) = book.lustre(&price_of)?;
    let mut costing = Costing::new(book, catalog.today);
    let gib = capacity.gib();
    costing.service(
        format!("FSx for Lustre {price_of}, {} GiB", number(gib)),
        1.0,
        Usd(usd * gib),
        of_list,
    );
    let credit = Credit {
        name: "servers' network and disks".to_owned(),
        baseline_mb_s: Rate::from_mb_s(write.steady.lowest()),
        burst_mb_s: Rate::from_mb_s(write.burst.lowest()),
        bucket_bytes: Bytes::new(
            (write.burst.lowest() - write.steady.lowest()) * 1e6 * LUSTRE_BURST_S,
        ),
        burst_s: LUSTRE_BURST_S,
        rules: vec![rules::LUSTRE_CREDIT],
    };
    let mut notes = vec![format!(
        "memory cache {}, {} TiB of SSD read cache",
        Bytes::from_gib(tib * level.memory_gib_per_tib),
        if cached {
            number(cache_tib)
        } else {
            "no".to_owned()
        }
    )];
    notes.push("clients need the Lustre client".to_owned());
    let cache = Bytes::from_gib(cache_tib * 1000.0);
    let performance = Performance {
        seq_read: throughput(
            read.steady,
            read.burst,
            if cached { &[rules::LUSTRE_CACHE] } else { &[] },
        ),
        seq_write: throughput(write.steady, write.burst, &[]),
        random_read: iops(random_read.clone(), random_read, &[]),
        random_write: iops(random_write.clone(), random_write, &[]),
        cached_read_mb_s: cached.then(|| {
            spread_figure(
                Rate::from_mb_s(cached_band.steady.lowest()),
                rules::LUSTRE_CACHE,
                &[rules::LUSTRE_CACHE],
                |rate, factor| rate.times(factor),
            )
        }),
        uncached_read,
        cached_when: cached.then(|| format!("when what is read fits into {cache} of SSD cache")),
        cache_bytes: cached.then(|| figure(cache, &[rules::LUSTRE_CACHE])),
        credit: Some(credit),
    };
    Ok(Parts {
        capacity: service_capacity(capacity),
        performance,
        costing,
        survives: figure(1, &[rules::SERVICE_REDUNDANCY]),
        survives_words: "a server or disk, replaced by the service".to_owned(),
        notes,
    })
}
