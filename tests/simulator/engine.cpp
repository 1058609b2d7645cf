// Runtime and engine: which plans are taken, and what they say of their tensors.
#include "engine.h"

#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <sstream>
#include <stdexcept>

#define LIBRARY extern "C" __attribute__((visibility("default")))

namespace simulator {

#ifdef SIMULATOR_RTX
char const* const kLibrary = "tensorrt-rtx";
#else
char const* const kLibrary = "tensorrt";
#endif

std::string version() {
    return std::to_string(NV_TENSORRT_MAJOR) + "." + std::to_string(NV_TENSORRT_MINOR) + "." + std::to_string(NV_TENSORRT_PATCH);
}

void refuse(char const* function) {
    std::fprintf(stderr, "the simulator of TensorRT has no %s\n", function);
    std::abort();
}

bool error(ILogger* logger, std::string const& message) {
    logger->log(ILogger::Severity::kERROR, message.c_str());
    return false;
}

void info(ILogger* logger, std::string const& message) { logger->log(ILogger::Severity::kINFO, message.c_str()); }

std::string text(Shape const& shape) {
    std::string written = "[";
    for (auto extent : shape) written += (written.size() > 1 ? "," : "") + std::to_string(extent);
    return written + "]";
}

Shape shape_of(Dims const& dims) { return Shape(dims.d, dims.d + std::max(dims.nbDims, 0)); }

Dims dims_of(Shape const& shape) {
    Dims dims{};
    dims.nbDims = static_cast<int32_t>(shape.size());
    for (std::size_t i = 0; i < shape.size(); ++i) dims.d[i] = shape[i];
    return dims;
}

std::size_t bytes_of(Shape const& shape, DataType type) {
    std::size_t bytes = type == DataType::kINT64 ? 8 : type == DataType::kHALF ? 2 : type == DataType::kBOOL ? 1 : 4;
    for (auto extent : shape) bytes *= static_cast<std::size_t>(extent);
    return bytes;
}

Settings& settings() {
    static Settings settings;
    return settings;
}

namespace {

// Reads a plan and says in TensorRT's log why it can't be used.
bool usable(void const* blob, std::size_t size, ILogger* logger, Plan& plan, uint64_t& why) {
    constexpr uint64_t kVersion = 1, kArchitecture = 2, kMalformed = 32;
    try {
        plan = Plan::read(std::string(static_cast<char const*>(blob), size));
    } catch (std::exception const& wrong) {
        why = kMalformed;
        return error(logger, std::string("deserialization failed: ") + wrong.what());
    }
    if (plan.library != kLibrary || plan.version != version()) {
        why = kVersion;
        return error(logger, "deserialization failed: the plan is of " + plan.library + " " + plan.version + ", this is " + kLibrary + " " + version());
    }
    for (int architecture : plan.architectures) {
        if (architecture == settings().architecture) return true;
    }
    why = kArchitecture;
    return error(logger, "deserialization failed: the plan is not for compute capability " + std::to_string(settings().architecture));
}

}  // namespace

#ifdef SIMULATOR_RTX
namespace {

class RuntimeCache final : public IRuntimeCache, public RefusingVRuntimeCache, Counted {
public:
    RuntimeCache() { mImpl = this; }
    IHostMemory* serialize() const noexcept override {
        std::string text = kHead;
        for (std::string const& kernel : *kernels) text += kernel + "\n";
        return new Bytes(text);
    }
    bool deserialize(void const* blob, size_t size) noexcept override {
        std::istringstream lines(std::string(static_cast<char const*>(blob), size));
        std::string line;
        if (!std::getline(lines, line) || line + "\n" != kHead) return false;
        while (std::getline(lines, line)) kernels->insert(line);
        return true;
    }
    std::shared_ptr<std::set<std::string>> kernels = std::make_shared<std::set<std::string>>();

private:
    static constexpr char kHead[] = "simulated cache\n";
};

}  // namespace

IRuntimeCache* RuntimeConfig::createRuntimeCache() const noexcept { return new RuntimeCache; }

bool RuntimeConfig::setRuntimeCache(IRuntimeCache const& of) noexcept {
    cache = static_cast<RuntimeCache const&>(of).kernels;
    return true;
}

EngineValidity Runtime::getEngineValidity(void const* blob, int64_t size, uint64_t* diagnostics) const noexcept {
    Plan plan;
    uint64_t why = 0;
    bool valid = usable(blob, static_cast<std::size_t>(size), m_logger, plan, why);
    if (diagnostics) *diagnostics = why;
    return valid ? EngineValidity::kVALID : EngineValidity::kINVALID;
}
#endif

ICudaEngine* Runtime::deserializeCudaEngine(void const* blob, std::size_t size) noexcept {
    Plan plan;
    uint64_t why = 0;
    if (!usable(blob, size, m_logger, plan, why)) return nullptr;
    try {
        return new Engine(std::move(plan), m_logger);
    } catch (std::exception const& wrong) {
        error(m_logger, std::string("deserialization failed: ") + wrong.what());
        return nullptr;
    }
}

namespace {

// Engines of one graph share it: making one is then as cheap as tests that make a thousand need.
std::shared_ptr<Graph const> graph_of(std::string const& path) {
    static std::mutex lock;
    static std::map<std::string, std::shared_ptr<Graph const>> graphs;
    std::lock_guard<std::mutex> guard(lock);
    auto& graph = graphs[path];
    if (!graph) graph = std::make_shared<Graph const>(path);
    return graph;
}

}  // namespace

Engine::Engine(Plan of, ILogger* log) : plan(std::move(of)), logger(log), graph(graph_of(plan.graph)) { mImpl = this; }

Engine::~Engine() noexcept {
    if (contexts > 0) error(logger, "an engine is destroyed before " + std::to_string(contexts) + " of its contexts: undefined behaviour");
}

char const* Engine::getIOTensorName(int32_t index) const noexcept {
    return index >= 0 && index < getNbIOTensors() ? graph->tensors()[static_cast<std::size_t>(index)].name.c_str() : nullptr;
}

TensorIOMode Engine::getTensorIOMode(char const* name) const noexcept {
    auto const* tensor = graph->find(name);
    return !tensor ? TensorIOMode::kNONE : tensor->is_input ? TensorIOMode::kINPUT : TensorIOMode::kOUTPUT;
}

DataType Engine::getTensorDataType(char const* name) const noexcept {
    auto const* tensor = graph->find(name);
    return tensor ? tensor->type : DataType::kFLOAT;
}

Dims Engine::getTensorShape(char const* name) const noexcept {
    auto const* tensor = graph->find(name);
    Dims none{};
    none.nbDims = -1;
    return tensor ? dims_of(tensor->shape) : none;
}

Graph::Tensor const* Engine::past_of(std::string const& present) const {
    constexpr char kPresent[] = "present_";
    bool is_present = present.rfind(kPresent, 0) == 0;
    return is_present ? graph->find("past_" + present.substr(sizeof kPresent - 1)) : nullptr;
}

char const* Engine::getAliasedInputTensor(char const* name) const noexcept {
    auto const* past = past_of(name);
    return past ? past->name.c_str() : nullptr;
}

Dims Engine::getProfileShape(char const* name, int32_t profile, OptProfileSelector select) const noexcept {
    Dims none{};
    none.nbDims = -1;
    if (profile < 0 || profile >= getNbOptimizationProfiles()) return none;
    auto const& shapes = plan.profiles[static_cast<std::size_t>(profile)];
    auto found = shapes.find(name);
    // As TensorRT: an input of fixed shape has that shape, and an output none.
    if (found == shapes.end()) return getTensorIOMode(name) == TensorIOMode::kINPUT ? getTensorShape(name) : none;
    return dims_of(found->second[static_cast<std::size_t>(select)]);
}

int64_t Engine::getDeviceMemorySizeForProfileV2(int32_t profile) const noexcept { return (profile + 1) * 4096; }

int64_t Engine::getDeviceMemorySizeV2() const noexcept { return getDeviceMemorySizeForProfileV2(getNbOptimizationProfiles() - 1); }

IExecutionContext* Engine::createExecutionContext(ExecutionContextAllocationStrategy strategy) noexcept {
    RuntimeConfig config;
    config.strategy = strategy;
    return new Context(*this, config);
}

IExecutionContext* Engine::createExecutionContextWithRuntimeConfig(IRuntimeConfig* config) noexcept {
    return new Context(*this, *static_cast<RuntimeConfig*>(config));
}

}  // namespace simulator

LIBRARY void* createInferRuntime_INTERNAL(void* logger, int32_t version) noexcept {
    auto* log = static_cast<nvinfer1::ILogger*>(logger);
    if (version / 10000 != NV_TENSORRT_VERSION / 10000) {
        simulator::error(log, "the caller was compiled for another major version");
        return nullptr;
    }
    if (simulator::settings().broken) {
        simulator::error(log, "CUDA initialization failure with error: 35");
        return reinterpret_cast<void*>(0x228);
    }
    return static_cast<nvinfer1::IRuntime*>(new simulator::Runtime(log));
}
LIBRARY int32_t getInferLibMajorVersion() noexcept { return NV_TENSORRT_MAJOR; }
LIBRARY int32_t getInferLibMinorVersion() noexcept { return NV_TENSORRT_MINOR; }
LIBRARY int32_t getInferLibPatchVersion() noexcept { return NV_TENSORRT_PATCH; }
LIBRARY int32_t getInferLibBuildVersion() noexcept { return 0; }
LIBRARY int32_t getInferLibVersion() noexcept { return NV_TENSORRT_VERSION; }

// ---- steering
LIBRARY void simulator_architecture(int architecture) { simulator::settings().architecture = architecture; }
LIBRARY void simulator_refuse_capture(int refuse) { simulator::settings().refuse_capture = refuse != 0; }
LIBRARY void simulator_break(int broken) { simulator::settings().broken = broken != 0; }
LIBRARY long simulator_contexts() { return simulator::settings().contexts; }
LIBRARY long simulator_compiled() { return simulator::settings().compiled; }
LIBRARY long simulator_alive() { return simulator::settings().alive; }
