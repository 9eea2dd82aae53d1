#include "runtime/model/stored_names.h"

#include <algorithm>
#include <stdexcept>

namespace pare::runtime {
namespace {

// Returns the prefixes of the names that end in `tail` after a dot or nothing.
std::vector<std::string> prefixes_before(std::span<const std::string> names, const std::string& tail) {
  std::vector<std::string> prefixes;
  for (const std::string& name : names) {
    if (!name.ends_with(tail)) continue;
    const std::string prefix = name.substr(0, name.size() - tail.size());
    if (prefix.empty() || prefix.ends_with('.')) prefixes.push_back(prefix);
  }
  return prefixes;
}

bool has_prefix(std::span<const std::string> names, const std::string& prefix) {
  const auto name = std::ranges::lower_bound(names, prefix);
  return name != names.end() && name->starts_with(prefix);
}

// Returns the file's base: the prefix before the anchor, where it is the only one that has an embedding as well.
std::string find_base(std::span<const std::string> names, const ModuleNames& modules) {
  std::vector<std::string> found = prefixes_before(names, modules.anchor);
  if (found.empty() || std::ranges::find(found, modules.base) != found.end()) return modules.base;
  if (found.size() > 1) {
    std::erase_if(found, [&](const std::string& base) { return !has_prefix(names, base + modules.embedding + "."); });
  }
  if (found.size() == 1) return found.front();
  std::string several;
  for (const std::string& base : found) several += (several.empty() ? "'" : ", '") + base + modules.anchor + "'";
  throw std::runtime_error("expected the tensor '" + modules.base + modules.anchor + "', found " +
                           (several.empty() ? "several of the kind, none with an embedding" : several) +
                           ": save the language model by itself");
}

// Returns the file's prefix of the head's module: that of a module above the base, if only such a one has it.
std::string find_head(std::span<const std::string> names, const ModuleNames& modules, const std::string& base) {
  if (has_prefix(names, modules.head + ".")) return modules.head;
  for (size_t dot = base.find('.'); dot + 1 < base.size(); dot = base.find('.', dot + 1)) {
    const std::string head = base.substr(0, dot + 1) + modules.head;
    if (has_prefix(names, head + ".")) return head;
  }
  return modules.head;
}

std::string with_prefix(const std::string& name, const std::string& from, const std::string& to) {
  return name.starts_with(from) ? to + name.substr(from.size()) : "";
}

// Adds what stands after the base, up to the next dot.
void add_child(const std::string& base, const std::string& module, ModuleNames& names) {
  std::string child = module.substr(base.size(), module.find('.', base.size()) - base.size());
  if (std::ranges::find(names.children, child) == names.children.end()) names.children.push_back(std::move(child));
}

}  // namespace

ModuleNames module_names(const ModelDescription& model) {
  ModuleNames names = {.base = model.base, .children = {}, .anchor = {}, .embedding = {}, .head = model.head.name};
  const std::vector<NormDescription> norms = all_norms(model);
  const auto anchor = std::ranges::find_if(
      norms, [&](const NormDescription& norm) { return norm.name.starts_with(model.blocks.front().name + "."); });
  names.anchor = (anchor == norms.end() ? model.final_norm.name : anchor->name).substr(model.base.size()) + ".weight";
  names.embedding = model.embedding_name.substr(model.base.size());
  add_child(model.base, model.embedding_name, names);
  if (model.has_learned_positions()) add_child(model.base, model.position_table.name, names);
  for (const LinearDescription& linear : block_linears(model)) add_child(model.base, linear.name, names);
  for (const NormDescription& norm : norms) add_child(model.base, norm.name, names);
  return names;
}

ModuleNames module_names(const EncoderDescription& model) {
  ModuleNames names = {.base = {}, .children = {}, .anchor = {}, .embedding = model.word_embedding.name, .head = {}};
  names.anchor = model.blocks.front().feed_forward_norm.name + ".weight";
  add_child("", model.word_embedding.name, names);
  for (const LinearDescription& linear : block_linears(model)) add_child("", linear.name, names);
  for (const LayerNormDescription& norm : all_norms(model)) add_child("", norm.name, names);
  for (const std::string& linear : model.unused_linears) add_child("", linear, names);
  return names;
}

StoredNames::StoredNames(std::span<const std::string> names, const ModuleNames& modules) {
  const std::string base = find_base(names, modules);
  if (base != modules.base) {
    for (const std::string& child : modules.children) {
      prefixes_.emplace_back(base + child + ".", modules.base + child + ".");
    }
  }
  if (modules.head.empty()) return;
  const std::string head = find_head(names, modules, base);
  if (head != modules.head) prefixes_.emplace_back(head + ".", modules.head + ".");
}

std::string StoredNames::described(const std::string& stored) const {
  for (const auto& [file, own] : prefixes_) {
    if (std::string name = with_prefix(stored, file, own); !name.empty()) return name;
  }
  return stored;
}

std::string StoredNames::stored(const std::string& described) const {
  for (const auto& [file, own] : prefixes_) {
    if (std::string name = with_prefix(described, own, file); !name.empty()) return name;
  }
  return described;
}

}  // namespace pare::runtime
