#include "control/launch/lines.h"

#include <fmt/format.h>

#include <algorithm>

namespace lockstep::control {
namespace {

constexpr std::chrono::seconds kBetweenReplaced{1};
constexpr std::size_t kTailLines = 10;
constexpr std::size_t kTailLineBytes = 400;

}  // namespace

void LineSplitter::feed(std::string_view bytes, Clock::time_point now, const Sink& sink) {
  while (!bytes.empty()) {
    if (after_return_ && bytes.front() != '\n' && bytes.front() != '\r') begin_anew(now, sink);
    const auto end = std::min(bytes.find_first_of("\r\n"), bytes.size());
    append(bytes.substr(0, end), sink);
    bytes.remove_prefix(end);
    if (bytes.empty()) return;
    after_return_ = bytes.front() == '\r';
    if (bytes.front() == '\n') end_line(sink);
    bytes.remove_prefix(1);
  }
}

void LineSplitter::finish(const Sink& sink) {
  if (!line_.empty()) end_line(sink);
  after_return_ = after_cut_ = false;
}

void LineSplitter::append(std::string_view text, const Sink& sink) {
  while (line_.size() + text.size() > most_bytes_) {
    const std::size_t room = most_bytes_ - line_.size();
    line_.append(text.substr(0, room));
    text.remove_prefix(room);
    sink(line_);
    line_.clear();
    after_cut_ = true;
  }
  line_.append(text);
}

void LineSplitter::end_line(const Sink& sink) {
  if (!line_.empty() || !after_cut_) sink(line_);
  line_.clear();
  after_cut_ = false;
  // A long line should not hold its memory for the rest of the job.
  constexpr std::size_t kKeptBytes = std::size_t{16} << 10;
  if (line_.capacity() > kKeptBytes) line_.shrink_to_fit();
}

void LineSplitter::begin_anew(Clock::time_point now, const Sink& sink) {
  after_return_ = false;
  if (!line_.empty() && now >= next_replaced_) {
    sink(line_);
    next_replaced_ = now + kBetweenReplaced;
  }
  line_.clear();
  after_cut_ = false;
}

std::size_t line_limit(int streams) {
  constexpr std::size_t kMost = std::size_t{1} << 20;
  constexpr std::size_t kTogether = std::size_t{128} << 20;
  return std::min(kMost, kTogether / static_cast<std::size_t>(std::max(streams, 1)));
}

std::string line_prefix(int rank, int workers, bool colour) {
  const auto width = fmt::formatted_size("{}", workers - 1);
  std::string plain = fmt::format("[{:>{}}] ", rank, width);
  if (!colour) return plain;
  // Cyan, yellow, green, magenta, blue: red is left to errors.
  constexpr int kColours[] = {36, 33, 32, 35, 34};
  return fmt::format("\x1b[{}m{}\x1b[0m",
                     kColours[static_cast<std::size_t>(rank) % std::size(kColours)], plain);
}

void Tail::add(std::string_view line) {
  if (lines_.size() == kTailLines) lines_.pop_front();
  lines_.emplace_back(line.substr(0, kTailLineBytes));
}

}  // namespace lockstep::control
