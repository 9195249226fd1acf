#include "app/doctor/system_files.h"

#include <lockstep/errors.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "base/environment.h"
#include "base/fd.h"

namespace lockstep::app {
namespace {

constexpr std::size_t kMostBytes = std::size_t{4} << 20;
constexpr std::string_view kBlanks = " \t\r\n";

std::string_view trim(std::string_view text) {
  const auto first = text.find_first_not_of(kBlanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlanks) - first + 1);
}

// Cuts the first piece up to `separator` off `rest`.
std::string_view next_piece(std::string_view& rest, char separator) {
  const auto end = std::min(rest.find(separator), rest.size());
  const auto piece = rest.substr(0, end);
  rest.remove_prefix(std::min(end + 1, rest.size()));
  return piece;
}

}  // namespace

std::string read_text(const std::string& path) {
  try {
    return std::string(trim(base::read_file(path, kMostBytes)));
  } catch (const Error&) {
    return {};
  }
}

std::optional<std::int64_t> read_number(const std::string& path) {
  return base::parse_number(read_text(path));
}

std::vector<std::string> list_folder(const std::string& path) {
  std::vector<std::string> names;
  std::error_code error;
  for (auto item = std::filesystem::directory_iterator(path, error);
       !error && item != std::filesystem::directory_iterator(); item.increment(error)) {
    names.push_back(item->path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string value_of(std::string_view text, std::string_view key) {
  while (!text.empty()) {
    const auto line = next_piece(text, '\n');
    const auto colon = line.find(':');
    if (colon != std::string_view::npos && trim(line.substr(0, colon)) == key) {
      return std::string(trim(line.substr(colon + 1)));
    }
  }
  return {};
}

int count_list(std::string_view list) {
  std::int64_t count = 0;
  while (!list.empty()) {
    std::string_view range = next_piece(list, ',');
    const auto first = base::parse_number(trim(next_piece(range, '-')));
    const auto last = range.empty() ? first : base::parse_number(trim(range));
    if (first && last && *last >= *first) count += *last - *first + 1;
  }
  return static_cast<int>(count);
}

std::string cgroup_path(std::string_view proc_self_cgroup, std::string_view controller) {
  while (!proc_self_cgroup.empty()) {
    std::string_view line = next_piece(proc_self_cgroup, '\n');
    next_piece(line, ':');
    std::string_view controllers = next_piece(line, ':');
    do {
      if (next_piece(controllers, ',') == controller) return std::string(line);
    } while (!controllers.empty());
  }
  return {};
}

std::string chosen(std::string_view text) {
  const auto open = text.find('[');
  const auto close = text.find(']', open);
  if (open == std::string_view::npos || close == std::string_view::npos) return {};
  return std::string(text.substr(open + 1, close - open - 1));
}

}  // namespace lockstep::app
