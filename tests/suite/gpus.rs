//! Replicas on all GPUs of a machine, on the stand-in with two devices: each has its memory on its own device, and all
//! answer alike.

use backends::choice::{Device, LibraryPaths, Wanted, find};
use backends::options::BackendOptions;
use backends::tensorrt::Options;
use foretype::engine::{Completion, Engine, EngineOptions, RequestOptions};
use foretype::metrics::Metrics;
use scheduler::{PoolOptions, Replicas};
use tensorrt::Flavour;

use crate::simulator::Simulator;
use crate::support::{backend_options, request_options};
use crate::tensorrt::{bundle, options, shapes};

fn suggest(engine: &Engine, input: &str) -> Vec<String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let completion = Completion { input: input.into(), ..Completion::default() };
    let answer = runtime.block_on(engine.complete(&completion)).unwrap();
    answer.result.suggestions.into_iter().map(|suggestion| suggestion.text).collect()
}

#[test]
fn all_gpus_are_counted_for_every_engine_that_runs_on_one() {
    let simulator = Simulator::new(Flavour::Rtx);
    simulator.stand_in.device(2, 86, 1 << 30);
    let paths = LibraryPaths { driver: Some(&simulator.stand_in.cuda), library: Some(&simulator.path) };
    let found = |wanted, device| find(paths, (wanted, device), (None, false));
    for wanted in [Wanted::OnnxRuntime, Wanted::TensorRtRtx, Wanted::Auto] {
        assert_eq!(found(wanted, Some(Device::AllCuda)).devices, 2, "{wanted:?}");
    }
    assert!(found(Wanted::Auto, None).tensorrt_rtx.is_ok());
    assert!(found(Wanted::OnnxRuntime, Some(Device::AllCuda)).tensorrt_rtx.is_err(), "nobody asked for it");
    assert_eq!(found(Wanted::OnnxRuntime, None).devices, 0, "on the CPU nothing is looked for");
    assert_eq!(found(Wanted::Auto, Some(Device::Cpu)).devices, 0);
}

#[test]
fn replicas_take_turns_on_the_devices_and_answer_alike() {
    let (_folder, bundle, manifest) = bundle("models/demo");
    let load = |backend: BackendOptions, replicas| {
        let requests = request_options();
        let requests =
            RequestOptions { pool: PoolOptions { replicas: Replicas::fixed(replicas), ..requests.pool }, ..requests };
        Engine::load(&bundle, &manifest, &EngineOptions { backend, requests }, &Metrics::new()).unwrap()
    };
    let reference = load(backend_options().into(), 1);
    let simulator = Simulator::new(Flavour::Enterprise);
    simulator.stand_in.device(2, 86, 1 << 30);
    simulator.write_plan(&bundle, &manifest, shapes(&manifest));
    let on_both = Options { devices: 2, ..options(&simulator, &bundle) };
    let used = || [simulator.stand_in.used(0), simulator.stand_in.used(1)];

    let one = load(BackendOptions::TensorRt(on_both.clone()), 1);
    let [single, none] = used();
    assert!(single > 0 && none == 0, "{single} {none}");
    drop(one);
    let engine = load(BackendOptions::TensorRt(on_both.clone()), 2);
    assert_eq!(used(), [single; 2]);
    for input in ["lithium ion", "wireless char", "a method of manuf", "heat exch"] {
        // Different sessions' requests are spread over the replicas.
        let answers: Vec<_> = (0..3).map(|_| suggest(&engine, input)).collect();
        assert!(answers.iter().all(|answer| *answer == suggest(&reference, input)), "{input}: {answers:?}");
    }
    drop(engine);
    let engine = load(BackendOptions::TensorRt(Options { device: 1, devices: 1, ..on_both.clone() }), 1);
    assert_eq!(used(), [0, single]);
    drop(engine);
    let engine = load(BackendOptions::TensorRt(on_both), 3);
    assert_eq!(used(), [2 * single, single]);
    drop(engine);
    assert_eq!((simulator.alive(), simulator.stand_in.alive(), used()), (0, 0, [0, 0]));
}
