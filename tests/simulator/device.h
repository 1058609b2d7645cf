// The state of the stand-in for the CUDA driver: devices, memory, streams, and what is known of the order of their work.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>

#include "driver.h"
#include "stream.h"

struct CUctx_st {
    int device;
};
struct CUmod_st {
    int device;
};
struct CUgraph_st {
    std::vector<Work> work;
};
struct CUgraphExec_st {
    std::vector<Work> work;
};

namespace standin {

inline std::recursive_mutex lock;
using Guard = std::lock_guard<std::recursive_mutex>;

constexpr int kMostDevices = 8;

struct Failure {
    int code, skip;
};

struct Device {
    CUctx_st context{0};
    std::size_t total = std::size_t{4} << 30, used = 0;
    int retained = 0;
};

struct Allocation {
    std::size_t bytes;
    int device;
};
using Allocations = std::map<std::uintptr_t, Allocation>;

// The CUDA version that the driver says it supports.
inline int cuda_version() {
    char const* set = std::getenv("STANDIN_CUDA_VERSION");
    return set ? std::atoi(set) : 13000;
}

// Device memory that work of a stream uses, which nobody has waited for yet.
struct Pending {
    std::uint64_t number;
    Access access;
};

class Stream;

struct State {
    std::array<Device, kMostDevices> gpus{};
    Allocations device, pinned;
    std::set<CUstream> streams;
    std::set<CUmodule> modules;
    std::set<CUgraph> graphs;
    std::set<CUgraphExec> executables;
    std::map<std::string, Failure> failures;
    std::map<std::string, long> calls;
    std::string name = "host memory (a stand-in for tests)";
    int devices = 1, capability = 86, multiprocessors = 80, sticky = kSuccess, version = cuda_version();
    bool initialised = false;

    State() {
        for (int i = 0; i < kMostDevices; ++i) gpus[static_cast<std::size_t>(i)].context.device = i;
    }
};

inline State& state() {
    static State state;
    return state;
}

inline Device& gpu(int index) { return state().gpus[static_cast<std::size_t>(index)]; }

inline thread_local CUcontext current = nullptr;

// Whether calls that have waited for a stream return only later, and how many are held so.
inline std::atomic<bool> held{false};
inline std::atomic<int> holding{0};

// The allocation that the bytes lie in, or null.
inline Allocation const* within(Allocations const& ranges, void const* address, std::size_t bytes) {
    auto at = reinterpret_cast<std::uintptr_t>(address);
    auto next = ranges.upper_bound(at);
    if (next == ranges.begin()) return nullptr;
    auto const& [start, allocation] = *std::prev(next);
    return at - start <= allocation.bytes && bytes <= allocation.bytes - (at - start) ? &allocation : nullptr;
}

inline void* pointer(CUdeviceptr address) { return reinterpret_cast<void*>(static_cast<std::uintptr_t>(address)); }

inline bool overlap(Access const& a, Access const& b) { return a.start < b.start + b.bytes && b.start < a.start + a.bytes; }

// Counts a call; the error that a test wants of it, if any.
inline int injected(char const* call) {
    ++state().calls[call];
    auto found = state().failures.find(call);
    if (found == state().failures.end()) return kSuccess;
    if (found->second.skip-- > 0) return kSuccess;
    int code = found->second.code;
    state().failures.erase(found);
    return code;
}

// What every call begins with, once there is a context.
inline int entered(char const* call) {
    if (int code = injected(call)) return code;
    if (!current) return kInvalidContext;
    return state().sticky;
}

// A stream. Its work is numbered. What orders the work of two streams is a vector clock with a component for each stream: the number
// of its last work that is known to have ended. Only waiting for a stream advances a component, as there are no events here. Threads
// share the clock, so a wait of one thread counts for all.
class Stream final : public CUstream_st {
public:
    explicit Stream(int device) : device(device) {}

    int submit(Work work) override {
        if (capturing) {
            recorded.push_back(std::move(work));
            return kSuccess;
        }
        if (!is_ordered(work)) return kIllegalState;
        ++submitted;
        for (Access const& access : work.accesses) unfinished.push_back({submitted, access});
        pending.push_back(std::move(work));
        return kSuccess;
    }
    bool is_capturing() const override { return capturing; }
    bool spoil_capture() override { return capturing && (spoiled = true); }
    bool owns(void const* address, std::size_t bytes) const override {
        Guard guard(lock);
        auto const* found = within(state().device, address, bytes);
        return found && found->device == device;
    }
    std::shared_ptr<void> take(std::size_t bytes) override {
        Guard guard(lock);
        Device& gpu = standin::gpu(device);
        if (injected("take") || bytes > gpu.total - gpu.used) return nullptr;
        gpu.used += bytes;
        return {&gpu, [bytes](void* from) {
                    Guard guard(lock);
                    static_cast<Device*>(from)->used -= bytes;
                }};
    }

    // Does the work.
    int run() {
        while (!pending.empty()) {
            Work work = std::move(pending.front());
            pending.pop_front();
            int code = injected("work");
            if (!code) code = work.run();
            if (code) {
                // As on a device: nothing works any more in this process's context.
                pending.clear();
                return state().sticky = code;
            }
        }
        return state().sticky;
    }

    // Does the work, and knows that it has ended.
    int wait() {
        int code = run();
        ended = submitted;
        unfinished.clear();
        return code;
    }

    // Forgets work on memory that is freed.
    void forget(Access const& freed) {
        auto is_gone = [&](Pending const& entry) { return overlap(entry.access, freed); };
        unfinished.erase(std::remove_if(unfinished.begin(), unfinished.end(), is_gone), unfinished.end());
    }

    // Whether potentially unsafe calls of this thread are forbidden: the driver's modes are 0, global, and 1, thread-local.
    bool forbids() const { return capturing && (mode == 0 || (mode == 1 && thread == std::this_thread::get_id())); }

    std::deque<Work> pending;
    std::vector<Work> recorded;
    std::vector<Pending> unfinished;
    std::uint64_t submitted = 0, ended = 0;
    std::thread::id thread;
    int device, mode = 0;
    bool capturing = false, spoiled = false;

private:
    // Whether all work of other streams on the same memory is known to have ended, as far as one of both writes.
    bool is_ordered(Work const& work) const {
        for (CUstream one : state().streams) {
            auto const* other = static_cast<Stream const*>(one);
            if (other == this) continue;
            for (Pending const& entry : other->unfinished) {
                for (Access const& access : work.accesses) {
                    if (entry.number <= other->ended || !overlap(access, entry.access) || !(access.writes || entry.access.writes)) continue;
                    std::fprintf(stderr, "the stand-in: work %s what another stream has yet to %s\n", access.writes ? "writes" : "reads",
                                 entry.access.writes ? "write" : "read");
                    return false;
                }
            }
        }
        return true;
    }
};

// The stream of that handle, if there is one on the current device.
inline Stream* known(CUstream handle) {
    if (!state().streams.count(handle)) return nullptr;
    auto* stream = static_cast<Stream*>(handle);
    return current && stream->device == current->device ? stream : nullptr;
}

// Calls that wait for the device, or change its memory, can't be captured.
inline int uncapturable() {
    for (CUstream stream : state().streams) {
        if (static_cast<Stream*>(stream)->forbids()) return stream->spoil_capture(), kStreamCaptureUnsupported;
    }
    return kSuccess;
}

// Where a side of a copy begins and ends.
struct Extent {
    char* start;
    std::size_t pitch, slice, bytes;
    bool is_host;

    bool is_there(Stream const& stream) const {
        return is_host ? within(state().pinned, start, bytes) != nullptr : stream.owns(start, bytes);
    }
};

// False if that isn't pinned memory, or memory of the stream's device.
inline bool locate(Box const& box, CUDA_MEMCPY3D const& copy, Stream const& stream, Extent& extent) {
    bool is_host = box.memory == kMemoryHost;
    if ((!is_host && box.memory != kMemoryDevice) || box.pitch < box.x_bytes + copy.width_bytes || box.height < box.y + copy.height) return false;
    extent.pitch = box.pitch;
    extent.slice = box.pitch * box.height;
    std::size_t offset = box.z * extent.slice + box.y * box.pitch + box.x_bytes;
    extent.bytes = (copy.depth - 1) * extent.slice + (copy.height - 1) * box.pitch + copy.width_bytes;
    extent.start = static_cast<char*>(is_host ? box.host : pointer(box.device)) + offset;
    extent.is_host = is_host;
    return extent.is_there(stream);
}

// Takes memory of a kind.
inline int allocate(char const* call, Allocations& kind, std::size_t bytes, bool is_pinned, void** address) {
    Guard guard(lock);
    if (int code = entered(call)) return code;
    if (int code = uncapturable()) return code;
    Device& device = gpu(current->device);
    if (bytes == 0) return kInvalidValue;
    if (!is_pinned && bytes > device.total - device.used) return kOutOfMemory;
    std::size_t rounded = (bytes + 255) / 256 * 256;
    *address = std::aligned_alloc(256, rounded);
    if (!*address) return kOutOfMemory;
    std::memset(*address, 0xff, rounded);
    kind[reinterpret_cast<std::uintptr_t>(*address)] = {bytes, current->device};
    if (!is_pinned) device.used += bytes;
    return kSuccess;
}

inline int release(char const* call, Allocations& from, std::uintptr_t at, bool is_pinned) {
    Guard guard(lock);
    if (int code = injected(call)) return code;
    if (!current) return kInvalidContext;
    if (int code = uncapturable()) return code;
    for (CUstream stream : state().streams) static_cast<Stream*>(stream)->run();
    auto found = from.find(at);
    if (found == from.end()) return kInvalidValue;
    for (CUstream stream : state().streams) {
        static_cast<Stream*>(stream)->forget({reinterpret_cast<char const*>(at), found->second.bytes, true});
    }
    if (!is_pinned) gpu(found->second.device).used -= found->second.bytes;
    from.erase(found);
    std::free(reinterpret_cast<void*>(at));
    return kSuccess;
}

}  // namespace standin
