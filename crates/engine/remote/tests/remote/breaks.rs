//! Connections that end at any byte.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cairn_shard::{ShardError, ShardService};

use crate::common::{CAPACITY, EPOCH, Pair, block_on, fill, name, settle, write};

/// Does something of each kind; gives the shards whose append was acknowledged, and whether all went well.
async fn work(disk: Arc<dyn ShardService>) -> (Vec<u64>, bool) {
    let mut appended = Vec::new();
    for segment in 0..2 {
        let shard = name(segment);
        let steps = async {
            disk.clone().create(EPOCH, shard, CAPACITY, 0).await?;
            let writes = write(0, 8192, segment as u8 + 1);
            disk.clone().append(EPOCH, shard, writes).await?;
            appended.push(segment);
            let hidden = disk
                .create_hidden(EPOCH, name(10 + segment), CAPACITY, 0)
                .await?;
            disk.fill(EPOCH, hidden, write(0, 4096, 1).remove(0))
                .await?;
            assert_eq!(
                disk.read(shard, 4096, 4096).await?,
                fill(4096, segment as u8 + 1)
            );
            Ok::<(), ShardError>(())
        };
        if let Err(error) = steps.await {
            assert!(matches!(error, ShardError::Unreachable { .. }), "{error}");
            return (appended, false);
        }
    }
    (appended, true)
}

#[test]
fn a_connection_that_ends_anywhere_loses_nothing_that_was_acknowledged() {
    block_on(async {
        let mut bytes_max = 0;
        let mut has_failed_late = false;
        loop {
            let mut pair = Pair::new().await;
            let disk = pair.remote();
            pair.wire.newest.lock().store(bytes_max, Ordering::SeqCst);
            let (appended, is_whole) = work(disk.clone()).await;
            if is_whole {
                assert!(has_failed_late, "it was cut in the middle, too");
                return;
            }
            has_failed_late |= !appended.is_empty();
            for segment in appended {
                let bytes = ShardService::read(&*pair.local, name(segment), 0, 8192).await;
                assert_eq!(bytes.expect("acknowledged"), fill(8192, segment as u8 + 1));
            }
            // A begun request is gone when the other side has noticed.
            let ended = pair.ended.recv().await.expect("it ends");
            assert!(!ended.is_misbehaviour, "{ended:?}");
            let files = pair.disk.file_names();
            assert!(
                !files.iter().any(|file| file.starts_with("rebuild/")),
                "{files:?}"
            );
            // And it goes on by itself.
            assert!(disk.is_silent());
            pair.peer.disconnected().await;
            settle().await;
            pair.world.clock.advance(Duration::from_secs(1));
            pair.peer.connected().await;
            assert!(!disk.is_silent());
            disk.probe().await.expect("it works again");
            // Each byte of the first frames, and then in steps that come to all parts of those that follow.
            bytes_max += if bytes_max < 300 { 1 } else { 61 };
        }
    });
}

#[test]
fn what_was_begun_before_a_break_is_unknown_behind_it() {
    block_on(async {
        let mut pair = Pair::new().await;
        let disk = pair.remote();
        let hidden = disk
            .create_hidden(EPOCH, name(1), CAPACITY, 0)
            .await
            .unwrap();
        let service: Arc<dyn ShardService> = disk.clone();
        service.create(EPOCH, name(2), CAPACITY, 0).await.unwrap();
        let list = disk.list(crate::common::VOLUME).await.unwrap();
        pair.cut();
        let failed = disk.probe().await.unwrap_err();
        assert!(matches!(failed, ShardError::Unreachable { .. }), "{failed}");
        pair.ended.recv().await.expect("it ends");
        pair.peer.disconnected().await;
        settle().await;
        pair.world.clock.advance(Duration::from_secs(1));
        pair.peer.connected().await;
        // Another one of the same name, which must not be taken for the first.
        let again = disk
            .create_hidden(EPOCH, name(1), CAPACITY, 0)
            .await
            .unwrap();
        let write = write(0, 4096, 1).remove(0);
        let filled = disk.fill(EPOCH, hidden, write.clone()).await.unwrap_err();
        assert_eq!(
            filled.kind(),
            cairn_shard::ShardErrorKind::NotFound,
            "{filled}"
        );
        disk.fill(EPOCH, again, write).await.unwrap();
        let swept = disk
            .sweep(EPOCH, crate::common::VOLUME, list.names, list.mark)
            .await;
        let swept = swept.unwrap();
        assert_eq!(
            (swept.removed, swept.kept),
            (0, 1),
            "the list is of another time"
        );
    });
}
