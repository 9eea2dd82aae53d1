#include "compress/walk/statistics_file.h"

#include <ATen/ops/empty.h>
#include <malloc.h>

#include <algorithm>
#include <array>
#include <cfloat>
#include <cmath>
#include <cstdio>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "compress/hdf5/hashed_file.h"
#include "compress/hdf5/hdf5_reader.h"
#include "compress/hdf5/hdf5_writer.h"
#include "quant/row_chunks.h"
#include "runtime/system/input_files.h"
#include "runtime/system/partial_output.h"

namespace pare::compress {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kBufferFloats = int64_t{1} << 20;  // of a triangle, in memory at a time
const FileKind kKind = {.name = "statistics",
                        .version = "1",
                        .maker = "pare calibrate",
                        .remedy = "make the statistics again with pare calibrate"};

[[noreturn]] void fail(const fs::path& path, const std::string& why) {
  throw std::runtime_error("cannot read '" + path.string() + "': " + why);
}

// What is small and stays lies in the holes that matrices of earlier stages have left, so that the next matrix does not
// fit there and the heap would grow by one for every stage: what is free between them goes back to the system.
void give_back_free_memory() {
  malloc_trim(0);
}

std::string stage_group_name(runtime::Stage stage) {
  std::string name = runtime::stage_name(stage);
  std::replace(name.begin(), name.end(), ' ', '_');
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

std::string stage_group(const runtime::BlockDescription& block, runtime::Stage stage) {
  return block.name + "/" + stage_group_name(stage);
}

// Expected and found, where they differ.
struct Difference {
  std::string object, expected, found;
};

// Sums are float32 over a window of T tokens and more, so that they are off by T x 6e-8 of themselves at worst; squares
// below FLT_MIN may vanish.
constexpr double kTolerance = 0.01;
double root(float mean_square) {
  return (1.0 + kTolerance) * std::sqrt(static_cast<double>(mean_square) + FLT_MIN);
}

std::string words(double value) {
  std::array<char, 32> text;
  std::snprintf(text.data(), text.size(), "%.6g", value);
  return text.data();
}

std::string channel_words(int64_t channel, double value) {
  return words(value) + " in channel " + std::to_string(channel);
}

// Means over the same x: |mean x| <= mean |x| <= sqrt(mean x^2) <= max |x|.
std::optional<Difference> check_channels(const LayerStatistics& statistics) {
  const int64_t width = statistics.min_I.numel();
  const float* diagonal = statistics.hessian_diagonal_I.const_data_ptr<float>();
  const float* minimum = statistics.min_I.const_data_ptr<float>();
  const float* maximum = statistics.max_I.const_data_ptr<float>();
  const float* mean_abs = statistics.mean_abs_I.const_data_ptr<float>();
  for (int64_t i = 0; i < width; ++i) {
    for (const auto& [object, value] : {std::pair{"hessian_diagonal", diagonal[i]}, std::pair{"min", minimum[i]},
                                        std::pair{"max", maximum[i]}, std::pair{"mean_abs", mean_abs[i]}}) {
      if (!std::isfinite(value)) return Difference{object, "finite values", channel_words(i, value)};
    }
    if (diagonal[i] < 0.0f) return Difference{"hessian_diagonal", "values >= 0", channel_words(i, diagonal[i])};
    if (minimum[i] > maximum[i]) {
      return Difference{"min", "at most the maximum " + words(maximum[i]), channel_words(i, minimum[i])};
    }
    // An expert that no token went to has H = I and ranges of 0.
    if (statistics.num_tokens == 0) continue;
    const double largest = std::max(std::fabs(minimum[i]), std::fabs(maximum[i]));
    if (mean_abs[i] < 0.0f || mean_abs[i] > root(diagonal[i])) {
      return Difference{"mean_abs", "0 to the root of the mean square, " + words(std::sqrt(diagonal[i])),
                        channel_words(i, mean_abs[i])};
    }
    if (std::sqrt(static_cast<double>(diagonal[i])) > (1.0 + kTolerance) * largest + std::sqrt(FLT_MIN)) {
      return Difference{"hessian_diagonal", "at most the square of the range, " + words(largest * largest),
                        channel_words(i, diagonal[i])};
    }
  }
  return std::nullopt;
}

// Sampled rows lie in their channels' ranges.
std::optional<Difference> check_sample(const LayerStatistics& statistics) {
  const int64_t num_rows = statistics.sample_RI.size(0), width = statistics.sample_RI.size(1);
  const float* sample = statistics.sample_RI.const_data_ptr<float>();
  const float* minimum = statistics.min_I.const_data_ptr<float>();
  const float* maximum = statistics.max_I.const_data_ptr<float>();
  for (int64_t row = 0; row < num_rows; ++row) {
    for (int64_t i = 0; i < width; ++i) {
      const float value = sample[row * width + i];
      if (value >= minimum[i] && value <= maximum[i]) continue;  // not so for a NaN
      return Difference{"sample", words(minimum[i]) + " to " + words(maximum[i]), channel_words(i, value)};
    }
  }
  return std::nullopt;
}

// The upper triangle, which is all that a file holds: its diagonal is the other record's, and no product of two
// channels exceeds what their squares allow (Cauchy and Schwarz).
std::optional<Difference> check_hessian(const LayerStatistics& statistics) {
  const int64_t width = statistics.hessian_diagonal_I.numel();
  const float* diagonal = statistics.hessian_diagonal_I.const_data_ptr<float>();
  const float* hessian = statistics.hessian_II.const_data_ptr<float>();
  std::vector<double> root_I;
  for (int64_t i = 0; i < width; ++i) root_I.push_back(root(diagonal[i]));
  std::vector<std::optional<Difference>> found_I(static_cast<size_t>(width));
  quant::for_row_chunks(width, 64, [&](int64_t first_row, int64_t num_rows) {
    for (int64_t i = first_row; i < first_row + num_rows; ++i) {
      const float* row = hessian + i * width;
      auto& found = found_I[static_cast<size_t>(i)];
      if (row[i] != diagonal[i]) {
        found = Difference{"hessian", "hessian_diagonal's " + words(diagonal[i]), channel_words(i, row[i])};
        continue;
      }
      for (int64_t j = i + 1; j < width && !found; ++j) {
        const double bound = root_I[static_cast<size_t>(i)] * root_I[static_cast<size_t>(j)];
        if (std::fabs(static_cast<double>(row[j])) <= bound) continue;  // not so for a NaN
        found = Difference{"hessian", "at most " + words(bound) + " between two channels of these squares",
                           words(row[j]) + " between channels " + std::to_string(i) + " and " + std::to_string(j)};
      }
    }
  });
  for (auto& found : found_I) {
    if (found) return found;
  }
  return std::nullopt;
}

std::optional<Difference> check_tokens(const StatisticsOrigin& origin, runtime::Stage stage,
                                       const LayerStatistics& statistics) {
  const int64_t num_tokens = statistics.num_tokens, all = origin.num_windows * origin.num_tokens;
  const bool is_expert = stage.expert != runtime::Stage::kNoExpert;
  if (num_tokens < 0 || num_tokens > all || (!is_expert && num_tokens != all)) {
    return Difference{"num_tokens", (is_expert ? "at most " : "") + std::to_string(all), std::to_string(num_tokens)};
  }
  return std::nullopt;
}

std::optional<Difference> check_rows(int64_t num_tokens, int64_t num_rows) {
  const int64_t most = std::min(kNumSampleRows, num_tokens);
  if (num_rows >= std::min<int64_t>(1, num_tokens) && num_rows <= most) return std::nullopt;
  return Difference{"sample", "at most " + std::to_string(most) + " rows and one at least where there are tokens",
                    std::to_string(num_rows)};
}

// So that the number of tokens fits.
std::optional<Difference> check_origin(const StatisticsOrigin& origin) {
  constexpr int64_t kMost = (int64_t{1} << 31) - 1;
  for (const auto& [name, count] : {std::pair{"windows", origin.num_windows}, std::pair{"tokens", origin.num_tokens}}) {
    if (count < 1 || count > kMost) {
      return Difference{std::string("attribute /") + name, "1 to " + std::to_string(kMost), std::to_string(count)};
    }
  }
  return std::nullopt;
}

void refuse_writing(const fs::path& path, const std::string& stage, const std::optional<Difference>& difference) {
  if (!difference) return;
  throw std::invalid_argument("cannot write '" + path.string() + "': " + stage + difference->object + ": expected " +
                              difference->expected + ", found " + difference->found);
}

void refuse_reading(const Hdf5Reader& reader, const std::string& stage, const std::optional<Difference>& difference) {
  if (difference) reader.refuse(stage + difference->object, difference->expected, difference->found);
}

// By square tiles, which stay in the cache that a column of the whole matrix would sweep out.
void mirror(float* matrix, int64_t width) {
  constexpr int64_t kSide = 32;
  quant::for_row_chunks(width, kSide, [&](int64_t first_row, int64_t num_rows) {
    for (int64_t first = 0; first < first_row + num_rows; first += kSide) {
      for (int64_t row = first_row; row < first_row + num_rows; ++row) {
        for (int64_t column = first; column < std::min(first + kSide, row); ++column) {
          matrix[row * width + column] = matrix[column * width + row];
        }
      }
    }
  });
}

void write_floats(Hdf5Writer& writer, const std::string& group, const char* name, const at::Tensor& values) {
  writer.floats(group, name, values.sizes(), {values.const_data_ptr<float>(), static_cast<size_t>(values.numel())});
}

void write_upper_triangle(Hdf5Writer& writer, const std::string& group, const char* name, const at::Tensor& matrix_II) {
  const int64_t width = matrix_II.size(0);
  std::vector<float> buffer;
  int64_t row = 0;
  writer.floats(group, name, width * (width + 1) / 2, [&] {
    buffer.clear();
    for (; row < width && static_cast<int64_t>(buffer.size()) < kBufferFloats; ++row) {
      const float* source = matrix_II.const_data_ptr<float>() + row * width;
      buffer.insert(buffer.end(), source + row, source + width);
    }
    return std::span<const float>(buffer);
  });
}

Hdf5Array find_floats(const Hdf5Reader& reader, const Hdf5Object& group, const char* name,
                      const std::vector<int64_t>& expected) {
  Hdf5Array found = group.array(name, Hdf5Type::float32);
  if (found.shape != expected) {
    reader.refuse(found.path, shape_words(expected) + " as the model has it", shape_words(found.shape));
  }
  return found;
}

at::Tensor read_floats(const Hdf5Reader& reader, const Hdf5Array& floats) {
  at::Tensor values = at::empty(floats.shape, at::kFloat);
  reader.read(floats, 0, std::span(values.data_ptr<float>(), static_cast<size_t>(floats.num_values)));
  return values;
}

at::Tensor read_upper_triangle(const Hdf5Reader& reader, const Hdf5Array& triangle, int64_t width) {
  at::Tensor matrix_II = at::empty({width, width}, at::kFloat);
  float* matrix = matrix_II.data_ptr<float>();
  std::vector<float> buffer;
  int64_t first = 0;
  for (int64_t row = 0; row < width;) {
    int64_t end = row, count = 0;
    for (; end < width && count < kBufferFloats; ++end) count += width - end;
    buffer.resize(static_cast<size_t>(count));
    reader.read(triangle, first, std::span(buffer));
    for (const float* source = buffer.data(); row < end; source += width - row, ++row) {
      std::copy(source, source + width - row, matrix + row * width + row);
    }
    first += count;
  }
  mirror(matrix, width);
  return matrix_II;
}

}  // namespace

struct StatisticsWriter::State {
  runtime::PartialOutput partial;
  UnpublishedFile file;
  Hdf5Writer writer;
  StatisticsOrigin origin;
  State(const fs::path& path, const StatisticsOrigin& from)
      : partial(path, "calibrate", runtime::PartialOutput::Remains::worthless),
        file(partial.result(), path),
        writer(file.temporary_path(), path, kUserBlockBytes),
        origin(from) {}
};

StatisticsWriter::StatisticsWriter(const fs::path& path, const StatisticsOrigin& origin) {
  refuse_writing(path, "", check_origin(origin));
  state_ = std::make_unique<State>(path, origin);
  Hdf5Writer& writer = state_->writer;
  writer.attribute("/", "model", origin.model);
  writer.attribute("/", "data", origin.data);
  writer.attribute("/", "text", origin.text);
  writer.attribute("/", "windows", static_cast<uint64_t>(origin.num_windows));
  writer.attribute("/", "tokens", static_cast<uint64_t>(origin.num_tokens));
  writer.attribute("/", "seed", origin.seed);
  writer.attribute("/", "pare", origin.pare_version);
  writer.attribute("/", "libtorch", origin.libtorch_version);
  writer.attribute("/", "instruction_set", origin.instruction_set);
}

StatisticsWriter::~StatisticsWriter() = default;

const fs::path& StatisticsWriter::folder() const {
  return state_->partial.folder();
}

void StatisticsWriter::write(const runtime::BlockDescription& block, runtime::Stage stage,
                             const LayerStatistics& statistics) {
  give_back_free_memory();
  const std::string group = stage_group(block, stage);
  if (!statistics.hessian_II.defined()) throw std::invalid_argument("statistics of " + group + ": H is missing");
  const int64_t width = runtime::stage_width(block, stage);
  const auto check_width = [&](const at::Tensor& tensor, int64_t num_dimensions) {
    if (tensor.defined() && tensor.dim() == num_dimensions && tensor.size(-1) == width && tensor.is_contiguous() &&
        tensor.scalar_type() == at::kFloat) {
      return;
    }
    throw std::invalid_argument("statistics of " + group + ": expected contiguous float32 of width " +
                                std::to_string(width));
  };
  for (const at::Tensor& tensor_I :
       {statistics.hessian_diagonal_I, statistics.min_I, statistics.max_I, statistics.mean_abs_I}) {
    check_width(tensor_I, 1);
  }
  check_width(statistics.sample_RI, 2);
  check_width(statistics.hessian_II, 2);
  for (const auto& difference : {check_tokens(state_->origin, stage, statistics),
                                 check_rows(statistics.num_tokens, statistics.sample_RI.size(0)),
                                 check_channels(statistics), check_sample(statistics), check_hessian(statistics)}) {
    refuse_writing(state_->file.shown(), group + "/", difference);
  }
  Hdf5Writer& writer = state_->writer;
  std::vector<std::string> layers;
  for (const runtime::LinearDescription& linear : runtime::stage_layers(block, stage)) layers.push_back(linear.name);
  writer.make_group(group);
  writer.attribute(group, "layers", layers);
  writer.attribute(group, "num_tokens", static_cast<uint64_t>(statistics.num_tokens));
  write_upper_triangle(writer, group, "hessian", statistics.hessian_II);
  write_floats(writer, group, "hessian_diagonal", statistics.hessian_diagonal_I);
  write_floats(writer, group, "min", statistics.min_I);
  write_floats(writer, group, "max", statistics.max_I);
  write_floats(writer, group, "mean_abs", statistics.mean_abs_I);
  write_floats(writer, group, "sample", statistics.sample_RI);
}

std::string StatisticsWriter::publish() {
  UnpublishedFile& file = state_->file;
  state_->writer.close();
  const std::string hash = write_hash(file, kKind);
  file.publish();
  state_->partial.publish();
  state_->partial.discard();
  return hash;
}

int64_t StatisticsWriter::size_bytes(const runtime::ModelDescription& model, int64_t num_sample_rows) {
  int64_t num_floats = 0, num_groups = 0;
  for (const runtime::BlockDescription& block : model.blocks) {
    for (const runtime::Stage stage : runtime::block_stages(block)) {
      ++num_groups;
      const int64_t width = runtime::stage_width(block, stage);
      num_floats += width * (width + 1) / 2 + (4 + num_sample_rows) * width;
    }
  }
  constexpr int64_t kGroupBytes = 4096;  // about: HDF5's own headers
  return num_floats * static_cast<int64_t>(sizeof(float)) + num_groups * kGroupBytes;
}

struct StatisticsFile::State {
  Hdf5Reader reader;
  std::string hash;
  StatisticsOrigin origin;
};

StatisticsFile::StatisticsFile(std::unique_ptr<State> state) : state_(std::move(state)) {}
StatisticsFile::StatisticsFile(StatisticsFile&&) noexcept = default;
StatisticsFile& StatisticsFile::operator=(StatisticsFile&&) noexcept = default;
StatisticsFile::~StatisticsFile() = default;

const fs::path& StatisticsFile::path() const {
  return state_->reader.file().path();
}

const StatisticsOrigin& StatisticsFile::origin() const {
  return state_->origin;
}

const std::string& StatisticsFile::hash() const {
  return state_->hash;
}

StatisticsFile StatisticsFile::open(const fs::path& path) {
  runtime::InputFile file(path);
  const std::string hash = check_hash(file, kKind);
  auto state = std::unique_ptr<State>(new State{Hdf5Reader(std::move(file), kUserBlockBytes, kKind.remedy), hash, {}});
  const Hdf5Object root = state->reader.root();
  const auto count = [&](const char* name) {  // what does not fit is out of every range
    return static_cast<int64_t>(std::min<uint64_t>(root.number(name), INT64_MAX));
  };
  state->origin = {.model = root.text("model"),
                   .data = root.text("data"),
                   .text = root.text("text"),
                   .num_windows = count("windows"),
                   .num_tokens = count("tokens"),
                   .seed = root.number("seed"),
                   .pare_version = root.text("pare"),
                   .libtorch_version = root.text("libtorch"),
                   .instruction_set = root.text("instruction_set")};
  refuse_reading(state->reader, "", check_origin(state->origin));
  return StatisticsFile(std::move(state));
}

LayerStatistics StatisticsFile::read(const runtime::BlockDescription& block, runtime::Stage stage,
                                     StatisticsNeed need) const {
  give_back_free_memory();
  const Hdf5Reader& reader = state_->reader;
  const std::optional<Hdf5Object> owner = reader.root().find(block.name);
  const std::optional<Hdf5Object> group = owner ? owner->find(stage_group_name(stage)) : std::nullopt;
  if (!group) fail(path(), "it holds no statistics of " + stage_group(block, stage) + ": it is of another model");
  const std::string prefix = group->path() + "/";
  const int64_t width = runtime::stage_width(block, stage);
  // All shapes before the first value.
  const Hdf5Array diagonal = find_floats(reader, *group, "hessian_diagonal", {width});
  const Hdf5Array minimum = find_floats(reader, *group, "min", {width});
  const Hdf5Array maximum = find_floats(reader, *group, "max", {width});
  const Hdf5Array mean_abs = find_floats(reader, *group, "mean_abs", {width});
  const Hdf5Array triangle = find_floats(reader, *group, "hessian", {width * (width + 1) / 2});
  const int64_t num_rows = group->array("sample", Hdf5Type::float32).shape[0];
  const Hdf5Array sample = find_floats(reader, *group, "sample", {num_rows, width});

  LayerStatistics statistics;
  statistics.num_tokens = static_cast<int64_t>(std::min<uint64_t>(group->number("num_tokens"), INT64_MAX));
  refuse_reading(reader, prefix, check_tokens(origin(), stage, statistics));
  refuse_reading(reader, prefix, check_rows(statistics.num_tokens, num_rows));
  statistics.hessian_diagonal_I = read_floats(reader, diagonal);
  statistics.min_I = read_floats(reader, minimum);
  statistics.max_I = read_floats(reader, maximum);
  statistics.mean_abs_I = read_floats(reader, mean_abs);
  refuse_reading(reader, prefix, check_channels(statistics));
  statistics.sample_RI = read_floats(reader, sample);
  refuse_reading(reader, prefix, check_sample(statistics));
  if (need != StatisticsNeed::hessian) return statistics;
  statistics.hessian_II = read_upper_triangle(reader, triangle, width);
  refuse_reading(reader, prefix, check_hessian(statistics));
  return statistics;
}

}  // namespace pare::compress
