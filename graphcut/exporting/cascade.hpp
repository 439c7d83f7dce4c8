// Runs a cascade that graphcut split wrote: its parts one after the other, in this process.
//
//   Ort::Env env;
//   graphcut::Cascade cascade(env, "llm.cpp");
//   graphcut::Values outputs = cascade.run(std::move(inputs));   // tensors by name
//
// Needs C++17, ONNX Runtime's C++ API (1.21 or newer) and nlohmann/json (3.11 or newer).
#pragma once

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <onnxruntime_cxx_api.h>
#include <set>
#include <string>
#include <vector>

namespace graphcut {

using Names = std::vector<std::string>;
using Values = std::map<std::string, Ort::Value>;

class Cascade {
public:
    // Loads all parts. `options` go to each session. Throws Ort::Exception and nlohmann::json::exception.
    Cascade(const Ort::Env& env, const std::filesystem::path& folder, const Ort::SessionOptions& options = {}) {
        std::ifstream file(folder / "cascade.json");
        const auto manifest = nlohmann::json::parse(file);
        writes_ = manifest.at("writes").get<Names>();
        for (const auto& name : manifest.at("optional").get<Names>()) optional_.insert(name);
        for (const auto& part : manifest.at("parts")) {
            const auto path = folder / part.at("file").get<std::string>();
            parts_.push_back({Ort::Session(env, path.c_str(), options), part.at("reads").get<Names>(),
                              part.at("writes").get<Names>()});
        }
        for (size_t i = 0; i < parts_.size(); ++i)
            for (const auto& name : parts_[i].reads) last_reader_[name] = i;
        for (const auto& name : writes_) last_reader_[name] = parts_.size();  // an output is kept
    }

    // The outputs of the model by name, from its inputs by name. A tensor is freed after the last part that reads it.
    // Throws std::out_of_range if an input without a default is missing, and Ort::Exception.
    Values run(Values values) {
        for (size_t i = 0; i < parts_.size(); ++i) {
            auto& [session, listed, writes] = parts_[i];
            Names reads;  // an input with a default may be missing
            for (const auto& name : listed)
                if (values.count(name) || !optional_.count(name)) reads.push_back(name);
            std::vector<Ort::Value> fed;  // a value can't be copied: it is moved here and back
            for (const auto& name : reads) fed.push_back(std::move(values.at(name)));
            auto made = session.Run(Ort::RunOptions{}, pointers(reads).data(), fed.data(), fed.size(),
                                    pointers(writes).data(), writes.size());
            for (size_t k = 0; k < reads.size(); ++k) values.at(reads[k]) = std::move(fed[k]);
            for (size_t k = 0; k < writes.size(); ++k) values.insert_or_assign(writes[k], std::move(made[k]));
            for (const auto& name : reads)
                if (last_reader_.at(name) == i) values.erase(name);
        }
        Values outputs;
        for (const auto& name : writes_) outputs.emplace(name, std::move(values.at(name)));
        return outputs;
    }

private:
    struct Part {
        Ort::Session session;
        Names reads, writes;
    };

    static std::vector<const char*> pointers(const Names& names) {
        std::vector<const char*> found;
        for (const auto& name : names) found.push_back(name.c_str());
        return found;
    }

    std::vector<Part> parts_;
    Names writes_;
    std::set<std::string> optional_;
    std::map<std::string, size_t> last_reader_;  // by tensor: the index of the last part that reads it
};

}  // namespace graphcut
