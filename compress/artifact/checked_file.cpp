#include "compress/artifact/checked_file.h"

#include <span>

#include "runtime/system/atomic_file.h"
#include "runtime/system/sha256.h"

namespace pare::compress {
namespace {

constexpr std::string_view kEnd = "}\n";

std::string head_of(std::string_view content) {
  return "{\"sha256\": \"" + runtime::sha256_hex(std::as_bytes(std::span(content))) + "\", \"content\":\n";
}

}  // namespace

void write_checked_file(const std::filesystem::path& path, std::string_view content) {
  runtime::write_file_atomically(path, head_of(content) + std::string(content) + std::string(kEnd));
}

std::string read_checked_file(const std::filesystem::path& path) {
  const std::string text = runtime::read_text_file(path);
  const size_t head_size = head_of("").size();
  if (text.size() < head_size + kEnd.size()) throw damaged_file(path);
  std::string content = text.substr(head_size, text.size() - head_size - kEnd.size());
  if (!text.starts_with(head_of(content)) || !text.ends_with(kEnd)) throw damaged_file(path);
  return content;
}

std::runtime_error damaged_file(const std::filesystem::path& path, const std::string& what) {
  return std::runtime_error("'" + path.string() + "' is damaged" + (what.empty() ? "" : " (" + what + ")") +
                            ": start over with --fresh");
}

}  // namespace pare::compress
