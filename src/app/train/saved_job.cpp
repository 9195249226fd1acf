#include "app/train/open_choices.h"

#include <string_view>

#include "formats/checkpoint_file.h"

namespace lockstep::app {

SavedJob saved_job(const std::string& directory) {
  SavedJob job;
  constexpr std::string_view kPrefix = formats::kJobPrefix;
  const auto file = formats::open_checkpoint(directory, formats::Checked::kHeader);
  if (!file) return job;
  for (const auto& [name, value] : file->metadata()) {
    if (name.starts_with(kPrefix)) job[name.substr(kPrefix.size())] = value;
  }
  return job;
}

}  // namespace lockstep::app
