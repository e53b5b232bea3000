//! From a goal to the whole report.

use crate::catalog::Catalog;
use crate::charts::charts;
use crate::evaluate::EvaluateError;
use crate::goal::Goal;
use crate::rank::{RankError, rank};
use crate::report::{PlanReport, SCHEMA};

/// Ranks all candidates for a goal and adds what charts show.
pub fn plan(catalog: &Catalog, goal: &Goal) -> Result<PlanReport, RankError> {
    let ranking = rank(catalog, goal)?;
    let book = catalog
        .prices
        .book(&goal.region)
        .map_err(EvaluateError::from)?;
    Ok(PlanReport {
        schema: SCHEMA,
        goal: goal.clone(),
        prices: book.stamp(catalog.today),
        charts: charts(catalog, goal, &ranking),
        ranking,
    })
}
