// Sources that passes start from as from dense weights, though their files hold others:
//
// - weights that are 2:4 in floating point, packed (runtime/containers/pare_sparse24.h): the same with their zeros;
// - codes in the containers in which other programs publish models, such as fp8 (runtime/containers/fp8.h) or GPTQ,
//   often without another original: what the codes stand for, in the model's own type, with inputs, keys and values as
//   they are.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "runtime/import/model_directory.h"
#include "runtime/model/checkpoint.h"
#include "runtime/system/progress.h"

namespace pare::compress {

// Whether the checkpoint has packed weights, none of them codes, and rounds no input.
bool is_packed_source(const runtime::Checkpoint& checkpoint);
// Returns the container of all its codes if other programs publish models in it: fp8, gptq, gptq-v2, awq-gemm,
// bitsandbytes, bitsandbytes-nf4, mlx, or compressed-tensors in a folder without pare.json. "" for any other
// checkpoint, also for one in which nothing but inputs is rounded. What pare writes by default has an original to start
// from.
std::string published_codes(const runtime::Checkpoint& checkpoint);

// Writes the same model into `directory`, every weight dense: config.json, weights, the small files that an
// artifact takes over, and a pare.json that says which layers are pruned. Throws std::runtime_error for a source whose
// files are not those that its pare.json lists, and for what cannot be written; std::invalid_argument, before anything
// is written, for codes of compressed-tensors that no layer of the model reads; Interrupted.
// has_weights: false writes model.safetensors with a hole in the weights' place and reads none, for a plan; files are
// then held against their pare.json by presence and size alone.
void unpack_source(const runtime::Checkpoint& checkpoint, const std::filesystem::path& directory,
                   bool has_weights = true);

// A model as it is named, as layerwise passes and students start from it: unpacked where it is a packed source. As
// ModelDirectory says otherwise.
class PlainSource {
 public:
  struct Options {
    bool unpacks = true;      // false leaves a packed source as it is, for what trains it so
    bool decodes = true;      // false leaves codes as they are, since the run's own phases have made them
    bool has_weights = true;  // false makes what is unpacked, decoded or imported without its weights, for a plan
  };
  // Throws what ModelDirectory, Checkpoint::open and unpack_source throw. Without weights it also throws
  // std::runtime_error if the folder for temporary files has no room for them.
  PlainSource(const std::filesystem::path& model, const Options& options, runtime::Progress& progress);

  const std::filesystem::path& path() const { return directory_.path(); }
  // Of an unpacked source, events of files that are not taken over (events_of_links), which the unpacked one knows
  // nothing of, and of codes that were decoded.
  const std::vector<std::string>& events() const { return events_; }
  // False: the folder has names, types and shapes of weights, and zeros in their place. So it is where the options ask
  // for it and the model does not stand for itself.
  bool has_weights() const { return has_weights_; }

 private:
  std::vector<std::string> events_;
  runtime::ModelDirectory directory_;
  bool has_weights_;
};

}  // namespace pare::compress
