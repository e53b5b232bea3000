//! How often somebody may try to log in.
//!
//! Owns: the limits, by user and by address, and that they take bounded memory. Must not know: HTTP, whether a try was
//! right, the time of day.
//!
//! Each key has so many tries at once, and gets one back every so often. What is remembered of a key is when it would have
//! all of them again (the generic cell rate algorithm), so a key that has them all need not be remembered.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use parking_lot::Mutex;

/// Tries in a row, and the time after which one more is given back.
#[derive(Clone, Copy, Debug)]
struct Limit {
    at_once: u32,
    every: Duration,
}

/// Of one user, from anywhere.
const BY_USER: Limit = Limit {
    at_once: 10,
    every: Duration::from_secs(30),
};
/// Of one address, for any user.
const BY_ADDRESS: Limit = Limit {
    at_once: 30,
    every: Duration::from_secs(10),
};
/// Keys of each kind that are remembered; of more, the one that has its tries back first is forgotten.
const KEYS_MAX: usize = 1024;

/// One kind of keys.
struct Tries<K> {
    limit: Limit,
    /// When each key has all of its tries again.
    full_at: HashMap<K, Duration>,
}

impl<K: Clone + Eq + Hash> Tries<K> {
    fn new(limit: Limit) -> Self {
        Self {
            limit,
            full_at: HashMap::new(),
        }
    }

    /// How long a key has to wait for its next try; `None` if it need not.
    fn wait(&self, key: &K, now: Duration) -> Option<Duration> {
        let full_at = self.full_at.get(key).copied().unwrap_or(now).max(now);
        let all = self.limit.every.saturating_mul(self.limit.at_once);
        let after = full_at.saturating_add(self.limit.every).saturating_sub(now);
        let wait = after.saturating_sub(all);
        (!wait.is_zero()).then_some(wait)
    }

    fn take(&mut self, key: &K, now: Duration) {
        if !self.full_at.contains_key(key) && self.full_at.len() >= KEYS_MAX {
            self.full_at.retain(|_, full_at| *full_at > now);
            if self.full_at.len() >= KEYS_MAX {
                let first = self.full_at.iter().min_by_key(|(_, full_at)| **full_at);
                if let Some(first) = first.map(|(key, _)| key.clone()) {
                    self.full_at.remove(&first);
                }
            }
        }
        let full_at = self.full_at.entry(key.clone()).or_insert(now);
        *full_at = (*full_at).max(now).saturating_add(self.limit.every);
    }

    fn give_back(&mut self, key: &K) {
        if let Some(full_at) = self.full_at.get_mut(key) {
            *full_at = full_at.saturating_sub(self.limit.every);
        }
    }
}

/// The address by which tries are counted: whoever has one IPv6 address has a whole network of 64 bits.
pub(crate) fn counted(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
    }
}

/// Counts tries to log in.
pub struct Attempts {
    tries: Mutex<(Tries<String>, Tries<IpAddr>)>,
}

impl Default for Attempts {
    fn default() -> Self {
        Self {
            tries: Mutex::new((Tries::new(BY_USER), Tries::new(BY_ADDRESS))),
        }
    }
}

impl Attempts {
    /// Takes a try, before anybody looks whether it is right: tries side by side are counted, too. `user` is `None` for
    /// the token. `now` is of a clock that only goes forward.
    ///
    /// Fails with the time to wait; such a try is not counted.
    pub fn take(&self, user: Option<&str>, address: IpAddr, now: Duration) -> Result<(), Duration> {
        let address = counted(address);
        let mut tries = self.tries.lock();
        let (users, addresses) = &mut *tries;
        let user = user.map(str::to_owned);
        let of_user = user.as_ref().and_then(|user| users.wait(user, now));
        if let Some(wait) = of_user.max(addresses.wait(&address, now)) {
            return Err(wait);
        }
        if let Some(user) = &user {
            users.take(user, now);
        }
        addresses.take(&address, now);
        Ok(())
    }

    /// Gives a try back that was right.
    pub fn was_right(&self, user: Option<&str>, address: IpAddr) {
        let mut tries = self.tries.lock();
        let (users, addresses) = &mut *tries;
        if let Some(user) = user {
            users.give_back(&user.to_owned());
        }
        addresses.give_back(&counted(address));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn address(last: u32) -> IpAddr {
        IpAddr::from(last.to_be_bytes())
    }

    #[test]
    fn a_user_has_so_many_tries_from_anywhere() {
        let attempts = Attempts::default();
        let now = 1000 * SECOND;
        for number in 0..BY_USER.at_once {
            assert_eq!(attempts.take(Some("alice"), address(number), now), Ok(()));
        }
        let refused = attempts.take(Some("alice"), address(77), now);
        assert_eq!(refused, Err(BY_USER.every));
        // Waiting is not counted, and others do not wait.
        assert_eq!(
            attempts.take(Some("alice"), address(77), now + SECOND),
            Err(BY_USER.every - SECOND)
        );
        assert_eq!(attempts.take(Some("bob"), address(77), now), Ok(()));
        assert_eq!(attempts.take(None, address(77), now), Ok(()));
        let later = now + BY_USER.every;
        assert_eq!(attempts.take(Some("alice"), address(77), later), Ok(()));
        assert!(attempts.take(Some("alice"), address(77), later).is_err());
        attempts.was_right(Some("alice"), address(77));
        assert_eq!(attempts.take(Some("alice"), address(77), later), Ok(()));
        let much_later = later + BY_USER.every * (BY_USER.at_once + 1);
        for number in 0..BY_USER.at_once {
            assert_eq!(
                attempts.take(Some("alice"), address(number), much_later),
                Ok(())
            );
        }
        assert!(
            attempts
                .take(Some("alice"), address(77), much_later)
                .is_err()
        );
    }

    #[test]
    fn an_address_has_so_many_tries_for_anybody() {
        let attempts = Attempts::default();
        let network = |low: u64| IpAddr::from((1_u128 << 80 | u128::from(low)).to_be_bytes());
        for number in 0..BY_ADDRESS.at_once {
            let user = format!("user{number}");
            let from = network(u64::from(number));
            assert_eq!(attempts.take(Some(&user), from, SECOND), Ok(()));
        }
        let refused = attempts.take(None, network(u64::MAX), SECOND);
        assert_eq!(refused, Err(BY_ADDRESS.every));
        let mapped: IpAddr = "::ffff:0.0.0.1".parse().unwrap();
        assert_eq!(counted(mapped), address(1));
    }

    /// Whoever tries many names must not get more tries of one of them.
    #[test]
    fn what_is_remembered_is_bounded() {
        let attempts = Attempts::default();
        for number in 0..BY_USER.at_once {
            assert_eq!(
                attempts.take(Some("alice"), address(number), SECOND),
                Ok(())
            );
        }
        for number in 0..4 * KEYS_MAX as u32 {
            let user = format!("user{number}");
            assert_eq!(attempts.take(Some(&user), address(number), SECOND), Ok(()));
        }
        let tries = attempts.tries.lock();
        assert!(tries.0.full_at.len() <= KEYS_MAX && tries.1.full_at.len() <= KEYS_MAX);
        drop(tries);
        assert!(
            attempts
                .take(Some("alice"), address(1 << 20), SECOND)
                .is_err()
        );
    }
}
