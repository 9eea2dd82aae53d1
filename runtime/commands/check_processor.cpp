// Checks, before anything else of a program runs, that this processor has what the program is compiled for: x86-64-v3.
// On another one the program would end with SIGILL at some instruction, without a message. With the check it ends with
// a sentence and status 1.
//
// This file is compiled for any x86-64 (runtime/CMakeLists.txt) and calls nothing that is compiled for more. Its
// function stands in the executable's .preinit_array. The dynamic linker calls the entries of that array after
// relocating and before the initializers of any shared library, LibTorch's included (System V gABI, "Initialization and
// Termination Functions"). The features are those of the x86-64 psABI, table "Micro-architecture levels", v2 and v3.
#include <cpuid.h>
#include <unistd.h>

namespace {

struct Feature {
  const char* name;
  unsigned leaf;  // cpuid's leaf; subleaf 0
  enum Register { ebx, ecx } in;
  unsigned bit;
};

constexpr Feature kFeatures[] = {
    {"SSE3", 1, Feature::ecx, bit_SSE3},
    {"SSSE3", 1, Feature::ecx, bit_SSSE3},
    {"SSE4.1", 1, Feature::ecx, bit_SSE4_1},
    {"SSE4.2", 1, Feature::ecx, bit_SSE4_2},
    {"CMPXCHG16B", 1, Feature::ecx, bit_CMPXCHG16B},
    {"POPCNT", 1, Feature::ecx, bit_POPCNT},
    {"LAHF", 0x80000001, Feature::ecx, bit_LAHF_LM},
    {"MOVBE", 1, Feature::ecx, bit_MOVBE},
    {"OSXSAVE", 1, Feature::ecx, bit_OSXSAVE},
    {"AVX", 1, Feature::ecx, bit_AVX},
    {"FMA", 1, Feature::ecx, bit_FMA},
    {"F16C", 1, Feature::ecx, bit_F16C},
    {"AVX2", 7, Feature::ebx, bit_AVX2},
    {"BMI1", 7, Feature::ebx, bit_BMI},
    {"BMI2", 7, Feature::ebx, bit_BMI2},
    {"LZCNT", 0x80000001, Feature::ecx, bit_LZCNT},
};
constexpr unsigned kYmmState = 6;  // bits of XCR0: the system saves the registers of SSE and AVX

bool has(const Feature& feature) {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid_count(feature.leaf, 0, &eax, &ebx, &ecx, &edx) == 0) return false;
  const unsigned found = feature.in == Feature::ebx ? ebx : ecx;
  return (found & feature.bit) != 0;
}

// May be called only if the processor has OSXSAVE.
bool system_saves_ymm() {
  unsigned low = 0, high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (low & kYmmState) == kYmmState;
}

// One line for standard error, in a single write. It calls no function of the C library that may use wide instructions.
class Line {
 public:
  void add(const char* text) {
    while (*text != '\0' && size_ < sizeof(text_)) text_[size_++] = *text++;
  }
  void print() const {
    if (::write(STDERR_FILENO, text_, size_) < 0) return;  // the status reports it as well
  }

 private:
  char text_[512];
  unsigned long size_ = 0;
};

const char* base_name(const char* path) {
  const char* name = path;
  for (const char* c = path; *c != '\0'; ++c) {
    if (*c == '/') name = c + 1;
  }
  return name;
}

void check_processor(int argc, char** argv, char** /*environment*/) {
  bool is_missing = false;
  Line line;
  const auto report = [&](const char* name) {
    if (is_missing) line.add(", ");
    line.add(name);
    is_missing = true;
  };
  line.add(argc > 0 ? base_name(argv[0]) : "pare");
  line.add(
      ": this processor cannot run the program, which needs x86-64-v3 (AVX2; Intel from 2013 on, AMD from 2015 on);"
      " missing: ");
  for (const Feature& feature : kFeatures) {
    if (!has(feature)) report(feature.name);
  }
  const bool has_xgetbv = has({"OSXSAVE", 1, Feature::ecx, bit_OSXSAVE});
  if (has_xgetbv && !system_saves_ymm()) report("the system's support of AVX registers");
  if (!is_missing) return;
  line.add("\n");
  line.print();
  ::_exit(1);
}

// The attribute keeps it although nothing refers to it.
[[gnu::used, gnu::section(".preinit_array")]] void (*const kCheckProcessor)(int, char**, char**) = check_processor;

}  // namespace
