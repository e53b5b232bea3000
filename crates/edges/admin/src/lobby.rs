//! Who may ask, of many who connect.
//!
//! Owns: how many connections unauthorized clients have, and how many those who have shown who they are; that nobody stands
//! before a question whether the server is alive. Must not know: what a request is about, how somebody shows who they are.
//!
//! A connection has a place from its first request on that has a valid token or session. Before that its client
//! is unauthorized, whatever it asks: half a request, a body that stops, or none, takes no place. Of too many unauthorized connections
//! the oldest is closed, of the address that has most of them, so one that comes now is always heard.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::Request;
use axum::http::{HeaderValue, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use cairn_forward::network_of;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::AbortHandle;

use crate::api::ErrorKind;
use crate::control::ControlError;
use crate::places::{AddressPermit, Places};

/// Most connections of those who have shown who they are.
pub const CONNECTIONS_MAX: usize = 128;
/// Of one address: nobody alone keeps all others out.
const CONNECTIONS_OF_ONE_MAX: usize = CONNECTIONS_MAX / 2;
/// Most connections of others.
const STRANGERS_MAX: usize = 256;
const STRANGERS_OF_ONE_MAX: usize = STRANGERS_MAX / 4;
/// Most requests that wait for a place for their connection; more are told to come again.
const QUEUED_MAX: usize = 128;
const QUEUED_OF_ONE_MAX: usize = QUEUED_MAX / 4;
/// How long they wait.
const QUEUED_TIME_MAX: Duration = Duration::from_secs(10);
/// The path that is answered without a place.
const HEALTH: &str = "/healthz";

#[derive(Default)]
struct Strangers {
    next: u64,
    /// In the order in which they came.
    of: BTreeMap<u64, (IpAddr, Option<AbortHandle>)>,
}

impl Strangers {
    /// Who makes way for one more of an address.
    fn in_the_way(&self, network: IpAddr) -> Option<u64> {
        // How many each has, and its oldest.
        let mut counts: HashMap<IpAddr, (usize, u64)> = HashMap::new();
        for (id, (network, _)) in &self.of {
            counts.entry(*network).or_insert((0, *id)).0 += 1;
        }
        let own = counts.get(&network).copied();
        let own = own.filter(|(count, _)| *count >= STRANGERS_OF_ONE_MAX);
        let most = || {
            let counts = counts.values().copied();
            counts.max_by_key(|(count, oldest)| (*count, Reverse(*oldest)))
        };
        let crowded = own.or_else(|| most().filter(|_| self.of.len() >= STRANGERS_MAX));
        crowded.map(|(_, oldest)| oldest)
    }
}

pub(crate) struct Lobby {
    strangers: Mutex<Strangers>,
    queue: Semaphore,
    queued: Arc<Places>,
    permits: Arc<Semaphore>,
    places: Arc<Places>,
}

impl Lobby {
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            strangers: Mutex::default(),
            queue: Semaphore::new(QUEUED_MAX),
            queued: Places::new(QUEUED_OF_ONE_MAX),
            permits: Arc::new(Semaphore::new(CONNECTIONS_MAX)),
            places: Places::new(CONNECTIONS_OF_ONE_MAX),
        })
    }

    /// Connections that may have a place yet.
    pub fn left(&self) -> usize {
        self.permits.available_permits()
    }

    /// Lets a connection in. It may cost an unauthorized client its connection.
    pub fn enter(self: &Arc<Self>, address: IpAddr) -> Arc<Guest> {
        let mut strangers = self.strangers.lock();
        let own = network_of(address);
        let oldest = strangers.in_the_way(own);
        if let Some((_, Some(task))) = oldest.and_then(|oldest| strangers.of.remove(&oldest)) {
            task.abort();
        }
        let id = strangers.next;
        strangers.next += 1;
        strangers.of.insert(id, (own, None));
        Arc::new(Guest {
            lobby: Arc::clone(self),
            id,
            address,
            place: Mutex::new(None),
        })
    }
}

/// A place of a connection.
type Taken = (AddressPermit, OwnedSemaphorePermit);

/// A connection.
pub(crate) struct Guest {
    lobby: Arc<Lobby>,
    id: u64,
    address: IpAddr,
    place: Mutex<Option<Taken>>,
}

impl Guest {
    /// Which task ends if the connection must make way.
    pub fn is_served_by(&self, task: AbortHandle) {
        if let Some((_, served)) = self.lobby.strangers.lock().of.get_mut(&self.id) {
            *served = Some(task);
        }
    }

    /// Answers a request; of whom `is_known`, once the connection has a place.
    pub async fn answer(&self, is_known: bool, request: Request, next: Next) -> Response {
        let has_place = self.place.lock().is_some();
        if !has_place && request.uri().path() == HEALTH {
            // Without a place it does not stay.
            return closing(next.run(request).await);
        }
        if !has_place && is_known {
            self.leaves_strangers();
            let Some(taken) = self.place().await else {
                let message = "this server has too many requests now";
                let busy = ControlError::new(ErrorKind::Unavailable, message).hint(
                    "nothing was changed: try again, and check which clients use the admin port",
                );
                return closing(busy.into_response());
            };
            *self.place.lock() = Some(taken);
        }
        next.run(request).await
    }

    /// Gives a connection a place whose request has shown only now who it is from, if there is one.
    pub fn settle(&self) {
        let mut place = self.place.lock();
        if place.is_some() {
            return;
        }
        let own = self.lobby.places.take(self.address);
        let permit = Arc::clone(&self.lobby.permits).try_acquire_owned().ok();
        if let (Some(own), Some(permit)) = (own, permit) {
            *place = Some((own, permit));
            drop(place);
            self.leaves_strangers();
        }
    }

    fn leaves_strangers(&self) {
        self.lobby.strangers.lock().of.remove(&self.id);
    }

    async fn place(&self) -> Option<Taken> {
        let lobby = &self.lobby;
        let _queued = lobby.queued.take(self.address)?;
        let _in_queue = lobby.queue.try_acquire().ok()?;
        let taking = async {
            let place = lobby.places.wait(self.address).await;
            // Nobody closes it.
            let permit = Arc::clone(&lobby.permits).acquire_owned().await.ok()?;
            Some((place, permit))
        };
        tokio::time::timeout(QUEUED_TIME_MAX, taking).await.ok()?
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.leaves_strangers();
    }
}

/// The connection ends with this answer.
fn closing(mut response: Response) -> Response {
    let close = HeaderValue::from_static("close");
    response.headers_mut().insert(header::CONNECTION, close);
    response
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::body::Body;
    use axum::middleware;
    use axum::routing::get;
    use tower::ServiceExt;

    use super::*;

    fn address(last: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, last])
    }

    /// A connection that says nothing.
    fn silent(lobby: &Arc<Lobby>, from: IpAddr) -> (Arc<Guest>, tokio::task::JoinHandle<()>) {
        let guest = lobby.enter(from);
        let task = tokio::spawn(std::future::pending());
        guest.is_served_by(task.abort_handle());
        (guest, task)
    }

    /// The status of what a connection is answered that shows who it is.
    async fn asks(guest: &Arc<Guest>, path: &str) -> (u16, bool) {
        asks_as(true, guest, path).await
    }

    async fn asks_as(is_known: bool, guest: &Arc<Guest>, path: &str) -> (u16, bool) {
        let guest = Arc::clone(guest);
        let router = Router::new()
            .route("/healthz", get(|| async { "ok" }))
            .route("/other", get(|| async { "other" }))
            .layer(middleware::from_fn(move |request: Request, next: Next| {
                let guest = Arc::clone(&guest);
                async move { guest.answer(is_known, request, next).await }
            }));
        let request = Request::builder().uri(path).body(Body::empty()).unwrap();
        let response = router.oneshot(request).await.unwrap();
        let closes = response.headers().contains_key(header::CONNECTION);
        (response.status().as_u16(), closes)
    }

    #[tokio::test]
    async fn strangers_make_way() {
        let lobby = Lobby::new();
        let mut of_one: Vec<_> = (0..STRANGERS_OF_ONE_MAX)
            .map(|_| silent(&lobby, address(1)))
            .collect();
        let other = silent(&lobby, address(2));
        let one_more = silent(&lobby, address(1));
        let (_, oldest) = of_one.remove(0);
        assert!(oldest.await.unwrap_err().is_cancelled());
        assert_eq!(lobby.strangers.lock().of.len(), STRANGERS_OF_ONE_MAX + 1);
        // Many addresses: the oldest of all makes way, and no more are kept.
        let others: Vec<_> = (3..=250)
            .map(|last| silent(&lobby, address(last)))
            .collect();
        assert_eq!(lobby.strangers.lock().of.len(), STRANGERS_MAX);
        let (_, oldest) = of_one.remove(0);
        assert!(oldest.await.unwrap_err().is_cancelled());
        // One that has asked something, too; one that has shown who it is does not.
        assert_eq!(asks_as(false, &others[0].0, "/other").await, (200, false));
        assert_eq!(lobby.left(), CONNECTIONS_MAX);
        assert_eq!(asks(&one_more.0, "/other").await, (200, false));
        for last in 0..=255 {
            drop(lobby.enter(address(last)));
        }
        assert!(!one_more.1.is_finished());
        drop((of_one, other, one_more, others));
        assert!(lobby.strangers.lock().of.is_empty());
        assert_eq!(lobby.left(), CONNECTIONS_MAX);
    }

    #[tokio::test(start_paused = true)]
    async fn requests_of_strangers_that_do_not_end_keep_nobody_out() {
        let lobby = Lobby::new();
        // Bodies that stop: each of them waits for ever.
        let mut waiting = Vec::new();
        for number in 0..2 * STRANGERS_MAX {
            let guest = lobby.enter(address(u8::try_from(number % 6).unwrap()));
            let own = Arc::clone(&guest);
            let stops = || async { std::future::pending::<&'static str>().await };
            let router = Router::new()
                .route("/log-in", get(stops))
                .layer(middleware::from_fn(move |request: Request, next: Next| {
                    let guest = Arc::clone(&own);
                    async move { guest.answer(false, request, next).await }
                }));
            let request = Request::builder().uri("/log-in").body(Body::empty());
            let task = tokio::spawn(router.oneshot(request.unwrap()));
            guest.is_served_by(task.abort_handle());
            waiting.push((guest, task));
            tokio::task::yield_now().await;
        }
        let begun = tokio::time::Instant::now();
        // From one of their addresses, and from another one.
        for last in [1, 200] {
            let guest = lobby.enter(address(last));
            assert_eq!(asks(&guest, "/other").await, (200, false));
            assert_eq!(
                asks_as(false, &lobby.enter(address(last)), "/healthz").await,
                (200, true)
            );
        }
        assert!(begun.elapsed().is_zero());
        assert!(lobby.strangers.lock().of.len() <= STRANGERS_MAX);
        tokio::task::yield_now().await;
        let ended = waiting.iter().filter(|(_, task)| task.is_finished());
        assert!(ended.count() >= STRANGERS_MAX);
    }

    #[test]
    fn who_shows_later_who_they_are_get_a_place_that_is_free() {
        let lobby = Lobby::new();
        let guests: Vec<_> = (0..=CONNECTIONS_OF_ONE_MAX)
            .map(|_| lobby.enter(address(1)))
            .collect();
        guests.iter().for_each(|guest| guest.settle());
        guests.iter().for_each(|guest| guest.settle());
        assert_eq!(lobby.left(), CONNECTIONS_MAX - CONNECTIONS_OF_ONE_MAX);
        drop(guests);
        assert_eq!(lobby.left(), CONNECTIONS_MAX);
    }

    #[tokio::test(start_paused = true)]
    async fn health_is_answered_whoever_is_there() {
        let lobby = Lobby::new();
        let of_one: Vec<_> = (0..CONNECTIONS_OF_ONE_MAX)
            .map(|_| lobby.enter(address(1)))
            .collect();
        for guest in &of_one {
            assert_eq!(asks(guest, "/other").await, (200, false));
        }
        // The address has no place left, and its health is told all the same.
        let late = lobby.enter(address(1));
        assert_eq!(asks(&late, "/healthz").await, (200, true));
        let late = lobby.enter(address(1));
        assert_eq!(asks(&late, "/other").await, (503, true));
        assert_eq!(asks(&lobby.enter(address(2)), "/other").await, (200, false));
        // Who waits gets the place of one that leaves.
        let mut of_one = of_one;
        let waiting = lobby.enter(address(1));
        let asked = asks(&waiting, "/other");
        let leaves = async {
            tokio::task::yield_now().await;
            of_one.pop();
        };
        let (asked, ()) = tokio::join!(asked, leaves);
        assert_eq!(asked, (200, false));
        // All places of all.
        let all: Vec<_> = (0..CONNECTIONS_MAX)
            .map(|number| lobby.enter(address(10 + u8::try_from(number % 100).unwrap())))
            .collect();
        for guest in all.iter().take(lobby.left()) {
            assert_eq!(asks(guest, "/other").await, (200, false));
        }
        assert_eq!(lobby.left(), 0);
        assert_eq!(
            asks(&lobby.enter(address(3)), "/healthz").await,
            (200, true)
        );
        assert_eq!(asks(&lobby.enter(address(3)), "/other").await, (503, true));
    }

    #[tokio::test(start_paused = true)]
    async fn few_wait_and_the_others_are_told_so() {
        let lobby = Lobby::new();
        let held: Vec<_> = (0..CONNECTIONS_OF_ONE_MAX)
            .map(|_| lobby.enter(address(1)))
            .collect();
        for guest in &held {
            asks(guest, "/other").await;
        }
        let guests: Vec<_> = (0..QUEUED_OF_ONE_MAX + 5)
            .map(|_| lobby.enter(address(1)))
            .collect();
        let begun = tokio::time::Instant::now();
        let asked = guests.iter().map(|guest| async move {
            let answer = asks(guest, "/other").await;
            (answer, begun.elapsed())
        });
        let answers = futures_util::future::join_all(asked).await;
        let at_once = answers.iter().filter(|(_, waited)| waited.is_zero());
        assert_eq!(at_once.count(), 5);
        assert!(answers.iter().all(|(answer, _)| *answer == (503, true)));
    }
}
