#include "compress/hdf5/hashed_file.h"
#include "runtime/system/interrupt.h"

#include <algorithm>
#include <span>
#include <stdexcept>
#include <vector>

#include "runtime/system/sha256.h"

namespace pare::compress {
namespace {

constexpr std::string_view kHashWord = " sha256 ";
constexpr size_t kHashLetters = 64;

[[noreturn]] void fail(const runtime::InputFile& file, const std::string& why) {
  throw std::runtime_error("cannot read '" + file.path().string() + "': " + why);
}

// The version and hash that the user block states.
struct Stated {
  std::string version, hash;
};
Stated read_stated(const runtime::InputFile& file, const FileKind& kind) {
  std::string block(static_cast<size_t>(std::min(file.size_bytes(), kUserBlockBytes)), '\0');
  file.read(0, std::as_writable_bytes(std::span(block)));
  // Only words of ours are shown, because the block may hold any bytes.
  const std::string magic = kind.magic();
  const size_t word = block.find(kHashWord);
  const std::string version =
      word == std::string::npos || word < magic.size() ? "" : block.substr(magic.size(), word - magic.size());
  const bool is_version =
      version.size() <= 9 && std::all_of(version.begin(), version.end(), [](char c) { return c >= '0' && c <= '9'; });
  if (!block.starts_with(magic) || version.empty() || !is_version) {
    fail(file, "it is not a " + kind.name + " file: " + kind.maker + " makes one");
  }
  const auto& also = kind.also_read;
  if (version != kind.version && std::find(also.begin(), also.end(), version) == also.end()) {
    fail(file, kind.name + " of version '" + version + "'; expected " + kind.version + ": " + kind.remedy);
  }
  return {version, block.substr(word + kHashWord.size(), kHashLetters)};
}

// Hashes all bytes after the user block.
std::string hash_content(const runtime::InputFile& file) {
  runtime::Sha256 hash;
  std::vector<std::byte> piece(size_t{1} << 20);
  for (int64_t at = kUserBlockBytes; at < file.size_bytes(); at += static_cast<int64_t>(piece.size())) {
    runtime::throw_if_interrupted();
    piece.resize(std::min(piece.size(), static_cast<size_t>(file.size_bytes() - at)));
    file.read(at, piece);
    hash.update(piece);
  }
  return hash.hex();
}

}  // namespace

std::string write_hash(const UnpublishedFile& file, const FileKind& kind) {
  std::string hash = hash_content(runtime::InputFile(file.temporary_path()));
  std::string block = kind.magic() + kind.version + std::string(kHashWord) + hash + "\n";
  block.resize(kUserBlockBytes, '\0');
  file.write_head(block);
  return hash;
}

std::string check_hash(const runtime::InputFile& file, const FileKind& kind) {
  const std::string stated = read_stated(file, kind).hash;
  std::string hash = hash_content(file);
  if (hash != stated) {
    fail(file, "the file is truncated or damaged (its content has SHA-256 " + hash +
                   ", not the one it states): " + kind.remedy);
  }
  return hash;
}

std::string stated_version(const runtime::InputFile& file, const FileKind& kind) {
  return read_stated(file, kind).version;
}

}  // namespace pare::compress
