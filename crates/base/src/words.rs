//! Values that are written as one word: in flags, in files and in JSON alike.

/// A word that does not name a value of its kind.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("\"{text}\" is not {what}: write {wanted}")]
pub struct WordError {
    pub text: String,
    /// The expected kind of value, with its article: "a protection".
    pub what: &'static str,
    /// The words that would do.
    pub wanted: &'static str,
}

impl WordError {
    pub fn new(text: &str, what: &'static str, wanted: &'static str) -> Self {
        Self {
            text: text.chars().take(80).collect(),
            what,
            wanted,
        }
    }
}

/// Makes serde use `Display` and `FromStr`, so that JSON, flags and files share one grammar.
#[macro_export]
macro_rules! serde_as_word {
    ($name:ident) => {
        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.collect_str(self)
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                let text = String::deserialize(from)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}

/// An enum whose values are plain words.
#[macro_export]
macro_rules! word_enum {
    (
        $(#[$doc:meta])*
        $name:ident, $what:literal, $wanted:literal {
            $($(#[$variant_doc:meta])* $variant:ident = $word:literal),* $(,)?
        }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name {
            $($(#[$variant_doc])* $variant),*
        }

        impl $name {
            pub const WORDS: &[&str] = &[$($word),*];

            pub fn word(self) -> &'static str {
                match self {
                    $(Self::$variant => $word),*
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.word())
            }
        }

        impl std::str::FromStr for $name {
            type Err = $crate::words::WordError;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                match text {
                    $($word => Ok(Self::$variant),)*
                    _ => Err($crate::words::WordError::new(text, $what, $wanted)),
                }
            }
        }

        $crate::words::serde_as_word!($name);
    };
}

pub use {serde_as_word, word_enum};
