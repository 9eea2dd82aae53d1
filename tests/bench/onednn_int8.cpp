#include "tests/bench/onednn_int8.h"

#include <memory>
#include <unordered_map>
#include <vector>

#include <oneapi/dnnl/dnnl.hpp>

namespace pare {
namespace {

struct Product {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  dnnl::matmul matmul;
  std::unordered_map<int, dnnl::memory> arguments;
};

// Untouched memory would be the kernel's one zero page, and the figure that of L1.
void fill(dnnl::memory& memory, int value) {
  char* const bytes = static_cast<char*>(memory.get_data_handle());
  for (size_t i = 0; i < memory.get_desc().get_size(); ++i) bytes[i] = static_cast<char>(value + i % 7);
}

}  // namespace

std::string onednn_description() {
  const dnnl_version_t* version = dnnl_version();
  return "oneDNN " + std::to_string(version->major) + "." + std::to_string(version->minor) + "." +
         std::to_string(version->patch);
}

bool has_onednn() {
  return true;
}

std::function<void()> onednn_int8_product(int64_t m, int64_t k, int64_t n) {
  using Type = dnnl::memory::data_type;
  using Tag = dnnl::memory::format_tag;
  auto product = std::make_shared<Product>();
  dnnl::primitive_attr attributes;
  attributes.set_output_scales(1 << 1, std::vector<float>(n, 0.001f));
  const dnnl::matmul::primitive_desc description(
      {dnnl::memory::desc({m, k}, Type::s8, Tag::ab), dnnl::memory::desc({k, n}, Type::s8, Tag::any),
       dnnl::memory::desc({m, n}, Type::f32, Tag::ab)},
      attributes, product->engine);
  product->matmul = dnnl::matmul(description);
  dnnl::memory x(description.src_desc(), product->engine);
  dnnl::memory w(description.weights_desc(), product->engine);
  dnnl::memory y(description.dst_desc(), product->engine);
  fill(x, -3);
  fill(w, -3);
  fill(y, 0);
  product->arguments = {{DNNL_ARG_SRC, x}, {DNNL_ARG_WEIGHTS, w}, {DNNL_ARG_DST, y}};
  return [product] {
    product->matmul.execute(product->stream, product->arguments);
    product->stream.wait();
  };
}

}  // namespace pare
