//! Writes pages to `plan-*.html` in the folder for tests' files, where scripts/plan-page looks at them,
//! and holds that no text of a report is markup.

use std::fs;
use std::path::Path;

use cairn_plan::catalog::Catalog;
use cairn_plan::goal::{Goal, Workload};
use cairn_plan::page::html;
use cairn_plan::plan;
use cairn_plan::reliability::Availability;
use cairn_plan::report::{PlanReport, Protocol};
use cairn_plan::units::{Bytes, Rate, Usd};

const HOSTILE: &str =
    "</script><script>alert(1)</script><img src=x onerror=alert(1)>\"' onload=\"x\u{202e}";

pub fn goal(capacity_tib: f64, read_mb_s: f64, write_mb_s: f64) -> Goal {
    Goal {
        capacity_bytes: Bytes::from_tib(capacity_tib),
        read_mb_s: Some(Rate::from_mb_s(read_mb_s)),
        write_mb_s: Some(Rate::from_mb_s(write_mb_s)),
        iops: None,
        write_iops: None,
        latency_ms: None,
        clients: Some(16),
        protocols: vec![Protocol::Nfs],
        survive: 2,
        namespaces: 1,
        availability: Availability::default(),
        host: None,
        region: "us-east-1".to_string(),
        budget_month_usd: None,
        hot_share: None,
        growth_per_year: 0.0,
        years: 0,
        workload: Workload::Streaming,
        include_planned: true,
    }
}

fn write(name: &str, report: &PlanReport) -> String {
    let page = html(report);
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("plan-{name}.html"));
    fs::write(file, &page).unwrap();
    page
}

#[test]
fn pages_are_whole_and_offline() {
    let catalog = Catalog::embedded();
    for (name, goal) in [
        ("large", goal(200.0, 6000.0, 2000.0)),
        ("small", goal(10.0, 300.0, 200.0)),
        (
            "nothing",
            Goal {
                budget_month_usd: Some(Usd(1.0)),
                ..goal(200.0, 6000.0, 2000.0)
            },
        ),
    ] {
        let report = plan(&catalog, &goal).unwrap();
        let page = write(name, &report);
        assert_eq!(
            page.contains("Nothing fits"),
            report.ranking.fits.is_empty(),
            "{name}"
        );
        for fit in &report.ranking.fits {
            assert!(
                page.contains(&fit.evaluation.cost.month_usd.to_string()),
                "{name}: {}",
                fit.evaluation.name
            );
        }
        // Nothing is fetched: no address in an attribute or a style.
        for fetch in [" src=", " href=", "url(", "@import"] {
            assert!(!page.contains(fetch), "{name}: {fetch}");
        }
        assert!(page.ends_with("</html>\n"), "{name}");
    }
}

#[test]
fn no_text_is_markup() {
    let catalog = Catalog::embedded();
    let mut report = plan(&catalog, &goal(200.0, 6000.0, 2000.0)).unwrap();
    report.goal.region = HOSTILE.to_string();
    report.prices.source = HOSTILE.to_string();
    report.ranking.unpriced = vec![HOSTILE.to_string()];
    for fit in &mut report.ranking.fits {
        fit.why = HOSTILE.to_string();
        fit.growth = HOSTILE.to_string();
        fit.evaluation.name = HOSTILE.to_string();
        fit.evaluation.notes = vec![HOSTILE.to_string()];
        fit.evaluation.survives_words = HOSTILE.to_string();
        fit.evaluation.performance.seq_read.bottleneck.words = HOSTILE.to_string();
    }
    for miss in &mut report.ranking.misses {
        miss.broken.words = HOSTILE.to_string();
    }
    for chart in &mut report.charts {
        chart.title = HOSTILE.to_string();
        chart.words = HOSTILE.to_string();
        chart.x_label = HOSTILE.to_string();
        chart
            .x_names
            .iter_mut()
            .for_each(|name| *name = HOSTILE.to_string());
        chart
            .series
            .iter_mut()
            .for_each(|series| series.name = HOSTILE.to_string());
    }
    let page = write("hostile", &report);
    assert!(!page.contains("<img") && !page.contains("alert(1)</script>"));
    // The data, the library, what all pages share, the page's own.
    assert_eq!(page.matches("<script").count(), 4);
    assert_eq!(page.matches("</script").count(), 4);
    assert!(!page.contains('\u{202e}'));
}
