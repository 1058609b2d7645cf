// A stand-in for the CUDA driver, over host memory, for tests. Not shipped.
//
// It is as lazy as the driver may be: work on a stream runs when somebody waits for it, so a result that is read too early, or
// staging memory that is reused too early, shows. Fresh memory is NaN. It is stricter than the driver where the backend promises
// more: host memory of asynchronous copies has to be pinned. Tests steer it through the `standin_` functions.
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "driver.h"
#include "stream.h"

#define DRIVER extern "C" __attribute__((visibility("default")))

namespace {

std::recursive_mutex lock;
using Guard = std::lock_guard<std::recursive_mutex>;

struct Failure {
    int code, skip;
};

struct State {
    std::map<std::uintptr_t, std::size_t> device, pinned;
    std::set<CUstream> streams;
    std::set<CUgraph> graphs;
    std::set<CUgraphExec> executables;
    std::map<std::string, Failure> failures;
    std::map<std::string, long> calls;
    std::size_t total = std::size_t{4} << 30, used = 0;
    int devices = 1, capability = 86, contexts = 0, sticky = kSuccess;
    bool initialised = false;
};

State& state() {
    static State state;
    return state;
}

thread_local CUcontext current = nullptr;

// Whether calls that have waited for a stream return only later, and how many are held so.
std::atomic<bool> held{false};
std::atomic<int> holding{0};

bool within(std::map<std::uintptr_t, std::size_t> const& ranges, void const* address, std::size_t bytes) {
    auto at = reinterpret_cast<std::uintptr_t>(address);
    auto next = ranges.upper_bound(at);
    if (next == ranges.begin()) return false;
    auto [start, size] = *std::prev(next);
    return at - start <= size && bytes <= size - (at - start);
}

void* pointer(CUdeviceptr address) { return reinterpret_cast<void*>(static_cast<std::uintptr_t>(address)); }

// Counts a call; the error that a test wants of it, if any.
int injected(char const* call) {
    ++state().calls[call];
    auto found = state().failures.find(call);
    if (found == state().failures.end()) return kSuccess;
    if (found->second.skip-- > 0) return kSuccess;
    int code = found->second.code;
    state().failures.erase(found);
    return code;
}

// What every call begins with, once there is a context.
int entered(char const* call) {
    if (int code = injected(call)) return code;
    if (!current) return kInvalidContext;
    return state().sticky;
}

struct Stream final : CUstream_st {
    std::deque<Work> pending;
    std::vector<Work> recorded;
    bool capturing = false, spoiled = false;

    int submit(Work work) override {
        if (capturing) {
            recorded.push_back(std::move(work));
        } else {
            pending.push_back(std::move(work));
        }
        return kSuccess;
    }
    bool is_capturing() const override { return capturing; }
    bool spoil_capture() override { return capturing && (spoiled = true); }
    bool owns(void const* address, std::size_t bytes) const override { return within(state().device, address, bytes); }

    int wait() {
        while (!pending.empty()) {
            Work work = std::move(pending.front());
            pending.pop_front();
            int code = injected("work");
            if (!code) code = work();
            if (code) {
                // As on a device: nothing works any more in this process's context.
                pending.clear();
                return state().sticky = code;
            }
        }
        return state().sticky;
    }
};

Stream* known(CUstream stream) { return state().streams.count(stream) ? static_cast<Stream*>(stream) : nullptr; }

// Calls that wait for the device, or change its memory, can't be captured.
int uncapturable() {
    for (CUstream stream : state().streams) {
        if (stream->spoil_capture()) return kStreamCaptureUnsupported;
    }
    return kSuccess;
}

int wait_for_all() {
    int code = kSuccess;
    for (CUstream stream : state().streams) code = code ? code : known(stream)->wait();
    return code;
}

struct Extent {
    char* start;
    std::size_t pitch, slice, bytes;
};

// Where a side of a copy begins and ends; false if that isn't memory of the stated kind.
bool locate(Box const& box, CUDA_MEMCPY3D const& copy, Extent& extent) {
    if (box.memory != kMemoryDevice || box.pitch < box.x_bytes + copy.width_bytes || box.height < box.y + copy.height) return false;
    extent.pitch = box.pitch;
    extent.slice = box.pitch * box.height;
    std::size_t offset = box.z * extent.slice + box.y * box.pitch + box.x_bytes;
    extent.bytes = (copy.depth - 1) * extent.slice + (copy.height - 1) * box.pitch + copy.width_bytes;
    extent.start = static_cast<char*>(pointer(box.device)) + offset;
    return within(state().device, extent.start, extent.bytes);
}

int copy_linear(char const* call, void* target, void const* source, std::size_t bytes, bool to_device, CUstream on) {
    Guard guard(lock);
    if (int code = entered(call)) return code;
    Stream* stream = known(on);
    if (!stream) return kInvalidHandle;
    void const *device = to_device ? target : source, *host = to_device ? source : target;
    if (!within(state().device, device, bytes) || !within(state().pinned, host, bytes)) return kInvalidValue;
    return stream->submit([=] {
        if (!within(state().device, device, bytes) || !within(state().pinned, host, bytes)) return kIllegalAddress;
        std::memcpy(target, source, bytes);
        return kSuccess;
    });
}

template <typename Map> int release(char const* call, Map& from, std::uintptr_t at, std::size_t* used) {
    Guard guard(lock);
    if (int code = injected(call)) return code;
    if (!current) return kInvalidContext;
    if (int code = uncapturable()) return code;
    wait_for_all();
    auto found = from.find(at);
    if (found == from.end()) return kInvalidValue;
    if (used) *used -= found->second;
    from.erase(found);
    std::free(reinterpret_cast<void*>(at));
    return kSuccess;
}

}  // namespace

struct CUctx_st {};
struct CUgraph_st {
    std::vector<Work> work;
};
struct CUgraphExec_st {
    std::vector<Work> work;
};

// ---- steering

// The call of that name fails with `code`, after `skip` calls that don't. "work" is work on the device.
DRIVER void standin_fail(char const* call, int code, int skip) {
    Guard guard(lock);
    state().failures[call] = Failure{code, skip};
}
DRIVER long standin_calls(char const* call) {
    Guard guard(lock);
    return state().calls[call];
}
DRIVER void standin_device(int devices, int capability, std::uint64_t bytes) {
    Guard guard(lock);
    state().devices = devices;
    state().capability = capability;
    state().total = bytes;
}
// Objects that somebody has yet to destroy.
DRIVER long standin_alive() {
    Guard guard(lock);
    State const& s = state();
    return static_cast<long>(s.device.size() + s.pinned.size() + s.streams.size() + s.graphs.size() + s.executables.size()) + s.contexts;
}
// A thread that has waited for a stream may be scheduled again much later: it is held until this is called with 0. Returns how
// many are.
DRIVER int standin_hold(int hold) {
    held = hold != 0;
    return holding;
}
// What a new process would see: the device works again.
DRIVER void standin_recover() {
    Guard guard(lock);
    state().sticky = kSuccess;
    state().failures.clear();
}

// ---- the driver

DRIVER CUresult cuInit(unsigned) {
    Guard guard(lock);
    if (int code = injected("cuInit")) return code;
    state().initialised = true;
    return state().devices > 0 ? kSuccess : kNoDevice;
}
DRIVER CUresult cuDriverGetVersion(int* version) {
    *version = 13000;
    return kSuccess;
}
DRIVER CUresult cuDeviceGetCount(int* count) {
    Guard guard(lock);
    if (int code = injected("cuDeviceGetCount")) return code;
    *count = state().devices;
    return kSuccess;
}
DRIVER CUresult cuDeviceGet(CUdevice* device, int ordinal) {
    Guard guard(lock);
    if (ordinal < 0 || ordinal >= state().devices) return kInvalidDevice;
    *device = ordinal;
    return kSuccess;
}
DRIVER CUresult cuDeviceGetName(char* name, int bytes, CUdevice) {
    std::strncpy(name, "host memory (a stand-in for tests)", static_cast<std::size_t>(bytes));
    return kSuccess;
}
DRIVER CUresult cuDeviceGetAttribute(int* value, int attribute, CUdevice) {
    Guard guard(lock);
    if (attribute == kAttributeMajor) return *value = state().capability / 10, kSuccess;
    if (attribute == kAttributeMinor) return *value = state().capability % 10, kSuccess;
    return kInvalidValue;
}
DRIVER CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice) {
    Guard guard(lock);
    static CUctx_st only;
    if (int code = injected("cuDevicePrimaryCtxRetain")) return code;
    ++state().contexts;
    *context = &only;
    return kSuccess;
}
DRIVER CUresult cuDevicePrimaryCtxRelease_v2(CUdevice) {
    Guard guard(lock);
    if (state().contexts == 0) return kInvalidContext;
    --state().contexts;
    return kSuccess;
}
DRIVER CUresult cuCtxSetCurrent(CUcontext context) {
    Guard guard(lock);
    if (int code = injected("cuCtxSetCurrent")) return code;
    current = context;
    return kSuccess;
}
DRIVER CUresult cuMemGetInfo_v2(std::size_t* free, std::size_t* total) {
    Guard guard(lock);
    if (int code = entered("cuMemGetInfo_v2")) return code;
    *total = state().total;
    *free = state().total - state().used;
    return kSuccess;
}
DRIVER CUresult cuMemAlloc_v2(CUdeviceptr* address, std::size_t bytes) {
    Guard guard(lock);
    if (int code = entered("cuMemAlloc_v2")) return code;
    if (int code = uncapturable()) return code;
    if (bytes == 0) return kInvalidValue;
    if (bytes > state().total - state().used) return kOutOfMemory;
    std::size_t rounded = (bytes + 255) / 256 * 256;
    void* memory = std::aligned_alloc(256, rounded);
    if (!memory) return kOutOfMemory;
    std::memset(memory, 0xff, rounded);
    state().device[reinterpret_cast<std::uintptr_t>(memory)] = bytes;
    state().used += bytes;
    *address = reinterpret_cast<std::uintptr_t>(memory);
    return kSuccess;
}
DRIVER CUresult cuMemFree_v2(CUdeviceptr address) {
    return release("cuMemFree_v2", state().device, static_cast<std::uintptr_t>(address), &state().used);
}
DRIVER CUresult cuMemHostAlloc(void** address, std::size_t bytes, unsigned) {
    Guard guard(lock);
    if (int code = entered("cuMemHostAlloc")) return code;
    if (int code = uncapturable()) return code;
    *address = std::malloc(bytes);
    if (!*address) return kOutOfMemory;
    std::memset(*address, 0xff, bytes);
    state().pinned[reinterpret_cast<std::uintptr_t>(*address)] = bytes;
    return kSuccess;
}
DRIVER CUresult cuMemFreeHost(void* address) {
    return release("cuMemFreeHost", state().pinned, reinterpret_cast<std::uintptr_t>(address), nullptr);
}
DRIVER CUresult cuMemsetD8Async(CUdeviceptr address, unsigned char value, std::size_t bytes, CUstream on) {
    Guard guard(lock);
    if (int code = entered("cuMemsetD8Async")) return code;
    Stream* stream = known(on);
    if (!stream) return kInvalidHandle;
    if (!within(state().device, pointer(address), bytes)) return kInvalidValue;
    return stream->submit([=] { return std::memset(pointer(address), value, bytes), kSuccess; });
}
DRIVER CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr target, void const* source, std::size_t bytes, CUstream on) {
    return copy_linear("cuMemcpyHtoDAsync_v2", pointer(target), source, bytes, true, on);
}
DRIVER CUresult cuMemcpyDtoHAsync_v2(void* target, CUdeviceptr source, std::size_t bytes, CUstream on) {
    return copy_linear("cuMemcpyDtoHAsync_v2", target, pointer(source), bytes, false, on);
}
DRIVER CUresult cuMemcpy3DAsync_v2(CUDA_MEMCPY3D const* copy, CUstream on) {
    Guard guard(lock);
    if (int code = entered("cuMemcpy3DAsync_v2")) return code;
    Stream* stream = known(on);
    if (!stream) return kInvalidHandle;
    Extent source{}, target{};
    if (!copy->width_bytes || !copy->height || !copy->depth) return kInvalidValue;
    if (!locate(copy->source, *copy, source) || !locate(copy->target, *copy, target)) return kInvalidValue;
    return stream->submit([=, width = copy->width_bytes, height = copy->height, depth = copy->depth] {
        for (std::size_t z = 0; z < depth; ++z) {
            for (std::size_t y = 0; y < height; ++y) {
                std::memcpy(target.start + z * target.slice + y * target.pitch, source.start + z * source.slice + y * source.pitch, width);
            }
        }
        return kSuccess;
    });
}
DRIVER CUresult cuStreamCreate(CUstream* stream, unsigned) {
    Guard guard(lock);
    if (int code = entered("cuStreamCreate")) return code;
    state().streams.insert(*stream = new Stream);
    return kSuccess;
}
DRIVER CUresult cuStreamDestroy_v2(CUstream on) {
    Guard guard(lock);
    Stream* stream = known(on);
    if (!stream) return kInvalidHandle;
    stream->wait();
    state().streams.erase(on);
    delete stream;
    return kSuccess;
}
DRIVER CUresult cuStreamSynchronize(CUstream on) {
    CUresult waited;
    {
        Guard guard(lock);
        if (int code = entered("cuStreamSynchronize")) return code;
        Stream* stream = known(on);
        if (!stream) return kInvalidHandle;
        if (stream->spoil_capture()) return kStreamCaptureUnsupported;
        waited = stream->wait();
    }
    if (held) {
        ++holding;
        while (held) std::this_thread::yield();
        --holding;
    }
    return waited;
}
DRIVER CUresult cuStreamBeginCapture_v2(CUstream on, int) {
    Guard guard(lock);
    if (int code = entered("cuStreamBeginCapture_v2")) return code;
    Stream* stream = known(on);
    if (!stream) return kStreamCaptureUnsupported;
    if (stream->capturing) return kIllegalState;
    stream->capturing = true;
    stream->spoiled = false;
    stream->recorded.clear();
    return kSuccess;
}
DRIVER CUresult cuStreamEndCapture(CUstream on, CUgraph* graph) {
    Guard guard(lock);
    Stream* stream = known(on);
    if (!stream || !stream->capturing) return kIllegalState;
    stream->capturing = false;
    *graph = nullptr;
    if (int code = entered("cuStreamEndCapture")) return code;
    if (stream->spoiled) return kStreamCaptureInvalidated;
    state().graphs.insert(*graph = new CUgraph_st{std::move(stream->recorded)});
    return kSuccess;
}
DRIVER CUresult cuGraphInstantiateWithFlags(CUgraphExec* executable, CUgraph graph, unsigned long long) {
    Guard guard(lock);
    if (int code = entered("cuGraphInstantiateWithFlags")) return code;
    if (!state().graphs.count(graph)) return kInvalidHandle;
    state().executables.insert(*executable = new CUgraphExec_st{graph->work});
    return kSuccess;
}
DRIVER CUresult cuGraphLaunch(CUgraphExec executable, CUstream on) {
    Guard guard(lock);
    if (int code = entered("cuGraphLaunch")) return code;
    Stream* stream = known(on);
    if (!stream || !state().executables.count(executable)) return kInvalidHandle;
    for (Work const& work : executable->work) stream->submit(work);
    return kSuccess;
}
DRIVER CUresult cuGraphExecDestroy(CUgraphExec executable) {
    Guard guard(lock);
    if (!state().executables.erase(executable)) return kInvalidHandle;
    delete executable;
    return kSuccess;
}
DRIVER CUresult cuGraphDestroy(CUgraph graph) {
    Guard guard(lock);
    if (!state().graphs.erase(graph)) return kInvalidHandle;
    delete graph;
    return kSuccess;
}
DRIVER CUresult cuGetErrorName(CUresult code, char const** name) {
    static std::map<int, char const*> const names{
        {kInvalidValue, "CUDA_ERROR_INVALID_VALUE"}, {kOutOfMemory, "CUDA_ERROR_OUT_OF_MEMORY"},
        {kNoDevice, "CUDA_ERROR_NO_DEVICE"}, {kInvalidDevice, "CUDA_ERROR_INVALID_DEVICE"},
        {kInvalidContext, "CUDA_ERROR_INVALID_CONTEXT"}, {kInvalidHandle, "CUDA_ERROR_INVALID_HANDLE"},
        {kIllegalState, "CUDA_ERROR_ILLEGAL_STATE"}, {kIllegalAddress, "CUDA_ERROR_ILLEGAL_ADDRESS"},
        {kLaunchFailed, "CUDA_ERROR_LAUNCH_FAILED"}, {kStreamCaptureUnsupported, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"},
        {kStreamCaptureInvalidated, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"}};
    auto found = names.find(code);
    if (found == names.end()) return *name = nullptr, kInvalidValue;
    return *name = found->second, kSuccess;
}
