// A model's tensors beside its config.json: those that are missing, of another shape, or not needed; and whether every
// layer can be read.
#pragma once

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "runtime/doctor/claims.h"
#include "runtime/doctor/finding.h"
#include "runtime/doctor/patient.h"

namespace pare::runtime {

// The tensors that a model needs and may have.
class Needs {
 public:
  explicit Needs(const Patient& patient);

  const std::vector<LinearDescription>& linears() const { return linears_; }  // those that may hold codes
  // Tensors in floats, with their shapes, by the description's names: norms, biases, vectors, tables.
  const std::vector<std::pair<std::string, std::vector<int64_t>>>& floats() const { return floats_; }
  bool is_embedding(const std::string& linear) const { return tables_.contains(linear); }
  // True for a tensor of the description's name that the model needs as it is described.
  bool needs(const std::string& tensor) const;
  // True for one that a reader of the model may look at, in whatever form.
  bool knows(const std::string& tensor) const;

 private:
  void add_decoder(const ModelDescription& model);
  void add_encoder(const EncoderDescription& model);
  std::vector<LinearDescription> linears_;
  std::vector<std::pair<std::string, std::vector<int64_t>>> floats_;
  std::set<std::string> tables_, modules_, needed_;
};

// Reads every layer. Those in `explained`, by the names in the files, are not spoken of again. `step` is called after
// each layer. Throws Interrupted.
void examine_model(const Patient& patient, const Needs& needs, const Claims& claims, std::vector<Finding>& findings,
                   const std::set<std::string>& explained, const std::function<void()>& step);

}  // namespace pare::runtime
