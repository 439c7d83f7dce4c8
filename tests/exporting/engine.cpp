// Runs an exported cascade for the tests: engine FOLDER TASK reads {"inputs": {NAME: {"type", "dims", "data"}}} from the
// file TASK, with types by ONNX's numbers and elements as bytes, and prints the outputs in the same form.
#include "cascade.hpp"

#include <iostream>

using nlohmann::json;

int main(int, char** arguments) try {
    std::ifstream file(arguments[2]);
    auto task = json::parse(file);
    const auto memory = Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault);
    std::map<std::string, std::vector<uint8_t>> data;
    graphcut::Values inputs;
    for (const auto& [name, value] : task["inputs"].items()) {
        auto& bytes = data[name] = value["data"].get<std::vector<uint8_t>>();
        const auto dims = value["dims"].get<std::vector<int64_t>>();
        inputs.emplace(name, Ort::Value::CreateTensor(memory, bytes.data(), bytes.size(), dims.data(), dims.size(),
                                                      value["type"].get<ONNXTensorElementDataType>()));
    }
    Ort::Env env;
    Ort::SessionOptions options;
    options.SetGraphOptimizationLevel(ORT_DISABLE_ALL);
    graphcut::Cascade cascade(env, arguments[1], options);
    json answer = json::object();
    for (const auto& [name, value] : cascade.run(std::move(inputs))) {
        const auto kind = value.GetTensorTypeAndShapeInfo();
        const auto* begin = static_cast<const uint8_t*>(value.GetTensorRawData());
        const size_t width = kind.GetElementType() == ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64 ? 8 : 4;
        answer[name] = {{"type", kind.GetElementType()},
                        {"dims", kind.GetShape()},
                        {"data", std::vector<uint8_t>(begin, begin + width * kind.GetElementCount())}};
    }
    std::cout << answer;
    return 0;
} catch (const std::exception& error) {
    std::cerr << error.what();
    return 1;
}
