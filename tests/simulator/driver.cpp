// A stand-in for the CUDA driver, over host memory, for tests. Not shipped.
//
// It is as lazy as the driver may be: work on a stream runs when somebody waits for it, so a result that is read too early, or
// staging memory that is reused too early, shows. Fresh memory is NaN. It is stricter than the driver where the backend promises
// more: host memory of asynchronous copies has to be pinned, and work on memory that another stream works on needs a wait between
// them. Tests steer it through the `standin_` functions, and in another process through the variable STANDIN_CUDA_VERSION, such as
// 11040. Its state is in device.h.
#include "device.h"
#include "kernels.h"

#define DRIVER extern "C" __attribute__((visibility("default")))

using namespace standin;

namespace {

int copy_linear(char const* call, void* target, void const* source, std::size_t bytes, bool to_device, CUstream on) {
    Guard guard(lock);
    if (int code = entered(call)) return code;
    Stream* stream = known(on);
    if (!stream) return kInvalidHandle;
    void const *device = to_device ? target : source, *host = to_device ? source : target;
    if (!stream->owns(device, bytes) || !within(state().pinned, host, bytes)) return kInvalidValue;
    auto run = [=] {
        if (!stream->owns(device, bytes) || !within(state().pinned, host, bytes)) return kIllegalAddress;
        std::memcpy(target, source, bytes);
        return kSuccess;
    };
    return stream->submit({run, {{static_cast<char const*>(source), bytes, false}, {static_cast<char const*>(target), bytes, true}}});
}

void copy_box(Extent const& to, Extent const& from, CUDA_MEMCPY3D const& copy) {
    for (std::size_t z = 0; z < copy.depth; ++z) {
        for (std::size_t y = 0; y < copy.height; ++y) {
            std::memcpy(to.start + z * to.slice + y * to.pitch, from.start + z * from.slice + y * from.pitch, copy.width_bytes);
        }
    }
}

}  // namespace

// ---- steering

// The call of that name fails with `code`, after `skip` calls that don't. "work" is work on the device.
DRIVER void standin_fail(char const* call, int code, int skip) {
    Guard guard(lock);
    state().failures[call] = Failure{code, skip};
}
// How often a function was called; without a name, all of the driver's.
DRIVER long standin_calls(char const* call) {
    Guard guard(lock);
    if (*call) return state().calls[call];
    long all = 0;
    for (auto const& [name, count] : state().calls) all += name.compare(0, 2, "cu") == 0 ? count : 0;
    return all;
}
DRIVER void standin_device(int devices, int capability, std::uint64_t bytes) {
    Guard guard(lock);
    state().devices = devices;
    state().capability = capability;
    for (Device& gpu : state().gpus) gpu.total = bytes;
}
DRIVER void standin_name(char const* name, int multiprocessors) {
    Guard guard(lock);
    state().name = name;
    state().multiprocessors = multiprocessors;
}
DRIVER void standin_version(int version) {
    Guard guard(lock);
    state().version = version;
}
// Objects that somebody has yet to destroy.
DRIVER long standin_alive() {
    Guard guard(lock);
    State const& s = state();
    long retained = 0;
    for (Device const& gpu : s.gpus) retained += gpu.retained;
    std::size_t objects = s.streams.size() + s.modules.size() + s.graphs.size() + s.executables.size();
    return static_cast<long>(s.device.size() + s.pinned.size() + objects) + retained;
}
// Bytes in use on a device, what libraries took included.
DRIVER long standin_used(int device) {
    Guard guard(lock);
    return static_cast<long>(gpu(device).used);
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
    *version = state().version;
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
    std::strncpy(name, state().name.c_str(), static_cast<std::size_t>(bytes));
    return kSuccess;
}
DRIVER CUresult cuDeviceGetAttribute(int* value, int attribute, CUdevice) {
    Guard guard(lock);
    if (attribute == kAttributeMajor) return *value = state().capability / 10, kSuccess;
    if (attribute == kAttributeMinor) return *value = state().capability % 10, kSuccess;
    if (attribute == kAttributeMultiprocessors) return *value = state().multiprocessors, kSuccess;
    return kInvalidValue;
}
DRIVER CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
    Guard guard(lock);
    if (int code = injected("cuDevicePrimaryCtxRetain")) return code;
    if (device < 0 || device >= state().devices) return kInvalidDevice;
    ++gpu(device).retained;
    *context = &gpu(device).context;
    return kSuccess;
}
DRIVER CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
    Guard guard(lock);
    if (device < 0 || device >= kMostDevices || gpu(device).retained == 0) return kInvalidContext;
    --gpu(device).retained;
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
    Device const& device = gpu(current->device);
    *total = device.total;
    *free = device.total - device.used;
    return kSuccess;
}
DRIVER CUresult cuMemAlloc_v2(CUdeviceptr* address, std::size_t bytes) {
    void* memory = nullptr;
    int code = allocate("cuMemAlloc_v2", state().device, bytes, false, &memory);
    if (!code) *address = reinterpret_cast<std::uintptr_t>(memory);
    return code;
}
DRIVER CUresult cuMemFree_v2(CUdeviceptr address) {
    return release("cuMemFree_v2", state().device, static_cast<std::uintptr_t>(address), false);
}
DRIVER CUresult cuMemHostAlloc(void** address, std::size_t bytes, unsigned) {
    return allocate("cuMemHostAlloc", state().pinned, bytes, true, address);
}
DRIVER CUresult cuMemFreeHost(void* address) {
    return release("cuMemFreeHost", state().pinned, reinterpret_cast<std::uintptr_t>(address), true);
}
DRIVER CUresult cuMemsetD8Async(CUdeviceptr address, unsigned char value, std::size_t bytes, CUstream on) {
    Guard guard(lock);
    if (int code = entered("cuMemsetD8Async")) return code;
    Stream* stream = known(on);
    if (!stream) return kInvalidHandle;
    auto* start = static_cast<char*>(pointer(address));
    if (!stream->owns(start, bytes)) return kInvalidValue;
    return stream->submit({[=] { return std::memset(start, value, bytes), kSuccess; }, {{start, bytes, true}}});
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
    if (!locate(copy->source, *copy, *stream, source) || !locate(copy->target, *copy, *stream, target)) return kInvalidValue;
    Access reads{source.start, source.bytes, false}, writes{target.start, target.bytes, true};
    // The driver doesn't say what becomes of these.
    if (overlap(reads, writes)) return kInvalidValue;
    auto run = [=, copy = *copy] {
        if (!source.is_there(*stream) || !target.is_there(*stream)) return kIllegalAddress;
        return copy_box(target, source, copy), kSuccess;
    };
    return stream->submit({run, {reads, writes}});
}
DRIVER CUresult cuModuleLoadData(CUmodule* module, void const* image) {
    Guard guard(lock);
    if (int code = entered("cuModuleLoadData")) return code;
    if (int code = uncapturable()) return code;
    auto const* text = static_cast<char const*>(image);
    if (!std::strstr(text, ".version 8.0") || !std::strstr(text, ".visible .entry copy_kv(")) return kInvalidPtx;
    state().modules.insert(*module = new CUmod_st{current->device});
    return kSuccess;
}
DRIVER CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, char const* name) {
    Guard guard(lock);
    if (int code = entered("cuModuleGetFunction")) return code;
    if (!state().modules.count(module)) return kInvalidHandle;
    if (std::strcmp(name, "copy_kv") != 0) return kNotFound;
    *function = module;
    return kSuccess;
}
DRIVER CUresult cuModuleUnload(CUmodule module) {
    Guard guard(lock);
    if (!state().modules.erase(module)) return kInvalidHandle;
    delete module;
    return kSuccess;
}
DRIVER CUresult cuLaunchKernel(CUfunction function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned threads_y,
                               unsigned threads_z, unsigned shared, CUstream on, void** parameters, void** extra) {
    Guard guard(lock);
    if (int code = entered("cuLaunchKernel")) return code;
    Stream* stream = known(on);
    if (!stream || !state().modules.count(function) || function->device != stream->device) return kInvalidHandle;
    auto copies = *static_cast<kernels::Copies const*>(parameters[0]);
    bool is_shaped = x == copies.count && y > 0 && z == 1 && threads > 0 && threads <= 1024 && threads_y == 1 && threads_z == 1;
    if (!is_shaped || shared || extra || x > MOST || !kernels::is_orderless(copies)) return kInvalidValue;
    Access lanes{copies.lanes, y * copies.lane_tensor, copies.is_load != 0}, pages{copies.pages, y * copies.page_tensor, !copies.is_load};
    auto run = [=] {
        if (!state().modules.count(function) || !kernels::is_inside(copies, y, *stream)) return kIllegalAddress;
        return kernels::run(copies, y, threads), kSuccess;
    };
    return stream->submit({run, {lanes, pages}});
}
DRIVER CUresult cuStreamCreate(CUstream* stream, unsigned) {
    Guard guard(lock);
    if (int code = entered("cuStreamCreate")) return code;
    state().streams.insert(*stream = new Stream(current->device));
    return kSuccess;
}
DRIVER CUresult cuStreamDestroy_v2(CUstream on) {
    Guard guard(lock);
    Stream* stream = known(on);
    if (!stream) return kInvalidHandle;
    stream->run();
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
DRIVER CUresult cuStreamBeginCapture_v2(CUstream on, int mode) {
    Guard guard(lock);
    if (int code = entered("cuStreamBeginCapture_v2")) return code;
    Stream* stream = known(on);
    if (!stream) return kStreamCaptureUnsupported;
    if (stream->capturing) return kIllegalState;
    stream->capturing = true;
    stream->mode = mode;
    stream->thread = std::this_thread::get_id();
    stream->spoiled = false;
    stream->recorded.clear();
    return kSuccess;
}
DRIVER CUresult cuStreamEndCapture(CUstream on, CUgraph* graph) {
    Guard guard(lock);
    Stream* stream = known(on);
    if (!stream || !stream->capturing) return kIllegalState;
    if (stream->mode != 2 && stream->thread != std::this_thread::get_id()) return kStreamCaptureWrongThread;
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
    for (Work const& work : executable->work) {
        if (int code = stream->submit(work)) return code;
    }
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
        {kInvalidPtx, "CUDA_ERROR_INVALID_PTX"}, {kNotFound, "CUDA_ERROR_NOT_FOUND"}, {kLaunchFailed, "CUDA_ERROR_LAUNCH_FAILED"}, {kStreamCaptureUnsupported, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"},
        {kStreamCaptureWrongThread, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD"},
        {kStreamCaptureInvalidated, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"}};
    auto found = names.find(code);
    if (found == names.end()) return *name = nullptr, kInvalidValue;
    return *name = found->second, kSuccess;
}
