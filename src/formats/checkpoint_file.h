// The run directory of a job:
//
//   checkpoint-000000120.safetensors   a checkpoint, with the number of steps that are done. The one with the most steps
//                                      is the newest
//   checkpoint.lock                    which process writes there, as long as one does
//
// Directories of earlier versions have these in place of the first:
//
//   checkpoint.safetensors             the newest checkpoint
//   checkpoint.previous.safetensors    the previous one
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/environment.h"
#include "base/files.h"
#include "formats/safetensors.h"

namespace lockstep::formats {

inline constexpr std::string_view kCheckpointStem = "checkpoint";  // all names begin so
inline constexpr std::string_view kCheckpointPrefix = "checkpoint-";
inline constexpr std::string_view kCheckpointSuffix = ".safetensors";
inline constexpr const char* kLockFile = "checkpoint.lock";
// Of earlier versions, the newest first.
inline constexpr const char* kEarlierNames[] = {"checkpoint.safetensors",
                                                "checkpoint.previous.safetensors"};

// Keys in the metadata of a checkpoint: the steps that are done, and the properties of the job.
inline constexpr const char* kStepKey = "lockstep.step";
inline constexpr const char* kJobPrefix = "lockstep.job.";

// The functions in this header are inline for builds of the command that do not link the rest of this folder.
inline std::string checkpoint_path(const std::string& directory, std::int64_t step) {
  return base::join_path(directory,
                         fmt::format("{}{:09}{}", kCheckpointPrefix, step, kCheckpointSuffix));
}

// The step in the name of a checkpoint; nothing if it is another file, or one of an earlier version.
inline std::optional<std::int64_t> step_in_name(std::string_view name) {
  if (!name.starts_with(kCheckpointPrefix) || !name.ends_with(kCheckpointSuffix)) return {};
  name.remove_prefix(kCheckpointPrefix.size());
  name.remove_suffix(std::min(name.size(), kCheckpointSuffix.size()));
  const auto step = base::parse_number(std::string(name));
  return step && *step >= 0 ? std::optional<std::int64_t>(*step) : std::nullopt;
}

// The names of all checkpoints, the newest first. Any of them may be damaged.
inline std::vector<std::string> checkpoints_in(const std::string& directory) {
  std::vector<std::pair<std::int64_t, std::string>> found;
  for (const std::string& name : base::names_in(directory)) {
    if (const auto step = step_in_name(name)) found.emplace_back(-*step, name);
  }
  std::sort(found.begin(), found.end());
  std::vector<std::string> names;
  names.reserve(found.size());
  for (auto& [order, name] : found) names.push_back(std::move(name));
  for (const char* const name : kEarlierNames) {
    if (base::exists(base::join_path(directory, name))) names.emplace_back(name);
  }
  return names;
}

inline bool holds_checkpoint(const std::string& directory) {
  return !checkpoints_in(directory).empty();
}

enum class Checked {
  kHeader,  // quick: what a job is, and how far it has come
  kAll,     // the data, too
};

// Opens the newest checkpoint that is whole; nothing if there is no checkpoint. If newer ones are damaged, one line of the
// log names the newest and this one (with kAll only, so that it is said once). BadInput if all are damaged.
std::optional<SafetensorsFile> open_checkpoint(const std::string& directory, Checked checked);

// After a checkpoint of this step was written: removes all others except `keep` − 1 of those before it. Those with more
// steps go, too: the job has gone on from before them, because they are damaged or another job's. What cannot be removed
// stays.
void remove_other_checkpoints(const std::string& directory, std::int64_t step, int keep);

// A number of the metadata, an integer of at least 0. Throws BadInput with the name of the file if
// it is missing or something else.
std::int64_t number_in(const SafetensorsFile& file, const char* key);

}  // namespace lockstep::formats
