//! How a setting is declared: once, and flags, the config file and the documents follow.
//!
//! Owns: the macro `settings!`, the facts of a setting, and how its value is read from a flag and from the file.
//! Must not know: which settings there are.
//!
//! Serde reads the file one key at a time ([`crate::parse_file`]): a derived reader of a whole struct ends at its first error, and an
//! operator wants to see all of them.

use std::fmt::Display;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::builder::ValueParser;
use clap::{Arg, ArgAction, ArgMatches};
use serde::de::{Deserialize, Deserializer, Error};

use crate::server::{DiskIo, LogFormat, Size, parse_address};

/// What a declaration may say in its braces. What it does not say is as in [`Facts::NONE`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts {
    /// Stands for the value in help: `ADDR:PORT`.
    pub value_name: &'static str,
    /// Begins a part of the config file and of the table in the documents.
    pub heading: &'static str,
    /// Whole sentences below the heading.
    pub intro: &'static str,
    /// A value as the file writes it; without it the default is shown.
    pub example: &'static str,
    /// Whether the file that packages install sets the example.
    pub is_set_by_packages: bool,
    /// The default in words, where it is no value: `one per CPU`.
    pub default_is: &'static str,
    pub env: Option<&'static str>,
    /// No flag: for tests, and for rare disks and networks.
    pub in_file_only: bool,
    /// The key of a setting that no command line has beside this one.
    pub conflicts_with: Option<&'static str>,
    /// Most values of a list.
    pub count_max: usize,
}

impl Facts {
    pub const NONE: Self = Self {
        value_name: "BOOL",
        heading: "",
        intro: "",
        example: "",
        is_set_by_packages: false,
        default_is: "",
        env: None,
        in_file_only: false,
        conflicts_with: None,
        count_max: usize::MAX,
    };
}

/// How many values a setting has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    One,
    /// One, and the flag alone means `true`.
    Switch,
    List,
    /// The file may leave out the brackets of one value.
    OneOrList,
}

/// A default, as help and as the file write it.
#[derive(Clone, Debug)]
pub(crate) struct Shown {
    pub text: String,
    pub toml: String,
}

impl Shown {
    pub fn of<G: Given>(default: G::Filled) -> Self {
        let given = G::of(default);
        let join = |of: fn(&G::Value) -> String| {
            let values: Vec<String> = given.values().iter().map(of).collect();
            values.join(", ")
        };
        let toml = join(Value::toml);
        Self {
            text: join(Value::text),
            toml: match G::SHAPE {
                Shape::One | Shape::Switch => toml,
                Shape::List | Shape::OneOrList => format!("[{toml}]"),
            },
        }
    }
}

/// Everything about one setting but its type.
pub(crate) struct Setting {
    /// The key of the file; the flag has `-` for `_`.
    pub key: &'static str,
    /// The lines of the documentation comment.
    pub doc: &'static [&'static str],
    pub facts: Facts,
    pub shape: Shape,
    pub parser: fn() -> ValueParser,
    pub default: fn() -> Option<Shown>,
}

impl Setting {
    pub fn is_list(&self) -> bool {
        matches!(self.shape, Shape::List | Shape::OneOrList)
    }

    /// The documentation in one line.
    pub fn meaning(&self) -> String {
        let lines: Vec<&str> = self.doc.iter().map(|line| line.trim()).collect();
        lines.join(" ")
    }

    pub fn flag(&self) -> String {
        self.key.replace('_', "-")
    }

    /// The default as help and documents show it.
    pub fn default_text(&self) -> Option<String> {
        match self.facts.default_is {
            "" => (self.default)().map(|default| default.text),
            words => Some(words.to_owned()),
        }
    }

    /// A value as the file writes it: the example, else the default.
    pub fn example(&self) -> String {
        match self.facts.example {
            "" => (self.default)().map_or(String::new(), |default| default.toml),
            example => example.to_owned(),
        }
    }

    /// The flag; `None` for a setting that only the file has.
    pub fn to_arg(&self) -> Option<Arg> {
        if self.facts.in_file_only {
            return None;
        }
        let mut help = self.meaning();
        if self.is_list() {
            help.push_str("; repeat the flag for more");
        }
        if let Some(default) = self.default_text() {
            help.push_str(&format!(" [default: {default}]"));
        }
        let mut arg = Arg::new(self.key)
            .long(self.flag())
            .value_name(self.facts.value_name)
            .value_parser((self.parser)())
            .help(help);
        arg = match self.shape {
            Shape::One => arg.action(ArgAction::Set),
            Shape::Switch => arg
                .action(ArgAction::Set)
                .num_args(0..=1)
                .require_equals(true)
                .default_missing_value("true"),
            Shape::List | Shape::OneOrList => arg.action(ArgAction::Append),
        };
        if let Some(variable) = self.facts.env {
            arg = arg.env(variable);
        }
        if let Some(other) = self.facts.conflicts_with {
            arg = arg.conflicts_with(other);
        }
        Some(arg)
    }
}

/// One value of a setting.
pub(crate) trait Value: Clone + Send + Sync + 'static {
    const IS_SWITCH: bool = false;
    /// Whether the file may write one value where there is a list.
    const MAY_BE_ALONE: bool = false;

    /// Reads the value of a flag.
    fn parser() -> ValueParser;

    /// Reads a value of the file; the error follows the key and a colon.
    fn read(value: &toml::Value) -> Result<Self, String>;

    fn text(&self) -> String;

    fn toml(&self) -> String {
        format!("\"{}\"", self.text())
    }

    /// With a relative path counted from `folder`.
    fn under(self, _folder: &Path) -> Self {
        self
    }
}

impl Value for bool {
    const IS_SWITCH: bool = true;

    fn parser() -> ValueParser {
        ValueParser::bool()
    }

    fn read(value: &toml::Value) -> Result<Self, String> {
        value
            .as_bool()
            .ok_or_else(|| format!("is true or false, not {}", article(value.type_str())))
    }

    fn text(&self) -> String {
        self.to_string()
    }

    fn toml(&self) -> String {
        self.text()
    }
}

impl Value for String {
    fn parser() -> ValueParser {
        ValueParser::string()
    }

    fn read(value: &toml::Value) -> Result<Self, String> {
        text(value).map(str::to_owned)
    }

    fn text(&self) -> String {
        self.clone()
    }
}

impl Value for PathBuf {
    fn parser() -> ValueParser {
        ValueParser::path_buf()
    }

    fn read(value: &toml::Value) -> Result<Self, String> {
        text(value).map(Self::from)
    }

    fn text(&self) -> String {
        self.display().to_string()
    }

    fn under(self, folder: &Path) -> Self {
        folder.join(self)
    }
}

impl Value for SocketAddr {
    const MAY_BE_ALONE: bool = true;

    fn parser() -> ValueParser {
        ValueParser::new(parse_address)
    }

    fn read(value: &toml::Value) -> Result<Self, String> {
        parse_address(text(value)?)
    }

    fn text(&self) -> String {
        self.to_string()
    }
}

/// Values that flags write as one word; the file may leave out the quotes of whole numbers.
macro_rules! words {
    ($($name:ty),* ; $($number:ty),*) => {
        $(
            impl Value for $name {
                fn parser() -> ValueParser {
                    ValueParser::new(|word: &str| word.parse::<$name>())
                }

                fn read(value: &toml::Value) -> Result<Self, String> {
                    word(value)
                }

                fn text(&self) -> String {
                    self.to_string()
                }
            }
        )*
        $(
            impl Value for $number {
                fn parser() -> ValueParser {
                    ValueParser::new(|word: &str| word.parse::<$number>())
                }

                fn read(value: &toml::Value) -> Result<Self, String> {
                    word(value)
                }

                fn text(&self) -> String {
                    self.to_string()
                }

                fn toml(&self) -> String {
                    self.text()
                }
            }
        )*
    };
}

words!(DiskIo, LogFormat; u64, usize);

impl Value for Size {
    fn parser() -> ValueParser {
        ValueParser::new(|word: &str| word.parse::<Size>())
    }

    fn read(value: &toml::Value) -> Result<Self, String> {
        word(value)
    }

    fn text(&self) -> String {
        match self.0 {
            0 => "0".to_owned(),
            _ => self.to_string().replace(' ', ""),
        }
    }
}

fn text(value: &toml::Value) -> Result<&str, String> {
    value
        .as_str()
        .ok_or_else(|| format!("is a string in quotes, not {}", article(value.type_str())))
}

fn word<T: FromStr<Err: Display>>(value: &toml::Value) -> Result<T, String> {
    let parsed = match value {
        toml::Value::Integer(number) => number.to_string().parse(),
        _ => text(value)?.parse(),
    };
    parsed.map_err(|error: T::Err| error.to_string())
}

fn article(kind: &str) -> String {
    let vowel = kind.starts_with(['a', 'e', 'i', 'o', 'u']);
    format!("{} {kind}", if vowel { "an" } else { "a" })
}

/// A setting as it is given: `Option` of a value, or a list, which is empty if it is not given.
pub(crate) trait Given: Default {
    type Value: Value;
    /// Its type once a default has filled it.
    type Filled;
    const SHAPE: Shape;

    fn of(filled: Self::Filled) -> Self;
    fn read(value: &toml::Value) -> Result<Self, String>;
    fn from_flag(matches: &ArgMatches, key: &str) -> Self;
    /// Itself, or `below` if it is not given.
    fn over(self, below: Self) -> Self;
    fn filled(self, default: Self::Filled) -> Self::Filled;
    fn values(&self) -> &[Self::Value];
    fn under(self, folder: &Path) -> Self;
}

impl<T: Value> Given for Option<T> {
    type Value = T;
    type Filled = T;
    const SHAPE: Shape = match T::IS_SWITCH {
        true => Shape::Switch,
        false => Shape::One,
    };

    fn of(filled: T) -> Self {
        Some(filled)
    }

    fn read(value: &toml::Value) -> Result<Self, String> {
        T::read(value).map(Some)
    }

    fn from_flag(matches: &ArgMatches, key: &str) -> Self {
        matches.get_one::<T>(key).cloned()
    }

    fn over(self, below: Self) -> Self {
        self.or(below)
    }

    fn filled(self, default: T) -> T {
        self.unwrap_or(default)
    }

    fn values(&self) -> &[T] {
        self.as_slice()
    }

    fn under(self, folder: &Path) -> Self {
        self.map(|value| value.under(folder))
    }
}

impl<T: Value> Given for Vec<T> {
    type Value = T;
    type Filled = Self;
    const SHAPE: Shape = match T::MAY_BE_ALONE {
        true => Shape::OneOrList,
        false => Shape::List,
    };

    fn of(filled: Self) -> Self {
        filled
    }

    fn read(value: &toml::Value) -> Result<Self, String> {
        match value {
            toml::Value::Array(list) => list.iter().map(T::read).collect(),
            _ if T::MAY_BE_ALONE => Ok(vec![T::read(value)?]),
            _ => Err(format!("is a list, not {}", article(value.type_str()))),
        }
    }

    fn from_flag(matches: &ArgMatches, key: &str) -> Self {
        let values = matches.get_many::<T>(key).into_iter().flatten();
        values.cloned().collect()
    }

    fn over(self, below: Self) -> Self {
        match self.is_empty() {
            true => below,
            false => self,
        }
    }

    fn filled(self, default: Self) -> Self {
        self.over(default)
    }

    fn values(&self) -> &[T] {
        self
    }

    fn under(self, folder: &Path) -> Self {
        let values = self.into_iter().map(|value| value.under(folder));
        values.collect()
    }
}

/// Reads a setting from the file, for serde.
pub(crate) fn read<'de, D: Deserializer<'de>, G: Given>(from: D) -> Result<G, D::Error> {
    let value = toml::Value::deserialize(from)?;
    G::read(&value).map_err(D::Error::custom)
}

/// `convert` of `value`. As a function, so that the type of a closure's argument is known where its body is read.
pub(crate) fn convert<T, U>(value: T, convert: impl FnOnce(T) -> U) -> U {
    convert(value)
}

/// Tells `refuse` each value of one setting that `check` does not take, and a list that is too long.
pub(crate) fn refuse_values<G: Given>(
    key: &str,
    given: &G,
    count_max: usize,
    check: impl Fn(&G::Value) -> Result<(), String>,
    refuse: &mut dyn FnMut(String),
) {
    let values = given.values();
    if values.len() > count_max {
        let count = values.len();
        refuse(format!(
            "{key}: {count} are given; {count_max} are the most"
        ));
    }
    for why in values.iter().filter_map(|value| check(value).err()) {
        refuse(format!("{key}: {why}"));
    }
}

/// Declares settings, and the struct of them when they are complete. Each setting is one declaration:
///
/// ```text
/// /// Its meaning, for help, config file and documents: no full stop at the end
/// KEY: Option<TYPE> { FACTS } = DEFAULT => NAME: COMPLETE_TYPE = CONVERT, check CHECK;
/// ```
///
/// `Vec<TYPE>` is a list. FACTS are fields of [`Facts`]. All that follows the facts may be missing: without DEFAULT the value stays
/// an `Option`; without NAME the complete struct has no such field; CONVERT takes the value with its default and gives
/// `COMPLETE_TYPE`; CHECK takes a reference to one value and gives `Result<(), String>`.
///
/// `flatten FIELD: TYPE;` adds the settings of another such struct. Fields of the complete struct that come from several settings
/// follow as `NAME: TYPE = VALUE;`, where VALUE names settings by their keys.
macro_rules! settings {
    (@facts $($fact:ident: $value:expr),*) => {
        $crate::declare::Facts { $($fact: $value,)* ..$crate::declare::Facts::NONE }
    };
    (@default $form:ty) => { None };
    (@default $form:ty, $default:expr) => { Some($crate::declare::Shown::of::<$form>($default)) };
    (@filled $given:expr) => { $given };
    (@filled $given:expr, $default:expr) => { $crate::declare::Given::filled($given, $default) };
    (@converted $filled:expr) => { $filled };
    (@converted $filled:expr, $convert:expr) => { $crate::declare::convert($filled, $convert) };
    (@check) => { |_| Ok(()) };
    (@check $check:expr) => { $check };
    (
        $(#[$meta:meta])*
        pub struct $settings:ident {
            $(
                $(#[doc = $doc:literal])+
                $key:ident: $form:ident<$value:ty> { $($fact:ident: $fact_value:expr),* $(,)? }
                    $(= $default:expr)?
                    $(=> $name:ident: $complete:ty $(= $convert:expr)?)?
                    $(, check $check:expr)?;
            )*
            $(flatten $nested:ident: $nested_type:ty;)?
        }

        $(#[$config_meta:meta])*
        pub struct $config:ident($($argument:ident: $argument_type:ty)?) {
            $($(#[doc = $extra_doc:literal])+ $extra:ident: $extra_type:ty = $extra_value:expr;)*
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Debug, Default, PartialEq, Eq, serde::Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct $settings {
            $(
                $(#[doc = $doc])+
                #[serde(deserialize_with = "crate::declare::read")]
                pub $key: $form<$value>,
            )*
            $(
                #[serde(skip)]
                pub $nested: $nested_type,
            )?
        }

        impl $settings {
            const OWN: &'static [$crate::declare::Setting] = &[$(
                $crate::declare::Setting {
                    key: stringify!($key),
                    doc: &[$($doc),+],
                    facts: settings!(@facts $($fact: $fact_value),*),
                    shape: <$form<$value> as $crate::declare::Given>::SHAPE,
                    parser: <$value as $crate::declare::Value>::parser,
                    default: || settings!(@default $form<$value> $(, $default)?),
                }
            ),*];

            /// All settings, in the order of their declarations.
            pub(crate) fn all() -> Vec<&'static $crate::declare::Setting> {
                Self::OWN.iter()$(.chain(<$nested_type>::all()))?.collect()
            }

            /// Reads a table of the file with one key, `key`.
            pub(crate) fn read(
                key: &str,
                table: toml::Spanned<toml::de::DeTable<'_>>,
            ) -> Result<Self, toml::de::Error> {
                $(
                    if <$nested_type>::all().iter().any(|setting| setting.key == key) {
                        let $nested = <$nested_type>::read(key, table)?;
                        return Ok(Self { $nested, ..Self::default() });
                    }
                )?
                let _ = key;
                serde::Deserialize::deserialize(toml::Deserializer::from(table))
            }

            /// Each setting of these, or of `below` if it is not given here.
            pub(crate) fn over(self, below: Self) -> Self {
                Self {
                    $($key: $crate::declare::Given::over(self.$key, below.$key),)*
                    $($nested: self.$nested.over(below.$nested),)?
                }
            }

            /// With relative paths counted from `folder`.
            pub(crate) fn under(self, folder: &std::path::Path) -> Self {
                Self {
                    $($key: $crate::declare::Given::under(self.$key, folder),)*
                    $($nested: self.$nested.under(folder),)?
                }
            }

            /// Tells `refuse` each value that is wrong by itself; without the flattened settings.
            pub(crate) fn refuse_own_values(&self, refuse: &mut dyn FnMut(String)) {
                $(
                    $crate::declare::refuse_values(
                        stringify!($key),
                        &self.$key,
                        settings!(@facts $($fact: $fact_value),*).count_max,
                        settings!(@check $($check)?),
                        refuse,
                    );
                )*
            }

            /// Tells `refuse` each value that is wrong by itself.
            pub(crate) fn refuse_values(&self, refuse: &mut dyn FnMut(String)) {
                self.refuse_own_values(refuse);
                $(self.$nested.refuse_values(refuse);)?
            }

            /// Fills what is not given with defaults. The settings must have been checked.
            // Not each setting is a field of its own.
            #[allow(unused_variables)]
            fn complete(self $(, $argument: $argument_type)?) -> $config {
                $(let $key = settings!(@filled self.$key $(, $default)?);)*
                $(let $nested = self.$nested;)?
                $config {
                    $($($name: settings!(@converted $key $(, $convert)?),)?)*
                    $($extra: $extra_value,)*
                }
            }
        }

        impl clap::Args for $settings {
            fn augment_args(command: clap::Command) -> clap::Command {
                let flags = Self::all().into_iter().filter_map(|setting| setting.to_arg());
                command.args(flags)
            }

            fn augment_args_for_update(command: clap::Command) -> clap::Command {
                Self::augment_args(command)
            }
        }

        impl clap::FromArgMatches for $settings {
            fn from_arg_matches(matches: &clap::ArgMatches) -> Result<Self, clap::Error> {
                let given = Self {
                    $($key: match settings!(@facts $($fact: $fact_value),*).in_file_only {
                        true => Default::default(),
                        false => $crate::declare::Given::from_flag(matches, stringify!($key)),
                    },)*
                    $($nested: <$nested_type as clap::FromArgMatches>::from_arg_matches(matches)?,)?
                };
                Ok(given)
            }

            fn update_from_arg_matches(&mut self, matches: &clap::ArgMatches) -> Result<(), clap::Error> {
                *self = Self::from_arg_matches(matches)?.over(std::mem::take(self));
                Ok(())
            }
        }

        $(#[$config_meta])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct $config {
            $($(
                #[doc = concat!("[`", stringify!($settings), "::", stringify!($key), "`], complete.")]
                pub $name: $complete,
            )?)*
            $(
                $(#[doc = $extra_doc])+
                pub $extra: $extra_type,
            )*
        }
    };
}

pub(crate) use settings;
