// SHA-256 by the cryptographic extension of AArch64.
#include <arm_neon.h>
#include <asm/hwcap.h>
#include <sys/auxv.h>

#include "runtime/system/sha256.h"

namespace pare::runtime {

bool has_sha_extensions() {
  return (getauxval(AT_HWCAP) & HWCAP_SHA2) != 0;
}

// sha256_compress_plain with four rounds per pair of instructions (Arm ARM, SHA256H and SHA256H2). The registers hold
// the state as abcd and efgh, and the last 16 words of the message schedule as four quadruples.
__attribute__((target("+crypto"))) void sha256_compress_extensions(std::array<uint32_t, 8>& state,
                                                                   const uint8_t* blocks, size_t num_blocks) {
  uint32x4_t abcd = vld1q_u32(state.data()), efgh = vld1q_u32(state.data() + 4);
  for (size_t block = 0; block < num_blocks; ++block, blocks += 64) {
    const uint32x4_t abcd_before = abcd, efgh_before = efgh;
    uint32x4_t words[4];
    for (int quad = 0; quad < 16; ++quad) {
      uint32x4_t& current = words[quad % 4];
      if (quad < 4) {
        current = vreinterpretq_u32_u8(vrev32q_u8(vld1q_u8(blocks + 16 * quad)));
      } else {
        current = vsha256su1q_u32(vsha256su0q_u32(current, words[(quad + 1) % 4]), words[(quad + 2) % 4],
                                  words[(quad + 3) % 4]);
      }
      const uint32x4_t sums = vaddq_u32(current, vld1q_u32(kSha256Rounds + 4 * quad));
      const uint32x4_t abcd_of_quad = abcd;
      abcd = vsha256hq_u32(abcd, efgh, sums);
      efgh = vsha256h2q_u32(efgh, abcd_of_quad, sums);
    }
    abcd = vaddq_u32(abcd, abcd_before);
    efgh = vaddq_u32(efgh, efgh_before);
  }
  vst1q_u32(state.data(), abcd);
  vst1q_u32(state.data() + 4, efgh);
}

}  // namespace pare::runtime
