// How every batch is read.
#pragma once

#include <lockstep/dataset.h>

#include <span>

namespace lockstep::data {

// What the data set draws from LibTorch's default generator depends on the samples alone, and the model's numbers stay
// untouched. BadInput for a batch of another number of samples; else what the data set throws.
Batch read(const Dataset& dataset, std::span<const Sample> samples);

}  // namespace lockstep::data
