//! What a signature has to cover, looked at before the signature itself.
//!
//! Owns: which ways to sign there are, that all is signed that acts, what a signature is for, and for how long.
//! Must not know: whether a signature is right (the crate `s3s`), who may do what.
//!
//! `s3s` takes the headers that a client says it signed and no others into the signature, and then acts by all that are there.
//! So the recipient of a presigned URL could add headers to it. As at AWS, all that begin with `x-amz-` are signed, and the host is
//! ("Authenticating Requests: Using the Authorization Header"); query parameters are, always. It is read here exactly as
//! `s3s` reads it, or refused: what two read differently could be signed for one and not for the other.

use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri};
use percent_encoding::percent_decode_str;

pub const ALGORITHM: &str = "AWS4-HMAC-SHA256";
pub const SERVICE: &str = "s3";
/// What clients sign for that are not told otherwise.
pub const REGION_DEFAULT: &str = "us-east-1";
/// Headers with this prefix change what the request does.
const ACTING: &str = "x-amz-";
const EXPIRES_SECONDS: std::ops::RangeInclusive<u64> = 1..=7 * 24 * 60 * 60;
/// The parameter that makes a URL a presigned one.
pub const SIGNATURE: &str = "X-Amz-Signature";
/// What else a presigned URL has.
const OF_PRESIGNED: [&str; 5] = [
    "X-Amz-Algorithm",
    "X-Amz-Credential",
    "X-Amz-Date",
    "X-Amz-Expires",
    "X-Amz-SignedHeaders",
];
/// Of Signature Version 2, which has one signature for any body and most of the sub-resources.
const OF_VERSION_2: [&str; 2] = ["AWSAccessKeyId", "Signature"];

/// Why a request is refused, whatever its signature is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refused {
    /// Signature Version 2, or something else that is none.
    Mechanism,
    TwoMechanisms,
    /// The header is not as it has to be.
    Header(&'static str),
    /// Parameters of the query are not.
    Query(&'static str),
    Service,
    Region,
    /// These change what the request does.
    NotSigned(Vec<String>),
    /// It was signed, and is not there.
    NotThere(String),
}

impl Refused {
    /// The code of AWS.
    pub fn code(&self) -> (&'static str, StatusCode) {
        match self {
            Self::Mechanism => ("InvalidRequest", StatusCode::BAD_REQUEST),
            Self::TwoMechanisms => ("InvalidArgument", StatusCode::BAD_REQUEST),
            Self::Header(_) | Self::Service | Self::Region => {
                ("AuthorizationHeaderMalformed", StatusCode::BAD_REQUEST)
            }
            Self::Query(_) => ("AuthorizationQueryParametersError", StatusCode::BAD_REQUEST),
            Self::NotSigned(_) => ("AccessDenied", StatusCode::FORBIDDEN),
            Self::NotThere(_) => ("SignatureDoesNotMatch", StatusCode::FORBIDDEN),
        }
    }

    /// What the client is told. `region` is the one of this server.
    pub fn message(&self, region: &str) -> String {
        match self {
            Self::Mechanism => {
                format!("requests are signed with {ALGORITHM} (Signature Version 4) only")
            }
            Self::TwoMechanisms => {
                "a request is signed once: in the header Authorization or in the query".to_owned()
            }
            Self::Header(why) | Self::Query(why) => (*why).to_owned(),
            Self::Service => format!("the signature is for another service than {SERVICE}"),
            Self::Region => format!("the region is wrong; expecting '{region}'"),
            Self::NotSigned(_) => {
                "There were headers present in the request which were not signed".to_owned()
            }
            Self::NotThere(name) => format!("the signed header {name} is not in the request"),
        }
    }
}

/// Whether a parameter of a query is of a signature there.
pub fn is_of_presigned(name: &str) -> bool {
    name == SIGNATURE || OF_PRESIGNED.contains(&name)
}

/// The parameters of a query as they are taken, in their order.
pub fn parameters(query: &str) -> impl Iterator<Item = (String, String)> {
    let decoded = |text: &str| {
        let text = text.replace('+', " ");
        percent_decode_str(&text).decode_utf8_lossy().into_owned()
    };
    let parts = query.split('&').filter(|part| !part.is_empty());
    parts.map(move |part| {
        let (name, value) = part.split_once('=').unwrap_or((part, ""));
        (decoded(name), decoded(value))
    })
}

/// What a request says of its signature.
struct Claim<'a> {
    /// `KEY/DATE/REGION/SERVICE/aws4_request`.
    credential: &'a str,
    /// Names, with semicolons between.
    signed_headers: &'a str,
}

impl<'a> Claim<'a> {
    fn of_header(text: &'a str) -> Result<Self, Refused> {
        let wrong = || {
            Refused::Header(
                "the header is AWS4-HMAC-SHA256 Credential=..., SignedHeaders=..., Signature=...",
            )
        };
        let (algorithm, rest) = text
            .split_once(|char: char| char.is_ascii_whitespace())
            .unwrap_or((text, ""));
        if algorithm != ALGORITHM {
            return Err(Refused::Mechanism);
        }
        // With a comma more or less it could be read in two ways.
        let parts: Vec<&str> = rest.split(',').map(str::trim_ascii_start).collect();
        let [credential, signed_headers, signature] = parts[..] else {
            return Err(wrong());
        };
        let claim = Self {
            credential: credential.strip_prefix("Credential=").ok_or_else(wrong)?,
            signed_headers: signed_headers
                .strip_prefix("SignedHeaders=")
                .ok_or_else(wrong)?,
        };
        signature.strip_prefix("Signature=").ok_or_else(wrong)?;
        Ok(claim)
    }

    fn check(
        &self,
        region: &str,
        headers: &HeaderMap,
        wrong: impl Fn(&'static str) -> Refused,
    ) -> Result<(), Refused> {
        let parts: Vec<&str> = self.credential.split('/').collect();
        let [_, _, of_region, service, "aws4_request"] = parts[..] else {
            return Err(wrong(
                "the credential is KEY/YYYYMMDD/REGION/s3/aws4_request",
            ));
        };
        if service != SERVICE {
            return Err(Refused::Service);
        }
        if of_region != region {
            return Err(Refused::Region);
        }
        let signed: Vec<&str> = self.signed_headers.split(';').collect();
        for name in &signed {
            // Names in capitals are found by nobody, so they would be left out of the signature.
            let is_name =
                HeaderName::from_bytes(name.as_bytes()).is_ok_and(|it| it.as_str() == *name);
            if !is_name {
                return Err(wrong("signed headers are names in lower case"));
            }
            let mut values = headers.get_all(*name).iter().peekable();
            // So would one be whose value is no text.
            let is_text = |value: &HeaderValue| std::str::from_utf8(value.as_bytes()).is_ok();
            if values.peek().is_none() || !values.all(is_text) {
                return Err(Refused::NotThere((*name).to_owned()));
            }
        }
        let acts = |name: &&str| *name == "host" || name.starts_with(ACTING);
        let there = headers.keys().map(HeaderName::as_str);
        let mut missing: Vec<String> = there
            .chain(["host"])
            .filter(acts)
            .filter(|name| !signed.contains(name))
            .map(str::to_owned)
            .collect();
        missing.sort();
        missing.dedup();
        match missing.is_empty() {
            true => Ok(()),
            false => Err(Refused::NotSigned(missing)),
        }
    }
}

/// Refuses a request that is signed in a way that there is not, or that does something that is not signed. One without a
/// signature is nobody's, which is no matter of this.
pub fn check(uri: &Uri, headers: &HeaderMap, region: &str) -> Result<(), Refused> {
    let given: Vec<(String, String)> = parameters(uri.query().unwrap_or_default()).collect();
    let has = |name: &str| given.iter().any(|(it, _)| it == name);
    if OF_VERSION_2.into_iter().any(has) {
        return Err(Refused::Mechanism);
    }
    let mut authorizations = headers.get_all(AUTHORIZATION).iter();
    let authorization = authorizations.next();
    let is_presigned = has(SIGNATURE);
    if authorizations.next().is_some() || is_presigned && authorization.is_some() {
        return Err(Refused::TwoMechanisms);
    }
    if let Some(authorization) = authorization {
        let text = authorization
            .to_str()
            .map_err(|_| Refused::Header("the header is no text"))?;
        return Claim::of_header(text)?.check(region, headers, Refused::Header);
    }
    if !is_presigned {
        return match OF_PRESIGNED.into_iter().any(has) {
            true => Err(Refused::Query("the query has no X-Amz-Signature")),
            false => Ok(()),
        };
    }
    let value = |wanted: &'static str| {
        let mut values = given.iter().filter(|(name, _)| name == wanted);
        match (values.next(), values.next()) {
            (Some((_, value)), None) => Ok(value.as_str()),
            _ => Err(Refused::Query(
                "a presigned URL has each of X-Amz-Algorithm, -Credential, -Date, -Expires, -SignedHeaders and -Signature once",
            )),
        }
    };
    for name in OF_PRESIGNED.into_iter().chain([SIGNATURE]) {
        value(name)?;
    }
    if value("X-Amz-Algorithm")? != ALGORITHM {
        return Err(Refused::Mechanism);
    }
    let expires = value("X-Amz-Expires")?.parse::<u64>();
    if !expires.is_ok_and(|seconds| EXPIRES_SECONDS.contains(&seconds)) {
        return Err(Refused::Query(
            "X-Amz-Expires is 1 to 604800 seconds: a week at most",
        ));
    }
    let claim = Claim {
        credential: value("X-Amz-Credential")?,
        signed_headers: value("X-Amz-SignedHeaders")?,
    };
    claim.check(region, headers, Refused::Query)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCOPE: &str = "AKID/20261129/us-east-1/s3/aws4_request";

    fn headers(given: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert("host", HeaderValue::from_static("localhost"));
        for (name, value) in given {
            headers.append(*name, value.parse().unwrap());
        }
        headers
    }

    fn by_header(text: &str, more: &[(&'static str, &str)]) -> Result<(), Refused> {
        let given = [&[("authorization", text)][..], more].concat();
        check(
            &Uri::from_static("/photos/a"),
            &headers(&given),
            REGION_DEFAULT,
        )
    }

    fn signed(names: &str) -> String {
        format!("{ALGORITHM} Credential={SCOPE}, SignedHeaders={names}, Signature=ab")
    }

    fn by_query(query: &str, more: &[(&'static str, &str)]) -> Result<(), Refused> {
        let uri: Uri = format!("/photos/a?{query}").parse().unwrap();
        check(&uri, &headers(more), REGION_DEFAULT)
    }

    fn presigned(names: &str, expires: &str) -> String {
        let scope = SCOPE.replace('/', "%2F");
        format!(
            "X-Amz-Algorithm={ALGORITHM}&X-Amz-Credential={scope}&X-Amz-Date=20261129T000000Z\
             &X-Amz-Expires={expires}&X-Amz-SignedHeaders={names}&X-Amz-Signature=ab"
        )
    }

    fn not_signed(names: &[&str]) -> Result<(), Refused> {
        let names = names.iter().map(|name| (*name).to_owned());
        Err(Refused::NotSigned(names.collect()))
    }

    #[test]
    fn what_acts_is_signed() {
        let copy = [
            ("x-amz-copy-source", "/photos/secret"),
            ("x-amz-acl", "public-read"),
        ];
        for (names, more, want) in [
            ("host", &[][..], Ok(())),
            (
                "host",
                &copy[..],
                not_signed(&["x-amz-acl", "x-amz-copy-source"]),
            ),
            (
                "host;x-amz-acl",
                &copy[..],
                not_signed(&["x-amz-copy-source"]),
            ),
            ("host;x-amz-acl;x-amz-copy-source", &copy[..], Ok(())),
            (
                "x-amz-acl;x-amz-copy-source",
                &copy[..],
                not_signed(&["host"]),
            ),
            // AWS does not ask for these.
            (
                "host",
                &[("content-type", "text/html"), ("range", "bytes=0-1")][..],
                Ok(()),
            ),
            (
                "host;range",
                &[][..],
                Err(Refused::NotThere("range".to_owned())),
            ),
        ] {
            assert_eq!(by_header(&signed(names), more), want, "{names}");
            let query = presigned(&names.replace(';', "%3B"), "60");
            assert_eq!(by_query(&query, more), want, "{query}");
        }
    }

    /// `s3s` finds no header by such a name, and so leaves it out of what it checks.
    #[test]
    fn signed_headers_that_nobody_finds_are_not_signed() {
        let acl = [("x-amz-acl", "public-read")];
        for names in [
            "host;X-Amz-Acl",
            "host;x-amz-acl ",
            "host; x-amz-acl",
            "host;;x-amz-acl",
        ] {
            assert!(
                matches!(by_header(&signed(names), &acl), Err(Refused::Header(_))),
                "{names}"
            );
            let query = presigned(&names.replace(' ', "%20"), "60");
            assert!(
                matches!(by_query(&query, &acl), Err(Refused::Query(_))),
                "{query}"
            );
        }
        let mut given = headers(&[("authorization", &signed("host;x-amz-meta-a"))]);
        given.insert("x-amz-meta-a", HeaderValue::from_bytes(b"\xff").unwrap());
        let refused = check(&Uri::from_static("/a"), &given, REGION_DEFAULT);
        assert_eq!(refused, Err(Refused::NotThere("x-amz-meta-a".to_owned())));
    }

    #[test]
    fn a_header_is_read_in_one_way_or_refused() {
        let one = format!("{ALGORITHM}  Credential={SCOPE},SignedHeaders=host,Signature=ab");
        assert_eq!(by_header(&one, &[]), Ok(()));
        for (text, want) in [
            (
                "AWS AKID:qgk2+6Sv9/oM7G3qLEjTH1a1l1g=".to_owned(),
                "Mechanism",
            ),
            ("Basic eDp5".to_owned(), "Mechanism"),
            ("".to_owned(), "Mechanism"),
            ("AWS4-HMAC-SHA1 Credential=x".to_owned(), "Mechanism"),
            (ALGORITHM.to_owned(), "Header"),
            (one.replace("/s3/", "/sts/"), "Service"),
            (one.replace("us-east-1", "eu-west-1"), "Region"),
            (one.replace("us-east-1", ""), "Region"),
            (one.replace("aws4_request", "aws5_request"), "Header"),
            (one.replace("AKID/", "AK/ID/"), "Header"),
            // A key with commas would hide the signed headers.
            (
                one.replace("AKID", "a,SignedHeaders=host;x-amz-acl,Signature=x"),
                "Header",
            ),
            (one.replace("SignedHeaders=host,", ""), "Header"),
            (one.replace("Signature", "signature"), "Header"),
        ] {
            let refused = by_header(&text, &[]).unwrap_err();
            assert!(
                format!("{refused:?}").starts_with(want),
                "{text}: {refused:?}"
            );
        }
        let twice = [
            ("authorization", signed("host")),
            ("authorization", signed("host")),
        ];
        let twice: Vec<_> = twice
            .iter()
            .map(|(name, text)| (*name, text.as_str()))
            .collect();
        let refused = check(&Uri::from_static("/a"), &headers(&twice), REGION_DEFAULT);
        assert_eq!(refused, Err(Refused::TwoMechanisms));
    }

    #[test]
    fn a_presigned_url_holds_for_a_week_at_most() {
        for (expires, is_taken) in [
            ("1", true),
            ("604800", true),
            ("0", false),
            ("604801", false),
            ("4294967295", false),
            ("-1", false),
            ("", false),
        ] {
            let taken = by_query(&presigned("host", expires), &[]);
            assert_eq!(taken.is_ok(), is_taken, "{expires}");
        }
        let whole = presigned("host", "60");
        for (query, want) in [
            (whole.replace("&X-Amz-Signature=ab", ""), "Query"),
            (whole.replace("&X-Amz-Expires=60", ""), "Query"),
            (format!("{whole}&X-Amz-SignedHeaders=host"), "Query"),
            (format!("{whole}&X-Am%7A-Signature=ab"), "Query"),
            (whole.replace("%2Fs3%2F", "%2Fsts%2F"), "Service"),
            (whole.replace("us-east-1", "mars"), "Region"),
            (whole.replace("HMAC", "ECDSA-P256"), "Mechanism"),
            (
                "AWSAccessKeyId=AKID&Expires=1&Signature=ab".to_owned(),
                "Mechanism",
            ),
            ("Signatur%65=ab".to_owned(), "Mechanism"),
            (format!("{whole}&Signature=ab"), "Mechanism"),
        ] {
            let refused = by_query(&query, &[]).unwrap_err();
            assert!(
                format!("{refused:?}").starts_with(want),
                "{query}: {refused:?}"
            );
        }
        let both = by_query(&whole, &[("authorization", &signed("host"))]);
        assert_eq!(both, Err(Refused::TwoMechanisms));
        assert_eq!(by_query("versionId=1&x-amz-acl=public-read", &[]), Ok(()));
    }
}
