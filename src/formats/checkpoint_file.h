// Where a training run keeps itself: a directory with
//
//   checkpoint.safetensors            the newest checkpoint
//   checkpoint.previous.safetensors   the one before it, where the file system has hard links
//   checkpoint.lock                   who writes there, as long as somebody does
#pragma once

#include <optional>
#include <string>

#include "base/files.h"
#include "formats/safetensors.h"

namespace lockstep::formats {

inline constexpr const char* kCheckpointFile = "checkpoint.safetensors";
inline constexpr const char* kPreviousFile = "checkpoint.previous.safetensors";
inline constexpr const char* kLockFile = "checkpoint.lock";

// In the metadata of a checkpoint: steps done, and the properties of the job.
inline constexpr const char* kStepKey = "lockstep.step";
inline constexpr const char* kJobPrefix = "lockstep.job.";

// Inline, for builds of the command that do without the rest of this folder.
inline std::string checkpoint_path(const std::string& directory) {
  return base::join_path(directory, kCheckpointFile);
}
inline std::string previous_path(const std::string& directory) {
  return base::join_path(directory, kPreviousFile);
}

// The newest one, or the one before it where that is all that is left; whole or not.
inline bool holds_checkpoint(const std::string& directory) {
  return base::exists(checkpoint_path(directory)) || base::exists(previous_path(directory));
}

enum class Checked {
  kHeader,  // quick: what a job is, and how far it has come
  kAll,     // the data, too
};

// Nothing when there is none. BadInput for one that is damaged, or gone while the one before it is there; it then says
// whether the one before it is whole, and how to go on from that.
std::optional<SafetensorsFile> open_checkpoint(const std::string& directory, Checked checked);

// Whole, not negative; BadInput naming the file when the metadata says something else, or nothing.
std::int64_t number_in(const SafetensorsFile& file, const char* key);

}  // namespace lockstep::formats
