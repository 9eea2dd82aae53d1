#include "runtime/evaluate/stored_reference.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "runtime/system/interrupt.h"
#include "runtime/system/sha256.h"

namespace pare::runtime {
namespace {

constexpr const char *kHidden = "hidden", *kHead = "head", *kHeadBias = "head_bias", *kIds = "ids",
                     *kFirstScored = "first_scored", *kSoftcap = "softcap", *kChecksum = "sha256";
constexpr int64_t kChecksumBytes = 64;  // of the digits

template <typename T>
T only_value(const TensorView& tensor) {
  T value;
  std::memcpy(&value, tensor.data.data(), sizeof(T));
  return value;
}

// One line of what the checksum is of.
std::string checksum_line(const std::string& name, DType dtype, const std::vector<int64_t>& shape,
                          const std::string& sha256) {
  return name + ' ' + std::string(dtype_name(dtype)) + ' ' + shape_text(shape) + ' ' + sha256 + '\n';
}

// Throws std::runtime_error unless the tensors are those of the file's checksum.
void check_sums(const SafetensorsFile& file, const std::filesystem::path& path) {
  const auto stored = file.tensors().find(kChecksum);
  if (stored == file.tensors().end()) {
    throw std::runtime_error(path.string() +
                             ": it has no checksum, as files of older versions: measure the reference again with "
                             "--store");
  }
  require_tensor(&stored->second, path.string() + ": " + kChecksum, DType::U8, {kChecksumBytes});
  std::string lines;
  for (const auto& [name, tensor] : file.tensors()) {
    if (name == kChecksum) continue;
    Sha256 sum;
    constexpr size_t kPiece = size_t{1} << 24;
    for (size_t begin = 0; begin < tensor.data.size(); begin += kPiece) {
      throw_if_interrupted();
      sum.update(tensor.data.subspan(begin, std::min(kPiece, tensor.data.size() - begin)));
    }
    lines += checksum_line(name, tensor.dtype, tensor.shape, sum.hex());
  }
  const std::string found = sha256_hex(std::as_bytes(std::span(lines)));
  const std::span<const std::byte> expected = stored->second.data;
  if (std::ranges::equal(std::as_bytes(std::span(found)), expected)) return;
  throw std::runtime_error(path.string() + ": damaged: the checksum of its tensors is " + found + ", and it says " +
                           std::string(reinterpret_cast<const char*>(expected.data()), expected.size()) +
                           ": measure the reference again with --store");
}

// The head's weight as a tensor: as it is stored, or expanded to float32.
DenseWeight dense_head(const LinearWeights& head) {
  const bool is_plain = head.outlier_weight_OJ.empty();
  if (const auto* dense = std::get_if<DenseWeight>(&head.weight); dense != nullptr && is_plain) return *dense;
  std::vector<float> values(static_cast<size_t>(head.num_out() * head.num_in()));
  weight_rows(head, 0, head.num_out(), values);
  const std::span<const std::byte> bytes = std::as_bytes(std::span(values));
  auto owned = std::make_shared<const std::vector<std::byte>>(bytes.begin(), bytes.end());
  return {.num_out = head.num_out(),
          .num_in = head.num_in(),
          .dtype = DType::F32,
          .data = *owned,
          .pattern = {},
          .owned = owned};
}

}  // namespace

const TensorView& StoredReference::tensor(const char* name) const {
  const auto found = file_.tensors().find(name);
  if (found == file_.tensors().end()) {
    throw std::runtime_error(path_.string() + ": it has no tensor '" + name +
                             "': expected a file that eval --store has written");
  }
  return found->second;
}

StoredReference StoredReference::open(const std::filesystem::path& path) {
  StoredReference result(path, SafetensorsFile::open(path));
  const TensorView &hidden = result.tensor(kHidden), &head = result.tensor(kHead), &ids = result.tensor(kIds);
  if (hidden.shape.size() != 3 || head.shape.size() != 2 || ids.shape.size() != 2 || !is_float_dtype(head.dtype)) {
    throw std::runtime_error(path.string() + ": expected hidden states [N, S, E], a head [V, E] and ids [N, T]");
  }
  result.num_windows_ = hidden.shape[0];
  result.num_scored_ = hidden.shape[1];
  result.hidden_size_ = hidden.shape[2];
  result.vocabulary_size_ = head.shape[0];
  const auto require = [&](const char* name, DType dtype, const std::vector<int64_t>& shape) {
    require_tensor(&result.tensor(name), path.string() + ": " + name, dtype, shape);
  };
  require(kHidden, DType::F32, hidden.shape);
  require(kHead, head.dtype, {result.vocabulary_size_, result.hidden_size_});
  require(kIds, DType::I32, {result.num_windows_, ids.shape[1]});
  require(kFirstScored, DType::I64, {1});
  require(kSoftcap, DType::F32, {1});
  if (result.file_.tensors().contains(kHeadBias)) require(kHeadBias, DType::F32, {result.vocabulary_size_});
  result.first_scored_ = only_value<int64_t>(result.tensor(kFirstScored));
  result.softcap_ = only_value<float>(result.tensor(kSoftcap));
  if (!std::isfinite(result.softcap_) || result.softcap_ < 0.0f) {
    throw std::runtime_error(path.string() + ": the softcap of the logits is no number from 0 on");
  }
  check_sums(result.file_, path);
  for (const char* name : {kHidden, kHead}) {
    if (first_not_finite(result.tensor(name)) >= 0) {
      throw std::runtime_error(path.string() + ": '" + name + "' holds a value that is not finite");
    }
  }
  return result;
}

void StoredReference::check(const TokenWindows& windows, int64_t first_scored, int64_t vocabulary_size) const {
  const auto fail = [&](const std::string& what) {
    throw std::invalid_argument(path_.string() + ": " + what + ": measure the reference again with --store");
  };
  if (vocabulary_size_ != vocabulary_size) {
    fail("the reference has a vocabulary of " + std::to_string(vocabulary_size_) + " entries, the model of " +
         std::to_string(vocabulary_size));
  }
  const TensorView& ids = tensor(kIds);
  const std::string found = std::to_string(num_windows_) + " windows of " + std::to_string(ids.shape[1]) + " tokens",
                    expected = std::to_string(windows.num_windows) + " of " + std::to_string(windows.num_tokens);
  if (num_windows_ != windows.num_windows || ids.shape[1] != windows.num_tokens) {
    fail("it holds " + found + ", and the text gives " + expected);
  }
  if (first_scored_ != first_scored || num_scored_ != windows.num_tokens - 1 - first_scored) {
    fail("its windows are scored from position " + std::to_string(first_scored_) +
         " on, and the protocol scores from " + std::to_string(first_scored));
  }
  const std::span<const std::byte> own = std::as_bytes(std::span(windows.ids_NT));
  if (!std::equal(own.begin(), own.end(), ids.data.begin(), ids.data.end())) {
    fail("its windows hold other tokens than the text's");
  }
}

std::unique_ptr<PackedLinear> StoredReference::pack_head(Backend& backend) const {
  const TensorView& head = tensor(kHead);
  LinearWeights weights;
  weights.name = path_.string() + ": " + kHead;
  weights.weight = DenseWeight{.num_out = vocabulary_size_,
                               .num_in = hidden_size_,
                               .dtype = head.dtype,
                               .data = head.data,
                               .pattern = {},
                               .owned = {}};
  if (const auto bias = file_.tensors().find(kHeadBias); bias != file_.tensors().end()) {
    weights.bias_O.resize(static_cast<size_t>(vocabulary_size_));
    std::memcpy(weights.bias_O.data(), bias->second.data.data(), bias->second.data.size());
  }
  return backend.pack({&weights, 1});
}

void StoredReference::upload(Backend& backend, int64_t window, float* hidden_SE) const {
  std::vector<float> values(static_cast<size_t>(num_scored_ * hidden_size_));
  const size_t num_bytes = values.size() * sizeof(float);
  std::memcpy(values.data(), tensor(kHidden).data.data() + static_cast<size_t>(window) * num_bytes, num_bytes);
  backend.upload<float>(values, hidden_SE);
}

void check_can_store(const std::filesystem::path& path) {
  std::error_code unknown;
  const std::filesystem::path folder = path.has_parent_path() ? path.parent_path() : ".";
  if (std::filesystem::exists(path, unknown)) {
    throw std::invalid_argument(path.string() + ": the file exists: remove it, or store elsewhere");
  }
  if (!std::filesystem::is_directory(folder, unknown)) {
    throw std::invalid_argument(path.string() + ": there is no folder '" + folder.string() + "': make it first");
  }
}

void store_reference(const std::filesystem::path& path, const Checkpoint& model, const TokenWindows& windows,
                     int64_t first_scored,
                     const std::function<void(const std::function<void(std::span<const float>)>&)>& score) {
  const LinearWeights head = model.linear(model.head());
  const DenseWeight weight = dense_head(head);
  const float softcap = model.description().logit_softcap;
  const int64_t num_scored = windows.num_tokens - 1 - first_scored;
  std::vector<StreamedTensor> tensors;
  std::map<std::string, std::string> lines;  // of the checksum, by name
  const auto add = [&](const char* name, DType dtype, std::vector<int64_t> shape, std::span<const std::byte> bytes) {
    tensors.push_back({name, dtype, std::move(shape), [bytes](const ByteSink& sink) { sink(bytes); }});
  };
  add(kHead, weight.dtype, {weight.num_out, weight.num_in}, weight.data);
  if (!head.bias_O.empty()) add(kHeadBias, DType::F32, {weight.num_out}, std::as_bytes(std::span(head.bias_O)));
  add(kIds, DType::I32, {windows.num_windows, windows.num_tokens}, std::as_bytes(std::span(windows.ids_NT)));
  add(kFirstScored, DType::I64, {1}, std::as_bytes(std::span(&first_scored, 1)));
  add(kSoftcap, DType::F32, {1}, std::as_bytes(std::span(&softcap, 1)));
  // The model runs while its states are written: they need no room in memory.
  tensors.push_back({kHidden, DType::F32, {windows.num_windows, num_scored, weight.num_in}, [&](const ByteSink& sink) {
                       score([&](std::span<const float> hidden_SE) { sink(std::as_bytes(hidden_SE)); });
                     }});
  for (StreamedTensor& tensor : tensors) {
    tensor.produce = [&lines, name = tensor.name, dtype = tensor.dtype, shape = tensor.shape,
                      produce = std::move(tensor.produce)](const ByteSink& sink) {
      Sha256 sum;
      produce([&](std::span<const std::byte> bytes) {
        sum.update(bytes);
        sink(bytes);
      });
      lines[name] = checksum_line(name, dtype, shape, sum.hex());
    };
  }
  // Bytes lie behind all wider types, so that this is written last.
  tensors.push_back({kChecksum, DType::U8, {kChecksumBytes}, [&](const ByteSink& sink) {
                       std::string all;
                       for (const auto& [name, line] : lines) all += line;
                       const std::string sum = sha256_hex(std::as_bytes(std::span(all)));
                       sink(std::as_bytes(std::span(sum)));
                     }});
  write_safetensors(path, std::move(tensors));
}

}  // namespace pare::runtime
