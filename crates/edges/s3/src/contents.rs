//! Checks bodies that are documents before any other use.
//!
//! Owns: a document is the one that its client sent, and no part of it is ignored. Must not know: its meaning.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use cairn_codec_s3::document;
use http::header::CONTENT_ENCODING;
use http::{HeaderMap, HeaderValue};
use s3s::crypto::{Checksum, Crc32, Crc32c, Crc64Nvme, Md5, Sha1, Sha256};
use s3s::{S3Result, s3_error};

use crate::operations::Row;

const CONTENT_MD5: &str = "content-md5";
const CONTENT_SHA256: &str = "x-amz-content-sha256";
/// Prefix of the signature of a body in chunks.
const STREAMING: &[u8] = b"STREAMING-";
const CHUNKED: &[u8] = b"aws-chunked";

/// Refuses a document that contradicts its headers, or has elements that no operation reads.
pub fn check(row: &Row, headers: &HeaderMap, body: &[u8]) -> S3Result<()> {
    let begins = |value: &HeaderValue| value.as_bytes().starts_with(STREAMING);
    let is_chunked = |value: &HeaderValue| {
        let value = value.as_bytes().to_ascii_lowercase();
        value.windows(CHUNKED.len()).any(|part| part == CHUNKED)
    };
    if headers.get(CONTENT_SHA256).is_some_and(begins)
        || headers.get_all(CONTENT_ENCODING).iter().any(is_chunked)
    {
        return Err(s3_error!(
            NotImplemented,
            "the body of {} is a document, which is sent in one piece, not in chunks",
            row.operation
        ));
    }
    check_sums(row, headers, body)?;
    if row.has_xml() && !body.is_empty() {
        document::check(body).map_err(|error| s3_error!(MalformedXML, "{}", error))?;
    }
    Ok(())
}

fn sum_of<C: Checksum>(body: &[u8]) -> Vec<u8> {
    let sum = C::checksum(body);
    let bytes: &[u8] = sum.as_ref();
    bytes.to_vec()
}

fn check_sums(row: &Row, headers: &HeaderMap, body: &[u8]) -> S3Result<()> {
    type Sum = fn(&[u8]) -> Vec<u8>;
    let sums: [(&str, Sum); 6] = [
        (CONTENT_MD5, sum_of::<Md5>),
        ("x-amz-checksum-crc32", sum_of::<Crc32>),
        ("x-amz-checksum-crc32c", sum_of::<Crc32c>),
        ("x-amz-checksum-crc64nvme", sum_of::<Crc64Nvme>),
        ("x-amz-checksum-sha1", sum_of::<Sha1>),
        ("x-amz-checksum-sha256", sum_of::<Sha256>),
    ];
    for (name, sum) in sums {
        // The checksums of CompleteMultipartUpload are those of the object, but for the MD5.
        if name != CONTENT_MD5 && !row.is_summed(name) {
            continue;
        }
        for given in headers.get_all(name) {
            let wanted = STANDARD.decode(given.as_bytes().trim_ascii());
            let made = sum(body);
            match wanted {
                Ok(wanted) if wanted == made => {}
                Ok(wanted) if wanted.len() == made.len() => {
                    return Err(s3_error!(
                        BadDigest,
                        "the {} that was sent is not that of the body",
                        name
                    ));
                }
                _ => {
                    return Err(s3_error!(
                        InvalidDigest,
                        "{} is {} bytes in base64",
                        name,
                        made.len()
                    ));
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operations::row;

    const TAGGING: &[u8] =
        b"<Tagging><TagSet><Tag><Key>a</Key><Value>b</Value></Tag></TagSet></Tagging>";

    fn checked(operation: &str, given: &[(&'static str, &str)], body: &[u8]) -> Result<(), String> {
        let mut headers = HeaderMap::new();
        for (name, value) in given {
            headers.append(*name, value.parse().unwrap());
        }
        let checked = check(row(operation).unwrap(), &headers, body);
        checked.map_err(|error| error.code().as_str().to_owned())
    }

    #[test]
    fn documents_are_what_was_sent_or_refused() {
        let md5 = STANDARD.encode(sum_of::<Md5>(TAGGING));
        let crc = STANDARD.encode(sum_of::<Crc32>(TAGGING));
        let other = STANDARD.encode(sum_of::<Crc32>(b"other"));
        let refused = |code: &str| Err(code.to_owned());
        for (given, want) in [
            (("content-md5", md5.as_str()), Ok(())),
            (
                ("content-md5", "AAAAAAAAAAAAAAAAAAAAAA=="),
                refused("BadDigest"),
            ),
            (("content-md5", "AAAA"), refused("InvalidDigest")),
            (("content-md5", "no base64!"), refused("InvalidDigest")),
            (("x-amz-checksum-crc32", crc.as_str()), Ok(())),
            (
                ("x-amz-checksum-crc32", other.as_str()),
                refused("BadDigest"),
            ),
            (("x-amz-content-sha256", "UNSIGNED-PAYLOAD"), Ok(())),
            (
                ("x-amz-content-sha256", "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"),
                refused("NotImplemented"),
            ),
            (
                ("content-encoding", "AWS-chunked"),
                refused("NotImplemented"),
            ),
        ] {
            assert_eq!(
                checked("PutObjectTagging", &[given], TAGGING),
                want,
                "{given:?}"
            );
        }
        // The checksum of the object that is made of parts, and not of this document.
        let parts = b"<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>a</ETag></Part></CompleteMultipartUpload>";
        let sum = [("x-amz-checksum-crc32", other.as_str())];
        assert_eq!(checked("CompleteMultipartUpload", &sum, parts), Ok(()));
        let sum = [("content-md5", md5.as_str())];
        assert_eq!(
            checked("CompleteMultipartUpload", &sum, parts),
            refused("BadDigest")
        );
        // The parser of policies checks the JSON.
        assert_eq!(checked("PutBucketPolicy", &[], b"{}"), Ok(()));
        let half = b"<Tagging><TagSet/><Tags/></Tagging>";
        assert_eq!(
            checked("PutObjectTagging", &[], half),
            refused("MalformedXML")
        );
        assert_eq!(checked("CreateBucket", &[], b""), Ok(()));
    }
}
