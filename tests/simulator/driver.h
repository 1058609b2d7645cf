// The CUDA driver's types, as far as the stand-in needs them. They have the names and the layout of NVIDIA's documentation.
#pragma once

#include <cstddef>
#include <cstdint>

struct CUstream_st;
struct CUctx_st;
struct CUmod_st;
struct CUgraph_st;
struct CUgraphExec_st;
using CUresult = int;
using CUdevice = int;
using CUdeviceptr = std::uint64_t;
using CUstream = CUstream_st*;
using CUcontext = CUctx_st*;
using CUmodule = CUmod_st*;
using CUfunction = CUmod_st*;  // A module here has one kernel.
using CUgraph = CUgraph_st*;
using CUgraphExec = CUgraphExec_st*;

constexpr unsigned kMemoryHost = 1;
constexpr unsigned kMemoryDevice = 2;
constexpr int kAttributeMultiprocessors = 16;
constexpr int kAttributeMajor = 75;
constexpr int kAttributeMinor = 76;

// One side of a copy.
struct Box {
    std::size_t x_bytes, y, z, lod;
    unsigned memory;
    void* host;
    CUdeviceptr device;
    void* array;
    void* reserved;
    std::size_t pitch, height;
};

struct CUDA_MEMCPY3D {
    Box source, target;
    std::size_t width_bytes, height, depth;
};
