// Porter's stemmer: words to stems, so that "describes" and "described" count as one word.
#pragma once

#include <string>
#include <string_view>

namespace pare {

// M. F. Porter, "An algorithm for suffix stripping", Program 14 (3), 1980, with the departures of the Natural Language
// Toolkit's default mode, which the published Rouge scores were made with: a few words with stems of their own
// ("dying" -> "die"); "ies" and "ied" of four letters keep their e; y becomes i behind a consonant that does not start
// the word; "bli", "fulli" and "logi" in step 2, where "alli" is followed by step 2 again; and a vowel with a consonant
// is short as a whole word, too. `word` is of lower-case ASCII letters and digits, which count as consonants; words of
// one or two characters are their own stems.
std::string porter_stem(std::string_view word);

}  // namespace pare
