//! Sessions of people in a browser: a cookie that stands for the token, for a user who gave the password, or for somebody
//! whom an OpenID provider vouched for; and log-ins with a provider that are under way.
//!
//! Owns: what is in the cookies, how long they hold, which sessions were ended before.
//! Must not know: paths, what a request may do, whether the user is still there.
//!
//! A session is its end, when it ends if nobody uses it, a random number and whose it is, signed with a key that is made of
//! the token. So the server keeps nothing of it, sessions survive a restart, another token ends them all, and who reads the
//! cookie has not got the token. That of a user has the user's stamp, which any change of the user replaces.
//! That of a provider's word has the stamp of the settings that let it in, and the role that they gave.
//! A log-in that is under way is a random number and its end, signed in the same way; what it tells the provider is made of that
//! number and the key. So nothing is kept of it either, however many begin one.
//! Sessions that people end are remembered here until they would have ended by themselves; the caller keeps that over
//! restarts. Sessions that were used since this process began are known, so that somebody can look at them and end them: at
//! most so many, of more the one that was not used for longest is not shown.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Mutex;

use cairn_config::{Logout, Logouts, Role, TOKEN_USER, UserName};
use cairn_oidc::{Login, PERSON_NAME_LEN_BYTES_MAX, PersonName};
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
/// Sessions in use that are known, at most.
const USED_MAX: usize = 1024;
/// Of a cookie's value: four numbers of 16 hexadecimal digits, a letter, a name, 64 digits, six dots.
const VALUE_LEN_BYTES_MAX: usize = 4 * 16 + 1 + PERSON_NAME_LEN_BYTES_MAX + 64 + 6;
const _: () = assert!(cairn_config::USER_NAME_LEN_BYTES_MAX <= PERSON_NAME_LEN_BYTES_MAX);
/// How long somebody may take to log in with a provider.
pub const LOGIN_SECONDS: i64 = 600;
/// The first part of the name of the cookie of such a log-in.
const LOGIN_COOKIE_NAME: &str = "cairn-oidc-";
/// Of its value: two numbers of 16 and 32 hexadecimal digits, 64 digits, two dots.
const LOGIN_LEN_BYTES: usize = 16 + 32 + 64 + 2;

/// Whose a session is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Whose {
    Token,
    /// The user as it was: `stamp` is another one after each change.
    User {
        name: UserName,
        stamp: u64,
    },
    /// Somebody whom a provider vouched for: `stamp` is that of the settings that gave the role.
    Person {
        name: PersonName,
        role: Role,
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
    /// Identifies the session. Stays unchanged when the session is renewed.
    nonce: u64,
}

impl Whose {
    /// What tells everybody from everybody else.
    pub fn key(&self) -> String {
        match self {
            Self::Token => TOKEN_USER.to_owned(),
            Self::User { name, .. } => Self::key_of_user(name),
            Self::Person { name, .. } => Self::key_of_person(name.as_str()),
        }
    }

    pub fn key_of_user(name: &UserName) -> String {
        format!("user {name}")
    }

    pub fn key_of_person(name: &str) -> String {
        format!("person {name}")
    }
}

impl Session {
    /// Tells it from all others.
    pub fn number(&self) -> u64 {
        self.nonce
    }

    pub fn begun_seconds(&self) -> i64 {
        self.ends_seconds.saturating_sub(SESSION_SECONDS)
    }
}

/// A session that was used since this process began.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Used {
    pub session: Session,
    /// When it was used last, in seconds since 1970 UTC, and from where.
    pub used_seconds: i64,
    pub address: IpAddr,
}

/// A log-in with a provider that is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pending {
    ends_seconds: i64,
    seed: u128,
}

pub struct Sessions {
    key: Hmac<Sha256>,
    login_key: Hmac<Sha256>,
    ended: Mutex<Logouts>,
    used: Mutex<HashMap<u64, Used>>,
}

impl Sessions {
    pub fn new(token: &Token) -> Self {
        let made_for = |what: &[u8]| {
            let mut key = keyed(token.as_str().as_bytes());
            key.update(what);
            keyed(&key.finalize().into_bytes())
        };
        Self {
            key: made_for(b"cairn console session 3"),
            login_key: made_for(b"cairn oidc log-in 1"),
            ended: Mutex::default(),
            used: Mutex::default(),
        }
    }

    /// Begins a log-in with a provider; `seed` is random.
    pub fn begin_login(&self, now_seconds: i64, seed: u128) -> Pending {
        Pending {
            ends_seconds: now_seconds.saturating_add(LOGIN_SECONDS),
            seed,
        }
    }

    /// The value of its cookie.
    pub fn login_value(&self, pending: &Pending) -> String {
        let words = format!("{:016x}.{:032x}", pending.ends_seconds, pending.seed);
        let digits = self.login_digits("cookie", &words);
        format!("{words}.{digits}")
    }

    /// The log-in that a cookie's value is; also one that has ended, see [`Pending::holds`].
    pub fn find_login(&self, value: &str) -> Option<Pending> {
        if value.len() != LOGIN_LEN_BYTES {
            return None;
        }
        let (words, digits) = value.rsplit_once('.')?;
        let mut mac = self.login_key.clone();
        mac.update(format!("cookie {words}").as_bytes());
        mac.verify_slice(&bytes_of(digits)?).ok()?;
        let (ends, seed) = words.split_once('.')?;
        let ends = u64::from_str_radix(ends, 16).ok()?;
        Some(Pending {
            ends_seconds: i64::try_from(ends).ok()?,
            seed: u128::from_str_radix(seed, 16).ok()?,
        })
    }

    /// The values that the provider gets for it.
    pub fn login(&self, pending: &Pending) -> Login {
        let of = |what: &str| {
            let words = format!("{:016x}.{:032x}", pending.ends_seconds, pending.seed);
            self.login_digits(what, &words)
        };
        Login {
            state: of("state"),
            nonce: of("nonce"),
            verifier: of("verifier"),
        }
    }

    fn login_digits(&self, what: &str, words: &str) -> String {
        let mut mac = self.login_key.clone();
        mac.update(format!("{what} {words}").as_bytes());
        digits_of(&mac.finalize().into_bytes())
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

    /// This session with a later end, because its user is active; `None` if it needs no renewal yet.
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
        let digits = digits_of(&mac.finalize().into_bytes());
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
        let is_ended = ended.has(session.nonce, &session.whose.key(), session.ends_seconds);
        (holds(session.ends_seconds, SESSION_SECONDS)
            && holds(session.idle_ends_seconds, IDLE_SECONDS)
            && !is_ended)
            .then_some(session)
    }

    /// Ends sessions before their time.
    pub fn end(&self, logout: Logout, now_seconds: i64) {
        if let Ok(mut ended) = self.ended.lock() {
            ended.add(logout, now_seconds);
        }
    }

    /// Notes that somebody uses a session, which holds.
    pub fn note_used(&self, session: &Session, address: IpAddr, now_seconds: i64) {
        let Ok(mut used) = self.used.lock() else {
            return;
        };
        let is_new = !used.contains_key(&session.nonce);
        if is_new && used.len() >= USED_MAX {
            used.retain(|_, used| used.session.idle_ends_seconds > now_seconds);
            let oldest = used.values().min_by_key(|used| used.used_seconds);
            let oldest = oldest.map(|used| used.session.nonce);
            if let Some(oldest) = oldest.filter(|_| used.len() >= USED_MAX) {
                used.remove(&oldest);
            }
        }
        let now_used = Used {
            session: session.clone(),
            used_seconds: now_seconds,
            address,
        };
        used.insert(session.nonce, now_used);
    }

    /// Sessions that were used since this process began and would still hold, in no order. Whether they were ended meanwhile
    /// is the caller's to look at.
    pub fn used(&self, now_seconds: i64) -> Vec<Used> {
        let Ok(mut used) = self.used.lock() else {
            return Vec::new();
        };
        used.retain(|_, used| used.session.idle_ends_seconds > now_seconds);
        used.values().cloned().collect()
    }
}

impl Pending {
    /// Whether somebody may still come back for it. A clock that was set back must not make it hold for longer.
    pub fn holds(&self, now_seconds: i64) -> bool {
        let latest = now_seconds.saturating_add(LOGIN_SECONDS);
        self.ends_seconds > now_seconds && self.ends_seconds <= latest
    }
}

fn digits_of(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn keyed(key: &[u8]) -> Hmac<Sha256> {
    // HMAC takes keys of any length.
    match Hmac::<Sha256>::new_from_slice(key) {
        Ok(mac) => mac,
        Err(_) => unreachable!("HMAC takes keys of any length"),
    }
}

/// The signed words. The name comes last: it may have dots.
fn words(session: &Session) -> String {
    let (stamp, kind, name) = match &session.whose {
        Whose::Token => (0, "t", ""),
        Whose::User { name, stamp } => (*stamp, "u", name.as_str()),
        Whose::Person { name, role, stamp } => {
            let kind = match role {
                Role::Admin => "a",
                Role::Viewer => "v",
            };
            (*stamp, kind, name.as_str())
        }
    };
    format!(
        "{:016x}.{:016x}.{:016x}.{stamp:016x}.{kind}.{name}",
        session.ends_seconds, session.idle_ends_seconds, session.nonce
    )
}

fn session_of(words: &str) -> Option<Session> {
    let mut words = words.splitn(6, '.');
    let mut number = || u64::from_str_radix(words.next()?, 16).ok();
    let (ends, idle_ends, nonce, stamp) = (number()?, number()?, number()?, number()?);
    let person = |name: &str, role| {
        let name = name.parse().ok()?;
        Some(Whose::Person { name, role, stamp })
    };
    let whose = match (words.next()?, words.next()?) {
        ("t", "") => Whose::Token,
        ("u", name) => Whose::User {
            name: name.parse().ok()?,
            stamp,
        },
        ("a", name) => person(name, Role::Admin)?,
        ("v", name) => person(name, Role::Viewer)?,
        _ => return None,
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
    name_at(COOKIE_NAME, host)
}

/// The name of the cookie of a log-in that is under way.
pub fn login_cookie_name(host: &str) -> String {
    name_at(LOGIN_COOKIE_NAME, host)
}

fn name_at(first: &str, host: &str) -> String {
    let port = host.rsplit_once(':').map_or("", |(_, port)| port);
    let port = port.chars().filter(char::is_ascii_digit).take(5);
    first.chars().chain(port).collect()
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

    fn person(role: Role) -> Whose {
        Whose::Person {
            name: "alice.b@example.org".parse().unwrap(),
            role,
            stamp: 7,
        }
    }

    #[test]
    fn a_log_in_holds_for_ten_minutes_and_is_no_session() {
        let sessions = Sessions::new(&Token::parse("0123456789abcdef").unwrap());
        let pending = sessions.begin_login(1000, 1 << 100);
        let value = sessions.login_value(&pending);
        assert_eq!(sessions.find_login(&value), Some(pending));
        assert!(pending.holds(1000) && pending.holds(1000 + LOGIN_SECONDS - 1));
        assert!(!pending.holds(999) && !pending.holds(1000 + LOGIN_SECONDS));
        let login = sessions.login(&pending);
        let other = sessions.login(&sessions.begin_login(1000, (1 << 100) + 1));
        let all = [&login.state, &login.nonce, &login.verifier, &other.state];
        for (index, one) in all.iter().enumerate() {
            assert_eq!(one.len(), 64);
            assert!(!value.contains(*one) && !all[..index].contains(one));
        }
        assert_eq!(sessions.login(&pending).verifier, login.verifier);
        for index in 0..value.len() {
            for letter in ["0", "1", ".", "f", "+", "ä"] {
                let mut changed = value.clone();
                changed.replace_range(index..=index, letter);
                assert!(
                    changed == value || sessions.find_login(&changed).is_none(),
                    "{changed}"
                );
            }
        }
        let other = Sessions::new(&Token::parse("0123456789abcdee").unwrap());
        assert_eq!(other.find_login(&value), None);
        assert_eq!(sessions.find(&value, 1000), None);
        let session = sessions.value(&sessions.begin(Whose::Token, 1000, 7));
        assert_eq!(sessions.find_login(&session), None);
    }

    #[test]
    fn sessions_hold_until_they_end() {
        let people = [person(Role::Admin), person(Role::Viewer)];
        for whose in [Whose::Token, alice()].into_iter().chain(people) {
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
            sessions.end(one(&session), 1001);
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
        for whose in [alice(), person(Role::Viewer)] {
            let value = sessions.value(&sessions.begin(whose, 1000, 7));
            for index in 0..value.len() {
                for letter in ["0", "1", ".", "f", "+", "ä", "u", "a"] {
                    let mut changed = value.clone();
                    changed.replace_range(index..=index, letter);
                    if changed != value {
                        assert_eq!(sessions.find(&changed, 1000), None, "{changed}");
                    }
                }
                assert_eq!(sessions.find(&value[..index], 1000), None);
            }
        }
        assert_eq!(sessions.find("", 1000), None);
        // One that the token began is nobody's else, whatever is in the place of the name.
        let token = sessions.value(&sessions.begin(Whose::Token, 1000, 7));
        assert_eq!(
            sessions.find(&token.replace(".t..", ".u.alice."), 1000),
            None
        );
    }

    fn one(session: &Session) -> Logout {
        Logout::Session {
            number: session.number(),
            ends_seconds: session.ends_seconds,
        }
    }

    /// Many log-outs do not bring a session back that was ended before.
    #[test]
    fn what_is_ended_takes_bounded_memory_and_stays_ended() {
        let sessions = Sessions::new(&Token::parse("0123456789abcdef").unwrap());
        let first = sessions.begin(alice(), 1000, u64::MAX);
        sessions.end(one(&first), 1000);
        for nonce in 0..2 * cairn_config::LOGOUTS_MAX as u64 {
            sessions.end(one(&sessions.begin(Whose::Token, 1001, nonce)), 1001);
        }
        assert!(sessions.ended.lock().unwrap().fits());
        assert_eq!(sessions.find(&sessions.value(&first), 1001), None);
        let later = sessions.begin(alice(), 1002, 1 << 32);
        assert_eq!(
            sessions.find(&sessions.value(&later), 1002),
            Some(later.clone())
        );
    }

    #[test]
    fn all_sessions_of_one_end_and_nobody_elses() {
        let sessions = Sessions::new(&Token::parse("0123456789abcdef").unwrap());
        let holds = |session: &Session, now| sessions.find(&sessions.value(session), now).is_some();
        let of = [Whose::Token, alice(), person(Role::Admin)];
        let before = of.clone().map(|whose| sessions.begin(whose, 1000, 1));
        let ends_seconds = 1000 + SESSION_SECONDS;
        let whose = person(Role::Viewer).key();
        let logout = Logout::AllOf {
            whose,
            ends_seconds,
        };
        sessions.end(logout, 1000);
        assert_eq!(before.map(|one| holds(&one, 1001)), [true, true, false]);
        let after = of.map(|whose| sessions.begin(whose, 1001, 2));
        assert_eq!(after.map(|one| holds(&one, 1001)), [true; 3]);
    }

    #[test]
    fn sessions_in_use_are_known_within_bounds() {
        let sessions = Sessions::new(&Token::parse("0123456789abcdef").unwrap());
        let address = IpAddr::from([10, 0, 0, 1]);
        for number in 0..2 * USED_MAX as u64 {
            let now = 1000 + i64::try_from(number).unwrap() / 2;
            let session = sessions.begin(alice(), now, number);
            sessions.note_used(&session, address, now);
            // One that is used all the time is not pushed out.
            let first = sessions.begin(alice(), 1000, u64::MAX);
            sessions.note_used(&first, address, now);
        }
        let used = sessions.used(1000 + USED_MAX as i64);
        assert_eq!(used.len(), USED_MAX);
        assert!(used.iter().any(|used| used.session.number() == u64::MAX));
        assert_eq!(sessions.used(1_000_000), []);
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
