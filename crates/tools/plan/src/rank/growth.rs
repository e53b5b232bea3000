//! How a design grows: its next step, and what each year costs when capacity is bought as it is needed.
//!
//! Owns: which size a year has. Must not know: the order.

use super::*;

/// The next step of a design, with what it adds and costs.
pub(super) fn growth(
    catalog: &Catalog,
    goal: &Goal,
    it: &Evaluation,
    years: &[GrowthYear],
) -> String {
    let mut words = match crate::whatif::grow(catalog, &it.design) {
        Some((step, after)) => format!(
            "{step}: {} usable (+{}), {} a month more",
            after.capacity.usable_bytes.value,
            Bytes::new(
                (after.capacity.usable_bytes.value.get() - it.capacity.usable_bytes.value.get())
                    .max(0.0)
            ),
            Usd(after.cost.month_usd.0 - it.cost.month_usd.0)
        ),
        None => "at its largest: the next step is another design".to_owned(),
    };
    if goal.growth_per_year > 0.0 {
        let fits_years = (0..=crate::goal::YEARS_MAX)
            .take_while(|years| {
                goal.capacity_after(*years).get()
                    <= it.capacity.usable_bytes.value.get() * 1.000_001
            })
            .count()
            .saturating_sub(1);
        words += &format!(
            "; at {}% a year it is full after {fits_years} years",
            number(goal.growth_per_year * 100.0)
        );
    }
    if !years.is_empty() {
        let each: Vec<String> = years
            .iter()
            .map(|of| {
                format!(
                    "year {} {} a month, {} a year for {}",
                    of.year, of.month_usd, of.year_usd, of.usable_bytes
                )
            })
            .collect();
        let total: Usd = years.iter().map(|of| of.year_usd).sum();
        let at_once = it.cost.month_usd.0 * 12.0 * years.len() as f64;
        words += &format!(
            "; bought when needed: {}; {total} together, {} less than all at once",
            each.join("; "),
            Usd((at_once - total.0).max(0.0))
        );
    }
    words
}

/// What each year costs when capacity is bought as it is needed: in every year the smallest design of this
/// kind that holds what is there at its end and meets the other goals, too.
pub(super) fn growth_years(catalog: &Catalog, goal: &Goal, it: &Evaluation) -> Vec<GrowthYear> {
    if goal.growth_per_year <= 0.0 {
        return Vec::new();
    }
    let usable = it.capacity.usable_bytes.value;
    let of = |year: u32| {
        let of_year = Goal {
            capacity_bytes: goal.capacity_after(year),
            growth_per_year: 0.0,
            years: 0,
            ..goal.clone()
        };
        // Rates may need more than the capacity does.
        let smaller = (year..=goal.years).find_map(|later| {
            let factor = goal.capacity_after(later).get() / usable.get();
            let design = crate::whatif::scaled(catalog, &it.design, factor.min(1.0))?;
            if !crate::check::violations(catalog, &design).is_empty() {
                return None;
            }
            let mut evaluation = evaluate(catalog, &design).ok()?;
            add_needs(catalog, goal, &mut evaluation);
            let cheaper = evaluation.cost.month_usd.0 <= it.cost.month_usd.0;
            let fits = worst(&kept(catalog, &of_year, &evaluation)).is_none();
            (fits && cheaper).then_some(evaluation)
        });
        smaller.unwrap_or_else(|| it.clone())
    };
    (1..=goal.years)
        .map(|year| {
            let evaluation = of(year);
            GrowthYear {
                year,
                needed_bytes: goal.capacity_after(year),
                usable_bytes: evaluation.capacity.usable_bytes.value,
                month_usd: evaluation.cost.month_usd,
                year_usd: evaluation.cost.month_usd.times(12.0),
                name: evaluation.name,
            }
        })
        .collect()
}
