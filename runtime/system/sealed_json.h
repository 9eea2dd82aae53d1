// JSON files that know whether they are what was written, and are JSON for everybody else: the last member of the
// object, on a line of its own, is
//
//     "sha256": "HEX"
//
// HEX being the SHA-256 of the whole file with 64 zeros in the place of HEX. It protects from accidents.
#pragma once

#include <string>
#include <string_view>

namespace pare {

// `object`, the text of a JSON object with at least one member and no "sha256", with that member. Throws
// std::invalid_argument when the text does not end like an object.
std::string seal_json(std::string_view object);

enum class Seal {
  whole,   // the file is what was written
  broken,  // it is not, or is no JSON object
  none     // an object without such a member: written by an earlier version, or by somebody else
};
Seal check_seal(std::string_view file);

}  // namespace pare
