// For builds without formats, in which nothing trains.
#include "app/train/open_choices.h"

namespace lockstep::app {

SavedJob saved_job(const std::string&) {
  return {};
}

}  // namespace lockstep::app
