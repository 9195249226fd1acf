#include "formats/checkpoint_file.h"

#include <fmt/format.h>
#include <lockstep/errors.h>
#include <unistd.h>

#include "base/environment.h"
#include "base/log.h"
#include "formats/file_bytes.h"

namespace lockstep::formats {
namespace {

SafetensorsFile open_checked(const std::string& path, Checked checked) {
  SafetensorsFile file = SafetensorsFile::open(path);
  if (checked == Checked::kAll) file.verify();
  return file;
}

}  // namespace

std::optional<SafetensorsFile> open_checkpoint(const std::string& directory, Checked checked) {
  std::vector<std::string> damaged;  // what is wrong with those that are newer
  for (const std::string& name : checkpoints_in(directory)) {
    const std::string path = base::join_path(directory, name);
    try {
      SafetensorsFile file = open_checked(path, checked);
      if (!damaged.empty() && checked == Checked::kAll) {
        base::log(base::LogLevel::kWarn, "{}. The job goes on from an earlier one, {}",
                  damaged.front(), path);
      }
      return file;
    } catch (const BadInput& error) {
      if (!base::exists(path)) continue;  // a job that writes there has removed it meanwhile
      if (::access(path.c_str(), R_OK) != 0) throw;
      damaged.emplace_back(error.what());
    }
  }
  if (damaged.empty()) return std::nullopt;
  throw BadInput(damaged.front() +
                 (damaged.size() > 1 ? ". The earlier ones there cannot be read either" : ""));
}

void remove_other_checkpoints(const std::string& directory, std::int64_t step, int keep) {
  int kept = 0;
  for (const std::string& name : checkpoints_in(directory)) {
    const bool later = step_in_name(name).value_or(-1) > step;
    if (later || ++kept > keep) ::unlink(base::join_path(directory, name).c_str());
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
