//! A lease that this process keeps alive, and until when it may rely on it.
//!
//! Owns: renewing in time, the moment from which the lease counts as over, and telling everybody.
//! Must not know: what is owned on the lease.
//!
//! The store ends a lease `ttl` after it took the last renewal. It took it after it was sent, so that counting from the
//! sending is never too long, as long as clocks do not drift by more than a margin. The clock counts suspended time: a
//! machine that wakes up after a minute owns nothing.

use std::sync::Arc;
use std::time::Duration;

use cairn_base::env::Env;
use cairn_base::planted::{self, Bug};
use parking_lot::Mutex;
use tokio::sync::{oneshot, watch};

use crate::coordinator::{Coordinator, CoordinatorError, LeaseGrant, LeaseId};

/// How much of its time a lease loses, so that two clocks may differ by as much: a 20th. Clocks of machines that work
/// differ by less than a thousandth.
const DRIFT_MARGIN_DIVISOR: u32 = 20;
/// A lease is renewed when a sixth of its time has passed. The rest is for an etcd that has to choose another leader
/// first ([`crate::member::ELECTION_MAX`]).
const RENEW_DIVISOR: u32 = 6;
/// How long to wait after an attempt that failed.
const RETRY_WAIT: Duration = Duration::from_millis(200);

#[derive(Clone, Copy, Debug)]
pub struct LeaseSettings {
    pub ttl: Duration,
    /// How long before its end the owner is told that the lease is not being renewed.
    pub warn_before: Duration,
}

impl LeaseSettings {
    pub const fn new(ttl: Duration) -> Self {
        Self {
            ttl,
            warn_before: ttl.checked_div(4).expect("four is not zero"),
        }
    }

    /// How long etcd may renew nothing, from any moment on, without the lease being over for its holder.
    pub const fn slack(&self) -> Duration {
        let millis = self.ttl.as_millis() as u64;
        let margin = millis / DRIFT_MARGIN_DIVISOR as u64;
        let between = millis / RENEW_DIVISOR as u64;
        Duration::from_millis(millis - margin - between)
    }
}

/// What an owner is told of its lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseState {
    Alive,
    /// It is still valid, but was not renewed in time and will soon end: stop what cannot be stopped at once.
    Ending,
    /// It is over, for good.
    Over,
}

/// A lease and the task that renews it. When it is dropped, renewing stops and the lease ends by itself.
pub struct OwnedLease {
    view: LeaseView,
    coordinator: Arc<dyn Coordinator>,
    _stop: oneshot::Sender<()>,
}

/// What tells whether the lease is valid; cheap to clone.
#[derive(Clone)]
pub struct LeaseView {
    shared: Arc<LeaseCore>,
}

struct LeaseCore {
    env: Env,
    id: LeaseId,
    settings: LeaseSettings,
    /// By the clock that counts suspended time; `None` once it is over.
    valid_until: Mutex<Option<Duration>>,
    state: watch::Sender<LeaseState>,
}

impl OwnedLease {
    /// Asks for a lease and starts to renew it.
    pub async fn grant(
        env: Env,
        coordinator: Arc<dyn Coordinator>,
        settings: LeaseSettings,
    ) -> Result<Self, CoordinatorError> {
        let sent = env.clock.boottime();
        let grant = coordinator.grant_lease(settings.ttl).await?;
        let shared = Arc::new(LeaseCore {
            id: grant.id,
            settings,
            valid_until: Mutex::new(Some(validity(&env, sent, grant.ttl))),
            state: watch::Sender::new(LeaseState::Alive),
            env,
        });
        let (stop, stopped) = oneshot::channel();
        let keeper = Keeper {
            shared: Arc::clone(&shared),
            coordinator: Arc::clone(&coordinator),
            renew_at: sent + grant.ttl / RENEW_DIVISOR,
            failing_since: None,
        };
        let keep = Box::pin(keeper.run(stopped));
        shared.env.spawner.spawn("lease", keep);
        Ok(Self {
            view: LeaseView { shared },
            coordinator,
            _stop: stop,
        })
    }

    pub fn id(&self) -> LeaseId {
        self.view.id()
    }

    pub fn view(&self) -> LeaseView {
        self.view.clone()
    }

    pub fn is_valid(&self) -> bool {
        self.view.is_valid()
    }

    pub fn valid_until(&self) -> Option<Duration> {
        self.view.valid_until()
    }

    pub fn subscribe(&self) -> watch::Receiver<LeaseState> {
        self.view.subscribe()
    }

    /// Resolves when the lease is over.
    pub fn over(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut states = self.subscribe();
        async move {
            // The sender of the end has gone only after it was told.
            let _ = states.wait_for(|state| *state == LeaseState::Over).await;
        }
    }

    /// Ends the lease now: from here on nobody here relies on it, and then the store is told.
    pub async fn revoke(self) -> Result<(), CoordinatorError> {
        self.view.shared.end();
        self.coordinator.revoke_lease(self.id()).await
    }
}

impl LeaseView {
    pub fn id(&self) -> LeaseId {
        self.shared.id
    }

    pub fn is_valid(&self) -> bool {
        self.valid_until().is_some()
    }

    /// Until when the lease is valid by [`cairn_base::env::Clock::boottime`]; `None`: it is over. A caller that answers from
    /// data that the lease protects asks when the answer is ready, not when it was begun.
    pub fn valid_until(&self) -> Option<Duration> {
        self.shared.valid_until()
    }

    /// Tells of each change, and of the end a while before. A caller that must be certain asks [`Self::is_valid`].
    pub fn subscribe(&self) -> watch::Receiver<LeaseState> {
        self.shared.state.subscribe()
    }
}

/// Until when a lease is valid that the store granted or renewed after something was sent.
fn validity(env: &Env, sent: Duration, ttl: Duration) -> Duration {
    let from = if planted::is(Bug::LeaseCountedFromReply) {
        env.clock.boottime()
    } else {
        sent
    };
    from + (ttl - ttl / DRIFT_MARGIN_DIVISOR)
}

impl LeaseCore {
    fn valid_until(&self) -> Option<Duration> {
        let now = match planted::is(Bug::LeaseLastsOverSuspension) {
            true => self.env.clock.monotonic(),
            false => self.env.clock.boottime(),
        };
        let mut valid_until = self.valid_until.lock();
        if valid_until.is_some_and(|until| now >= until) {
            if planted::is(Bug::OwnerGoesOnAfterLease) {
                return Some(now + RETRY_WAIT);
            }
            // Somebody is told that it is over: no reply that comes later may bring it back.
            *valid_until = None;
            self.state.send_replace(LeaseState::Over);
        }
        *valid_until
    }

    fn renew(&self, sent: Duration, ttl: Duration) {
        if self.valid_until().is_none() {
            return;
        }
        let validity = validity(&self.env, sent, ttl);
        let mut valid_until = self.valid_until.lock();
        if let Some(until) = valid_until.as_mut() {
            *until = (*until).max(validity);
            self.set(LeaseState::Alive);
        }
    }

    fn end(&self) {
        *self.valid_until.lock() = None;
        self.set(LeaseState::Over);
    }

    fn set(&self, state: LeaseState) {
        self.state.send_if_modified(|before| {
            let changes = *before != state;
            *before = state;
            changes
        });
    }
}

/// Renews a lease until it is over or nobody wants it.
struct Keeper {
    shared: Arc<LeaseCore>,
    coordinator: Arc<dyn Coordinator>,
    renew_at: Duration,
    /// Since when the coordinator has not renewed it.
    failing_since: Option<Duration>,
}

impl Keeper {
    async fn run(mut self, mut stopped: oneshot::Receiver<()>) {
        let clock = Arc::clone(&self.shared.env.clock);
        loop {
            let Some(wake_at) = self.next_wake() else {
                return;
            };
            let wait = clock.sleep(wake_at.saturating_sub(clock.boottime()));
            tokio::select! {
                biased;
                _ = &mut stopped => return,
                () = wait => {}
            }
            if clock.boottime() < self.renew_at {
                continue;
            }
            let sent = clock.boottime();
            let mut renewal = self.coordinator.keep_alive(self.shared.id);
            let result = loop {
                let Some(wake_at) = self.next_warning() else {
                    return;
                };
                let wait = clock.sleep(wake_at.saturating_sub(clock.boottime()));
                tokio::select! {
                    biased;
                    _ = &mut stopped => return,
                    result = &mut renewal => break result,
                    () = wait => {}
                }
            };
            self.take(sent, result);
        }
    }

    fn take(&mut self, sent: Duration, result: Result<LeaseGrant, CoordinatorError>) {
        match result {
            Ok(grant) => {
                self.shared.renew(sent, grant.ttl);
                self.renew_at = sent + grant.ttl / RENEW_DIVISOR;
                if let Some(since) = self.failing_since.take() {
                    let silent_ms = sent.saturating_sub(since).as_millis();
                    tracing::info!(silent_ms, "etcd answers again");
                }
            }
            Err(error @ CoordinatorError::LeaseNotFound(_)) => {
                tracing::warn!(%error, "this node's lease has ended");
                self.shared.end();
            }
            Err(error) => {
                let now = self.shared.env.clock.boottime();
                if self.failing_since.is_none() {
                    let until = self.shared.valid_until().unwrap_or(now);
                    let left_ms = until.saturating_sub(now).as_millis();
                    tracing::warn!(%error, left_ms, "etcd does not renew this node's lease; without it this node stops serving what it owns");
                    self.failing_since = Some(now);
                }
                self.renew_at = now + RETRY_WAIT;
            }
        }
    }

    /// When there is something to do, apart from a renewal that is under way.
    fn next_wake(&self) -> Option<Duration> {
        Some(self.next_warning()?.min(self.renew_at))
    }

    /// Tells the owner what it has to know now; when to look again, or `None` if the lease is over.
    fn next_warning(&self) -> Option<Duration> {
        let until = self.shared.valid_until()?;
        let warn_at = until.saturating_sub(self.shared.settings.warn_before);
        if self.shared.env.clock.boottime() < warn_at {
            return Some(warn_at);
        }
        self.shared.set(LeaseState::Ending);
        Some(until)
    }
}
