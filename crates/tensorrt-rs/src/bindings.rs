#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct TrtLogger {
    _unused: [u8; 0],
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct TrtMonitor {
    _unused: [u8; 0],
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct TrtBuilder {
    _unused: [u8; 0],
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct TrtNetwork {
    _unused: [u8; 0],
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct TrtTensor {
    _unused: [u8; 0],
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct TrtParser {
    _unused: [u8; 0],
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct TrtProfile {
    _unused: [u8; 0],
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct TrtConfig {
    _unused: [u8; 0],
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct TrtMemory {
    _unused: [u8; 0],
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct TrtRuntime {
    _unused: [u8; 0],
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct TrtEngine {
    _unused: [u8; 0],
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct TrtRuntimeConfig {
    _unused: [u8; 0],
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct TrtRuntimeCache {
    _unused: [u8; 0],
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct TrtContext {
    _unused: [u8; 0],
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct TrtDims {
    pub rank: i32,
    pub extents: [i64; 8usize],
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct TrtParserError {
    pub code: i32,
    pub node: i32,
    pub description: *const ::core::ffi::c_char,
    pub node_name: *const ::core::ffi::c_char,
    pub node_operator: *const ::core::ffi::c_char,
}
pub type TrtLogFn = ::core::option::Option<
    unsafe extern "C" fn(user: *mut ::core::ffi::c_void, severity: i32, message: *const ::core::ffi::c_char),
>;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct TrtMonitorFns {
    pub start: ::core::option::Option<
        unsafe extern "C" fn(
            user: *mut ::core::ffi::c_void,
            phase: *const ::core::ffi::c_char,
            parent: *const ::core::ffi::c_char,
            steps: i32,
        ),
    >,
    pub step: ::core::option::Option<
        unsafe extern "C" fn(user: *mut ::core::ffi::c_void, phase: *const ::core::ffi::c_char, step: i32) -> bool,
    >,
    pub finish:
        ::core::option::Option<unsafe extern "C" fn(user: *mut ::core::ffi::c_void, phase: *const ::core::ffi::c_char)>,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct TrtShim {
    pub version: [i32; 3usize],
    pub logger_create:
        ::core::option::Option<unsafe extern "C" fn(log: TrtLogFn, user: *mut ::core::ffi::c_void) -> *mut TrtLogger>,
    pub logger_destroy: ::core::option::Option<unsafe extern "C" fn(logger: *mut TrtLogger)>,
    pub builder_create: ::core::option::Option<
        unsafe extern "C" fn(factory: *mut ::core::ffi::c_void, logger: *mut TrtLogger) -> *mut TrtBuilder,
    >,
    pub builder_destroy: ::core::option::Option<unsafe extern "C" fn(builder: *mut TrtBuilder)>,
    pub network_create: ::core::option::Option<unsafe extern "C" fn(builder: *mut TrtBuilder) -> *mut TrtNetwork>,
    pub network_destroy: ::core::option::Option<unsafe extern "C" fn(network: *mut TrtNetwork)>,
    pub config_create: ::core::option::Option<unsafe extern "C" fn(builder: *mut TrtBuilder) -> *mut TrtConfig>,
    pub config_destroy: ::core::option::Option<unsafe extern "C" fn(config: *mut TrtConfig)>,
    pub profile_create: ::core::option::Option<unsafe extern "C" fn(builder: *mut TrtBuilder) -> *mut TrtProfile>,
    pub build_serialized: ::core::option::Option<
        unsafe extern "C" fn(
            builder: *mut TrtBuilder,
            network: *mut TrtNetwork,
            config: *mut TrtConfig,
        ) -> *mut TrtMemory,
    >,
    pub memory_data:
        ::core::option::Option<unsafe extern "C" fn(memory: *const TrtMemory) -> *const ::core::ffi::c_void>,
    pub memory_size: ::core::option::Option<unsafe extern "C" fn(memory: *const TrtMemory) -> u64>,
    pub memory_destroy: ::core::option::Option<unsafe extern "C" fn(memory: *mut TrtMemory)>,
    pub profile_set_dimensions: ::core::option::Option<
        unsafe extern "C" fn(
            profile: *mut TrtProfile,
            input: *const ::core::ffi::c_char,
            selector: i32,
            dims: *const TrtDims,
        ) -> bool,
    >,
    pub profile_is_valid: ::core::option::Option<unsafe extern "C" fn(profile: *const TrtProfile) -> bool>,
    pub config_set_workspace: ::core::option::Option<unsafe extern "C" fn(config: *mut TrtConfig, bytes: u64)>,
    pub config_add_profile:
        ::core::option::Option<unsafe extern "C" fn(config: *mut TrtConfig, profile: *const TrtProfile) -> i32>,
    pub config_set_monitor:
        ::core::option::Option<unsafe extern "C" fn(config: *mut TrtConfig, monitor: *mut TrtMonitor)>,
    pub config_set_compute_capabilities:
        ::core::option::Option<unsafe extern "C" fn(config: *mut TrtConfig, values: *const i32, count: i32) -> bool>,
    pub config_require_user_allocation: ::core::option::Option<unsafe extern "C" fn(config: *mut TrtConfig)>,
    pub monitor_create: ::core::option::Option<
        unsafe extern "C" fn(functions: *const TrtMonitorFns, user: *mut ::core::ffi::c_void) -> *mut TrtMonitor,
    >,
    pub monitor_destroy: ::core::option::Option<unsafe extern "C" fn(monitor: *mut TrtMonitor)>,
    pub network_inputs: ::core::option::Option<unsafe extern "C" fn(network: *const TrtNetwork) -> i32>,
    pub network_input:
        ::core::option::Option<unsafe extern "C" fn(network: *const TrtNetwork, index: i32) -> *const TrtTensor>,
    pub network_outputs: ::core::option::Option<unsafe extern "C" fn(network: *const TrtNetwork) -> i32>,
    pub network_output:
        ::core::option::Option<unsafe extern "C" fn(network: *const TrtNetwork, index: i32) -> *const TrtTensor>,
    pub network_layers: ::core::option::Option<unsafe extern "C" fn(network: *const TrtNetwork) -> i32>,
    pub network_layer_type: ::core::option::Option<unsafe extern "C" fn(network: *const TrtNetwork, layer: i32) -> i32>,
    pub network_layer_name: ::core::option::Option<
        unsafe extern "C" fn(network: *const TrtNetwork, layer: i32) -> *const ::core::ffi::c_char,
    >,
    pub network_layer_inputs:
        ::core::option::Option<unsafe extern "C" fn(network: *const TrtNetwork, layer: i32) -> i32>,
    pub network_layer_input: ::core::option::Option<
        unsafe extern "C" fn(network: *const TrtNetwork, layer: i32, index: i32) -> *const TrtTensor,
    >,
    pub network_set_decomposable:
        ::core::option::Option<unsafe extern "C" fn(network: *mut TrtNetwork, layer: i32, decomposable: bool) -> bool>,
    pub network_decomposable:
        ::core::option::Option<unsafe extern "C" fn(network: *const TrtNetwork, layer: i32) -> bool>,
    pub network_attention_mask:
        ::core::option::Option<unsafe extern "C" fn(network: *const TrtNetwork, layer: i32) -> *const TrtTensor>,
    pub tensor_name:
        ::core::option::Option<unsafe extern "C" fn(tensor: *const TrtTensor) -> *const ::core::ffi::c_char>,
    pub tensor_type: ::core::option::Option<unsafe extern "C" fn(tensor: *const TrtTensor) -> i32>,
    pub tensor_dims: ::core::option::Option<unsafe extern "C" fn(tensor: *const TrtTensor) -> TrtDims>,
    pub parser_create: ::core::option::Option<
        unsafe extern "C" fn(
            factory: *mut ::core::ffi::c_void,
            network: *mut TrtNetwork,
            logger: *mut TrtLogger,
        ) -> *mut TrtParser,
    >,
    pub parser_destroy: ::core::option::Option<unsafe extern "C" fn(parser: *mut TrtParser)>,
    pub parser_parse_file:
        ::core::option::Option<unsafe extern "C" fn(parser: *mut TrtParser, path: *const ::core::ffi::c_char) -> bool>,
    pub parser_errors: ::core::option::Option<unsafe extern "C" fn(parser: *const TrtParser) -> i32>,
    pub parser_error: ::core::option::Option<
        unsafe extern "C" fn(parser: *const TrtParser, index: i32, error: *mut TrtParserError) -> bool,
    >,
    pub runtime_create: ::core::option::Option<
        unsafe extern "C" fn(factory: *mut ::core::ffi::c_void, logger: *mut TrtLogger) -> *mut TrtRuntime,
    >,
    pub runtime_destroy: ::core::option::Option<unsafe extern "C" fn(runtime: *mut TrtRuntime)>,
    pub runtime_header_bytes: ::core::option::Option<unsafe extern "C" fn(runtime: *const TrtRuntime) -> i64>,
    pub runtime_validity: ::core::option::Option<
        unsafe extern "C" fn(
            runtime: *const TrtRuntime,
            plan: *const ::core::ffi::c_void,
            bytes: u64,
            diagnostics: *mut u64,
        ) -> i32,
    >,
    pub runtime_deserialize: ::core::option::Option<
        unsafe extern "C" fn(runtime: *mut TrtRuntime, plan: *const ::core::ffi::c_void, bytes: u64) -> *mut TrtEngine,
    >,
    pub engine_destroy: ::core::option::Option<unsafe extern "C" fn(engine: *mut TrtEngine)>,
    pub engine_tensors: ::core::option::Option<unsafe extern "C" fn(engine: *const TrtEngine) -> i32>,
    pub engine_tensor_name: ::core::option::Option<
        unsafe extern "C" fn(engine: *const TrtEngine, index: i32) -> *const ::core::ffi::c_char,
    >,
    pub engine_tensor_mode: ::core::option::Option<
        unsafe extern "C" fn(engine: *const TrtEngine, tensor: *const ::core::ffi::c_char) -> i32,
    >,
    pub engine_tensor_type: ::core::option::Option<
        unsafe extern "C" fn(engine: *const TrtEngine, tensor: *const ::core::ffi::c_char) -> i32,
    >,
    pub engine_tensor_location: ::core::option::Option<
        unsafe extern "C" fn(engine: *const TrtEngine, tensor: *const ::core::ffi::c_char) -> i32,
    >,
    pub engine_tensor_shape: ::core::option::Option<
        unsafe extern "C" fn(engine: *const TrtEngine, tensor: *const ::core::ffi::c_char) -> TrtDims,
    >,
    pub engine_aliased_input: ::core::option::Option<
        unsafe extern "C" fn(
            engine: *const TrtEngine,
            output: *const ::core::ffi::c_char,
        ) -> *const ::core::ffi::c_char,
    >,
    pub engine_profiles: ::core::option::Option<unsafe extern "C" fn(engine: *const TrtEngine) -> i32>,
    pub engine_profile_shape: ::core::option::Option<
        unsafe extern "C" fn(
            engine: *const TrtEngine,
            input: *const ::core::ffi::c_char,
            profile: i32,
            selector: i32,
        ) -> TrtDims,
    >,
    pub engine_scratch_bytes: ::core::option::Option<unsafe extern "C" fn(engine: *const TrtEngine) -> i64>,
    pub engine_profile_scratch_bytes:
        ::core::option::Option<unsafe extern "C" fn(engine: *const TrtEngine, profile: i32) -> i64>,
    pub runtime_config_create:
        ::core::option::Option<unsafe extern "C" fn(engine: *mut TrtEngine) -> *mut TrtRuntimeConfig>,
    pub runtime_config_destroy: ::core::option::Option<unsafe extern "C" fn(config: *mut TrtRuntimeConfig)>,
    pub runtime_config_set_allocation:
        ::core::option::Option<unsafe extern "C" fn(config: *mut TrtRuntimeConfig, strategy: i32)>,
    pub runtime_config_set_specialization:
        ::core::option::Option<unsafe extern "C" fn(config: *mut TrtRuntimeConfig, strategy: i32)>,
    pub runtime_config_set_graphs:
        ::core::option::Option<unsafe extern "C" fn(config: *mut TrtRuntimeConfig, strategy: i32) -> bool>,
    pub runtime_cache_create:
        ::core::option::Option<unsafe extern "C" fn(config: *const TrtRuntimeConfig) -> *mut TrtRuntimeCache>,
    pub runtime_cache_destroy: ::core::option::Option<unsafe extern "C" fn(cache: *mut TrtRuntimeCache)>,
    pub runtime_config_set_cache: ::core::option::Option<
        unsafe extern "C" fn(config: *mut TrtRuntimeConfig, cache: *const TrtRuntimeCache) -> bool,
    >,
    pub runtime_cache_load: ::core::option::Option<
        unsafe extern "C" fn(cache: *mut TrtRuntimeCache, bytes: *const ::core::ffi::c_void, size: u64) -> bool,
    >,
    pub runtime_cache_serialize:
        ::core::option::Option<unsafe extern "C" fn(cache: *const TrtRuntimeCache) -> *mut TrtMemory>,
    pub context_create:
        ::core::option::Option<unsafe extern "C" fn(engine: *mut TrtEngine, strategy: i32) -> *mut TrtContext>,
    pub context_create_with: ::core::option::Option<
        unsafe extern "C" fn(engine: *mut TrtEngine, config: *mut TrtRuntimeConfig) -> *mut TrtContext,
    >,
    pub context_destroy: ::core::option::Option<unsafe extern "C" fn(context: *mut TrtContext)>,
    pub context_set_profile: ::core::option::Option<
        unsafe extern "C" fn(context: *mut TrtContext, profile: i32, stream: *mut ::core::ffi::c_void) -> bool,
    >,
    pub context_profile: ::core::option::Option<unsafe extern "C" fn(context: *const TrtContext) -> i32>,
    pub context_set_input_shape: ::core::option::Option<
        unsafe extern "C" fn(context: *mut TrtContext, input: *const ::core::ffi::c_char, dims: *const TrtDims) -> bool,
    >,
    pub context_tensor_shape: ::core::option::Option<
        unsafe extern "C" fn(context: *const TrtContext, tensor: *const ::core::ffi::c_char) -> TrtDims,
    >,
    pub context_set_address: ::core::option::Option<
        unsafe extern "C" fn(
            context: *mut TrtContext,
            tensor: *const ::core::ffi::c_char,
            address: *mut ::core::ffi::c_void,
        ) -> bool,
    >,
    pub context_set_scratch: ::core::option::Option<
        unsafe extern "C" fn(context: *mut TrtContext, address: *mut ::core::ffi::c_void, bytes: i64),
    >,
    pub context_scratch_bytes: ::core::option::Option<unsafe extern "C" fn(context: *mut TrtContext) -> u64>,
    pub context_enqueue: ::core::option::Option<
        unsafe extern "C" fn(context: *mut TrtContext, stream: *mut ::core::ffi::c_void) -> bool,
    >,
    pub context_is_capturable: ::core::option::Option<
        unsafe extern "C" fn(context: *const TrtContext, stream: *mut ::core::ffi::c_void) -> bool,
    >,
}
unsafe extern "C" {
    pub fn tensorrt_shim_enterprise() -> *const TrtShim;
}
unsafe extern "C" {
    pub fn tensorrt_shim_rtx() -> *const TrtShim;
}
