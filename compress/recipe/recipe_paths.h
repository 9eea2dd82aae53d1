// Where the files lie that a recipe names.
#pragma once

#include "compress/recipe/recipe.h"

namespace pare::compress {

// A relative path is looked for in the working directory and then beside the recipe, so that a recipe that travels with
// its texts can be run from anywhere; one that is in neither place stays as it is, for its reader to say so. Where two
// different files are found, the working directory's is taken, and what is returned says so, a line for each. `output`,
// which is made, is the working directory's. Throws std::invalid_argument where standard input is to be more than one
// of the recipe's files, or is the recipe itself.
std::vector<std::string> find_files(Recipe& recipe);

}  // namespace pare::compress
