// A small model of every type for the cases, and what the CPU makes of it.
#pragma once

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "flat/chunks.h"
#include "flat/fold.h"
#include "flat/parity.h"
#include "plan/layout.h"
#include "plan/slices.h"
#include "tests/kernels/bytes.h"
#include "tests/kernels/machine.h"

namespace lockstep::testing::kernels {

struct Setting {
  DType dtype = DType::kFloat32;
  bool masters = false;
  bool wide_gradients = false;
  bool loose = false;  // gradients lie where backward made them
  double factor = 0;   // 0: none
  bool watched = false;
  int workers = 1;   // who cut the pieces
  double limit = 0;  // 0: none
  bool averaged = false;

  DType kept() const { return masters ? DType::kFloat32 : dtype; }
  DType gradient() const { return wide_gradients ? DType::kFloat32 : dtype; }
};

inline std::vector<Setting> all_settings() {
  std::vector<Setting> settings;
  for (const DType dtype : {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16}) {
    for (const bool masters : {false, true}) {
      for (const bool wide : {false, true}) {
        if ((masters || wide) && !flat::is_half(dtype)) continue;
        for (const bool loose : {false, true}) {
          for (const double factor : {0.0, 0.3}) {
            settings.push_back({dtype, masters, wide, loose, factor, false, 1, loose ? 0.3 : 0.0,
                                loose && (masters || !flat::is_half(dtype))});
          }
        }
      }
    }
  }
  return settings;
}

inline std::string describe(const Setting& setting) {
  return std::string(name(setting.dtype)) + (setting.masters ? " masters" : "") +
         (setting.wide_gradients ? " wide" : "") + (setting.loose ? " loose" : "") +
         (setting.factor != 0 ? " factor" : "");
}

inline plan::Layout layout_of(DType dtype) {
  return plan::Layout({{"a", dtype, 9'001},
                       {"none", dtype, 0},
                       {"one", dtype, 1},
                       {"seven", dtype, 7},
                       {"block", dtype, 1'024},
                       {"chunk", dtype, 4'096},
                       {"long", dtype, 25'003},
                       {"without", dtype, 1'500}});
}

// A model on the host: memory by entry.
struct Model {
  plan::Layout layout;
  plan::Pieces pieces;
  flat::ChunkTables tables;
  std::vector<Bytes> parameters;
  std::vector<Bytes> masters;
  std::vector<Bytes> states[flat::kMostStates];
  std::vector<Bytes> gradients;
  std::vector<Bytes> averages;

  explicit Model(const Setting& setting, float least_first_state = 0)
      : layout(layout_of(setting.dtype)),
        pieces(plan::plan_pieces(layout, setting.workers)),
        tables(layout, pieces, rules_of(layout)) {
    std::uint32_t seed = 1;
    for (const plan::Entry& entry : layout.entries()) {
      masters.push_back(rough_bytes(setting.kept(), entry.count, seed++));
      parameters.push_back(in_type(setting.dtype, setting.kept(), masters.back()));
      for (auto& state : states) {
        const float least = &state == states ? least_first_state : 0;
        state.push_back(rough_bytes(setting.kept(), entry.count, seed++, least));
        if (&state != states) drop_signs(state.back(), setting.kept());
      }
      gradients.push_back(rough_bytes(setting.gradient(), entry.count, seed++));
      if (setting.loose && entry.name == "without")
        gradients.back().assign(gradients.back().size(), std::byte{0});
      averages.push_back(rough_bytes(setting.kept(), entry.count, seed++));
    }
  }
  static std::vector<std::uint16_t> rules_of(const plan::Layout& layout) {
    std::vector<std::uint16_t> rules;
    for (std::size_t i = 0; i < layout.entries().size(); ++i)
      rules.push_back(static_cast<std::uint16_t>(i % 2));
    return rules;
  }
  Bytes flat(const std::vector<Bytes>& entries, bool wide) const {
    Bytes all(wide ? tables.wide_bytes() : layout.bytes());
    for (std::size_t i = 0; i < entries.size(); ++i) {
      const auto& place = tables.places()[i];
      std::copy(entries[i].begin(), entries[i].end(),
                all.begin() + static_cast<std::ptrdiff_t>(wide ? place.wide_offset : place.offset));
    }
    return all;
  }
};

// The same in the machine's memory.
struct There {
  flat::TablesView tables;
  flat::DeviceGradients gradients;
};

// Every other one lies where no pack may begin.
inline const void* const* put_loose(Machine& machine, const Model& model, std::size_t element) {
  std::vector<const void*> pointers;
  for (std::size_t i = 0; i < model.gradients.size(); ++i) {
    if (model.layout.entries()[i].name == "without") {
      pointers.push_back(nullptr);
      continue;
    }
    Bytes shifted(i % 2 * element);
    shifted.insert(shifted.end(), model.gradients[i].begin(), model.gradients[i].end());
    pointers.push_back(machine.put(shifted) + i % 2 * element);
  }
  return machine.put(pointers);
}

inline There put(Machine& machine, const Model& model, const Setting& setting) {
  There there;
  there.tables = {machine.put(model.tables.chunks()), machine.put(model.tables.places())};
  there.gradients.dtype = setting.gradient();
  if (setting.loose) {
    there.gradients.entries = put_loose(machine, model, size_of(setting.gradient()));
  } else {
    there.gradients.flat = machine.put(model.flat(model.gradients, setting.wide_gradients));
  }
  return there;
}

// A gradient as the CPU applies it. It is limited in the kept type if there is a factor, else before
// it is widened.
inline Bytes applied(const Setting& setting, const Bytes& gradient) {
  Bytes values = gradient;
  const std::size_t count = gradient.size() / size_of(setting.gradient());
  if (setting.loose)
    flat::copy_with_parity(setting.gradient(), gradient.data(), values.data(), count);
  const auto limit = [&](DType dtype) {
    if (setting.limit > 0) flat::limit(dtype, setting.limit, values.data(), values.data(), count);
  };
  if (setting.factor == 0) limit(setting.gradient());
  values = in_type(setting.kept(), setting.gradient(), values);
  if (setting.factor == 0) return values;
  flat::scale(setting.kept(), setting.factor, values.data(), values.data(), count);
  limit(setting.kept());
  return values;
}

// The trust in a parameter.
inline double trust_in(std::size_t entry) {
  return 1 / (1.1 + static_cast<double>(entry));
}
template <typename Step>
Step trusted(Step step, double trust) {
  if constexpr (requires { step.trust; }) step.trust = trust;
  return step;
}

}  // namespace lockstep::testing::kernels
