// What our HTML pages are made of. A page is one file: nothing in it is fetched, and it can be read without its script,
// which sorts tables.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace pare::compress {

// Returns the text escaped for HTML, in elements and in quoted attributes. Control characters but for line breaks and
// tabs are shown (runtime/system/visible_text.h).
std::string html_text(std::string_view text);

struct HtmlCell {
  std::string text;                  // not yet escaped
  std::optional<double> value = {};  // that it is sorted by, and a number; empty: a text
};

struct HtmlTable {
  std::string caption;
  std::vector<std::string> columns;
  std::vector<std::vector<HtmlCell>> rows;
  bool is_wide = false;  // its cells are one line each
};

// Returns a table in a box that scrolls sideways on its own where it is wider than the page.
std::string html_table(const HtmlTable& table);

// Returns a heading with its text below, under an id of ours; "" where the text is empty.
std::string html_section(const std::string& id, const std::string& heading, const std::string& body);

// Returns the whole document. `body` is HTML.
std::string html_page(const std::string& title, const std::string& body);

}  // namespace pare::compress
