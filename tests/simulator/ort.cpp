// Graphs in ONNX Runtime, through its C API, found beside this library or up to two folders up.
//
// The API is a table of functions to which versions only add at the end, so the positions below, those of
// onnxruntime_c_api.h, hold for every version from 1.14 on. That header is in no package that this project installs.
#include <dirent.h>
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <stdexcept>

#include "simulator.h"

namespace simulator {
namespace {

using nvinfer1::DataType;

constexpr int kApiVersion = 14;

// Names as in onnxruntime_c_api.h.
enum Function {
    GetErrorMessage = 2, CreateEnv = 3, CreateSession = 7, CreateSessionOptions = 10, DisableMemPattern = 17,
    SetIntraOpNumThreads = 24, SessionGetInputCount = 30, SessionGetOutputCount = 31, SessionGetInputTypeInfo = 33,
    SessionGetOutputTypeInfo = 34, SessionGetInputName = 36, SessionGetOutputName = 37, CreateTensorWithDataAsOrtValue = 49,
    CastTypeInfoToTensorInfo = 55, GetTensorElementType = 60, GetDimensionsCount = 61, GetDimensions = 62,
    CreateCpuMemoryInfo = 69, AllocatorFree = 76, GetAllocatorWithDefaultOptions = 78, ReleaseStatus = 93,
    ReleaseMemoryInfo = 94, ReleaseSession = 95, ReleaseValue = 96, ReleaseTypeInfo = 98, ReleaseSessionOptions = 100,
    RunWithBinding = 133, CreateIoBinding = 134, ReleaseIoBinding = 135, BindInput = 136, BindOutput = 137,
};

struct ApiBase {
    void* const* (*get_api)(std::uint32_t version);
    char const* (*version)();
};

std::string library_path() {
    Dl_info self{};
    dladdr(reinterpret_cast<void*>(&library_path), &self);
    std::string folder = self.dli_fname;
    folder.resize(folder.rfind('/') == std::string::npos ? 0 : folder.rfind('/'));
    for (std::string const& place : {folder, folder + "/..", folder + "/../.."}) {
        std::vector<std::string> found;
        if (DIR* directory = opendir(place.c_str())) {
            while (dirent* entry = readdir(directory)) {
                if (std::string(entry->d_name).rfind("libonnxruntime.so", 0) == 0) found.push_back(place + "/" + entry->d_name);
            }
            closedir(directory);
        }
        if (!found.empty()) return *std::max_element(found.begin(), found.end());
    }
    throw std::runtime_error("the simulator finds no libonnxruntime.so in " + folder + " or two folders up");
}

void* const* table() {
    static void* const* const loaded = [] {
        std::string path = library_path();
        void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
        if (!library) throw std::runtime_error(dlerror());
        auto base = reinterpret_cast<ApiBase const* (*)()>(dlsym(library, "OrtGetApiBase"));
        void* const* api = base ? base()->get_api(kApiVersion) : nullptr;
        if (!api) throw std::runtime_error(path + " is not ONNX Runtime");
        return api;
    }();
    return loaded;
}

// A function whose result is a status.
template <typename... Arguments> void call(Function function, Arguments... arguments) {
    void* status = reinterpret_cast<void* (*)(Arguments...)>(table()[function])(arguments...);
    if (!status) return;
    std::string message = reinterpret_cast<char const* (*)(void*)>(table()[GetErrorMessage])(status);
    reinterpret_cast<void (*)(void*)>(table()[ReleaseStatus])(status);
    throw std::runtime_error(message);
}

// Something that a function of the table releases.
class Owned {
public:
    explicit Owned(Function release) : m_release(release) {}
    ~Owned() {
        if (value) reinterpret_cast<void (*)(void*)>(table()[m_release])(value);
    }
    Owned(Owned const&) = delete;
    Owned& operator=(Owned const&) = delete;
    void* value = nullptr;

private:
    Function m_release;
};

void* environment() {
    static void* const created = [] {
        void* environment = nullptr;
        call(CreateEnv, 3, "simulator", &environment);
        return environment;
    }();
    return created;
}

constexpr std::array<std::pair<int, DataType>, 5> kTypes{{{1, DataType::kFLOAT}, {10, DataType::kHALF}, {7, DataType::kINT64},
                                                           {6, DataType::kINT32}, {9, DataType::kBOOL}}};

DataType to_tensorrt(int type) {
    for (auto [onnx, known] : kTypes) {
        if (onnx == type) return known;
    }
    throw std::runtime_error("a tensor of the graph has the ONNX type " + std::to_string(type) + ", which is not simulated");
}

int to_onnx(DataType type) {
    for (auto [onnx, known] : kTypes) {
        if (known == type) return onnx;
    }
    return 0;
}

Graph::Tensor describe(void* session, std::size_t index, bool is_input) {
    void* allocator = nullptr;
    call(GetAllocatorWithDefaultOptions, &allocator);
    char* name = nullptr;
    call(is_input ? SessionGetInputName : SessionGetOutputName, session, index, allocator, &name);
    Graph::Tensor tensor{name, DataType::kFLOAT, {}, is_input};
    call(AllocatorFree, allocator, static_cast<void*>(name));
    Owned type(ReleaseTypeInfo);
    call(is_input ? SessionGetInputTypeInfo : SessionGetOutputTypeInfo, session, index, &type.value);
    void const* info = nullptr;
    call(CastTypeInfoToTensorInfo, type.value, &info);
    int element = 0;
    std::size_t rank = 0;
    call(GetTensorElementType, info, &element);
    call(GetDimensionsCount, info, &rank);
    tensor.type = to_tensorrt(element);
    tensor.shape.resize(rank);
    call(GetDimensions, info, tensor.shape.data(), rank);
    return tensor;
}

}  // namespace

Graph::Graph(std::string const& path) {
    Owned options(ReleaseSessionOptions);
    call(CreateSessionOptions, &options.value);
    call(SetIntraOpNumThreads, options.value, 1);
    call(DisableMemPattern, options.value);
    call(CreateSession, environment(), path.c_str(), options.value, &m_session);
    std::size_t inputs = 0, outputs = 0;
    call(SessionGetInputCount, m_session, &inputs);
    call(SessionGetOutputCount, m_session, &outputs);
    for (std::size_t i = 0; i < inputs; ++i) m_tensors.push_back(describe(m_session, i, true));
    for (std::size_t i = 0; i < outputs; ++i) m_tensors.push_back(describe(m_session, i, false));
}

Graph::~Graph() {
    if (m_session) reinterpret_cast<void (*)(void*)>(table()[ReleaseSession])(m_session);
}

Graph::Tensor const* Graph::find(std::string const& name) const {
    auto same = [&](Tensor const& tensor) { return tensor.name == name; };
    auto found = std::find_if(m_tensors.begin(), m_tensors.end(), same);
    return found == m_tensors.end() ? nullptr : &*found;
}

void Graph::run(std::map<std::string, Bound> const& bound) const {
    Owned binding(ReleaseIoBinding), memory(ReleaseMemoryInfo);
    call(CreateIoBinding, m_session, &binding.value);
    call(CreateCpuMemoryInfo, 0, 0, &memory.value);
    for (Tensor const& tensor : m_tensors) {
        Bound const& at = bound.at(tensor.name);
        Owned value(ReleaseValue);
        call(CreateTensorWithDataAsOrtValue, memory.value, at.address, bytes_of(at.shape, tensor.type), at.shape.data(),
             at.shape.size(), to_onnx(tensor.type), &value.value);
        call(tensor.is_input ? BindInput : BindOutput, binding.value, tensor.name.c_str(), value.value);
    }
    call(RunWithBinding, m_session, static_cast<void const*>(nullptr), binding.value);
}

}  // namespace simulator
