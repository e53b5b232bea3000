//! What wakes somebody up, in every format.
//!
//! Owns: metrics, thresholds, for how long. `health.sh` sends these metrics. Must not know: how a format writes an alarm.

/// An alarm on one metric, in the words of CloudWatch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Alarm {
    pub name: &'static str,
    pub words: &'static str,
    pub metric: &'static str,
    pub statistic: &'static str,
    pub comparison: &'static str,
    pub threshold: u32,
    pub period_seconds: u32,
    pub periods: u32,
    /// What no figures mean.
    pub missing: &'static str,
}

/// Of what a server tells of itself.
pub(super) const ALARMS: [Alarm; 3] = [
    Alarm {
        name: "Serving",
        words: "The Cairn server does not answer, or its machine tells nothing.",
        metric: "Serving",
        statistic: "Minimum",
        comparison: "LessThanThreshold",
        threshold: 1,
        period_seconds: 60,
        periods: 5,
        missing: "breaching",
    },
    Alarm {
        name: "Degraded",
        words: "Some data of Cairn has less protection than it should, or is not served: see cairn status.",
        metric: "Degraded",
        statistic: "Minimum",
        comparison: "GreaterThanOrEqualToThreshold",
        threshold: 1,
        period_seconds: 300,
        periods: 3,
        missing: "ignore",
    },
    Alarm {
        name: "Space",
        words: "The disks of Cairn are 85% full.",
        metric: "UsedPercent",
        statistic: "Maximum",
        comparison: "GreaterThanOrEqualToThreshold",
        threshold: 85,
        period_seconds: 300,
        periods: 3,
        missing: "ignore",
    },
];

/// Of each node of a cluster, by EC2's own checks.
pub(super) const NODE_ALARM: Alarm = Alarm {
    name: "Node",
    words: "A node of Cairn fails the checks of EC2.",
    metric: "StatusCheckFailed",
    statistic: "Maximum",
    comparison: "GreaterThanOrEqualToThreshold",
    threshold: 1,
    period_seconds: 60,
    periods: 5,
    missing: "breaching",
};
