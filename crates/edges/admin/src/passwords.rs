//! Passwords of users: how they become what is kept of them, and how one is compared with that.
//!
//! Owns: the cost of a hash, how many are computed at a time. Must not know: who asks, where hashes are kept.

use std::sync::{Arc, OnceLock};

use argon2::password_hash::phc::PasswordHash as Phc;
use argon2::{Algorithm, Argon2, Params, PasswordHasher, PasswordVerifier, Version};
use cairn_base::env::Entropy;
use cairn_config::PasswordHash;
use tokio::sync::Semaphore;

use crate::api::ErrorKind;
use crate::control::ControlError;
use crate::users::Password;

/// What OWASP's password storage cheat sheet asks of Argon2id at least: 19 MiB, two passes, one lane.
const MEMORY_KIB: u32 = 19 << 10;
const PASSES: u32 = 2;
const LANES: u32 = 1;
/// A hash that asks for more is none of ours: it would take the memory, or hours.
const MEMORY_KIB_MAX: u32 = 256 << 10;
const PASSES_MAX: u32 = 16;
const LANES_MAX: u32 = 8;
/// Hashes under way at a time. More log-ins wait: all of them together must not take the processors from clients.
const AT_A_TIME_MAX: usize = 2;

fn argon() -> Result<Argon2<'static>, argon2::Error> {
    let params = Params::new(MEMORY_KIB, PASSES, LANES, None)?;
    Ok(Argon2::new(Algorithm::Argon2id, Version::V0x13, params))
}

fn hashed(password: &Password, salt: u128) -> Option<PasswordHash> {
    let salt = salt.to_be_bytes();
    let hash = argon()
        .ok()?
        .hash_password_with_salt(password.as_str().as_bytes(), &salt);
    hash.ok()?.to_string().parse().ok()
}

/// Whether a hash is of this password. One that is no hash, or asks for too much, is of none.
fn is_of(hash: &PasswordHash, password: &Password) -> bool {
    let Ok(phc) = Phc::new(hash.as_str()) else {
        return false;
    };
    let is_ours = Params::try_from(&phc).is_ok_and(|params| {
        params.m_cost() <= MEMORY_KIB_MAX
            && params.t_cost() <= PASSES_MAX
            && params.p_cost() <= LANES_MAX
    });
    let password = password.as_str().as_bytes();
    is_ours && Argon2::default().verify_password(password, &phc).is_ok()
}

/// Computes hashes, a few at a time, on threads that may be busy for so long.
pub(crate) struct Passwords {
    permits: Arc<Semaphore>,
}

impl Default for Passwords {
    fn default() -> Self {
        Self {
            permits: Arc::new(Semaphore::new(AT_A_TIME_MAX)),
        }
    }
}

impl Passwords {
    async fn work<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ControlError> {
        let broke_off =
            || ControlError::new(ErrorKind::Internal, "hashing the password was interrupted");
        let permit = Arc::clone(&self.permits).acquire_owned().await;
        let permit = permit.map_err(|_| broke_off())?;
        let working = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            work()
        });
        working.await.map_err(|_| broke_off())
    }

    /// The hash to keep of a user's new password. Refuses one that is too short, too long or too common.
    pub async fn hash(
        &self,
        user: &str,
        password: Password,
        entropy: &dyn Entropy,
    ) -> Result<PasswordHash, ControlError> {
        let (salt, user) = (entropy.u128(), user.to_owned());
        let hash = self.work(move || match password.problem(&user) {
            Some(problem) => Err(ControlError::new(ErrorKind::Invalid, problem)),
            None => Ok(hashed(&password, salt)),
        });
        let failed = || ControlError::new(ErrorKind::Internal, "the password cannot be hashed");
        hash.await??.ok_or_else(failed)
    }

    /// Whether a password is the one that a hash is of. Takes as long without a hash, so that nobody learns from the
    /// time who is a user.
    pub async fn is_of(
        &self,
        hash: Option<PasswordHash>,
        password: Password,
    ) -> Result<bool, ControlError> {
        static NOBODYS: OnceLock<Option<PasswordHash>> = OnceLock::new();
        self.work(move || {
            let nobodys = || hashed(&Password::new("nobody has this".to_owned()), 0);
            match (hash, NOBODYS.get_or_init(nobodys)) {
                (Some(hash), _) => is_of(&hash, &password),
                (None, Some(nobodys)) => {
                    let _ = is_of(nobodys, &password);
                    false
                }
                (None, None) => false,
            }
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_known_by_its_hash() {
        let password = |text: &str| Password::new(text.to_owned());
        let hash = hashed(&password("correct horse"), 1).unwrap();
        assert!(hash.as_str().starts_with("$argon2id$v=19$m=19456,t=2,p=1$"));
        assert!(is_of(&hash, &password("correct horse")));
        assert!(!is_of(&hash, &password("correct horsf")));
        assert!(!is_of(&hash, &password("")));
        // Another salt, another hash.
        assert_ne!(hashed(&password("correct horse"), 2), Some(hash));
    }

    /// A vector of the reference implementation's own tests.
    #[test]
    fn hashes_of_others_are_read() {
        let hash = "$argon2id$v=19$m=65536,t=2,p=1$c29tZXNhbHQ$CTFhFdXPJO1aFaMaO6Mm5c8y7cJHAph8ArZWb2GRPPc";
        assert!(is_of(
            &hash.parse().unwrap(),
            &Password::new("password".to_owned())
        ));
    }

    #[test]
    fn what_asks_for_too_much_is_no_hash() {
        for parameters in [
            "m=4194304,t=2,p=1",
            "m=19456,t=4000000,p=1",
            "m=19456,t=2,p=200",
            "m=1",
        ] {
            let hash = format!(
                "$argon2id$v=19${parameters}$c29tZXNhbHQ$CTFhFdXPJO1aFaMaO6Mm5c8y7cJHAph8ArZWb2GRPPc"
            );
            let hash = hash.parse().unwrap();
            assert!(
                !is_of(&hash, &Password::new("password".to_owned())),
                "{parameters}"
            );
        }
        let none = "$argon2id$nonsense".parse().unwrap();
        assert!(!is_of(&none, &Password::new("password".to_owned())));
    }
}
