// Lists of faults, as --faults and LOCKSTEP_FAULTS have them.
#include <lockstep/errors.h>

#include <algorithm>
#include <string>

#include "control/fault_schedule.h"
#include "fuzz.h"

using namespace lockstep::control;
using lockstep::fuzz::require;

namespace {

void try_stream(const FaultRate& rate) {
  FaultStream stream(rate, 7, 3);
  for (int i = 0; i < 10; ++i, stream.pop()) {
    const Fault& fault = stream.next();
    require(stream.at() >= 0 && fault.worker >= 0 && fault.worker < 3, "a fault has a worker");
    require(parse_faults(to_string(fault)).faults.at(0) == fault,
            "what was drawn can be asked for as a single fault");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const FaultSchedule schedule = parse_faults(lockstep::fuzz::as_text(data, size));
    for (const Fault& fault : schedule.faults) {
      require(parse_faults(to_string(fault)).faults.at(0) == fault,
              "a fault is read back as it was written");
      const auto points = points_of(fault.kind);
      require(std::find(points.begin(), points.end(), fault.where) != points.end(),
              "a fault is at a point of its kind");
    }
    for (const FaultRate& rate : schedule.rates) try_stream(rate);
  } catch (const lockstep::BadInput& error) {
    const std::string said = error.what();
    require(said.find("is no fault") != std::string::npos, "what is refused is named");
    require(said.find('\n') == std::string::npos, "in one line");
  }
  return 0;
}
