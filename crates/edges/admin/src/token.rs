//! The admin token: who has it may do everything that the API offers.

use std::fmt;

use subtle::ConstantTimeEq;

/// Longest token, in bytes.
pub const TOKEN_LEN_BYTES_MAX: usize = 256;
/// Shortest token, in bytes: fewer could be guessed.
const TOKEN_LEN_BYTES_MIN: usize = 16;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    #[error(
        "a token has {TOKEN_LEN_BYTES_MIN} to {TOKEN_LEN_BYTES_MAX} characters, this one has {len_bytes}"
    )]
    Length { len_bytes: usize },
    #[error("a token consists of visible ASCII characters without spaces")]
    Characters,
}

/// A bearer token. `Debug` hides it, so that it does not end up in a log.
#[derive(Clone)]
pub struct Token(String);

impl Token {
    /// Takes the text of a token file; white space around the token is ignored.
    pub fn parse(text: &str) -> Result<Self, TokenError> {
        let text = text.trim();
        if !(TOKEN_LEN_BYTES_MIN..=TOKEN_LEN_BYTES_MAX).contains(&text.len()) {
            return Err(TokenError::Length {
                len_bytes: text.len(),
            });
        }
        if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(TokenError::Characters);
        }
        Ok(Self(text.to_owned()))
    }

    /// Makes a token of random bytes.
    pub fn from_random(random: u128) -> Self {
        Self(format!("{random:032x}"))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether an `Authorization` header holds this token; takes as long for any wrong one of the
    /// same length, so that it cannot be found letter by letter.
    pub fn is_in(&self, authorization: &[u8]) -> bool {
        const SCHEME: &[u8] = b"bearer ";
        let Some((scheme, given)) = authorization.split_at_checked(SCHEME.len()) else {
            return false;
        };
        scheme.eq_ignore_ascii_case(SCHEME) && bool::from(given.ct_eq(self.0.as_bytes()))
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_accepted_or_refused() {
        let token = Token::parse(" 0123456789abcdef\n").unwrap();
        let cases: &[(&[u8], bool)] = &[
            (b"Bearer 0123456789abcdef", true),
            (b"bearer 0123456789abcdef", true),
            (b"Bearer 0123456789abcdee", false),
            (b"Bearer 0123456789abcde", false),
            (b"Bearer ", false),
            (b"Basic  0123456789abcdef", false),
            (b"0123456789abcdef", false),
            (b"", false),
        ];
        for (header, want) in cases {
            assert_eq!(token.is_in(header), *want, "{header:?}");
        }
        assert!(Token::parse("short").is_err());
        assert!(Token::parse("with space inside it").is_err());
        assert!(Token::parse(&"x".repeat(257)).is_err());
        assert_eq!(format!("{token:?}"), "Token(..)");
        assert!(Token::parse(Token::from_random(7).as_str()).is_ok());
    }
}
