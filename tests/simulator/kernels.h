// The program's kernel on the host: the source itself, which the compiler for GPUs gets, too, with checks around it.
#pragma once

#include <set>

#include "stream.h"

namespace kernels {

struct uint4 {
    unsigned x, y, z, w;
};
struct Index {
    unsigned x, y, z;
};
inline Index blockIdx{}, blockDim{}, threadIdx{};

#define __device__
#define __global__
#define __grid_constant__
#include "../../crates/backends/src/device/kernels/copy_kv.cu"
#undef __device__
#undef __global__
#undef __grid_constant__

// Whether every block reads and writes inside live memory.
inline bool is_inside(Copies const& copies, unsigned tensors, CUstream_st const& stream) {
    auto owns = [&](char const* memory, unsigned long long tensor_bytes, unsigned row, unsigned rows) {
        std::size_t bytes = (std::size_t{copies.heads - 1} * rows + 1) * copies.head_bytes;
        for (unsigned tensor = 0; tensor < tensors; ++tensor) {
            if (!stream.owns(memory + tensor * tensor_bytes + std::size_t{row} * copies.head_bytes, bytes)) return false;
        }
        return true;
    };
    for (unsigned i = 0; i < copies.count; ++i) {
        auto [lane_row, page] = copies.positions[i];
        if (!owns(copies.lanes, copies.lane_tensor, lane_row, copies.context)) return false;
        if (!owns(copies.pages, copies.page_tensor, page, copies.page_count)) return false;
    }
    return true;
}

// Whether no two blocks write the same place: which of them came last would be left to chance.
inline bool is_orderless(Copies const& copies) {
    std::set<unsigned> targets;
    for (unsigned i = 0; i < copies.count; ++i) {
        auto [lane_row, page] = copies.positions[i];
        if (!targets.insert(copies.is_load ? lane_row : page).second) return false;
    }
    return true;
}

// All blocks, the last one first: a device has no order either.
inline void run(Copies const& copies, unsigned tensors, unsigned threads) {
    blockDim = {threads, 1, 1};
    for (unsigned y = tensors; y-- > 0;) {
        for (unsigned x = copies.count; x-- > 0;) {
            blockIdx = {x, y, 0};
            for (unsigned thread = 0; thread < threads; ++thread) {
                threadIdx = {thread, 0, 0};
                copy_kv(copies);
            }
        }
    }
}

}  // namespace kernels
