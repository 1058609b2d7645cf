// What the stand-in for the CUDA driver and the simulator of TensorRT share: a stream, and who owns device memory.
#pragma once

#include <cstddef>
#include <functional>

// The driver's error codes that both use.
enum Result : int {
    kSuccess = 0,
    kInvalidValue = 1,
    kOutOfMemory = 2,
    kNoDevice = 100,
    kInvalidDevice = 101,
    kInvalidContext = 201,
    kInvalidHandle = 400,
    kIllegalState = 401,
    kIllegalAddress = 700,
    kLaunchFailed = 719,
    kStreamCaptureUnsupported = 900,
    kStreamCaptureInvalidated = 901,
};

// A piece of work; its result is the stream's error. It may run several times: a captured graph replays it.
using Work = std::function<int()>;

struct CUstream_st {
    virtual ~CUstream_st() = default;
    // Takes work for later, or records it while capturing.
    virtual int submit(Work work) = 0;
    virtual bool is_capturing() const = 0;
    // What an operation that can't be captured does: it spoils the capture. False if nothing is captured.
    virtual bool spoil_capture() = 0;
    // Whether the bytes lie inside one live allocation of the device.
    virtual bool owns(void const* address, std::size_t bytes) const = 0;
};
