#include "app/train/saved_job.h"

#include <string_view>

#include "base/files.h"
#include "torch/formats/safetensors.h"
#include "torch/train/checkpoint_names.h"

namespace lockstep::app {

SavedJob saved_job(const std::string& directory) {
  SavedJob job;
  const std::string path = base::join_path(directory, train::kCheckpointFile);
  if (!base::exists(path)) return job;
  constexpr std::string_view kPrefix = train::kJobPrefix;
  const auto file = formats::SafetensorsFile::open(path);
  for (const auto& [name, value] : file.metadata()) {
    if (name.starts_with(kPrefix)) job[name.substr(kPrefix.size())] = value;
  }
  return job;
}

}  // namespace lockstep::app
