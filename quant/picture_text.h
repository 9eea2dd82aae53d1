// Numbers and texts as pictures in SVG hold them: the same bytes in every locale, and XML whatever they are.
#pragma once

#include <string>

namespace pare {

// With so many decimals, as printf("%.*f") has it in the C locale: trailing zeros stay, so that columns of numbers line
// up. Some 300 digits where the value has them.
std::string fixed_digits(double value, int num_decimals);

// With at most so many significant digits, as printf("%.*g") has it: "0.05", "1.2e+61".
std::string short_digits(double value, int num_digits);

// What stands for the text in XML 1.0, which has no control characters: they are left out.
std::string xml_text(const std::string& text);

}  // namespace pare
