//! What TensorRT refuses, the simulator refuses, and the reason arrives: each once.

use std::sync::Arc;

use backends::cuda::{DeviceMemory, Driver, Stream};
use tensorrt::{
    Context, ContextOptions, DevicePtr, Engine, Error, Flavour, Library, Runtime, ScratchMemory, TensorName,
};

use crate::simulator::Simulator;
use crate::tensorrt::{bundle, shapes};

struct Bench {
    context: Context,
    memory: DeviceMemory,
    stream: Arc<Stream>,
    tensors: Vec<tensorrt::IoTensor>,
}

fn name(text: &str) -> TensorName {
    TensorName::new(text).unwrap()
}

fn engine(simulator: &Simulator, plan: &[u8]) -> Result<Engine, Error> {
    let library = Library::open(simulator.flavour, Some(&simulator.path))?;
    // SAFETY: the simulator checks its plans.
    unsafe { Runtime::new(&library)?.deserialize(plan) }
}

impl Bench {
    /// A context in the prefill profile, ready to run one row of one token.
    fn new(simulator: &Simulator, plan: &[u8]) -> Self {
        let stream = Driver::load(Some(&simulator.stand_in.cuda)).unwrap().open(0).unwrap().stream().unwrap();
        let engine = engine(simulator, plan).unwrap();
        let options = ContextOptions { scratch: ScratchMemory::UserManaged, ..ContextOptions::default() };
        let context = engine.context(&options).unwrap();
        let memory = DeviceMemory::new(&stream, 64 << 20).unwrap();
        let mut bench = Self { context, memory, stream, tensors: engine.tensors() };
        bench.profile(0).unwrap();
        for tensor in bench.tensors.clone().iter().filter(|tensor| tensor.is_input) {
            let shape: Vec<i64> = tensor.shape.iter().map(|extent| if *extent < 0 { 1 } else { *extent }).collect();
            bench.context.set_input_shape(&name(&tensor.name), &shape).unwrap();
        }
        for (index, tensor) in bench.tensors.clone().iter().enumerate() {
            let at = bench.tensors.iter().position(|t| Some(&t.name) == tensor.alias_of.as_ref()).unwrap_or(index);
            bench.place(&tensor.name, bench.memory.address() + ((at as u64) << 18)).unwrap();
        }
        let scratch = bench.memory.address() + (63 << 20);
        // SAFETY: inside the memory, which lives as long as the context, and used by nothing else.
        unsafe { bench.context.set_scratch(DevicePtr(scratch), 1 << 20) };
        bench
    }

    fn place(&mut self, tensor: &str, address: u64) -> Result<(), Error> {
        // SAFETY: the simulator checks addresses before it uses them.
        unsafe { self.context.set_address(&name(tensor), DevicePtr(address)) }
    }

    fn profile(&mut self, profile: usize) -> Result<(), Error> {
        // SAFETY: the stream lives as long as the context.
        unsafe { self.context.set_profile(profile, tensorrt::Stream(self.stream.raw())) }
    }

    fn enqueue(&mut self) -> Result<(), Error> {
        // SAFETY: the simulator checks everything that this relies on.
        unsafe { self.context.enqueue(tensorrt::Stream(self.stream.raw())) }
    }
}

#[track_caller]
fn refused<T>(result: Result<T, Error>, what: &str) {
    let said = result.err().unwrap().to_string();
    assert!(said.contains(what), "{said}");
}

#[test]
fn each_mistake_is_refused_with_its_reason() {
    let (_folder, bundle, manifest) = bundle("tests/goldens/relu");
    for flavour in Flavour::ALL {
        let simulator = Simulator::new(flavour);
        let plan = std::fs::read(simulator.write_plan(&bundle, &manifest, shapes(&manifest))).unwrap();
        let bench = || Bench::new(&simulator, &plan);
        let mut fine = bench();
        fine.enqueue().unwrap();
        fine.stream.synchronize().unwrap();

        refused(bench().context.set_input_shape(&name("input_ids"), &[17, 1]), "is outside profile 0");
        refused(bench().context.set_input_shape(&name("nothing"), &[1]), "there is no input nothing");
        refused(bench().profile(2), "there is no optimization profile 2");
        refused(bench().place("logits", fine.memory.address() + 8), "is not a multiple of 256");
        let mut moved = bench();
        moved.place("past_k_0", moved.memory.address() + (32 << 20)).unwrap();
        refused(moved.enqueue(), "present_k_0 is not at the address of past_k_0");
        let mut elsewhere = bench();
        elsewhere.place("logits", 0x1000).unwrap();
        refused(elsewhere.enqueue(), "is not in the device's memory");
        let mut switched = bench();
        switched.profile(1).unwrap();
        refused(switched.enqueue(), "the shape of input_ids is not set");
        refused(switched.context.set_input_shape(&name("input_ids"), &[1, 2]), "is outside profile 1");
        // SAFETY: refused before anything is used.
        refused(unsafe { bench().context.enqueue(tensorrt::Stream(std::ptr::null_mut())) }, "there is no stream");
        let mut over = bench();
        over.place("logits", over.memory.address() + (62 << 20)).unwrap();
        over.place("topv", over.memory.address() + (62 << 20) + 256).unwrap();
        refused(over.enqueue(), "logits and topv overlap");
        let mut crooked = bench();
        // SAFETY: refused before anything is used.
        unsafe { crooked.context.set_scratch(DevicePtr(crooked.memory.address() + 8), 1 << 20) };
        refused(crooked.enqueue(), "no scratch memory");
        let mut bare = bench();
        // SAFETY: no scratch memory is what is refused.
        unsafe { bare.context.set_scratch(DevicePtr(0), 0) };
        refused(bare.enqueue(), "no scratch memory");
    }
}

#[test]
fn addresses_and_captures_come_after_what_they_need() {
    let (_folder, bundle, manifest) = bundle("tests/goldens/relu");
    let simulator = Simulator::new(Flavour::Enterprise);
    let plan = std::fs::read(simulator.write_plan(&bundle, &manifest, shapes(&manifest))).unwrap();
    let engine = engine(&simulator, &plan).unwrap();
    let mut unset = engine.context(&ContextOptions::default()).unwrap();
    let ready = Bench::new(&simulator, &plan);
    for tensor in ready.tensors.iter().filter(|tensor| tensor.is_input) {
        unset.set_input_shape(&name(&tensor.name), &ready.context.shape(&name(&tensor.name)).unwrap()).unwrap();
    }
    // SAFETY: refused for want of addresses.
    refused(unsafe { unset.enqueue(tensorrt::Stream(ready.stream.raw())) }, "is not set");

    let mut cold = Bench::new(&simulator, &plan);
    let stream = Arc::clone(&cold.stream);
    let early = stream.capture(|| cold.enqueue().map_err(Failed::TensorRt)).err().unwrap();
    assert!(
        matches!(&early, Failed::TensorRt(error) if error.to_string().contains("captured before a run")),
        "{early:?}"
    );
    cold.enqueue().unwrap();
    stream.capture(|| cold.enqueue().map_err(Failed::TensorRt)).unwrap();
    stream.synchronize().unwrap();
}

#[derive(Debug)]
#[expect(dead_code, reason = "printed when the test fails")]
enum Failed {
    TensorRt(Error),
    Cuda(backends::cuda::CudaError),
}

impl From<backends::cuda::CudaError> for Failed {
    fn from(error: backends::cuda::CudaError) -> Self {
        Self::Cuda(error)
    }
}

#[test]
fn work_whose_context_or_memory_is_gone_fails_when_it_runs() {
    let (_folder, bundle, manifest) = bundle("tests/goldens/relu");
    let simulator = Simulator::new(Flavour::Rtx);
    let plan = std::fs::read(simulator.write_plan(&bundle, &manifest, shapes(&manifest))).unwrap();
    let mut bench = Bench::new(&simulator, &plan);
    bench.enqueue().unwrap();
    let Bench { context, memory, stream, .. } = bench;
    drop(context);
    let error = stream.synchronize().unwrap_err();
    assert_eq!((error.call, error.code), ("cuStreamSynchronize", 700));
    simulator.stand_in.recover();
    drop(memory);
}

#[test]
fn an_address_that_is_none_is_no_runtime() {
    let simulator = Simulator::new(Flavour::Enterprise);
    let library = Library::open(simulator.flavour, Some(&simulator.path)).unwrap();
    Runtime::new(&library).unwrap();
    simulator.break_down();
    refused(Runtime::new(&library), "refused `createInferRuntime`: CUDA initialization failure with error: 35");
}

#[test]
fn plans_of_others_are_refused() {
    let (_folder, bundle, manifest) = bundle("tests/goldens/relu");
    let [enterprise, rtx] = Flavour::ALL.map(Simulator::new);
    let plan = std::fs::read(rtx.write_plan(&bundle, &manifest, shapes(&manifest))).unwrap();
    refused(engine(&enterprise, &plan).map(drop), "the plan is of tensorrt-rtx");
    rtx.architecture(89);
    refused(engine(&rtx, &plan).map(drop), "not for compute capability 89");
    rtx.architecture(86);
    refused(engine(&rtx, &plan[..plan.len() - 3]).map(drop), "damaged");
    refused(engine(&rtx, b"something else").map(drop), "does not begin as plans do");
    engine(&rtx, &plan).unwrap();
}
