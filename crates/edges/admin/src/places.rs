//! How many connections one address may have.
//!
//! Owns: the counts. Must not know: what a connection is for.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::attempts::counted;

/// Places for connections, by address. The machine itself has as many as there are: a proxy on it speaks for others.
pub(crate) struct Places {
    of_one_max: usize,
    taken: Mutex<HashMap<IpAddr, usize>>,
}

impl Places {
    pub fn new(of_one_max: usize) -> Arc<Self> {
        Arc::new(Self {
            of_one_max,
            taken: Mutex::default(),
        })
    }

    /// A place, if the address may have another one.
    pub fn take(self: &Arc<Self>, address: IpAddr) -> Option<Place> {
        let address = counted(address);
        let mut taken = self.taken.lock();
        let count = taken.entry(address).or_default();
        if *count >= self.of_one_max && !address.is_loopback() {
            return None;
        }
        *count += 1;
        Some(Place {
            places: Arc::clone(self),
            address,
        })
    }
}

/// A place that is taken until this is dropped.
pub(crate) struct Place {
    places: Arc<Places>,
    address: IpAddr,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.taken.lock();
        if let Some(count) = taken.get_mut(&self.address) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                taken.remove(&self.address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_address_takes_no_place_of_others() {
        let places = Places::new(2);
        let address = |text: &str| text.parse::<IpAddr>().unwrap();
        let one = address("192.0.2.1");
        let first = places.take(one);
        let second = places.take(address("::ffff:192.0.2.1"));
        assert!(first.is_some() && second.is_some());
        assert!(places.take(one).is_none());
        assert!(places.take(address("192.0.2.2")).is_some());
        drop(first);
        assert!(places.take(one).is_some());
        // One network is one.
        let _held = [1, 2].map(|host| places.take(address(&format!("2001:db8::{host}"))));
        assert!(places.take(address("2001:db8::3")).is_none());
        // But for the machine itself.
        let own: Vec<_> = (0..5).map(|_| places.take(address("127.0.0.1"))).collect();
        assert!(own.iter().all(Option::is_some));
        drop((second, own, _held));
        assert!(places.taken.lock().is_empty());
    }
}
