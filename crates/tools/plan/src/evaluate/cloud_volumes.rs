//! Cloud volumes, and what one client gets of them.
//!
//! Owns: how the rules combine for this family. Must not know: the other families, prices but by name.

use super::*;

pub(super) fn cloud_volumes<'a>(
    catalog: &Catalog,
    book: &'a PriceBook,
    it: &CloudVolumes,
    detail: Detail,
) -> Result<Parts<'a>, EvaluateError> {
    let (level, volumes, quota) = match it {
        CloudVolumes::Servers {
            servers: count,
            server,
        } => {
            let mut parts = servers(catalog, book, *count, server, detail)?;
            parts
                .notes
                .push("each volume lives on one server, and is a name space of its own".to_owned());
            if catalog.cairn.missing("classes").is_none() {
                parts.notes.push(
                    "each volume gets the rate of its class and size (cairn volume set VOLUME --class premium --quota SIZE)"
                        .to_owned(),
                );
            }
            return Ok(parts);
        }
        CloudVolumes::Service {
            level,
            volumes,
            quota_bytes,
        } => (catalog.cloud_volume_level(level)?, *volumes, *quota_bytes),
    };
    check_count(volumes, "volumes")?;
    let of = &catalog.designs.cloud_volumes;
    if !(quota.gb() >= 1.0 && quota.get() <= of.quota_tb_max * 1e12 * 1.000_001) {
        return Err(invalid(format!(
            "a volume is 1 GB to {} TB, not {}",
            of.quota_tb_max,
            quota.tb_or_tib()
        )));
    }
    let count = f64::from(volumes);
    let mut by_level = Limits::new(detail);
    by_level.rate(
        "service level",
        Rate::from_mb_s(quota.gb() * level.kb_s_per_gb / 1000.0).times(count),
        rules::CVS_LEVEL,
        || {
            format!(
                "{volumes} volumes x {} GB x {} KB/s",
                number(quota.gb()),
                number(level.kb_s_per_gb)
            )
        },
    );
    let volume = |mib_s: f64| {
        let mut limits = by_level.clone();
        limits.rate(
            "one volume",
            Rate::from_mib_s(mib_s * count),
            rules::CVS_VOLUME,
            || format!("{volumes} volumes x {} MiB/s", number(mib_s)),
        );
        limits
    };
    let random = |each: f64| {
        let mut limits = Limits::new(detail);
        limits.iops("one volume", each * count, rules::CVS_VOLUME, || {
            format!("{volumes} volumes x {} IOPS", number(each))
        });
        limits.iops(
            "service level",
            by_level.lowest() * 1e6 / RANDOM_BYTES,
            rules::CVS_LEVEL,
            || "rate of the level / 4 KiB".to_owned(),
        );
        limits
    };
    let (usd, of_list) = book.cloud_volume(&level.name)?;
    let mut costing = Costing::new(book, catalog.today);
    costing.service(
        format!("{} volume of {} GB", level.name, number(quota.gb())),
        count,
        Usd(usd * quota.gb() * count),
        of_list,
    );
    let (read, write) = (volume(of.volume_read_mib_s), volume(of.volume_write_mib_s));
    let (random_read, random_write) = (random(of.volume_read_iops), random(of.volume_write_iops));
    Ok(Parts {
        capacity: service_capacity(quota.times(count)),
        performance: Performance::without_cache(
            throughput(read.clone(), read, &[]),
            throughput(write.clone(), write, &[]),
            iops(random_read.clone(), random_read, &[]),
            iops(random_write.clone(), random_write, &[]),
        ),
        costing,
        survives: figure(1, &[rules::SERVICE_REDUNDANCY]),
        survives_words: "a part of the service, replaced by it".to_owned(),
        notes: vec![
            "level and size change at any time; cost counts only for the time they hold".to_owned(),
            "one TCP connection carries 5 Gb/s (10 Gb/s in a placement group): mount with nconnect"
                .to_owned(),
        ],
    })
}

/// What one instance gets of a cloud volume: its flows, and the gateway's share of its network.
pub fn cloud_volume_client(
    catalog: &Catalog,
    instance: &str,
    flows: u32,
) -> Result<Rate, EvaluateError> {
    let detail = Detail::Figures;
    /// Instances of fewer processors get a fixed rate through a gateway.
    const GATEWAY_VCPU_MIN: u32 = 32;
    const GATEWAY_SMALL_GBIT_S: f64 = 5.0;
    let of = &catalog.designs.cloud_volumes;
    let instance = catalog.instance(instance)?;
    let network = instance.network().steady;
    let gateway = if instance.vcpu >= GATEWAY_VCPU_MIN {
        network.times(0.5)
    } else {
        Rate::from_gbit_s(GATEWAY_SMALL_GBIT_S).min(network)
    };
    let flows = flows.min(of.flows_max);
    let mut limits = Limits::new(detail);
    limits.rate("gateway", gateway, rules::CVS_GATEWAY, || {
        format!("{}: {} Gb/s / 2", instance.name, number(network.gbit_s()))
    });
    limits.rate(
        "flows",
        Rate::from_gbit_s(of.flow_gbit_s_outside * f64::from(flows)),
        rules::CVS_FLOW,
        || format!("{flows} flows x {} Gb/s", number(of.flow_gbit_s_outside)),
    );
    limits.rate(
        "one volume",
        Rate::from_mib_s(of.volume_read_mib_s),
        rules::CVS_VOLUME,
        || format!("{} MiB/s", number(of.volume_read_mib_s)),
    );
    Ok(Rate::from_mb_s(limits.lowest()))
}
