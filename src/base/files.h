// The few questions about files that Lockstep asks. Not std::filesystem: LibTorch's wheels export symbols of an
// older one, which a program that links them then calls with paths of another layout, and crashes.
#pragma once

#include <string>
#include <vector>

namespace lockstep::base {

// False only if there is surely nothing: what cannot be looked at may be there.
bool exists(const std::string& path);
bool is_directory(const std::string& path);

// Why no file of that name can be written; empty if one may be.
std::string why_not_writable(const std::string& path);

// Makes a directory and those above it; true if it is there in the end. errno says why not.
bool make_directories(const std::string& path);

// The names in a directory, sorted, without "." and ".."; none if it cannot be read.
std::vector<std::string> names_in(const std::string& directory);

// What a symbolic link points to; empty if there is none.
std::string link_target(const std::string& path);

// Whether a name, relative to an open directory or AT_FDCWD, still means this open file: the file may have been removed, and
// another made, since it was opened. `flags` as for fstatat(2).
bool is_named(int fd, int directory, const char* name, int flags);

std::string join_path(const std::string& directory, const std::string& name);

// Of "a/b/c" "a/b"; of "c" "."; of "/c" "/".
std::string parent_path(const std::string& path);

}  // namespace lockstep::base
