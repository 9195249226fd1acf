#include "formats/checkpoint_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/errors.h>

#include "formats/testing.h"

namespace lockstep::formats {
namespace {
}  // namespace
}  // namespace lockstep::formats
