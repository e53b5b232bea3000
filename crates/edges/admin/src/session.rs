//! Sessions of people in a browser: a cookie that stands for the token.
//!
//! Owns: what is in the cookie, how long it holds, which were ended before.
//! Must not know: paths, what a request may do.
//!
//! A session is its end and a random number, signed with a key that is made of the token. So the server keeps nothing
//! of it, sessions survive a restart, another token ends them all, and who reads the cookie has not got the token.
//! Those that people end are remembered until they would have ended by themselves, or the process ends.

use std::collections::VecDeque;
use std::sync::Mutex;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::token::Token;

/// How long a session holds.
pub const SESSION_SECONDS: i64 = 12 * 3600;
/// The first part of the cookie's name. Browsers share cookies among the ports of a host, so the port follows.
const COOKIE_NAME: &str = "cairn-session-";
/// Sessions that were ended and would still hold, at most; of more the one ended first is forgotten.
const ENDED_MAX: usize = 1024;
/// Of a cookie's value: 16 + 16 + 64 hexadecimal digits and two dots.
const VALUE_LEN_BYTES: usize = 98;

/// A session that holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Session {
    pub ends_seconds: i64,
    nonce: u64,
}

pub struct Sessions {
    key: Hmac<Sha256>,
    ended: Mutex<VecDeque<Session>>,
}

impl Sessions {
    pub fn new(token: &Token) -> Self {
        let mut key = keyed(token.as_str().as_bytes());
        key.update(b"cairn console session 1");
        let key = key.finalize().into_bytes();
        Self {
            key: keyed(&key),
            ended: Mutex::default(),
        }
    }

    /// Begins a session; `nonce` is random.
    pub fn begin(&self, now_seconds: i64, nonce: u64) -> Session {
        Session {
            ends_seconds: now_seconds.saturating_add(SESSION_SECONDS),
            nonce,
        }
    }

    /// The value of its cookie.
    pub fn value(&self, session: Session) -> String {
        let words = words(session);
        let mut mac = self.key.clone();
        mac.update(words.as_bytes());
        let digits: String = mac
            .finalize()
            .into_bytes()
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        format!("{words}.{digits}")
    }

    /// The session that a cookie's value is, if it holds.
    pub fn find(&self, value: &str, now_seconds: i64) -> Option<Session> {
        if value.len() != VALUE_LEN_BYTES {
            return None;
        }
        let (words, digits) = value.rsplit_once('.')?;
        let mut mac = self.key.clone();
        mac.update(words.as_bytes());
        mac.verify_slice(&bytes_of(digits)?).ok()?;
        let (ends, nonce) = words.split_once('.')?;
        let session = Session {
            ends_seconds: i64::try_from(u64::from_str_radix(ends, 16).ok()?).ok()?,
            nonce: u64::from_str_radix(nonce, 16).ok()?,
        };
        // A clock that was set back must not make it hold for longer.
        let holds = session.ends_seconds > now_seconds
            && session.ends_seconds <= now_seconds.saturating_add(SESSION_SECONDS);
        let ended = self.ended.lock().ok()?;
        (holds && !ended.contains(&session)).then_some(session)
    }

    /// Ends a session before its time.
    pub fn end(&self, session: Session, now_seconds: i64) {
        let Ok(mut ended) = self.ended.lock() else {
            return;
        };
        ended.retain(|other| other.ends_seconds > now_seconds);
        if ended.len() >= ENDED_MAX {
            ended.pop_front();
        }
        ended.push_back(session);
    }
}

fn keyed(key: &[u8]) -> Hmac<Sha256> {
    // HMAC takes keys of any length.
    match Hmac::<Sha256>::new_from_slice(key) {
        Ok(mac) => mac,
        Err(_) => unreachable!("HMAC takes keys of any length"),
    }
}

fn words(session: Session) -> String {
    format!("{:016x}.{:016x}", session.ends_seconds, session.nonce)
}

fn bytes_of(digits: &str) -> Option<Vec<u8>> {
    // Reading a number would let a sign in.
    if !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    let digits = digits.as_bytes();
    digits
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok())
        .collect()
}

/// The name of the cookie of a server that the browser knows as `host` ("10.1.2.3:8049").
pub fn cookie_name(host: &str) -> String {
    let port = host.rsplit_once(':').map_or("", |(_, port)| port);
    let port = port.chars().filter(char::is_ascii_digit).take(5);
    COOKIE_NAME.chars().chain(port).collect()
}

/// The value of a cookie in a `Cookie` header.
pub fn cookie_of<'a>(header: &'a str, name: &str) -> Option<&'a str> {
    header.split(';').find_map(|pair| {
        let (found, value) = pair.trim().split_once('=')?;
        (found == name).then_some(value)
    })
}

/// A `Set-Cookie` header; an empty value takes the cookie away.
///
/// No script can read it, and no other site's page sends it. It is for encrypted connections alone where the browser
/// uses one, as behind a proxy.
pub fn set_cookie(name: &str, value: &str, is_encrypted: bool) -> String {
    let age = if value.is_empty() { 0 } else { SESSION_SECONDS };
    let secure = if is_encrypted { "; Secure" } else { "" };
    format!("{name}={value}; Path=/; Max-Age={age}; HttpOnly; SameSite=Strict{secure}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_hold_until_they_end() {
        let token = Token::parse("0123456789abcdef").unwrap();
        let sessions = Sessions::new(&token);
        let session = sessions.begin(1000, 7);
        let value = sessions.value(session);
        assert_eq!(sessions.find(&value, 1000), Some(session));
        // After a restart as well; not with another token.
        assert_eq!(
            Sessions::new(&token).find(&value, 1000 + SESSION_SECONDS - 1),
            Some(session)
        );
        assert_eq!(sessions.find(&value, 1000 + SESSION_SECONDS), None);
        assert_eq!(sessions.find(&value, 999), None);
        let other = Token::parse("0123456789abcdee").unwrap();
        assert_eq!(Sessions::new(&other).find(&value, 1000), None);
        sessions.end(session, 1001);
        assert_eq!(sessions.find(&value, 1001), None);
    }

    #[test]
    fn no_other_value_is_a_session() {
        let sessions = Sessions::new(&Token::parse("0123456789abcdef").unwrap());
        let value = sessions.value(sessions.begin(1000, 7));
        for index in 0..value.len() {
            for letter in ["0", "1", ".", "f", "+", "ä"] {
                let mut changed = value.clone();
                changed.replace_range(index..=index, letter);
                if changed != value {
                    assert_eq!(sessions.find(&changed, 1000), None, "{changed}");
                }
            }
            assert_eq!(sessions.find(&value[..index], 1000), None);
        }
        assert_eq!(sessions.find("", 1000), None);
    }

    #[test]
    fn what_is_ended_takes_bounded_memory() {
        let sessions = Sessions::new(&Token::parse("0123456789abcdef").unwrap());
        for nonce in 0..2 * ENDED_MAX as u64 {
            sessions.end(sessions.begin(1000, nonce), 1000);
        }
        assert_eq!(sessions.ended.lock().unwrap().len(), ENDED_MAX);
        sessions.end(sessions.begin(1_000_000, 1), 1_000_000);
        assert_eq!(sessions.ended.lock().unwrap().len(), 1);
    }

    #[test]
    fn cookies_are_found() {
        assert_eq!(cookie_name("127.0.0.1:8049"), "cairn-session-8049");
        assert_eq!(cookie_name("[::1]:80"), "cairn-session-80");
        assert_eq!(cookie_name("example.org"), "cairn-session-");
        assert_eq!(cookie_name("a:8\r\n;=9"), "cairn-session-89");
        let header = "a=b; cairn-session-1=x;cairn-session-2=y";
        assert_eq!(cookie_of(header, "cairn-session-1"), Some("x"));
        assert_eq!(cookie_of(header, "cairn-session-2"), Some("y"));
        assert_eq!(cookie_of(header, "cairn-session-3"), None);
        assert!(set_cookie("n", "v", true).ends_with("HttpOnly; SameSite=Strict; Secure"));
        assert!(set_cookie("n", "", false).contains("Max-Age=0"));
    }
}
