// An EXPECT_THROW that also checks the message: every error must name the thing and what is wrong with it.
#pragma once

#include <gtest/gtest.h>

#include <initializer_list>
#include <string>

namespace pare {

// `action` must throw exactly Error, with each of `parts` in its message.
template <typename Error, typename Action>
void expect_error(Action&& action, std::initializer_list<std::string> parts) {
  try {
    action();
  } catch (const Error& error) {
    const std::string message = error.what();
    for (const std::string& part : parts) {
      EXPECT_NE(message.find(part), std::string::npos) << "expected '" << part << "' in: " << message;
    }
    return;
  } catch (const std::exception& error) {
    ADD_FAILURE() << "another type of error: " << error.what();
    return;
  }
  ADD_FAILURE() << "no error; expected one with '" << (parts.size() > 0 ? *parts.begin() : std::string()) << "'";
}

}  // namespace pare
