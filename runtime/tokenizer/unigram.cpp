#include "runtime/tokenizer/unigram.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <stdexcept>

#include "runtime/system/interrupt.h"
#include "runtime/system/visible_text.h"
#include "runtime/text/unicode.h"

namespace pare::runtime {

UnigramModel::UnigramModel(std::vector<std::pair<std::string, double>> pieces, const UnigramOptions& options,
                           const std::string& where)
    : options_(options), where_(where), pieces_(std::move(pieces)) {
  if (pieces_.empty()) throw std::runtime_error(where + ": the vocabulary is empty");
  if (options.unk_id && (*options.unk_id < 0 || static_cast<size_t>(*options.unk_id) >= pieces_.size())) {
    throw std::runtime_error(where + ".unk_id: expected one of the " + std::to_string(pieces_.size()) +
                             " pieces, found " + std::to_string(*options.unk_id));
  }
  double lowest = std::numeric_limits<double>::infinity();
  vocabulary_.reserve(pieces_.size());
  for (size_t id = 0; id < pieces_.size(); ++id) {
    const auto& [text, score] = pieces_[id];
    if (text.size() > kMaxPieceBytes) {
      throw std::runtime_error(where + ": the piece " + std::to_string(id) + " has " + std::to_string(text.size()) +
                               " bytes; expected at most " + std::to_string(kMaxPieceBytes));
    }
    const auto [other, inserted] = vocabulary_.emplace(text, static_cast<int32_t>(id));
    if (!inserted) {
      throw std::runtime_error(where + ": the pieces " + std::to_string(other->second) + " and " + std::to_string(id) +
                               " are both '" + visible_line(text) + "'");
    }
    lowest = std::min(lowest, score);
  }
  unknown_score_ = lowest - kUnknownPenalty;
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  for (unsigned byte = 0; byte < 256; ++byte) {
    bytes_[byte] = id(std::string("<0x") + kDigits[byte >> 4] + kDigits[byte & 15] + ">").value_or(-1);
  }
  make_tree();
}

// Level by level. The pieces that go through a node stand side by side in sorted order.
void UnigramModel::make_tree() {
  struct Range {
    size_t begin, end, depth;
  };
  std::vector<size_t> sorted(pieces_.size());
  std::iota(sorted.begin(), sorted.end(), size_t{0});
  std::sort(sorted.begin(), sorted.end(), [&](size_t a, size_t b) { return pieces_[a].first < pieces_[b].first; });
  nodes_.push_back({});
  std::vector<Range> ranges = {{0, sorted.size(), 0}};
  for (size_t at = 0; at < nodes_.size(); ++at) {
    auto [begin, end, depth] = ranges[at];
    if (begin < end && pieces_[sorted[begin]].first.size() == depth) {
      nodes_[at].piece = static_cast<int32_t>(sorted[begin++]);
    }
    nodes_[at].first_child = static_cast<uint32_t>(nodes_.size());
    while (begin < end) {
      const char byte = pieces_[sorted[begin]].first[depth];
      size_t next = begin + 1;
      while (next < end && pieces_[sorted[next]].first[depth] == byte) ++next;
      nodes_.push_back({.byte = static_cast<unsigned char>(byte)});
      ranges.push_back({begin, next, depth + 1});
      begin = next;
    }
    nodes_[at].num_children = static_cast<uint16_t>(nodes_.size() - nodes_[at].first_child);
  }
}

const UnigramModel::Node* UnigramModel::child(const Node& node, char byte) const {
  const Node* const begin = nodes_.data() + node.first_child;
  const Node* const end = begin + node.num_children;
  const auto wanted = static_cast<unsigned char>(byte);
  const Node* const found =
      std::lower_bound(begin, end, wanted, [](const Node& a, unsigned char b) { return a.byte < b; });
  return found != end && found->byte == wanted ? found : nullptr;
}

// Returns the best step to each place [text.size() + 1]. Of equal sums the first found counts, as in the package.
std::vector<UnigramModel::Step> UnigramModel::best_steps(std::string_view text) const {
  constexpr size_t kBytesBetweenLooks = size_t{1} << 16;
  std::vector<Step> best(text.size() + 1);
  const auto offer = [&](size_t begin, size_t end, double score, int32_t id) {
    Step& step = best[end];
    if (!step.reached || score > step.score) step = {score, begin, id, true};
  };
  size_t next_look = kBytesBetweenLooks;
  for (size_t begin = 0; begin < text.size();) {
    if (begin >= next_look) {
      throw_if_interrupted();
      next_look += kBytesBetweenLooks;
    }
    const size_t character = utf8_length(text[begin]);
    const double score = best[begin].score;
    bool is_piece = false;
    const Node* node = nodes_.data();
    for (size_t end = begin; end < text.size();) {
      node = child(*node, text[end++]);
      if (node == nullptr) break;
      if (node->piece < 0) continue;
      offer(begin, end, pieces_[static_cast<size_t>(node->piece)].second + score, node->piece);
      is_piece = is_piece || end - begin == character;
    }
    if (!is_piece) {
      if (!options_.unk_id) {
        throw std::runtime_error(where_ + ": the text has the character '" +
                                 visible_line(text.substr(begin, character)) +
                                 "', which is not in the vocabulary, and the model has no unk_id");
      }
      offer(begin, begin + character, unknown_score_ + score, *options_.unk_id);
    }
    begin += character;
  }
  return best;
}

void UnigramModel::append_unknown(std::string_view text, std::vector<int32_t>& ids) const {
  if (const auto known = id(text)) {  // its characters are no pieces, but the whole is one of a low score
    ids.push_back(*known);
    return;
  }
  const auto token_of = [&](char byte) { return bytes_[static_cast<unsigned char>(byte)]; };
  if (options_.byte_fallback && std::all_of(text.begin(), text.end(), [&](char c) { return token_of(c) >= 0; })) {
    for (const char byte : text) ids.push_back(token_of(byte));
    return;
  }
  ids.push_back(*options_.unk_id);
}

void UnigramModel::encode(std::string_view piece, WordCache& cache, std::vector<int32_t>& ids) const {
  if (const auto* seen = cache.find(piece)) {
    ids.insert(ids.end(), cache.ids() + seen->first, cache.ids() + seen->first + seen->second);
    return;
  }
  const std::vector<Step> best = best_steps(piece);
  std::vector<std::pair<size_t, size_t>> parts;  // from the end; unknown ones side by side are one
  bool last_is_unknown = false;
  for (size_t end = piece.size(); end > 0; end = best[end].begin) {
    const bool is_unknown = best[end].id == options_.unk_id;
    if (is_unknown && last_is_unknown) {
      parts.back().first = best[end].begin;
    } else {
      parts.emplace_back(best[end].begin, end);
    }
    last_is_unknown = is_unknown;
  }
  const size_t first = ids.size();
  for (size_t i = parts.size(); i-- > 0;) {
    const auto [begin, end] = parts[i];
    // Every known part is the text of its piece.
    if (best[end].id != options_.unk_id) {
      ids.push_back(best[end].id);
    } else {
      append_unknown(piece.substr(begin, end - begin), ids);
    }
  }
  cache.insert(piece, ids, first);
}

}  // namespace pare::runtime
