#include "runtime/export/folder_formats.h"

#include <algorithm>
#include <array>
#include <string>

#include "runtime/containers/awq_gemm.h"
#include "runtime/containers/bitsandbytes_int8.h"
#include "runtime/containers/gptq.h"

namespace pare::runtime {
namespace {

constexpr std::array kFormats{
    FolderFormat{.name = kCompressedTensors, .container = kCompressedTensors},
    FolderFormat{.name = kGptq, .container = kGptq},
    FolderFormat{.name = kGptqV2, .container = kGptqV2},
    FolderFormat{.name = kAwqGemm, .container = kAwqGemm},
    // NF4 has a container of its own under the same method.
    FolderFormat{.name = kBitsAndBytes, .container = kBitsAndBytes},
    FolderFormat{.name = "nvfp4", .container = kCompressedTensors, .code = &kNvfp4Code},
    FolderFormat{.name = "mxfp4", .container = kCompressedTensors, .code = &kMxfp4Code},
    FolderFormat{.name = "dense", .container = ""},
};

}  // namespace

std::span<const FolderFormat> folder_formats() {
  return kFormats;
}

const FolderFormat* find_folder_format(std::string_view name) {
  const auto found = std::ranges::find(kFormats, name, &FolderFormat::name);
  return found == kFormats.end() ? nullptr : &*found;
}

Acceptance holds_codes(const FolderFormat& format, const PackScheme& scheme) {
  if (format.container.empty() && !scheme.input.is_plain()) {
    return {"a model of dense weights rounds no input, found " + input_format_name(scheme.input) +
            ": leave 'container' out"};
  }
  if (format.code == nullptr || scheme.code == format.code) return {};
  const std::string name(format.name);
  const std::string found = scheme.is_dense()     ? "weights in floating point"
                            : scheme.is_integer() ? std::to_string(scheme.bits) + " bits"
                                                  : std::string(scheme.code->name);
  return {"it holds codes of " + name + ", found " + found + ": round with 'code: " + name +
          "', or leave 'container' out"};
}

}  // namespace pare::runtime
