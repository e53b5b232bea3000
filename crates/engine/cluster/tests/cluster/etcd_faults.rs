//! A real etcd of three members that die, stop and come back, and what is wrong with one that cannot be used.

use std::time::Duration;

use cairn_cluster::{
    Coordinator, CoordinatorError, Etcd, EtcdSettings, Key, KeyRange, MemberState, Op, Outcome,
    Revision, Txn, WatchEvent,
};
use etcd_client::{AlarmAction, AlarmType};
use rustix::process::{Pid, Signal, kill_process};

use crate::stores::{EtcdCluster, next, within};

fn put(value: &str) -> Txn {
    Txn {
        then: vec![Op::put(Key::new("/f/a"), value.into())],
        ..Txn::default()
    }
}

/// Puts a value whose outcome need not be known: to put it again does no harm.
async fn put_in_the_end(etcd: &Etcd, value: &str) -> Revision {
    within(async {
        loop {
            if let Outcome::Done(reply) = etcd.transact(put(value)).await {
                return reply.revision;
            }
        }
    })
    .await
}

#[tokio::test]
async fn clients_go_on_when_a_member_dies_and_a_watch_survives() {
    let Some(mut cluster) = EtcdCluster::start(3).await else {
        return;
    };
    let etcd = Etcd::connect(cluster.settings()).await.unwrap();
    let first = put_in_the_end(&etcd, "1").await;
    let mut watcher = etcd.watch(KeyRange::Prefix("/f/".to_owned()), first);
    assert!(matches!(
        next(&mut *watcher).await,
        WatchEvent::Changes { .. }
    ));

    // The one that is asked and watched.
    cluster.kill(0);
    put_in_the_end(&etcd, "2").await;
    assert!(matches!(
        next(&mut *watcher).await,
        WatchEvent::Changes { .. }
    ));

    // Without a majority nothing is done, and the client says so in its time.
    cluster.kill(1);
    let outcome = within(etcd.transact(put("3"))).await;
    assert!(
        matches!(outcome, Outcome::Unknown(_) | Outcome::Failed(_)),
        "{outcome:?}"
    );
    let read = within(etcd.range(KeyRange::One(Key::new("/f/a")))).await;
    assert!(read.is_err(), "{read:?}");

    cluster.start_again(0).await;
    let last = put_in_the_end(&etcd, "4").await;
    loop {
        let WatchEvent::Changes { revision, .. } = next(&mut *watcher).await else {
            panic!("nothing was compacted");
        };
        if revision >= last {
            break;
        }
    }
}

#[tokio::test]
async fn a_member_that_stands_still_is_passed_by() {
    let Some(cluster) = EtcdCluster::start(3).await else {
        return;
    };
    let etcd = Etcd::connect(cluster.settings()).await.unwrap();
    put_in_the_end(&etcd, "1").await;
    let Some(MemberState::Running { pid }) = cluster.members[0].as_ref().map(|m| m.state()) else {
        panic!("it runs");
    };
    let pid = Pid::from_raw(pid as i32).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    let read = within(etcd.range(KeyRange::One(Key::new("/f/a")))).await;
    kill_process(pid, Signal::CONT).unwrap();
    assert_eq!(read.unwrap().one().unwrap().value, b"1");
}

#[tokio::test]
async fn a_member_that_was_killed_is_started_again_and_stops_cleanly() {
    let Some(mut cluster) = EtcdCluster::start(1).await else {
        return;
    };
    let etcd = Etcd::connect(cluster.settings()).await.unwrap();
    put_in_the_end(&etcd, "1").await;
    let member = cluster.members[0].take().unwrap();
    let mut states = member.subscribe();
    let MemberState::Running { pid } = member.state() else {
        panic!("it runs");
    };
    kill_process(Pid::from_raw(pid as i32).unwrap(), Signal::KILL).unwrap();
    within(states.wait_for(|state| matches!(state, MemberState::Ended { .. })))
        .await
        .unwrap();
    let runs_again =
        |state: &MemberState| matches!(state, MemberState::Running { pid: new } if *new != pid);
    within(states.wait_for(runs_again)).await.unwrap();
    member
        .wait_until_healthy(Duration::from_secs(30))
        .await
        .unwrap();
    let read = etcd.range(KeyRange::One(Key::new("/f/a"))).await.unwrap();
    assert_eq!(read.one().unwrap().value, b"1");
    member.stop().await;
    assert_eq!(*states.borrow(), MemberState::Stopped);
}

#[tokio::test]
async fn what_cannot_be_used_is_told_apart() {
    let connect = |endpoints: &[&str]| {
        Etcd::connect(EtcdSettings::new(
            endpoints.iter().map(|e| (*e).to_owned()).collect(),
        ))
    };
    assert!(matches!(
        connect(&[]).await,
        Err(CoordinatorError::BadSettings(_))
    ));
    let https = connect(&["https://127.0.0.1:1"]).await;
    assert!(matches!(https, Err(CoordinatorError::BadSettings(_))));
    let Err(error) = connect(&["http://127.0.0.1:1"]).await else {
        panic!("nobody is there");
    };
    assert!(
        matches!(error, CoordinatorError::Unreachable(_)),
        "{error:?}"
    );
    assert!(error.to_string().contains("127.0.0.1:1"), "{error}");

    let (Some(one), Some(other)) = (
        EtcdCluster::start(1).await,
        EtcdCluster::start_with(1, |s| s.cluster = "other".to_owned()).await,
    ) else {
        return;
    };
    let both = [
        one.settings[0].client_url.as_str(),
        other.settings[0].client_url.as_str(),
    ];
    let Err(error) = connect(&both).await else {
        panic!("they are of different clusters");
    };
    assert!(
        matches!(error, CoordinatorError::DifferentClusters(_)),
        "{error:?}"
    );
    // One that does not answer is no reason to refuse the others.
    connect(&[both[0], "http://127.0.0.1:1"]).await.unwrap();
}

#[tokio::test]
async fn an_alarm_and_a_wrong_password_are_for_the_operator() {
    let Some(cluster) = EtcdCluster::start(1).await else {
        return;
    };
    let etcd = Etcd::connect(cluster.settings()).await.unwrap();
    let mut client = cluster.client().await;
    let (raise, clear) = (AlarmAction::Activate, AlarmAction::Deactivate);
    client.alarm(raise, AlarmType::Nospace, None).await.unwrap();
    let outcome = etcd.transact(put("1")).await;
    assert!(
        matches!(outcome, Outcome::Failed(CoordinatorError::NoSpace(_))),
        "{outcome:?}"
    );
    let checked = etcd.check().await;
    assert!(
        matches!(checked, Err(CoordinatorError::NoSpace(_))),
        "{checked:?}"
    );
    client.alarm(clear, AlarmType::Nospace, None).await.unwrap();
    put_in_the_end(&etcd, "1").await;

    client.user_add("root", "secret", None).await.unwrap();
    client.user_grant_role("root", "root").await.unwrap();
    client.auth_enable().await.unwrap();
    for (password, want) in [("secret", true), ("wrong", false)] {
        let mut settings = cluster.settings();
        settings.user = Some(("root".to_owned(), password.to_owned()));
        match Etcd::connect(settings).await {
            Ok(etcd) => {
                assert!(want);
                put_in_the_end(&etcd, "2").await;
            }
            Err(error) => {
                assert!(
                    !want && matches!(error, CoordinatorError::Refused(_)),
                    "{error:?}"
                );
            }
        }
    }
    let read = etcd.range(KeyRange::One(Key::new("/f/a"))).await;
    assert!(
        matches!(read, Err(CoordinatorError::Refused(_))),
        "without a user: {read:?}"
    );
}
