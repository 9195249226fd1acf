#include "formats/hash_log.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>

#include "formats/file_bytes.h"

namespace lockstep::formats {
namespace {

using nlohmann::json;

constexpr int kVersion = 1;
constexpr const char* kVersionKey = "lockstep_hashes";
constexpr std::size_t kHashDigits = 16;
constexpr const char* kRemedy = "give a log that `lockstep train --hashes` wrote";

class Reader {
 public:
  Reader(std::string_view text, const std::string& file) : text_(text), file_(file) {}

  HashLog read() {
    if (!next_line()) refuse(file_, "is empty", kRemedy);
    read_head();
    while (next_line()) log_.steps.push_back(read_step());
    return std::move(log_);
  }

 private:
  // Only a line that has its newline.
  bool next_line() {
    const auto end = text_.find('\n');
    if (end == std::string_view::npos) return false;
    ++number_;
    const std::string_view line = text_.substr(0, end);
    text_.remove_prefix(end + 1);
    line_ = json::parse(line.begin(), line.end(), nullptr, false);
    if (!line_.is_object()) wrong("is no JSON object");
    return true;
  }

  void read_head() {
    if (!line_.contains(kVersionKey)) wrong("is not the head of a log of hashes");
    if (line_[kVersionKey] != kVersion) wrong("is of another version of Lockstep");
    const json& job = line_.contains("job") ? line_["job"] : json();
    const json& tensors = line_.contains("tensors") ? line_["tensors"] : json();
    if (!job.is_object() || !tensors.is_array()) wrong("has no job or no tensors");
    for (const auto& [name, value] : job.items()) log_.job[name] = text_of(value);
    for (const json& name : tensors) log_.tensors.push_back(text_of(name));
    if (std::set(log_.tensors.begin(), log_.tensors.end()).size() != log_.tensors.size())
      wrong("names a tensor twice");
  }

  HashLog::Step read_step() {
    HashLog::Step step;
    const json& number = line_.contains("step") ? line_["step"] : json();
    const json& hashes = line_.contains("hashes") ? line_["hashes"] : json();
    if (!number.is_number_integer() || !hashes.is_array()) wrong("has no step or no hashes");
    step.step = number.is_number_unsigned() && number.get<std::uint64_t>() > INT64_MAX
                    ? -2
                    : number.get<std::int64_t>();
    if (step.step < -1 || (!log_.steps.empty() && step.step <= log_.steps.back().step))
      wrong("has a step that does not come after the one before");
    if (hashes.size() != log_.tensors.size()) wrong("has another number of hashes than of tensors");
    for (const json& hash : hashes) step.hashes.push_back(hash_of(text_of(hash)));
    return step;
  }

  std::string text_of(const json& value) {
    if (!value.is_string()) wrong("has something else than text where text belongs");
    return value.get<std::string>();
  }

  std::uint64_t hash_of(const std::string& digits) {
    std::uint64_t hash = 0;
    const char* const end = digits.data() + digits.size();
    const auto parsed = std::from_chars(digits.data(), end, hash, 16);
    if (digits.size() != kHashDigits || parsed.ec != std::errc() || parsed.ptr != end)
      wrong("has a hash that is not 16 hexadecimal digits");
    return hash;
  }

  [[noreturn]] void wrong(std::string_view what) {
    refuse(file_, fmt::format("line {} {}", number_, what), kRemedy);
  }

  std::string_view text_;
  const std::string& file_;
  std::size_t number_ = 0;
  json line_;
  HashLog log_;
};

}  // namespace

const HashLog::Step* HashLog::find(std::int64_t step) const {
  const auto place =
      std::lower_bound(steps.begin(), steps.end(), step,
                       [](const Step& known, std::int64_t wanted) { return known.step < wanted; });
  return place == steps.end() || place->step != step ? nullptr : &*place;
}

HashLog parse_hash_log(ByteSpan bytes, const std::string& file) {
  return Reader({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, file).read();
}

HashLog load_hash_log(const std::string& path) {
  return parse_hash_log(read_whole(path), path);
}

std::string hash_log_head(const HashLog& log) {
  nlohmann::ordered_json line;
  line[kVersionKey] = kVersion;
  line["job"] = log.job;
  line["tensors"] = log.tensors;
  return line.dump(-1, ' ', false, json::error_handler_t::replace) + "\n";
}

std::string hash_log_line(const HashLog::Step& step) {
  std::string line = fmt::format("{{\"step\":{},\"hashes\":[", step.step);
  for (std::size_t i = 0; i < step.hashes.size(); ++i)
    line += fmt::format("{}\"{:016x}\"", i == 0 ? "" : ",", step.hashes[i]);
  return line + "]}\n";
}

}  // namespace lockstep::formats
