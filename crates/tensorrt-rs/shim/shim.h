/* The C face of TensorRT's C++ classes: one table of functions for each flavour of the library.
 *
 * The implementation, shim.cpp, is compiled once per flavour. It holds no policy and no state, throws nothing, and has no
 * undefined symbol of TensorRT or CUDA: the factories are passed in, as found by dlsym, and everything else goes through the
 * objects' own virtual functions.
 *
 * An entry is null where the flavour has no such function. Strings are null-terminated UTF-8. Functions that return `bool` say
 * whether TensorRT accepted; those that return a pointer return null when it did not, and the reason is in the log.
 * Who owns what is said at each function that returns or keeps a pointer.
 */
#ifndef TENSORRT_SHIM_H
#define TENSORRT_SHIM_H

#ifndef __cplusplus
#include <stdbool.h>
#endif
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct TrtLogger TrtLogger;
typedef struct TrtMonitor TrtMonitor;
typedef struct TrtBuilder TrtBuilder;
typedef struct TrtNetwork TrtNetwork;
typedef struct TrtTensor TrtTensor;
typedef struct TrtParser TrtParser;
typedef struct TrtProfile TrtProfile;
typedef struct TrtConfig TrtConfig;
typedef struct TrtMemory TrtMemory;
typedef struct TrtRuntime TrtRuntime;
typedef struct TrtEngine TrtEngine;
typedef struct TrtRuntimeConfig TrtRuntimeConfig;
typedef struct TrtRuntimeCache TrtRuntimeCache;
typedef struct TrtContext TrtContext;

/* nvinfer1::Dims: -1 is an extent that is not known yet. A rank of -1 says that there is no such tensor. */
typedef struct TrtDims {
    int32_t rank;
    int64_t extents[8];
} TrtDims;

/* The strings are the parser's, until it parses again or is destroyed. */
typedef struct TrtParserError {
    int32_t code;
    int32_t node;
    const char *description;
    const char *node_name;
    const char *node_operator;
} TrtParserError;

/* Called from any thread, several at once. The message is gone after the call. */
typedef void (*TrtLogFn)(void *user, int32_t severity, const char *message);

/* Called from any thread. `parent` may be null. The strings are gone after the call. */
typedef struct TrtMonitorFns {
    void (*start)(void *user, const char *phase, const char *parent, int32_t steps);
    bool (*step)(void *user, const char *phase, int32_t step); /* false ends the build */
    void (*finish)(void *user, const char *phase);
} TrtMonitorFns;

typedef struct TrtShim {
    /* What the headers said that this was compiled against: major, minor, patch. */
    int32_t version[3];

    /* ---- log: the caller owns it, and `user` has to outlive it; it has to outlive everything that it was given to */
    TrtLogger *(*logger_create)(TrtLogFn log, void *user);
    void (*logger_destroy)(TrtLogger *logger);

    /* ---- building */
    /* `factory` is createInferBuilder_INTERNAL. The caller owns the builder, and destroys it after all that it made. */
    TrtBuilder *(*builder_create)(void *factory, TrtLogger *logger);
    void (*builder_destroy)(TrtBuilder *builder);
    /* The caller owns the network. */
    TrtNetwork *(*network_create)(TrtBuilder *builder);
    void (*network_destroy)(TrtNetwork *network);
    /* The caller owns the configuration. */
    TrtConfig *(*config_create)(TrtBuilder *builder);
    void (*config_destroy)(TrtConfig *config);
    /* The builder owns the profile. */
    TrtProfile *(*profile_create)(TrtBuilder *builder);
    /* The caller owns the serialized engine, and may keep it after the builder is gone. */
    TrtMemory *(*build_serialized)(TrtBuilder *builder, TrtNetwork *network, TrtConfig *config);

    /* The bytes are the memory's. */
    const void *(*memory_data)(const TrtMemory *memory);
    uint64_t (*memory_size)(const TrtMemory *memory);
    void (*memory_destroy)(TrtMemory *memory);

    /* `selector` is 0 for the smallest, 1 for the best, 2 for the largest. The name is copied. */
    bool (*profile_set_dimensions)(TrtProfile *profile, const char *input, int32_t selector, const TrtDims *dims);
    bool (*profile_is_valid)(const TrtProfile *profile);

    void (*config_set_workspace)(TrtConfig *config, uint64_t bytes);
    /* The profile stays the builder's. Returns its index, or -1. */
    int32_t (*config_add_profile)(TrtConfig *config, const TrtProfile *profile);
    /* The monitor stays the caller's and has to outlive the configuration's builds. Null takes it away. */
    void (*config_set_monitor)(TrtConfig *config, TrtMonitor *monitor);
    /* TensorRT-RTX only: architectures such as 86, or 1 for the GPU at hand. */
    bool (*config_set_compute_capabilities)(TrtConfig *config, const int32_t *values, int32_t count);
    /* TensorRT-RTX only: all device memory comes from the caller, so that every enqueue can be captured. */
    void (*config_require_user_allocation)(TrtConfig *config);

    /* The caller owns the monitor; `user` has to outlive it. */
    TrtMonitor *(*monitor_create)(const TrtMonitorFns *functions, void *user);
    void (*monitor_destroy)(TrtMonitor *monitor);

    /* ---- networks; tensors are the network's, and stay the same pointer while it is there */
    int32_t (*network_inputs)(const TrtNetwork *network);
    const TrtTensor *(*network_input)(const TrtNetwork *network, int32_t index);
    int32_t (*network_outputs)(const TrtNetwork *network);
    const TrtTensor *(*network_output)(const TrtNetwork *network, int32_t index);
    int32_t (*network_layers)(const TrtNetwork *network);
    int32_t (*network_layer_type)(const TrtNetwork *network, int32_t layer);
    /* The network owns the name. */
    const char *(*network_layer_name)(const TrtNetwork *network, int32_t layer);
    int32_t (*network_layer_inputs)(const TrtNetwork *network, int32_t layer);
    /* Null where an optional input is absent. */
    const TrtTensor *(*network_layer_input)(const TrtNetwork *network, int32_t layer, int32_t index);
    /* For layers of type ATTENTION_INPUT; false for every other. */
    bool (*network_set_decomposable)(TrtNetwork *network, int32_t layer, bool decomposable);
    bool (*network_decomposable)(const TrtNetwork *network, int32_t layer);
    /* The mask of an ATTENTION_INPUT layer, or null. */
    const TrtTensor *(*network_attention_mask)(const TrtNetwork *network, int32_t layer);
    /* The tensor owns the name. */
    const char *(*tensor_name)(const TrtTensor *tensor);
    int32_t (*tensor_type)(const TrtTensor *tensor);
    TrtDims (*tensor_dims)(const TrtTensor *tensor);

    /* `factory` is createNvOnnxParser_INTERNAL. The caller owns the parser. The network uses the parser's memory for weights:
     * destroy the network, or build, before the parser goes. */
    TrtParser *(*parser_create)(void *factory, TrtNetwork *network, TrtLogger *logger);
    void (*parser_destroy)(TrtParser *parser);
    bool (*parser_parse_file)(TrtParser *parser, const char *path);
    int32_t (*parser_errors)(const TrtParser *parser);
    bool (*parser_error)(const TrtParser *parser, int32_t index, TrtParserError *error);

    /* ---- running */
    /* `factory` is createInferRuntime_INTERNAL. The caller owns the runtime, and destroys it after its engines. */
    TrtRuntime *(*runtime_create)(void *factory, TrtLogger *logger);
    void (*runtime_destroy)(TrtRuntime *runtime);
    /* TensorRT-RTX only: how many of a plan's first bytes runtime_validity needs at least. */
    int64_t (*runtime_header_bytes)(const TrtRuntime *runtime);
    /* TensorRT-RTX only: 0 valid, 1 valid but slower, 2 invalid, and then why, as EngineInvalidityDiagnostics. */
    int32_t (*runtime_validity)(const TrtRuntime *runtime, const void *plan, uint64_t bytes, uint64_t *diagnostics);
    /* The caller owns the engine; the plan may go after the call. */
    TrtEngine *(*runtime_deserialize)(TrtRuntime *runtime, const void *plan, uint64_t bytes);

    void (*engine_destroy)(TrtEngine *engine);
    int32_t (*engine_tensors)(const TrtEngine *engine);
    /* The engine owns the name. */
    const char *(*engine_tensor_name)(const TrtEngine *engine, int32_t index);
    int32_t (*engine_tensor_mode)(const TrtEngine *engine, const char *tensor); /* 1 input, 2 output */
    int32_t (*engine_tensor_type)(const TrtEngine *engine, const char *tensor);
    int32_t (*engine_tensor_location)(const TrtEngine *engine, const char *tensor); /* 0 device, 1 host */
    TrtDims (*engine_tensor_shape)(const TrtEngine *engine, const char *tensor);
    /* The input at whose address an output has to be, or null. The engine owns the name. */
    const char *(*engine_aliased_input)(const TrtEngine *engine, const char *output);
    int32_t (*engine_profiles)(const TrtEngine *engine);
    TrtDims (*engine_profile_shape)(const TrtEngine *engine, const char *input, int32_t profile, int32_t selector);
    int64_t (*engine_scratch_bytes)(const TrtEngine *engine);
    int64_t (*engine_profile_scratch_bytes)(const TrtEngine *engine, int32_t profile);

    /* The caller owns the configuration. */
    TrtRuntimeConfig *(*runtime_config_create)(TrtEngine *engine);
    void (*runtime_config_destroy)(TrtRuntimeConfig *config);
    /* 0 static, 1 on profile change, 2 user managed. */
    void (*runtime_config_set_allocation)(TrtRuntimeConfig *config, int32_t strategy);
    /* TensorRT-RTX only. 0 lazy, 1 eager, 2 none. */
    void (*runtime_config_set_specialization)(TrtRuntimeConfig *config, int32_t strategy);
    /* TensorRT-RTX only. 0 disabled, 1 the whole graph. */
    bool (*runtime_config_set_graphs)(TrtRuntimeConfig *config, int32_t strategy);
    /* TensorRT-RTX only. The caller owns the cache. */
    TrtRuntimeCache *(*runtime_cache_create)(const TrtRuntimeConfig *config);
    void (*runtime_cache_destroy)(TrtRuntimeCache *cache);
    /* The cache stays the caller's and has to outlive the configuration and its contexts. */
    bool (*runtime_config_set_cache)(TrtRuntimeConfig *config, const TrtRuntimeCache *cache);
    bool (*runtime_cache_load)(TrtRuntimeCache *cache, const void *bytes, uint64_t size);
    /* The caller owns the memory. */
    TrtMemory *(*runtime_cache_serialize)(const TrtRuntimeCache *cache);

    /* The caller owns the context, and destroys it before its engine. */
    TrtContext *(*context_create)(TrtEngine *engine, int32_t strategy);
    /* As above; the configuration may go after the call. */
    TrtContext *(*context_create_with)(TrtEngine *engine, TrtRuntimeConfig *config);
    void (*context_destroy)(TrtContext *context);
    /* Streams are cudaStream_t and stay the caller's. */
    bool (*context_set_profile)(TrtContext *context, int32_t profile, void *stream);
    int32_t (*context_profile)(const TrtContext *context);
    bool (*context_set_input_shape)(TrtContext *context, const char *input, const TrtDims *dims);
    TrtDims (*context_tensor_shape)(const TrtContext *context, const char *tensor);
    /* The memory stays the caller's, and has to be there while the context runs. */
    bool (*context_set_address)(TrtContext *context, const char *tensor, void *address);
    /* The scratch memory stays the caller's, and has to be there while the context runs. */
    void (*context_set_scratch)(TrtContext *context, void *address, int64_t bytes);
    /* Bytes of scratch for the shapes that are set, 0 on failure. */
    uint64_t (*context_scratch_bytes)(TrtContext *context);
    bool (*context_enqueue)(TrtContext *context, void *stream);
    /* TensorRT-RTX only. */
    bool (*context_is_capturable)(const TrtContext *context, void *stream);
} TrtShim;

/* The tables. Each is static, and linked only where its flavour's headers were there at build time. */
const TrtShim *tensorrt_shim_enterprise(void);
const TrtShim *tensorrt_shim_rtx(void);

#ifdef __cplusplus
}
#endif

#endif
