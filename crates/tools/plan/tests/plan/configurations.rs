//! The corpus of configurations (`corpus/configurations.toml`): each gets its verdict, and the nearest.

use std::collections::BTreeSet;

use cairn_plan::catalog::Catalog;
use cairn_plan::check::{self, Config, violations};
use cairn_plan::deployable;
use cairn_plan::design::Design;
use cairn_plan::evaluate::{EvaluateError, evaluate};
use serde::Deserialize;

/// With fewer the corpus was cut.
const CASE_COUNT_MIN: usize = 150;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Corpus {
    group: Vec<Group>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Group {
    source: String,
    date: String,
    case: Vec<Case>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    name: String,
    design: Design,
    breaks: BTreeSet<String>,
    nearest: Option<String>,
    unknown: Option<String>,
}

#[test]
fn every_configuration_gets_its_verdict() {
    let corpus: Corpus = toml::from_str(include_str!("../../corpus/configurations.toml")).unwrap();
    let catalog = Catalog::embedded();
    let mut names = BTreeSet::new();
    let mut wrong = Vec::new();
    for group in &corpus.group {
        assert!(!group.source.is_empty() && group.date.len() >= 4);
        for case in &group.case {
            assert!(names.insert(&case.name), "{} twice", case.name);
            wrong.extend(verdict(&catalog, case).map(|why| format!("{}: {why}", case.name)));
        }
    }
    assert!(wrong.is_empty(), "{}\n{}", wrong.len(), wrong.join("\n"));
    assert!(names.len() >= CASE_COUNT_MIN, "{}", names.len());
}

/// Why the verdict is wrong; `None`: it is the expected one.
fn verdict(catalog: &Catalog, case: &Case) -> Option<String> {
    let checked = check::check(
        catalog,
        &Config {
            design: case.design.clone(),
            different: Vec::new(),
        },
    );
    let breaks: BTreeSet<String> = checked
        .violations
        .iter()
        .map(|it| it.rule.to_string())
        .collect();
    if breaks != case.breaks {
        return Some(format!("breaks {breaks:?}, not {:?}", case.breaks));
    }
    let unknown = checked.unknown.unwrap_or_default();
    match &case.unknown {
        Some(want) if !unknown.contains(want) => return Some(format!("unknown: {unknown}")),
        None if !unknown.is_empty() => return Some(format!("unknown: {unknown}")),
        _ => {}
    }
    // What cannot be deployed has no figures, wherever they are asked for.
    let sold = deployable::violations(catalog, &case.design).is_empty();
    let refused = matches!(
        evaluate(catalog, &case.design),
        Err(EvaluateError::NotDeployable { .. })
    );
    if sold == refused {
        return Some(format!("sold: {sold}, refused: {refused}"));
    }
    let Some(nearest) = &checked.nearest else {
        return (!breaks.is_empty()).then(|| "has no nearest".to_owned());
    };
    if breaks.is_empty() || !violations(catalog, nearest).is_empty() {
        return Some(format!("nearest: {}", nearest.name()));
    }
    let want = case.nearest.as_deref().unwrap_or_default();
    (!nearest.name().contains(want)).then(|| format!("nearest: {}, not {want}", nearest.name()))
}
