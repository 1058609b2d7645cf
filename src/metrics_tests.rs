//! What the metrics count, and their reference.

use std::collections::BTreeSet;

use super::*;

/// The text of metrics of which every one has a sample.
fn sampled() -> String {
    let metrics = Metrics::new();
    let model = metrics.model("demo");
    model.ended(RequestOutcome::Complete);
    model.replica(0).stepped(StepReport { took: Duration::ZERO, rows: 3, positions: 7, lookahead: false });
    metrics.http_request("/ping", 200, 0.001);
    metrics.cpu_level("avx2");
    metrics.gpu_unused("driver");
    metrics.connections(2);
    metrics.render()
}

#[test]
fn the_series_of_a_model_go_with_its_last_engine_and_no_other() {
    let metrics = Metrics::new();
    let (first, again, other) = (metrics.model("a"), metrics.model("a"), metrics.model("b"));
    for model in [&first, &other] {
        model.ended(RequestOutcome::Complete);
        // All series of a replica.
        model.replica(3).dequeued(Duration::ZERO);
    }
    let of = |model: &str| metrics.render().matches(&format!("model=\"{model}\"")).count();
    let before = of("b");
    assert!(before > 20 && of("a") == before);
    drop(first);
    assert_eq!(of("a"), before, "a model that is loaded again has its series");
    drop(again);
    assert_eq!((of("a"), of("b")), (0, before));
}

#[test]
fn everything_is_registered_once_and_shows_in_the_text() {
    let text = sampled();
    for line in [
        "foretype_requests_total{model=\"demo\",outcome=\"complete\"} 1",
        "foretype_step_rows_bucket{model=\"demo\",replica=\"0\",le=\"4\"} 1",
        "foretype_positions_computed_total{model=\"demo\",replica=\"0\"} 7",
        "foretype_http_requests_total{route=\"/ping\",status=\"200\"} 1",
        "process_resident_memory_bytes ",
        "foretype_build_info{version=",
        "foretype_cpu_info{level=\"avx2\"} 1",
    ] {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
}

/// The first three cells of a metric's row in the reference: name, type, labels.
fn row(name: &str, text: &str) -> Option<String> {
    let kind = text.split(&format!("# TYPE {name} ")).nth(1)?.lines().next()?;
    let sample = text.lines().find(|line| line.starts_with(name))?;
    let labels = sample.split(['{', '}']).nth(1).unwrap_or_default();
    let labels: Vec<&str> = labels.split(',').filter_map(|label| label.split('=').next()).collect();
    let labels: Vec<&str> = labels.into_iter().filter(|label| *label != "le").collect();
    Some(format!("| `{name}` | {kind} | {} |", labels.join(", ")))
}

#[test]
fn the_reference_of_metrics_has_a_row_for_every_metric_and_no_other() {
    // The names in this file, so that a metric without a sample is missed too.
    let code = include_str!("metrics.rs").split("#[cfg(test)]").next().unwrap();
    let is_name =
        |text: &&str| text.starts_with("foretype_") && text.chars().all(|c| c == '_' || c.is_ascii_lowercase());
    let names: BTreeSet<&str> = code.split('"').filter(is_name).collect();
    let text = sampled();
    let of_server: BTreeSet<String> =
        names.iter().map(|name| row(name, &text).unwrap_or_else(|| panic!("{name} has no sample here"))).collect();

    let reference = include_str!("../docs/operations.md").lines().filter(|line| line.starts_with("| `foretype_"));
    let of_reference: BTreeSet<String> =
        reference.map(|line| line.splitn(5, '|').take(4).collect::<Vec<_>>().join("|") + "|").collect();
    let missing: Vec<_> = of_server.difference(&of_reference).collect();
    let stale: Vec<_> = of_reference.difference(&of_server).collect();
    assert!(
        missing.is_empty() && stale.is_empty(),
        "docs/operations.md lacks {missing:#?} and has {stale:#?}, which the server has not"
    );
}
