#include "formats/checkpoint_file.h"

#include <fmt/format.h>
#include <lockstep/errors.h>
#include <unistd.h>

#include "base/environment.h"
#include "formats/file_bytes.h"

namespace lockstep::formats {
namespace {

SafetensorsFile open_checked(const std::string& path, Checked checked) {
  SafetensorsFile file = SafetensorsFile::open(path);
  if (checked == Checked::kAll) file.verify();
  return file;
}

// How to go on without the newest checkpoint; empty if that is not possible.
std::string way_out(const std::string& directory) {
  const std::string previous = previous_path(directory);
  if (!base::exists(previous)) return "";
  try {
    const auto file = open_checked(previous, Checked::kAll);
    return fmt::format(
        ". The checkpoint before it, of step {}, is whole; to go on from there: mv '{}' '{}'",
        number_in(file, kStepKey), previous, checkpoint_path(directory));
  } catch (const Error&) {
    return fmt::format(". The checkpoint before it, {}, cannot be read either", previous);
  }
}

}  // namespace

std::optional<SafetensorsFile> open_checkpoint(const std::string& directory, Checked checked) {
  const std::string path = checkpoint_path(directory);
  if (!base::exists(path)) {
    const std::string out = way_out(directory);
    if (out.empty()) return std::nullopt;
    throw BadInput(path + " is not there" + out);
  }
  try {
    return open_checked(path, checked);
  } catch (const BadInput& error) {
    if (::access(path.c_str(), R_OK) != 0) throw;
    throw BadInput(error.what() + way_out(directory));
  }
}

std::int64_t number_in(const SafetensorsFile& file, const char* key) {
  const auto found = file.metadata().find(key);
  if (found == file.metadata().end())
    refuse(file.path(), fmt::format("does not say {}", key), "give a checkpoint of a Trainer");
  const auto number = base::parse_number(found->second);
  if (!number || *number < 0) {
    refuse(file.path(),
           fmt::format("has no whole number for {}: '{}'", key, printable(found->second)),
           "take an earlier checkpoint");
  }
  return *number;
}

}  // namespace lockstep::formats
