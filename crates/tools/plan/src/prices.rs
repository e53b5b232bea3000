//! Prices by region, with where and when they are from.
//!
//! Owns: the price file's format (`data/prices.toml`, `--prices FILE`), laying one list over another,
//! and saying which price is missing. Must not know: files and URLs, or what is priced.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::catalog::nearest;
use crate::report::PriceStamp;
use crate::units::Usd;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PriceError {
    #[error("the price file {file} is not understood: {detail}")]
    File { file: String, detail: String },
    #[error("the price file {file} has a price that is no amount: {name} = {value}")]
    Negative {
        file: String,
        name: String,
        value: String,
    },
    #[error(
        "there are no prices for region \"{region}\"; there are for {}. \
         Give a list of that region with --prices FILE (`cairn plan prices update` makes one)", known.join(", ")
    )]
    Region { region: String, known: Vec<String> },
    #[error("\"{region}\" is no region of the cloud; nearest: {}", nearest.join(", "))]
    NoSuchRegion {
        region: String,
        nearest: Vec<String>,
    },
    #[error("the price list of {region} ({date}) has no price for {what}")]
    Gap {
        region: String,
        date: String,
        what: String,
    },
}

/// A day, counted from 1970-01-01.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Day(i64);

/// Prices older than this are marked.
const PRICE_AGE_DAYS_MAX: i64 = 365;

impl Day {
    /// From seconds since 1970, as a clock gives them.
    pub fn from_unix_seconds(seconds: i64) -> Self {
        Self(seconds.div_euclid(86_400))
    }

    /// Reads `2025-03-02`, `2025-03` or `2025`; of a month or a year its first day, so that a price is
    /// rather thought older than it is.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.splitn(3, '-');
        let mut part = |default: Option<i64>| match parts.next() {
            None => default,
            Some(digits) if digits.len() <= 4 && digits.bytes().all(|it| it.is_ascii_digit()) => {
                digits.parse().ok()
            }
            Some(_) => None,
        };
        let (year, month, day) = (part(None)?, part(Some(1))?, part(Some(1))?);
        if !((1970..=9999).contains(&year) && (1..=12).contains(&month) && (1..=31).contains(&day))
        {
            return None;
        }
        // Days of the civil calendar: years begin in March, so that leap days come last.
        let shifted = if month <= 2 { year - 1 } else { year };
        let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
        let days = shifted * 365 + shifted / 4 - shifted / 100 + shifted / 400 + of_year;
        Some(Self(days - 719_468))
    }
}

/// Whether a price of this date is older than a year.
pub fn is_stale(date: Option<&str>, today: Option<Day>) -> bool {
    match (date.and_then(Day::parse), today) {
        // Of an unknown date: nobody knows that it is younger.
        (None, _) => true,
        (Some(_), None) => false,
        (Some(of), Some(today)) => today.0 - of.0 > PRICE_AGE_DAYS_MAX,
    }
}

/// All regions of the commercial partition (AWS general reference, Regions and zones, November 2025), to
/// tell a typing error from a region without prices.
pub const REGIONS: &[&str] = &[
    "af-south-1",
    "ap-east-1",
    "ap-east-2",
    "ap-northeast-1",
    "ap-northeast-2",
    "ap-northeast-3",
    "ap-south-1",
    "ap-south-2",
    "ap-southeast-1",
    "ap-southeast-2",
    "ap-southeast-3",
    "ap-southeast-4",
    "ap-southeast-5",
    "ap-southeast-6",
    "ap-southeast-7",
    "ca-central-1",
    "ca-west-1",
    "eu-central-1",
    "eu-central-2",
    "eu-north-1",
    "eu-south-1",
    "eu-south-2",
    "eu-west-1",
    "eu-west-2",
    "eu-west-3",
    "il-central-1",
    "me-central-1",
    "me-south-1",
    "mx-central-1",
    "sa-east-1",
    "us-east-1",
    "us-east-2",
    "us-west-1",
    "us-west-2",
];

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PriceList {
    pub version: u32,
    #[serde(rename = "region")]
    pub books: Vec<PriceBook>,
}

/// The prices of one region.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PriceBook {
    pub name: String,
    /// `2025-03-02`.
    pub date: String,
    pub source: String,
    #[serde(default = "hours_per_month")]
    pub hours_per_month: f64,
    /// What a volume's price is for: the cloud bills GiB, the paper of 2016 counts GB.
    #[serde(default)]
    pub volume_unit: VolumeUnit,
    #[serde(default)]
    pub ec2_usd_per_hour: BTreeMap<String, f64>,
    #[serde(default)]
    pub ebs: BTreeMap<String, VolumePrice>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub reserved: BTreeMap<String, Reserved>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lustre: Option<ServicePrices>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ontap: Option<OntapPrices>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cloud_volumes: Option<ServicePrices>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub efs: Option<EfsPrices>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub s3: Option<ObjectPrices>,
}

fn hours_per_month() -> f64 {
    crate::units::HOURS_PER_MONTH
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum VolumeUnit {
    #[default]
    GiB,
    #[serde(rename = "GB")]
    Gb,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VolumePrice {
    pub usd_per_unit_month: f64,
    #[serde(default)]
    pub iops_included: f64,
    pub usd_per_iops_month: Option<f64>,
    #[serde(default)]
    pub mib_s_included: f64,
    pub usd_per_mib_s_month: Option<f64>,
}

/// For the whole term, all of it, per instance.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reserved {
    pub year_usd: Option<f64>,
    pub three_years_usd: Option<f64>,
}

/// Per GB and month, by level.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ServicePrices {
    /// Where these are from, when not from the list itself.
    pub of: Option<String>,
    /// When these were taken: a day, a month or a year; `None` with `of`: nobody says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub date: Option<String>,
    #[serde(flatten)]
    pub usd_per_gb_month: BTreeMap<String, f64>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OntapPrices {
    pub of: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub date: Option<String>,
    pub usd_per_gb_month: f64,
    pub iops_per_gib_included: f64,
    pub usd_per_iops_month: f64,
    pub usd_per_mb_s_month: f64,
}

/// Per GiB and month by level, and for provisioned throughput over what comes with the capacity.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct EfsPrices {
    pub of: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub date: Option<String>,
    pub usd_per_mib_s_month: f64,
    #[serde(flatten)]
    pub usd_per_gb_month: BTreeMap<String, f64>,
}

/// Per GiB and month, the first so many dearer than the next.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ObjectPrices {
    pub of: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub date: Option<String>,
    pub tiers: Vec<PriceTier>,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PriceTier {
    /// `None`: all above the tier before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub up_to_gb: Option<f64>,
    pub usd_per_gb_month: f64,
}

impl ObjectPrices {
    pub fn month(&self, gib: f64) -> Usd {
        let mut below = 0.0;
        let mut usd = 0.0;
        for tier in &self.tiers {
            let end = tier.up_to_gb.unwrap_or(f64::INFINITY);
            usd += (gib.min(end) - below).max(0.0) * tier.usd_per_gb_month;
            below = end.max(below);
        }
        Usd(usd)
    }
}

impl PriceList {
    pub fn parse(file: &str, text: &str) -> Result<Self, PriceError> {
        let list: Self = toml::from_str(text).map_err(|error| PriceError::File {
            file: file.to_owned(),
            detail: error.to_string(),
        })?;
        for book in &list.books {
            book.check(file)?;
        }
        Ok(list)
    }

    /// As a price file.
    pub fn to_toml(&self) -> Result<String, PriceError> {
        toml::to_string(self).map_err(|error| PriceError::File {
            file: "to be written".to_owned(),
            detail: error.to_string(),
        })
    }

    /// Puts `over` on top: a region in it replaces the region here, whole, so that prices of two dates
    /// are never mixed.
    pub fn with(mut self, over: Self) -> Self {
        for book in over.books {
            self.books.retain(|old| old.name != book.name);
            self.books.push(book);
        }
        self
    }

    pub fn book(&self, region: &str) -> Result<&PriceBook, PriceError> {
        if let Some(book) = self.books.iter().find(|book| book.name == region) {
            return Ok(book);
        }
        Err(if REGIONS.contains(&region) {
            PriceError::Region {
                region: region.to_owned(),
                known: self.books.iter().map(|book| book.name.clone()).collect(),
            }
        } else {
            let names = REGIONS.iter().copied();
            PriceError::NoSuchRegion {
                region: region.to_owned(),
                nearest: nearest(
                    region,
                    names.chain(self.books.iter().map(|b| b.name.as_str())),
                ),
            }
        })
    }
}

impl PriceBook {
    /// Where these prices are from, and which of them are older than a year on this day.
    pub fn stamp(&self, today: Option<Day>) -> PriceStamp {
        let mut stale = Vec::new();
        for (what, date) in self.dates() {
            if is_stale(date, today) {
                stale.push(format!("{what} ({})", date.unwrap_or("no date")));
            }
        }
        PriceStamp {
            region: self.name.clone(),
            date: self.date.clone(),
            source: self.source.clone(),
            stale,
        }
    }

    /// The sources of prices, with their dates.
    fn dates(&self) -> Vec<(&'static str, Option<&str>)> {
        let mut dates = vec![("EC2 and EBS", Some(self.date.as_str()))];
        let services = [
            ("FSx for Lustre", self.lustre.as_ref()),
            ("Cloud Volumes Service", self.cloud_volumes.as_ref()),
        ];
        for (what, prices) in services {
            if let Some(prices) = prices {
                dates.push((what, self.date_of(&prices.of, &prices.date)));
            }
        }
        if let Some(prices) = &self.ontap {
            dates.push((
                "FSx for NetApp ONTAP",
                self.date_of(&prices.of, &prices.date),
            ));
        }
        if let Some(prices) = &self.efs {
            dates.push(("EFS", self.date_of(&prices.of, &prices.date)));
        }
        if let Some(prices) = &self.s3 {
            dates.push(("S3", self.date_of(&prices.of, &prices.date)));
        }
        dates
    }

    /// A service's own date; the list's where the service is of the list.
    fn date_of<'a>(&'a self, of: &Option<String>, date: &'a Option<String>) -> Option<&'a str> {
        match (date, of) {
            (Some(date), _) => Some(date),
            (None, Some(_)) => None,
            (None, None) => Some(&self.date),
        }
    }

    fn gap(&self, what: String) -> PriceError {
        PriceError::Gap {
            region: self.name.clone(),
            date: self.date.clone(),
            what,
        }
    }

    fn check(&self, file: &str) -> Result<(), PriceError> {
        let volumes = self.ebs.iter().flat_map(|(name, price)| {
            [
                Some(price.usd_per_unit_month),
                price.usd_per_iops_month,
                price.usd_per_mib_s_month,
            ]
            .into_iter()
            .flatten()
            .map(move |value| (name, value))
        });
        let instances = self
            .ec2_usd_per_hour
            .iter()
            .map(|(name, value)| (name, *value));
        let services = [&self.lustre, &self.cloud_volumes]
            .into_iter()
            .flatten()
            .flat_map(|prices| prices.usd_per_gb_month.iter().map(|(n, v)| (n, *v)));
        let hours = std::iter::once((&self.name, self.hours_per_month));
        let efs = self.efs.iter().flat_map(|prices| {
            let throughput = std::iter::once((&self.name, prices.usd_per_mib_s_month));
            throughput.chain(prices.usd_per_gb_month.iter().map(|(n, v)| (n, *v)))
        });
        let s3 = self.s3.iter().flat_map(|prices| {
            let tiers = prices.tiers.iter();
            tiers.map(|tier| (&self.name, tier.usd_per_gb_month))
        });
        let all = instances.chain(volumes).chain(services).chain(hours);
        for (name, value) in all.chain(efs).chain(s3) {
            if !(value.is_finite() && value > 0.0) {
                return Err(PriceError::Negative {
                    file: file.to_owned(),
                    name: name.clone(),
                    value: value.to_string(),
                });
            }
        }
        Ok(())
    }

    pub fn instance_hour(&self, name: &str) -> Result<Usd, PriceError> {
        self.ec2_usd_per_hour
            .get(name)
            .map(|usd| Usd(*usd))
            .ok_or_else(|| self.gap(format!("instance {name}")))
    }

    pub fn volume(&self, volume_type: &str) -> Result<&VolumePrice, PriceError> {
        self.ebs
            .get(volume_type)
            .ok_or_else(|| self.gap(format!("{volume_type} volumes")))
    }

    /// Price of what is provisioned over what is included.
    pub fn over(&self, price: Option<f64>, count: f64, what: &str) -> Result<Usd, PriceError> {
        if count <= 0.0 {
            return Ok(Usd(0.0));
        }
        price
            .map(|price| Usd(price * count))
            .ok_or_else(|| self.gap(what.to_owned()))
    }

    pub fn lustre(&self, level: &str) -> Result<(f64, PriceSource<'_>), PriceError> {
        self.service(&self.lustre, level)
            .ok_or_else(|| self.gap(format!("FSx for Lustre {level}")))
    }

    pub fn cloud_volume(&self, level: &str) -> Result<(f64, PriceSource<'_>), PriceError> {
        self.service(&self.cloud_volumes, level)
            .ok_or_else(|| self.gap(format!("Cloud Volumes Service {level}")))
    }

    fn service<'a>(
        &'a self,
        prices: &'a Option<ServicePrices>,
        level: &str,
    ) -> Option<(f64, PriceSource<'a>)> {
        let prices = prices.as_ref()?;
        let price = prices.usd_per_gb_month.get(level)?;
        Some((*price, self.from(&prices.of, &prices.date)))
    }

    /// Where a service's price is from.
    pub fn from<'a>(&'a self, of: &'a Option<String>, date: &'a Option<String>) -> PriceSource<'a> {
        PriceSource {
            of: of.as_deref(),
            date: self.date_of(of, date),
        }
    }

    pub fn efs(&self, level: &str) -> Result<(&EfsPrices, f64), PriceError> {
        let prices = self.efs.as_ref();
        prices
            .and_then(|prices| Some((prices, *prices.usd_per_gb_month.get(level)?)))
            .ok_or_else(|| self.gap(format!("Amazon EFS {level}")))
    }

    pub fn s3(&self) -> Result<&ObjectPrices, PriceError> {
        self.s3
            .as_ref()
            .ok_or_else(|| self.gap("Amazon S3".to_owned()))
    }

    pub fn ontap(&self) -> Result<&OntapPrices, PriceError> {
        self.ontap
            .as_ref()
            .ok_or_else(|| self.gap("FSx for NetApp ONTAP".to_owned()))
    }
}

/// Where one price is from, and when it was taken.
#[derive(Clone, Copy, Debug)]
pub struct PriceSource<'a> {
    /// `None`: of the list itself.
    pub of: Option<&'a str>,
    /// `None`: nobody says.
    pub date: Option<&'a str>,
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "version = 1\n[[region]]\nname = \"us-east-1\"\ndate = \"2026-01-01\"\n\
                        source = \"test\"\n[region.ec2_usd_per_hour]\n\"a.large\" = ";

    fn message<T: std::fmt::Debug>(result: Result<T, PriceError>) -> String {
        result.unwrap_err().to_string()
    }

    #[test]
    fn price_files_are_read_or_refused_and_gaps_are_named() {
        let list = PriceList::parse("t", &format!("{FILE}0.5\n")).unwrap();
        let book = list.book("us-east-1").unwrap();
        assert_eq!(book.instance_hour("a.large").unwrap(), Usd(0.5));
        let cases = [
            (
                message(book.instance_hour("b.large")),
                "no price for instance b.large",
            ),
            (message(book.volume("gp3")), "no price for gp3 volumes"),
            (message(book.ontap()), "ONTAP"),
            (
                message(list.book("us-west-2")),
                "no prices for region \"us-west-2\"",
            ),
            (message(list.book("us-esat-1")), "us-east-1"),
            (
                message(PriceList::parse("t", &format!("{FILE}-1\n"))),
                "a.large = -1",
            ),
            (
                message(PriceList::parse("t", &format!("{FILE}nan\n"))),
                "no amount",
            ),
            (
                message(PriceList::parse("t", "version = 1\nprices = 3")),
                "not understood",
            ),
        ];
        for (got, want) in cases {
            assert!(got.contains(want), "{got}, not {want}");
        }
    }

    #[test]
    fn prices_older_than_a_year_or_of_no_date_are_marked() {
        let services = "[region.lustre]\nof = \"a paper\"\n\"persistent-12\" = 0.1\n\
                        [region.cloud_volumes]\nof = \"a list\"\ndate = \"2018-09\"\nstandard = 0.1\n";
        let list = PriceList::parse("t", &format!("{FILE}0.5\n{services}")).unwrap();
        let stale = |today: &str| list.books[0].stamp(Day::parse(today)).stale;
        let always = [
            "FSx for Lustre (no date)",
            "Cloud Volumes Service (2018-09)",
        ];
        assert_eq!(stale("2026-01-01"), always);
        assert_eq!(stale("2027-01-01"), always, "a year to the day");
        let all = ["EC2 and EBS (2026-01-01)", always[0], always[1]];
        assert_eq!(stale("2027-01-02"), all);
        for (text, day) in [
            ("1970-01-01", Some(0)),
            ("2000-02-29", Some(11_016)),
            ("2026-11-24", Some(20_781)),
            ("2024", Some(19_723)),
            ("2024-13-01", None),
            ("soon", None),
            ("", None),
        ] {
            assert_eq!(Day::parse(text).map(|day| day.0), day, "{text}");
        }
    }

    #[test]
    fn a_list_on_top_replaces_whole_regions() {
        let below = PriceList::parse("t", &format!("{FILE}0.5\n")).unwrap();
        let over = PriceList::parse("t", &format!("{FILE}0.7\n")).unwrap();
        let both = below.with(over);
        assert_eq!(both.books.len(), 1);
        let book = both.book("us-east-1").unwrap();
        assert_eq!(book.instance_hour("a.large").unwrap(), Usd(0.7));
        let again = PriceList::parse("t", &both.to_toml().unwrap()).unwrap();
        assert_eq!(again.books.len(), 1);
    }
}
