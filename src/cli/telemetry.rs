//! Where logs and spans go.

use std::error::Error;
use std::io::IsTerminal;

use tracing::Subscriber;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer};

/// How log lines are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// Lines for people.
    Text,
    /// One JSON object a line, for log collectors.
    Json,
}

/// Sends out what is buffered when dropped.
#[must_use]
pub struct Telemetry {
    #[cfg(feature = "opentelemetry")]
    spans: Option<opentelemetry_sdk::trace::SdkTracerProvider>,
}

/// Logs to standard error and, with the feature `opentelemetry`, sends spans to where `OTEL_EXPORTER_OTLP_ENDPOINT`
/// says.
///
/// # Errors
/// The endpoint can't be used.
pub fn start(format: LogFormat) -> Result<Telemetry, Box<dyn Error>> {
    let registry = tracing_subscriber::registry().with(log(format));
    #[cfg(feature = "opentelemetry")]
    {
        let spans = spans::provider()?;
        registry.with(spans.as_ref().map(spans::layer)).init();
        Ok(Telemetry { spans })
    }
    #[cfg(not(feature = "opentelemetry"))]
    {
        registry.init();
        Ok(Telemetry {})
    }
}

/// Lines on standard error, plain where it is no terminal: log collectors show colour codes as noise.
fn log<S: Subscriber + for<'a> LookupSpan<'a>>(format: LogFormat) -> impl Layer<S> {
    let filter = EnvFilter::try_from_env("FORETYPE_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let stderr = std::io::stderr;
    let lines = tracing_subscriber::fmt::layer().with_writer(stderr).with_target(false);
    match format {
        LogFormat::Text => lines.with_ansi(stderr().is_terminal()).with_filter(filter).boxed(),
        LogFormat::Json => {
            lines.json().flatten_event(true).with_current_span(false).with_span_list(false).with_filter(filter).boxed()
        }
    }
}

#[cfg(feature = "opentelemetry")]
mod spans {
    use std::error::Error;

    use opentelemetry::trace::TracerProvider;
    use opentelemetry_sdk::Resource;
    use opentelemetry_sdk::trace::SdkTracerProvider;
    use tracing::level_filters::LevelFilter;
    use tracing_subscriber::Layer;
    use tracing_subscriber::filter::Targets;
    use tracing_subscriber::registry::LookupSpan;

    /// Sends spans in batches from a thread of its own; `None` if no endpoint is named.
    pub fn provider() -> Result<Option<SdkTracerProvider>, Box<dyn Error>> {
        let is_named = ["OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"]
            .iter()
            .any(|name| std::env::var_os(name).is_some());
        if !is_named {
            return Ok(None);
        }
        let exporter = opentelemetry_otlp::SpanExporter::builder().with_http().build()?;
        let resource = Resource::builder().with_service_name("foretype").build();
        Ok(Some(SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource).build()))
    }

    /// Spans of this crate only: those of the exporter would make more of themselves.
    pub fn layer<S: tracing::Subscriber + for<'a> LookupSpan<'a>>(
        provider: &SdkTracerProvider,
    ) -> impl Layer<S> + use<S> {
        let only_ours = Targets::new().with_target("foretype", LevelFilter::DEBUG);
        tracing_opentelemetry::layer().with_tracer(provider.tracer("foretype")).with_filter(only_ours)
    }
}

#[cfg(feature = "opentelemetry")]
impl Drop for Telemetry {
    fn drop(&mut self) {
        if let Some(Err(error)) = self.spans.as_ref().map(|spans| spans.shutdown()) {
            tracing::warn!(%error, "the last spans could not be sent");
        }
    }
}
