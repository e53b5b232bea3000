//! Tokens with which nodes join.
//!
//! Owns: what a token is, when it is valid, and that it works once.
//! Must not know: how a token gets to a node.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use cairn_base::planted::{self, Bug};
use cairn_base::{NodeId, Timestamp};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::values::{RemovedRecord, TokenRecord, Versioned};
use super::{ClusterMap, MapError, Written};
use crate::coordinator::{Revision, Txn};

const PREFIX: &str = "cairn";
/// Clocks of two nodes may differ by so much.
const CLOCKS_SECONDS_MAX: i64 = 3600;

/// What an operator gives to a node that is to join. Its holder can join once; the map only has its hash.
#[derive(Clone, PartialEq, Eq)]
pub struct JoinToken {
    id: u64,
    secret: [u8; 32],
}

impl JoinToken {
    /// Names the token in the map and in lists; no secret.
    pub fn id(&self) -> String {
        format!("{:016x}", self.id)
    }

    fn sha256(&self) -> String {
        hex(&Sha256::digest(self.secret))
    }
}

/// For the operator alone. `Debug` shows no secret.
impl fmt::Display for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}-{}-{}", self.id(), hex(&self.secret))
    }
}

impl fmt::Debug for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "JoinToken({})", self.id())
    }
}

impl FromStr for JoinToken {
    type Err = MapError;

    fn from_str(text: &str) -> Result<Self, MapError> {
        let bad = || MapError::Token("it is not complete; copy all of it");
        let rest = text
            .trim()
            .strip_prefix(PREFIX)
            .and_then(|rest| rest.strip_prefix('-'));
        let (id, secret) = rest.and_then(|rest| rest.split_once('-')).ok_or_else(bad)?;
        if id.len() != 16 || secret.len() != 64 || !secret.is_ascii() {
            return Err(bad());
        }
        let id = u64::from_str_radix(id, 16).map_err(|_| bad())?;
        let mut bytes = [0; 32];
        for (byte, digits) in bytes.iter_mut().zip(secret.as_bytes().chunks(2)) {
            let digits = std::str::from_utf8(digits).map_err(|_| bad())?;
            *byte = u8::from_str_radix(digits, 16).map_err(|_| bad())?;
        }
        Ok(Self { id, secret: bytes })
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl ClusterMap {
    /// Makes a token that is valid for a while, [`super::TOKEN_SECONDS_MAX`] at most. `by`: the node that makes it; once that is
    /// removed nobody joins with it.
    pub async fn create_token(
        &self,
        valid_for: Duration,
        by: NodeId,
    ) -> Result<JoinToken, MapError> {
        let env = &self.shared.env;
        let mut secret = [0; 32];
        env.entropy.fill(&mut secret);
        let token = JoinToken {
            id: env.entropy.u64(),
            secret,
        };
        let now = env.clock.now();
        let seconds = i64::try_from(valid_for.as_secs()).unwrap_or(i64::MAX);
        let record = TokenRecord {
            sha256: token.sha256(),
            made: now,
            made_by: by,
            expires: Timestamp::new(now.seconds.saturating_add(seconds), now.nanos),
            used_by: None,
        };
        let key = self.keys().token(&token.id());
        match self
            .write(key.clone(), Revision::ABSENT, &record, Txn::default())
            .await?
        {
            Written::Done => Ok(token),
            Written::Refused(_) => Err(MapError::Exists {
                key,
                what: "a token of this id",
            }),
        }
    }

    /// The record of a token that can still be used.
    pub(super) async fn valid_token(
        &self,
        token: &JoinToken,
    ) -> Result<Versioned<TokenRecord>, MapError> {
        let key = self.keys().token(&token.id());
        let record = self.read_one::<TokenRecord>(key).await?;
        // A client that guesses ids learns nothing from the answer.
        let unknown = MapError::Token("this cluster does not know it");
        let record = record.ok_or(unknown.clone())?;
        let same = record
            .value
            .sha256
            .as_bytes()
            .ct_eq(token.sha256().as_bytes());
        if !bool::from(same) {
            return Err(unknown);
        }
        if record.value.used_by.is_some() && !planted::is(Bug::TokenWorksTwice) {
            return Err(MapError::Token("it was used already; make another one"));
        }
        let now = self.shared.env.clock.now();
        if now >= record.value.expires {
            return Err(MapError::Token("it has expired; make another one"));
        }
        // It is good for a day at most, whatever the clock said of the node that made it.
        if record.value.made.seconds > now.seconds.saturating_add(CLOCKS_SECONDS_MAX) {
            return Err(MapError::Token(
                "it was made later than now: look at the clocks of the nodes, and make another one",
            ));
        }
        let removed = self.keys().removed(record.value.made_by);
        if self.read_one::<RemovedRecord>(removed).await?.is_some() {
            return Err(MapError::Token(
                "the node that made it was removed; make another one",
            ));
        }
        Ok(record)
    }

    pub async fn tokens(&self) -> Result<Vec<Versioned<TokenRecord>>, MapError> {
        Ok(self.read_all(self.keys().tokens()).await?.0)
    }
}
