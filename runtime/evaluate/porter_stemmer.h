// Porter's stemmer: reduces words to stems, so that "describes" and "described" count as one word.
#pragma once

#include <string>
#include <string_view>

namespace pare::runtime {

// M. F. Porter, "An algorithm for suffix stripping", Program 14 (3), 1980, with the departures of the Natural Language
// Toolkit's default mode, which the published Rouge scores were made with:
// - A few words have stems of their own ("dying" -> "die").
// - "ies" and "ied" of four letters keep their e.
// - y becomes i after a consonant that does not start the word.
// - Step 2 has "bli", "fulli" and "logi", and "alli" is followed by step 2 again.
// - A vowel with a consonant is short as a whole word, too.
// `word` consists of lower-case ASCII letters and digits, which count as consonants. Words of one or two characters are
// their own stems.
std::string porter_stem(std::string_view word);

}  // namespace pare::runtime
