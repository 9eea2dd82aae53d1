// Jinja's filters and tests, of which those are here that chat templates use.
#pragma once

#include <functional>
#include <string_view>

#include "runtime/chat/jinja_value.h"

namespace pare::runtime {

bool is_jinja_filter(std::string_view name);
bool is_jinja_test(std::string_view name);

// Apply the filter or the test to the value. Throw JinjaError where Jinja raises an error, and for a name that there is
// no filter or test of: templates name filters of other programs where these alone come.
JinjaValue apply_jinja_filter(std::string_view name, const JinjaValue& value, JinjaArguments& arguments);
bool apply_jinja_test(std::string_view name, const JinjaValue& value, JinjaArguments& arguments);

}  // namespace pare::runtime
