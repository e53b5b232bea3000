//! In which order changes came: of objects, of what is kept beside their bytes, of buckets and their settings.
//!
//! Owns: that a change which was begun before another one is not done after it, if the other one replaces what it is about. Must not
//! know: how anything is changed.
//!
//! A change may be under way for long: its bytes come slowly, it waits for memory, or disks that it needs are away. Its client gives
//! it up meanwhile, sends it again and then newer ones, which are answered. A change that was begun before those comes too late then. Only
//! names with a change under way are kept here, and, for requests whose names are not known yet, the newest of what else was done.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use cairn_base::Ino;
use cairn_base::planted::{self, Bug};
use parking_lot::Mutex;

use crate::records::ObjectError;

/// Things that are remembered only because a request with names that are not known yet is under way: about 10 MiB.
const KEPT_COUNT_MAX: usize = 65_536;

/// What of an object or a bucket a change replaces. Changes of different facets do not make each other late.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Facet {
    /// All of it: an object is put or deleted, a bucket is made or deleted. The other facets go with it.
    Whole,
    Tags,
    Acl,
    Retention,
    LegalHold,
    Policy,
    Cors,
    Lifecycle,
    Versioning,
    ObjectLock,
    Website,
    NfsVersions,
    /// An object or a version that a rule or a client judged goes. No bytes that are on their way are meant by that.
    Judged,
}

/// What a change is about.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Thing {
    /// The object of a key below the directory of a bucket.
    Object(Ino, Box<[u8]>),
    Bucket(Box<str>),
    /// A part of an upload, by the upload's number.
    Part(Box<str>, u32),
}

/// The newest changes that are done, by what they replaced.
#[derive(Debug, Default)]
struct CompletedChanges(BTreeMap<Facet, u64>);

impl CompletedChanges {
    fn newest(&self) -> u64 {
        self.0.values().copied().max().unwrap_or(0)
    }

    /// The newest change that replaced what one of `facet` replaces.
    fn newest_of(&self, facet: Facet) -> u64 {
        let of = |facet: Facet| self.0.get(&facet).copied().unwrap_or(0);
        of(facet).max(of(Facet::Whole))
    }
}

/// Changes that are under way in one volume.
#[derive(Default)]
pub(crate) struct Arrivals(Mutex<ArrivalState>);

#[derive(Default)]
struct ArrivalState {
    number_last: u64,
    things: HashMap<Thing, OfThing>,
    /// Numbers of tickets that are out.
    tickets: BTreeSet<u64>,
    /// Things without a change under way, by the newest change that was done.
    kept: BTreeSet<(u64, Thing)>,
    /// Nothing is known of some things that were changed up to this number: a request that came before may be late for any of them.
    forgotten: u64,
}

struct OfThing {
    /// Changes under way.
    count: usize,
    /// Held while one is being done.
    done: Arc<tokio::sync::Mutex<CompletedChanges>>,
    /// Changes up to this one may have been done and forgotten.
    forgotten: u64,
}

impl OfThing {
    /// Of a thing without a change under way.
    fn newest_done(&self) -> u64 {
        // A change that holds it is under way.
        let done = self.done.try_lock();
        done.map_or(u64::MAX, |done| done.newest())
    }
}

/// A change that was begun.
pub struct Arrival {
    arrivals: Arc<Arrivals>,
    thing: Thing,
    facet: Facet,
    number: u64,
    done: Arc<tokio::sync::Mutex<CompletedChanges>>,
    /// Changes up to this one may have been done and forgotten.
    forgotten: u64,
}

/// The place in the order of a request that was begun, and whose names are not known yet: they come with its body.
pub struct Ticket {
    arrivals: Arc<Arrivals>,
    number: u64,
}

/// Held while a change is being done; no other one of the same thing is.
pub(crate) struct Due<'a> {
    done: tokio::sync::MutexGuard<'a, CompletedChanges>,
    facet: Facet,
    number: u64,
}

impl Arrivals {
    /// A change of an object begins.
    pub fn of_object(self: &Arc<Self>, dir: Ino, key: &str, facet: Facet) -> Arrival {
        self.arrive(Thing::Object(dir, key.as_bytes().into()), facet)
    }

    /// A change of a bucket begins.
    pub fn of_bucket(self: &Arc<Self>, name: &str, facet: Facet) -> Arrival {
        self.arrive(Thing::Bucket(name.into()), facet)
    }

    /// A part of an upload begins.
    pub fn of_part(self: &Arc<Self>, upload: &str, number: u32) -> Arrival {
        self.arrive(Thing::Part(upload.into(), number), Facet::Whole)
    }

    /// A request begins that names what it changes later.
    pub fn ticket(self: &Arc<Self>) -> Ticket {
        let mut under_way = self.0.lock();
        let number = under_way.number_next();
        under_way.tickets.insert(number);
        drop(under_way);
        Ticket {
            arrivals: Arc::clone(self),
            number,
        }
    }

    fn arrive(self: &Arc<Self>, thing: Thing, facet: Facet) -> Arrival {
        let mut under_way = self.0.lock();
        let number = under_way.number_next();
        let (done, forgotten) = under_way.enter(&thing);
        drop(under_way);
        Arrival {
            arrivals: Arc::clone(self),
            thing,
            facet,
            number,
            done,
            forgotten,
        }
    }
}

impl ArrivalState {
    fn number_next(&mut self) -> u64 {
        self.number_last += 1;
        self.number_last
    }

    fn enter(&mut self, thing: &Thing) -> (Arc<tokio::sync::Mutex<CompletedChanges>>, u64) {
        if let Some(of_thing) = self.things.get_mut(thing) {
            if of_thing.count == 0 {
                self.kept.remove(&(of_thing.newest_done(), thing.clone()));
            }
            of_thing.count += 1;
            return (Arc::clone(&of_thing.done), of_thing.forgotten);
        }
        let done = Arc::<tokio::sync::Mutex<CompletedChanges>>::default();
        let of_thing = OfThing {
            count: 1,
            done: Arc::clone(&done),
            forgotten: self.forgotten,
        };
        self.things.insert(thing.clone(), of_thing);
        (done, self.forgotten)
    }

    fn leave(&mut self, thing: &Thing) {
        let Some(of_thing) = self.things.get_mut(thing) else {
            return;
        };
        of_thing.count -= 1;
        if of_thing.count > 0 {
            return;
        }
        let newest = of_thing.newest_done().max(of_thing.forgotten);
        let is_awaited = self.tickets.first().is_some_and(|oldest| *oldest < newest);
        if !is_awaited {
            self.things.remove(thing);
            return;
        }
        self.kept.insert((of_thing.newest_done(), thing.clone()));
        // The oldest goes, so that only requests that came before that do not know what they may do.
        if self.kept.len() > KEPT_COUNT_MAX
            && let Some((newest, oldest)) = self.kept.pop_first()
        {
            self.things.remove(&oldest);
            self.forgotten = self.forgotten.max(newest);
        }
    }

    /// A ticket is not out any more: what was kept for it goes.
    fn take_back(&mut self, ticket: u64) {
        self.tickets.remove(&ticket);
        let oldest = self.tickets.first().copied();
        if oldest.is_none_or(|oldest| oldest > self.forgotten) {
            self.forgotten = 0;
        }
        while let Some((newest, thing)) = self.kept.pop_first() {
            if oldest.is_some_and(|oldest| oldest < newest) {
                self.kept.insert((newest, thing));
                return;
            }
            self.things.remove(&thing);
        }
    }
}

impl Ticket {
    /// A change of an object that the request names.
    pub(crate) fn of_object(&self, dir: Ino, key: &str, facet: Facet) -> Arrival {
        let thing = Thing::Object(dir, key.as_bytes().into());
        let (done, forgotten) = self.arrivals.0.lock().enter(&thing);
        Arrival {
            arrivals: Arc::clone(&self.arrivals),
            thing,
            facet,
            number: self.number,
            done,
            forgotten,
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.arrivals.0.lock().take_back(self.number);
    }
}

impl Arrival {
    /// Whether it is of this object.
    pub(crate) fn is_of_object(&self, dir: Ino, key: &str) -> bool {
        match &self.thing {
            Thing::Object(of, name) => *of == dir && **name == *key.as_bytes(),
            Thing::Bucket(_) | Thing::Part(..) => false,
        }
    }

    /// Waits until no other change of the same thing is being done. [`ObjectError::Late`] if one was done that came later and
    /// replaced the same; [`ObjectError::Unordered`] if that is not known any more.
    pub(crate) async fn due(&self) -> Result<Due<'_>, ObjectError> {
        let done = self.done.lock().await;
        let is_late = done.newest_of(self.facet) > self.number;
        if is_late && !planted::is(Bug::LateObjectChangeDone) {
            return Err(ObjectError::Late);
        }
        match self.forgotten > self.number {
            true => Err(ObjectError::Unordered),
            false => Ok(Due {
                done,
                facet: self.facet,
                number: self.number,
            }),
        }
    }
}

impl Due<'_> {
    /// It is done.
    pub fn done(mut self) {
        let newest = self.done.0.entry(self.facet).or_default();
        *newest = self.number.max(*newest);
    }
}

impl Drop for Arrival {
    fn drop(&mut self) {
        self.arrivals.0.lock().leave(&self.thing);
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Waker};

    use proptest::prelude::*;

    use super::*;

    const DIR: Ino = Ino(1);

    fn put(arrivals: &Arc<Arrivals>, key: &str) -> Arrival {
        arrivals.of_object(DIR, key, Facet::Whole)
    }

    #[tokio::test]
    async fn what_came_before_is_not_done_after() {
        let arrivals = Arc::new(Arrivals::default());
        let (old, other, new) = (
            put(&arrivals, "a"),
            put(&arrivals, "b"),
            put(&arrivals, "a"),
        );
        new.due().await.unwrap().done();
        assert!(matches!(old.due().await, Err(ObjectError::Late)));
        other.due().await.unwrap().done();
        // What came later still is done.
        let newest = put(&arrivals, "a");
        newest.due().await.unwrap().done();
        assert!(matches!(new.due().await, Err(ObjectError::Late)));
        drop((old, new, newest, other));
        assert!(arrivals.0.lock().things.is_empty());
    }

    #[test]
    fn a_late_change_that_is_done_is_noticed() {
        let test: fn() = what_came_before_is_not_done_after;
        assert!(planted::is_noticed_by(Bug::LateObjectChangeDone, test));
    }

    #[tokio::test]
    async fn one_change_of_a_key_is_done_at_a_time() {
        let arrivals = Arc::new(Arrivals::default());
        let (old, new) = (put(&arrivals, "a"), put(&arrivals, "a"));
        let doing = old.due().await.unwrap();
        let mut waiting = Box::pin(new.due());
        let mut context = Context::from_waker(Waker::noop());
        assert!(waiting.as_mut().poll(&mut context).is_pending());
        // What failed was not done.
        drop(doing);
        waiting.await.unwrap().done();
        assert!(old.due().await.is_err());
    }

    /// An old change of each facet, after a newer one of each.
    #[tokio::test]
    async fn a_change_is_late_for_what_replaced_the_same() {
        use Facet::{Acl, Judged, Policy, Tags, Versioning, Whole};
        for (old, new, is_late) in [
            (Whole, Whole, true),
            (Tags, Tags, true),
            // The tags went with the object that had them.
            (Tags, Whole, true),
            // The bytes are not replaced by new tags of the object that was there.
            (Whole, Tags, false),
            (Tags, Acl, false),
            (Policy, Policy, true),
            (Policy, Versioning, false),
            (Policy, Whole, true),
            // What a rule judged was not what is on its way.
            (Whole, Judged, false),
            (Judged, Whole, true),
            (Judged, Judged, true),
        ] {
            let arrivals = Arc::new(Arrivals::default());
            let of_object = |facet| arrivals.of_object(DIR, "a", facet);
            let of_bucket = |facet| arrivals.of_bucket("a", facet);
            let kinds: [&dyn Fn(Facet) -> Arrival; 2] = [&of_object, &of_bucket];
            for arrive in kinds {
                let (before, after) = (arrive(old), arrive(new));
                after.due().await.unwrap().done();
                assert_eq!(
                    before.due().await.is_err(),
                    is_late,
                    "{old:?} after {new:?}"
                );
            }
            // One thing says nothing of another.
            let (bucket, object, part) =
                (of_bucket(Whole), of_object(Whole), arrivals.of_part("a", 1));
            arrivals.of_part("a", 2).due().await.unwrap().done();
            assert!(part.due().await.is_ok());
            of_object(Whole).due().await.unwrap().done();
            assert!(bucket.due().await.is_ok());
            assert!(object.due().await.is_err());
        }
    }

    #[tokio::test]
    async fn who_names_its_objects_later_came_before_all_the_same() {
        let arrivals = Arc::new(Arrivals::default());
        put(&arrivals, "before").due().await.unwrap().done();
        let ticket = arrivals.ticket();
        put(&arrivals, "after").due().await.unwrap().done();
        let of = |key: &str| ticket.of_object(DIR, key, Facet::Whole);
        for (key, is_late) in [("before", false), ("after", true), ("never", false)] {
            assert_eq!(of(key).due().await.is_err(), is_late, "{key}");
        }
        drop(ticket);
        let under_way = arrivals.0.lock();
        assert!(under_way.things.is_empty() && under_way.kept.is_empty());
    }

    /// What does not fit any more makes a request late rather than unordered, and nothing of it stays.
    #[tokio::test]
    async fn what_is_kept_for_a_ticket_has_a_limit() {
        let arrivals = Arc::new(Arrivals::default());
        let ticket = arrivals.ticket();
        let count = KEPT_COUNT_MAX + 2;
        for number in 0..count {
            let key = number.to_string();
            put(&arrivals, &key).due().await.unwrap().done();
        }
        assert_eq!(arrivals.0.lock().things.len(), KEPT_COUNT_MAX);
        for number in 0..count {
            let late = ticket.of_object(DIR, &number.to_string(), Facet::Whole);
            let is_known = number >= 2;
            match late.due().await {
                Err(ObjectError::Late) => assert!(is_known, "{number}"),
                Err(ObjectError::Unordered) => assert!(!is_known, "{number}"),
                _ => panic!("{number}"),
            }
        }
        let never = ticket.of_object(DIR, "never", Facet::Whole);
        assert!(matches!(never.due().await, Err(ObjectError::Unordered)));
        // Others that came when all that was forgotten was done are in order, however long the first one waits.
        let later = arrivals.ticket();
        put(&arrivals, "after").due().await.unwrap().done();
        for (key, is_late) in [("0", false), ("never", false), ("after", true)] {
            let of = later.of_object(DIR, key, Facet::Whole);
            assert_eq!(of.due().await.is_err(), is_late, "{key}");
        }
        drop((ticket, never));
        assert!(arrivals.0.lock().kept.len() <= 1);
        drop(later);
        assert!(arrivals.0.lock().things.is_empty());
        assert_eq!(arrivals.0.lock().forgotten, 0);
    }

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Arrive(u8, Facet),
        Ticket,
        /// By a ticket that is out.
        Name(usize, u8),
        Do(usize),
        Leave(usize),
        TakeBack(usize),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let facet = prop_oneof![
            Just(Facet::Whole),
            Just(Facet::Tags),
            Just(Facet::Retention)
        ];
        let step = prop_oneof![
            4 => (0..3_u8, facet).prop_map(|(key, facet)| Step::Arrive(key, facet)),
            1 => Just(Step::Ticket),
            1 => (any::<usize>(), 0..3_u8).prop_map(|(which, key)| Step::Name(which, key)),
            4 => any::<usize>().prop_map(Step::Do),
            2 => any::<usize>().prop_map(Step::Leave),
            1 => any::<usize>().prop_map(Step::TakeBack),
        ];
        proptest::collection::vec(step, 0..60)
    }

    proptest! {
        /// Whatever comes and goes: a change is done if and only if nothing was done that came later and replaced the same.
        #[test]
        fn changes_are_done_in_the_order_in_which_they_came(steps in steps()) {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let arrivals = Arc::new(Arrivals::default());
            let (mut waiting, mut tickets) = (Vec::<(u8, Arrival)>::new(), Vec::<Ticket>::new());
            // All that was ever done.
            let mut done: Vec<(u8, Facet, u64)> = Vec::new();
            for step in steps {
                match step {
                    Step::Arrive(key, facet) => {
                        let arrival = arrivals.of_object(DIR, &key.to_string(), facet);
                        waiting.push((key, arrival));
                    }
                    Step::Ticket => tickets.push(arrivals.ticket()),
                    Step::Name(which, key) if !tickets.is_empty() => {
                        let ticket = &tickets[which % tickets.len()];
                        let named = ticket.of_object(DIR, &key.to_string(), Facet::Whole);
                        waiting.push((key, named));
                    }
                    Step::Do(which) if !waiting.is_empty() => {
                        let (key, arrival) = &waiting[which % waiting.len()];
                        let (facet, number) = (arrival.facet, arrival.number);
                        let replaced = |(of, by, at): &(u8, Facet, u64)| {
                            of == key && *at > number && (*by == facet || *by == Facet::Whole)
                        };
                        let want = done.iter().any(replaced);
                        let is_late = runtime.block_on(async {
                            match arrival.due().await {
                                Ok(due) => {
                                    due.done();
                                    false
                                }
                                Err(_) => true,
                            }
                        });
                        prop_assert_eq!(is_late, want);
                        if !is_late {
                            done.push((*key, facet, number));
                        }
                    }
                    Step::Leave(which) if !waiting.is_empty() => {
                        waiting.swap_remove(which % waiting.len());
                    }
                    Step::TakeBack(which) if !tickets.is_empty() => {
                        tickets.swap_remove(which % tickets.len());
                    }
                    Step::Name(..) | Step::Do(_) | Step::Leave(_) | Step::TakeBack(_) => {}
                }
            }
            drop((waiting, tickets));
            let under_way = arrivals.0.lock();
            prop_assert!(under_way.things.is_empty());
            prop_assert!(under_way.kept.is_empty());
        }
    }
}
