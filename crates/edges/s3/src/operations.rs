//! The operation of a request, the parts of it that are read, and its needs: one table.
//!
//! Owns: the table, and the refusal of everything in a request beyond it. Must not know: the work of an operation,
//! the rights of callers (`needs`).
//!
//! `s3s` treats a request with an unknown query as the plain operation, and drops unknown headers. `PUT
//! /photos/a?renameObject` would empty the object, `DELETE /photos?metadataConfiguration` would delete the bucket. So
//! each request is looked up here, too. A request is refused before any effect if it has no row, has a part that its
//! row does not name, or is another operation for `s3s`. `docs/reference/s3.md` shows this table, and a test compares
//! the two.

use std::fmt;
use std::sync::LazyLock;

use cairn_codec_s3::{Action as A, signed};
use cairn_objects::Facet;
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use s3s::path::S3Path;
use s3s::{S3Error, S3Result, s3_error};

use crate::needs::{Need, On, When, need};

pub const PUT_OBJECT: &str = "PutObject";
pub const POST_OBJECT: &str = "PostObject";
pub const DELETE_OBJECT: &str = "DeleteObject";
/// Its body is JSON; all other documents are XML.
const PUT_BUCKET_POLICY: &str = "PutBucketPolicy";
const COMPLETE: &str = "CompleteMultipartUpload";

const GET: &str = "GET";
const HEAD: &str = "HEAD";
const PUT: &str = "PUT";
const POST: &str = "POST";
const DELETE: &str = "DELETE";

/// The kind of resource that the path of a request names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    Service,
    Bucket,
    Object,
}

impl At {
    pub fn of(path: &S3Path) -> Self {
        match path {
            S3Path::Root => Self::Service,
            S3Path::Bucket { .. } => Self::Bucket,
            S3Path::Object { .. } => Self::Object,
        }
    }
}

impl fmt::Display for At {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(match self {
            Self::Service => "/",
            Self::Bucket => "/BUCKET",
            Self::Object => "/BUCKET/KEY",
        })
    }
}

/// An operation of S3.
pub struct Row {
    pub operation: &'static str,
    pub method: &'static str,
    pub at: At,
    /// Names of the query that choose this operation, with a value where only that value does.
    pub chosen_by: &'static [&'static str],
    /// Other names that the query may have.
    pub query: Vec<&'static str>,
    /// The headers that are read. A name that ends with a star stands for all names with that prefix.
    pub headers: Vec<&'static str>,
    /// Whether a request without a signature may be admitted.
    pub is_open: bool,
    pub needs: Vec<Need>,
}

impl Row {
    fn new(
        operation: &'static str,
        method: &'static str,
        at: At,
        chosen_by: &'static [&'static str],
    ) -> Self {
        Self {
            operation,
            method,
            at,
            chosen_by,
            query: Vec::new(),
            headers: Vec::new(),
            is_open: false,
            needs: Vec::new(),
        }
    }

    /// The facet of the object or the bucket that it replaces, for the order of changes; `None`: it changes nothing,
    /// or no object and no bucket, or its body names the objects.
    pub fn facet(&self) -> Option<Facet> {
        Some(match self.operation {
            PUT_OBJECT | COMPLETE | DELETE_OBJECT => Facet::Whole,
            "CopyObject" | "CreateBucket" | "DeleteBucket" => Facet::Whole,
            "PutObjectTagging" | "DeleteObjectTagging" => Facet::Tags,
            "PutBucketTagging" | "DeleteBucketTagging" => Facet::Tags,
            "PutObjectAcl" | "PutBucketAcl" => Facet::Acl,
            "PutObjectRetention" => Facet::Retention,
            "PutObjectLegalHold" => Facet::LegalHold,
            PUT_BUCKET_POLICY | "DeleteBucketPolicy" => Facet::Policy,
            "PutBucketCors" | "DeleteBucketCors" => Facet::Cors,
            "PutBucketLifecycleConfiguration" | "DeleteBucketLifecycle" => Facet::Lifecycle,
            "PutBucketVersioning" => Facet::Versioning,
            "PutBucketWebsite" | "DeleteBucketWebsite" => Facet::Website,
            "PutObjectLockConfiguration" => Facet::ObjectLock,
            _ => return None,
        })
    }

    fn open(self) -> Self {
        Self {
            is_open: true,
            ..self
        }
    }

    fn query(self, groups: &[&[&'static str]]) -> Self {
        Self {
            query: groups.concat(),
            ..self
        }
    }

    fn headers(self, groups: &[&[&'static str]]) -> Self {
        Self {
            headers: groups.concat(),
            ..self
        }
    }

    fn needs(self, needs: impl Into<Vec<Need>>) -> Self {
        Self {
            needs: needs.into(),
            ..self
        }
    }

    fn reads(&self, header: &str) -> bool {
        self.headers
            .iter()
            .any(|name| match name.strip_suffix('*') {
                Some(beginning) => header.starts_with(beginning),
                None => *name == header,
            })
    }

    fn takes(&self, name: &str) -> bool {
        self.query.contains(&name) || self.chosen_by.iter().any(|it| named_by(it).0 == name)
    }

    fn copies(&self) -> bool {
        self.reads(COPY_SOURCE)
    }

    /// Whether its body is read as a whole: XML or JSON, and not the bytes of an object.
    pub fn has_document(&self) -> bool {
        self.operation == COMPLETE || self.reads(SUMS[0]) && !self.reads(STREAM[0])
    }

    /// Whether a checksum header is that of its body.
    pub fn is_summed(&self, header: &str) -> bool {
        self.reads(SUMS[0]) && self.reads(header)
    }

    pub fn has_xml(&self) -> bool {
        self.has_document() && self.operation != PUT_BUCKET_POLICY
    }
}

const COPY_SOURCE: &str = "x-amz-copy-source";
const META: &str = "x-amz-meta-";
const SDK_ALGORITHM: &str = "x-amz-sdk-checksum-algorithm";
const TRAILER: &str = "x-amz-trailer";

/// Checksums of a request's body.
const SUMS: &[&str] = &[
    "content-md5",
    SDK_ALGORITHM,
    "x-amz-checksum-crc32",
    "x-amz-checksum-crc32c",
    "x-amz-checksum-crc64nvme",
    "x-amz-checksum-sha1",
    "x-amz-checksum-sha256",
];
/// Checksums of an object that is made of parts.
const FIVE: &[&str] = &[
    "x-amz-checksum-crc32",
    "x-amz-checksum-crc32c",
    "x-amz-checksum-crc64nvme",
    "x-amz-checksum-sha1",
    "x-amz-checksum-sha256",
];
/// Headers of bytes in chunks.
const STREAM: &[&str] = &["x-amz-decoded-content-length", TRAILER];
const OWNER: &[&str] = &["x-amz-expected-bucket-owner"];
/// Headers with properties of a new object.
const GIVEN: &[&str] = &[
    "x-amz-acl",
    "x-amz-meta-*",
    "x-amz-tagging",
    "x-amz-storage-class",
    "x-amz-object-lock-mode",
    "x-amz-object-lock-retain-until-date",
    "x-amz-object-lock-legal-hold",
];
/// Headers that a response repeats.
const PROPERTIES: &[&str] = &[
    "cache-control",
    "content-disposition",
    "content-encoding",
    "content-language",
    "content-type",
    "expires",
];
const READ: &[&str] = &[
    "if-match",
    "if-none-match",
    "if-modified-since",
    "if-unmodified-since",
];
const SOURCE: &[&str] = &[
    COPY_SOURCE,
    "x-amz-copy-source-if-match",
    "x-amz-copy-source-if-none-match",
    "x-amz-copy-source-if-modified-since",
    "x-amz-copy-source-if-unmodified-since",
    "x-amz-source-expected-bucket-owner",
];
/// Parameters that set headers of the response.
const ANSWER: &[&str] = &[
    "response-cache-control",
    "response-content-disposition",
    "response-content-encoding",
    "response-content-language",
    "response-content-type",
    "response-expires",
];
const VERSION_ID: &str = "versionId";
const PAGE: &[&str] = &["delimiter", "encoding-type", "prefix"];

/// Headers of any request: of its signature, and without an effect. The bucket's owner always pays.
const OF_ALL: &[&str] = &[
    "x-amz-cf-id",
    "x-amz-content-sha256",
    "x-amz-date",
    REQUEST_PAYER,
    "x-amz-user-agent",
];
const REQUEST_PAYER: &str = "x-amz-request-payer";
const SECURITY_TOKEN: &str = "x-amz-security-token";
const CONTENT_SHA256: &str = "x-amz-content-sha256";

/// Prefix of headers that change the request.
const ACTING_PREFIX: &str = "x-amz-";
/// Other such headers (RFC 9110, sections 13 and 14.5).
const ACTING: &[&str] = &[
    "content-range",
    "if-match",
    "if-modified-since",
    "if-none-match",
    "if-unmodified-since",
];

/// The message for headers that are not read; all others get a general one. The first match wins.
const REFUSED: &[(&str, &str)] = &[
    (
        "x-amz-server-side-encryption",
        "objects are encrypted with their volume; put them without encryption headers",
    ),
    (
        "x-amz-copy-source-server-side-encryption",
        "objects are encrypted with their volume; copy them without encryption headers",
    ),
    (
        "x-amz-grant-",
        "an ACL is private or public-read; bucket policies say more",
    ),
    ("x-amz-mfa", "there is no second factor to delete with"),
    (
        "x-amz-checksum-",
        "the checksums of bodies are CRC32, CRC32C, CRC64NVME, SHA-1 and SHA-256",
    ),
    (
        "x-amz-website-redirect-location",
        "a website redirects all requests or none; an object redirects nobody",
    ),
    (
        "x-amz-write-offset-bytes",
        "an object is put as a whole; nothing is appended to it",
    ),
    (
        "x-amz-object-ownership",
        "the owner of a bucket owns its objects as far as their files say so; make it without this header",
    ),
    (
        "x-amz-bucket-namespace",
        "names of buckets are one namespace",
    ),
    (
        "x-amz-object-lock-event-hold",
        "an object is held until a date, or by a legal hold",
    ),
    (
        "x-amz-object-annotation-directive",
        "objects have no annotations",
    ),
    (
        "x-amz-optional-object-attributes",
        "no object waits to be restored",
    ),
    (
        "x-amz-bucket-object-lock-token",
        "object lock takes no token",
    ),
    (
        "x-amz-confirm-remove-self-bucket-access",
        "the owner of a bucket can mend its policy, always; put it without this header",
    ),
    (
        "x-amz-if-match-",
        "what a change depends on is the ETag: If-Match",
    ),
    (
        "content-range",
        "an object is put as a whole; nothing is written into it",
    ),
];

/// All operations.
pub static TABLE: LazyLock<Vec<Row>> = LazyLock::new(table);

fn bucket(action: A) -> [Need; 1] {
    [need(action, On::Bucket)]
}

/// An operation on a setting of a bucket. One that sets it has a document, with its checksums.
fn setting(
    operation: &'static str,
    method: &'static str,
    chosen_by: &'static [&'static str],
    action: A,
) -> Row {
    let headers: &[&[&'static str]] = match method {
        PUT => &[OWNER, SUMS],
        _ => &[OWNER],
    };
    Row::new(operation, method, At::Bucket, chosen_by)
        .headers(headers)
        .needs(bucket(action))
}

fn prefix(action: A) -> [Need; 1] {
    [need(action, On::Prefix)]
}

fn object(action: A) -> [Need; 1] {
    [need(action, On::Object)]
}

/// An action on an object or, with another name, on a version of it.
fn of_version(latest: A, version: A) -> [Need; 3] {
    [
        need(latest, On::Object).when(When::Latest),
        need(version, On::Object).when(When::Version),
        need(latest, On::Object)
            .when(When::Version)
            .by_another_name(),
    ]
}

fn table() -> Vec<Row> {
    let get = of_version(A::GetObject, A::GetObjectVersion);
    let get_attributes = of_version(A::GetObjectAttributes, A::GetObjectVersionAttributes);
    let bypass = need(A::BypassGovernanceRetention, On::Object).when(When::Bypass);
    let put = object(A::PutObject);
    // The properties that a new object may have.
    let given = [
        need(A::PutObjectAcl, On::Object).when(When::Acl),
        need(A::PutObjectTagging, On::Object).when(When::Tags),
        need(A::PutObjectRetention, On::Object).when(When::Retention),
        need(A::PutObjectLegalHold, On::Object).when(When::LegalHold),
    ];
    let source = [
        need(A::GetObject, On::Source).when(When::SourceLatest),
        need(A::GetObjectVersion, On::Source).when(When::SourceVersion),
        need(A::GetObject, On::Source)
            .when(When::SourceVersion)
            .by_another_name(),
    ];
    let copied_tags = [
        need(A::GetObjectTagging, On::Source)
            .when(When::CopiesTags)
            .by_another_name(),
        need(A::PutObjectTagging, On::Object)
            .when(When::CopiesTags)
            .by_another_name(),
    ];
    let delete = of_version(A::DeleteObject, A::DeleteObjectVersion);
    vec![
        Row::new("ListBuckets", GET, At::Service, &[])
            .query(&[&[
                "bucket-region",
                "continuation-token",
                "max-buckets",
                "prefix",
            ]])
            .needs([need(A::ListAllMyBuckets, On::Volume)]),
        Row::new("CreateBucket", PUT, At::Bucket, &[])
            .headers(&[SUMS, &["x-amz-acl", "x-amz-bucket-object-lock-enabled"]])
            .needs([need(A::CreateBucket, On::Volume)]),
        Row::new("DeleteBucket", DELETE, At::Bucket, &[])
            .headers(&[OWNER])
            .needs(bucket(A::DeleteBucket)),
        Row::new("HeadBucket", HEAD, At::Bucket, &[])
            .open()
            .headers(&[OWNER])
            .needs(bucket(A::ListBucket)),
        Row::new("GetBucketLocation", GET, At::Bucket, &["location"])
            .open()
            .headers(&[OWNER])
            .needs(bucket(A::GetBucketLocation)),
        Row::new("ListObjects", GET, At::Bucket, &[])
            .open()
            .query(&[PAGE, &["marker", "max-keys"]])
            .headers(&[OWNER])
            .needs(prefix(A::ListBucket)),
        Row::new("ListObjectsV2", GET, At::Bucket, &["list-type=2"])
            .open()
            .query(&[
                PAGE,
                &[
                    "continuation-token",
                    "fetch-owner",
                    "max-keys",
                    "start-after",
                ],
            ])
            .headers(&[OWNER])
            .needs(prefix(A::ListBucket)),
        Row::new("ListObjectVersions", GET, At::Bucket, &["versions"])
            .open()
            .query(&[PAGE, &["key-marker", "max-keys", "version-id-marker"]])
            .headers(&[OWNER])
            .needs(prefix(A::ListBucketVersions)),
        Row::new("ListMultipartUploads", GET, At::Bucket, &["uploads"])
            .query(&[PAGE, &["key-marker", "max-uploads", "upload-id-marker"]])
            .headers(&[OWNER])
            .needs(prefix(A::ListBucketMultipartUploads)),
        Row::new("GetObject", GET, At::Object, &[])
            .open()
            .query(&[ANSWER, &["partNumber", "versionId"]])
            .headers(&[
                OWNER,
                READ,
                &["if-range", "range", "x-amz-checksum-mode", "x-amz-te"],
            ])
            .needs(get),
        Row::new("HeadObject", HEAD, At::Object, &[])
            .open()
            .query(&[ANSWER, &["partNumber", "versionId"]])
            .headers(&[
                OWNER,
                READ,
                &["if-range", "range", "x-amz-checksum-mode", "x-amz-te"],
            ])
            .needs(get),
        Row::new("GetObjectAttributes", GET, At::Object, &["attributes"])
            .open()
            .query(&[&["versionId"]])
            .headers(&[
                OWNER,
                &[
                    "x-amz-max-parts",
                    "x-amz-object-attributes",
                    "x-amz-part-number-marker",
                ],
            ])
            .needs([get, get_attributes].concat()),
        Row::new("GetObjectTagging", GET, At::Object, &["tagging"])
            .open()
            .query(&[&["versionId"]])
            .headers(&[OWNER])
            .needs(of_version(A::GetObjectTagging, A::GetObjectVersionTagging)),
        Row::new("PutObjectTagging", PUT, At::Object, &["tagging"])
            .query(&[&["versionId"]])
            .headers(&[OWNER, SUMS])
            .needs(of_version(A::PutObjectTagging, A::PutObjectVersionTagging)),
        Row::new("DeleteObjectTagging", DELETE, At::Object, &["tagging"])
            .query(&[&["versionId"]])
            .headers(&[OWNER])
            .needs(of_version(
                A::DeleteObjectTagging,
                A::DeleteObjectVersionTagging,
            )),
        Row::new("GetObjectAcl", GET, At::Object, &["acl"])
            .query(&[&["versionId"]])
            .headers(&[OWNER])
            .needs(of_version(A::GetObjectAcl, A::GetObjectVersionAcl)),
        Row::new("PutObjectAcl", PUT, At::Object, &["acl"])
            .query(&[&["versionId"]])
            .headers(&[OWNER, SUMS, &["x-amz-acl"]])
            .needs(of_version(A::PutObjectAcl, A::PutObjectVersionAcl)),
        Row::new("GetObjectRetention", GET, At::Object, &["retention"])
            .query(&[&["versionId"]])
            .headers(&[OWNER])
            .needs(object(A::GetObjectRetention)),
        Row::new("PutObjectRetention", PUT, At::Object, &["retention"])
            .query(&[&["versionId"]])
            .headers(&[OWNER, SUMS, &["x-amz-bypass-governance-retention"]])
            .needs([need(A::PutObjectRetention, On::Object), bypass]),
        Row::new("GetObjectLegalHold", GET, At::Object, &["legal-hold"])
            .query(&[&["versionId"]])
            .headers(&[OWNER])
            .needs(object(A::GetObjectLegalHold)),
        Row::new("PutObjectLegalHold", PUT, At::Object, &["legal-hold"])
            .query(&[&["versionId"]])
            .headers(&[OWNER, SUMS])
            .needs(object(A::PutObjectLegalHold)),
        Row::new(PUT_OBJECT, PUT, At::Object, &[])
            .open()
            .headers(&[
                OWNER,
                SUMS,
                STREAM,
                GIVEN,
                PROPERTIES,
                &["if-match", "if-none-match", "x-amz-checksum-algorithm"],
            ])
            .needs([&put[..], &given].concat()),
        Row::new(POST_OBJECT, POST, At::Bucket, &[])
            .open()
            .headers(&[&["content-type"]]),
        Row::new("CopyObject", PUT, At::Object, &[])
            .headers(&[
                OWNER,
                SOURCE,
                GIVEN,
                PROPERTIES,
                &[
                    "if-match",
                    "if-none-match",
                    "x-amz-checksum-algorithm",
                    "x-amz-metadata-directive",
                    "x-amz-tagging-directive",
                ],
            ])
            .needs([&source[..], &copied_tags, &put, &given].concat()),
        Row::new("CreateMultipartUpload", POST, At::Object, &["uploads"])
            .headers(&[
                OWNER,
                GIVEN,
                PROPERTIES,
                &["x-amz-checksum-algorithm", "x-amz-checksum-type"],
            ])
            .needs([&put[..], &given].concat()),
        Row::new("UploadPart", PUT, At::Object, &["partNumber", "uploadId"])
            .headers(&[OWNER, SUMS, STREAM])
            .needs(put),
        Row::new(
            "UploadPartCopy",
            PUT,
            At::Object,
            &["partNumber", "uploadId"],
        )
        .headers(&[OWNER, SOURCE, &["x-amz-copy-source-range"]])
        .needs([&source[..], &put].concat()),
        Row::new("CompleteMultipartUpload", POST, At::Object, &["uploadId"])
            .headers(&[
                OWNER,
                FIVE,
                &[
                    "if-match",
                    "if-none-match",
                    "x-amz-checksum-type",
                    "x-amz-mp-object-size",
                ],
            ])
            .needs(put),
        Row::new("AbortMultipartUpload", DELETE, At::Object, &["uploadId"])
            .headers(&[OWNER])
            .needs(object(A::AbortMultipartUpload)),
        Row::new("ListParts", GET, At::Object, &["uploadId"])
            .query(&[&["max-parts", "part-number-marker"]])
            .headers(&[OWNER])
            .needs(object(A::ListMultipartUploadParts)),
        Row::new(DELETE_OBJECT, DELETE, At::Object, &[])
            .open()
            .query(&[&["versionId"]])
            .headers(&[OWNER, &["if-match", "x-amz-bypass-governance-retention"]])
            .needs([&delete[..], &[bypass]].concat()),
        Row::new("DeleteObjects", POST, At::Bucket, &["delete"])
            .open()
            .headers(&[OWNER, SUMS, &["x-amz-bypass-governance-retention"]]),
        setting("GetBucketAcl", GET, &["acl"], A::GetBucketAcl),
        Row::new("PutBucketAcl", PUT, At::Bucket, &["acl"])
            .headers(&[OWNER, SUMS, &["x-amz-acl"]])
            .needs(bucket(A::PutBucketAcl)),
        setting("GetBucketPolicy", GET, &["policy"], A::GetBucketPolicy),
        setting(
            "GetBucketPolicyStatus",
            GET,
            &["policyStatus"],
            A::GetBucketPolicyStatus,
        ),
        setting("PutBucketPolicy", PUT, &["policy"], A::PutBucketPolicy),
        setting(
            "DeleteBucketPolicy",
            DELETE,
            &["policy"],
            A::DeleteBucketPolicy,
        ),
        setting("GetBucketCors", GET, &["cors"], A::GetBucketCors),
        setting("PutBucketCors", PUT, &["cors"], A::PutBucketCors),
        setting("DeleteBucketCors", DELETE, &["cors"], A::PutBucketCors),
        setting(
            "GetBucketLifecycleConfiguration",
            GET,
            &["lifecycle"],
            A::GetLifecycleConfiguration,
        ),
        Row::new(
            "PutBucketLifecycleConfiguration",
            PUT,
            At::Bucket,
            &["lifecycle"],
        )
        .headers(&[
            OWNER,
            SUMS,
            &["x-amz-transition-default-minimum-object-size"],
        ])
        .needs(bucket(A::PutLifecycleConfiguration)),
        setting(
            "DeleteBucketLifecycle",
            DELETE,
            &["lifecycle"],
            A::PutLifecycleConfiguration,
        ),
        setting("GetBucketTagging", GET, &["tagging"], A::GetBucketTagging),
        setting("PutBucketTagging", PUT, &["tagging"], A::PutBucketTagging),
        setting(
            "DeleteBucketTagging",
            DELETE,
            &["tagging"],
            A::PutBucketTagging,
        ),
        setting(
            "GetBucketVersioning",
            GET,
            &["versioning"],
            A::GetBucketVersioning,
        ),
        setting(
            "PutBucketVersioning",
            PUT,
            &["versioning"],
            A::PutBucketVersioning,
        ),
        setting("GetBucketWebsite", GET, &["website"], A::GetBucketWebsite),
        setting("PutBucketWebsite", PUT, &["website"], A::PutBucketWebsite),
        setting(
            "DeleteBucketWebsite",
            DELETE,
            &["website"],
            A::DeleteBucketWebsite,
        ),
        setting(
            "GetObjectLockConfiguration",
            GET,
            &["object-lock"],
            A::GetBucketObjectLockConfiguration,
        ),
        setting(
            "PutObjectLockConfiguration",
            PUT,
            &["object-lock"],
            A::PutBucketObjectLockConfiguration,
        ),
        setting(
            "GetBucketEncryption",
            GET,
            &["encryption"],
            A::GetEncryptionConfiguration,
        ),
        setting(
            "GetBucketReplication",
            GET,
            &["replication"],
            A::GetReplicationConfiguration,
        ),
        setting(
            "GetPublicAccessBlock",
            GET,
            &["publicAccessBlock"],
            A::GetBucketPublicAccessBlock,
        ),
        setting(
            "GetBucketOwnershipControls",
            GET,
            &["ownershipControls"],
            A::GetBucketOwnershipControls,
        ),
        setting("GetBucketLogging", GET, &["logging"], A::GetBucketLogging),
        setting(
            "GetBucketNotificationConfiguration",
            GET,
            &["notification"],
            A::GetBucketNotification,
        ),
        setting(
            "GetBucketAccelerateConfiguration",
            GET,
            &["accelerate"],
            A::GetAccelerateConfiguration,
        ),
        setting(
            "GetBucketRequestPayment",
            GET,
            &["requestPayment"],
            A::GetBucketRequestPayment,
        ),
    ]
}

/// The row of an operation.
pub fn row(operation: &str) -> S3Result<&'static Row> {
    let found = TABLE.iter().find(|row| row.operation == operation);
    found.ok_or_else(|| s3_error!(NotImplemented, "{} is not there", operation))
}

/// Name and value of a parameter that chooses an operation.
fn named_by(chosen_by: &str) -> (&str, Option<&str>) {
    match chosen_by.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (chosen_by, None),
    }
}

/// The operation that a request would be, ignoring its other parts. The row with most matching names of the query wins.
pub fn find(method: &Method, at: At, query: &str, headers: &HeaderMap) -> Option<&'static Row> {
    let given: Vec<(String, String)> = signed::parameters(query).collect();
    let is_given = |chosen_by: &&str| {
        let (wanted, only) = named_by(chosen_by);
        given
            .iter()
            .any(|(name, value)| name == wanted && only.is_none_or(|only| only == value))
    };
    let is_copy = headers.contains_key(COPY_SOURCE);
    let fits = |row: &&Row| {
        row.method == method.as_str()
            && row.at == at
            && row.chosen_by.iter().all(is_given)
            && (is_copy || !row.copies())
    };
    let fit = TABLE.iter().filter(fits);
    fit.max_by_key(|row| (row.chosen_by.len(), row.copies()))
}

/// The operation of a request, if that operation reads all parts of the request; otherwise an error.
pub fn of_request(
    method: &Method,
    at: At,
    query: &str,
    headers: &HeaderMap,
) -> S3Result<&'static Row> {
    let row = find(method, at, query, headers).ok_or_else(|| {
        s3_error!(
            NotImplemented,
            "there is no operation {} {} with this query",
            method,
            at
        )
    })?;
    check_query(row, query)?;
    check_headers(row, headers)?;
    Ok(row)
}

fn check_query(row: &Row, query: &str) -> S3Result<()> {
    let is_presigned = signed::parameters(query).any(|(name, _)| name == signed::SIGNATURE);
    for (name, value) in signed::parameters(query) {
        let is_known = match name.as_str() {
            // The SDKs' name of the operation.
            "x-id" => value == row.operation,
            name if row.takes(name) => true,
            // They belong to the signature, or have become headers.
            name if is_presigned && is_acting(name) => true,
            // For the client's own logs (S3 User Guide, "Custom access log information").
            name => name.starts_with("x-") && !is_acting(name),
        };
        if !is_known {
            return Err(s3_error!(
                NotImplemented,
                "{} does not understand {} in the query; nothing was done",
                row.operation,
                name
            ));
        }
        if name == VERSION_ID && value.is_empty() {
            return Err(s3_error!(
                InvalidArgument,
                "no version is named: leave {} out for the latest",
                name
            ));
        }
    }
    Ok(())
}

/// Whether a parameter of the query stands for a header: those of presigned URLs may have any case.
pub fn is_acting(name: &str) -> bool {
    let beginning = name.as_bytes().get(..ACTING_PREFIX.len());
    beginning.is_some_and(|it| it.eq_ignore_ascii_case(ACTING_PREFIX.as_bytes()))
}

fn check_headers(row: &Row, headers: &HeaderMap) -> S3Result<()> {
    let acting = |name: &&str| name.starts_with(ACTING_PREFIX) || ACTING.contains(name);
    for name in headers.keys().map(HeaderName::as_str).filter(acting) {
        if name == SECURITY_TOKEN {
            return Err(s3_error!(
                InvalidToken,
                "access keys of this server have no session token"
            ));
        }
        if !OF_ALL.contains(&name) && !row.reads(name) {
            return Err(not_read(row, name));
        }
        // `s3s` treats an empty header as missing: a condition would have no effect.
        let is_empty = headers.get_all(name).iter().any(HeaderValue::is_empty);
        if is_empty && row.reads(name) && !may_be_empty(name) {
            return Err(s3_error!(InvalidArgument, "the header {} is empty", name));
        }
    }
    for (name, value) in headers {
        check_value(name.as_str(), value)?;
    }
    if let Some(algorithm) = headers.get(SDK_ALGORITHM) {
        let algorithm = String::from_utf8_lossy(algorithm.as_bytes()).to_ascii_lowercase();
        let name = format!("x-amz-checksum-{algorithm}");
        let is_promised =
            |value: &HeaderValue| value.as_bytes().eq_ignore_ascii_case(name.as_bytes());
        if !headers.contains_key(&name) && !headers.get(TRAILER).is_some_and(is_promised) {
            return Err(s3_error!(
                InvalidRequest,
                "{} names an algorithm, and neither a header nor a trailer has its checksum",
                SDK_ALGORITHM
            ));
        }
    }
    Ok(())
}

/// The client's own text, and tags, which may be empty.
fn may_be_empty(header: &str) -> bool {
    header.starts_with(META) || header == "x-amz-tagging"
}

fn not_read(row: &Row, name: &str) -> S3Error {
    let why = REFUSED
        .iter()
        .find(|(beginning, _)| name.starts_with(beginning));
    match why {
        Some((_, why)) => s3_error!(NotImplemented, "{}: {}", name, why),
        None => s3_error!(
            NotImplemented,
            "{} does not understand the header {}; nothing was done",
            row.operation,
            name
        ),
    }
}

/// Checks the values of headers of which `s3s` accepts any.
fn check_value(name: &str, value: &HeaderValue) -> S3Result<()> {
    let (legal, is_any_case): (&[&str], bool) = match name {
        REQUEST_PAYER => (&["requester"], false),
        "x-amz-checksum-mode" => (&["ENABLED"], true),
        "x-amz-metadata-directive" | "x-amz-tagging-directive" => (&["COPY", "REPLACE"], false),
        // No object is moved to another class, so both values are true.
        "x-amz-transition-default-minimum-object-size" => (
            &["all_storage_classes_128K", "varies_by_storage_class"],
            false,
        ),
        "x-amz-object-attributes" => (
            &[
                "ETag",
                "Checksum",
                "ObjectParts",
                "StorageClass",
                "ObjectSize",
            ],
            false,
        ),
        // There is one class, and these checksums.
        "x-amz-storage-class" | SDK_ALGORITHM | "x-amz-checksum-algorithm" => {
            return check_there(name, value);
        }
        _ => return Ok(()),
    };
    let text = String::from_utf8_lossy(value.as_bytes());
    let is_legal = |one: &str| {
        legal.iter().any(|legal| match is_any_case {
            true => legal.eq_ignore_ascii_case(one),
            false => *legal == one,
        })
    };
    // One header may have several.
    match text.split(',').all(|one| is_legal(one.trim())) {
        true => Ok(()),
        false => Err(s3_error!(
            InvalidArgument,
            "{} is {}",
            name,
            legal.join(" or ")
        )),
    }
}

fn check_there(name: &str, value: &HeaderValue) -> S3Result<()> {
    let there: &[&str] = match name {
        "x-amz-storage-class" => &["STANDARD"],
        _ => &["CRC32", "CRC32C", "CRC64NVME", "SHA1", "SHA256"],
    };
    let is = |one: &&str| value.as_bytes().eq_ignore_ascii_case(one.as_bytes());
    match there.iter().any(is) {
        true => Ok(()),
        false => Err(s3_error!(
            NotImplemented,
            "{} can be {}",
            name,
            there.join(", ")
        )),
    }
}

/// Turns the parameters of a presigned URL that stand for headers into headers, as AWS does: SDKs put them there so
/// that they are signed. Called after the check of the signed parts, because the query is always signed.
pub fn unfold(query: &str, headers: &mut HeaderMap) -> S3Result<()> {
    if !signed::parameters(query).any(|(name, _)| name == signed::SIGNATURE) {
        return Ok(());
    }
    for (name, value) in signed::parameters(query) {
        if !is_acting(&name) || signed::is_of_presigned(&name) {
            continue;
        }
        let wrong = || s3_error!(InvalidArgument, "{} in the query is no header", name);
        let header = HeaderName::from_bytes(name.to_ascii_lowercase().as_bytes());
        let header = header.map_err(|_| wrong())?;
        let value = HeaderValue::from_bytes(value.as_bytes()).map_err(|_| wrong())?;
        if header == CONTENT_SHA256 {
            // The signature in a query covers no body.
            if value != "UNSIGNED-PAYLOAD" {
                return Err(s3_error!(
                    NotImplemented,
                    "the body of a presigned URL is not signed: {} is UNSIGNED-PAYLOAD",
                    name
                ));
            }
            continue;
        }
        match headers.get(&header) {
            None => {
                headers.insert(header, value);
            }
            Some(there) if *there == value => {}
            Some(_) => {
                return Err(s3_error!(
                    InvalidArgument,
                    "{} is one thing in the query and another in the header",
                    name
                ));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const DOCS: &str = include_str!("../../../../docs/reference/s3.md");

    fn headers(given: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in given {
            headers.append(*name, value.parse().unwrap());
        }
        headers
    }

    fn taken(
        method: &str,
        at: At,
        query: &str,
        given: &[(&'static str, &str)],
    ) -> Result<&'static str, String> {
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        match of_request(&method, at, query, &headers(given)) {
            Ok(row) => Ok(row.operation),
            Err(error) => Err(error.code().as_str().to_owned()),
        }
    }

    #[test]
    fn each_operation_has_one_row_and_unknown_ones_none() {
        for row in TABLE.iter() {
            let same = |it: &&Row| {
                it.operation == row.operation
                    || (it.method, it.at, it.chosen_by, it.copies())
                        == (row.method, row.at, row.chosen_by, row.copies())
            };
            assert_eq!(TABLE.iter().filter(same).count(), 1, "{}", row.operation);
            // A request with only the parts that choose the operation is that one.
            let copy = [(COPY_SOURCE, "/photos/a")];
            let given: &[(&'static str, &str)] = if row.copies() { &copy } else { &[] };
            let query = row.chosen_by.join("&");
            let got = taken(row.method, row.at, &query, given);
            assert_eq!(got.as_deref(), Ok(row.operation));
        }
        assert!(row("SelectObjectContent").is_err());
    }

    /// A change without a place in the order could be done after a newer one of its client.
    #[test]
    fn each_change_has_its_place_in_the_order_of_changes() {
        const ELSEWHERE: [&str; 6] = [
            // An upload has a number of its own, which no client has before the response.
            "CreateMultipartUpload",
            "AbortMultipartUpload",
            // These change a part.
            "UploadPart",
            "UploadPartCopy",
            // Its body names the objects.
            "DeleteObjects",
            // So does a form.
            POST_OBJECT,
        ];
        for row in TABLE.iter() {
            let is_look = [GET, HEAD].contains(&row.method);
            let has_none = is_look || ELSEWHERE.contains(&row.operation);
            assert_eq!(row.facet().is_none(), has_none, "{}", row.operation);
        }
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        use At::{Bucket, Object, Service};
        let no = "NotImplemented";
        let copy = (COPY_SOURCE, "/photos/b");
        type Case = (
            &'static str,
            At,
            &'static str,
            &'static [(&'static str, &'static str)],
            Result<&'static str, &'static str>,
        );
        let cases: &[Case] = &[
            ("PUT", Object, "", &[], Ok("PutObject")),
            ("PUT", Object, "x-id=PutObject", &[], Ok("PutObject")),
            ("PUT", Object, "x-id=RenameObject", &[], Err(no)),
            ("PUT", Object, "x-trace=7", &[], Ok("PutObject")),
            ("PUT", Object, "renameObject", &[], Err(no)),
            ("PUT", Object, "encryption", &[], Err(no)),
            ("PUT", Object, "annotation&annotationName=a", &[], Err(no)),
            ("PUT", Object, "rename%4fbject", &[], Err(no)),
            ("PUT", Object, "uploadId=7", &[], Err(no)),
            ("PUT", Object, "partNumber=1", &[], Err(no)),
            (
                "PUT",
                Object,
                "partNumber=1&uploadId=7",
                &[],
                Ok("UploadPart"),
            ),
            ("PUT", Object, "acl&tagging", &[], Err(no)),
            ("PUT", Object, "versionId=7", &[], Err(no)),
            (
                "PUT",
                Object,
                "tagging&versionId=7",
                &[],
                Ok("PutObjectTagging"),
            ),
            ("PUT", Object, "x-amz-acl=public-read", &[], Err(no)),
            (
                "DELETE",
                Object,
                "annotation&annotationName=a",
                &[],
                Err(no),
            ),
            ("DELETE", Object, "acl", &[], Err(no)),
            ("DELETE", Object, "versionId=", &[], Err("InvalidArgument")),
            ("DELETE", Object, "versionId=null", &[], Ok("DeleteObject")),
            ("GET", Object, "torrent", &[], Err(no)),
            ("GET", Bucket, "list-type=2", &[], Ok("ListObjectsV2")),
            ("GET", Bucket, "list-type=3", &[], Err(no)),
            ("GET", Bucket, "session", &[], Err(no)),
            ("GET", Bucket, "marker=a", &[], Ok("ListObjects")),
            ("GET", Bucket, "list-type=2&marker=a", &[], Err(no)),
            ("PUT", Bucket, "abac", &[], Err(no)),
            ("PUT", Bucket, "encryption", &[], Err(no)),
            ("DELETE", Bucket, "metadataConfiguration", &[], Err(no)),
            ("DELETE", Bucket, "encryption", &[], Err(no)),
            ("POST", Object, "select&select-type=2", &[], Err(no)),
            ("POST", Service, "", &[], Err(no)),
            ("GET", Service, "x-id=ListDirectoryBuckets", &[], Err(no)),
            ("PATCH", Object, "", &[], Err(no)),
        ];
        for (method, at, query, given, want) in cases {
            let got = taken(method, *at, query, given);
            assert_eq!(
                got.as_deref().map_err(String::as_str),
                *want,
                "{method} {at} {query}"
            );
        }
        let put = |given: &[(&'static str, &str)]| taken("PUT", Object, "", given);
        assert_eq!(put(&[copy]).as_deref(), Ok("CopyObject"));
        let part = taken("PUT", Object, "partNumber=1&uploadId=7", &[copy]);
        assert_eq!(part.as_deref(), Ok("UploadPartCopy"));
        // With other operations, the header would not be read.
        assert!(taken("PUT", Object, "tagging", &[copy]).is_err());
        assert!(taken("PUT", Bucket, "", &[copy]).is_err());
    }

    #[test]
    fn headers_are_read_or_refused() {
        let put = |name: &'static str, value: &str| taken("PUT", At::Object, "", &[(name, value)]);
        let get = |name: &'static str, value: &str| taken("GET", At::Object, "", &[(name, value)]);
        for (name, value) in [
            ("x-amz-meta-anything", "1"),
            ("x-amz-meta-anything", ""),
            ("x-amz-tagging", ""),
            ("x-amz-storage-class", "STANDARD"),
            (REQUEST_PAYER, "requester"),
            ("if-none-match", "*"),
            ("accept", "*/*"),
            ("x-amz-checksum-crc32", "AAAAAA=="),
        ] {
            assert_eq!(put(name, value).as_deref(), Ok(PUT_OBJECT), "{name}");
        }
        for (name, value, want) in [
            ("x-amz-storage-class", "GLACIER", "NotImplemented"),
            (REQUEST_PAYER, "somebody", "InvalidArgument"),
            ("x-amz-write-offset-bytes", "0", "NotImplemented"),
            ("x-amz-checksum-xxhash64", "AAAAAAAAAAA=", "NotImplemented"),
            ("x-amz-grant-read", "id=1", "NotImplemented"),
            ("x-amz-website-redirect-location", "/b", "NotImplemented"),
            ("x-amz-server-side-encryption", "AES256", "NotImplemented"),
            ("x-amz-new-in-some-year", "1", "NotImplemented"),
            ("content-range", "bytes 0-1/2", "NotImplemented"),
            (
                "if-modified-since",
                "Thu, 01 Jan 1970 00:00:00 GMT",
                "NotImplemented",
            ),
            (SECURITY_TOKEN, "token", "InvalidToken"),
            (SDK_ALGORITHM, "CRC32", "InvalidRequest"),
            (SDK_ALGORITHM, "XXHASH64", "NotImplemented"),
            ("if-none-match", "", "InvalidArgument"),
            ("x-amz-acl", "", "InvalidArgument"),
        ] {
            assert_eq!(put(name, value), Err(want.to_owned()), "{name}");
        }
        for given in [
            [
                (SDK_ALGORITHM, "CRC32"),
                ("x-amz-checksum-crc32", "AAAAAA=="),
            ],
            [(SDK_ALGORITHM, "crc32"), (TRAILER, "x-amz-checksum-crc32")],
        ] {
            assert_eq!(
                taken("PUT", At::Object, "", &given).as_deref(),
                Ok(PUT_OBJECT)
            );
        }
        let other = [(SDK_ALGORITHM, "CRC32"), (TRAILER, "x-amz-checksum-sha1")];
        assert!(taken("PUT", At::Object, "", &other).is_err());
        assert!(get("x-amz-checksum-mode", "enabled").is_ok());
        assert!(get("x-amz-checksum-mode", "some").is_err());
        let attributes = |value: &str| {
            let given = [("x-amz-object-attributes", value)];
            taken("GET", At::Object, "attributes", &given)
        };
        assert!(attributes("ETag, ObjectSize").is_ok() && attributes("ETag,Size").is_err());
    }

    #[test]
    fn what_a_presigned_url_says_becomes_headers() {
        let signed = "X-Amz-Algorithm=a&X-Amz-Credential=b&X-Amz-Date=c&X-Amz-Expires=60\
                      &X-Amz-SignedHeaders=host&X-Amz-Signature=ab";
        let unfolded = |more: &str, given: &[(&'static str, &str)]| {
            let mut headers = headers(given);
            let query = format!("{signed}&{more}");
            unfold(&query, &mut headers).map(|()| headers)
        };
        let got = unfolded("X-Amz-Checksum-Crc32=AAAAAA%3D%3D&x-id=PutObject", &[]).unwrap();
        assert_eq!(got, headers(&[("x-amz-checksum-crc32", "AAAAAA==")]));
        let acl = ("x-amz-acl", "public-read");
        assert_eq!(
            unfolded("x-amz-acl=public-read", &[acl]).unwrap(),
            headers(&[acl])
        );
        assert!(unfolded("x-amz-acl=private", &[acl]).is_err());
        assert!(unfolded("x-amz-a%0a=1", &[]).is_err());
        assert!(
            unfolded("X-Amz-Content-Sha256=UNSIGNED-PAYLOAD", &[])
                .unwrap()
                .is_empty()
        );
        assert!(unfolded("X-Amz-Content-Sha256=00", &[]).is_err());
        // The parameter is checked as the header would be.
        let query = format!("{signed}&x-amz-new=1");
        let mut found = HeaderMap::new();
        unfold(&query, &mut found).unwrap();
        assert!(of_request(&Method::PUT, At::Object, &query, &found).is_err());
        // Without a signature the query has no meaning for headers.
        let mut none = HeaderMap::new();
        unfold("x-amz-acl=public-read", &mut none).unwrap();
        assert!(none.is_empty());
    }

    /// The texts between backticks.
    fn quoted(cell: &str) -> BTreeSet<&str> {
        cell.split('`').skip(1).step_by(2).collect()
    }

    /// The lines of the table below a heading, without its first two.
    fn documented(heading: &str) -> Vec<Vec<&'static str>> {
        let (_, section) = DOCS.split_once(heading).unwrap();
        let lines = section.lines().skip_while(|line| !line.starts_with('|'));
        let lines = lines.take_while(|line| line.starts_with('|')).skip(2);
        lines
            .map(|line| line.trim_matches('|').split('|').collect())
            .collect()
    }

    #[test]
    fn the_documents_say_what_is_read() {
        let lines = documented("\n## Requests\n");
        assert_eq!(lines.len(), TABLE.len());
        for line in lines {
            let [operation, request, query, headers] = line[..] else {
                panic!("{line:?}");
            };
            let row = row(quoted(operation).first().unwrap()).unwrap();
            let at = row.at.to_string();
            let chosen_by = row.chosen_by.iter().copied();
            let want: BTreeSet<&str> = chosen_by.chain([row.method, at.as_str()]).collect();
            assert_eq!(quoted(request), want, "{operation}");
            let read: BTreeSet<&str> = row.query.iter().copied().collect();
            assert_eq!(quoted(query), read, "{operation}");
            let read: BTreeSet<&str> = row.headers.iter().copied().collect();
            assert_eq!(quoted(headers), read, "{operation}");
        }
        let lines = documented("\n### Headers that are refused\n");
        let refused = lines.iter().flat_map(|line| quoted(line[0]));
        let refused: BTreeSet<String> = refused.map(str::to_owned).collect();
        let want: BTreeSet<String> = REFUSED.iter().map(|(name, _)| format!("{name}*")).collect();
        assert_eq!(refused, want);
    }
}
