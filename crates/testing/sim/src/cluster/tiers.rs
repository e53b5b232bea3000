//! An object store for cold data beside a cluster: whoever owns the volume sends segments there, and whoever takes it over
//! reads them there.
//!
//! Owns: when policies change, what has to be in the object store when all is well. Must not know: who owns the volume when,
//! what the store does wrong (`object_store`).

use std::sync::Arc;
use std::time::Duration;

use cairn_base::env::Env;
use cairn_formats::settings::{TierFilter, Tiering};
use cairn_fs::Fs;
use cairn_pool::Pool;
use cairn_testkit::Rng;

use crate::object_store::SimStore;
use crate::tiers::{add, check_objects, set_policy};

/// Between two changes of the policy, at most.
const PAUSE_MAX: Duration = Duration::from_secs(3);
const TEND_INTERVAL: Duration = Duration::from_secs(1);
/// A store that was away is asked again after this.
const AWAY_MAX: Duration = Duration::from_secs(6);
/// How often it is looked whether all has left the store, and how long that may take.
const LOOK_PAUSE: Duration = Duration::from_secs(2);
const LOOKS_MAX: u32 = 600;

/// Opens what could not be opened, as a node does it.
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

/// Makes the store a tier, and has all that is cold go there.
pub async fn begin(pool: &Pool) -> Result<(), String> {
    add(pool).await?;
    let set = set_policy(pool, Tiering::All, TierFilter::default()).await;
    set.map_err(|error| format!("the first policy: {error}"))
}

/// Changes what goes to the store and what comes back, at any node, while things happen. What is refused is asked again next
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

/// Each object is a segment's, or noted to be nobody's; and, if it is asked for, all comes back and nothing is left.
///
/// `newest` gives the pool and the volume of the owner, whoever that is.
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
                // The owner takes the name off when nothing is there any more.
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
