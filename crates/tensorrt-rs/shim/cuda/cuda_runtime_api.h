// TensorRT's headers name two CUDA types, as pointers only. With these declarations the shim needs no CUDA toolkit.
#pragma once

typedef struct CUstream_st *cudaStream_t;
typedef struct CUevent_st *cudaEvent_t;
