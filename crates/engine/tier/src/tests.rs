//! Tiers on a directory and on a store in memory.

use cairn_base::SegmentId;
use cairn_testkit::TestWorld;
use object_store::memory::InMemory;

use super::*;

const POOL: PoolId = PoolId(7);
const NOBODY: Credentials<'static> = Credentials {
    file: None,
    machine_hosts: &[],
};

fn object(volume: u32, segment: u64) -> ObjectId {
    ObjectId {
        volume: VolumeId(volume),
        segment: SegmentId(segment),
        nonce: 9,
    }
}

async fn put(tier: &ObjectTier, id: ObjectId, parts: &[&'static [u8]]) {
    let mut upload = tier.begin(id).await.unwrap();
    for part in parts {
        upload.part(Bytes::from_static(part)).await.unwrap();
    }
    upload.finish().await.unwrap();
}

async fn check(tier: &ObjectTier) {
    tier.claim().await.unwrap();
    tier.claim().await.unwrap();
    put(tier, object(1, 1), &[b"one"]).await;
    put(tier, object(1, 2), &[b"of ", b"three ", b"parts"]).await;
    put(tier, object(2, 1), &[]).await;
    let get = |id, range| tier.get(id, range);
    assert_eq!(get(object(1, 1), 0..3).await.unwrap(), "one");
    assert_eq!(get(object(1, 2), 3..8).await.unwrap(), "three");
    // What ends too soon is short, or an error; the caller looks.
    let short = get(object(1, 1), 1..100).await;
    assert!(short.is_err() || short.unwrap().len() == 2);
    let missing = get(object(1, 3), 0..1).await;
    assert!(
        matches!(missing, Err(TierError::NotFound(_))),
        "{missing:?}"
    );
    for _ in 0..2 {
        tier.delete(object(1, 1)).await.unwrap();
    }
    assert!(get(object(1, 1), 0..3).await.is_err());
    let mut upload = tier.begin(object(1, 4)).await.unwrap();
    for _ in 0..3 {
        upload.part(Bytes::from_static(b"part")).await.unwrap();
    }
    upload.abort().await;
    assert!(get(object(1, 4), 0..1).await.is_err());
    assert_eq!(tier.delete_volume(VolumeId(1)).await, Ok(1));
    assert_eq!(tier.delete_volume(VolumeId(1)).await, Ok(0));
    assert_eq!(get(object(2, 1), 0..0).await.unwrap_or_default(), "");
    assert_eq!(tier.delete_volume(VolumeId(2)).await, Ok(1));
}

#[tokio::test]
async fn a_directory_and_a_store_do_what_is_asked() {
    let env = TestWorld::new(1).env;
    let folder = tempfile::tempdir().unwrap();
    let address = format!("file://{}", folder.path().display());
    let address: TierAddress = address.parse().unwrap();
    let tier = ObjectTier::open(env.clone(), (POOL, TierId(1)), &address, NOBODY).unwrap();
    check(&tier).await;
    // Nothing else is left in it.
    tier.release().await.unwrap();
    let files = walk(folder.path());
    assert_eq!(files, Vec::<String>::new());
    check(&ObjectTier::on(Arc::new(InMemory::new()), env, POOL)).await;
}

/// A drive that is not mounted has lost nothing.
#[tokio::test]
async fn what_is_away_is_not_lost() {
    let env = TestWorld::new(1).env;
    let root = tempfile::tempdir().unwrap();
    let (folder, away) = (root.path().join("tier"), root.path().join("away"));
    std::fs::create_dir(&folder).unwrap();
    let address = format!("file://{}", folder.display());
    let address: TierAddress = address.parse().unwrap();
    let tier = ObjectTier::open(env, (POOL, TierId(1)), &address, NOBODY).unwrap();
    tier.claim().await.unwrap();
    put(&tier, object(1, 1), &[b"one"]).await;
    assert_eq!(tier.check().await, Ok(()));
    std::fs::rename(&folder, &away).unwrap();
    let is_away = async || {
        for asked in [
            tier.get(object(1, 1), 0..3).await.map(drop),
            tier.get(object(1, 2), 0..3).await.map(drop),
            tier.check().await,
        ] {
            assert!(matches!(asked, Err(TierError::Failed(_))), "{asked:?}");
        }
    };
    is_away().await;
    // As below the mount.
    std::fs::create_dir(&folder).unwrap();
    is_away().await;
    std::fs::remove_dir(&folder).unwrap();
    std::fs::rename(&away, &folder).unwrap();
    assert_eq!(tier.check().await, Ok(()));
    assert_eq!(tier.get(object(1, 1), 0..3).await.unwrap(), "one");
    // An object that is missing from a present tier is lost.
    let lost = tier.get(object(1, 2), 0..3).await;
    assert!(matches!(lost, Err(TierError::NotFound(_))), "{lost:?}");
}

fn walk(folder: &std::path::Path) -> Vec<String> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => files.extend(walk(&path)),
            false => files.push(path.display().to_string()),
        }
    }
    files
}

#[tokio::test]
async fn a_place_is_of_one_pool() {
    let env = TestWorld::new(1).env;
    let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let first = ObjectTier::on(store.clone(), env.clone(), POOL);
    let other = ObjectTier::on(store.clone(), env.clone(), PoolId(8));
    // Nobody's: nothing is written or deleted there.
    assert!(first.begin(object(1, 1)).await.is_err());
    assert!(first.delete(object(1, 1)).await.is_err());
    first.claim().await.unwrap();
    let refused = other.claim().await.unwrap_err();
    assert!(matches!(refused, ClaimError::Other { .. }), "{refused}");
    assert!(other.begin(object(1, 1)).await.is_err());
    assert!(matches!(
        other.release().await,
        Err(ClaimError::Other { .. })
    ));
    first.release().await.unwrap();
    first.release().await.unwrap();
    other.claim().await.unwrap();
    let strange = first.owner_path_for_tests();
    // Nor is it two tiers of one pool: who removes one would take the other's mark.
    let mut second = ObjectTier::on(store.clone(), other.env.clone(), PoolId(8));
    second.tier = TierId(2);
    for refused in [second.claim().await, second.release().await] {
        assert!(matches!(
            refused,
            Err(ClaimError::OtherTier { tier: 1, .. })
        ));
    }
    for bytes in [
        "",
        "{}",
        "[1]",
        "{\"format\":\"cairn-tier 2\",\"pool\":\"7\"}",
    ] {
        store.put(&strange, bytes.into()).await.unwrap();
        let refused = first.claim().await.unwrap_err();
        assert!(matches!(refused, ClaimError::Strange { .. }), "{refused}");
    }
    let long = "x".repeat(10_000);
    store.put(&strange, long.into()).await.unwrap();
    assert!(matches!(
        first.claim().await,
        Err(ClaimError::Strange { .. })
    ));
}

/// A directory whose disk is not mounted any more is nobody's: nothing goes there.
#[tokio::test]
async fn a_directory_that_is_not_mounted_is_not_used() {
    let env = TestWorld::new(1).env;
    let folder = tempfile::tempdir().unwrap();
    let missing = format!("file://{}/none", folder.path().display());
    let missing: TierAddress = missing.parse().unwrap();
    let refused = ObjectTier::open(env.clone(), (POOL, TierId(1)), &missing, NOBODY).err();
    assert!(matches!(refused, Some(OpenError::Directory { .. })));
    let address = format!("file://{}", folder.path().display());
    let address: TierAddress = address.parse().unwrap();
    let tier = ObjectTier::open(env, (POOL, TierId(1)), &address, NOBODY).unwrap();
    tier.claim().await.unwrap();
    put(&tier, object(1, 1), &[b"one"]).await;
    std::fs::remove_file(folder.path().join("cairn-tier.json")).unwrap();
    assert!(matches!(
        tier.begin(object(1, 2)).await.err(),
        Some(TierError::Failed(_))
    ));
    assert!(matches!(
        tier.delete(object(1, 1)).await,
        Err(TierError::Failed(_))
    ));
}

/// The disk goes while an object is written: what was written below it is no copy.
#[tokio::test]
async fn a_directory_that_goes_while_it_is_written_to_has_no_object() {
    let env = TestWorld::new(1).env;
    let folder = tempfile::tempdir().unwrap();
    let address = format!("file://{}", folder.path().display());
    let address: TierAddress = address.parse().unwrap();
    let tier = ObjectTier::open(env, (POOL, TierId(1)), &address, NOBODY).unwrap();
    tier.claim().await.unwrap();
    for parts in [1, 3] {
        let mut upload = tier.begin(object(1, parts)).await.unwrap();
        for _ in 0..parts {
            upload.part(Bytes::from_static(b"part")).await.unwrap();
        }
        let mark = folder.path().join("cairn-tier.json");
        let kept = std::fs::read(&mark).unwrap();
        std::fs::remove_file(&mark).unwrap();
        assert!(upload.finish().await.is_err());
        std::fs::write(&mark, kept).unwrap();
        tier.delete(object(1, parts)).await.unwrap();
    }
    // What an upload left that a crash ended.
    let mut upload = tier.begin(object(1, 9)).await.unwrap();
    for _ in 0..2 {
        upload.part(Bytes::from_static(b"part")).await.unwrap();
    }
    std::mem::forget(upload);
    assert_eq!(walk(folder.path()).len(), 2);
    tier.delete(object(1, 9)).await.unwrap();
    assert_eq!(walk(folder.path()).len(), 1);
}

/// A store may list everything, whatever it is asked for.
#[test]
fn only_what_is_below_the_prefix_is_deleted() {
    let prefix = Path::from("a/b/00000001");
    for (path, is_below) in [
        ("a/b/00000001/0000000000000001-09", true),
        ("a/b/00000002/0000000000000001-09", false),
        ("a/b/000000011/0000000000000001-09", false),
        ("a/b/cairn-tier.json", false),
        ("a/b/00000001", false),
    ] {
        let found = require_below(&prefix, &Path::from(path));
        assert_eq!(found.is_ok(), is_below, "{path}");
    }
}
