#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "runtime/containers/bitsandbytes_int8.h"
#include "runtime/containers/compressed_tensors.h"
#include "runtime/files/gguf.h"
#include "runtime/files/safetensors.h"
#include "runtime/model/model_description.h"
#include "runtime/system/json_text.h"
#include "runtime/tokenizer/tokenizer.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/gguf_draft.h"

namespace {

constexpr size_t kMaxBytes = size_t{4} << 20;
constexpr int64_t kMaxEntries = 100'000;

// Pieces of large files. % is the number of the repetition.
constexpr std::array kPieces = {"[",
                                "]",
                                "{",
                                "}",
                                "{\"a\":",
                                "[{\"b\":",
                                "\"%\":0,",
                                "\"%\":{},",
                                "\"%\":[1],",
                                "\"\":0}",
                                "0,",
                                "0]",
                                "\"%\",",
                                "\"\"]",
                                "{\"model\":{\"type\":\"BPE\",\"merges\":[],\"vocab\":{",
                                "\"a%\":%,",
                                "\"z\":0}}}",
                                "\"z\":0},\"x\":[",
                                "{\"id\":%,\"content\":\"<%>\"},",
                                "{\"quant_method\":\"bitsandbytes\",\"load_in_8bit\":true,",
                                "\"llm_int8_skip_modules\":[",
                                "{\"quant_method\":\"compressed-tensors\",\"ignore\":[",
                                "\"re:x%\",",
                                "\"group_%\":{\"targets\":[\"x%\"]},",
                                "\"t%\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]},",
                                "\"added_tokens\":[",
                                "a",
                                " ",
                                "\\u00e9",
                                "9",
                                "\"",
                                ","};

// Expands a program of two bytes each: which piece, and how often, up to 2^20 times.
std::string expand(std::span<const std::byte> program) {
  std::string text;
  for (size_t i = 0; i + 1 < program.size() && text.size() < kMaxBytes; i += 2) {
    const std::string_view piece = kPieces[static_cast<size_t>(program[i]) % kPieces.size()];
    const auto times = static_cast<size_t>(program[i + 1]);
    const size_t count = times < 128 ? times % 4 + 1 : size_t{1} << times % 21;
    for (size_t n = 0; n < count && text.size() < kMaxBytes; ++n) {
      for (const char c : piece) {
        if (c == '%') {
          text += std::to_string(n);
        } else {
          text += c;
        }
      }
    }
  }
  return text;
}

std::string safetensors_of(const std::string& header) {
  return pare::GgufDraft::bytes_of<uint64_t>(header.size()) + header;
}

// Makes a file of many tensors, keys and tokens instead of a text.
std::string gguf_of(std::span<const std::byte> program) {
  pare::GgufDraft draft;
  const auto number = [&](size_t i) { return i < program.size() ? static_cast<int64_t>(program[i]) : 0; };
  const int64_t num_tensors = std::min(kMaxEntries, int64_t{1} << number(0) % 19);
  const int64_t num_keys = std::min(kMaxEntries, int64_t{1} << number(1) % 19);
  const int64_t stride = number(2) % 3 * 32;
  for (int64_t n = 0; n < num_tensors; ++n) {
    draft.tensors.push_back({"t" + std::to_string(n), {1 + number(3) % 9}, 0, "", n * stride});
  }
  if (!draft.tensors.empty()) draft.tensors.back().data.assign(static_cast<size_t>(num_tensors * stride + 64), '\0');
  for (int64_t n = 0; n < num_keys; ++n) {
    draft.metadata.emplace_back("k" + std::to_string(n), pare::GgufDraft::bytes_of<uint32_t>(7) + '\1');
  }
  return draft.file();
}

}  // namespace

// Small programs make large inputs. Anything quadratic or recursive runs out of time, memory or stack here.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using Bytes = std::span<const std::byte>;
  if (size == 0) return 0;
  const std::span<const std::byte> program = std::as_bytes(std::span(data + 1, size - 1));
  const std::string text = data[0] % 8 == 6 ? gguf_of(program) : expand(program);
  const std::string input = data[0] % 8 == 5 ? safetensors_of(text) : text;
  return pare::fuzz(reinterpret_cast<const uint8_t*>(input.data()), input.size(), [&](Bytes bytes) {
    switch (data[0] % 8) {
      case 0:
        pare::runtime::parse_json(text, "input").dump();
        break;
      case 1:
        pare::runtime::parse_ordered_json(text, "input").dump();
        break;
      case 2:
        pare::runtime::Tokenizer::parse(text, "input").encode(std::string(100'000, 'a'), true);
        break;
      case 3:
        pare::runtime::QuantizationConfig::parse(text, "input").scheme("model.layers.0.mlp.down_proj");
        break;
      case 4:
        pare::runtime::BitsAndBytesConfig::parse(text, "input").is_skipped("model.layers.0.mlp.down_proj");
        break;
      case 5:
        pare::runtime::SafetensorsFile::parse(bytes, "input");
        break;
      case 6:
        pare::runtime::GgufFile::parse(bytes, "input");
        break;
      default:
        pare::runtime::describe_model(text, "input");
    }
  });
}
