//! One rate, with a burst above it for as long as there is credit.
//!
//! Owns: the arithmetic. Must not know: the unit of the counts, who waits.
//!
//! A request that comes while the bucket is not in debt may go, and is charged in full: the next one waits for the debt. So
//! a request may be larger than what there ever is in the bucket, and over time exactly the rate comes out.

use std::time::Duration;

/// So long a rate may be unused and made up for: who has to look for the next request in time may be late by it. It is
/// also what a rate is exceeded by at most, beside one request.
pub const SLACK: Duration = Duration::from_millis(100);
/// Shorter waits are none: floating point leaves crumbs.
const WAIT_SECONDS_MIN: f64 = 1e-9;
/// No wait is longer: rates may change meanwhile.
const WAIT_SECONDS_MAX: f64 = 3600.0;

/// So much in a second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    pub baseline: f64,
    /// The most in a second while there is credit.
    pub burst: f64,
    /// The most credit that is kept: what can be used above the baseline.
    pub credit: f64,
}

impl Rate {
    /// A rate without a burst.
    pub fn steady(baseline: f64) -> Self {
        Self {
            baseline,
            burst: baseline,
            credit: 0.0,
        }
    }

    pub fn has_burst(&self) -> bool {
        self.burst > self.baseline && self.credit > 0.0
    }

    /// The most that is kept for later.
    fn level_max(&self) -> f64 {
        self.credit.max(self.baseline * SLACK.as_secs_f64())
    }

    fn peak_max(&self) -> f64 {
        self.burst * SLACK.as_secs_f64()
    }
}

#[derive(Clone, Debug)]
pub struct Bucket {
    rate: Rate,
    /// Filled at the baseline: credit, or debt.
    level: f64,
    /// Filled at the burst.
    peak: f64,
    /// As of when.
    at: Duration,
}

impl Bucket {
    /// With a part of the credit, 1 being all.
    pub fn new(rate: Rate, part: f64, now: Duration) -> Self {
        Self {
            rate,
            level: rate.level_max() * part,
            peak: rate.peak_max(),
            at: now,
        }
    }

    pub fn rate(&self) -> Rate {
        self.rate
    }

    pub fn refill(&mut self, now: Duration) {
        let Some(elapsed) = now.checked_sub(self.at) else {
            return;
        };
        let seconds = elapsed.as_secs_f64();
        self.level = (self.level + self.rate.baseline * seconds).min(self.rate.level_max());
        self.peak = (self.peak + self.rate.burst * seconds).min(self.rate.peak_max());
        self.at = now;
    }

    /// Whether the next one may go, as of the last look: [`Self::wait`] is nothing.
    pub fn is_ready(&self) -> bool {
        self.level >= -self.rate.baseline * WAIT_SECONDS_MIN
            && self.peak >= -self.rate.burst * WAIT_SECONDS_MIN
    }

    /// How long until the next one may go, as of the last look.
    pub fn wait(&self) -> Duration {
        let level = -self.level / self.rate.baseline;
        seconds(level.max(self.peak_wait()))
    }

    /// The wait of an operation with a lent rate, which needs neither credit nor baseline of this bucket.
    pub fn wait_lent(&self) -> Duration {
        match self.rate.has_burst() {
            true => seconds(self.peak_wait()),
            false => Duration::ZERO,
        }
    }

    fn peak_wait(&self) -> f64 {
        -self.peak / self.rate.burst
    }

    pub fn charge(&mut self, count: f64) {
        self.level -= count;
        self.peak -= count;
    }

    /// Charges a lent amount.
    pub fn charge_lent(&mut self, count: f64) {
        if self.rate.has_burst() {
            self.peak -= count;
        }
    }

    /// Takes another rate. Earned credit stays, as far as it may be kept; and debt of a slower time is no reason to
    /// wait longer than it would have been at the new rate.
    pub fn set_rate(&mut self, rate: Rate, now: Duration) {
        self.refill(now);
        self.rate = rate;
        self.level = self.level.min(rate.level_max());
        self.peak = self.peak.min(rate.peak_max());
    }

    /// What can be used above the baseline now.
    pub fn credit(&self) -> f64 {
        match self.rate.has_burst() {
            true => self.level.clamp(0.0, self.rate.credit),
            false => 0.0,
        }
    }

    /// Adds credit that was earned elsewhere.
    pub fn earn(&mut self, credit: f64) {
        self.level = (self.level + credit.max(0.0)).min(self.rate.level_max());
    }

    /// Whether nothing of it was used lately: a new one would be the same.
    pub fn is_full(&self) -> bool {
        self.level >= self.rate.level_max() && self.peak >= self.rate.peak_max()
    }
}

fn seconds(seconds: f64) -> Duration {
    match seconds > WAIT_SECONDS_MIN {
        true => Duration::from_secs_f64(seconds.min(WAIT_SECONDS_MAX)),
        false => Duration::ZERO,
    }
}
