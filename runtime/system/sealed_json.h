// JSON files that can tell whether they are what was written, and that are ordinary JSON for everybody else. The last
// member of the object, on a line of its own, is
//
//     "sha256": "HEX"
//
// where HEX is the SHA-256 of the whole file with 64 zeros in place of HEX. It protects from accidents.
#pragma once

#include <string>
#include <string_view>

namespace pare::runtime {

// Returns `object` with that member. `object` is the text of a JSON object with at least one member and no "sha256".
// Throws std::invalid_argument if the text does not end like an object.
std::string seal_json(std::string_view object);

enum class Seal {
  whole,   // the file is what was written
  broken,  // it is not, or is not a JSON object
  none     // an object without such a member: written by an earlier version, or by another program
};
Seal check_seal(std::string_view file);

}  // namespace pare::runtime
