#include "app/train/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>

#include "base/environment.h"
#include "base/standard_output.h"

namespace lockstep::app {
namespace {

constexpr std::chrono::milliseconds kBarInterval{100};
constexpr std::chrono::seconds kLineInterval{10};
constexpr int kBarWidth = 24;

int terminal_columns() {
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return 80;
}

// Eighths of a cell, so that the bar moves smoothly.
std::string bar(double part) {
  static constexpr const char* kEighths[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  const int eighths = static_cast<int>(std::clamp(part, 0.0, 1.0) * kBarWidth * 8);
  std::string text;
  for (int i = 0; i < eighths / 8; ++i) text += "█";
  text += kEighths[eighths % 8];
  const int filled = (eighths + 7) / 8;
  for (int i = filled; i < kBarWidth; ++i) text += " ";
  return text;
}

}  // namespace

Progress::Kind progress_kind(bool quiet) {
  if (quiet) return Progress::Kind::kSilent;
  const bool terminal = ::isatty(STDOUT_FILENO) == 1 && base::environment("TERM") != "dumb";
  return terminal ? Progress::Kind::kBar : Progress::Kind::kLines;
}

std::string spoken_time(double seconds) {
  const auto whole = static_cast<std::int64_t>(std::lround(seconds));
  if (whole >= 3600) return fmt::format("{} h {:02} min", whole / 3600, whole % 3600 / 60);
  if (whole >= 60) return fmt::format("{} min {:02} s", whole / 60, whole % 60);
  return fmt::format("{:.1f} s", seconds);
}

std::string with_commas(std::int64_t number) {
  const std::string digits = std::to_string(number);
  std::string text;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    const bool after_digit = i > 0 && digits[i - 1] != '-';
    if (after_digit && (digits.size() - i) % 3 == 0) text += ',';
    text += digits[i];
  }
  return text;
}

Progress::Progress(Kind kind, const Size& size, std::function<bool()> speaks)
    : kind_(kind), size_(size), speaks_(std::move(speaks)) {}

Progress::~Progress() {
  clear_bar();
}

void Progress::clear_bar() {
  if (!bar_shown_) return;
  base::say_in_passing("\r\033[K");
  bar_shown_ = false;
}

std::string Progress::status(const StepRecord& record) const {
  const double seconds = std::chrono::duration<double>(Clock::now() - began_).count();
  const std::int64_t now = record.step + record.steps;
  const auto done = static_cast<double>(now - first_step_);
  const double left = seconds / done * static_cast<double>(size_.total_steps - now);
  const std::string noise = record.noise_scale && record.noise_scale->measured
                                ? "  " + to_string(*record.noise_scale, size_.global_batch)
                                : "";
  return fmt::format(
      "step {}/{}  epoch {}  loss {:.4f}  {} samples/s  {} left{}", now, size_.total_steps,
      record.epoch + 1, record.loss,
      with_commas(std::lround(done / seconds * static_cast<double>(size_.global_batch))),
      spoken_time(left), noise);
}

void Progress::step(const StepRecord& record) {
  if (kind_ == Kind::kSilent || !speaks_()) return;
  if (first_step_ < 0) {
    first_step_ = record.step;
    began_ = Clock::now() - std::chrono::microseconds(std::lround(
                                record.step_ms * static_cast<double>(record.steps) * 1000));
  }
  const auto now = Clock::now();
  const auto interval =
      kind_ == Kind::kBar ? Clock::duration(kBarInterval) : Clock::duration(kLineInterval);
  const std::int64_t done = record.step + record.steps;
  if (now - shown_ < interval && done < size_.total_steps) return;
  shown_ = now;
  if (kind_ == Kind::kLines) return line(status(record));
  const double part = static_cast<double>(done) / static_cast<double>(size_.total_steps);
  std::string text = status(record);
  const auto room = static_cast<std::size_t>(std::max(terminal_columns() - kBarWidth - 4, 0));
  if (text.size() > room) text.resize(room);
  base::say_in_passing(fmt::format("\r\033[K{}▏ {}", bar(part), text));
  bar_shown_ = true;
}

void Progress::epoch(std::int64_t epoch, const Evaluation& evaluation) {
  line(fmt::format("epoch {}: test accuracy {:.2f} %, test loss {:.4f}", epoch + 1,
                   100 * evaluation.accuracy, evaluation.loss));
}

void Progress::line(const std::string& text) {
  if (kind_ == Kind::kSilent || !speaks_()) return;
  clear_bar();
  base::say_in_passing(text + "\n");
}

}  // namespace lockstep::app
