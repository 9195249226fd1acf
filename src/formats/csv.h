// Numbers in a table of text: one sample a line, fields apart by tab, semicolon or comma (the first
// of these that the first line has), numbers with or without quotes.
//
// Failure: BadInput naming file, line and column. A number that is missing, not finite or not a
//          float, a line of another length and a blank line before the last are refused.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "formats/file_bytes.h"

namespace lockstep::formats {

enum class CsvHeader {
  kDetect,  // the first line is one when it holds no number
  kPresent,
  kAbsent,
};

enum class CsvTarget {
  kClass,   // whole numbers from 0: CsvTable::classes
  kNumber,  // any numbers: CsvTable::numbers
};

struct CsvOptions {
  CsvTarget kind = CsvTarget::kClass;
  // The column to predict: its name in the header, or its number, the first being 1. Empty: the
  // last.
  std::string target;
  CsvHeader header = CsvHeader::kDetect;
};

struct CsvTable {
  std::int64_t rows = 0;
  std::int64_t features = 0;          // columns without the target
  std::vector<float> values;          // [rows, features]
  std::vector<std::int64_t> classes;  // [rows] or empty, by CsvOptions::kind
  std::vector<float> numbers;         // [rows] or empty
  std::vector<std::string> names;     // of the features; empty without a header
};

// `file` is for messages.
CsvTable parse_csv(ByteSpan bytes, const std::string& file, const CsvOptions& options = {});
CsvTable load_csv(const std::string& path, const CsvOptions& options = {});

}  // namespace lockstep::formats
