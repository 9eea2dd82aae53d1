#include <stdexcept>
#include <vector>

#include "runtime/evaluate/document_perplexity.h"
#include "runtime/evaluate/embeddings.h"
#include "runtime/evaluate/evaluation.h"
#include "runtime/evaluate/instructions.h"
#include "runtime/evaluate/perplexity.h"
#include "runtime/evaluate/task_accuracy.h"

namespace pare::runtime {
namespace {

std::vector<const EvaluationRow*>& table() {
  static const EvaluationRow kPerplexity = perplexity_row(), kInstructions = instructions_row(),
                             kEmbeddings = embeddings_row(), kDocuments = documents_row();
  static const std::vector<EvaluationRow> kTasks = task_rows();
  static std::vector<const EvaluationRow*> rows = [] {
    std::vector<const EvaluationRow*> all = {&kPerplexity, &kInstructions, &kEmbeddings, &kDocuments};
    for (const EvaluationRow& task : kTasks) all.push_back(&task);
    return all;
  }();
  return rows;
}

}  // namespace

std::span<const EvaluationRow* const> evaluation_rows() {
  return table();
}

void add_evaluation(const EvaluationRow& row) {
  for (const EvaluationRow* known : table()) {
    if (known == &row) return;
    if (known->key == row.key || known->option == row.option) {
      throw std::invalid_argument("there is an evaluation '" + std::string(known->key) + "' with the option --" +
                                  std::string(known->option) + " already");
    }
  }
  table().push_back(&row);
}

}  // namespace pare::runtime
