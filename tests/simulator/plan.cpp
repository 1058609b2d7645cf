// The simulator's plans: a few lines of text with a checksum, in the place of compiled kernels.
#include <array>
#include <cstdio>
#include <sstream>
#include <stdexcept>

#include "simulator.h"

namespace simulator {
namespace {

constexpr char kMagic[] = "simulated plan 1";

std::string checksum(std::string const& text) {
    std::uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
    for (unsigned char byte : text) hash = (hash ^ byte) * 0x100000001b3;
    char written[32];
    std::snprintf(written, sizeof written, "checksum %016llx\n", static_cast<unsigned long long>(hash));
    return written;
}

Shape read_shape(std::istream& from, std::size_t rank) {
    Shape shape(rank);
    for (auto& extent : shape) {
        if (!(from >> extent)) throw std::runtime_error("a profile of the plan breaks off");
    }
    return shape;
}

}  // namespace

std::string Plan::write() const {
    std::ostringstream out;
    out << kMagic << "\nlibrary " << library << ' ' << version << "\nsm";
    for (int architecture : architectures) out << ' ' << architecture;
    out << "\ngraph " << graph << '\n';
    for (Profile const& profile : profiles) {
        out << "profile\n";
        for (auto const& [input, shapes] : profile) {
            out << "input " << input << ' ' << shapes[0].size();
            for (Shape const& shape : shapes) {
                for (auto extent : shape) out << ' ' << extent;
            }
            out << '\n';
        }
    }
    return out.str() + checksum(out.str());
}

Plan Plan::read(std::string const& bytes) {
    if (bytes.rfind(kMagic, 0) != 0) throw std::runtime_error("the plan does not begin as plans do");
    auto end = bytes.rfind("checksum ");
    if (end == std::string::npos || bytes.substr(end) != checksum(bytes.substr(0, end))) {
        throw std::runtime_error("the plan is damaged: its checksum differs");
    }
    Plan plan;
    std::istringstream lines(bytes.substr(0, end));
    std::string line;
    std::getline(lines, line);
    while (std::getline(lines, line)) {
        std::istringstream words(line);
        std::string word;
        words >> word;
        if (word == "library") {
            words >> plan.library >> plan.version;
        } else if (word == "sm") {
            for (int architecture; words >> architecture;) plan.architectures.push_back(architecture);
        } else if (word == "graph") {
            plan.graph = line.substr(6);
        } else if (word == "profile") {
            plan.profiles.emplace_back();
        } else if (word == "input" && !plan.profiles.empty()) {
            std::size_t rank = 0;
            words >> word >> rank;
            auto& shapes = plan.profiles.back()[word];
            for (Shape& shape : shapes) shape = read_shape(words, rank);
        } else {
            throw std::runtime_error("the plan has a line that is not known: " + line);
        }
    }
    return plan;
}

}  // namespace simulator
