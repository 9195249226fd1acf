// The run directory of a job:
//
//   checkpoint.safetensors            the newest checkpoint
//   checkpoint.previous.safetensors   the previous one, if the file system has hard links
//   checkpoint.lock                   which process writes there, as long as one does
#pragma once

#include <optional>
#include <string>

#include "base/files.h"
#include "formats/safetensors.h"

namespace lockstep::formats {

inline constexpr const char* kCheckpointFile = "checkpoint.safetensors";
inline constexpr const char* kPreviousFile = "checkpoint.previous.safetensors";
inline constexpr const char* kLockFile = "checkpoint.lock";

// Keys in the metadata of a checkpoint: the steps that are done, and the properties of the job.
inline constexpr const char* kStepKey = "lockstep.step";
inline constexpr const char* kJobPrefix = "lockstep.job.";

// Inline, for builds of the command that do not link the rest of this folder.
inline std::string checkpoint_path(const std::string& directory) {
  return base::join_path(directory, kCheckpointFile);
}
inline std::string previous_path(const std::string& directory) {
  return base::join_path(directory, kPreviousFile);
}

// Whether there is a checkpoint, the newest or only the previous one. It may be damaged.
inline bool holds_checkpoint(const std::string& directory) {
  return base::exists(checkpoint_path(directory)) || base::exists(previous_path(directory));
}

enum class Checked {
  kHeader,  // quick: what a job is, and how far it has come
  kAll,     // the data, too
};

// Opens the newest checkpoint; nothing if there is none. Throws BadInput if it is damaged, or if it
// is gone and the previous one is there. The message then says whether the previous one is whole,
// and how to go on from it.
std::optional<SafetensorsFile> open_checkpoint(const std::string& directory, Checked checked);

// A number of the metadata, an integer of at least 0. Throws BadInput with the name of the file if
// it is missing or something else.
std::int64_t number_in(const SafetensorsFile& file, const char* key);

}  // namespace lockstep::formats
