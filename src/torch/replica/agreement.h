// Whether all workers mean the same: each says it in lines, and the first difference is named.
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

// Collective. Mismatch, the same on every worker, that names the first property on which workers
// differ, what each says and the ranks; a worker that has no such property says "nothing". `what`
// differs in the message, and `remedy` follows; `own` has other words for some properties, by name.
struct Subject {
  std::string what;    // "workers hold different models"
  std::string remedy;  // "build the same model on every worker"
};
void agree(Comm& comm, const std::vector<Property>& properties, const Subject& subject,
           const std::map<std::string, Subject>& own = {});

// The difference that agree() would report; empty if there is none. `said[r]` is rank r's list.
struct Difference {
  std::string property;  // empty: their order
  std::string text;
  std::vector<int> ranks;  // those that differ from rank 0
};
Difference first_difference(const std::vector<std::vector<Property>>& said);

}  // namespace lockstep::replica
