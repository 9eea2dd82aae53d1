#include "runtime/export/gguf_imatrix.h"

#include <algorithm>
#include <set>
#include <stdexcept>

#include "runtime/export/export_gguf.h"
#include "runtime/export/gguf_plan.h"
#include "runtime/files/gguf_writer.h"

namespace pare::runtime {
namespace {

OwnedTensor values(std::string name, std::vector<int64_t> shape, std::span<const float> numbers) {
  return make_tensor<float>(std::move(name), DType::F32, std::move(shape), numbers);
}

}  // namespace

void check_has_imatrix(const Checkpoint& checkpoint) {
  gguf_family(checkpoint);
}

void write_imatrix(const Checkpoint& checkpoint, const std::filesystem::path& out,
                   const std::function<ColumnSquares(const LinearDescription&)>& squares, const ImatrixOrigin& origin) {
  const DecoderFamily& family = gguf_family(checkpoint);
  std::vector<OwnedTensor> tensors;
  for (const PlannedGgufTensor& planned : plan_gguf_tensors(checkpoint, family, *find_gguf_format("f32"))) {
    if (planned.making != GgufMaking::matrix) continue;
    std::vector<float> sums, counts;
    for (const GgufPlace& part : planned.parts) {
      if (!part.linear) break;
      const ColumnSquares found = squares(*part.linear);
      if (found.num_tokens == 0 || found.mean_I.empty()) break;
      if (static_cast<int64_t>(found.mean_I.size()) != part.linear->num_in) {
        throw std::invalid_argument("'" + part.linear->name + "': expected " + std::to_string(part.linear->num_in) +
                                    " mean squares, found " + std::to_string(found.mean_I.size()));
      }
      const auto count = static_cast<float>(found.num_tokens);
      for (const float mean : found.mean_I) sums.push_back(mean * count);
      counts.push_back(count);
    }
    if (counts.size() != planned.parts.size()) continue;
    const auto num_parts = static_cast<int64_t>(counts.size()), width = static_cast<int64_t>(sums.size()) / num_parts;
    tensors.push_back(values(planned.name + ".in_sum2", {num_parts, width}, sums));
    tensors.push_back(values(planned.name + ".counts", {num_parts, 1}, counts));
  }
  GgufMetadata metadata;
  metadata.set_text("general.type", "imatrix");
  metadata.set_texts("imatrix.datasets", {origin.dataset});
  metadata.set_unsigned("imatrix.chunk_count", origin.num_chunks);
  metadata.set_unsigned("imatrix.chunk_size", origin.chunk_tokens);
  std::vector<StreamedGgufTensor> streamed;
  for (const OwnedTensor& tensor : tensors) {
    streamed.push_back(
        {.name = tensor.name, .shape = tensor.shape, .type = GgufType::F32, .produce = [&tensor](const ByteSink& sink) {
           sink(tensor.data);
         }});
  }
  write_gguf(out, metadata, streamed);
}

}  // namespace pare::runtime
