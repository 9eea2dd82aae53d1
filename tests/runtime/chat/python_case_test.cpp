// What python_case.h says of every character, compared with Python itself.
#include "runtime/chat/python_case.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <stdexcept>

#include "runtime/text/unicode.h"
#include "tests/places.h"
#include "tests/temporary_folder.h"

namespace pare {
using namespace runtime;
namespace {

std::string hex(const std::string& text) {
  std::string digits;
  for (const char c : text) {
    for (const int shift : {4, 0}) digits += "0123456789abcdef"[(static_cast<unsigned char>(c) >> shift) & 15];
  }
  return digits;
}

// Returns the line of python_case_oracle.py for this code point.
std::string line_of(char32_t code_point) {
  constexpr bool (*kProperties[])(char32_t) = {
      is_python_alphabetic, is_python_decimal, is_python_digit,     is_python_numeric, is_python_lower,
      is_python_upper,      is_python_title,   is_python_printable, is_python_space,   is_python_alphanumeric};
  int bits = 0, bit = 1;
  for (const auto& has : kProperties) {
    bits += has(code_point) ? bit : 0;
    bit *= 2;
  }
  std::string c, line = std::to_string(bits);
  utf8_append(code_point, c);
  const std::string sigma = "\u03a3";
  for (const std::string& text : {c, "a" + c + sigma, c + sigma, sigma + c + "A"}) {
    for (const LetterCase to : {LetterCase::lower, LetterCase::upper, LetterCase::capitalized, LetterCase::title}) {
      line += " " + hex(with_case(text, to));
    }
  }
  return line;
}

TEST(PythonCase, EqualsPythonForEveryCharacter) {
  const char* python = std::getenv("PARE_PYTHON");
  ASSERT_NE(python, nullptr) << "PARE_PYTHON must name a Python";
  const TemporaryFolder folder;
  const std::string command = "'" + std::string(python) + "' '" + kSourceFolder +
                              "/tests/runtime/chat/python_case_oracle.py' '" + (folder.path() / "lines").string() + "'";
  ASSERT_EQ(std::system(command.c_str()), 0) << command;
  std::ifstream lines(folder.path() / "lines");
  std::string line;
  ASSERT_TRUE(std::getline(lines, line));
  if (line != "14.0.0") GTEST_SKIP() << "this Python knows the characters of Unicode " << line;
  for (char32_t code_point = 0; code_point < 0xE1000; ++code_point) {
    if (code_point == 0xD800) code_point = 0xE000;
    if (code_point == 0x33000) code_point = 0xE0000;  // no character lies between
    ASSERT_TRUE(std::getline(lines, line));
    ASSERT_EQ(line_of(code_point), line) << "U+" << std::hex << static_cast<uint32_t>(code_point);
  }
}

}  // namespace
}  // namespace pare
