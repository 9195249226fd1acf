// What the updates on the CPU share. The classes are in host_update.cpp; what the workers that survive do with an update
// that was broken off is in host_finish.cpp.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <vector>

#include "flat/update_loops.h"
#include "torch/optim/master.h"
#include "torch/optim/norms.h"
#include "torch/optim/update.h"

namespace lockstep::optim {

// Steps 2 to 4 of host_update.cpp.
//
// Threads, Blocking, Failure, Ownership: as Update.
class HostUpdate : public Update {
 public:
  using Update::Update;
  double norm() override { return last_norm_; }
  double clip_factor() const override { return clip_factor_; }
  std::span<const double> trusts() const override { return trusts_; }
  std::span<const double> norms() override { return norms_; }
  double measured_norm() const override {
    return unscale_ * rows_->norm(BlockNorms::Row::kGradient);
  }
  bool overflowed() const override { return overflowed_; }
  void finish(const UpdateNumbers& numbers, UpdateJournal& journal) override;
  void complete(bool skipped) override;
  void take_over(const GradientSource& source) override;

 protected:
  void begin(const GradientSource& source) {
    gradients_ = source;
    now_ = {.scaled = source.scale.has_value()};
  }
  void find_numbers(const GradientSource& source);  // step 2
  void update(UpdateJournal* journal);              // steps 3 and 4
  void leave(UpdateJournal* journal);               // the same, where nothing changes
  virtual void meet() {}                       // waits for the workers whose blocks this one reads
  virtual void write(UpdateJournal* journal);  // step 3
  replica::SomePieces own_pieces() const { return {trained_.model->parts().plan, watch_.own()}; }
  // Puts the squares of a gradient, if step 3 measures gradients.
  void measure(const plan::Stretch& piece, const BlockNorms::Values& gradient) {
    if (measures_) rows_->put_squares(BlockNorms::Row::kGradient, piece, gradient);
  }
  void measure_nothing(const plan::Stretch& piece) {
    if (measures_) rows_->put(BlockNorms::Row::kGradient, piece, [](auto, auto) { return 0.0; });
  }

  GradientSource gradients_;  // of this step, after step 2

 private:
  using Row = BlockNorms::Row;
  base::ByteRange own_bytes() const;
  void acquire();
  template <typename Visit>
  GradientSource gathered(const GradientSource& source, const replica::SomePieces& pieces,
                          const Visit& visit);
  void measure_gradients(std::optional<double> scale);
  void measure_changes();
  void find_trusts();
  void keep_norms();
  BlockNorms& rows();
  virtual replica::Copies copies() const = 0;  // of what workers measure
  template <typename Observer>
  void update_slice(Observer observer, UpdateJournal* journal);
  template <typename Observer>
  void update_piece(std::size_t number, replica::GradientReader& gradients, Observer& observer,
                    UpdateJournal* journal);
  template <typename Observer>
  flat::Parities update_elements(std::size_t number, flat::Elements elements,
                                 UpdateJournal* journal);
  flat::Keeping keep(std::size_t number, UpdateJournal& journal) const;
  void write_piece(std::size_t number, UpdateJournal& journal);
  void adopt(const UpdateNumbers& numbers);
  void count_step();
  // Everything of a piece that an update writes: weights, the states that its rule uses, master, average.
  struct Written {
    std::array<UpdateJournal::Bytes, flat::kMostStates + 3> memories;
    std::array<std::size_t, flat::kMostStates> states{};  // which states they are
    std::size_t used = 0;                                 // states
    std::size_t count = 0;                                // memories
  };
  Written written_of(const plan::Stretch& piece) const;
  flat::Elements elements_of(const plan::Stretch& piece, const Master& master) const;
  const std::byte* weights_of(const plan::Stretch& piece) const;
  flat::Averaged averaged(const flat::Elements& updated, const plan::Stretch& piece) const;
  void leave_alone(std::size_t number, bool seen_before);
  const void* read(std::size_t number, replica::GradientReader& gradients);

  bool is_gathered_ = false;  // the averages are in one memory
  double clip_factor_ = 1;
  double last_norm_ = 0;
  double unscale_ = 1;  // 1 / scale of the losses
  bool overflowed_ = false;
  struct Now {
    bool scaled = false;   // the losses were
    bool began = false;    // find_numbers()
    bool counted = false;  // among the steps
  };
  Now now_;                                           // what is known of this step, and done
  bool measures_ = false;                             // step 3 measures gradients
  std::vector<double> norms_;                         // by entry; empty: not kept
  std::vector<double> trusts_ = std::vector<double>(  // by entry; empty: the rule has none
      trained_.groups.layer_norm() == LayerNorm::kNone ? 0 : trained_.groups.entries(), 1.0);
  std::optional<replica::FlatMemory> sums_;  // the averages, if the source adds on the way
  std::optional<BlockNorms> rows_;
};

}  // namespace lockstep::optim
