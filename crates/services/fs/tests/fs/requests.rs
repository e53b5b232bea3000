//! The volume's log knows requests: after a crash, and as many as are kept.

use cairn_base::Ino;
use cairn_fs::*;
use cairn_testkit::Crash;

use crate::world::*;

fn asked(number: u32) -> Credentials {
    let mut id = [0; 32];
    id[..4].copy_from_slice(&number.to_be_bytes());
    Credentials {
        request: Some(RequestId(id)),
        ..Credentials::ROOT
    }
}

fn known(fs: &Fs, number: u32) -> Option<Ino> {
    fs.made_before(&asked(number).request.expect("a request"))
}

#[test]
fn what_was_done_is_known_after_a_crash_by_its_request() {
    block_on(async {
        let world = World::new(3, 1).await;
        let fs = &world.fs;
        let guarded = CreateMode::Guarded(SetAttr::default());
        let made = fs.create(&asked(1), ROOT_INO, b"made", guarded).await;
        let made = made.unwrap().attr.ino;
        let who = asked(2);
        let dir = fs.make_dir(&who, ROOT_INO, b"dir", SetAttr::default());
        let dir = dir.await.unwrap().attr.ino;
        fs.link(&asked(3), made, dir, b"linked").await.unwrap();
        let who = asked(4);
        let moved = fs.rename(&who, ROOT_INO, b"made", dir, b"moved");
        moved.await.unwrap();
        let mode = SetAttr {
            mode: Some(0o600),
            ..SetAttr::default()
        };
        fs.set_attr(&asked(5), made, mode, None).await.unwrap();
        fs.remove(&asked(6), dir, b"linked").await.unwrap();
        // A failed request was not done.
        let none = fs.remove(&asked(7), dir, b"linked").await;
        assert_eq!(none, Err(FsError::NotFound));
        // While the volume is open, the edge remembers.
        assert_eq!(known(fs, 1), None);

        let world = world.crash(4, Crash::LoseUnsynced).await;
        let fs = &world.fs;
        for (number, want) in [
            (1, made),
            (2, dir),
            (3, made),
            (4, made),
            (5, made),
            (6, made),
        ] {
            assert_eq!(known(fs, number), Some(want), "{number}");
        }
        assert_eq!(known(fs, 7), None);
        // New requests do not overwrite those from before the opening too early.
        fs.remove(&asked(8), dir, b"moved").await.unwrap();
        let world = world.crash(5, Crash::LoseUnsynced).await;
        for number in [1, 6, 8] {
            assert!(known(&world.fs, number).is_some(), "{number}");
        }
    });
}

#[test]
fn only_the_last_requests_are_kept() {
    block_on(async {
        let world = World::new(6, 1).await;
        let kept = u32::from(REQUESTS_KEPT);
        for number in 0..kept + 10 {
            let mode = SetAttr {
                mode: Some(0o700 | (number % 8)),
                ..SetAttr::default()
            };
            let who = asked(number);
            let set = world.fs.set_attr(&who, ROOT_INO, mode, None);
            set.await.unwrap();
        }
        let world = world.crash(7, Crash::LoseUnsynced).await;
        assert_eq!(known(&world.fs, 9), None);
        assert_eq!(known(&world.fs, 10), Some(ROOT_INO));
        assert_eq!(known(&world.fs, kept + 9), Some(ROOT_INO));
    });
}
