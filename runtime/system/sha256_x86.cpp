// SHA-256 by the SHA extensions of x86-64.
#include <cpuid.h>
#include <immintrin.h>

#include "runtime/system/sha256.h"

namespace pare::runtime {

bool has_sha_extensions() {
  unsigned int eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0 && (ebx >> 29 & 1) != 0;
}

// sha256_compress_plain with two rounds per instruction (Intel, "Intel SHA Extensions", 2013). The registers hold the
// state as abef and cdgh, and the last 16 words of the message schedule as four quadruples.
__attribute__((target("sha,sse4.1"))) void sha256_compress_extensions(std::array<uint32_t, 8>& state,
                                                                      const uint8_t* blocks, size_t num_blocks) {
  const __m128i swap_bytes = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
  __m128i* state_halves = reinterpret_cast<__m128i*>(state.data());
  const __m128i cdab = _mm_shuffle_epi32(_mm_loadu_si128(state_halves), 0xb1);
  const __m128i efgh = _mm_shuffle_epi32(_mm_loadu_si128(state_halves + 1), 0x1b);
  __m128i abef = _mm_alignr_epi8(cdab, efgh, 8);
  __m128i cdgh = _mm_blend_epi16(efgh, cdab, 0xf0);
  for (size_t block = 0; block < num_blocks; ++block, blocks += 64) {
    const __m128i abef_before = abef, cdgh_before = cdgh;
    __m128i words[4];
    for (int quad = 0; quad < 16; ++quad) {
      __m128i& current = words[quad % 4];
      if (quad < 4) {
        current = _mm_loadu_si128(reinterpret_cast<const __m128i*>(blocks + 16 * quad));
        current = _mm_shuffle_epi8(current, swap_bytes);
      } else {
        const __m128i last = words[(quad + 3) % 4];
        const __m128i w_minus_7 = _mm_alignr_epi8(last, words[(quad + 2) % 4], 4);
        current = _mm_add_epi32(_mm_sha256msg1_epu32(current, words[(quad + 1) % 4]), w_minus_7);
        current = _mm_sha256msg2_epu32(current, last);
      }
      const __m128i sums =
          _mm_add_epi32(current, _mm_load_si128(reinterpret_cast<const __m128i*>(kSha256Rounds + 4 * quad)));
      cdgh = _mm_sha256rnds2_epu32(cdgh, abef, sums);
      abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(sums, 0x0e));
    }
    abef = _mm_add_epi32(abef, abef_before);
    cdgh = _mm_add_epi32(cdgh, cdgh_before);
  }
  const __m128i feba = _mm_shuffle_epi32(abef, 0x1b);
  const __m128i dchg = _mm_shuffle_epi32(cdgh, 0xb1);
  _mm_storeu_si128(state_halves, _mm_blend_epi16(feba, dchg, 0xf0));
  _mm_storeu_si128(state_halves + 1, _mm_alignr_epi8(dchg, feba, 8));
}

}  // namespace pare::runtime
