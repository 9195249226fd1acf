// Gloo as its users run it: its ring all-reduce over TCP. This is Gloo's default, and the algorithm that PyTorch uses. (Its other algorithm, bcube, is for many hosts.)
//
// Tried and not used: its older algorithms over synchronous pairs (--sync --busy-poll in its own
// benchmark). They take 17 µs for some small buffers, but 88 ms for others, because TCP delays its
// acknowledgements. From 128 MiB on, both sides of a pair send more than the buffers of their
// sockets hold, and wait for each other until they time out.
#include <gloo/allreduce.h>
#include <gloo/barrier.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/rendezvous/prefix_store.h>
#include <gloo/transport/tcp/device.h>

#include <cstdlib>

#include "base/environment.h"
#include "bench/allreduce/worker.h"

namespace lockstep::bench {
namespace {

using Add = void (*)(void*, const void*, const void*, std::size_t);

class Gloo : public Reducer {
 public:
  explicit Gloo(const std::string& folder) {
    const std::string address = base::environment(kAddressVariable).value_or("127.0.0.1");
    auto device = gloo::transport::tcp::CreateDevice(address.c_str());
    // A new store for each run, because FileStore keeps what earlier runs left.
    gloo::rendezvous::FileStore files(folder);
    gloo::rendezvous::PrefixStore store(base::environment("TORCHELASTIC_RUN_ID").value_or(""),
                                        files);
    auto context =
        std::make_shared<gloo::rendezvous::Context>(number_of("RANK"), number_of("WORLD_SIZE"));
    context->connectFullMesh(store, device);
    context_ = std::move(context);
  }
  ~Gloo() override { std::free(memory_); }

  int rank() const override { return context_->rank; }
  int size() const override { return context_->size; }
  float* memory(std::size_t bytes) override {
    memory_ = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    return static_cast<float*>(memory_);
  }
  void barrier() override {
    gloo::BarrierOptions options(context_);
    gloo::barrier(options);
  }
  void all_reduce(float* data, std::size_t count) override {
    run(data, count, static_cast<Add>(&gloo::sum<float>));
  }
  void max(std::span<double> values) override {
    run(values.data(), values.size(), static_cast<Add>(&gloo::max<double>));
  }

 private:
  template <typename Number>
  void run(Number* data, std::size_t count, Add add) {
    gloo::AllreduceOptions options(context_);
    options.setOutput(data, count);
    options.setReduceFunction(add);
    gloo::allreduce(options);
  }

  std::shared_ptr<gloo::Context> context_;
  void* memory_ = nullptr;
};

}  // namespace

bool gloo_peer_built() {
  return true;
}

std::unique_ptr<Reducer> make_gloo_peer(const std::string& folder) {
  return std::make_unique<Gloo>(folder);
}

}  // namespace lockstep::bench
