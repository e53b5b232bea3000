//! People as an OpenID provider knows them: the authorisation code flow with PKCE (OpenID Connect Core 1.0, RFC 7636).
//!
//! Owns: what is asked of the provider, where a browser is sent, what its return proves, which claims make a name and a
//! role.
//! Must not know: cookies, sessions, paths of the API (`cairn_admin`); which log-ins are under way: the caller keeps that.
//! Invariant: nobody is anybody before the provider's signature, issuer, audience, times and nonce were checked.

#![forbid(unsafe_code)]

mod claims;
#[doc(hidden)]
pub mod id_token;
#[doc(hidden)]
pub mod keys;
mod provider;

pub use claims::{PERSON_NAME_LEN_BYTES_MAX, Person, PersonName};
pub use id_token::TokenError;
pub use provider::{Login, OidcError, Provider};
