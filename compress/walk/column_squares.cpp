#include "compress/walk/column_squares.h"

#include <span>

#include "runtime/model/stage.h"

namespace pare::compress {

SquaresByLinear column_squares(const StatisticsFile& statistics, const runtime::Checkpoint& checkpoint) {
  SquaresByLinear squares;
  for (const runtime::BlockDescription& block : checkpoint.description().blocks) {
    for (const runtime::Stage stage : runtime::block_stages(block)) {
      const LayerStatistics read = statistics.read(block, stage, StatisticsNeed::hessian_diagonal);
      const at::Tensor diagonal_I = read.hessian_diagonal_I.contiguous();
      const std::span<const float> values(diagonal_I.const_data_ptr<float>(), static_cast<size_t>(diagonal_I.numel()));
      for (const runtime::LinearDescription& linear : runtime::stage_layers(block, stage)) {
        squares[linear.name] = {read.num_tokens, {values.begin(), values.end()}};
      }
    }
  }
  return squares;
}

void write_imatrix_of(const StatisticsFile& statistics, const runtime::Checkpoint& checkpoint,
                      const std::filesystem::path& output) {
  const SquaresByLinear squares = column_squares(statistics, checkpoint);
  const StatisticsOrigin& origin = statistics.origin();
  runtime::write_imatrix(checkpoint, output,
                         [&](const runtime::LinearDescription& linear) {
                           const auto found = squares.find(linear.name);
                           return found == squares.end() ? runtime::ColumnSquares() : found->second;
                         },
                         {.dataset = origin.text, .num_chunks = origin.num_windows, .chunk_tokens = origin.num_tokens});
}

}  // namespace pare::compress
