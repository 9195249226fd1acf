// A phase that was committed, and whose numbers were lost on their way between workers. (recovery.cpp)
#pragma once

#include <lockstep/comm.h>

#include <memory>

#include "torch/step/commit_page.h"
#include "torch/step/phase_result.h"

namespace lockstep::steps {

// What the worker `source` knows of the last phase. Collective.
CommitPage::Last of_source(Comm& comm, int source, const CommitPage::Last& own, int shards);

// What the phase has given, as far as a commit page knows it.
std::shared_ptr<PhaseResult> rescued(PhaseResult::About about, const CommitPage::Last& last);

}  // namespace lockstep::steps
