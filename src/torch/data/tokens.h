// Token files, for datasets::load().
#pragma once

#include <lockstep/dataset.h>

#include <string>

namespace lockstep::data {

// The last tenth is for testing.
DataSplits load_token_file(const std::string& path, const TokenOptions& options);

// A directory with files …train….bin and …val….bin.
bool holds_token_files(const std::string& directory);
DataSplits load_token_files(const std::string& directory, const TokenOptions& options);

}  // namespace lockstep::data
