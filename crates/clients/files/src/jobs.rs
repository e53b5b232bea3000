//! Working through a tree with many files at a time and little memory.
//!
//! Owns: the order of jobs and how many run together.
//! Must not know: what a job is.

use futures_util::stream::{FuturesUnordered, StreamExt};

/// Runs jobs, at most `concurrency` at a time, each of which may give further jobs; of these the
/// last runs first.
///
/// Last in, first out keeps the list short: a directory gives a page of entries on top of the job
/// that reads its next page, so what waits is one page per level and running job, however large the
/// tree is.
pub(crate) async fn run<J, F>(first: Vec<J>, concurrency: usize, step: impl Fn(J) -> F)
where
    F: Future<Output = Vec<J>>,
{
    let mut waiting = first;
    let mut running = FuturesUnordered::new();
    loop {
        while running.len() < concurrency
            && let Some(job) = waiting.pop()
        {
            running.push(step(job));
        }
        match running.next().await {
            Some(more) => waiting.extend(more),
            None => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[tokio::test]
    async fn every_job_runs_once_and_not_too_many_at_a_time() {
        for concurrency in [1, 3, 100] {
            let (done, running) = (Cell::new(0), Cell::new(0));
            run(vec![6u32], concurrency, |depth| {
                let (done, running) = (&done, &running);
                async move {
                    running.set(running.get() + 1);
                    assert!(running.get() <= concurrency);
                    tokio::task::yield_now().await;
                    running.set(running.get() - 1);
                    done.set(done.get() + 1);
                    vec![depth.saturating_sub(1); if depth == 0 { 0 } else { 2 }]
                }
            })
            .await;
            assert_eq!(done.get(), (1 << 7) - 1);
        }
    }
}
