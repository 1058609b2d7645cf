//! The options of AWS's LMI containers (DJL Serving), understood as foretype's own: `OPTION_*` variables and the file
//! `serving.properties` in the model's folder. As there, the file overrides the variables.
//!
//! An option is a default of a flag: what the command line or foretype's own variables say comes first. One that asks
//! for what foretype doesn't do is refused, and so is one that nobody knows.

use std::collections::BTreeMap;
use std::path::Path;

/// The file in a model's folder.
const FILE: &str = "serving.properties";

/// What the options come to.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Options {
    /// The model, if an option names one.
    pub model: Option<String>,
    /// Defaults of flags, by the ids of their arguments.
    pub defaults: Vec<(&'static str, String)>,
    /// The options that change nothing, for the log.
    pub unused: Vec<String>,
}

/// What one option means.
enum Meaning {
    /// The model.
    Model,
    /// The model's version.
    Revision,
    /// The default of a flag.
    Flag(&'static str, String),
    /// What foretype does anyway.
    Nothing,
}

/// An option: its name in `serving.properties` without `option.`, how it was written, and its value.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Setting {
    written: String,
    value: String,
}

/// The options of the environment, and of the file in the folder `model` if there is one.
///
/// # Errors
/// An option is refused, or the file can't be read.
pub(super) fn read(variables: impl Iterator<Item = (String, String)>, model: Option<&Path>) -> Result<Options, String> {
    let mut settings = BTreeMap::new();
    for (variable, value) in variables {
        if let Some(name) = name_of_variable(&variable) {
            settings.insert(name, Setting { written: variable, value });
        }
    }
    if let Some(path) = model.map(|folder| folder.join(FILE)).filter(|path| path.is_file()) {
        let text = std::fs::read_to_string(&path).map_err(|error| format!("can't read {}: {error}", path.display()))?;
        settings.extend(properties(&text)?);
    }
    understand(&settings)
}

/// The option that an environment variable sets.
fn name_of_variable(variable: &str) -> Option<String> {
    match variable {
        "HF_MODEL_ID" => Some("model_id".into()),
        "HF_REVISION" => Some("revision".into()),
        "SERVING_MIN_WORKERS" | "SERVING_MAX_WORKERS" | "SERVING_JOB_QUEUE_SIZE" => {
            variable.strip_prefix("SERVING_").map(str::to_lowercase)
        }
        _ => variable.strip_prefix("OPTION_").map(str::to_lowercase),
    }
}

/// The lines of a file of properties: `name=value` or `name: value`; `#` and `!` begin comments.
fn properties(text: &str) -> Result<Vec<(String, Setting)>, String> {
    let lines = text.lines().map(str::trim).zip(1..);
    let lines = lines.filter(|(line, _)| !line.is_empty() && !line.starts_with(['#', '!']));
    lines
        .map(|(line, number)| {
            let (name, value) = line
                .split_once(['=', ':'])
                .ok_or_else(|| format!("{FILE}, line {number}: '{line}' should be NAME=VALUE"))?;
            let written = format!("{} of {FILE}", name.trim());
            let name = name.trim().strip_prefix("option.").unwrap_or(name.trim());
            Ok((in_snake_case(name), Setting { written, value: value.trim().to_owned() }))
        })
        .collect()
}

/// A name as handlers write theirs: DJL's own are in camel case, and those of workers may name a device before.
fn in_snake_case(name: &str) -> String {
    match name.strip_prefix("gpu.").or(name.strip_prefix("cpu.")).unwrap_or(name) {
        "minWorkers" => "min_workers".into(),
        "maxWorkers" => "max_workers".into(),
        "maxIdleTime" => "max_idle_time".into(),
        "batchSize" => "batch_size".into(),
        "maxBatchDelay" => "max_batch_delay".into(),
        "jobQueueSize" => "job_queue_size".into(),
        name => name.to_lowercase(),
    }
}

fn understand(settings: &BTreeMap<String, Setting>) -> Result<Options, String> {
    let (mut options, mut revision) = (Options::default(), None);
    for (name, setting) in settings {
        match meaning(name, &setting.value).map_err(|right| refusal(setting, &right))? {
            Meaning::Model => options.model = Some(setting.value.clone()),
            Meaning::Revision => revision = Some(setting),
            Meaning::Flag(flag, value) => options.defaults.push((flag, value)),
            Meaning::Nothing => options.unused.push(format!("{}={}", setting.written, setting.value)),
        }
    }
    options.defaults = workers(options.defaults)?;
    if let Some(revision) = revision {
        let model = options.model.as_mut();
        let hub = model.filter(|model| !model.contains("://") && !model.contains('@'));
        let hub = hub.ok_or_else(|| refusal(revision, "it goes with a model_id of the Hugging Face Hub"))?;
        *hub = format!("{hub}@{}", revision.value);
    }
    Ok(options)
}

/// Puts the fewest and the most workers together: replicas are one flag.
fn workers(defaults: Vec<(&'static str, String)>) -> Result<Vec<(&'static str, String)>, String> {
    let (least, mut defaults): (Vec<_>, Vec<_>) = defaults.into_iter().partition(|(flag, _)| *flag == "min_workers");
    let most = defaults.iter_mut().find(|(flag, _)| *flag == "replicas");
    match (least.into_iter().next(), most) {
        (Some((_, least)), Some((_, most))) => {
            // Both are numbers by now.
            if least.parse::<u32>().ok() > most.parse::<u32>().ok() {
                return Err(format!("minWorkers is {least}, and maxWorkers is {most}: it should be at least as many"));
            }
            *most = format!("{least}..{most}");
        }
        (Some((_, least)), None) => defaults.push(("replicas", least)),
        (None, _) => {}
    }
    Ok(defaults)
}

fn refusal(setting: &Setting, right: &str) -> String {
    format!("{} is '{}': {right}", setting.written, setting.value)
}

/// What an option means; or what would be right.
fn meaning(name: &str, value: &str) -> Result<Meaning, String> {
    let number = |flag| match value.parse::<u32>() {
        Ok(number @ 1..) => Ok(Meaning::Flag(flag, number.to_string())),
        _ => Err("it should be a whole number of at least 1".to_owned()),
    };
    match name {
        "model_id" | "s3url" => Ok(Meaning::Model),
        "revision" => Ok(Meaning::Revision),
        "max_rolling_batch_size" => number("max_batch"),
        "max_rolling_batch_prefill_tokens" => number("step_tokens"),
        "max_model_len" => number("context"),
        "job_queue_size" => number("max_queued"),
        "max_workers" => number("replicas"),
        "min_workers" => match value.parse::<u32>() {
            Ok(least) => Ok(Meaning::Flag("min_workers", least.to_string())),
            Err(_) => Err("it should be a whole number".to_owned()),
        },
        "max_idle_time" => match value.parse::<u32>() {
            Ok(seconds) => Ok(Meaning::Flag("max_idle_time_ms", (u64::from(seconds) * 1000).to_string())),
            Err(_) => Err("it should be a whole number of seconds".to_owned()),
        },
        // Requests share the steps of a model as they come, so there is no batch to wait for.
        "batch_size" | "max_batch_delay" => match value.parse::<u32>() {
            Ok(_) => Ok(Meaning::Nothing),
            Err(_) => Err("it should be a whole number".to_owned()),
        },
        "dtype" | "quantize" => precision(value),
        "tensor_parallel_degree" | "pipeline_parallel_degree" => match value {
            "1" | "max" => Ok(Meaning::Nothing),
            _ => Err("a model isn't split over devices; use 1, and max_workers for more replicas".into()),
        },
        "task" if value != "text-generation" && value != "text2text-generation" => {
            Err("foretype serves text-generation and text2text-generation".into())
        }
        "entrypoint" if !value.starts_with("djl_python.") && !value.is_empty() => {
            Err("foretype runs no Python, so that it can't run a handler of your own; leave it out".into())
        }
        "trust_remote_code" if value.eq_ignore_ascii_case("true") => {
            Err("foretype runs no code that comes with a model; use false".into())
        }
        "speculative_draft_model" | "enable_lora" | "adapters" | "output_formatter" | "translatorfactory" => {
            Err("foretype has nothing like it; leave it out".into())
        }
        "task"
        | "entrypoint"
        | "trust_remote_code"
        | "engine"
        | "rolling_batch"
        | "model_loading_timeout"
        | "enable_streaming"
        | "device_map"
        | "load_on_devices"
        | "low_cpu_mem_usage"
        | "log_request_metric"
        | "metrics_aggregation"
        | "mpi_mode"
        | "async_mode" => Ok(Meaning::Nothing),
        _ => Err("foretype knows no such option; leave it out, or see docs/clients.md for those that there are".into()),
    }
}

/// How weights are stored: `dtype` and `quantize`.
fn precision(value: &str) -> Result<Meaning, String> {
    match value.to_lowercase().as_str() {
        "int8" | "bitsandbytes8" | "dynamic_int8" => Ok(Meaning::Flag("quantize", "int8".into())),
        // The engine chooses: f32 on a CPU, f16 on a GPU.
        "" | "auto" | "none" | "fp32" | "float32" | "fp16" | "float16" | "bf16" | "bfloat16" => Ok(Meaning::Nothing),
        _ => Err("it should be auto, fp32, fp16, bf16 or int8".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(variables: &[(&str, &str)], file: &str) -> Result<Options, String> {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(FILE), file).unwrap();
        let variables = variables.iter().map(|&(name, value)| (name.to_owned(), value.to_owned()));
        read(variables, Some(folder.path()))
    }

    #[test]
    fn options_become_defaults_of_flags() {
        let file = "# LMI\nengine=Python\noption.model_id=org/tiny\noption.revision=v1\noption.dtype: int8\n\
                    option.max_rolling_batch_size=16\nmaxWorkers=2\noption.tensor_parallel_degree=1\n";
        let options = of(&[("OPTION_MAX_ROLLING_BATCH_SIZE", "8"), ("OPTION_MAX_MODEL_LEN", "64")], file).unwrap();
        assert_eq!(options.model.as_deref(), Some("org/tiny@v1"));
        let expected = [("quantize", "int8"), ("context", "64"), ("max_batch", "16"), ("replicas", "2")];
        assert_eq!(options.defaults, expected.map(|(flag, value)| (flag, value.to_owned())));
        let unused = ["engine of serving.properties=Python", "option.tensor_parallel_degree of serving.properties=1"];
        assert_eq!(options.unused, unused);
        let variables = [("HF_MODEL_ID", "s3://bucket/a"), ("SERVING_JOB_QUEUE_SIZE", "9"), ("OPTIONAL", "x")];
        let options = of(&variables, "").unwrap();
        assert_eq!(
            (options.model.as_deref(), options.defaults),
            (Some("s3://bucket/a"), vec![("max_queued", "9".into())])
        );
    }

    #[test]
    fn settings_of_djls_workers_are_understood() {
        let file =
            "gpu.minWorkers=1\ngpu.maxWorkers=3\nmaxIdleTime=60\nbatchSize=8\nmaxBatchDelay=100\njobQueueSize=500\n";
        let options = of(&[], file).unwrap();
        let expected = [("max_queued", "500"), ("max_idle_time_ms", "60000"), ("replicas", "1..3")];
        assert_eq!(options.defaults, expected.map(|(flag, value)| (flag, value.to_owned())));
        let unused: Vec<&str> = options.unused.iter().filter_map(|unused| unused.split(' ').next()).collect();
        assert_eq!(unused, ["batchSize", "maxBatchDelay"]);
        assert_eq!(of(&[], "minWorkers=2").unwrap().defaults, [("replicas", "2".to_owned())]);
        assert!(of(&[], "minWorkers=3\nmaxWorkers=2").unwrap_err().contains("at least as many"));
        for name in ["minWorkers", "maxWorkers", "batchSize", "maxBatchDelay", "maxIdleTime", "jobQueueSize"] {
            let refused = of(&[], &format!("{name}=many")).unwrap_err();
            assert!(refused.starts_with(name) && refused.contains("a whole number"), "{refused}");
        }
    }

    #[test]
    fn what_is_not_done_is_refused_in_words() {
        for (file, right) in [
            ("option.tensor_parallel_degree=4", "a model isn't split over devices"),
            ("option.dtype=fp8", "it should be auto, fp32, fp16, bf16 or int8"),
            ("option.max_rolling_batch_size=many", "a whole number of at least 1"),
            ("option.entryPoint=model.py", "runs no Python"),
            ("option.trust_remote_code=true", "no code that comes with a model"),
            ("option.task=feature-extraction", "text-generation"),
            ("option.frobnicate=1", "no such option"),
            ("option.model_id=s3://bucket/a\noption.revision=v1", "goes with a model_id of the Hugging Face Hub"),
            ("engine Python", "serving.properties, line 1: 'engine Python' should be NAME=VALUE"),
        ] {
            let refused = of(&[], file).unwrap_err();
            assert!(refused.contains(right), "{file}: {refused}");
        }
        let refused = of(&[("OPTION_DTYPE", "fp8")], "").unwrap_err();
        assert!(refused.starts_with("OPTION_DTYPE is 'fp8': "), "{refused}");
    }
}
