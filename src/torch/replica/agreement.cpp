#include "torch/replica/agreement.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <lockstep/errors.h>

#include <algorithm>
#include <map>

#include "base/hash.h"
#include "control/gather_text.h"

namespace lockstep::replica {
namespace {

constexpr char kEnd = '\0';

std::string encode(const std::vector<Property>& properties) {
  std::string text;
  for (const auto& [name, value] : properties) {
    text += name;
    text += kEnd;
    text += value;
    text += kEnd;
  }
  return text;
}

std::vector<Property> decode(const std::string& text) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find(kEnd, begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  std::vector<Property> properties;
  for (std::size_t i = 0; i + 1 < parts.size(); i += 2)
    properties.push_back({parts[i], parts[i + 1]});
  return properties;
}

std::string value_of(const std::vector<Property>& properties, const std::string& name) {
  const auto found = std::find_if(properties.begin(), properties.end(),
                                  [&](const Property& p) { return p.name == name; });
  return found == properties.end() ? "nothing" : found->value;
}

// Rank 0's names in its order, then those that only others have.
std::vector<std::string> all_names(const std::vector<std::vector<Property>>& said) {
  std::vector<std::string> names;
  for (const auto& properties : said) {
    for (const auto& property : properties) {
      if (std::find(names.begin(), names.end(), property.name) == names.end())
        names.push_back(property.name);
    }
  }
  return names;
}

std::string order_of(const std::vector<Property>& properties) {
  std::string names;
  for (const auto& property : properties) names += property.name + kEnd;
  return names;
}

struct Difference {
  std::string property;  // empty: only the order differs
  std::string text;
  std::vector<int> ranks;  // those that differ from rank 0
};

// `said[r]` is the list of rank r.
Difference first_difference(const std::vector<std::vector<Property>>& said) {
  for (const std::string& name : all_names(said)) {
    std::map<std::string, std::vector<int>> ranks_by_value;
    for (std::size_t r = 0; r < said.size(); ++r)
      ranks_by_value[value_of(said[r], name)].push_back(static_cast<int>(r));
    if (ranks_by_value.size() == 1) continue;
    Difference difference{name, {}, {}};
    std::vector<std::string> phrases;
    for (const auto& [value, ranks] : ranks_by_value) {
      phrases.push_back(fmt::format("{} on rank{} {}", value, ranks.size() == 1 ? "" : "s",
                                    fmt::join(ranks, ", ")));
      if (ranks.front() != 0)
        difference.ranks.insert(difference.ranks.end(), ranks.begin(), ranks.end());
    }
    std::sort(difference.ranks.begin(), difference.ranks.end());
    difference.text = fmt::format("{} is {}", name, fmt::join(phrases, " and "));
    return difference;
  }
  for (std::size_t r = 1; r < said.size(); ++r) {
    if (order_of(said[r]) != order_of(said[0])) {
      return {{},
              fmt::format("rank {} registers its parameters in another order than rank 0", r),
              {static_cast<int>(r)}};
    }
  }
  return {};
}

}  // namespace

void agree(Comm& comm, const std::vector<Property>& properties, const Subject& subject,
           const std::map<std::string, Subject>& own) {
  if (comm.size() == 1) return;
  const std::string mine = encode(properties);
  // Digests first: the lists are long, and workers nearly always agree.
  const auto digests = control::gather_text(comm, base::sha256(mine));
  if (std::equal(digests.begin() + 1, digests.end(), digests.begin())) return;
  std::vector<std::vector<Property>> said;
  for (const std::string& text : control::gather_text(comm, mine)) said.push_back(decode(text));
  const Difference difference = first_difference(said);
  const auto found = own.find(difference.property);
  const Subject& words = found == own.end() ? subject : found->second;
  throw Mismatch(fmt::format("{}: {}; {}", words.what, difference.text, words.remedy),
                 difference.ranks);
}

}  // namespace lockstep::replica
