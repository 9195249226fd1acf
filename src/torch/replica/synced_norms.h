// With whom the batch norms of convert_sync_batchnorm() share their statistics.
#pragma once

#include <lockstep/data_parallel.h>

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::replica {

// What a pass computes at a layer, for the others.
struct NormRow {
  double count = 0;    // of values of a channel; 0: the pass has no samples
  at::Tensor numbers;  // as many in every row; undefined: all are zero
};

// What all passes have computed there.
struct NormRows {
  std::vector<double> counts;  // by pass
  at::Tensor all;              // by pass, where the layer is: [passes, numbers]
  std::int64_t own = 0;        // this pass
};

// The numbers of rows, of which the first is defined: [passes, numbers]. (sync_batchnorm.cpp)
at::Tensor stacked(const std::vector<NormRow>& rows);

// Rows as workers send them, on the host: [passes, 1 + numbers]. unpacked() puts the numbers on the device of `like`, in
// its type. (sync_batchnorm.cpp)
at::Tensor packed(const std::vector<NormRow>& rows);
NormRows unpacked(const at::Tensor& rows, const at::Tensor& like);

// Brings together the rows of several equal passes. In the drop-in loop these are the passes of the workers. In a Step
// they are those of all shards.
//
// Threads:   the thread that runs the pass.
// Blocking:  gather(), until all passes have come to the layer.
// Failure:   gather() throws PeerLost, Timeout, and Mismatch or BadInput if passes come to different layers.
// Ownership: NormScope borrows it.
class NormExchange {
 public:
  virtual ~NormExchange() = default;

  // `name`: of the layer and the direction.
  virtual NormRows gather(const std::string& name, const NormRow& row) = 0;

  // Counts how many times this pass has come to the layer.
  virtual std::int64_t count(const std::string& layer) = 0;
};

// As long as it lives, batch norms that train on this thread share their statistics through `others`. Without one they
// share them with other workers.
class [[nodiscard]] NormScope {
 public:
  explicit NormScope(NormExchange& others);
  ~NormScope();
  NormScope(const NormScope&) = delete;
  NormScope& operator=(const NormScope&) = delete;

 private:
  NormExchange* before_;
};

// The layers among these parameters and buffers of a model that share statistics, in one line: for workers, and the runs
// of a job, to compare. Empty: there are none.
std::string describe_synced_norms(const std::vector<NamedTensor>& tensors);

}  // namespace lockstep::replica
