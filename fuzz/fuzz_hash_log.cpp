// Logs of hashes: what was read is written and read again as the same.
#include "formats/hash_log.h"
#include "fuzz_formats.h"

using lockstep::fuzz::kFile;
using lockstep::fuzz::require;
namespace formats = lockstep::formats;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  lockstep::fuzz::only_bad_input([&] {
    const auto log = formats::parse_hash_log({data, size}, kFile);
    std::string text = formats::hash_log_head(log);
    for (const auto& step : log.steps) {
      require(step.hashes.size() == log.tensors.size(), "a hash for each tensor");
      require(log.find(step.step) == &step, "every step is found");
      text += formats::hash_log_line(step);
    }
    const auto* const bytes = reinterpret_cast<const std::uint8_t*>(text.data());
    const auto again = formats::parse_hash_log({bytes, text.size()}, kFile);
    require(again.job == log.job && again.tensors == log.tensors, "the head");
    require(again.steps.size() == log.steps.size(), "the steps");
  });
  return 0;
}
