#include "runtime/engine/decoder_embeddings.h"

#include "runtime/engine/buffer.h"
#include "runtime/system/interrupt.h"

namespace pare::runtime {

void embed_with_decoder(Transformer& model, std::span<const std::vector<int32_t>> texts, const Pooling& pooling,
                        float* embeddings_ND, const std::function<void(int64_t, int64_t)>& progress) {
  const auto width = static_cast<size_t>(model.description().hidden_size);
  std::vector<int32_t> ids_R;
  std::vector<int64_t> lengths;
  std::vector<float> hidden_RD;
  for (size_t first = 0; first < texts.size(); first += lengths.size()) {
    throw_if_interrupted();
    ids_R.clear();
    lengths.clear();
    for (size_t n = first; n < texts.size(); ++n) {
      const bool is_full = static_cast<int64_t>(ids_R.size() + texts[n].size()) > Transformer::kBatchRows;
      if (is_full && !lengths.empty()) break;
      ids_R.insert(ids_R.end(), texts[n].begin(), texts[n].end());
      lengths.push_back(static_cast<int64_t>(texts[n].size()));
    }
    const Buffer<float> hidden = model.backend().allocate(static_cast<int64_t>(ids_R.size() * width));
    model.prefill_sequences(ids_R, lengths, hidden.get());
    hidden_RD.resize(ids_R.size() * width);
    model.backend().download(hidden.get(), std::span(hidden_RD));
    size_t row = 0;
    for (size_t n = 0; n < lengths.size(); ++n) {
      const auto num_rows = static_cast<size_t>(lengths[n]);
      const std::span<float> embedding(embeddings_ND + (first + n) * width, width);
      pool_rows(std::span(hidden_RD).subspan(row * width, num_rows * width), pooling.kind, embedding);
      normalize_embedding(embedding, static_cast<int64_t>(first + n));
      row += num_rows;
    }
    if (progress) progress(static_cast<int64_t>(first + lengths.size()), static_cast<int64_t>(texts.size()));
  }
}

}  // namespace pare::runtime
