//! Elastic storage: Amazon EFS and S3, as large as what is in them.
//!
//! Owns: how the rules combine for this family. Must not know: the other families, prices but by name.

use super::*;

pub(super) fn elastic<'a>(
    catalog: &Catalog,
    book: &'a PriceBook,
    it: &Elastic,
    detail: Detail,
) -> Result<Parts<'a>, EvaluateError> {
    match it {
        Elastic::Efs {
            level,
            capacity_bytes,
            mib_s,
        } => efs(catalog, book, level, *capacity_bytes, *mib_s, detail),
        Elastic::S3 { capacity_bytes } => s3(catalog, book, *capacity_bytes, detail),
    }
}

fn efs<'a>(
    catalog: &Catalog,
    book: &'a PriceBook,
    level: &str,
    capacity: Bytes,
    provisioned: Option<u32>,
    detail: Detail,
) -> Result<Parts<'a>, EvaluateError> {
    let of = &catalog.designs.elastic;
    let level = catalog.efs_level(level)?;
    let tib = capacity.tib();
    let included = of.efs_write_mib_s_per_tib * tib;
    let write_mib_s = included.max(provisioned.map_or(0.0, f64::from));
    let steady_words = || match provisioned {
        Some(mib_s) if f64::from(mib_s) >= included => format!("{mib_s} MiB/s provisioned"),
        _ => format!(
            "{} TiB x {} MiB/s",
            number(tib),
            number(of.efs_write_mib_s_per_tib)
        ),
    };
    let burst_mib_s = match provisioned {
        Some(_) => write_mib_s,
        None => (of.efs_burst_mib_s_per_tib * tib)
            .max(of.efs_burst_mib_s_min)
            .max(write_mib_s),
    };
    let rates = |mib_s: f64, times: f64, most: f64, why: &dyn Fn() -> String| {
        let mut limits = Limits::new(detail);
        limits.rate(
            "throughput of the file system",
            Rate::from_mib_s(mib_s * times),
            rules::EFS_THROUGHPUT,
            || match times == 1.0 {
                true => why(),
                false => format!("{} x {}", why(), number(times)),
            },
        );
        limits.rate(
            "one file system",
            Rate::from_mib_s(most),
            rules::EFS_THROUGHPUT,
            || format!("{} MiB/s at most", number(most)),
        );
        limits
    };
    let burst_words = || match provisioned {
        Some(_) => steady_words(),
        None => format!("burst of {} MiB/s", number(burst_mib_s)),
    };
    let band = |times: f64, most: f64| Band {
        steady: rates(write_mib_s, times, most, &steady_words),
        burst: rates(burst_mib_s, times, most, &burst_words),
    };
    let (read, write) = (
        band(of.efs_read_times, level.read_mib_s_max),
        band(1.0, level.write_mib_s_max),
    );
    let random = |rates: &Limits, most: f64| {
        let mut limits = Limits::new(detail);
        limits.iops("one file system", most, rules::EFS_IOPS, || {
            format!("{} IOPS at most", number(most))
        });
        limits.iops(
            "throughput of the file system",
            rates.lowest() * 1e6 / RANDOM_BYTES,
            rules::EFS_IOPS,
            || "throughput / 4 KiB".to_owned(),
        );
        limits
    };
    let (read_iops, write_iops) = match provisioned {
        Some(_) => (level.read_iops_provisioned, level.write_iops_provisioned),
        None => (level.read_iops, level.write_iops),
    };
    let random_read = Band {
        steady: random(&read.steady, read_iops),
        burst: random(&read.burst, read_iops),
    };
    let random_write = Band {
        steady: random(&write.steady, write_iops),
        burst: random(&write.burst, write_iops),
    };
    let (prices, usd) = book.efs(&level.name)?;
    let from = book.from(&prices.of, &prices.date);
    let mut costing = Costing::new(book, catalog.today);
    costing.service(
        format!("EFS {}, {} GiB", level.name, number(capacity.gib())),
        1.0,
        Usd(usd * capacity.gib()),
        from,
    );
    if let Some(mib_s) = provisioned {
        let over = (f64::from(mib_s) - included).max(0.0);
        costing.service(
            format!("EFS throughput over what the capacity includes, {over:.0} MiB/s"),
            1.0,
            Usd(over * prices.usd_per_mib_s_month),
            from,
        );
    }
    costing.without("data transfer between zones");
    let stated = catalog.reliability.service.get(match level.name.as_str() {
        "regional" => "efs-regional",
        _ => "efs-one-zone",
    });
    Ok(Parts {
        capacity: service_capacity(capacity),
        performance: Performance::without_cache(
            throughput(read.steady, read.burst, &[]),
            throughput(write.steady, write.burst, &[]),
            iops(random_read.steady, random_read.burst, &[]),
            iops(random_write.steady, random_write.burst, &[]),
        ),
        costing,
        survives: figure(
            stated.map_or(0, |it| it.survives),
            &[rules::SERVICE_REDUNDANCY],
        ),
        survives_words: "a part of the service, replaced by it".to_owned(),
        notes: vec![
            format!(
                "one client gets at most {} MiB/s",
                number(of.efs_client_mib_s)
            ),
            "it grows and shrinks with what is in it; reads and writes share its throughput"
                .to_owned(),
        ],
    })
}

fn s3<'a>(
    catalog: &Catalog,
    book: &'a PriceBook,
    capacity: Bytes,
    detail: Detail,
) -> Result<Parts<'a>, EvaluateError> {
    let of = &catalog.designs.elastic;
    let rate = |per_s: f64| {
        let mut limits = Limits::new(detail);
        limits.rate(
            "requests of one prefix",
            Rate::from_mib_s(per_s * of.s3_request_mib),
            rules::S3_REQUESTS,
            || {
                format!(
                    "{} requests per second x {} MiB",
                    number(per_s),
                    number(of.s3_request_mib)
                )
            },
        );
        limits
    };
    let random = |per_s: f64| {
        let mut limits = Limits::new(detail);
        limits.iops("requests of one prefix", per_s, rules::S3_REQUESTS, || {
            format!("{} requests per second", number(per_s))
        });
        limits
    };
    let (read, write) = (rate(of.s3_get_per_s), rate(of.s3_put_per_s));
    let (random_read, random_write) = (random(of.s3_get_per_s), random(of.s3_put_per_s));
    let prices = book.s3()?;
    let mut costing = Costing::new(book, catalog.today);
    costing.service(
        format!("S3 Standard, {} GiB", number(capacity.gib())),
        1.0,
        prices.month(capacity.gib()),
        book.from(&prices.of, &prices.date),
    );
    costing.without("requests, which are paid by the thousand, and data transfer");
    let stated = catalog.reliability.service.get("s3");
    Ok(Parts {
        capacity: service_capacity(capacity),
        performance: Performance::without_cache(
            throughput(read.clone(), read, &[]),
            throughput(write.clone(), write, &[]),
            iops(random_read.clone(), random_read, &[]),
            iops(random_write.clone(), random_write, &[]),
        ),
        costing,
        survives: figure(
            stated.map_or(0, |it| it.survives),
            &[rules::SERVICE_REDUNDANCY],
        ),
        survives_words: "any two parts of the service, replaced by it".to_owned(),
        notes: vec![
            "objects, not files: written whole, without directories; programs need the S3 API"
                .to_owned(),
            "a stream needs many requests at a time, and each client is bound by its network"
                .to_owned(),
        ],
    })
}
