//! `cairn bucket`, `cairn s3`.

use cairn_admin::s3::{
    AccessKeyCreate, AccessKeyId, AccessKeyView, BUCKET_CREATE, BUCKET_DELETE, BUCKET_LIST,
    BUCKET_SET, BucketCreate, BucketName, BucketSet, BucketView, KEY_CREATE, KEY_LIST, KEY_REVOKE,
    Keep, PermissionView,
};

use crate::access;
use crate::exit::Failure;
use crate::print::{self, Align, Column};
use crate::s3_args::*;

pub fn bucket(command: &BucketCommand) -> Result<(), Failure> {
    match command {
        BucketCommand::List(view) => {
            let list = access::client(&view.server)?.all(BUCKET_LIST, &())?;
            if view.json {
                return print::json(&list);
            }
            print::text(&bucket_table(&list.buckets))
        }
        BucketCommand::Show(args) => {
            let list = access::client(&args.view.server)?.all(BUCKET_LIST, &())?;
            let found = list
                .buckets
                .into_iter()
                .find(|bucket| bucket.name == args.bucket);
            let absent = || {
                Failure::failed(format!("there is no bucket {}", args.bucket))
                    .hint("`cairn bucket list` shows all buckets")
            };
            let bucket = found.ok_or_else(absent)?;
            if args.view.json {
                return print::json(&bucket);
            }
            print::text(&bucket_table(&[bucket]))
        }
        BucketCommand::Create(args) => {
            let (volume, path) = match &args.path {
                Some(path) => (path.volume.clone(), path.dir.clone()),
                None => {
                    let main = "main".parse();
                    (
                        main.map_err(|_| Failure::usage("no volume is given"))?,
                        None,
                    )
                }
            };
            let create = BucketCreate {
                name: args.bucket.clone(),
                volume,
                path,
                uid: args.uid,
                gid: args.gid,
            };
            let bucket = access::client(&args.view.server)?.tell(BUCKET_CREATE, &(), &create)?;
            if args.view.json {
                return print::json(&bucket);
            }
            print::text(&format!(
                "bucket {} is {}{}\nwho may use it:\n  cairn s3 key create --volume {} --uid UID --gid GID --bucket {}",
                bucket.name, bucket.volume, bucket.path, bucket.volume, bucket.name
            ))
        }
        BucketCommand::Set(args) => {
            let set = BucketSet {
                nfs_versions: args.nfs_versions == Switch::On,
                nfs_versions_seconds: args.nfs_versions_seconds,
            };
            let bucket = access::client(&args.view.server)?.tell(
                BUCKET_SET,
                &BucketName(args.bucket.clone()),
                &set,
            )?;
            if args.view.json {
                return print::json(&bucket);
            }
            print::text(&bucket_table(&[bucket]))
        }
        BucketCommand::Delete(args) => {
            access::client(&args.server)?.ask(
                BUCKET_DELETE,
                &(BucketName(args.bucket.clone()), Keep(args.keep)),
            )?;
            print::text(&format!("bucket {} is deleted", args.bucket))
        }
    }
}

fn bucket_table(buckets: &[BucketView]) -> String {
    const COLUMNS: &[Column] = &[
        ("BUCKET", Align::Left),
        ("DIRECTORY", Align::Left),
        ("VERSIONS", Align::Left),
        ("OF CHANGES OVER NFS", Align::Left),
    ];
    let rows = buckets.iter().map(|bucket| {
        vec![
            bucket.name.clone(),
            format!("{}{}", bucket.volume, bucket.path),
            bucket.versioning.clone().unwrap_or_else(|| "-".to_owned()),
            match bucket.nfs_versions_seconds {
                Some(seconds) => format!("at most one in {seconds} s"),
                None => "-".to_owned(),
            },
        ]
    });
    print::table(COLUMNS, rows.collect())
}

pub fn s3(command: &S3Command) -> Result<(), Failure> {
    let S3Command::Key(command) = command;
    match command {
        KeyCommand::List(view) => {
            let list = access::client(&view.server)?.all(KEY_LIST, &())?;
            if view.json {
                return print::json(&list);
            }
            print::text(&key_table(&list.keys))
        }
        KeyCommand::Create(args) => {
            let only = args.only.iter().map(|only| PermissionView {
                bucket: only.bucket.clone(),
                prefix: only.prefix.clone(),
            });
            let create = AccessKeyCreate {
                volume: args.volume.clone(),
                uid: args.uid,
                gid: args.gid,
                groups: args.groups.clone(),
                read_only: args.read_only,
                only: only.collect(),
                note: args.note.clone(),
            };
            let key = access::client(&args.view.server)?.tell(KEY_CREATE, &(), &create)?;
            if args.view.json {
                return print::json(&key);
            }
            print::text(&told(&key))
        }
        KeyCommand::Revoke(args) => {
            access::client(&args.server)?.ask(KEY_REVOKE, &AccessKeyId(args.key.clone()))?;
            print::text(&format!("access key {} is revoked", args.key))
        }
    }
}

/// A new key, and what to type.
fn told(key: &AccessKeyView) -> String {
    let secret = key.secret.as_deref().unwrap_or_default();
    format!(
        "access key  {id}\nsecret      {secret}\nThe secret is not shown again. ADDR is where this server listens for S3 \
         (--listen-s3), port 9000 unless set otherwise.\n\n\
         AWS CLI  export AWS_ACCESS_KEY_ID={id} AWS_SECRET_ACCESS_KEY={secret} AWS_DEFAULT_REGION=us-east-1\n         \
         aws --endpoint-url http://ADDR:9000 s3 ls\n\
         mc       mc alias set cairn http://ADDR:9000 {id} {secret}\n\
         rclone   rclone lsd :s3,provider=Other,endpoint=http://ADDR:9000,access_key_id={id},secret_access_key={secret}:\n\
         boto3    boto3.client(\"s3\", endpoint_url=\"http://ADDR:9000\", aws_access_key_id=\"{id}\",\n                      \
         aws_secret_access_key=\"{secret}\", region_name=\"us-east-1\")",
        id = key.id,
    )
}

fn key_table(keys: &[AccessKeyView]) -> String {
    const COLUMNS: &[Column] = &[
        ("ACCESS KEY", Align::Left),
        ("VOLUME", Align::Left),
        ("USER", Align::Right),
        ("GROUP", Align::Right),
        ("MAY", Align::Left),
        ("BUCKETS", Align::Left),
        ("NOTE", Align::Left),
    ];
    let rows = keys.iter().map(|key| {
        let only = key.only.iter().map(|only| match only.prefix.as_str() {
            "" => only.bucket.clone(),
            prefix => format!("{}/{prefix}", only.bucket),
        });
        let only: Vec<String> = only.collect();
        vec![
            key.id.clone(),
            key.volume.to_string(),
            key.uid.to_string(),
            key.gid.to_string(),
            if key.read_only { "read" } else { "read, write" }.to_owned(),
            if only.is_empty() {
                "all".to_owned()
            } else {
                only.join(" ")
            },
            key.note.clone(),
        ]
    });
    print::table(COLUMNS, rows.collect())
}
