// The execution context: what it refuses, when it is enqueued, and what runs then.
#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "engine.h"

namespace simulator {
namespace {

// TensorRT documents that addresses are aligned to this.
constexpr std::uintptr_t kAlignment = 256;
// Memory that a context takes for itself.
constexpr std::size_t kContextBytes = 64 << 10;

bool outside(Shape const& shape, std::array<Shape, 3> const& allowed) {
    if (shape.size() != allowed[0].size()) return true;
    for (std::size_t i = 0; i < shape.size(); ++i) {
        if (shape[i] < allowed[0][i] || shape[i] > allowed[2][i]) return true;
    }
    return false;
}

}  // namespace

Context::Context(Engine& engine, RuntimeConfig const& config) : m_engine(engine), m_strategy(config.strategy), m_compiled(config.cache) {
    mImpl = this;
    ++engine.contexts;
    ++settings().contexts;
}

Context::~Context() noexcept {
    *m_alive = false;
    --m_engine.contexts;
}

bool Context::setOptimizationProfileAsync(int32_t profile, cudaStream_t stream) noexcept {
    if (profile < 0 || profile >= m_engine.getNbOptimizationProfiles()) {
        return error(m_engine.logger, "there is no optimization profile " + std::to_string(profile));
    }
    if (!stream) return error(m_engine.logger, "an optimization profile is set on no stream");
    if (stream->spoil_capture()) return error(m_engine.logger, "an optimization profile is set while the stream is captured");
    if (!m_memory) m_memory = stream->take(kContextBytes);
    if (!m_memory) return error(m_engine.logger, "out of memory: a context needs " + std::to_string(kContextBytes) + " bytes");
    m_profile = profile;
    m_shapes.clear();
    m_warm.clear();
    return true;
}

bool Context::setInputShape(char const* name, Dims const& dims) noexcept {
    auto const* tensor = m_engine.graph->find(name);
    if (!tensor || !tensor->is_input) return error(m_engine.logger, std::string("setInputShape: there is no input ") + name);
    auto const& profile = m_engine.plan.profiles[static_cast<std::size_t>(m_profile)];
    auto allowed = profile.find(name);
    Shape shape = shape_of(dims);
    if (allowed != profile.end() && outside(shape, allowed->second)) {
        return error(m_engine.logger, std::string("setInputShape: ") + name + " " + text(shape) + " is outside profile " + std::to_string(m_profile) +
                                          ", which has " + text(allowed->second[0]) + " to " + text(allowed->second[2]));
    }
    m_shapes[name] = shape;
    return true;
}

Shape Context::shape(Graph::Tensor const& tensor) const {
    auto set = m_shapes.find(tensor.name);
    if (set != m_shapes.end()) return set->second;
    Shape shape = tensor.shape;
    if (tensor.is_input) return shape;
    // The graphs' dynamic extents: the batch for caches, the source's tokens for what an encoder gives, which has one more before
    // it, and the selected positions for everything else that comes out.
    Graph::Tensor const* past = m_engine.past_of(tensor.name);
    bool encodes = !m_engine.graph->find("select");
    auto from = m_shapes.find(past ? past->name : encodes ? "input_ids" : "select");
    if (from == m_shapes.end()) return shape;
    auto open = std::find_if(shape.begin(), shape.end(), [](auto extent) { return extent < 0; });
    if (open != shape.end()) *open = from->second[encodes ? 1 : 0];
    return shape;
}

Dims Context::getTensorShape(char const* name) const noexcept {
    auto const* tensor = m_engine.graph->find(name);
    Dims none{};
    none.nbDims = -1;
    return tensor ? dims_of(shape(*tensor)) : none;
}

bool Context::setTensorAddress(char const* name, void* address) noexcept {
    if (!m_engine.graph->find(name)) return error(m_engine.logger, std::string("setTensorAddress: there is no tensor ") + name);
    if (reinterpret_cast<std::uintptr_t>(address) % kAlignment != 0) {
        return error(m_engine.logger, std::string("setTensorAddress: the address of ") + name + " is not a multiple of 256");
    }
    m_addresses[name] = address;
    return true;
}

void Context::setDeviceMemoryV2(void* memory, int64_t size) noexcept {
    if (reinterpret_cast<std::uintptr_t>(memory) % kAlignment != 0) {
        m_scratch = {};
        error(m_engine.logger, "setDeviceMemoryV2: the address is not a multiple of 256");
        return;
    }
    m_scratch = {memory, {size}};
}

size_t Context::updateDeviceMemorySizeForShapes() noexcept {
    if (!unspecified().empty()) return error(m_engine.logger, "updateDeviceMemorySizeForShapes: input shapes are missing");
    return static_cast<size_t>(m_engine.getDeviceMemorySizeForProfileV2(m_profile));
}

std::vector<std::string> Context::unspecified() const {
    std::vector<std::string> missing;
    for (auto const& tensor : m_engine.graph->tensors()) {
        Shape known = shape(tensor);
        bool open = std::any_of(known.begin(), known.end(), [](auto extent) { return extent < 0; });
        if (tensor.is_input && open) missing.push_back(tensor.name);
    }
    return missing;
}

int32_t Context::inferShapes(int32_t capacity, char const** names) noexcept {
    auto missing = unspecified();
    for (std::size_t i = 0; i < missing.size() && i < static_cast<std::size_t>(capacity); ++i) {
        names[i] = m_engine.graph->find(missing[i])->name.c_str();
    }
    return static_cast<int32_t>(missing.size());
}

bool Context::check_aliases(Launch const& launch) const {
    for (auto const& [name, bound] : launch.bound) {
        Graph::Tensor const* past = m_engine.past_of(name);
        if (past && launch.bound.at(past->name).address != bound.address) {
            return error(m_engine.logger, "enqueueV3: " + name + " is not at the address of " + past->name + ", whose update it is");
        }
    }
    return true;
}

// TensorRT-RTX compiles kernels at the first run with new shapes, unless the cache has them.
void Context::compile() {
    std::string key = std::to_string(m_profile);
    for (auto const& [name, shape] : m_shapes) key += " " + name + text(shape);
    std::set<std::string>& kernels = m_compiled ? *m_compiled : m_own;
    if (kernels.insert(key).second) ++settings().compiled;
}

bool Context::prepare(CUstream_st* stream, Launch& launch) {
    ILogger* logger = m_engine.logger;
    if (!stream) return error(logger, "enqueueV3: there is no stream");
    auto missing = unspecified();
    if (!missing.empty()) return error(logger, "enqueueV3: the shape of " + missing[0] + " is not set");
    for (auto const& tensor : m_engine.graph->tensors()) {
        auto address = m_addresses.find(tensor.name);
        if (address == m_addresses.end()) return error(logger, "enqueueV3: the address of " + tensor.name + " is not set");
        launch.bound[tensor.name] = {address->second, shape(tensor)};
    }
    if (!check_aliases(launch)) return false;
    if (m_strategy == ExecutionContextAllocationStrategy::kUSER_MANAGED) {
        if (!m_scratch.address || m_scratch.shape[0] < m_engine.getDeviceMemorySizeForProfileV2(m_profile)) {
            return error(logger, "enqueueV3: the context was given no scratch memory, or too little");
        }
        launch.scratch = m_scratch;
    }
    launch.graph = m_engine.graph;
    launch.context_alive = m_alive;
    launch.logger = logger;
    launch.stream = stream;
    std::string wrong;
    return (launch.check_memory(wrong) && launch.check_overlaps(m_engine, wrong)) || error(logger, "enqueueV3: " + wrong);
}

bool Context::enqueueV3(cudaStream_t stream) noexcept {
    Launch launch{};
    bool ready = prepare(stream, launch);
    if (stream && stream->is_capturing()) {
        // Kernels are chosen, and memory is taken, at the first run with new shapes.
        if (ready && m_warm != m_shapes) ready = error(m_engine.logger, "enqueueV3: captured before a run with these shapes");
        if (ready && settings().refuse_capture) ready = error(m_engine.logger, "enqueueV3: this engine can't be captured");
        if (!ready) stream->spoil_capture();
    } else if (ready) {
        m_warm = m_shapes;
        compile();
    }
    if (!ready) return false;
    bool ordered = stream->submit({[launch] { return launch.run(); }, launch.accesses()}) == kSuccess;
    return ordered || error(m_engine.logger, "enqueueV3: another stream uses the memory, and nobody has waited for it");
}

bool Launch::check_memory(std::string& wrong) const {
    for (auto const& [name, at] : bound) {
        if (!stream->owns(at.address, bytes_of(at.shape, graph->find(name)->type))) {
            wrong = name + " " + text(at.shape) + " is not in the device's memory";
            return false;
        }
    }
    if (scratch.address && !stream->owns(scratch.address, static_cast<std::size_t>(scratch.shape[0]))) {
        wrong = "the scratch memory is not in the device's memory";
        return false;
    }
    return true;
}

std::vector<Access> Launch::accesses() const {
    std::vector<Access> all;
    for (auto const& [name, at] : bound) {
        auto const* tensor = graph->find(name);
        all.push_back({static_cast<char const*>(at.address), bytes_of(at.shape, tensor->type), !tensor->is_input});
    }
    if (scratch.address) all.push_back({static_cast<char const*>(scratch.address), static_cast<std::size_t>(scratch.shape[0]), true});
    return all;
}

bool Launch::check_overlaps(Engine const& engine, std::string& wrong) const {
    struct Stretch {
        char const *start, *end;
        std::string name;
    };
    std::vector<Stretch> all;
    for (auto const& [name, at] : bound) {
        // What is changed in place is one tensor.
        if (engine.past_of(name)) continue;
        auto const* start = static_cast<char const*>(at.address);
        all.push_back({start, start + bytes_of(at.shape, graph->find(name)->type), name});
    }
    if (scratch.address) {
        auto const* start = static_cast<char const*>(scratch.address);
        all.push_back({start, start + scratch.shape[0], "the scratch memory"});
    }
    std::sort(all.begin(), all.end(), [](Stretch const& a, Stretch const& b) { return a.start < b.start; });
    for (std::size_t i = 1; i < all.size(); ++i) {
        if (all[i].start < all[i - 1].end) {
            wrong = all[i - 1].name + " and " + all[i].name + " overlap";
            return false;
        }
    }
    return true;
}

int Launch::run() const {
    if (!*context_alive) {
        error(logger, "a context was destroyed before its work had run");
        return kIllegalAddress;
    }
    std::string wrong;
    if (!check_memory(wrong)) {
        error(logger, "while running: " + wrong);
        return kIllegalAddress;
    }
    if (scratch.address) std::memset(scratch.address, 0xff, static_cast<std::size_t>(scratch.shape[0]));
    try {
        graph->run(bound);
    } catch (std::exception const& failed) {
        error(logger, std::string("while running: ") + failed.what());
        return kLaunchFailed;
    }
    return kSuccess;
}

}  // namespace simulator
