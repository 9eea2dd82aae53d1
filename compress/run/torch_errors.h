// LibTorch's errors, which are made for developers and carry a stack, in the words of this program's others.
#pragma once

#include <functional>
#include <string>

namespace pare::compress {

// What `work` returns. Where LibTorch's allocator finds no memory on the host, throws std::bad_alloc as ours does; for
// any other error of LibTorch std::logic_error with its first line: none is meant to reach a user.
std::string with_own_errors(const std::function<std::string()>& work);

}  // namespace pare::compress
