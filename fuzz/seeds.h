// What the writers of first inputs share.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace lockstep::fuzz {

using Seeds = std::vector<std::string>;

// One file each.
void write(const std::filesystem::path& directory, const Seeds& seeds);

// For the fuzzers of src/formats.
void write_format_seeds(const std::filesystem::path& root);

}  // namespace lockstep::fuzz
