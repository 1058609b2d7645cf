// The run-time side of TensorRT, simulated for tests: over ONNX Runtime, on the memory of the CUDA driver's stand-in.
//
// It implements the virtual functions of NVIDIA's headers that the shim calls, and refuses what TensorRT refuses, in the log, as
// TensorRT does. It checks more than TensorRT where TensorRT's documentation says that behaviour is undefined.
#pragma once

#include <array>
#include <atomic>
#include <cstdlib>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "NvInfer.h"

namespace simulator {

using Shape = std::vector<std::int64_t>;

// Ends the process: the shim calls something that is not simulated.
[[noreturn]] void refuse(char const* function);

// Writes an error to the log that the caller gave; returns false, for callers to return.
bool error(nvinfer1::ILogger* logger, std::string const& message);
void info(nvinfer1::ILogger* logger, std::string const& message);

std::string text(Shape const& shape);
Shape shape_of(nvinfer1::Dims const& dims);
nvinfer1::Dims dims_of(Shape const& shape);
// Bytes of a tensor.
std::size_t bytes_of(Shape const& shape, nvinfer1::DataType type);

// The smallest, best and largest shape of each input.
using Profile = std::map<std::string, std::array<Shape, 3>>;

// What a plan of the simulator says: which graph to run, and what TensorRT would have been told when it built.
struct Plan {
    std::string library, version, graph;
    std::vector<int> architectures;
    std::vector<Profile> profiles;

    std::string write() const;
    // Throws a std::runtime_error that says what is wrong.
    static Plan read(std::string const& bytes);
};

// This simulator's flavour and version, as plans name them.
extern char const* const kLibrary;
std::string version();

// What tests may change.
struct Settings {
    int architecture = 86;
    bool refuse_capture = false;
    // Whether no runtime can be made, as without a usable driver: the lean library then returns an address that is none.
    bool broken = std::getenv("SIMULATOR_BROKEN") != nullptr;
    // Objects that somebody has yet to destroy.
    std::atomic<long> alive{0};
    // Contexts that were ever made, and kernels that were compiled.
    std::atomic<long> contexts{0}, compiled{0};
};
Settings& settings();

// Counts itself while it is there.
struct Counted {
    Counted() { ++settings().alive; }
    ~Counted() { --settings().alive; }
    Counted(Counted const&) = delete;
    Counted& operator=(Counted const&) = delete;
};

// A graph in ONNX Runtime.
class Graph {
public:
    struct Tensor {
        std::string name;
        nvinfer1::DataType type;
        Shape shape;  // -1 where it is dynamic
        bool is_input;
    };
    struct Bound {
        void* address;
        Shape shape;
    };

    // Throws a std::runtime_error with ONNX Runtime's words, as `run` does.
    explicit Graph(std::string const& path);
    ~Graph();
    std::vector<Tensor> const& tensors() const { return m_tensors; }
    Tensor const* find(std::string const& name) const;
    void run(std::map<std::string, Bound> const& bound) const;

private:
    std::vector<Tensor> m_tensors;
    void* m_session = nullptr;
};

}  // namespace simulator
