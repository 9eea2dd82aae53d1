#include "compress/survey/survey_record.h"
#include "tests/fuzz/fuzz_input.h"

// Reads a survey that an unfinished run has kept. What is read is shown, and written back unchanged.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return pare::fuzz(data, size, [](std::span<const std::byte> bytes) {
    const pare::compress::Survey survey = pare::compress::parse_survey(pare::as_text(bytes), "fuzz");
    for (const size_t num_columns : {size_t{0}, size_t{80}, size_t{1000}})
      pare::compress::to_lines(survey, num_columns);
    const std::string text = pare::compress::to_json(survey);
    if (pare::compress::to_json(pare::compress::parse_survey(text, "fuzz")) != text)
      throw std::logic_error("the survey changes");
  });
}
