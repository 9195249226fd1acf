// Which MPI this process uses.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/mpi/mpi_calls.h"

namespace lockstep::comm {

enum class MpiKind : std::uint8_t { kOpenMpi, kMpich };

// What the choice depends on.
struct MpiSigns {
  std::optional<MpiKind> loaded;  // the program itself uses this one
  std::function<std::optional<std::string>(const char*)> environment;
};

// The one that the program uses, else the one whose launcher has started this process, else
// nothing.
std::optional<MpiKind> mpi_of(const MpiSigns& signs);

// Whether mpi_of() knows one for this process.
bool mpi_is_there();

// Whether this build has an MPI at all.
bool mpi_in_build();

// Throws Unavailable, with what to do, if there is no MPI to use.
std::unique_ptr<MpiCalls> load_mpi();

}  // namespace lockstep::comm
