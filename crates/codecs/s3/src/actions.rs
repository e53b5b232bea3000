//! What can be done with buckets and objects, as policies call it (Service Authorization Reference, "Actions for Amazon S3").
//!
//! Owns: which actions there are, whether they are about a bucket or an object, which of them are the owner's. Must not know:
//! which requests need them.

/// What an action is about, and what it does there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    ReadsObject,
    ChangesObject,
    /// Takes away what the bucket's owner wants of an object.
    GovernsObject,
    ReadsBucket,
    /// Changes what the bucket is.
    GovernsBucket,
    ReadsVolume,
    ChangesVolume,
}

macro_rules! actions {
    ($($action:ident: $kind:ident $name:literal,)*) => {
        /// Something that can be done.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Action {
            $($action,)*
        }

        impl Action {
            pub const ALL: &[Self] = &[$(Self::$action,)*];

            /// What policies call it.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$action => $name,)*
                }
            }

            fn kind(self) -> Kind {
                match self {
                    $(Self::$action => Kind::$kind,)*
                }
            }
        }
    };
}

actions! {
    GetObject: ReadsObject "s3:GetObject",
    GetObjectVersion: ReadsObject "s3:GetObjectVersion",
    GetObjectAttributes: ReadsObject "s3:GetObjectAttributes",
    GetObjectVersionAttributes: ReadsObject "s3:GetObjectVersionAttributes",
    GetObjectTagging: ReadsObject "s3:GetObjectTagging",
    GetObjectVersionTagging: ReadsObject "s3:GetObjectVersionTagging",
    GetObjectAcl: ReadsObject "s3:GetObjectAcl",
    GetObjectVersionAcl: ReadsObject "s3:GetObjectVersionAcl",
    GetObjectRetention: ReadsObject "s3:GetObjectRetention",
    GetObjectLegalHold: ReadsObject "s3:GetObjectLegalHold",
    ListMultipartUploadParts: ReadsObject "s3:ListMultipartUploadParts",
    PutObject: ChangesObject "s3:PutObject",
    PutObjectTagging: ChangesObject "s3:PutObjectTagging",
    PutObjectVersionTagging: ChangesObject "s3:PutObjectVersionTagging",
    DeleteObjectTagging: ChangesObject "s3:DeleteObjectTagging",
    DeleteObjectVersionTagging: ChangesObject "s3:DeleteObjectVersionTagging",
    PutObjectAcl: ChangesObject "s3:PutObjectAcl",
    PutObjectVersionAcl: ChangesObject "s3:PutObjectVersionAcl",
    PutObjectRetention: ChangesObject "s3:PutObjectRetention",
    PutObjectLegalHold: ChangesObject "s3:PutObjectLegalHold",
    AbortMultipartUpload: ChangesObject "s3:AbortMultipartUpload",
    DeleteObject: ChangesObject "s3:DeleteObject",
    DeleteObjectVersion: ChangesObject "s3:DeleteObjectVersion",
    BypassGovernanceRetention: GovernsObject "s3:BypassGovernanceRetention",
    ListBucket: ReadsBucket "s3:ListBucket",
    ListBucketVersions: ReadsBucket "s3:ListBucketVersions",
    ListBucketMultipartUploads: ReadsBucket "s3:ListBucketMultipartUploads",
    GetBucketLocation: ReadsBucket "s3:GetBucketLocation",
    GetBucketAcl: ReadsBucket "s3:GetBucketAcl",
    GetBucketPolicy: ReadsBucket "s3:GetBucketPolicy",
    GetBucketPolicyStatus: ReadsBucket "s3:GetBucketPolicyStatus",
    GetBucketCors: ReadsBucket "s3:GetBucketCORS",
    GetLifecycleConfiguration: ReadsBucket "s3:GetLifecycleConfiguration",
    GetBucketTagging: ReadsBucket "s3:GetBucketTagging",
    GetBucketVersioning: ReadsBucket "s3:GetBucketVersioning",
    GetEncryptionConfiguration: ReadsBucket "s3:GetEncryptionConfiguration",
    GetBucketWebsite: ReadsBucket "s3:GetBucketWebsite",
    GetReplicationConfiguration: ReadsBucket "s3:GetReplicationConfiguration",
    GetBucketObjectLockConfiguration: ReadsBucket "s3:GetBucketObjectLockConfiguration",
    GetBucketPublicAccessBlock: ReadsBucket "s3:GetBucketPublicAccessBlock",
    GetBucketOwnershipControls: ReadsBucket "s3:GetBucketOwnershipControls",
    GetBucketLogging: ReadsBucket "s3:GetBucketLogging",
    GetBucketNotification: ReadsBucket "s3:GetBucketNotification",
    GetAccelerateConfiguration: ReadsBucket "s3:GetAccelerateConfiguration",
    GetBucketRequestPayment: ReadsBucket "s3:GetBucketRequestPayment",
    DeleteBucket: GovernsBucket "s3:DeleteBucket",
    PutBucketAcl: GovernsBucket "s3:PutBucketAcl",
    PutBucketPolicy: GovernsBucket "s3:PutBucketPolicy",
    DeleteBucketPolicy: GovernsBucket "s3:DeleteBucketPolicy",
    PutBucketCors: GovernsBucket "s3:PutBucketCORS",
    PutLifecycleConfiguration: GovernsBucket "s3:PutLifecycleConfiguration",
    PutBucketTagging: GovernsBucket "s3:PutBucketTagging",
    PutBucketVersioning: GovernsBucket "s3:PutBucketVersioning",
    PutBucketWebsite: GovernsBucket "s3:PutBucketWebsite",
    DeleteBucketWebsite: GovernsBucket "s3:DeleteBucketWebsite",
    PutBucketObjectLockConfiguration: GovernsBucket "s3:PutBucketObjectLockConfiguration",
    ListAllMyBuckets: ReadsVolume "s3:ListAllMyBuckets",
    CreateBucket: ChangesVolume "s3:CreateBucket",
}

impl Action {
    /// Whether its resource is an object, not a bucket.
    pub fn is_of_object(self) -> bool {
        matches!(
            self.kind(),
            Kind::ReadsObject | Kind::ChangesObject | Kind::GovernsObject
        )
    }

    /// Whether it is for no bucket that is there.
    pub fn is_of_volume(self) -> bool {
        matches!(self.kind(), Kind::ReadsVolume | Kind::ChangesVolume)
    }

    /// Whether it is more than to read.
    pub fn changes(self) -> bool {
        !matches!(
            self.kind(),
            Kind::ReadsObject | Kind::ReadsBucket | Kind::ReadsVolume
        )
    }

    /// Whether it is the owner's of the bucket, and of others only if the policy allows it.
    pub fn governs(self) -> bool {
        matches!(self.kind(), Kind::GovernsObject | Kind::GovernsBucket)
    }

    /// Whether it mends a policy that denies too much. The owner of the bucket can, always.
    pub fn mends(self) -> bool {
        matches!(
            self,
            Self::GetBucketPolicy | Self::PutBucketPolicy | Self::DeleteBucketPolicy
        )
    }
}
