//! What a design costs: its parts, each counted and priced.

use crate::design::{Storage, Volume};
use crate::evaluate::EvaluateError;
use crate::prices::{Day, PriceBook, PriceSource, VolumeUnit, is_stale};
use crate::report::{Capacity, Cost, CostItem, Performance};
use crate::rules::{self, RuleId};
use crate::units::{Bytes, HOURS_PER_MONTH_2016, Usd, number};

/// Collects priced parts.
pub struct Costing<'a> {
    book: &'a PriceBook,
    today: Option<Day>,
    items: Vec<CostItem>,
    rules: Vec<RuleId>,
    without: Vec<String>,
    /// For the whole term, of instances; `None`: some instance has no reserved price.
    reserved_year: Option<Usd>,
    reserved_three_years: Option<Usd>,
    instances_month: Usd,
}

impl<'a> Costing<'a> {
    pub fn new(book: &'a PriceBook, today: Option<Day>) -> Self {
        let hours = if book.hours_per_month == HOURS_PER_MONTH_2016 {
            rules::COST_HOURS_2016
        } else {
            rules::COST_HOURS
        };
        Self {
            book,
            today,
            items: Vec::new(),
            rules: vec![hours],
            without: Vec::new(),
            reserved_year: Some(Usd(0.0)),
            reserved_three_years: Some(Usd(0.0)),
            instances_month: Usd(0.0),
        }
    }

    fn item(&mut self, words: String, count: f64, month: Usd, rule: RuleId, date: &str) {
        self.items.push(CostItem {
            words,
            count,
            month_usd: month,
            price_date: date.to_owned(),
            price_stale: is_stale(Some(date), self.today),
        });
        if !self.rules.contains(&rule) {
            self.rules.push(rule);
        }
    }

    pub fn without(&mut self, what: &str) {
        self.without.push(what.to_owned());
    }

    pub fn instances(&mut self, name: &str, count: u32) -> Result<(), EvaluateError> {
        let hour = self.book.instance_hour(name)?;
        let month = hour.times(self.book.hours_per_month * f64::from(count));
        let reserved = self.book.reserved.get(name);
        let term = |usd: Option<f64>| usd.map(|usd| Usd(usd * f64::from(count)));
        let sum = |left: Option<Usd>, right: Option<Usd>| Some(left? + right?);
        self.reserved_year = sum(self.reserved_year, term(reserved.and_then(|r| r.year_usd)));
        self.reserved_three_years = sum(
            self.reserved_three_years,
            term(reserved.and_then(|r| r.three_years_usd)),
        );
        self.instances_month = self.instances_month + month;
        self.item(
            format!("{name} at {} USD/hour", hour.0),
            f64::from(count),
            month,
            rules::COST_INSTANCE,
            &self.book.date,
        );
        Ok(())
    }

    /// The storage of `servers` servers; local disks are in the price of their instance.
    pub fn storage(&mut self, storage: &Storage, servers: u32) -> Result<(), EvaluateError> {
        match storage {
            Storage::InstanceStore { .. } => Ok(()),
            Storage::Ebs { volumes, volume } => {
                self.volumes(volume, volumes.saturating_mul(servers))
            }
        }
    }

    fn volumes(&mut self, volume: &Volume, count: u32) -> Result<(), EvaluateError> {
        let book = self.book;
        let price = book.volume(&volume.volume_type)?;
        let (amount, unit) = match book.volume_unit {
            VolumeUnit::GiB => (volume.size_bytes.gib(), "GiB"),
            VolumeUnit::Gb => (volume.size_bytes.gb(), "GB"),
        };
        let name = &volume.volume_type;
        let iops = volume.iops.map_or(0.0, |iops| iops as f64) - price.iops_included;
        let mib_s = volume.mib_s.map_or(0.0, f64::from) - price.mib_s_included;
        let each = Usd(amount * price.usd_per_unit_month)
            + book.over(
                price.usd_per_iops_month,
                iops,
                &format!("IOPS of {name} volumes"),
            )?
            + book.over(
                price.usd_per_mib_s_month,
                mib_s,
                &format!("throughput of {name} volumes"),
            )?;
        self.item(
            format!("{name} volume of {} {unit}", number(amount)),
            f64::from(count),
            each.times(f64::from(count)),
            rules::COST_VOLUME,
            &book.date,
        );
        Ok(())
    }

    pub fn service(&mut self, words: String, count: f64, month: Usd, from: PriceSource<'_>) {
        if let Some(of) = from.of {
            self.without(&format!(
                "a price of its own date and region: the price of {words} is of {of}"
            ));
        }
        let date = from.date.unwrap_or("no date");
        self.item(words, count, month, rules::COST_SERVICE, date);
    }

    pub fn finish(mut self, capacity: &Capacity, performance: &Performance) -> Cost {
        let month: Usd = self.items.iter().map(|item| item.month_usd).sum();
        let others = Usd(month.0 - self.instances_month.0);
        let has_instances = self.instances_month.0 > 0.0;
        let reserved = |term: Option<Usd>, months: f64| {
            term.filter(|_| has_instances)
                .map(|term| term + others.times(months))
        };
        let (year, three_years) = (
            reserved(self.reserved_year, 12.0),
            reserved(self.reserved_three_years, 36.0),
        );
        if year.is_some() || three_years.is_some() {
            self.rules.push(rules::COST_RESERVED);
        }
        let slowest = performance
            .seq_read
            .steady_mb_s
            .min(performance.seq_write.steady_mb_s);
        Cost {
            hour_usd: month.times(1.0 / self.book.hours_per_month),
            month_usd: month,
            year_usd: month.times(12.0),
            three_years_usd: month.times(36.0),
            reserved_year_usd: year,
            reserved_three_years_usd: three_years,
            month_per_usable_tib_usd: month.times(1.0 / positive(capacity.usable_bytes.value)),
            month_per_mb_s_usd: month.times(1.0 / slowest.mb_s().max(f64::MIN_POSITIVE)),
            items: self.items,
            rules: self.rules,
            without: self.without,
        }
    }
}

fn positive(bytes: Bytes) -> f64 {
    bytes.tib().max(f64::MIN_POSITIVE)
}
