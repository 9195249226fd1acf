// Whether all workers mean the same: each lists its properties, and the first difference is named.
#pragma once

#include <lockstep/comm.h>

#include <map>
#include <string>
#include <vector>

namespace lockstep::replica {

// One property, such as "parameter fc1.weight" = "float32 [128, 784]".
struct Property {
  std::string name;
  std::string value;
};

// The words of the error.
struct Subject {
  std::string what;    // "workers hold different models"
  std::string remedy;  // "build the same model on every worker"
};

// Compares the lists of all workers. Collective. If they differ, every worker throws the same
// Mismatch: it names the first property that differs, each value of it, and the ranks. A worker
// without the property says "nothing". `own` has other words for some properties, by their name.
void agree(Comm& comm, const std::vector<Property>& properties, const Subject& subject,
           const std::map<std::string, Subject>& own = {});

}  // namespace lockstep::replica
