//! Policies of buckets: what they say to each action is what a plain reading of the same JSON says.

use cairn_codec_s3::{Action, Policy, Verdict};
use serde_json::Value;

const BUCKET: &str = "photos";
const KEYS: [Option<&str>; 3] = [None, Some("AKIAALICE"), Some("*")];
const RESOURCES: [&str; 4] = ["photos", "photos/", "photos/a/b", "photos/*"];

/// Tries one input.
pub fn run(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else {
        return;
    };
    let Ok(policy) = Policy::parse(text, BUCKET) else {
        return;
    };
    let document: Value = serde_json::from_str(text).expect("it was read");
    let statements = list(&document["Statement"]);
    for action in Action::ALL {
        for key in KEYS {
            for resource in RESOURCES {
                let said = policy.verdict(key, *action, resource);
                let wanted = verdict(&statements, key, *action, resource);
                assert_eq!(said, wanted, "{action:?} {key:?} {resource}: {text}");
            }
        }
    }
    // What is taken when it is put means something: each statement some action.
    if policy.check(|_| true, |_| Ok(())).is_ok() {
        for statement in &statements {
            let is_meant = |pattern: &&Value| {
                let pattern = pattern.as_str().expect("a text").to_lowercase();
                let mut names = Action::ALL.iter().map(|action| action.name());
                names.any(|name| is_like(&pattern, &name.to_lowercase()))
            };
            assert!(list(&statement["Action"]).iter().all(is_meant), "{text}");
        }
    }
    // The one that stands in for what cannot be read.
    assert_eq!(
        Policy::closed().verdict(None, Action::GetObject, "photos/a"),
        Verdict::Deny
    );
}

/// One, or each of a list.
fn list(value: &Value) -> Vec<&Value> {
    match value {
        Value::Array(all) => all.iter().collect(),
        one => vec![one],
    }
}

fn verdict(statements: &[&Value], key: Option<&str>, action: Action, resource: &str) -> Verdict {
    let is_any = |value: &Value, is: &dyn Fn(&str) -> bool| {
        let mut texts = list(value).into_iter().filter_map(Value::as_str);
        texts.any(is)
    };
    let name = action.name().to_lowercase();
    let arn = format!("arn:aws:s3:::{resource}");
    let means = |statement: &&&Value| {
        let is_principal = match &statement["Principal"] {
            Value::String(_) => true,
            named => is_any(&named["AWS"], &|named| {
                let last = named.rsplit(['/', ':']).next();
                named == "*" || key.is_some() && last == key
            }),
        };
        is_principal
            && is_any(&statement["Action"], &|pattern| {
                is_like(&pattern.to_ascii_lowercase(), &name)
            })
            && is_any(&statement["Resource"], &|pattern| is_like(pattern, &arn))
    };
    let meant: Vec<&&Value> = statements.iter().filter(means).collect();
    let has = |effect: &str| meant.iter().any(|statement| statement["Effect"] == effect);
    match (has("Deny"), has("Allow")) {
        (true, _) => Verdict::Deny,
        (false, true) => Verdict::Allow,
        (false, false) => Verdict::Silent,
    }
}

/// `*` is any bytes, `?` is one: which ends of the text each beginning of the pattern can reach.
fn is_like(pattern: &str, text: &str) -> bool {
    let text = text.as_bytes();
    let mut reached = vec![false; text.len() + 1];
    reached[0] = true;
    for byte in pattern.bytes() {
        let mut next = vec![false; text.len() + 1];
        for at in 0..=text.len() {
            match byte {
                b'*' => next[at] = reached[at] || at > 0 && next[at - 1],
                _ if at > 0 => {
                    next[at] = reached[at - 1] && (byte == b'?' || byte == text[at - 1]);
                }
                _ => {}
            }
        }
        reached = next;
    }
    reached[text.len()]
}
