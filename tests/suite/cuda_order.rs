//! What the stand-in for the CUDA driver refuses: work whose order isn't known, memory of another device, and what
//! can't be captured. The engines' tests rely on these rules.

use std::sync::Arc;

use backends::cuda::{CudaError, DeviceMemory, Driver, Extent, Pinned, Region, Stream};

use crate::simulator::StandIn;

const BYTES: usize = 256;
const WHOLE: Region = Region { offset: 0, pitch: BYTES, rows: 1 };

fn copy(stream: &Stream, to: &DeviceMemory, from: &DeviceMemory) -> Result<(), CudaError> {
    stream.copy((to, WHOLE), (from, WHOLE), Extent { width: BYTES, height: 1, depth: 1 })
}

fn streams(stand_in: &StandIn) -> [Arc<Stream>; 2] {
    let device = Driver::load(Some(&stand_in.cuda)).unwrap().open(0).unwrap();
    [device.stream().unwrap(), device.stream().unwrap()]
}

#[test]
fn what_another_stream_has_yet_to_write_may_not_be_used() {
    let stand_in = StandIn::new();
    let [first, second] = streams(&stand_in);
    let [a, b, c] = [&first, &first, &second].map(|stream| DeviceMemory::new(stream, BYTES).unwrap());
    second.synchronize().unwrap();
    // `a` and `b` are being zeroed.
    let unordered = |result: Result<(), CudaError>| assert_eq!(result.unwrap_err().code, 401);
    unordered(copy(&second, &c, &a));
    unordered(copy(&second, &a, &c));
    copy(&first, &a, &b).unwrap();
    first.synchronize().unwrap();
    copy(&second, &c, &a).unwrap();
    // Both read `a`; who writes it must wait for the other.
    copy(&first, &b, &a).unwrap();
    unordered(copy(&first, &a, &b));
    second.synchronize().unwrap();
    copy(&first, &a, &b).unwrap();
    // A replayed graph is work like any other.
    first.synchronize().unwrap();
    let mut graph = first.capture(|| copy(&first, &b, &a)).unwrap();
    copy(&second, &a, &c).unwrap();
    // SAFETY: the memories live until the end of the test.
    assert_eq!(unsafe { graph.launch() }.unwrap_err().code, 401);
    second.synchronize().unwrap();
    // SAFETY: as above.
    unsafe { graph.launch() }.unwrap();
    drop((graph, a, b, c, first, second));
    assert_eq!(stand_in.alive(), 0);
}

#[test]
fn memory_and_streams_are_of_one_device() {
    let stand_in = StandIn::new();
    stand_in.device(2, 86, 1 << 20);
    let driver = Driver::load(Some(&stand_in.cuda)).unwrap();
    let [first, second] = [0, 1].map(|index| driver.open(index).unwrap().stream().unwrap());
    let [a, b] = [&first, &second].map(|stream| DeviceMemory::new(stream, BYTES).unwrap());
    assert_eq!([stand_in.used(0), stand_in.used(1)], [BYTES as i64; 2]);
    // The second device is current, and the memory is of the first.
    assert_eq!(copy(&second, &b, &a).unwrap_err().code, 1);
    let mut pinned = Pinned::<i64>::new(&second, 1).unwrap();
    second.upload(&b, &mut pinned, 1).unwrap();
    assert_eq!(first.synchronize().unwrap_err().code, 400, "a stream of a device that is not current");
    first.device().make_current().unwrap();
    first.synchronize().unwrap();
    drop((a, b, pinned, first, second));
    assert_eq!((stand_in.alive(), stand_in.used(0), stand_in.used(1)), (0, 0, 0));
}

#[test]
fn a_capture_forbids_allocations_to_its_own_thread_only() {
    let stand_in = StandIn::new();
    let [first, second] = streams(&stand_in);
    let [a, b] = [0, 1].map(|_| DeviceMemory::new(&first, BYTES).unwrap());
    first.synchronize().unwrap();
    let of_another_thread = || {
        std::thread::scope(|scope| {
            let allocate = || DeviceMemory::new(&second, BYTES).map(drop);
            scope.spawn(allocate).join().unwrap()
        })
    };
    let mut graph = first.capture(|| of_another_thread().and_then(|()| copy(&first, &a, &b))).unwrap();
    // SAFETY: the memories live until the end of the test.
    unsafe { graph.launch() }.unwrap();
    first.synchronize().unwrap();
    let own = first.capture(|| DeviceMemory::new(&second, BYTES).map(drop)).err().unwrap();
    assert_eq!((own.call, own.code), ("cuMemAlloc_v2", 900));
    first.synchronize().unwrap();
    drop((graph, a, b, first, second));
    assert_eq!(stand_in.alive(), 0);
}
