//! The CUDA driver's wrapper on the stand-in: order, memory, captures, and every failure with its call and code.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

use backends::cuda::{CudaError, DeviceMemory, Driver, Extent, Pinned, Region, Stream};
use backends::device::{DeviceKv, KvShape};
use scheduler::backend::{BackendError, KvCopy, Lane, Page};

use crate::simulator::StandIn;

fn stream(stand_in: &StandIn) -> Arc<Stream> {
    Driver::load(Some(&stand_in.cuda)).unwrap().open(0).unwrap().stream().unwrap()
}

fn download(stream: &Arc<Stream>, memory: &DeviceMemory, elements: usize) -> Vec<i64> {
    let mut pinned = Pinned::<i64>::new(stream, elements).unwrap();
    stream.download(&mut pinned, 0, (memory, 0), elements).unwrap();
    stream.synchronize().unwrap();
    pinned.as_slice().to_vec()
}

#[test]
fn a_machine_without_a_usable_driver_says_why() {
    let missing = Driver::load(Some(Path::new("/nowhere/libcuda.so.1"))).err().unwrap().to_string();
    assert!(missing.contains("/nowhere/libcuda.so.1 can't be loaded"), "{missing}");
    let exe = std::env::current_exe().unwrap();
    let folder = exe.parent().unwrap().parent().unwrap();
    let other = std::fs::read_dir(folder).unwrap().flatten().map(|entry| entry.path());
    let other = other.into_iter().find(|path| path.to_string_lossy().contains("libonnxruntime.so")).unwrap();
    let other = Driver::load(Some(&other)).err().unwrap().to_string();
    assert!(other.contains("has no cuInit"), "{other}");
    let stand_in = StandIn::new();
    stand_in.version(11_040);
    let old = Driver::load(Some(&stand_in.cuda)).err().unwrap();
    let said = "supports CUDA 11.4, and CUDA 12.0 or later is needed: install NVIDIA's driver 525 or later";
    assert!(old.to_string().ends_with(said) && !old.is_without_gpu(), "{old}");
    stand_in.version(12_000);
    Driver::load(Some(&stand_in.cuda)).unwrap();
    stand_in.device(0, 86, 1 << 20);
    let none = Driver::load(Some(&stand_in.cuda)).err().unwrap().to_string();
    assert_eq!(none, "the CUDA call cuInit failed with CUDA_ERROR_NO_DEVICE (100)");
}

#[test]
fn a_device_says_what_it_is() {
    let stand_in = StandIn::new();
    stand_in.device(2, 75, 5 << 20);
    let driver = Driver::load(Some(&stand_in.cuda)).unwrap();
    assert_eq!((driver.devices().unwrap(), driver.version().unwrap()), (2, (13, 0)));
    let device = driver.open(1).unwrap();
    assert_eq!((device.ordinal(), device.capability()), (1, 75));
    let memory = device.memory().unwrap();
    assert_eq!((memory.free, memory.total), (5 << 20, 5 << 20));
    let gpu = device.describe().unwrap();
    assert_eq!((gpu.sm.0, gpu.multiprocessors, gpu.cuda), (75, 80, (13, 0)));
    assert_eq!(::tensorrt::gpu(1, Some(&stand_in.cuda)).unwrap(), gpu);
    let none = ::tensorrt::gpu(2, Some(&stand_in.cuda)).unwrap_err().to_string();
    assert!(none.contains("cuDeviceGet failed with CUDA error 101"), "{none}");
    let none = driver.open(2).err().unwrap();
    assert_eq!((none.call, none.code), ("cuDeviceGet", 101));
    drop(device);
    assert_eq!(stand_in.alive(), 0);
}

#[test]
fn copies_run_in_order_and_results_wait_for_the_stream() {
    let stand_in = StandIn::new();
    let stream = stream(&stand_in);
    let (a, b) = (DeviceMemory::new(&stream, 96).unwrap(), DeviceMemory::new(&stream, 96).unwrap());
    let mut staged = Pinned::<i64>::new(&stream, 12).unwrap();
    for (i, x) in staged.as_mut_slice().iter_mut().enumerate() {
        *x = i as i64;
    }
    stream.upload(&a, &mut staged, 12).unwrap();
    let touched = catch_unwind(AssertUnwindSafe(|| staged.as_mut_slice()[0] = 99));
    assert!(touched.is_err(), "the copy has not run yet");
    // Two slices of two rows of one element: elements 1, 3, 7, 9 go to 0, 1, 2, 3.
    let source = Region { offset: 8, pitch: 16, rows: 3 };
    let target = Region { offset: 0, pitch: 8, rows: 2 };
    stream.copy((&b, target), (&a, source), Extent { width: 8, height: 2, depth: 2 }).unwrap();
    assert_eq!(download(&stream, &b, 12), [1, 3, 7, 9, 0, 0, 0, 0, 0, 0, 0, 0]);
    // The same elements to the host: 4 of them from element 5 on.
    let block = Extent { width: 8, height: 2, depth: 2 };
    stream.download_rows(&mut staged, 5, (&a, source), block).unwrap();
    let touched = catch_unwind(AssertUnwindSafe(|| staged.as_slice()[0]));
    assert!(touched.is_err(), "the copy to the host has not run yet");
    stream.synchronize().unwrap();
    assert_eq!(staged.as_slice(), [0, 1, 2, 3, 4, 1, 3, 7, 9, 9, 10, 11]);
    for (start, source) in [(9, source), (0, Region { offset: 32, ..source })] {
        let mut download = || stream.download_rows(&mut staged, start, (&a, source), block);
        assert!(catch_unwind(AssertUnwindSafe(&mut download)).is_err(), "{start} {source:?}: beyond its memory");
    }
    staged.as_mut_slice()[0] = 99;
    let beyond = Region { offset: 96, ..target };
    let copy = || stream.copy((&b, beyond), (&a, source), Extent { width: 8, height: 1, depth: 1 });
    assert!(catch_unwind(AssertUnwindSafe(copy)).is_err());
    drop((a, b, staged, stream));
    assert_eq!(stand_in.alive(), 0);
}

#[test]
fn memory_that_was_lent_while_another_thread_waited_stays_lent() {
    let stand_in = StandIn::new();
    let stream = stream(&stand_in);
    let memory = DeviceMemory::new(&stream, 16).unwrap();
    let mut staged = Pinned::<i64>::new(&stream, 2).unwrap();
    stand_in.hold(true);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            stream.device().make_current().unwrap();
            stream.synchronize().unwrap();
        });
        while stand_in.hold(true) == 0 {
            std::thread::yield_now();
        }
        // It has waited for what was there before, and returns only after this.
        stream.upload(&memory, &mut staged, 2).unwrap();
        stand_in.hold(false);
        waiting.join().unwrap();
    });
    let touched = catch_unwind(AssertUnwindSafe(|| staged.as_mut_slice()[0] = 99));
    assert!(touched.is_err(), "the copy has not run yet");
    stream.synchronize().unwrap();
    staged.as_mut_slice()[0] = 99;
}

#[test]
fn memory_that_is_used_up_is_told_apart() {
    let stand_in = StandIn::new();
    stand_in.device(1, 86, 1000);
    let stream = stream(&stand_in);
    let first = DeviceMemory::new(&stream, 800).unwrap();
    let error = DeviceMemory::new(&stream, 800).err().unwrap();
    assert!(error.is_out_of_memory());
    assert_eq!(error.to_string(), "the CUDA call cuMemAlloc_v2 failed with CUDA_ERROR_OUT_OF_MEMORY (2)");
    drop(first);
    DeviceMemory::new(&stream, 800).unwrap();
}

#[test]
fn a_captured_graph_does_again_what_was_recorded() {
    let stand_in = StandIn::new();
    let stream = stream(&stand_in);
    let (a, b) = (DeviceMemory::new(&stream, 16).unwrap(), DeviceMemory::new(&stream, 16).unwrap());
    let whole = Region { offset: 0, pitch: 16, rows: 1 };
    let copy = || stream.copy((&b, whole), (&a, whole), Extent { width: 16, height: 1, depth: 1 });
    let mut graph = stream.capture::<CudaError>(copy).unwrap();
    let mut staged = Pinned::<i64>::new(&stream, 2).unwrap();
    for value in [7, 8] {
        staged.as_mut_slice().fill(value);
        stream.upload(&a, &mut staged, 2).unwrap();
        assert_ne!(download(&stream, &b, 2), [value; 2], "recorded, not done");
        // SAFETY: both memories live until the end of the test.
        unsafe { graph.launch() }.unwrap();
        assert_eq!(download(&stream, &b, 2), [value; 2]);
    }
    assert_eq!(stand_in.calls("cuGraphLaunch"), 2);
    // What fails inside, and what can't be captured, leaves a stream that works.
    let failed = stream.capture(|| Err(CudaError { call: "test", code: 1, name: "x".into() })).err().unwrap();
    assert_eq!(failed.call, "test");
    let waited = stream.capture(|| stream.synchronize()).err().unwrap();
    assert_eq!((waited.call, waited.code), ("cuStreamSynchronize", 900));
    let ignored = stream.capture::<CudaError>(|| {
        let _ = stream.synchronize();
        Ok(())
    });
    assert_eq!(
        ignored.err().unwrap().to_string(),
        "the CUDA call cuStreamEndCapture failed with CUDA_ERROR_STREAM_CAPTURE_INVALIDATED (901)"
    );
    assert_eq!(download(&stream, &b, 2), [8; 2]);
    drop((graph, a, b, staged, stream));
    assert_eq!(stand_in.alive(), 0);
}

/// Two tensors of one head in two lanes, and pages for both lanes. Rows of 16 bytes go in larger units than others.
fn kv(stream: &Arc<Stream>, head_dim: usize) -> Result<DeviceKv, CudaError> {
    let shape = KvShape { layers: 1, heads: 3, context: 4, head_dim, element_bytes: 2, lanes: 2, pages: 8 };
    DeviceKv::new(stream, shape)
}

/// The kernel's source, run by the stand-in: positions go where they belong, and no others change.
#[test]
fn the_kernel_moves_positions_of_all_tensors_and_heads_in_one_launch() {
    let stand_in = StandIn::new();
    for head_dim in [8, 5] {
        let stream = stream(&stand_in);
        let kv = kv(&stream, head_dim).unwrap();
        let (tensor_bytes, tensor_elements) = (kv.address(1) - kv.address(0), 2 * 3 * 4 * head_dim);
        let element = |tensor: usize, index: usize| 1 + (tensor * 1000 + index) as u16;
        // SAFETY: the stand-in's memory is the host's, and nothing is on the stream.
        let tensor = |tensor: usize| unsafe {
            std::slice::from_raw_parts_mut((kv.address(0) + tensor as u64 * tensor_bytes) as *mut u16, tensor_elements)
        };
        stream.synchronize().unwrap();
        for t in 0..2 {
            tensor(t).iter_mut().enumerate().for_each(|(index, x)| *x = element(t, index));
        }
        let launches = stand_in.calls("cuLaunchKernel");
        // Lane 1's positions 1 and 3 become positions 0 and 2 of lane 0.
        let store = |position, page| KvCopy::Store { lane: Lane(1), position, page: Page(page) };
        let load = |page, position| KvCopy::Load { page: Page(page), lane: Lane(0), position };
        kv.copy(&[store(1, 6), store(3, 2), load(2, 2), load(6, 0)]).unwrap();
        assert_eq!(stand_in.calls("cuLaunchKernel") - launches, 2);
        stream.synchronize().unwrap();
        for t in 0..2 {
            for (index, &found) in tensor(t).iter().enumerate() {
                let (row, x) = (index / head_dim, index % head_dim);
                let (lane, head, position) = (row / 12, row / 4 % 3, row % 4);
                let came_from = |position| element(t, ((3 + head) * 4 + position) * head_dim + x);
                let expected = match (lane, position) {
                    (0, 0) => came_from(1),
                    (0, 2) => came_from(3),
                    _ => element(t, index),
                };
                assert_eq!(found, expected, "tensor {t} lane {lane} head {head} position {position}");
            }
        }
    }
    assert_eq!(stand_in.alive(), 0);
}

#[test]
fn every_failure_names_its_call_and_code() {
    type Use = fn(&Path) -> Result<(), CudaError>;
    let everything: Use = |path| {
        let driver = Driver::load(Some(path)).map_err(|error| match error {
            backends::cuda::DriverError::Call(error) => error,
            other => panic!("{other}"),
        })?;
        driver.devices()?;
        let device = driver.open(0)?;
        device.memory()?;
        let stream = device.stream()?;
        let memory = DeviceMemory::new(&stream, 8)?;
        let other = DeviceMemory::new(&stream, 8)?;
        let mut pinned = Pinned::<i64>::new(&stream, 1)?;
        let whole = Region { offset: 0, pitch: 8, rows: 1 };
        let copy = || stream.copy((&memory, whole), (&other, whole), Extent { width: 8, height: 1, depth: 1 });
        stream.upload(&memory, &mut pinned, 1)?;
        let mut graph = stream.capture(copy)?;
        // SAFETY: both memories live until the stream is synchronised below.
        unsafe { graph.launch() }?;
        let kv = kv(&stream, 8)?;
        kv.copy(&[KvCopy::Store { lane: Lane(0), position: 0, page: Page(0) }]).map_err(|error| match error {
            BackendError::Engine(said) => CudaError { call: "cuLaunchKernel", code: 999, name: said },
            other => panic!("{other}"),
        })?;
        stream.download(&mut pinned, 0, (&memory, 0), 1)?;
        stream.synchronize()
    };
    let stand_in = StandIn::new();
    everything(&stand_in.cuda).unwrap();
    let calls = [
        "cuInit",
        "cuDeviceGetCount",
        "cuDevicePrimaryCtxRetain",
        "cuCtxSetCurrent",
        "cuMemGetInfo_v2",
        "cuStreamCreate",
        "cuMemAlloc_v2",
        "cuMemsetD8Async",
        "cuMemHostAlloc",
        "cuMemcpyHtoDAsync_v2",
        "cuStreamBeginCapture_v2",
        "cuMemcpy3DAsync_v2",
        "cuStreamEndCapture",
        "cuGraphInstantiateWithFlags",
        "cuGraphLaunch",
        "cuModuleLoadData",
        "cuModuleGetFunction",
        "cuLaunchKernel",
        "cuMemcpyDtoHAsync_v2",
        "cuStreamSynchronize",
    ];
    for call in calls {
        stand_in.fail(call, 999, 0);
        let error = everything(&stand_in.cuda).expect_err(call);
        assert_eq!((error.call, error.code), (call, 999));
        stand_in.recover();
        // Memory is not freed where waiting for the stream failed: who knows what still writes to it.
        assert!(call == "cuStreamSynchronize" || stand_in.alive() == 0, "{call}: {} left", stand_in.alive());
    }
    stand_in.fail("work", 719, 0);
    let error = everything(&stand_in.cuda).unwrap_err();
    assert_eq!(error.to_string(), "the CUDA call cuStreamSynchronize failed with CUDA_ERROR_LAUNCH_FAILED (719)");
}
