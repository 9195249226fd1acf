// Samples held against what a model was made for, before LibTorch or a GPU sees them.
#pragma once

#include <lockstep/data.h>

#include <string>

namespace lockstep::app {

// The same samples. batch() throws BadInput that names the data, `part` of it ("training", "test"), and the first sample
// of another shape than the data's, or the first class that it does not have. Text has its tokens for classes.
DatasetPtr checked(DatasetPtr dataset, const DataShape& shape, const std::string& data,
                   const std::string& part);

}  // namespace lockstep::app
