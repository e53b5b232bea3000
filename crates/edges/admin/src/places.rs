//! How many of something one address may have.
//!
//! Owns: the counts. Must not know: what a place is for.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use cairn_forward::network_of;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Places, by address. The machine itself has no more than others: any of its users can take them.
pub(crate) struct Places {
    of_one_max: usize,
    /// The places left to each address that has one or waits for one.
    left: Mutex<HashMap<IpAddr, Arc<Semaphore>>>,
}

impl Places {
    pub fn new(of_one_max: usize) -> Arc<Self> {
        Arc::new(Self {
            of_one_max,
            left: Mutex::default(),
        })
    }

    fn of(&self, address: IpAddr) -> Arc<Semaphore> {
        let mut left = self.left.lock();
        let make = || Arc::new(Semaphore::new(self.of_one_max));
        Arc::clone(left.entry(address).or_insert_with(make))
    }

    fn none_yet(self: &Arc<Self>, address: IpAddr) -> AddressPermit {
        AddressPermit {
            places: Arc::clone(self),
            address: network_of(address),
            permit: None,
        }
    }

    /// A place, if the address may have another one.
    pub fn take(self: &Arc<Self>, address: IpAddr) -> Option<AddressPermit> {
        let mut place = self.none_yet(address);
        place.permit = self.of(place.address).try_acquire_owned().ok();
        place.permit.is_some().then_some(place)
    }

    /// Waits until the address may have another place. Who waits longest is the next one.
    pub async fn wait(self: &Arc<Self>, address: IpAddr) -> AddressPermit {
        let mut place = self.none_yet(address);
        // Nobody closes it.
        place.permit = self.of(place.address).acquire_owned().await.ok();
        place
    }
}

/// A place that is taken until this is dropped.
pub(crate) struct AddressPermit {
    places: Arc<Places>,
    address: IpAddr,
    permit: Option<OwnedSemaphorePermit>,
}

impl Drop for AddressPermit {
    fn drop(&mut self) {
        self.permit = None;
        let mut left = self.places.left.lock();
        let is_unused = |left: &Arc<Semaphore>| {
            // A waiting request holds it as well.
            Arc::strong_count(left) == 1 && left.available_permits() == self.places.of_one_max
        };
        if left.get(&self.address).is_some_and(is_unused) {
            left.remove(&self.address);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn one_address_takes_no_place_of_others() {
        let places = Places::new(2);
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
        // So is the machine itself.
        let own = [(); 3].map(|()| places.take(address("127.0.0.1")));
        assert_eq!(own.each_ref().map(Option::is_some), [true, true, false]);
        drop((second, own, _held));
        assert!(places.left.lock().is_empty());
    }

    #[test]
    fn who_waits_longest_is_the_next_one() {
        let places = Places::new(1);
        let one = address("192.0.2.1");
        let taken = places.take(one).unwrap();
        let mut first = Box::pin(places.wait(one));
        let mut second = Box::pin(places.wait(one));
        let mut given_up = Box::pin(places.wait(one));
        assert!((&mut first).now_or_never().is_none());
        assert!((&mut second).now_or_never().is_none());
        assert!((&mut given_up).now_or_never().is_none());
        drop(taken);
        assert!(places.take(one).is_none(), "it is the first one's");
        assert!((&mut second).now_or_never().is_none());
        let taken = (&mut first).now_or_never().unwrap();
        drop(given_up);
        drop(taken);
        drop((&mut second).now_or_never().unwrap());
        drop((first, second));
        assert!(places.left.lock().is_empty(), "nothing is kept of who left");
    }
}
