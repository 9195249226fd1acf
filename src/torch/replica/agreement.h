// Whether all workers mean the same: each says it in lines, and the first difference is named.
#pragma once

#include <lockstep/comm.h>

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
// differs in the message, and `remedy` follows.
struct Subject {
  std::string what;    // "workers hold different models"
  std::string remedy;  // "build the same model on every worker"
};
void agree(Comm& comm, const std::vector<Property>& properties, const Subject& subject);

// The values of a text on all workers, by rank. Collective.
std::vector<std::string> gather(Comm& comm, const std::string& text);

// The difference that agree() would report; empty if there is none. `said[r]` is rank r's list.
struct Difference {
  std::string text;
  std::vector<int> ranks;  // those that differ from rank 0
};
Difference first_difference(const std::vector<std::vector<Property>>& said);

}  // namespace lockstep::replica
