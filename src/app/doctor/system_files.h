// Small files of /proc and /sys as values: what is absent or unreadable is empty.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::app {

// The content without white space at its end.
std::string read_text(const std::string& path);
std::optional<std::int64_t> read_number(const std::string& path);

// Names in a folder, sorted.
std::vector<std::string> list_folder(const std::string& path);

// The value of the first line "KEY<blanks>: VALUE" of a file such as /proc/cpuinfo.
std::string value_of(std::string_view text, std::string_view key);

// How many processors a list such as "0-3,8" names.
int count_list(std::string_view list);

// The path that this process's cgroup has in a controller: version 1's, or version 2's for "".
std::string cgroup_path(std::string_view proc_self_cgroup, std::string_view controller);

// Of "always [madvise] never": madvise.
std::string chosen(std::string_view text);

}  // namespace lockstep::app
