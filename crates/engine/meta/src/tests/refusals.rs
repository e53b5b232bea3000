//! Refusals, where going on would be a guess.

use super::*;

#[test]
fn it_refuses_rather_than_to_guess() {
    block_on(async {
        let world = TestWorld::new(1);
        let pool = Pool::new(4);
        let env = || world.env.clone();
        let open = |missing: &[usize]| {
            let missing = missing.iter().copied().collect();
            MetaStore::open(env(), settings(3), VOLUME, present(&pool.disks, &missing))
        };
        assert!(matches!(
            open(&[]).await.err(),
            Some(MetaError::NotFound { disk_count: 4, .. })
        ));
        let store = MetaStore::create(env(), settings(3), VOLUME, pool.present());
        let store = store.await.expect("creates");
        let again = MetaStore::create(env(), settings(3), VOLUME, pool.present()).await;
        assert!(matches!(again.err(), Some(MetaError::Exists { .. })));
        let mut large = Batch::new();
        large.put(Key::inode(Ino(1)), vec![1; 20_000]);
        let ticket = store.submit(large);
        assert_eq!(ticket, Ticket::REFUSED);
        assert!(matches!(
            store.durable(ticket).await,
            Err(MetaError::BatchTooLarge { .. })
        ));
        for number in 0..5 {
            let mut batch = Batch::new();
            batch.put(Key::inode(Ino(number)), vec![1; 5000]);
            let ticket = store.submit(batch);
            store.durable(ticket).await.expect("durable");
        }
        store.abort().await;
        assert!(matches!(
            open(&[0, 1, 3]).await.err(),
            Some(MetaError::TooManyMissing { missing: 3, .. })
        ));
        // A record in the middle is corrupt on all copies: later ones show that it is missing.
        let name = pool.disks[0]
            .file_names()
            .into_iter()
            .find(|name| name.contains("log."));
        let name = name.expect("a log file");
        for disk in &pool.disks[..3] {
            disk.flip_bit(&name, 4096 + 4096 + 100, 3);
        }
        assert!(matches!(
            open(&[]).await.err(),
            Some(MetaError::LogDamaged { .. })
        ));
        // With one good copy nothing is lost.
        pool.disks[1].flip_bit(&name, 4096 + 4096 + 100, 3);
        let (store, _) = open(&[]).await.expect("opens");
        assert_eq!(
            store
                .live()
                .scan(&Key::inodes().0, &Key::inodes().1, 9)
                .expect("scans")
                .len(),
            5
        );
    });
}

/// A header with a right checksum claims the largest possible file length.
#[test]
fn a_log_file_longer_than_any_is_refused() {
    block_on(async {
        let world = TestWorld::new(1);
        let pool = Pool::new(1);
        let store = create(&world, 1, pool.present()).await;
        store.durable(store.submit(put(1))).await.expect("durable");
        store.abort().await;
        let names = pool.disks[0].file_names();
        let name = names.iter().find(|name| name.contains("log."));
        let name = name.expect("a log file");
        let mut header = pool.disks[0].file_bytes(name).expect("reads");
        header.truncate(4096);
        header[48..56].copy_from_slice(&u64::MAX.to_be_bytes());
        let crc = cairn_base::crc32c(&header[..4092]);
        header[4092..].copy_from_slice(&crc.to_be_bytes());
        let file = pool.disks[0].open(name, OpenMode::Existing).await;
        let file = file.expect("opens");
        let block = cairn_base::AlignedBuf::copy_of(&header).freeze();
        let written = file.write_durable_at(0, vec![block]).await;
        written.expect("writes");
        let opened = MetaStore::open(world.env.clone(), settings(1), VOLUME, pool.present()).await;
        assert!(matches!(opened.err(), Some(MetaError::Record(_))));
    });
}

#[test]
fn disks_used_apart_are_told_from_stale_ones() {
    block_on(async {
        let world = TestWorld::new(1);
        let pool = Pool::new(3);
        // Two copies: so one disk of three may be missing.
        let open = |missing: &[usize]| {
            let missing = missing.iter().copied().collect();
            let disks = present(&pool.disks, &missing);
            MetaStore::open(world.env.clone(), settings(2), VOLUME, disks)
        };
        let put = |store: Arc<MetaStore>, ino: u64| async move {
            let mut batch = Batch::new();
            batch.put(Key::inode(Ino(ino)), vec![1]);
            store.durable(store.submit(batch)).await.expect("durable");
            store.abort().await;
        };
        let created = MetaStore::create(world.env.clone(), settings(2), VOLUME, pool.present());
        put(created.await.expect("creates"), 1).await;
        let (store, _) = open(&[0]).await.expect("opens without the first");
        put(store, 2).await;
        let (store, _) = open(&[]).await.expect("opens with a stale first");
        assert!(
            store
                .live()
                .get(&Key::inode(Ino(2)))
                .expect("reads")
                .is_some()
        );
        put(store, 3).await;
        // Down to one disk twice, another one each time: both sides have acknowledged changes on their own.
        let (store, _) = open(&[2]).await.expect("opens");
        store.ship().await.expect("ships");
        put(store, 4).await;
        let (store, _) = open(&[1, 2]).await.expect("members are two, one is away");
        put(store, 5).await;
        let (store, _) = open(&[0, 2]).await.expect("members are two, one is away");
        put(store, 6).await;
        assert!(matches!(
            open(&[]).await.err(),
            Some(MetaError::SplitHistory { .. })
        ));
    });
}
