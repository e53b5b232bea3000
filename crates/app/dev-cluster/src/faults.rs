//! What may happen to the network of a machine, as the commands that do it.
//!
//! Owns: the words of nft and tc. Must not know: how commands are run.
//!
//! All is done at the switch, by its ports: a machine that is cut off is told nothing, as with a cable that is pulled.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Which way nothing gets through.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Way {
    #[default]
    Both,
    /// Towards the machine only: it speaks and hears nothing.
    To,
    /// From the machine only: it hears and nobody hears it.
    From,
}

/// A machine that is cut off.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Partition {
    pub way: Way,
    /// From these machines; of all if empty.
    pub peers: Vec<String>,
    /// From clients on this machine as well.
    pub clients: bool,
}

impl fmt::Display for Partition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let way = match self.way {
            Way::Both => "cut off",
            Way::To => "hears nothing",
            Way::From => "is not heard",
        };
        f.write_str(way)?;
        match &self.peers[..] {
            [] => f.write_str(" (all nodes")?,
            peers => write!(f, " ({}", peers.join(", "))?,
        }
        f.write_str(if self.clients { ", clients)" } else { ")" })
    }
}

/// A network that is slow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Slow {
    /// Of each packet, each way.
    pub delay: Option<Delay>,
    pub rate: Option<Rate>,
    pub loss: Option<Loss>,
}

impl fmt::Display for Slow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("slow")?;
        if let Some(delay) = self.delay {
            write!(f, ", {delay} late")?;
        }
        if let Some(rate) = self.rate {
            write!(f, ", {rate}")?;
        }
        if let Some(loss) = self.loss {
            write!(f, ", {loss} lost")?;
        }
        Ok(())
    }
}

/// A number with one of these units, times the unit's factor; within 1 and `max`.
fn parse_with_unit(text: &str, units: &[(&str, f64)], max: u64) -> Result<u64, String> {
    let names = || {
        let names: Vec<&str> = units.iter().map(|(name, _)| *name).collect();
        names.join(", ")
    };
    let digits =
        text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic() || letter == '%');
    let unit = &text[digits.len()..];
    let Some((_, factor)) = units.iter().find(|(name, _)| *name == unit) else {
        return Err(format!("\"{text}\" has none of the units {}", names()));
    };
    let number: f64 = digits.parse().map_err(|_| {
        format!(
            "\"{text}\" is not a number with one of the units {}",
            names()
        )
    })?;
    let value = (number * factor).round();
    if !(value >= 1.0 && value <= max as f64) {
        return Err(format!("\"{text}\" is too little or too much"));
    }
    Ok(value as u64)
}

macro_rules! amount {
    ($(#[$doc:meta])* $name:ident, $units:expr, $max:expr, $value:ident => $($shown:tt)*) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
        pub struct $name(u64);

        impl FromStr for $name {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                parse_with_unit(text, $units, $max).map(Self)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let $value = self.0;
                write!(f, $($shown)*)
            }
        }
    };
}

amount!(
    /// A time, in microseconds: `20ms`.
    Delay, &[("us", 1.0), ("ms", 1e3), ("s", 1e6)], 60_000_000, micros => "{micros}us"
);
amount!(
    /// Bits a second: `10mbit`.
    Rate, &[("bit", 1.0), ("kbit", 1e3), ("mbit", 1e6), ("gbit", 1e9)], 1_000_000_000_000, bits => "{bits}bit"
);
amount!(
    /// A share of all packets, in millionths: `1%`.
    Loss, &[("%", 1e4)], 1_000_000, millionths => "{}%", millionths as f64 / 1e4
);

/// The port of this machine at the switch.
pub const HOST_PORT: &str = "host";
/// Packets that wait in a network that is slow.
const QUEUE_PACKETS: u32 = 10_000;

/// What nft reads to cut a machine off, or to lose packets of it; `peers` are ports of the switch.
pub fn cut_rules(machine: &str, partition: &Partition, peers: &[String]) -> String {
    let others: Vec<String> = peers.iter().map(|port| format!("\"{port}\"")).collect();
    let others = others.join(", ");
    let mut rules = Vec::new();
    if partition.way != Way::From {
        rules.push(format!("iifname {{ {others} }} oifname \"{machine}\" drop"));
    }
    if partition.way != Way::To {
        rules.push(format!("iifname \"{machine}\" oifname {{ {others} }} drop"));
    }
    table(&cut_table(machine), &rules)
}

pub fn loss_rules(machine: &str, loss: Loss) -> String {
    let some = format!("numgen random mod 1000000 < {} drop", loss.0);
    let rules = [
        format!("iifname \"{machine}\" {some}"),
        format!("oifname \"{machine}\" {some}"),
    ];
    table(&loss_table(machine), &rules)
}

/// A table with these rules only, whether it was there or not.
fn table(name: &str, rules: &[String]) -> String {
    let removed = removed_table(name);
    let rules = rules.join("\n    ");
    format!(
        "{removed}table bridge {name} {{\n  chain forward {{\n    type filter hook forward priority 0; policy accept;\n    {rules}\n  }}\n}}\n"
    )
}

/// What nft reads to remove both; it is no error if one is not there.
pub fn no_rules(machine: &str) -> String {
    removed_table(&cut_table(machine)) + &no_loss_rules(machine)
}

pub fn no_loss_rules(machine: &str) -> String {
    removed_table(&loss_table(machine))
}

fn removed_table(name: &str) -> String {
    format!("add table bridge {name}\ndelete table bridge {name}\n")
}

fn cut_table(machine: &str) -> String {
    format!("cut_{machine}")
}

fn loss_table(machine: &str) -> String {
    format!("loss_{machine}")
}

/// What tc is told of one end of the machine's link; none if that end is as fast as ever.
pub fn netem(slow: &Slow) -> Vec<String> {
    let mut words = vec![
        "netem".to_owned(),
        "limit".to_owned(),
        QUEUE_PACKETS.to_string(),
    ];
    if let Some(delay) = slow.delay {
        words.extend(["delay".to_owned(), delay.to_string()]);
    }
    if let Some(loss) = slow.loss {
        words.extend(["loss".to_owned(), loss.to_string()]);
    }
    if let Some(rate) = slow.rate {
        words.extend(["rate".to_owned(), rate.to_string()]);
    }
    words
}

/// Arguments of tc for a kernel without netem, which can only limit the rate.
pub fn token_bucket(rate: Rate) -> Vec<String> {
    /// What may go out at once, and how long packets wait at most before they are dropped.
    const BURST: &str = "64kb";
    const LATENCY: &str = "400ms";
    [
        "tbf",
        "rate",
        &rate.to_string(),
        "burst",
        BURST,
        "latency",
        LATENCY,
    ]
    .map(str::to_owned)
    .to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_taken_or_refused() {
        for (text, want) in [
            ("20ms", Some("20000us")),
            ("1.5ms", Some("1500us")),
            ("2s", Some("2000000us")),
            ("0ms", None),
            ("61s", None),
            ("20", None),
            ("ms", None),
            ("-1ms", None),
            ("1 ms", None),
            ("20minutes", None),
        ] {
            let got = text.parse::<Delay>().ok().map(|delay| delay.to_string());
            assert_eq!(got.as_deref(), want, "{text}");
        }
        for (text, want) in [
            ("10mbit", Some("10000000bit")),
            ("9kbit", Some("9000bit")),
            ("1MB", None),
        ] {
            let got = text.parse::<Rate>().ok().map(|rate| rate.to_string());
            assert_eq!(got.as_deref(), want, "{text}");
        }
        for (text, want) in [
            ("1%", Some("1%")),
            ("0.5%", Some("0.5%")),
            ("101%", None),
            ("NaN%", None),
        ] {
            let got = text.parse::<Loss>().ok().map(|loss| loss.to_string());
            assert_eq!(got.as_deref(), want, "{text}");
        }
    }

    #[test]
    fn rules_go_the_ways_that_are_meant() {
        let peers = ["node2".to_owned(), HOST_PORT.to_owned()];
        let to_it = "iifname { \"node2\", \"host\" } oifname \"node1\" drop";
        let from_it = "iifname \"node1\" oifname { \"node2\", \"host\" } drop";
        for (way, to, from) in [
            (Way::Both, true, true),
            (Way::To, true, false),
            (Way::From, false, true),
        ] {
            let partition = Partition {
                way,
                ..Partition::default()
            };
            let rules = cut_rules("node1", &partition, &peers);
            assert_eq!(rules.contains(to_it), to, "{way:?}");
            assert_eq!(rules.contains(from_it), from, "{way:?}");
            // Of what was there before nothing is left.
            assert!(rules.starts_with(&removed_table("cut_node1")));
        }
        let rules = loss_rules("node1", "1%".parse().unwrap());
        assert!(rules.contains("mod 1000000 < 10000 drop"), "{rules}");
    }

    #[test]
    fn only_what_is_asked_for_is_slow() {
        let slow = Slow {
            delay: Some("20ms".parse().unwrap()),
            rate: Some("10mbit".parse().unwrap()),
            loss: Some("1%".parse().unwrap()),
        };
        let all = netem(&slow).join(" ");
        assert_eq!(
            all,
            "netem limit 10000 delay 20000us loss 1% rate 10000000bit"
        );
        let only = Slow {
            delay: slow.delay,
            ..Slow::default()
        };
        assert_eq!(netem(&only).join(" "), "netem limit 10000 delay 20000us");
        assert_eq!(only.to_string(), "slow, 20000us late");
        let bucket = token_bucket(slow.rate.unwrap()).join(" ");
        assert_eq!(bucket, "tbf rate 10000000bit burst 64kb latency 400ms");
    }
}
