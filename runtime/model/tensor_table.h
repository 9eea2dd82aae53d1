// The tensors of a checkpoint's files, as its description knows them: under the description's names, an expert and a
// linear at a time, weights as [O, I].
#pragma once

#include <deque>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "runtime/files/safetensors.h"
#include "runtime/format/stored_scheme.h"
#include "runtime/format/tensor_view.h"
#include "runtime/model/checkpoint_files.h"
#include "runtime/model/model_description.h"
#include "runtime/model/stored_names.h"

namespace pare::runtime {

bool are_equal(const TensorView& a, const TensorView& b);  // types, shapes and bytes

class TensorTable;
// Returns how the module is stored, by its name in the description or in the files; nullopt: dense. class_name is as of
// ContainerConfig::scheme_of, whose errors it throws with the directory.
std::optional<PackScheme> stored_scheme(const Quantization& quantization, const TensorTable& tensors,
                                        const std::string& module, std::string_view class_name);

class TensorTable {
 public:
  TensorTable() = default;
  TensorTable(const TensorTable&) = delete;  // its tensors point into it
  TensorTable& operator=(const TensorTable&) = delete;

  // Opens the files and gives their tensors the names of `modules`. `family` is for messages. Throws std::runtime_error
  // for damaged files, for two different tensors of one name, and for names that could mean several things.
  void open(const std::filesystem::path& directory, WeightFiles found, const std::string& family,
            const ModuleNames& modules);

  // Takes apart what holds the weights of several experts, in transformers' way or in stacks of the family's own.
  // fp8_block: the blocks of stacks of fp8 codes (ContainerConfig::block_of_stacks); nullopt: codes are refused.
  void split_experts(const ModelDescription& model, const std::optional<ScaleBlock>& fp8_block);
  // Makes F32 weights of MLX's modules that no code with a zero is (runtime/containers/mlx.h); each is made when it is
  // read. Their scales and biases are gone then, so that the modules count as unquantized.
  void decode_free_biases(const std::optional<Quantization>& quantization);
  // Gives a tied pair the embedding's name. Returns whether the head is tied: where only a default says so, a head of
  // another value decides, as in transformers.
  bool settle_head(const ModelDescription& model);
  // Turns weights [I, O] of the model's blocks that are stored in floats. Each is made when it is read.
  void transpose_linears(const ModelDescription& model);

  // Returns a tensor's type, shape and (unless is_made) bytes; null if there is none.
  const TensorView* find(const std::string& name) const;
  // Returns a tensor that is there, with its bytes.
  TensorView tensor(const std::string& name) const;
  // Returns what find does, of a tensor in floats. Throws std::runtime_error for another shape or type, and for a
  // missing tensor, with where it may be.
  const TensorView& dense_tensor(const std::string& name, const std::vector<int64_t>& shape) const;
  std::vector<std::string> names() const;  // sorted
  // Lets go of the pages of memory that reading a tensor has filled. Does nothing for one that is not there.
  void drop_pages(const std::string& name) const;

  // Throws std::runtime_error with the file, the tensor's name in it, and `what`.
  [[noreturn]] void fail(const std::string& name, const std::string& what) const;
  // Runs an action whose errors name the tensor but not the directory, and adds that.
  template <typename Action>
  void in_this_directory(const Action& action) const {
    try {
      action();
    } catch (const std::runtime_error& error) {
      throw std::runtime_error("'" + directory_.string() + "': " + error.what());
    }
  }

  const StoredNames& stored_names() const { return stored_names_; }
  const std::vector<std::filesystem::path>& paths() const { return paths_; }
  const std::vector<SafetensorsFile>& files() const { return files_; }  // in the order of paths

 private:
  struct MadeTensor;
  // A tensor's place: one of the files, and the position in it.
  struct Entry {
    const TensorView* view = nullptr;
    const SafetensorsFile* file = nullptr;
    const std::filesystem::path* path = nullptr;
    const MadeTensor* made = nullptr;  // not null: the view has no bytes, which are made of others in the file
  };
  // A tensor whose bytes are made each time they are read.
  struct MadeTensor {
    TensorView view;  // without bytes
    std::function<std::vector<std::byte>()> make;
    std::vector<std::pair<const SafetensorsFile*, std::span<const std::byte>>> parts;  // the bytes that it is made from
  };

  void add_tensors(size_t f);
  void rename_tensors(const ModuleNames& modules);
  bool has_module(const std::string& module) const;
  void take_stacked_experts(const ModelDescription& model);
  void split_tensor(const std::string& fused, std::span<const std::vector<LinearDescription>> parts,
                    const std::optional<ScaleBlock>& fp8_block);
  void split_scales(const std::string& fused, std::span<const std::vector<LinearDescription>> parts,
                    const ScaleBlock& block);
  void add_part(const std::string& name, TensorView view, const std::string& fused);
  std::string hint_of_files(const std::string& stored) const;
  [[noreturn]] void fail_missing(const std::string& name) const;

  std::filesystem::path directory_;
  std::string family_, head_;
  std::vector<std::filesystem::path> paths_;
  std::vector<SafetensorsFile> files_;                 // never resized once tensors_ points into it
  std::map<std::string, std::string> file_of_tensor_;  // the index, by the names in the files
  StoredNames stored_names_;
  std::map<std::string, Entry> tensors_;  // by the description's names
  std::deque<TensorView> split_views_;    // tensors_ points to these if a file holds all experts in one tensor
  std::deque<MadeTensor> made_tensors_;   // tensors_ points to these
};

}  // namespace pare::runtime
