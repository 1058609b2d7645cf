// What the stand-in for the CUDA driver and the simulator of TensorRT share: a stream, its work, and who owns device memory.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

// The driver's error codes that both use.
enum Result : int {
    kSuccess = 0,
    kInvalidValue = 1,
    kOutOfMemory = 2,
    kNoDevice = 100,
    kInvalidDevice = 101,
    kInvalidContext = 201,
    kInvalidPtx = 218,
    kInvalidHandle = 400,
    kIllegalState = 401,
    kNotFound = 500,
    kIllegalAddress = 700,
    kLaunchFailed = 719,
    kStreamCaptureUnsupported = 900,
    kStreamCaptureInvalidated = 901,
    kStreamCaptureWrongThread = 908,
};

// Memory that work reads or writes.
struct Access {
    char const* start;
    std::size_t bytes;
    bool writes;
};

// A piece of work; its result is the stream's error. It may run several times: a captured graph replays it.
struct Work {
    std::function<int()> run;
    std::vector<Access> accesses;
};

struct CUstream_st {
    virtual ~CUstream_st() = default;
    // Takes work for later, or records it while capturing. Refuses work that may run beside other work on the same memory.
    virtual int submit(Work work) = 0;
    virtual bool is_capturing() const = 0;
    // What an operation that can't be captured does: it spoils the capture. False if nothing is captured.
    virtual bool spoil_capture() = 0;
    // Whether the bytes lie inside one live allocation of the stream's device.
    virtual bool owns(void const* address, std::size_t bytes) const = 0;
    // Memory of the device that a library takes for itself, given back with the last copy; null if there is too little.
    virtual std::shared_ptr<void> take(std::size_t bytes) = 0;
};
