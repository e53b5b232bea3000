//! A real etcd of three members that die, stop and come back, and what is wrong with one that cannot be used.

use std::sync::Arc;
use std::time::Duration;

use cairn_cluster::{
    Coordinator, CoordinatorError, Etcd, EtcdSettings, Key, KeyRange, LeaseSettings, MemberState,
    Op, Outcome, OwnedLease, Revision, Txn, WatchEvent,
};
use etcd_client::{AlarmAction, AlarmType};
use rustix::process::{Pid, Signal, kill_process};

use crate::stores::{EtcdCluster, PATIENCE, next, within};

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
    let etcd = Etcd::connect(cluster.usual_settings()).await.unwrap();
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

/// A watch that hears nothing learns soon whether there was nothing to hear.
#[tokio::test]
async fn a_watch_leaves_a_member_that_stands_still() {
    let Some(cluster) = EtcdCluster::start(3).await else {
        return;
    };
    // The machine may stand still in one, for longer than it takes.
    let mut took = Vec::new();
    for _ in 0..5 {
        took.push(leaves_a_member_that_stands_still(&cluster).await);
        // A connection that keeps quiet ends after nine seconds by itself.
        if took.last() < Some(&Duration::from_secs(6)) {
            return;
        }
    }
    panic!("it never learns it soon: {took:?}");
}

/// How long a watch takes to hear from another member after its own has stopped.
async fn leaves_a_member_that_stands_still(cluster: &EtcdCluster) -> Duration {
    let etcd = Etcd::connect(cluster.settings()).await.unwrap();
    let first = put_in_the_end(&etcd, "1").await;
    let mut watcher = etcd.watch(KeyRange::Prefix("/f/".to_owned()), first);
    let seen = next(&mut *watcher).await;
    assert!(matches!(seen, WatchEvent::Changes { .. }));
    // It hears signs of life, and stays.
    let quiet = tokio::time::timeout(Duration::from_secs(3), watcher.next()).await;
    assert!(quiet.is_err(), "nothing has changed");
    let Some(MemberState::Running { pid }) = cluster.members[0].as_ref().map(|m| m.state()) else {
        panic!("it runs");
    };
    let pid = Pid::from_raw(pid as i32).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    let other = EtcdSettings::new(vec![cluster.settings[1].client_url.clone()]);
    let other = Etcd::connect(other).await.unwrap();
    let put = put_in_the_end(&other, "2").await;
    let begun = std::time::Instant::now();
    let seen = next(&mut *watcher).await;
    let took = begun.elapsed();
    kill_process(pid, Signal::CONT).unwrap();
    let WatchEvent::Changes { revision, .. } = seen else {
        panic!("nothing was compacted");
    };
    assert_eq!(revision, put);
    took
}

/// As nodes have it.
const LEASE: Duration = Duration::from_secs(3);
/// One that was renewed a moment ago lasts longer than this.
const LEASE_FRESH: Duration = Duration::from_millis(2500);

/// The member that leads, and the term in which it does. One that was passed over while it stood still may say for a
/// moment that it leads, in an earlier term.
async fn leader(cluster: &EtcdCluster) -> (usize, u64) {
    within(async {
        loop {
            let mut leading: Option<(usize, u64)> = None;
            for (index, settings) in cluster.settings.iter().enumerate() {
                let urls = [settings.client_url.as_str()];
                let asked = async {
                    let mut client = etcd_client::Client::connect(urls, None).await?;
                    client.status().await
                };
                // One that stands still says nothing.
                let asked = tokio::time::timeout(Duration::from_millis(500), asked).await;
                let Ok(Ok(status)) = asked else { continue };
                let id = status.header().map_or(0, |header| header.member_id());
                let is_later = leading.is_none_or(|(_, term)| status.raft_term() > term);
                if status.leader() == id && id != 0 && is_later {
                    leading = Some((index, status.raft_term()));
                }
            }
            if let Some(leading) = leading {
                return leading;
            }
        }
    })
    .await
}

/// Each member stands still for a while in turn, the leader among them, or dies and returns: another one leads meanwhile,
/// and nobody's lease is over.
#[tokio::test]
async fn leases_outlive_a_change_of_leader() {
    let mut why = Vec::new();
    // A machine that runs this process or etcd too late ends a lease as well, but not each time.
    for _ in 0..3 {
        match leases_outlive_changes_of_leader().await {
            Ok(()) => return,
            Err(ended) => why.push(ended),
        }
    }
    panic!("a lease was over each time: {why:?}");
}

/// An error says when a lease was over.
async fn leases_outlive_changes_of_leader() -> Result<(), String> {
    let Some(mut cluster) = EtcdCluster::start(3).await else {
        return Ok(());
    };
    let env = cairn_base::real::env(tokio::runtime::Handle::current());
    let mut leases = Vec::new();
    // Whichever member a node asks first.
    for first in 0..3 {
        let mut settings = cluster.settings();
        settings.endpoints.rotate_left(first);
        let etcd: Arc<dyn Coordinator> = Arc::new(Etcd::connect(settings).await.unwrap());
        let granted = OwnedLease::grant(env.clone(), etcd, LeaseSettings::new(LEASE)).await;
        leases.push(granted.unwrap());
    }
    for round in 0..6 {
        let (index, term) = leader(&cluster).await;
        let Some(MemberState::Running { pid }) = cluster.members[index].as_ref().map(|m| m.state())
        else {
            panic!("it runs");
        };
        let pid = Pid::from_raw(pid as i32).unwrap();
        match round % 2 {
            0 => kill_process(pid, Signal::STOP).unwrap(),
            _ => cluster.kill(index),
        }
        within(async {
            loop {
                let leading = leader(&cluster).await;
                // A member tells of its new role a moment before it tells of the new term.
                if leading.0 != index && leading.1 > term {
                    return;
                }
            }
        })
        .await;
        match round % 2 {
            0 => kill_process(pid, Signal::CONT).unwrap(),
            _ => cluster.start_again(index).await,
        }
        let member = cluster.members[index].as_ref().unwrap();
        member.wait_until_healthy(PATIENCE).await.unwrap();
        // All are renewed before the next one is lost.
        within(async {
            loop {
                let until: Option<Vec<Duration>> =
                    leases.iter().map(OwnedLease::valid_until).collect();
                let until = until.ok_or_else(|| format!("in round {round}"))?;
                let fresh = env.clock.boottime() + LEASE_FRESH;
                if until.iter().all(|until| *until > fresh) {
                    return Ok::<_, String>(());
                }
                env.clock.sleep(Duration::from_millis(20)).await;
            }
        })
        .await?;
    }
    Ok(())
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
    member.wait_until_healthy(PATIENCE).await.unwrap();
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
    let etcd = Etcd::connect(cluster.patient_settings()).await.unwrap();
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
        let mut settings = cluster.patient_settings();
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
