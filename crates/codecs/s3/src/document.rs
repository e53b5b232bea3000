//! Documents of requests, before they are read: nothing in them is dropped (Amazon S3 API Reference, "Request Syntax" of each
//! operation).
//!
//! Owns: which elements there are, where text may be, which of them are whole numbers. Must not know: what they mean.
//!
//! `s3s` reads documents. It skips elements that it does not know in some places, CDATA and attributes everywhere, and takes
//! `10x` for 10. A rule whose filter is skipped that way is a rule for all objects. So a document with more in it than is
//! read is refused here.

use quick_xml::Reader;
use quick_xml::events::{BytesStart, Event};
use thiserror::Error;

/// Deeper than any document that is read.
const DEPTH_MAX: usize = 12;

/// Why a document is refused, and where: the names of the elements.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum DocumentError {
    #[error("the body is no XML: {0}")]
    Xml(String),
    #[error("the body ends before its elements do, or has more than one root")]
    Shape,
    #[error("there is no document {0}")]
    Root(String),
    #[error("{0} is not understood; nothing was done")]
    Element(String),
    #[error("{0} has an attribute that is not understood: {1}")]
    Attribute(String, String),
    #[error("{0} holds elements, no text")]
    Text(String),
    #[error("{0} is a whole number")]
    Number(String),
    #[error("{0} holds what is not read: write its text as it is, without CDATA")]
    Markup(String),
}

/// A document: its root, and the paths of elements below that. One that ends with `#` is a whole number; below one that ends
/// with `/*` anything may be, because the reader of that element refuses it by name.
struct Grammar {
    root: &'static str,
    paths: &'static [&'static str],
}

const GRAMMARS: &[Grammar] = &[
    Grammar {
        root: "AccessControlPolicy",
        paths: &[
            "AccessControlList",
            "AccessControlList/Grant",
            "AccessControlList/Grant/Grantee",
            "AccessControlList/Grant/Grantee/DisplayName",
            "AccessControlList/Grant/Grantee/EmailAddress",
            "AccessControlList/Grant/Grantee/ID",
            "AccessControlList/Grant/Grantee/URI",
            "AccessControlList/Grant/Permission",
            "Owner",
            "Owner/DisplayName",
            "Owner/ID",
        ],
    },
    Grammar {
        root: "CompleteMultipartUpload",
        paths: &[
            "Part",
            "Part/ChecksumCRC32",
            "Part/ChecksumCRC32C",
            "Part/ChecksumCRC64NVME",
            "Part/ChecksumSHA1",
            "Part/ChecksumSHA256",
            "Part/ETag",
            "Part/PartNumber#",
        ],
    },
    Grammar {
        root: "CORSConfiguration",
        paths: &[
            "CORSRule",
            "CORSRule/AllowedHeader",
            "CORSRule/AllowedMethod",
            "CORSRule/AllowedOrigin",
            "CORSRule/ExposeHeader",
            "CORSRule/ID",
            "CORSRule/MaxAgeSeconds#",
        ],
    },
    Grammar {
        root: "CreateBucketConfiguration",
        paths: &["LocationConstraint"],
    },
    Grammar {
        root: "Delete",
        paths: &[
            "Object",
            "Object/ETag",
            "Object/Key",
            "Object/VersionId",
            "Quiet",
        ],
    },
    Grammar {
        root: "LegalHold",
        paths: &["Status"],
    },
    Grammar {
        root: "LifecycleConfiguration",
        paths: &[
            "Rule",
            "Rule/AbortIncompleteMultipartUpload",
            "Rule/AbortIncompleteMultipartUpload/DaysAfterInitiation#",
            "Rule/Expiration",
            "Rule/Expiration/Date",
            "Rule/Expiration/Days#",
            "Rule/Expiration/ExpiredObjectDeleteMarker",
            "Rule/Filter",
            "Rule/Filter/And",
            "Rule/Filter/And/ObjectSizeGreaterThan#",
            "Rule/Filter/And/ObjectSizeLessThan#",
            "Rule/Filter/And/Prefix",
            "Rule/Filter/And/Tag",
            "Rule/Filter/And/Tag/Key",
            "Rule/Filter/And/Tag/Value",
            "Rule/Filter/ObjectSizeGreaterThan#",
            "Rule/Filter/ObjectSizeLessThan#",
            "Rule/Filter/Prefix",
            "Rule/Filter/Tag",
            "Rule/Filter/Tag/Key",
            "Rule/Filter/Tag/Value",
            "Rule/ID",
            "Rule/NoncurrentVersionExpiration",
            "Rule/NoncurrentVersionExpiration/NewerNoncurrentVersions#",
            "Rule/NoncurrentVersionExpiration/NoncurrentDays#",
            "Rule/NoncurrentVersionTransition/*",
            "Rule/Prefix",
            "Rule/Status",
            "Rule/Transition/*",
        ],
    },
    Grammar {
        root: "ObjectLockConfiguration",
        paths: &[
            "ObjectLockEnabled",
            "Rule",
            "Rule/DefaultRetention",
            "Rule/DefaultRetention/Days#",
            "Rule/DefaultRetention/Mode",
            "Rule/DefaultRetention/Years#",
        ],
    },
    Grammar {
        root: "Retention",
        paths: &["Mode", "RetainUntilDate"],
    },
    Grammar {
        root: "Tagging",
        paths: &["TagSet", "TagSet/Tag", "TagSet/Tag/Key", "TagSet/Tag/Value"],
    },
    Grammar {
        root: "VersioningConfiguration",
        paths: &["MfaDelete", "Status"],
    },
    Grammar {
        root: "WebsiteConfiguration",
        paths: &[
            "ErrorDocument",
            "ErrorDocument/Key",
            "IndexDocument",
            "IndexDocument/Suffix",
            "RedirectAllRequestsTo",
            "RedirectAllRequestsTo/HostName",
            "RedirectAllRequestsTo/Protocol",
            "RoutingRules/*",
        ],
    },
];

/// What an element may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holds {
    Elements,
    Text,
    Number,
    Anything,
}

impl Grammar {
    fn of(root: &str) -> Option<&'static Self> {
        GRAMMARS.iter().find(|grammar| grammar.root == root)
    }

    /// The content of the element at a path below the root; `None`: there is no such element.
    fn holds(&self, path: &str) -> Option<Holds> {
        let below = |all: &str| {
            let rest = path.strip_prefix(all);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        for known in self.paths {
            match (known.strip_suffix("/*"), known.strip_suffix('#')) {
                (Some(all), _) if below(all) => return Some(Holds::Anything),
                (_, Some(number)) if number == path => return Some(Holds::Number),
                _ if *known == path => {
                    let is_above = |other: &&str| {
                        let rest = other.strip_prefix(path);
                        rest.is_some_and(|rest| rest.starts_with('/'))
                    };
                    return Some(match self.paths.iter().any(is_above) {
                        true => Holds::Elements,
                        false => Holds::Text,
                    });
                }
                _ => {}
            }
        }
        None
    }
}

/// The elements that are open, and what the last one holds.
#[derive(Default)]
struct Open {
    grammar: Option<&'static Grammar>,
    /// How long the path was before each of them but the root.
    lengths: Vec<usize>,
    path: String,
    holds: Vec<Holds>,
    /// The text of the last one.
    text: String,
    is_over: bool,
}

impl Open {
    fn name(&self) -> String {
        match (self.grammar, self.path.is_empty()) {
            (None, _) => "the body".to_owned(),
            (Some(grammar), true) => grammar.root.to_owned(),
            (Some(_), false) => self.path.clone(),
        }
    }

    fn begin(&mut self, start: &BytesStart<'_>) -> Result<(), DocumentError> {
        let name = String::from_utf8_lossy(start.name().as_ref()).into_owned();
        if self.is_over {
            return Err(DocumentError::Shape);
        }
        self.require_no_text()?;
        match self.grammar {
            None => {
                let grammar = Grammar::of(&name).ok_or(DocumentError::Root(name))?;
                self.grammar = Some(grammar);
                self.holds.push(Holds::Elements);
            }
            Some(grammar) => {
                self.lengths.push(self.path.len());
                if !self.path.is_empty() {
                    self.path.push('/');
                }
                self.path.push_str(&name);
                let unknown = || DocumentError::Element(self.path.clone());
                if self.holds.len() >= DEPTH_MAX {
                    return Err(unknown());
                }
                let holds = grammar.holds(&self.path).ok_or_else(unknown)?;
                self.holds.push(holds);
            }
        }
        self.text.clear();
        self.check_attributes(start)
    }

    /// Namespaces say nothing that is not in the names, and the type of a grantee is in its elements.
    fn check_attributes(&self, start: &BytesStart<'_>) -> Result<(), DocumentError> {
        for attribute in start.attributes() {
            let attribute = attribute.map_err(|error| DocumentError::Xml(error.to_string()))?;
            let key = String::from_utf8_lossy(attribute.key.as_ref()).into_owned();
            if key != "xmlns" && !key.starts_with("xmlns:") && key != "xsi:type" {
                return Err(DocumentError::Attribute(self.name(), key));
            }
        }
        Ok(())
    }

    fn require_no_text(&self) -> Result<(), DocumentError> {
        let is_read = matches!(
            self.holds.last(),
            Some(Holds::Text | Holds::Number | Holds::Anything)
        );
        // What reads text reads no elements beside it, and says so.
        match is_read || self.text.trim().is_empty() {
            true => Ok(()),
            false => Err(DocumentError::Text(self.name())),
        }
    }

    fn end(&mut self) -> Result<(), DocumentError> {
        self.require_no_text()?;
        let Some(holds) = self.holds.pop() else {
            return Err(DocumentError::Shape);
        };
        let digits = self.text.strip_prefix('-').unwrap_or(&self.text);
        let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        if holds == Holds::Number && !is_number {
            return Err(DocumentError::Number(self.name()));
        }
        match self.lengths.pop() {
            Some(len) => self.path.truncate(len),
            None => self.is_over = true,
        }
        self.text.clear();
        Ok(())
    }
}

/// Refuses a document in which there is anything that is not read.
///
/// `input` is the whole body. Fails with the first thing that is wrong; nothing of it was done then.
pub fn check(input: &[u8]) -> Result<(), DocumentError> {
    let mut reader = Reader::from_reader(input);
    let mut open = Open::default();
    loop {
        let event = reader.read_event();
        match event.map_err(|error| DocumentError::Xml(error.to_string()))? {
            Event::Start(start) => open.begin(&start)?,
            Event::Empty(start) => {
                open.begin(&start)?;
                open.end()?;
            }
            Event::End(_) => open.end()?,
            Event::Text(text) => {
                let text = text.decode();
                let text = text.map_err(|error| DocumentError::Xml(error.to_string()))?;
                open.text.push_str(&text);
            }
            // The reader of the element resolves or refuses it. It is text, and no digit.
            Event::GeneralRef(_) => open.text.push('&'),
            Event::CData(_) | Event::PI(_) | Event::DocType(_) => {
                return Err(DocumentError::Markup(open.name()));
            }
            Event::Comment(_) | Event::Decl(_) => {}
            Event::Eof => break,
        }
    }
    match open.is_over && open.text.trim().is_empty() {
        true => Ok(()),
        false => Err(DocumentError::Shape),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const DOCS: &str = include_str!("../../../../docs/reference/s3.md");

    fn rule(inner: &str) -> String {
        format!("<LifecycleConfiguration><Rule>{inner}</Rule></LifecycleConfiguration>")
    }

    #[test]
    fn documents_are_read_whole_or_refused() {
        let element = |path: &str| Err(DocumentError::Element(path.to_owned()));
        let number = |path: &str| Err(DocumentError::Number(path.to_owned()));
        let cases: &[(&str, String, Result<(), DocumentError>)] = &[
            (
                "as AWS writes it",
                "<?xml version=\"1.0\"?>\n<Tagging xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">\n <TagSet>\
                 <Tag><Key>a &amp; b</Key><Value/></Tag>\n</TagSet></Tagging>\n"
                    .to_owned(),
                Ok(()),
            ),
            ("a rule", rule("<ID>a</ID><Expiration><Days>1</Days></Expiration>"), Ok(())),
            ("an element that is not there", rule("<Filters/>"), element("Rule/Filters")),
            (
                "one that is there elsewhere",
                rule("<Filter><And><Days>1</Days></And></Filter>"),
                element("Rule/Filter/And/Days"),
            ),
            (
                "beside the rules",
                "<LifecycleConfiguration><Rules/></LifecycleConfiguration>".to_owned(),
                element("Rules"),
            ),
            (
                "a condition that nobody looks at",
                "<Delete><Object><Key>a</Key><Size>1</Size></Object></Delete>".to_owned(),
                element("Object/Size"),
            ),
            (
                "below text",
                rule("<Prefix><b/></Prefix>"),
                element("Rule/Prefix/b"),
            ),
            (
                "refused by name later",
                rule("<Transition><Days>x</Days><More><Still/></More></Transition>"),
                Ok(()),
            ),
            (
                "text that is dropped",
                rule("<Prefix><![CDATA[logs/]]></Prefix>"),
                Err(DocumentError::Markup("Rule/Prefix".to_owned())),
            ),
            (
                "text beside elements",
                rule("logs/<Status>Enabled</Status>"),
                Err(DocumentError::Text("Rule".to_owned())),
            ),
            (
                "text behind elements",
                rule("<Status>Enabled</Status>logs/"),
                Err(DocumentError::Text("Rule".to_owned())),
            ),
            (
                "half a number",
                rule("<Expiration><Days>10x</Days></Expiration>"),
                number("Rule/Expiration/Days"),
            ),
            (
                "no number",
                rule("<Expiration><Days/></Expiration>"),
                number("Rule/Expiration/Days"),
            ),
            (
                "an attribute",
                "<Tagging><TagSet kind=\"all\"/></Tagging>".to_owned(),
                Err(DocumentError::Attribute("TagSet".to_owned(), "kind".to_owned())),
            ),
            (
                "another document",
                "<Other/>".to_owned(),
                Err(DocumentError::Root("Other".to_owned())),
            ),
            ("two documents", "<Tagging/><Tagging/>".to_owned(), Err(DocumentError::Shape)),
            ("text behind it", "<Tagging/>more".to_owned(), Err(DocumentError::Shape)),
            ("nothing", String::new(), Err(DocumentError::Shape)),
            ("half", "<Tagging><TagSet>".to_owned(), Err(DocumentError::Shape)),
            (
                "a type",
                "<!DOCTYPE a><Tagging/>".to_owned(),
                Err(DocumentError::Markup("the body".to_owned())),
            ),
        ];
        for (name, document, want) in cases {
            assert_eq!(check(document.as_bytes()), *want, "{name}");
        }
        for document in ["<Tagging></TagSet>", "<Tagging", "\u{ff}<"] {
            assert!(check(document.as_bytes()).is_err(), "{document}");
        }
        let deep = format!("{}x", "<Transition>".repeat(100));
        assert!(check(rule(&deep).as_bytes()).is_err());
        assert!(check(b"<Tagging>\xff</Tagging>").is_err());
    }

    /// The texts between backticks.
    fn quoted(cell: &str) -> BTreeSet<&str> {
        cell.split('`').skip(1).step_by(2).collect()
    }

    #[test]
    fn the_reference_lists_what_is_read() {
        let (_, section) = DOCS.split_once("\n### Documents\n").unwrap();
        let lines = section.lines().skip_while(|line| !line.starts_with('|'));
        let lines = lines.take_while(|line| line.starts_with('|')).skip(2);
        let mut roots = BTreeSet::new();
        for line in lines {
            let (root, paths) = line.trim_matches('|').split_once('|').unwrap();
            let root = *quoted(root).first().unwrap();
            let grammar = Grammar::of(root).unwrap();
            let is_leaf = |path: &&str| {
                let begins = format!("{path}/");
                !grammar.paths.iter().any(|other| other.starts_with(&begins))
            };
            let plain = grammar.paths.iter().map(|path| path.trim_end_matches('#'));
            let want: BTreeSet<&str> = plain.filter(is_leaf).collect();
            assert_eq!(quoted(paths), want, "{root}");
            assert!(roots.insert(root), "{root} is there twice");
        }
        assert_eq!(roots.len(), GRAMMARS.len());
    }

    #[test]
    fn each_path_is_found_and_has_its_parent() {
        for grammar in GRAMMARS {
            for path in grammar.paths {
                let plain = path.trim_end_matches(['#', '*']).trim_end_matches('/');
                assert!(grammar.holds(plain).is_some(), "{path}");
                if let Some((above, _)) = plain.rsplit_once('/') {
                    assert_eq!(grammar.holds(above), Some(Holds::Elements), "{path}");
                }
            }
        }
    }
}
