// Numbers and texts as SVG pictures hold them: the same bytes in every locale, and valid XML for any text.
#pragma once

#include <string>

namespace pare::quant {

// Returns the value with exactly num_decimals decimals, as printf("%.*f") does in the C locale. Trailing zeros stay, so
// that columns of numbers line up. The text has some 300 digits where the value has them.
std::string fixed_digits(double value, int num_decimals);

// Returns the value with at most num_digits significant digits, as printf("%.*g") does: "0.05", "1.2e+61".
std::string short_digits(double value, int num_digits);

// Returns the text escaped for XML 1.0. Control characters are left out, because XML 1.0 has none.
std::string xml_text(const std::string& text);

}  // namespace pare::quant
