// What every machine must do bit for bit as the CPU's kernels.
#pragma once

#include "tests/kernels/machine.h"

namespace lockstep::testing {

void expect_updates_of_the_cpu(Machine& machine);
void expect_watched_updates_of_the_cpu(Machine& machine);
void expect_nothing_written_when_skipped(Machine& machine);
void expect_norms_of_the_cpu(Machine& machine);
void expect_trusts_of_the_cpu(Machine& machine);
void expect_the_order_of_the_tree(Machine& machine, const std::vector<std::size_t>& sizes);
void expect_gradients_gathered(Machine& machine, bool all);  // or some are left alone
void expect_types_beside_each_other(Machine& machine);

}  // namespace lockstep::testing
