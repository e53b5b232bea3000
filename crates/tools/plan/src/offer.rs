//! Reads the price list API's offer files (`AmazonEC2`, JSON or CSV) into a price book.
//!
//! Owns: the two formats and which of their rows are the prices that the planner uses.
//! Must not know: where bytes come from. Offer files have gigabytes, so they are read as a stream:
//! what is kept is a price per instance type and volume type.
//!
//! Source: AWS price list user guide, "Reading the service price list files".

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::io::{BufRead, Read};

use serde::Deserialize;
use serde::de::{DeserializeSeed, IgnoredAny, MapAccess, Visitor};

use crate::prices::{PriceBook, PriceList, Reserved, VolumePrice, VolumeUnit};
use crate::units::HOURS_PER_MONTH;

/// Products at most that are remembered while a JSON file is read: far more than there are in a region.
const PRODUCT_COUNT_MAX: usize = 200_000;
/// A CSV line at most; real ones have some kilobytes.
const LINE_LEN_BYTES_MAX: u64 = 1 << 20;

#[derive(Debug, thiserror::Error)]
pub enum OfferError {
    #[error("the offer file is not understood: {detail}")]
    Format { detail: String },
    #[error(
        "the offer file has no price of region {region} that the planner uses; it is of {found}"
    )]
    Empty { region: String, found: String },
    #[error("reading the offer file: {0}")]
    Read(#[from] std::io::Error),
}

/// What of a product decides whether its price is used.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Product {
    Instance(String),
    Volume(String),
    VolumeIops(String),
    VolumeThroughput(String),
}

#[derive(Debug, Default)]
struct Attributes<'a> {
    family: &'a str,
    region: &'a str,
    location_type: &'a str,
    instance_type: &'a str,
    tenancy: &'a str,
    operating_system: &'a str,
    software: &'a str,
    capacity: &'a str,
    volume: &'a str,
}

impl Attributes<'_> {
    /// The product that this is, if its price is one that we use: shared Linux without software,
    /// volumes of the types that are planned with.
    fn product(&self) -> Option<Product> {
        // Of io2 the operations have steps of price, which a price list here has no place for.
        const VOLUMES: [&str; 4] = ["gp3", "st1", "sc1", "io1"];
        let volume = || {
            VOLUMES
                .contains(&self.volume)
                .then(|| self.volume.to_owned())
        };
        // Outposts and zones of their own have prices of their own under the same region.
        if !matches!(self.location_type, "" | "AWS Region") {
            return None;
        }
        match self.family {
            "Compute Instance" => (self.tenancy == "Shared"
                && self.operating_system == "Linux"
                && self.software == "NA"
                && self.capacity == "Used"
                && !self.instance_type.is_empty())
            .then(|| Product::Instance(self.instance_type.to_owned())),
            "Storage" => volume().map(Product::Volume),
            "System Operation" => volume().map(Product::VolumeIops),
            "Provisioned Throughput" => volume().map(Product::VolumeThroughput),
            _ => None,
        }
    }
}

/// One price of a product.
#[derive(Debug, Default)]
struct Price<'a> {
    reserved: bool,
    unit: &'a str,
    usd: f64,
    lease: &'a str,
    purchase: &'a str,
    class: &'a str,
}

/// Collects the prices of one region.
#[derive(Debug, Default)]
struct Collect {
    instances: BTreeMap<String, f64>,
    reserved: BTreeMap<String, Reserved>,
    volumes: BTreeMap<String, VolumePrice>,
}

impl Collect {
    fn take(&mut self, product: &Product, price: &Price<'_>) {
        // Free tiers and capacity blocks have a price of 0: not a price to plan with.
        if !(price.usd.is_finite() && price.usd > 0.0) {
            return;
        }
        match product {
            Product::Instance(name) if price.reserved => self.take_reserved(name, price),
            Product::Instance(name) if price.unit == "Hrs" => {
                self.instances.insert(name.clone(), price.usd);
            }
            Product::Volume(name) if price.unit == "GB-Mo" => {
                self.volume(name).usd_per_unit_month = price.usd;
            }
            Product::VolumeIops(name) if price.unit == "IOPS-Mo" => {
                self.volume(name).usd_per_iops_month = Some(price.usd);
            }
            Product::VolumeThroughput(name) => {
                let per_mib_s = match price.unit {
                    "GiBps-mo" | "GiBps-Mo" => price.usd / 1024.0,
                    "MiBps-mo" | "MiBps-Mo" => price.usd,
                    _ => return,
                };
                self.volume(name).usd_per_mib_s_month = Some(per_mib_s);
            }
            _ => {}
        }
    }

    /// Standard, all upfront: one sum for the whole term.
    fn take_reserved(&mut self, name: &str, price: &Price<'_>) {
        if price.class != "standard" || price.purchase != "All Upfront" || price.unit != "Quantity"
        {
            return;
        }
        let entry = self.reserved.entry(name.to_owned()).or_insert(Reserved {
            year_usd: None,
            three_years_usd: None,
        });
        match price.lease {
            "1yr" => entry.year_usd = Some(price.usd),
            "3yr" => entry.three_years_usd = Some(price.usd),
            _ => {}
        }
    }

    fn volume(&mut self, name: &str) -> &mut VolumePrice {
        self.volumes.entry(name.to_owned()).or_insert_with(|| {
            let (iops_included, mib_s_included) = if name == "gp3" {
                (3000.0, 125.0)
            } else {
                (0.0, 0.0)
            };
            VolumePrice {
                iops_included,
                mib_s_included,
                ..VolumePrice::default()
            }
        })
    }

    /// The book; services that an EC2 offer file does not price are taken over from `old`, with their
    /// own date.
    fn book(
        mut self,
        region: &str,
        date: &str,
        old: Option<&PriceBook>,
    ) -> Result<PriceBook, OfferError> {
        self.volumes
            .retain(|_, price| price.usd_per_unit_month > 0.0);
        if self.instances.is_empty() && self.volumes.is_empty() {
            return Err(OfferError::Empty {
                region: region.to_owned(),
                found: "another region or service".to_owned(),
            });
        }
        let day = date.get(..10).unwrap_or(date);
        // A service without a source of its own is of the list before, and of its date.
        let dated = |old_date: &str, of: &mut Option<String>, date: &mut Option<String>| {
            if of.is_none() {
                *of = Some(format!("the list of {old_date}"));
                date.get_or_insert_with(|| old_date.to_owned());
            }
        };
        let (mut lustre, mut ontap, mut cloud_volumes) = (None, None, None);
        let (mut efs, mut s3) = (None, None);
        if let Some(old) = old {
            lustre.clone_from(&old.lustre);
            ontap.clone_from(&old.ontap);
            cloud_volumes.clone_from(&old.cloud_volumes);
            for prices in [&mut lustre, &mut cloud_volumes].into_iter().flatten() {
                dated(&old.date, &mut prices.of, &mut prices.date);
            }
            if let Some(prices) = &mut ontap {
                dated(&old.date, &mut prices.of, &mut prices.date);
            }
            efs.clone_from(&old.efs);
            s3.clone_from(&old.s3);
            if let Some(prices) = &mut efs {
                dated(&old.date, &mut prices.of, &mut prices.date);
            }
            if let Some(prices) = &mut s3 {
                dated(&old.date, &mut prices.of, &mut prices.date);
            }
        }
        Ok(PriceBook {
            name: region.to_owned(),
            date: day.to_owned(),
            source: format!("AWS price list API, offer AmazonEC2, published {date}"),
            hours_per_month: HOURS_PER_MONTH,
            volume_unit: VolumeUnit::GiB,
            ec2_usd_per_hour: self.instances,
            ebs: self.volumes,
            reserved: self.reserved,
            lustre,
            ontap,
            cloud_volumes,
            efs,
            s3,
        })
    }
}

/// Reads an offer file, JSON or CSV (told by its first byte), into a price list of one region.
pub fn read_offer(
    mut input: impl BufRead,
    region: &str,
    old: Option<&PriceBook>,
) -> Result<PriceList, OfferError> {
    let first = input
        .fill_buf()?
        .iter()
        .copied()
        .find(|byte| !byte.is_ascii_whitespace());
    let (collect, date) = match first {
        Some(b'{') => read_json(input, region)?,
        Some(_) => read_csv(input, region)?,
        None => {
            return Err(OfferError::Format {
                detail: "it is empty".to_owned(),
            });
        }
    };
    Ok(PriceList {
        version: 1,
        books: vec![collect.book(region, &date, old)?],
    })
}

// ---- JSON

#[derive(Deserialize)]
struct JsonProduct {
    #[serde(rename = "productFamily", default)]
    family: String,
    #[serde(default)]
    attributes: JsonAttributes,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct JsonAttributes {
    #[serde(rename = "regionCode")]
    region: String,
    #[serde(rename = "locationType")]
    location_type: String,
    #[serde(rename = "instanceType")]
    instance_type: String,
    tenancy: String,
    #[serde(rename = "operatingSystem")]
    operating_system: String,
    #[serde(rename = "preInstalledSw")]
    software: String,
    #[serde(rename = "capacitystatus")]
    capacity: String,
    #[serde(rename = "volumeApiName")]
    volume: String,
}

#[derive(Deserialize)]
struct JsonTerm {
    #[serde(rename = "termAttributes", default)]
    attributes: JsonTermAttributes,
    #[serde(rename = "priceDimensions", default)]
    dimensions: HashMap<String, JsonDimension>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct JsonTermAttributes {
    #[serde(rename = "LeaseContractLength")]
    lease: String,
    #[serde(rename = "PurchaseOption")]
    purchase: String,
    #[serde(rename = "OfferingClass")]
    class: String,
}

#[derive(Deserialize)]
struct JsonDimension {
    #[serde(default)]
    unit: String,
    #[serde(rename = "pricePerUnit", default)]
    price: HashMap<String, String>,
}

struct JsonState<'a> {
    region: &'a str,
    products: HashMap<String, Product>,
    date: String,
    collect: Collect,
}

fn read_json(input: impl Read, region: &str) -> Result<(Collect, String), OfferError> {
    let mut state = JsonState {
        region,
        products: HashMap::new(),
        date: "unknown".to_owned(),
        collect: Collect::default(),
    };
    let mut reader = serde_json::Deserializer::from_reader(input);
    Whole(&mut state)
        .deserialize(&mut reader)
        .map_err(|error| OfferError::Format {
            detail: error.to_string(),
        })?;
    Ok((state.collect, state.date))
}

/// A map whose entries are handed over one by one instead of being collected.
macro_rules! streamed {
    ($name:ident, $what:literal, |$this:ident, $map:ident, $key:ident| $body:block) => {
        impl<'de> DeserializeSeed<'de> for $name<'_, '_> {
            type Value = ();
            fn deserialize<D: serde::Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
                from.deserialize_map(self)
            }
        }

        impl<'de> Visitor<'de> for $name<'_, '_> {
            type Value = ();
            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str($what)
            }
            fn visit_map<A: MapAccess<'de>>(self, mut $map: A) -> Result<(), A::Error> {
                let $this = self;
                while let Some($key) = $map.next_key::<String>()? {
                    $body
                }
                Ok(())
            }
        }
    };
}

struct Whole<'a, 'b>(&'a mut JsonState<'b>);
struct Products<'a, 'b>(&'a mut JsonState<'b>);
struct Terms<'a, 'b>(&'a mut JsonState<'b>);
struct TermType<'a, 'b> {
    state: &'a mut JsonState<'b>,
    reserved: bool,
}

streamed!(Whole, "an offer file", |this, map, key| {
    match key.as_str() {
        "publicationDate" => this.0.date = map.next_value()?,
        "products" => map.next_value_seed(Products(&mut *this.0))?,
        "terms" => map.next_value_seed(Terms(&mut *this.0))?,
        _ => {
            map.next_value::<IgnoredAny>()?;
        }
    }
});

streamed!(Products, "products", |this, map, key| {
    let product: JsonProduct = map.next_value()?;
    let of = &product.attributes;
    let attributes = Attributes {
        family: &product.family,
        region: &of.region,
        location_type: &of.location_type,
        instance_type: &of.instance_type,
        tenancy: &of.tenancy,
        operating_system: &of.operating_system,
        software: &of.software,
        capacity: &of.capacity,
        volume: &of.volume,
    };
    if attributes.region == this.0.region
        && let Some(product) = attributes.product()
    {
        if this.0.products.len() >= PRODUCT_COUNT_MAX {
            return Err(serde::de::Error::custom(format_args!(
                "it has more than {PRODUCT_COUNT_MAX} products that the planner uses in one region"
            )));
        }
        this.0.products.insert(key, product);
    }
});

streamed!(Terms, "terms", |this, map, key| {
    match key.as_str() {
        "OnDemand" => map.next_value_seed(TermType {
            state: &mut *this.0,
            reserved: false,
        })?,
        "Reserved" => map.next_value_seed(TermType {
            state: &mut *this.0,
            reserved: true,
        })?,
        _ => {
            map.next_value::<IgnoredAny>()?;
        }
    }
});

streamed!(TermType, "terms of one type", |this, map, key| {
    if let Some(product) = this.state.products.get(&key) {
        let terms: HashMap<String, JsonTerm> = map.next_value()?;
        for term in terms.values() {
            for dimension in term.dimensions.values() {
                let usd = dimension.price.get("USD").and_then(|usd| usd.parse().ok());
                this.state.collect.take(
                    product,
                    &Price {
                        reserved: this.reserved,
                        unit: &dimension.unit,
                        usd: usd.unwrap_or(0.0),
                        lease: &term.attributes.lease,
                        purchase: &term.attributes.purchase,
                        class: &term.attributes.class,
                    },
                );
            }
        }
    } else {
        map.next_value::<IgnoredAny>()?;
    }
});

// ---- CSV

/// Splits one line of quoted or plain fields; `""` inside quotes is a quote.
fn fields(line: &str) -> Vec<String> {
    let mut fields = Vec::new();
    let mut field = String::new();
    let mut quoted = false;
    let mut chars = line.trim_end_matches(['\r', '\n']).chars().peekable();
    while let Some(char) = chars.next() {
        match char {
            '"' if quoted && chars.peek() == Some(&'"') => {
                chars.next();
                field.push('"');
            }
            '"' => quoted = !quoted,
            ',' if !quoted => fields.push(std::mem::take(&mut field)),
            char => field.push(char),
        }
    }
    fields.push(field);
    fields
}

fn read_csv(mut input: impl BufRead, region: &str) -> Result<(Collect, String), OfferError> {
    let mut collect = Collect::default();
    let mut date = "unknown".to_owned();
    let mut columns: Option<HashMap<String, usize>> = None;
    let mut line = String::new();
    loop {
        line.clear();
        let read = (&mut input).take(LINE_LEN_BYTES_MAX).read_line(&mut line)?;
        if read == 0 {
            break;
        }
        if read as u64 == LINE_LEN_BYTES_MAX {
            return Err(OfferError::Format {
                detail: format!("a line is longer than {LINE_LEN_BYTES_MAX} bytes"),
            });
        }
        let row = fields(&line);
        let Some(columns) = &columns else {
            match row.first().map(String::as_str) {
                Some("Publication Date") => date = row.get(1).cloned().unwrap_or_default(),
                Some("SKU") => {
                    columns = Some(
                        row.into_iter()
                            .enumerate()
                            .map(|(i, name)| (name, i))
                            .collect(),
                    )
                }
                _ => {}
            }
            continue;
        };
        let get = |name: &str| {
            columns
                .get(name)
                .and_then(|index| row.get(*index))
                .map_or("", String::as_str)
        };
        let attributes = Attributes {
            family: get("Product Family"),
            region: get("Region Code"),
            location_type: get("Location Type"),
            instance_type: get("Instance Type"),
            tenancy: get("Tenancy"),
            operating_system: get("Operating System"),
            software: get("Pre Installed S/W"),
            capacity: get("CapacityStatus"),
            volume: get("Volume API Name"),
        };
        if attributes.region != region || get("Currency") != "USD" {
            continue;
        }
        if let Some(product) = attributes.product() {
            collect.take(
                &product,
                &Price {
                    reserved: get("TermType") == "Reserved",
                    unit: get("Unit"),
                    usd: get("PricePerUnit").parse().unwrap_or(0.0),
                    lease: get("LeaseContractLength"),
                    purchase: get("PurchaseOption"),
                    class: get("OfferingClass"),
                },
            );
        }
    }
    if columns.is_none() {
        return Err(OfferError::Format {
            detail: "neither JSON nor a CSV with a line of columns that begins with SKU".to_owned(),
        });
    }
    Ok((collect, date))
}

#[cfg(test)]
mod tests {
    use super::*;

    const JSON: &str = r#"{
      "formatVersion": "v1.0", "offerCode": "AmazonEC2", "publicationDate": "2026-02-03T04:05:06Z",
      "products": {
        "A": {"sku": "A", "productFamily": "Compute Instance", "attributes": {"regionCode": "us-east-1", "locationType": "AWS Region",
          "instanceType": "m5dn.12xlarge", "tenancy": "Shared", "operatingSystem": "Linux",
          "preInstalledSw": "NA", "capacitystatus": "Used", "vcpu": "48"}},
        "B": {"sku": "B", "productFamily": "Compute Instance", "attributes": {"regionCode": "us-east-1",
          "instanceType": "m5dn.12xlarge", "tenancy": "Dedicated", "operatingSystem": "Linux",
          "preInstalledSw": "NA", "capacitystatus": "Used"}},
        "G": {"sku": "G", "productFamily": "Compute Instance", "attributes": {"regionCode": "us-east-1",
          "locationType": "AWS Outposts", "instanceType": "m5dn.12xlarge", "tenancy": "Shared",
          "operatingSystem": "Linux", "preInstalledSw": "NA", "capacitystatus": "Used"}},
        "C": {"sku": "C", "productFamily": "Storage", "attributes": {"regionCode": "us-east-1", "volumeApiName": "gp3"}},
        "D": {"sku": "D", "productFamily": "System Operation", "attributes": {"regionCode": "us-east-1", "volumeApiName": "gp3"}},
        "E": {"sku": "E", "productFamily": "Provisioned Throughput", "attributes": {"regionCode": "us-east-1", "volumeApiName": "gp3"}},
        "F": {"sku": "F", "productFamily": "Storage", "attributes": {"regionCode": "eu-west-1", "volumeApiName": "st1"}}
      },
      "terms": {
        "OnDemand": {
          "A": {"A.X": {"priceDimensions": {"A.X.1": {"unit": "Hrs", "pricePerUnit": {"USD": "3.2640000000"}}}}},
          "B": {"B.X": {"priceDimensions": {"B.X.1": {"unit": "Hrs", "pricePerUnit": {"USD": "3.4600000000"}}}}},
          "G": {"G.X": {"priceDimensions": {"G.X.1": {"unit": "Hrs", "pricePerUnit": {"USD": "9.0000000000"}}}}},
          "C": {"C.X": {"priceDimensions": {"C.X.1": {"unit": "GB-Mo", "pricePerUnit": {"USD": "0.0800000000"}}}}},
          "D": {"D.X": {"priceDimensions": {"D.X.1": {"unit": "IOPS-Mo", "pricePerUnit": {"USD": "0.0050000000"}}}}},
          "E": {"E.X": {"priceDimensions": {"E.X.1": {"unit": "GiBps-mo", "pricePerUnit": {"USD": "40.9600000000"}}}}},
          "F": {"F.X": {"priceDimensions": {"F.X.1": {"unit": "GB-Mo", "pricePerUnit": {"USD": "0.0500000000"}}}}}
        },
        "Reserved": {"A": {"A.Y": {
          "termAttributes": {"LeaseContractLength": "1yr", "PurchaseOption": "All Upfront", "OfferingClass": "standard"},
          "priceDimensions": {
            "A.Y.1": {"unit": "Quantity", "pricePerUnit": {"USD": "17000"}},
            "A.Y.2": {"unit": "Hrs", "pricePerUnit": {"USD": "0.0000000000"}}}}}}
      }}"#;

    const CSV: &str = "\"FormatVersion\",\"v1.0\"\n\"Publication Date\",\"2026-02-03T04:05:06Z\"\n\
        \"SKU\",\"TermType\",\"PriceDescription\",\"Unit\",\"PricePerUnit\",\"Currency\",\"LeaseContractLength\",\"PurchaseOption\",\"OfferingClass\",\"Product Family\",\"Instance Type\",\"Tenancy\",\"Operating System\",\"CapacityStatus\",\"Pre Installed S/W\",\"Region Code\",\"Volume API Name\"\n\
        \"A\",\"OnDemand\",\"a \"\"quoted\"\", text\",\"Hrs\",\"3.264\",\"USD\",\"\",\"\",\"\",\"Compute Instance\",\"m5dn.12xlarge\",\"Shared\",\"Linux\",\"Used\",\"NA\",\"us-east-1\",\"\"\n\
        \"B\",\"OnDemand\",\"\",\"Hrs\",\"3.46\",\"USD\",\"\",\"\",\"\",\"Compute Instance\",\"m5dn.12xlarge\",\"Dedicated\",\"Linux\",\"Used\",\"NA\",\"us-east-1\",\"\"\n\
        \"A\",\"Reserved\",\"\",\"Quantity\",\"17000\",\"USD\",\"1yr\",\"All Upfront\",\"standard\",\"Compute Instance\",\"m5dn.12xlarge\",\"Shared\",\"Linux\",\"Used\",\"NA\",\"us-east-1\",\"\"\n\
        \"C\",\"OnDemand\",\"\",\"GB-Mo\",\"0.08\",\"USD\",\"\",\"\",\"\",\"Storage\",\"\",\"\",\"\",\"\",\"\",\"us-east-1\",\"gp3\"\n\
        \"D\",\"OnDemand\",\"\",\"IOPS-Mo\",\"0.005\",\"USD\",\"\",\"\",\"\",\"System Operation\",\"\",\"\",\"\",\"\",\"\",\"us-east-1\",\"gp3\"\n\
        \"E\",\"OnDemand\",\"\",\"GiBps-mo\",\"40.96\",\"USD\",\"\",\"\",\"\",\"Provisioned Throughput\",\"\",\"\",\"\",\"\",\"\",\"us-east-1\",\"gp3\"\n";

    fn check(name: &str, text: &str) {
        let list = read_offer(text.as_bytes(), "us-east-1", None).unwrap();
        let book = list.book("us-east-1").unwrap();
        assert_eq!(book.date, "2026-02-03", "{name}");
        assert_eq!(book.ec2_usd_per_hour.len(), 1, "{name}");
        assert!(
            (book.instance_hour("m5dn.12xlarge").unwrap().0 - 3.264).abs() < 1e-9,
            "{name}"
        );
        assert_eq!(
            book.reserved["m5dn.12xlarge"].year_usd,
            Some(17000.0),
            "{name}"
        );
        let gp3 = book.volume("gp3").unwrap();
        assert!(
            (gp3.usd_per_mib_s_month.unwrap() - 0.04).abs() < 1e-9,
            "{name}"
        );
        assert_eq!(gp3.usd_per_iops_month, Some(0.005), "{name}");
        assert!(
            book.volume("st1").is_err(),
            "{name}: st1 is of another region"
        );
        // The offer can be written and read as a price file.
        PriceList::parse("t", &list.to_toml().unwrap()).unwrap();
    }

    #[test]
    fn json_and_csv_offers_say_the_same() {
        check("json", JSON);
        check("csv", CSV);
    }

    #[test]
    fn other_files_are_refused() {
        let cases = [
            ("empty", "", "us-east-1", "empty"),
            ("no offer", "hello\nworld\n", "us-east-1", "SKU"),
            ("cut", &JSON[..500], "us-east-1", "not understood"),
            ("other region", JSON, "ap-south-1", "ap-south-1"),
        ];
        for (name, text, region, want) in cases {
            let error = read_offer(text.as_bytes(), region, None)
                .unwrap_err()
                .to_string();
            assert!(error.contains(want), "{name}: {error}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "(\\PC|\n|\"|,){0,200}") {
            let _ = read_offer(text.as_bytes(), "us-east-1", None);
            let _ = read_offer(format!("{{{text}").as_bytes(), "us-east-1", None);
        }
    }
}
