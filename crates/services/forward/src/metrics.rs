//! Counters of streams to owners and of connections that ended for them.
//!
//! Owns: the counters. Must not know: when they count.

use prometheus::{IntCounterVec, Opts, Registry};

use crate::admission::{End, Refused};
use crate::preamble::Service;

pub struct ForwardedStreams {
    opened: IntCounterVec,
    refused: IntCounterVec,
    ended: IntCounterVec,
}

impl ForwardedStreams {
    pub fn new() -> prometheus::Result<Self> {
        let counter = |name: &str, help: &str, label: &str| {
            IntCounterVec::new(Opts::new(name, help), &[label])
        };
        Ok(Self {
            opened: counter(
                "cairn_forward_streams_opened_total",
                "Streams that other nodes opened to this one for their clients.",
                "service",
            )?,
            refused: counter(
                "cairn_forward_streams_refused_total",
                "Streams of other nodes that were refused, because their clients may have sent the same calls to other nodes.",
                "why",
            )?,
            ended: counter(
                "cairn_forward_connections_ended_total",
                "Client connections and streams of other nodes that this node closed, because calls in them may be old.",
                "why",
            )?,
        })
    }

    pub fn register(&self, registry: &Registry) -> prometheus::Result<()> {
        registry.register(Box::new(self.opened.clone()))?;
        registry.register(Box::new(self.refused.clone()))?;
        registry.register(Box::new(self.ended.clone()))
    }

    pub(crate) fn opened(&self, service: Service) {
        self.opened.with_label_values(&[service.name()]).inc();
    }

    pub(crate) fn refused(&self, why: Refused) {
        let why = match why {
            Refused::TermEnded => "term_ended",
            Refused::Behind => "behind",
            Refused::Late => "late",
        };
        self.refused.with_label_values(&[why]).inc();
    }

    pub fn ended(&self, why: End) {
        let why = match why {
            End::Term => "term_ended",
            End::Silent => "silent",
            End::Standstill => "standstill",
            End::Late => "late",
        };
        self.ended.with_label_values(&[why]).inc();
    }
}
