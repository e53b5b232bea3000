//! What the planner reads: configurations and saved plans, price lists, the cloud's offer files, and the
//! words of its flags.
//!
//! The first byte says which of them the rest is.

use std::sync::OnceLock;

use cairn_plan::catalog::Catalog;
use cairn_plan::check;
use cairn_plan::deploy::{DeployOptions, Format, render};
use cairn_plan::evaluate::{EvaluateError, evaluate};
use cairn_plan::offer::read_offer;
use cairn_plan::prices::PriceList;
use cairn_plan::units::{Bytes, Rate, Usd, parse_growth, parse_share};

const FILE: &str = "file.toml";
const REGION: &str = "us-east-1";

/// Tries one input.
pub fn run(input: &[u8]) {
    let Some((kind, rest)) = input.split_first() else {
        return;
    };
    let text = String::from_utf8_lossy(rest);
    match kind % 5 {
        0 => configuration(&text),
        1 => saved_plan(&text),
        2 => prices(&text),
        3 => offer(rest),
        _ => words(&text),
    }
}

fn catalog() -> &'static Catalog {
    static CATALOG: OnceLock<Catalog> = OnceLock::new();
    CATALOG.get_or_init(Catalog::embedded)
}

/// A design that is read can be checked and evaluated, or that is refused with words.
fn configuration(text: &str) {
    let config = match check::parse(FILE, text) {
        Ok(config) => config,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    let checked = check::check(catalog(), &config);
    if let Some(nearest) = &checked.nearest {
        // Nothing that is sold in its region may be like it.
        let evaluated = evaluate(catalog(), nearest);
        let is_fit = matches!(evaluated, Ok(_) | Err(EvaluateError::Price(_)));
        assert!(is_fit, "{nearest:?}: {:?}", evaluated.err());
    }
    for (_, format) in Format::ALL {
        let _ = render(&config.design, &DeployOptions::default(), format);
    }
}

fn saved_plan(text: &str) {
    for rank in 0..3 {
        if let Ok(design) = check::design_of_rank(FILE, text, rank) {
            let _ = evaluate(catalog(), &design);
        }
    }
}

/// Prices that are read are amounts, and stay what they are when they are written.
fn prices(text: &str) {
    let Ok(list) = PriceList::parse(FILE, text) else {
        return;
    };
    let written = list.to_toml().expect("what was read can be written");
    let again = PriceList::parse(FILE, &written).expect("what was written can be read");
    assert_eq!(again.to_toml().as_ref(), Ok(&written));
    for book in &list.books {
        for usd in book.ec2_usd_per_hour.values() {
            assert!(usd.is_finite() && *usd > 0.0);
        }
        assert!(list.book(&book.name).is_ok());
    }
}

/// What is made of an offer file is a price list.
fn offer(bytes: &[u8]) {
    if let Ok(list) = read_offer(bytes, REGION, None) {
        let written = list.to_toml().expect("a list can be written");
        PriceList::parse(FILE, &written).expect("what was written can be read");
    }
}

/// Amounts are numbers that can be counted with.
fn words(text: &str) {
    let values = [
        Bytes::parse(text).ok().map(Bytes::get),
        Rate::parse(text).ok().map(Rate::bytes_s),
        Usd::parse_per_month(text).ok().map(|usd| usd.0),
        parse_share(text).ok(),
        parse_growth(text).ok(),
    ];
    for value in values.into_iter().flatten() {
        assert!(value.is_finite() && value >= 0.0, "{text:?} is {value}");
    }
}
