// report.html: what a run has done and measured, as a page for a browser. It is made of report.json and pare.json
// alone.
#pragma once

#include <string>

namespace pare::compress {

// Returns the page. `report` and `manifest` are the texts of the two files, `name` is the result's. What they do not
// hold has no place in the page. Names and texts are escaped. Throws std::runtime_error for files that are not what
// pare writes.
std::string report_page(const std::string& report, const std::string& manifest, const std::string& name);

// Returns `report`, a JSON object, with the SHA-256 of its page, by which `verify` knows it.
std::string with_page(const std::string& report, const std::string& page);

}  // namespace pare::compress
