// Copies positions of keys and values between the lanes and the pages, all of them in one launch. tools/cuda_kernels.sh compiles it to
// copy_kv.ptx, which is what the program has inside; the stand-in for the driver in tests/simulator runs this file itself.
//
// lanes: [tensors, lanes, heads, context, head]    pages: [tensors, heads, pages, head]    `head` in bytes
// One block for one position of one tensor: blockIdx.x is the position's number in the list, blockIdx.y the tensor.

// Most positions of a launch: parameters have 4,096 bytes.
#define MOST 504

// The position's row of the first head, in the lanes and in the pages, counted from the tensor's first row.
struct Position {
    unsigned lane_row, page;
};

struct Copies {
    char *lanes, *pages;
    // Bytes from one tensor to the next.
    unsigned long long lane_tensor, page_tensor;
    // Rows from one head to the next.
    unsigned context, page_count;
    unsigned heads, head_bytes;
    // 1: from the pages to the lanes.
    unsigned is_load;
    unsigned count;
    Position positions[MOST];
};

template <typename Unit>
__device__ void copy_position(Copies const& copies, Position position, unsigned tensor) {
    unsigned units = copies.head_bytes / sizeof(Unit);
    char* lane = copies.lanes + tensor * copies.lane_tensor;
    char* page = copies.pages + tensor * copies.page_tensor;
    for (unsigned i = threadIdx.x; i < copies.heads * units; i += blockDim.x) {
        unsigned long long head = i / units, unit = i % units;
        Unit* in_lane = (Unit*)(lane + (position.lane_row + head * copies.context) * copies.head_bytes) + unit;
        Unit* in_page = (Unit*)(page + (position.page + head * copies.page_count) * copies.head_bytes) + unit;
        if (copies.is_load) {
            *in_lane = *in_page;
        } else {
            *in_page = *in_lane;
        }
    }
}

extern "C" __global__ void copy_kv(__grid_constant__ Copies const copies) {
    // Tensors begin aligned to 256 bytes, so that rows are as aligned as they are long.
    if (copies.head_bytes % sizeof(uint4) == 0) {
        copy_position<uint4>(copies, copies.positions[blockIdx.x], blockIdx.y);
    } else {
        copy_position<unsigned short>(copies, copies.positions[blockIdx.x], blockIdx.y);
    }
}
