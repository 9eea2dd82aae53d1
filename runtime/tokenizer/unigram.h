// The unigram language model of SentencePiece (Kudo 2018, arXiv 1804.10959): of all ways to put a text together from
// pieces, the one whose scores sum to the most (Viterbi's algorithm).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "runtime/tokenizer/token_model.h"

namespace pare::runtime {

struct UnigramOptions {
  std::optional<int32_t> unk_id;
  bool byte_fallback = false;  // unknown text becomes its bytes' tokens <0x00> ... <0xFF>, if it has all
};

class UnigramModel final : public TokenModel {
 public:
  static constexpr size_t kMaxPieceBytes = 1024;   // bounds the work per character of text
  static constexpr double kUnknownPenalty = 10.0;  // a character without a piece scores this below the lowest piece

  // The pieces (text, score) have their places as ids. Throws std::runtime_error (`where`) for no pieces, one that
  // stands twice or is longer than kMaxPieceBytes, and an unknown id that is none of them.
  UnigramModel(std::vector<std::pair<std::string, double>> pieces, const UnigramOptions& options,
               const std::string& where);

  // Unknown characters side by side become one token. Throws std::runtime_error if there are some and the model has no
  // unknown token.
  void encode(std::string_view piece, WordCache& cache, std::vector<int32_t>& ids) const override;
  const std::unordered_map<std::string, int32_t>& vocabulary() const override { return vocabulary_; }

 private:
  // A node of the tree of all pieces' prefixes. The children of a node stand side by side, sorted by their byte.
  struct Node {
    uint32_t first_child = 0;
    uint16_t num_children = 0;
    unsigned char byte = 0;
    int32_t piece = -1;  // the id of the piece that ends here
  };
  // The last piece of the best way to a place in a text.
  struct Step {
    double score = 0.0;
    size_t begin = 0;
    int32_t id = -1;
    bool reached = false;
  };

  void make_tree();
  const Node* child(const Node& node, char byte) const;
  std::vector<Step> best_steps(std::string_view text) const;
  void append_unknown(std::string_view text, std::vector<int32_t>& ids) const;

  UnigramOptions options_;
  std::string where_;
  std::vector<std::pair<std::string, double>> pieces_;
  std::unordered_map<std::string, int32_t> vocabulary_;
  std::vector<Node> nodes_;
  std::array<int32_t, 256> bytes_{};  // tokens <0x00> ... <0xFF>; -1: none
  double unknown_score_ = 0.0;
};

}  // namespace pare::runtime
