// Tables of numbers, under every option: sizes fit together and all numbers are finite.
// The first byte chooses the options.
#include <cmath>

#include "formats/csv.h"
#include "fuzz_formats.h"

using lockstep::fuzz::kFile;
using lockstep::fuzz::require;
namespace formats = lockstep::formats;

formats::CsvOptions choose(std::uint8_t byte) {
  formats::CsvOptions options;
  options.kind = (byte & 1) != 0 ? formats::CsvTarget::kNumber : formats::CsvTarget::kClass;
  options.header = static_cast<formats::CsvHeader>((byte >> 1) % 3);
  if ((byte & 8) != 0) options.target = "1";
  if ((byte & 16) != 0) options.target = "a";
  return options;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const formats::CsvOptions options = choose(data[0]);
  lockstep::fuzz::only_bad_input([&] {
    const auto table = formats::parse_csv({data + 1, size - 1}, kFile, options);
    const auto rows = static_cast<std::size_t>(table.rows);
    require(rows > 0 && table.features > 0, "a table has samples");
    require(table.values.size() == rows * static_cast<std::size_t>(table.features), "values");
    require(table.classes.size() + table.numbers.size() == rows, "a target for each sample");
    for (const float value : table.values) require(std::isfinite(value), "finite");
    for (const auto value : table.classes) require(value >= 0, "classes count from 0");
  });
  return 0;
}
