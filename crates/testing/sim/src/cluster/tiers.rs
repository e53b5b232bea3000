//! An object store for cold data beside a cluster: the owner of the volume sends segments there, and the next owner
//! reads them there.
//!
//! Owns: when policies change, the expected objects after recovery. Must not know: who owns the volume when, the faults
//! of the store (`object_store`).

use std::sync::Arc;
use std::time::Duration;

use cairn_base::env::Env;
use cairn_formats::settings::{TierFilter, Tiering};
use cairn_fs::Fs;
use cairn_pool::Pool;
use cairn_testkit::Rng;

use crate::object_store::SimStore;
use crate::tiers::{add, check_objects, set_policy};

/// Longest pause between two changes of the policy.
const PAUSE_MAX: Duration = Duration::from_secs(3);
const TEND_INTERVAL: Duration = Duration::from_secs(1);
/// Pause before a store that was away is asked again.
const AWAY_MAX: Duration = Duration::from_secs(6);
/// Interval of the check whether the store is empty, and its longest duration.
const LOOK_PAUSE: Duration = Duration::from_secs(2);
const LOOKS_MAX: u32 = 600;

/// Reopens failed volumes, as a node does.
pub fn tend(pool: &Arc<Pool>, env: &Env) {
    let (pool, clock) = (Arc::downgrade(pool), env.clock.clone());
    let tending = async move {
        loop {
            clock.sleep(TEND_INTERVAL).await;
            match pool.upgrade() {
                Some(pool) => pool.tend_tiers().await,
                None => return,
            }
        }
    };
    env.spawner.spawn("tiers", Box::pin(tending));
}

/// Makes the store a tier, and sends all cold data there.
pub async fn begin(pool: &Pool) -> Result<(), String> {
    add(pool).await?;
    let set = set_policy(pool, Tiering::All, TierFilter::default()).await;
    set.map_err(|error| format!("the first policy: {error}"))
}

/// Changes the policies for the store, in both directions, at any node, during events. A refused change is retried next
/// time.
pub async fn change(env: Env, seed: u64, pool: impl Fn(u64) -> Option<Option<Arc<Pool>>>) {
    let mut rng = Rng::new(seed);
    loop {
        let pause = rng.below(PAUSE_MAX.as_micros() as u64);
        env.clock.sleep(Duration::from_micros(pause)).await;
        let Some(at) = pool(rng.u64()) else { return };
        let policy = match rng.below(3) {
            0 => Tiering::None,
            _ => Tiering::All,
        };
        if let Some(pool) = at
            && let Err(error) = set_policy(&pool, policy, TierFilter::default()).await
        {
            tracing::debug!(%error, "the policy stays as it is");
        }
    }
}

/// Each object belongs to a segment, or is noted as unneeded. If wanted, all data comes back and nothing is left.
///
/// `newest` gives the pool and the volume of the present owner.
pub async fn check(
    env: &Env,
    objects: &SimStore,
    comes_back: bool,
    newest: impl Fn() -> Option<(Arc<Pool>, Fs)>,
) -> Result<(), String> {
    env.clock.sleep(AWAY_MAX).await;
    if let Some((_, fs)) = newest() {
        check_objects(&fs, objects)?;
    }
    if !comes_back {
        return Ok(());
    }
    for _ in 0..LOOKS_MAX {
        if let Some((pool, _)) = newest() {
            let state = pool.state();
            let mut named = state.volumes.iter().filter_map(|it| it.tiering.as_ref());
            match named.next().map(|tiering| tiering.policy) {
                // The owner removes the name when nothing is left.
                None if objects.objects().is_empty() => return Ok(()),
                None => {
                    let left = objects.objects();
                    return Err(format!("objects are left for ever: {left:?}"));
                }
                Some(Tiering::None) => {}
                Some(_) => {
                    let set = set_policy(&pool, Tiering::None, TierFilter::default()).await;
                    if let Err(error) = set {
                        tracing::debug!(%error, "the last policy is not set yet");
                    }
                }
            }
        }
        env.clock.sleep(LOOK_PAUSE).await;
    }
    let status = newest().map(|(_, fs)| fs.tiering_status());
    let left = objects.objects();
    Err(format!(
        "data does not leave the object store: {status:?}, left {left:?}"
    ))
}
