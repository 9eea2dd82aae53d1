#include "runtime/cpu/kernels/int8_amx_kernels.h"
#include "runtime/cpu/kernels/int8_avxvnni_kernels.h"
#include "runtime/system/isa.h"
#include "tests/runtime/cpu/evex_dot.h"
#include "tests/runtime/cpu/int8_paths.h"
#include "tests/runtime/cpu/plain_tiles.h"

namespace pare {
using namespace runtime;

std::vector<Int8Path> all_int8_paths() {
  std::vector<Int8Path> paths;
  for (const Isa isa : {Isa::avx2, Isa::avxvnni, Isa::vnni, Isa::amx}) {
    if (supports_isa(isa)) paths.push_back({std::string(isa_name(isa)), &int8_kernels(isa)});
  }
  static const Int8Kernels on_avx2 = make_amx_kernels<PlainTiles>(int8_kernels_avx2());
  paths.push_back({"amx on plain tiles over avx2", &on_avx2});
  if (EvexVnni::is_there()) {
    static const Int8Kernels by_evex = make_avxvnni_kernels<EvexVnni>();
    paths.push_back({"avxvnni by AVX-512", &by_evex});
  }
  if (supports_isa(Isa::vnni)) {
    static const Int8Kernels on_vnni = make_amx_kernels<PlainTiles>(int8_kernels_vnni());
    paths.push_back({"amx on plain tiles over vnni", &on_vnni});
  }
  return paths;
}

}  // namespace pare
