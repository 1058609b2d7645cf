// The simulator's runtime, engine and context.
#pragma once

#include "refusing.h"
#include "stream.h"

namespace simulator {

class Engine;

// Settings for contexts.
class RuntimeConfig final : public IRuntimeConfig, public RefusingVRuntimeConfig, Counted {
public:
    RuntimeConfig() { mImpl = this; }
    void setExecutionContextAllocationStrategy(ExecutionContextAllocationStrategy chosen) noexcept override { strategy = chosen; }
#ifdef SIMULATOR_RTX
    IRuntimeCache* createRuntimeCache() const noexcept override;
    bool setRuntimeCache(IRuntimeCache const& of) noexcept override;
    void setDynamicShapesKernelSpecializationStrategy(DynamicShapesKernelSpecializationStrategy) noexcept override {}
    bool setCudaGraphStrategy(CudaGraphStrategy) noexcept override { return true; }
#endif
    ExecutionContextAllocationStrategy strategy = ExecutionContextAllocationStrategy::kSTATIC;
    // The kernels of the cache, by profile and shapes; null without one.
    std::shared_ptr<std::set<std::string>> cache;
};

// What an enqueue does with the shapes and addresses of that moment, now or from a captured graph.
struct Launch {
    std::shared_ptr<Graph const> graph;
    std::shared_ptr<bool const> context_alive;
    ILogger* logger;
    std::map<std::string, Graph::Bound> bound;
    Graph::Bound scratch;
    CUstream_st* stream;

    int run() const;
    // Every buffer has to be the device's.
    bool check_memory(std::string& wrong) const;
    // No tensor may lie in another's memory, but for a present in its past's.
    bool check_overlaps(Engine const& engine, std::string& wrong) const;
    std::vector<Access> accesses() const;
};

class Context final : public IExecutionContext, public RefusingVExecutionContext, Counted {
public:
    Context(Engine& engine, RuntimeConfig const& config);
    ~Context() noexcept override;

    bool setOptimizationProfileAsync(int32_t profile, cudaStream_t stream) noexcept override;
    int32_t getOptimizationProfile() const noexcept override { return m_profile; }
    bool setInputShape(char const* name, Dims const& dims) noexcept override;
    Dims getTensorShape(char const* name) const noexcept override;
    bool setTensorAddress(char const* name, void* address) noexcept override;
    void setDeviceMemoryV2(void* memory, int64_t size) noexcept override;
    size_t updateDeviceMemorySizeForShapes() noexcept override;
    int32_t inferShapes(int32_t capacity, char const** names) noexcept override;
    bool enqueueV3(cudaStream_t stream) noexcept override;
#ifdef SIMULATOR_RTX
    bool isStreamCapturable(cudaStream_t) const noexcept override { return !settings().refuse_capture; }
#endif

private:
    // The shape of a tensor with the inputs' shapes so far; -1 where it isn't known.
    Shape shape(Graph::Tensor const& tensor) const;
    bool prepare(CUstream_st* stream, Launch& launch);
    bool check_aliases(Launch const& launch) const;
    void compile();
    std::vector<std::string> unspecified() const;

    Engine& m_engine;
    ExecutionContextAllocationStrategy m_strategy;
    int32_t m_profile = 0;
    std::map<std::string, Shape> m_shapes;
    std::map<std::string, void*> m_addresses;
    // The shapes of the last enqueue that ran: a capture may follow only with the same.
    std::map<std::string, Shape> m_warm;
    Graph::Bound m_scratch{};
    std::shared_ptr<bool> m_alive = std::make_shared<bool>(true);
    std::shared_ptr<std::set<std::string>> m_compiled;
    std::set<std::string> m_own;
    std::shared_ptr<void> m_memory;
};

class Engine final : public ICudaEngine, public RefusingVCudaEngine, Counted {
public:
    Engine(Plan plan, ILogger* logger);
    ~Engine() noexcept override;

    int32_t getNbIOTensors() const noexcept override { return static_cast<int32_t>(graph->tensors().size()); }
    char const* getIOTensorName(int32_t index) const noexcept override;
    TensorIOMode getTensorIOMode(char const* name) const noexcept override;
    DataType getTensorDataType(char const* name) const noexcept override;
    TensorLocation getTensorLocation(char const*) const noexcept override { return TensorLocation::kDEVICE; }
    Dims getTensorShape(char const* name) const noexcept override;
    char const* getAliasedInputTensor(char const* name) const noexcept override;
    int32_t getNbOptimizationProfiles() const noexcept override { return static_cast<int32_t>(plan.profiles.size()); }
    Dims getProfileShape(char const* name, int32_t profile, OptProfileSelector select) const noexcept override;
    int64_t getDeviceMemorySizeV2() const noexcept override;
    int64_t getDeviceMemorySizeForProfileV2(int32_t profile) const noexcept override;
    IRuntimeConfig* createRuntimeConfig() noexcept override { return new RuntimeConfig; }
    IExecutionContext* createExecutionContext(ExecutionContextAllocationStrategy strategy) noexcept override;
    IExecutionContext* createExecutionContextWithRuntimeConfig(IRuntimeConfig* config) noexcept override;

    // The past that a present is, or null.
    Graph::Tensor const* past_of(std::string const& present) const;

    Plan plan;
    ILogger* logger;
    std::shared_ptr<Graph const> graph;
    int contexts = 0;
};

class Runtime final : public IRuntime, public RefusingVRuntime, Counted {
public:
    explicit Runtime(ILogger* logger) : m_logger(logger) { mImpl = this; }
    ICudaEngine* deserializeCudaEngine(void const* blob, std::size_t size) noexcept override;
#ifdef SIMULATOR_RTX
    int64_t getEngineHeaderSize() const noexcept override { return 16; }
    EngineValidity getEngineValidity(void const* blob, int64_t size, uint64_t* diagnostics) const noexcept override;
#endif

private:
    ILogger* m_logger;
};

// Memory that a caller owns.
class Bytes final : public IHostMemory, public RefusingVHostMemory, Counted {
public:
    explicit Bytes(std::string bytes) : m_bytes(std::move(bytes)) { mImpl = this; }
    void* data() const noexcept override { return const_cast<char*>(m_bytes.data()); }
    std::size_t size() const noexcept override { return m_bytes.size(); }

private:
    std::string m_bytes;
};

}  // namespace simulator
