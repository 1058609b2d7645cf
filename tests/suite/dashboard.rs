//! The Grafana dashboard in `deploy/grafana` names only metrics in the list beside it, all of them, and each as its
//! type allows.

use scheduler::observer::Observer as _;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use serde_json::Value;

use crate::support::repository;

/// Labels that Prometheus itself adds.
const ADDED: [&str; 2] = ["instance", "job"];

struct Metric {
    kind: String,
    labels: BTreeSet<String>,
}

fn listed() -> BTreeMap<String, Metric> {
    let text = fs::read_to_string(repository("deploy/grafana/metrics.txt")).unwrap();
    let metric = |line: &str| {
        let mut words = line.split_whitespace();
        let (name, kind) = (words.next().unwrap().to_owned(), words.next().unwrap().to_owned());
        let own = words.next().unwrap_or_default().split(',').filter(|label| !label.is_empty());
        (name, Metric { kind, labels: own.chain(ADDED).map(str::to_owned).collect() })
    };
    text.lines().filter(|line| !line.starts_with('#')).map(metric).collect()
}

/// All strings under a key, wherever it is.
fn strings<'a>(value: &'a Value, key: &str, found: &mut Vec<&'a str>) {
    match value {
        Value::Object(fields) => {
            found.extend(fields.get(key).and_then(Value::as_str));
            fields.values().for_each(|value| strings(value, key, found));
        }
        Value::Array(items) => items.iter().for_each(|value| strings(value, key, found)),
        _ => {}
    }
}

/// The metrics that an expression names, with the selector behind each.
fn named(expression: &str) -> Vec<(&str, &str)> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let starts = expression.match_indices(is_part).map(|(at, _)| at);
    let starts = starts.filter(|&at| at == 0 || !expression[..at].ends_with(is_part));
    let word = |at: usize| {
        let rest = &expression[at..];
        let (name, behind) = rest.split_at(rest.find(|c| !is_part(c)).unwrap_or(rest.len()));
        let selector = behind.strip_prefix('{').and_then(|behind| behind.split('}').next()).unwrap_or_default();
        (name, selector)
    };
    starts.map(word).filter(|(name, _)| name.starts_with("foretype_") || name.starts_with("process_")).collect()
}

/// The listed metric of a series; a histogram's series are its buckets, sum and count, and nothing else.
fn metric_of<'a>(listed: &'a BTreeMap<String, Metric>, series: &'a str) -> Option<(&'a str, &'a Metric)> {
    let base = ["_bucket", "_sum", "_count"].iter().find_map(|suffix| series.strip_suffix(suffix));
    let of_histogram =
        base.and_then(|base| Some((base, listed.get(base).filter(|metric| metric.kind == "histogram")?)));
    of_histogram.or_else(|| Some((series, listed.get(series).filter(|metric| metric.kind != "histogram")?)))
}

#[test]
fn the_dashboard_names_the_listed_metrics_and_no_other() {
    let listed = listed();
    let dashboard: Value =
        serde_json::from_slice(&fs::read(repository("deploy/grafana/foretype.json")).unwrap()).unwrap();
    let (mut expressions, mut variables) = (Vec::new(), Vec::new());
    strings(&dashboard, "expr", &mut expressions);
    strings(&dashboard, "definition", &mut variables);
    assert!(expressions.len() > 20 && variables.len() == 2);
    let mut used = BTreeSet::new();
    for expression in expressions.iter().chain(&variables) {
        for (series, selector) in named(expression) {
            let found = metric_of(&listed, series);
            let (name, metric) = found.unwrap_or_else(|| panic!("{series} is not listed: {expression}"));
            used.insert(name);
            let labels = selector.split(',').filter_map(|matcher| matcher.split(['=', '!']).next());
            for label in labels.map(str::trim).filter(|label| !label.is_empty()) {
                assert!(metric.labels.contains(label), "{series} has no label {label}: {expression}");
            }
            let is_rate = expression.contains("rate(") || expression.contains("increase(");
            assert!(metric.kind == "gauge" || is_rate, "{series} only ever grows: {expression}");
        }
    }
    let unused: Vec<&String> = listed.keys().filter(|name| !used.contains(name.as_str())).collect();
    assert!(unused.is_empty(), "nothing shows {unused:?}");
}

#[test]
fn every_listed_metric_is_one_that_the_server_has() {
    let metrics = foretype::metrics::Metrics::new();
    let model = metrics.model("demo");
    let _replica = model.replica(0);
    model.ended(foretype::metrics::RequestOutcome::Complete);
    metrics.http_request("/ping", 200, 0.001);
    metrics.cpu_level("avx2");
    let text = metrics.render();
    for (name, metric) in listed() {
        assert!(text.contains(&format!("# TYPE {name} {}\n", metric.kind)), "the server has no {} {name}", metric.kind);
        let mut samples = text.lines().filter(|line| line.starts_with(&name));
        let labels: Vec<&String> = metric.labels.iter().filter(|label| !ADDED.contains(&label.as_str())).collect();
        let has_all = |line: &str| labels.iter().all(|label| line.contains(&format!("{label}=\"")));
        assert!(samples.any(has_all), "{name} lacks one of {labels:?}");
    }
}
