// Letters, digits and cases as the methods of Python's texts know them (Unicode 14).
#pragma once

#include <string>
#include <string_view>

namespace pare::runtime {

// str.isalpha(), isdecimal(), isdigit(), isnumeric(), islower(), isupper(), istitle(), isprintable() and isspace() of
// one character, and whether it is one of isalnum().
bool is_python_alphabetic(char32_t code_point);
bool is_python_decimal(char32_t code_point);
bool is_python_digit(char32_t code_point);
bool is_python_numeric(char32_t code_point);
bool is_python_lower(char32_t code_point);
bool is_python_upper(char32_t code_point);
bool is_python_title(char32_t code_point);  // such as U+01C5, which is neither lower nor upper
bool is_python_printable(char32_t code_point);
bool is_python_space(char32_t code_point);
bool is_python_alphanumeric(char32_t code_point);

// Python's lower(), upper(), capitalize() and title() of UTF-8 text. Characters may become several, and a sigma at a
// word's end becomes the final one.
enum class LetterCase { lower, upper, capitalized, title };
std::string with_case(std::string_view text, LetterCase letter_case);

}  // namespace pare::runtime
