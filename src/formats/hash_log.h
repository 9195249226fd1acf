// The hashes of a job's weights after every step, one line of JSON per step. Another run can be
// compared with them.
//
//   {"lockstep_hashes": 1, "job": {"seed": "0", …}, "tensors": ["fc1.bias", …]}
//   {"step": -1, "hashes": ["9f86d081884c7d65", …]}      before the first step
//   {"step": 0, "hashes": […]}                           after step 0, in the order of "tensors"
//
// A hash is the first 8 bytes, in hex, of the SHA-256 of a tensor's row-major little-endian bytes.
// Steps are in ascending order. A last line without its newline does not count: a writer that was
// killed leaves such a line.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "formats/file_bytes.h"

namespace lockstep::formats {

struct HashLog {
  struct Step {
    std::int64_t step = 0;
    std::vector<std::uint64_t> hashes;
  };
  std::map<std::string, std::string> job;
  std::vector<std::string> tensors;
  std::vector<Step> steps;

  // nullptr: the log has no such step.
  const Step* find(std::int64_t step) const;
};

// Throws BadInput with the file and the line.
HashLog parse_hash_log(ByteSpan bytes, const std::string& file);
HashLog load_hash_log(const std::string& path);

// Lines with their newlines.
std::string hash_log_head(const HashLog& log);
std::string hash_log_line(const HashLog::Step& step);

}  // namespace lockstep::formats
