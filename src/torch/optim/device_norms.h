// The norms of an update on a GPU. They are measured before it, with the bits of the CPU's (norms.h),
// and stay there: kernels make the factor of clipping and the trust in each parameter of them, and
// the update reads these. The host gets norms some steps later, for the program.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "flat/device_tables.h"
#include "torch/device/device.h"
#include "torch/optim/update.h"

namespace lockstep::optim {

// The norms of the last steps, on their way to the host. Owned by DeviceNorms.
class SentNorms {
 public:
  explicit SentNorms(std::chrono::milliseconds timeout) : timeout_(timeout) {}

  // `results`: of gradients and of changes. If they decide the update, it is told as BadInput when a
  // norm is not finite.
  void send(const flat::Clipping* results, bool decide, Device device, void* stream,
            std::int64_t step);
  // Takes the oldest norm, so that there is room for one more. Waits for it.
  void make_room();
  // Takes all norms, and returns the last. Waits for them.
  double last();
  // Takes the one that was sent last, and returns it even if it is not finite. Waits for it.
  double newest();
  void forget();

 private:
  // How many norms may be on their way to the host at a time.
  static constexpr std::size_t kNorms = 4;

  // The results of one step.
  struct Sent {
    torch::Tensor results;  // pinned
    device::Event copied;
    std::int64_t step = 0;  // 0: none is on its way
    bool decide = true;
  };
  using Results = std::array<flat::Clipping, 2>;

  Results fetch(Sent& sent) const;
  double take(Sent& sent);

  std::chrono::milliseconds timeout_;
  std::array<Sent, kNorms> all_;
  std::size_t next_ = 0;
  double last_ = 0;
};

// Owned by an Update on a GPU.
//
// Threads:   one caller at a time, with the GPU as current device.
// Blocking:  make_room(), last(), newest(), apart() and by_entry() wait for the GPU.
// Failure:   make_room() and last(): BadInput if a norm that decided an update was not finite.
//            Unavailable if there is too little memory.
// Ownership: owns its memory; borrows what is trained, and the tables.
class DeviceNorms {
 public:
  DeviceNorms(const Trained& trained, const flat::TablesView& tables);

  // Takes memory for what these need.
  void accept(const Extras& extras);

  // Whether every step measures something, also without a scale.
  bool needed() const;
  // Whether the norm of the gradients is for the program. Without a scale, `unscale` is nothing.
  bool told(std::optional<double> unscale) const;

  // Measures the gradients, and finds the factor of clipping and unscaling. One task per type.
  void measure_gradients(const std::vector<flat::UpdateTask>& tasks, std::optional<double> unscale,
                         void* stream);
  // Measures what else is needed. Then the tasks have their factors and trusts, and know whether to
  // skip. With a scale the gradients were measured before.
  void decide(std::vector<flat::UpdateTask>& tasks, std::optional<double> unscale, void* stream);
  void send(void* stream);

  // For the noise scale: measures the gradients apart from all else, because clipping may want the
  // largest element, and no squares. apart() waits for the norm.
  void measure_apart(const std::vector<flat::UpdateTask>& tasks, void* stream);
  double apart() const;

  // By entry, of the last step; empty if they are not kept.
  std::span<const double> by_entry();

  void make_room() { sent_.make_room(); }
  double last() { return sent_.last(); }
  double newest() { return sent_.newest(); }
  void forget() { sent_.forget(); }

 private:
  bool clips() const { return trained_.extras.clip_norm > 0; }
  LayerNorm layer_norm() const { return trained_.groups.layer_norm(); }
  void take_memory();
  void take_entries();
  void measure_layers(const std::vector<flat::UpdateTask>& tasks, void* stream);
  void find_by_entry(void* stream);

  const Trained& trained_;
  flat::TablesView tables_;
  SentNorms sent_;
  std::optional<flat::ClipMemory> memory_;
  std::optional<flat::ClipMemory> apart_;
  std::optional<flat::EntryMemory> entries_;
  std::optional<double> kept_;  // norms by entry are kept, to be multiplied by this
  std::vector<double> by_entry_;
};

}  // namespace lockstep::optim
