#include "formats/csv.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <string_view>

#include "formats/file_bytes.h"

namespace lockstep::formats {
namespace {

// 2^53: up to here a double holds every integer.
constexpr double kMostClass = 9007199254740992.0;

std::string_view trimmed(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t\r");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\r") - first + 1);
}

template <typename T>
std::optional<T> whole_field(std::string_view text) {
  // from_chars does not accept a plus sign.
  if (text.starts_with('+') && !text.starts_with("+-")) text.remove_prefix(1);
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// The nearest float. Values that are too small become 0 or subnormal, as in a cast.
std::optional<float> float_of(std::string_view text) {
  if (const auto value = whole_field<float>(text)) return value;
  if (const auto value = whole_field<double>(text)) {
    if (std::abs(*value) < 1.0) return static_cast<float>(*value);
  }
  return std::nullopt;
}

char detect_separator(std::string_view line) {
  bool quoted = false;
  bool tab = false;
  bool semicolon = false;
  for (const char c : line) {
    if (c == '"') quoted = !quoted;
    tab = tab || (!quoted && c == '\t');
    semicolon = semicolon || (!quoted && c == ';');
  }
  return tab ? '\t' : semicolon ? ';' : ',';
}

// Reads a table line by line.
class CsvParser {
 public:
  CsvParser(std::string_view text, const std::string& file, const CsvOptions& options)
      : text_(text), file_(file), options_(options) {
    if (text_.starts_with("\xef\xbb\xbf")) text_.remove_prefix(3);  // a byte order mark
  }

  CsvTable table();

 private:
  bool next_line();
  void split(std::string_view line);
  std::string quoted_field(std::string_view& rest) const;
  bool is_header() const;
  void choose_target();
  void add_row();
  void add_target();
  [[noreturn]] void refuse_field(std::size_t column, std::string_view wrong) const;
  [[noreturn]] void refuse_line(std::string_view wrong, std::string_view remedy) const;

  std::string_view text_;  // what is not read yet
  const std::string& file_;
  const CsvOptions& options_;
  std::size_t line_ = 0;             // the number of the current line
  std::vector<std::string> fields_;  // and what it holds
  char separator_ = ',';
  std::size_t columns_ = 0;
  std::size_t target_ = 0;
  std::vector<std::string> header_;
  CsvTable table_;
};

void CsvParser::refuse_line(std::string_view wrong, std::string_view remedy) const {
  refuse(file_, fmt::format("line {}: {}", line_, wrong), remedy);
}

void CsvParser::refuse_field(std::size_t column, std::string_view wrong) const {
  const std::string name =
      column < header_.size() ? fmt::format(" ({})", printable(header_[column])) : "";
  refuse_line(
      fmt::format("column {}{}: '{}' {}", column + 1, name, printable(fields_[column]), wrong),
      line_ == 1 && options_.header == CsvHeader::kDetect
          ? "correct it, or say that the first line is a header"
          : "correct it or leave the line out");
}

// Reads the next line into fields_; false at the end. After the last line only blank lines are
// allowed.
bool CsvParser::next_line() {
  bool blank = false;
  while (!text_.empty()) {
    const std::size_t end = std::min(text_.find('\n'), text_.size());
    const std::string_view line = text_.substr(0, end);
    text_.remove_prefix(std::min(end + 1, text_.size()));
    const bool empty = trimmed(line).empty();
    if (!empty && blank) refuse_line("is blank", "remove it");
    ++line_;
    if (!empty) {
      if (line_ == 1) separator_ = detect_separator(line);
      split(line);
      return true;
    }
    blank = true;
  }
  return false;
}

void CsvParser::split(std::string_view line) {
  fields_.clear();
  while (true) {
    std::string_view begin = line;
    begin.remove_prefix(std::min(begin.find_first_not_of(' '), begin.size()));
    if (begin.starts_with('"')) {
      fields_.push_back(quoted_field(begin));
      line = begin;
    } else {
      const std::size_t end = std::min(line.find(separator_), line.size());
      fields_.emplace_back(trimmed(line.substr(0, end)));
      line.remove_prefix(end);
    }
    if (line.empty()) return;
    line.remove_prefix(1);  // the separator
  }
}

// Reads a field in quotes, where "" is one quote. `rest` then begins with the separator, or is
// empty.
std::string CsvParser::quoted_field(std::string_view& rest) const {
  std::string field;
  rest.remove_prefix(1);
  while (true) {
    const std::size_t quote = rest.find('"');
    if (quote == std::string_view::npos) {
      refuse_line("a quote is not closed on its line", "close it");
    }
    field += rest.substr(0, quote);
    rest.remove_prefix(quote + 1);
    if (!rest.starts_with('"')) break;
    field.push_back('"');
    rest.remove_prefix(1);
  }
  const std::size_t end = std::min(rest.find(separator_), rest.size());
  if (!trimmed(rest.substr(0, end)).empty()) {
    refuse_line(fmt::format("'{}' follows a closing quote", printable(rest.substr(0, end))),
                "put it inside the quotes or remove it");
  }
  rest.remove_prefix(end);
  return std::string(trimmed(field));
}

bool CsvParser::is_header() const {
  if (options_.header != CsvHeader::kDetect) return options_.header == CsvHeader::kPresent;
  return std::none_of(fields_.begin(), fields_.end(),
                      [](const std::string& field) { return float_of(field).has_value(); });
}

void CsvParser::choose_target() {
  if (columns_ < 2) {
    refuse_line("has one column, and a sample needs a feature and a target",
                "separate the columns by comma, semicolon or tab");
  }
  target_ = columns_ - 1;
  if (options_.target.empty()) return;
  const auto named = std::count(header_.begin(), header_.end(), options_.target);
  if (named == 1) {
    target_ = static_cast<std::size_t>(std::find(header_.begin(), header_.end(), options_.target) -
                                       header_.begin());
    return;
  }
  const auto number = whole_field<std::size_t>(options_.target);
  if (named > 1 || !number || *number < 1 || *number > columns_) {
    refuse(file_,
           fmt::format("has {} column '{}' to predict", named > 1 ? "more than one" : "no",
                       printable(options_.target)),
           fmt::format("name a column of its header, or a number from 1 to {}", columns_));
  }
  target_ = *number - 1;
}

void CsvParser::add_target() {
  const std::string& field = fields_[target_];
  if (options_.kind == CsvTarget::kNumber) {
    const auto value = float_of(field);
    if (!value || !std::isfinite(*value)) refuse_field(target_, "is not a finite float");
    table_.numbers.push_back(*value);
    return;
  }
  // Some programs write classes as 1.0 or 1.000e+00.
  const auto value = whole_field<double>(field);
  if (!value || !(*value >= 0 && *value < kMostClass) || *value != std::floor(*value)) {
    refuse_field(target_, "is not a class, a whole number from 0");
  }
  table_.classes.push_back(static_cast<std::int64_t>(*value));
}

void CsvParser::add_row() {
  if (fields_.size() != columns_) {
    refuse_line(fmt::format("has {} columns where the first line has {}", fields_.size(), columns_),
                "correct it or leave the line out");
  }
  for (std::size_t column = 0; column < columns_; ++column) {
    if (column == target_) continue;
    const auto value = float_of(fields_[column]);
    if (!value || !std::isfinite(*value)) refuse_field(column, "is not a finite float");
    table_.values.push_back(*value);
  }
  add_target();
  ++table_.rows;
}

CsvTable CsvParser::table() {
  bool more = next_line();
  columns_ = fields_.size();
  if (more && is_header()) header_ = fields_;
  if (more) choose_target();
  if (!header_.empty()) more = next_line();
  for (; more; more = next_line()) add_row();
  if (table_.rows == 0) refuse(file_, "has no samples", "check that this is the file meant");
  table_.features = static_cast<std::int64_t>(columns_) - 1;
  for (std::size_t column = 0; column < header_.size(); ++column) {
    if (column != target_) table_.names.push_back(header_[column]);
  }
  return std::move(table_);
}

}  // namespace

CsvTable parse_csv(ByteSpan bytes, const std::string& file, const CsvOptions& options) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  return CsvParser(text, file, options).table();
}

CsvTable load_csv(const std::string& path, const CsvOptions& options) {
  return parse_csv(read_inflated(path), path, options);
}

}  // namespace lockstep::formats
