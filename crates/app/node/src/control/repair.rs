//! What goes on by itself: rebuild, spread, scrub.

use std::sync::Arc;

use cairn_admin::api::ErrorKind;
use cairn_admin::rebuild::{RebuildControl, RebuildView};
use cairn_admin::scrub::{
    ScrubControl, ScrubReport, ScrubSchedule, ScrubScheduleSet, ScrubStart, ScrubView,
};
use cairn_admin::spread::{SpreadControl, SpreadSet, SpreadView};
use cairn_admin::{Answer, ControlError};
use cairn_config::Maintenance;

use super::{Controller, refusal};
use crate::convert;

impl RebuildControl for Controller {
    fn rebuild(&self) -> Answer<'_, RebuildView> {
        Box::pin(async { Ok(convert::rebuild(self.inner.pool.rebuild_status())) })
    }

    fn rebuild_set(&self, rate_bytes_per_second: u64) -> Answer<'_, RebuildView> {
        Box::pin(async move {
            self.inner.pool.rebuild.set_rate(rate_bytes_per_second);
            Ok(convert::rebuild(self.inner.pool.rebuild_status()))
        })
    }
}

impl SpreadControl for Controller {
    fn spread(&self) -> Answer<'_, SpreadView> {
        Box::pin(async { Ok(convert::spread(self.inner.pool.spread_status())) })
    }

    fn spread_set(&self, set: SpreadSet) -> Answer<'_, SpreadView> {
        Box::pin(async move {
            let changed = self.inner.pool.set_spread_paused(set.paused).await;
            changed.map_err(refusal)?;
            self.spread().await
        })
    }
}

impl ScrubControl for Controller {
    fn scrub(&self) -> Answer<'_, ScrubView> {
        Box::pin(async { Ok(convert::scrub(self.inner.pool.scrub_progress())) })
    }

    fn scrub_start(&self, start: ScrubStart) -> Answer<'_, ScrubView> {
        Box::pin(async move {
            let rate = start.rate_bytes_per_second;
            self.inner.pool.scrub_start(rate, start.restart).await;
            Ok(convert::scrub(self.inner.pool.scrub_progress()))
        })
    }

    fn scrub_pause(&self) -> Answer<'_, ScrubView> {
        Box::pin(async {
            if self.inner.pool.scrub_pause().await {
                return Ok(convert::scrub(self.inner.pool.scrub_progress()));
            }
            let error = ControlError::new(ErrorKind::Conflict, "no scrub runs");
            Err(error.hint("`cairn scrub start` starts a scrub"))
        })
    }

    fn scrub_report(&self) -> Answer<'_, ScrubReport> {
        Box::pin(async {
            let pool = Arc::clone(&self.inner.pool);
            // A pass over all names finds them. It yields, but its reads of the metadata may wait for a disk, and a
            // thread of the server must not.
            let runtime = tokio::runtime::Handle::current();
            let look = move || runtime.block_on(pool.damaged_places());
            let found = tokio::task::spawn_blocking(look).await;
            let found =
                found.map_err(|error| ControlError::new(ErrorKind::Internal, error.to_string()))?;
            let places = found.places.into_iter();
            Ok(ScrubReport {
                scrub: convert::scrub(self.inner.pool.scrub_progress()),
                damaged: places.map(convert::damaged_place).collect(),
                damaged_more: found.more,
            })
        })
    }

    fn scrub_schedule(&self) -> Answer<'_, ScrubSchedule> {
        Box::pin(async {
            let now = self.inner.env.clock.now();
            let state = self.inner.pool.state();
            Ok(convert::scrub_schedule(&state.maintenance, now))
        })
    }

    fn scrub_schedule_set(&self, set: ScrubScheduleSet) -> Answer<'_, ScrubSchedule> {
        Box::pin(async move {
            let maintenance = Maintenance {
                scrub_every: set.every,
                window: set.window,
                ..self.inner.pool.state().maintenance.clone()
            };
            let changed = self.inner.pool.set_maintenance(maintenance).await;
            changed.map_err(refusal)?;
            self.scrub_schedule().await
        })
    }
}
