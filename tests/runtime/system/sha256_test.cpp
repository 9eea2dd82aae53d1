#include "runtime/system/sha256.h"

#include <gtest/gtest.h>

#include <fstream>
#include <random>
#include <string_view>
#include <vector>

#include "runtime/system/interrupt.h"
#include "tests/expect_error.h"
#include "tests/temporary_folder.h"

namespace pare {
using namespace runtime;
namespace {

std::string hash_of(std::string_view text) {
  return sha256_hex(std::as_bytes(std::span(text)));
}

// The examples that NIST publishes with FIPS 180-4, and the million a's of FIPS 180-2, appendix B.3.
TEST(Sha256, PublishedExamples) {
  EXPECT_EQ(hash_of(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(hash_of("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(hash_of("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(
      hash_of("abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmnopqklmnopqrlmnopqrsmno"
              "pqrstnopqrstu"),
      "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1");
  EXPECT_EQ(hash_of(std::string(1000000, 'a')), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

// The lengths lie around the padding's block boundary. The hashes are those of Python's hashlib for 0x61 repeated.
TEST(Sha256, LengthsAroundABlock) {
  EXPECT_EQ(hash_of(std::string(55, 'a')), "9f4390f8d30c2dd92ec9f095b65e2b9ae9b0a925a5258e241c9f1e910f734318");
  EXPECT_EQ(hash_of(std::string(56, 'a')), "b35439a4ac6f0948b6d6f9e3c6af0f5f590ce20f1bde7090ef7970686ec6738a");
  EXPECT_EQ(hash_of(std::string(63, 'a')), "7d3e74a05d7db15bce4ad9ec0658ea98e3f06eeecf16b4c6fff2da457ddc2f34");
  EXPECT_EQ(hash_of(std::string(64, 'a')), "ffe054fe7ae0cb6dc65c3af9b61d5209f439851db43d0ba5997337df154668eb");
  EXPECT_EQ(hash_of(std::string(65, 'a')), "635361c48bb9eab14198e76ea8ab7f1a41685d6ad62aa9146d301d4f17eb0ae0");
}

TEST(Sha256, PiecesGiveTheHashOfTheWhole) {
  std::mt19937 generator(5);
  std::string text(5000, ' ');
  for (char& c : text) c = static_cast<char>(generator());
  for (int round = 0; round < 50; ++round) {
    Sha256 hash;
    for (size_t begin = 0; begin < text.size();) {
      const size_t size = std::min<size_t>(generator() % 200, text.size() - begin);
      hash.update(std::as_bytes(std::span(text).subspan(begin, size)));
      begin += size;
    }
    ASSERT_EQ(hash.hex(), hash_of(text));
  }
}

TEST(Sha256, PlainCompressionEqualsTheCpuInstructions) {
  if (!has_sha_extensions()) GTEST_SKIP() << "this CPU lacks the SHA extensions: only the plain path is in use";
  std::mt19937 generator(6);
  std::vector<uint8_t> blocks(64 * 33 + 1);
  for (uint8_t& byte : blocks) byte = static_cast<uint8_t>(generator());
  std::array<uint32_t, 8> plain = {1, 2, 3, 4, 5, 6, 7, 8}, extensions = plain;
  sha256_compress_plain(plain, blocks.data() + 1, 33);  // from an odd address
  sha256_compress_extensions(extensions, blocks.data() + 1, 33);
  EXPECT_EQ(plain, extensions);
}

// The plain path is compared with a published value, so it is tested on CPUs that never take it too.
TEST(Sha256, PlainCompressionOfThePublishedBlock) {
  std::array<uint32_t, 8> state = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                   0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  uint8_t block[64] = {'a', 'b', 'c', 0x80};
  block[63] = 24;
  sha256_compress_plain(state, block, 1);
  EXPECT_EQ(state, (std::array<uint32_t, 8>{0xba7816bf, 0x8f01cfea, 0x414140de, 0x5dae2223, 0xb00361a3, 0x96177a9c,
                                            0xb410ff61, 0xf20015ad}));
}

TEST(Sha256, FilesAreHashedInPieces) {
  TemporaryFolder folder;
  std::string text(3'000'001, 'x');
  std::ofstream(folder.path() / "file", std::ios::binary) << text;
  EXPECT_EQ(sha256_file(folder.path() / "file"), hash_of(text));
  expect_error<std::runtime_error>([&] { sha256_file(folder.path() / "none"); }, {"none", "No such file"});
  expect_error<std::runtime_error>([&] { sha256_file(folder.path()); }, {folder.path().string()});
}

TEST(Sha256, OfAFileStopsWhenInterrupted) {
  TemporaryFolder folder;
  std::ofstream(folder.path() / "file", std::ios::binary) << std::string(3'000'001, 'x');
  request_interrupt();
  EXPECT_THROW(sha256_file(folder.path() / "file"), Interrupted);
  {
    const InterruptionLater whole;
    EXPECT_EQ(sha256_file(folder.path() / "file"), hash_of(std::string(3'000'001, 'x')));
  }
  EXPECT_THROW(sha256_file(folder.path() / "file"), Interrupted);
  clear_interrupt();
}

}  // namespace
}  // namespace pare
