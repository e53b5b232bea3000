//! The activity of one request, for the view of clients' activity.
//!
//! Owns: what is counted when: the request when its response begins, bytes of objects as they move. Must not know:
//! the operation of a request.
//!
//! The account travels with the request. The code that finds the volume and the object notes them here.

use std::net::IpAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use cairn_activity::{Activity, Client, Done, File, Operation, Protocol, Work};
use http::Method;

use crate::metrics::METHODS;

struct AccountCore {
    operation: Operation,
    client: Client,
    activity: OnceLock<Arc<Activity>>,
    file: OnceLock<File>,
}

/// The account of one request.
#[derive(Clone)]
pub(crate) struct Account(Arc<AccountCore>);

impl Account {
    pub fn new(method: &Method, client: IpAddr) -> Self {
        let last = METHODS.len() - 1;
        let known = METHODS.iter().position(|name| *name == method.as_str());
        let number = known.unwrap_or(last);
        Self(Arc::new(AccountCore {
            operation: Operation {
                protocol: Protocol::S3,
                // There are six methods.
                number: number as u8,
                name: METHODS[number],
            },
            client: Client::address(Protocol::S3, client),
            activity: OnceLock::new(),
            file: OnceLock::new(),
        }))
    }

    /// Sets the volume that counts the request. The first call wins.
    pub fn in_volume(&self, activity: impl FnOnce() -> Arc<Activity>) {
        self.0.activity.get_or_init(activity);
    }

    /// Sets the object of the request, or the bucket when there is no key.
    pub fn at(&self, bucket: &str, key: &str) {
        self.0.file.get_or_init(|| File::object(bucket, key));
    }

    /// The response begins.
    pub fn answered(&self, elapsed: Duration) {
        self.note(Work::ONE, Some(elapsed));
    }

    /// Counts sent bytes of the object.
    pub fn sent(&self, len_bytes: u64) {
        let work = Work {
            read_bytes: len_bytes,
            ..Work::default()
        };
        self.note(work, None);
    }

    /// Counts received bytes of the object.
    pub fn received(&self, len_bytes: u64) {
        let work = Work {
            written_bytes: len_bytes,
            ..Work::default()
        };
        self.note(work, None);
    }

    fn note(&self, work: Work, latency: Option<Duration>) {
        let inner = &self.0;
        if let Some(activity) = inner.activity.get() {
            activity.note(&Done {
                operation: inner.operation,
                client: &inner.client,
                file: inner.file.get(),
                work,
                latency,
            });
        }
    }
}
