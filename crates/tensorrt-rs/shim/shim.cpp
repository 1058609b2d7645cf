// Forwards the calls of shim.h to TensorRT's C++ classes. Compiled once per flavour, with
//   TENSORRT_SHIM        the name of the function that returns the table
//   TENSORRT_SHIM_RTX    defined for TensorRT-RTX
//   nvinfer1, nvonnxparser   defined as names of the flavour's own: the classes of the two flavours share their names but not
//                        their layout, and the linker would otherwise take one's inline functions for the other's.

#include "shim.h"

#include <NvInfer.h>
#include <NvOnnxParser.h>
#include <new>

using namespace nvinfer1;

namespace {

class Logger final : public ILogger {
public:
    Logger(TrtLogFn log, void *user) noexcept : mLog(log), mUser(user) {}
    void log(Severity severity, char const *message) noexcept override {
        mLog(mUser, static_cast<int32_t>(severity), message);
    }

private:
    TrtLogFn mLog;
    void *mUser;
};

class Monitor final : public IProgressMonitor {
public:
    Monitor(TrtMonitorFns const &functions, void *user) noexcept : mFunctions(functions), mUser(user) {}
    void phaseStart(char const *phase, char const *parent, int32_t steps) noexcept override {
        mFunctions.start(mUser, phase, parent, steps);
    }
    bool stepComplete(char const *phase, int32_t step) noexcept override { return mFunctions.step(mUser, phase, step); }
    void phaseFinish(char const *phase) noexcept override { mFunctions.finish(mUser, phase); }

private:
    TrtMonitorFns mFunctions;
    void *mUser;
};

// Each opaque type of shim.h is one class: `in` and `out` are the only casts between them.
#define OPAQUE(Name, Class)                                                                       \
    Class *in(Name *x) noexcept { return reinterpret_cast<Class *>(x); }                          \
    [[maybe_unused]] Class const *in(Name const *x) noexcept { return reinterpret_cast<Class const *>(x); } \
    [[maybe_unused]] Name *out(Class *x) noexcept { return reinterpret_cast<Name *>(x); }
OPAQUE(TrtLogger, Logger)
OPAQUE(TrtMonitor, Monitor)
OPAQUE(TrtBuilder, IBuilder)
OPAQUE(TrtNetwork, INetworkDefinition)
OPAQUE(TrtParser, nvonnxparser::IParser)
OPAQUE(TrtProfile, IOptimizationProfile)
OPAQUE(TrtConfig, IBuilderConfig)
OPAQUE(TrtMemory, IHostMemory)
OPAQUE(TrtRuntime, IRuntime)
OPAQUE(TrtEngine, ICudaEngine)
OPAQUE(TrtRuntimeConfig, IRuntimeConfig)
OPAQUE(TrtContext, IExecutionContext)
#ifdef TENSORRT_SHIM_RTX
OPAQUE(TrtRuntimeCache, IRuntimeCache)
#endif
#undef OPAQUE

ITensor const *in(TrtTensor const *x) noexcept { return reinterpret_cast<ITensor const *>(x); }
TrtTensor const *out(ITensor const *x) noexcept { return reinterpret_cast<TrtTensor const *>(x); }
cudaStream_t stream_of(void *x) noexcept { return static_cast<cudaStream_t>(x); }

static_assert(Dims::MAX_DIMS == 8);

Dims in(TrtDims const &dims) noexcept {
    Dims to{};
    to.nbDims = dims.rank;
    for (int32_t i = 0; i < Dims::MAX_DIMS; ++i) to.d[i] = dims.extents[i];
    return to;
}

TrtDims out(Dims const &dims) noexcept {
    TrtDims to{};
    to.rank = dims.nbDims;
    for (int32_t i = 0; i < Dims::MAX_DIMS; ++i) to.extents[i] = dims.d[i];
    return to;
}

template <typename T>
void destroy(T *x) noexcept {
    delete in(x);
}

using Factory = void *(*)(void *, int32_t) noexcept;
using ParserFactory = void *(*)(void *, void *, int) noexcept;

void *logger_of(TrtLogger *logger) noexcept { return static_cast<ILogger *>(in(logger)); }

IAttention *attention(INetworkDefinition const *network, int32_t index) noexcept {
    ILayer *layer = network->getLayer(index);
    if (layer == nullptr || layer->getType() != LayerType::kATTENTION_INPUT) return nullptr;
    return static_cast<IAttentionInputLayer *>(layer)->getAttention();
}

// ---- building

TrtBuilder *builder_create(void *factory, TrtLogger *logger) {
    void *made = reinterpret_cast<Factory>(factory)(logger_of(logger), NV_TENSORRT_VERSION);
    return out(static_cast<IBuilder *>(made));
}

#ifdef TENSORRT_SHIM_RTX
bool config_set_compute_capabilities(TrtConfig *config, int32_t const *values, int32_t count) {
    if (!in(config)->setNbComputeCapabilities(count)) return false;
    for (int32_t i = 0; i < count; ++i) {
        if (!in(config)->setComputeCapability(static_cast<ComputeCapability>(values[i]), i)) return false;
    }
    return true;
}
#endif

TrtMonitor *monitor_create(TrtMonitorFns const *functions, void *user) {
    return out(new (std::nothrow) Monitor(*functions, user));
}

TrtParser *parser_create(void *factory, TrtNetwork *network, TrtLogger *logger) {
    void *made = reinterpret_cast<ParserFactory>(factory)(in(network), logger_of(logger), NV_ONNX_PARSER_VERSION);
    return out(static_cast<nvonnxparser::IParser *>(made));
}

bool parser_error(TrtParser const *parser, int32_t index, TrtParserError *error) {
    nvonnxparser::IParserError const *found = in(parser)->getError(index);
    if (found == nullptr) return false;
    error->code = static_cast<int32_t>(found->code());
    error->node = found->node();
    error->description = found->desc();
    error->node_name = found->nodeName();
    error->node_operator = found->nodeOperator();
    return true;
}

TrtTensor const *network_attention_mask(TrtNetwork const *network, int32_t layer) {
    IAttention *found = attention(in(network), layer);
    return found == nullptr ? nullptr : out(static_cast<ITensor const *>(found->getMask()));
}

// ---- running

TrtRuntime *runtime_create(void *factory, TrtLogger *logger) {
    void *made = reinterpret_cast<Factory>(factory)(logger_of(logger), NV_TENSORRT_VERSION);
    return out(static_cast<IRuntime *>(made));
}

TrtContext *context_create(TrtEngine *engine, int32_t strategy) {
    return out(in(engine)->createExecutionContext(static_cast<ExecutionContextAllocationStrategy>(strategy)));
}

OptProfileSelector selector_of(int32_t selector) noexcept { return static_cast<OptProfileSelector>(selector); }

constexpr TrtShim kTABLE = {
    .version = {NV_TENSORRT_MAJOR, NV_TENSORRT_MINOR, NV_TENSORRT_PATCH},

    .logger_create = [](TrtLogFn log, void *user) { return out(new (std::nothrow) Logger(log, user)); },
    .logger_destroy = destroy<TrtLogger>,

    .builder_create = builder_create,
    .builder_destroy = destroy<TrtBuilder>,
    .network_create = [](TrtBuilder *b) { return out(in(b)->createNetworkV2(0)); },
    .network_destroy = destroy<TrtNetwork>,
    .config_create = [](TrtBuilder *b) { return out(in(b)->createBuilderConfig()); },
    .config_destroy = destroy<TrtConfig>,
    .profile_create = [](TrtBuilder *b) { return out(in(b)->createOptimizationProfile()); },
    .build_serialized = [](TrtBuilder *b, TrtNetwork *n,
                           TrtConfig *c) { return out(in(b)->buildSerializedNetwork(*in(n), *in(c))); },

    .memory_data = [](TrtMemory const *m) { return static_cast<void const *>(in(m)->data()); },
    .memory_size = [](TrtMemory const *m) { return static_cast<uint64_t>(in(m)->size()); },
    .memory_destroy = destroy<TrtMemory>,

    .profile_set_dimensions = [](TrtProfile *p, char const *input, int32_t selector,
                                 TrtDims const *dims) { return in(p)->setDimensions(input, selector_of(selector), in(*dims)); },
    .profile_is_valid = [](TrtProfile const *p) { return in(p)->isValid(); },

    .config_set_workspace = [](TrtConfig *c, uint64_t bytes) { in(c)->setMemoryPoolLimit(MemoryPoolType::kWORKSPACE, bytes); },
    .config_add_profile = [](TrtConfig *c, TrtProfile const *p) { return in(c)->addOptimizationProfile(in(p)); },
    .config_set_monitor = [](TrtConfig *c, TrtMonitor *m) { in(c)->setProgressMonitor(in(m)); },
#ifdef TENSORRT_SHIM_RTX
    .config_set_compute_capabilities = config_set_compute_capabilities,
    .config_require_user_allocation = [](TrtConfig *c) { in(c)->setFlag(BuilderFlag::kREQUIRE_USER_ALLOCATION); },
#else
    .config_set_compute_capabilities = nullptr,
    .config_require_user_allocation = nullptr,
#endif

    .monitor_create = monitor_create,
    .monitor_destroy = destroy<TrtMonitor>,

    .network_inputs = [](TrtNetwork const *n) { return in(n)->getNbInputs(); },
    .network_input = [](TrtNetwork const *n, int32_t i) { return out(static_cast<ITensor const *>(in(n)->getInput(i))); },
    .network_outputs = [](TrtNetwork const *n) { return in(n)->getNbOutputs(); },
    .network_output = [](TrtNetwork const *n, int32_t i) { return out(static_cast<ITensor const *>(in(n)->getOutput(i))); },
    .network_layers = [](TrtNetwork const *n) { return in(n)->getNbLayers(); },
    .network_layer_type = [](TrtNetwork const *n, int32_t i) { return static_cast<int32_t>(in(n)->getLayer(i)->getType()); },
    .network_layer_name = [](TrtNetwork const *n, int32_t i) { return in(n)->getLayer(i)->getName(); },
    .network_layer_inputs = [](TrtNetwork const *n, int32_t i) { return in(n)->getLayer(i)->getNbInputs(); },
    .network_layer_input = [](TrtNetwork const *n, int32_t layer,
                              int32_t i) { return out(static_cast<ITensor const *>(in(n)->getLayer(layer)->getInput(i))); },
    .network_set_decomposable = [](TrtNetwork *n, int32_t layer, bool decomposable) {
        IAttention *found = attention(in(n), layer);
        return found != nullptr && found->setDecomposable(decomposable);
    },
    .network_decomposable = [](TrtNetwork const *n, int32_t layer) {
        IAttention *found = attention(in(n), layer);
        return found != nullptr && found->getDecomposable();
    },
    .network_attention_mask = network_attention_mask,
    .tensor_name = [](TrtTensor const *t) { return in(t)->getName(); },
    .tensor_type = [](TrtTensor const *t) { return static_cast<int32_t>(in(t)->getType()); },
    .tensor_dims = [](TrtTensor const *t) { return out(in(t)->getDimensions()); },

    .parser_create = parser_create,
    .parser_destroy = destroy<TrtParser>,
    .parser_parse_file = [](TrtParser *p, char const *path) {
        return in(p)->parseFromFile(path, static_cast<int>(ILogger::Severity::kWARNING));
    },
    .parser_errors = [](TrtParser const *p) { return static_cast<int32_t>(in(p)->getNbErrors()); },
    .parser_error = parser_error,

    .runtime_create = runtime_create,
    .runtime_destroy = destroy<TrtRuntime>,
#ifdef TENSORRT_SHIM_RTX
    .runtime_header_bytes = [](TrtRuntime const *r) { return in(r)->getEngineHeaderSize(); },
    .runtime_validity = [](TrtRuntime const *r, void const *plan, uint64_t bytes, uint64_t *diagnostics) {
        return static_cast<int32_t>(in(r)->getEngineValidity(plan, static_cast<int64_t>(bytes), diagnostics));
    },
#else
    .runtime_header_bytes = nullptr,
    .runtime_validity = nullptr,
#endif
    .runtime_deserialize = [](TrtRuntime *r, void const *plan,
                              uint64_t bytes) { return out(in(r)->deserializeCudaEngine(plan, bytes)); },

    .engine_destroy = destroy<TrtEngine>,
    .engine_tensors = [](TrtEngine const *e) { return in(e)->getNbIOTensors(); },
    .engine_tensor_name = [](TrtEngine const *e, int32_t i) { return in(e)->getIOTensorName(i); },
    .engine_tensor_mode = [](TrtEngine const *e, char const *t) { return static_cast<int32_t>(in(e)->getTensorIOMode(t)); },
    .engine_tensor_type = [](TrtEngine const *e, char const *t) { return static_cast<int32_t>(in(e)->getTensorDataType(t)); },
    .engine_tensor_location = [](TrtEngine const *e,
                                 char const *t) { return static_cast<int32_t>(in(e)->getTensorLocation(t)); },
    .engine_tensor_shape = [](TrtEngine const *e, char const *t) { return out(in(e)->getTensorShape(t)); },
    .engine_aliased_input = [](TrtEngine const *e, char const *output) { return in(e)->getAliasedInputTensor(output); },
    .engine_profiles = [](TrtEngine const *e) { return in(e)->getNbOptimizationProfiles(); },
    .engine_profile_shape = [](TrtEngine const *e, char const *input, int32_t profile,
                               int32_t selector) { return out(in(e)->getProfileShape(input, profile, selector_of(selector))); },
    .engine_scratch_bytes = [](TrtEngine const *e) { return in(e)->getDeviceMemorySizeV2(); },
    .engine_profile_scratch_bytes = [](TrtEngine const *e,
                                       int32_t profile) { return in(e)->getDeviceMemorySizeForProfileV2(profile); },

    .runtime_config_create = [](TrtEngine *e) { return out(in(e)->createRuntimeConfig()); },
    .runtime_config_destroy = destroy<TrtRuntimeConfig>,
    .runtime_config_set_allocation = [](TrtRuntimeConfig *c, int32_t strategy) {
        in(c)->setExecutionContextAllocationStrategy(static_cast<ExecutionContextAllocationStrategy>(strategy));
    },
#ifdef TENSORRT_SHIM_RTX
    .runtime_config_set_specialization = [](TrtRuntimeConfig *c, int32_t strategy) {
        in(c)->setDynamicShapesKernelSpecializationStrategy(static_cast<DynamicShapesKernelSpecializationStrategy>(strategy));
    },
    .runtime_config_set_graphs = [](TrtRuntimeConfig *c,
                                    int32_t strategy) { return in(c)->setCudaGraphStrategy(static_cast<CudaGraphStrategy>(strategy)); },
    .runtime_cache_create = [](TrtRuntimeConfig const *c) { return out(in(c)->createRuntimeCache()); },
    .runtime_cache_destroy = destroy<TrtRuntimeCache>,
    .runtime_config_set_cache = [](TrtRuntimeConfig *c, TrtRuntimeCache const *cache) { return in(c)->setRuntimeCache(*in(cache)); },
    .runtime_cache_load = [](TrtRuntimeCache *c, void const *bytes, uint64_t size) { return in(c)->deserialize(bytes, size); },
    .runtime_cache_serialize = [](TrtRuntimeCache const *c) { return out(in(c)->serialize()); },
#else
    .runtime_config_set_specialization = nullptr,
    .runtime_config_set_graphs = nullptr,
    .runtime_cache_create = nullptr,
    .runtime_cache_destroy = nullptr,
    .runtime_config_set_cache = nullptr,
    .runtime_cache_load = nullptr,
    .runtime_cache_serialize = nullptr,
#endif

    .context_create = context_create,
    .context_create_with = [](TrtEngine *e, TrtRuntimeConfig *c) { return out(in(e)->createExecutionContext(in(c))); },
    .context_destroy = destroy<TrtContext>,
    .context_set_profile = [](TrtContext *c, int32_t profile,
                              void *stream) { return in(c)->setOptimizationProfileAsync(profile, stream_of(stream)); },
    .context_profile = [](TrtContext const *c) { return in(c)->getOptimizationProfile(); },
    .context_set_input_shape = [](TrtContext *c, char const *input,
                                  TrtDims const *dims) { return in(c)->setInputShape(input, in(*dims)); },
    .context_tensor_shape = [](TrtContext const *c, char const *t) { return out(in(c)->getTensorShape(t)); },
    .context_set_address = [](TrtContext *c, char const *t, void *address) { return in(c)->setTensorAddress(t, address); },
    .context_set_scratch = [](TrtContext *c, void *address, int64_t bytes) { in(c)->setDeviceMemoryV2(address, bytes); },
    .context_scratch_bytes = [](TrtContext *c) { return static_cast<uint64_t>(in(c)->updateDeviceMemorySizeForShapes()); },
    .context_enqueue = [](TrtContext *c, void *stream) { return in(c)->enqueueV3(stream_of(stream)); },
#ifdef TENSORRT_SHIM_RTX
    .context_is_capturable = [](TrtContext const *c, void *stream) { return in(c)->isStreamCapturable(stream_of(stream)); },
#else
    .context_is_capturable = nullptr,
#endif
};

} // namespace

extern "C" TrtShim const *TENSORRT_SHIM(void) { return &kTABLE; }
