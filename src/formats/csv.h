// Tables of numbers as text: one sample per line. Fields are separated by tab, semicolon or comma
// (the first of these that the first line has). Numbers may have quotes.
//
// Failure: BadInput with file, line and column. It refuses a number that is missing, not finite or
//          not a float, a line of another length, and a blank line before the last.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "formats/file_bytes.h"

namespace lockstep::formats {

enum class CsvHeader {
  kDetect,  // the first line is a header if it has no number
  kPresent,
  kAbsent,
};

enum class CsvTarget {
  kClass,   // integers from 0: CsvTable::classes
  kNumber,  // any numbers: CsvTable::numbers
};

struct CsvOptions {
  CsvTarget kind = CsvTarget::kClass;
  // The column to predict: its name in the header, or its number, from 1. Empty: the last column.
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

// `file` is the name in messages.
CsvTable parse_csv(ByteSpan bytes, const std::string& file, const CsvOptions& options = {});
CsvTable load_csv(const std::string& path, const CsvOptions& options = {});

}  // namespace lockstep::formats
