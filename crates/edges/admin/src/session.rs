//! Sessions of people in a browser: a cookie that stands for the token, or for a user who gave the password.
//!
//! Owns: what is in the cookie, how long it holds, which were ended before.
//! Must not know: paths, what a request may do, whether the user is still there.
//!
//! A session is its end, when it ends if nobody uses it, a random number and whose it is, signed with a key that is made of
//! the token. So the server keeps nothing of it, sessions survive a restart, another token ends them all, and who reads the
//! cookie has not got the token. That of a user has the user's stamp, which any change of the user replaces.
//! Those that people end are remembered until they would have ended by themselves, or the process ends.

use std::collections::VecDeque;
use std::sync::Mutex;

use cairn_config::{USER_NAME_LEN_BYTES_MAX, UserName};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::token::Token;

/// How long a session holds at most.
pub const SESSION_SECONDS: i64 = 12 * 3600;
/// How long it holds while nobody uses the page.
pub const IDLE_SECONDS: i64 = 3600;
/// It is prolonged when less is left of that: not with each request.
const RENEWED_BELOW_SECONDS: i64 = IDLE_SECONDS / 4 * 3;
/// The first part of the cookie's name. Browsers share cookies among the ports of a host, so the port follows.
const COOKIE_NAME: &str = "cairn-session-";
/// Sessions that were ended and would still hold, at most; of more the one ended first is forgotten.
const ENDED_MAX: usize = 1024;
/// Of a cookie's value: four numbers of 16 hexadecimal digits, a name, 64 digits, five dots.
const VALUE_LEN_BYTES_MAX: usize = 4 * 16 + USER_NAME_LEN_BYTES_MAX + 64 + 5;

/// Whose a session is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Whose {
    Token,
    /// The user as it was: `stamp` is another one after each change.
    User {
        name: UserName,
        stamp: u64,
    },
}

/// A session that holds, as far as the cookie says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    pub ends_seconds: i64,
    /// When it ends if it is not renewed before.
    pub idle_ends_seconds: i64,
    pub whose: Whose,
    /// The same for as long as the session lives.
    nonce: u64,
}

/// A session that was ended before its time.
struct Ended {
    ends_seconds: i64,
    nonce: u64,
}

pub struct Sessions {
    key: Hmac<Sha256>,
    ended: Mutex<VecDeque<Ended>>,
}

impl Sessions {
    pub fn new(token: &Token) -> Self {
        let mut key = keyed(token.as_str().as_bytes());
        key.update(b"cairn console session 2");
        let key = key.finalize().into_bytes();
        Self {
            key: keyed(&key),
            ended: Mutex::default(),
        }
    }

    /// Begins a session; `nonce` is random.
    pub fn begin(&self, whose: Whose, now_seconds: i64, nonce: u64) -> Session {
        Session {
            ends_seconds: now_seconds.saturating_add(SESSION_SECONDS),
            idle_ends_seconds: now_seconds.saturating_add(IDLE_SECONDS),
            whose,
            nonce,
        }
    }

    /// The same session, prolonged because somebody uses it; `None` if there is no need yet.
    pub fn renewed(&self, session: &Session, now_seconds: i64) -> Option<Session> {
        let longest = now_seconds.saturating_add(IDLE_SECONDS);
        let idle_ends_seconds = longest.min(session.ends_seconds);
        let left = session.idle_ends_seconds.saturating_sub(now_seconds);
        let is_due = left < RENEWED_BELOW_SECONDS && idle_ends_seconds > session.idle_ends_seconds;
        is_due.then(|| Session {
            idle_ends_seconds,
            ..session.clone()
        })
    }

    /// The value of its cookie.
    pub fn value(&self, session: &Session) -> String {
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
        if value.len() > VALUE_LEN_BYTES_MAX {
            return None;
        }
        let (words, digits) = value.rsplit_once('.')?;
        let mut mac = self.key.clone();
        mac.update(words.as_bytes());
        mac.verify_slice(&bytes_of(digits)?).ok()?;
        let session = session_of(words)?;
        // A clock that was set back must not make it hold for longer.
        let holds =
            |ends: i64, most: i64| ends > now_seconds && ends <= now_seconds.saturating_add(most);
        let ended = self.ended.lock().ok()?;
        let is_ended = ended.iter().any(|ended| ended.nonce == session.nonce);
        (holds(session.ends_seconds, SESSION_SECONDS)
            && holds(session.idle_ends_seconds, IDLE_SECONDS)
            && !is_ended)
            .then_some(session)
    }

    /// Ends a session before its time.
    pub fn end(&self, session: &Session, now_seconds: i64) {
        let Ok(mut ended) = self.ended.lock() else {
            return;
        };
        ended.retain(|other| other.ends_seconds > now_seconds);
        if ended.len() >= ENDED_MAX {
            ended.pop_front();
        }
        ended.push_back(Ended {
            ends_seconds: session.ends_seconds,
            nonce: session.nonce,
        });
    }
}

fn keyed(key: &[u8]) -> Hmac<Sha256> {
    // HMAC takes keys of any length.
    match Hmac::<Sha256>::new_from_slice(key) {
        Ok(mac) => mac,
        Err(_) => unreachable!("HMAC takes keys of any length"),
    }
}

/// What is signed. The name comes last: it may have dots.
fn words(session: &Session) -> String {
    let (stamp, name) = match &session.whose {
        Whose::Token => (0, ""),
        Whose::User { name, stamp } => (*stamp, name.as_str()),
    };
    format!(
        "{:016x}.{:016x}.{:016x}.{stamp:016x}.{name}",
        session.ends_seconds, session.idle_ends_seconds, session.nonce
    )
}

fn session_of(words: &str) -> Option<Session> {
    let mut words = words.splitn(5, '.');
    let mut number = || u64::from_str_radix(words.next()?, 16).ok();
    let (ends, idle_ends, nonce, stamp) = (number()?, number()?, number()?, number()?);
    let whose = match words.next()? {
        "" => Whose::Token,
        name => Whose::User {
            name: name.parse().ok()?,
            stamp,
        },
    };
    Some(Session {
        ends_seconds: i64::try_from(ends).ok()?,
        idle_ends_seconds: i64::try_from(idle_ends).ok()?,
        whose,
        nonce,
    })
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

/// A `Set-Cookie` header for so long; an empty value takes the cookie away.
///
/// No script can read it, and no other site's page sends it. It is for encrypted connections alone where the browser
/// uses one, as behind a proxy.
pub fn set_cookie(name: &str, value: &str, seconds: i64, is_encrypted: bool) -> String {
    let age = if value.is_empty() { 0 } else { seconds.max(0) };
    let secure = if is_encrypted { "; Secure" } else { "" };
    format!("{name}={value}; Path=/; Max-Age={age}; HttpOnly; SameSite=Strict{secure}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alice() -> Whose {
        Whose::User {
            name: "alice.b".parse().unwrap(),
            stamp: u64::MAX,
        }
    }

    #[test]
    fn sessions_hold_until_they_end() {
        for whose in [Whose::Token, alice()] {
            let token = Token::parse("0123456789abcdef").unwrap();
            let sessions = Sessions::new(&token);
            let session = sessions.begin(whose, 1000, 7);
            let value = sessions.value(&session);
            assert_eq!(sessions.find(&value, 1000), Some(session.clone()));
            // After a restart as well; not with another token.
            assert_eq!(
                Sessions::new(&token).find(&value, 1000 + IDLE_SECONDS - 1),
                Some(session.clone())
            );
            assert_eq!(sessions.find(&value, 1000 + IDLE_SECONDS), None);
            assert_eq!(sessions.find(&value, 999), None);
            let other = Token::parse("0123456789abcdee").unwrap();
            assert_eq!(Sessions::new(&other).find(&value, 1000), None);
            // Ended means that what it was renewed to is ended, too.
            let renewed = sessions.renewed(&session, 1000 + IDLE_SECONDS / 2).unwrap();
            sessions.end(&session, 1001);
            assert_eq!(sessions.find(&value, 1001), None);
            assert_eq!(
                sessions.find(&sessions.value(&renewed), 1001 + IDLE_SECONDS / 2),
                None
            );
        }
    }

    #[test]
    fn a_session_in_use_holds_until_its_last_end() {
        let sessions = Sessions::new(&Token::parse("0123456789abcdef").unwrap());
        let mut session = sessions.begin(alice(), 1000, 7);
        assert_eq!(
            sessions.renewed(&session, 1001),
            None,
            "not with each request"
        );
        let mut now = 1000;
        let last = session.ends_seconds;
        while now < last - 1 {
            now = (now + IDLE_SECONDS / 2).min(last - 1);
            let found = sessions.find(&sessions.value(&session), now);
            assert_eq!(found, Some(session.clone()));
            session = sessions.renewed(&session, now).unwrap_or(session);
            assert!(session.idle_ends_seconds <= last);
        }
        assert_eq!(sessions.renewed(&session, now), None);
        assert_eq!(sessions.find(&sessions.value(&session), last), None);
    }

    #[test]
    fn no_other_value_is_a_session() {
        let sessions = Sessions::new(&Token::parse("0123456789abcdef").unwrap());
        let value = sessions.value(&sessions.begin(alice(), 1000, 7));
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
        // One that the token began is nobody's else, whatever is in the place of the name.
        let token = sessions.value(&sessions.begin(Whose::Token, 1000, 7));
        assert_eq!(sessions.find(&token.replace("..", ".alice."), 1000), None);
    }

    #[test]
    fn what_is_ended_takes_bounded_memory() {
        let sessions = Sessions::new(&Token::parse("0123456789abcdef").unwrap());
        for nonce in 0..2 * ENDED_MAX as u64 {
            sessions.end(&sessions.begin(Whose::Token, 1000, nonce), 1000);
        }
        assert_eq!(sessions.ended.lock().unwrap().len(), ENDED_MAX);
        sessions.end(&sessions.begin(Whose::Token, 1_000_000, 1), 1_000_000);
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
        assert!(set_cookie("n", "v", 9, true).ends_with("HttpOnly; SameSite=Strict; Secure"));
        assert!(set_cookie("n", "v", 9, false).contains("Max-Age=9;"));
        assert!(set_cookie("n", "", 9, false).contains("Max-Age=0"));
    }
}
