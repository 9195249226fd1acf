// Forming a world over Gloo.
//
//   attempt   every pair connects. Each side sends a nonce, then a keyed hash over both nonces with
//             the world's secret as the key. Rank 0 collects the verdicts of all. If any pair
//             failed, all workers try again on new ports
//
// A stranger that connects meanwhile can spoil an attempt, and no more.
#include "comm/gloo/gloo_engine.h"

#include <fmt/format.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/tcp/device.h>
#include <net/if.h>
#include <netdb.h>
#include <sys/socket.h>

#include <new>
#include <system_error>

#include "base/bytes.h"
#include "base/fd.h"
#include "base/hash.h"
#include "base/log.h"
#include "comm/gloo/gloo_link.h"
#include "comm/gloo/no_sigpipe.h"

namespace lockstep::comm {
namespace {

constexpr int kAttempts = 5;
constexpr Slot kProofSlot = 6;  // operations use 0 to 3 of every eight
constexpr std::size_t kNonceBytes = 32;

// Gloo's store over a Bootstrap; keys of one attempt.
class BootstrapStore : public gloo::rendezvous::Store {
 public:
  BootstrapStore(Bootstrap& bootstrap, std::string prefix, Deadline deadline)
      : bootstrap_(bootstrap), prefix_(std::move(prefix)), deadline_(deadline) {}

  void set(const std::string& key, const std::vector<char>& data) override {
    bootstrap_.put(prefix_ + key, std::string_view(data.data(), data.size()), deadline_);
  }
  std::vector<char> get(const std::string& key) override {
    const std::string value = bootstrap_.get(prefix_ + key, deadline_);
    return {value.begin(), value.end()};
  }
  void wait(const std::vector<std::string>& /*keys*/) override {}  // get waits
  void wait(const std::vector<std::string>& /*keys*/,
            const std::chrono::milliseconds& /*timeout*/) override {}

 private:
  Bootstrap& bootstrap_;
  std::string prefix_;
  Deadline deadline_;
};

// Gloo crashes on a name that does not resolve, and binds to the first address that it finds. So
// try before.
bool can_listen_on(const std::string& host) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(host.c_str(), nullptr, &hints, &found) != 0) return false;
  bool bound = false;
  for (const addrinfo* entry = found; entry != nullptr && !bound; entry = entry->ai_next) {
    const base::Fd trial(::socket(entry->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    bound = trial && ::bind(trial.get(), entry->ai_addr, entry->ai_addrlen) == 0;
  }
  ::freeaddrinfo(found);
  return bound;
}

std::shared_ptr<gloo::transport::Device> make_device(const std::string& interface_name) {
  gloo::transport::tcp::attr attributes;
  if (interface_name.empty()) {
    attributes.hostname = "127.0.0.1";
  } else if (::if_nametoindex(interface_name.c_str()) != 0) {
    attributes.iface = interface_name;
  } else if (can_listen_on(interface_name)) {
    attributes.hostname = interface_name;
  } else {
    throw BadInput(fmt::format(
        "cannot listen on '{}'; name an interface or an address of this host", interface_name));
  }
  try {
    return gloo::transport::tcp::CreateDevice(attributes);
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    throw Unavailable(fmt::format("Gloo cannot listen on '{}': {}", interface_name, error.what()));
  }
}

std::string proof(const Bootstrap& bootstrap, int from, int to, std::string_view nonce_from,
                  std::string_view nonce_to) {
  base::ByteWriter writer;
  writer.put_text("lockstep gloo pair").put_text(bootstrap.name());
  writer.put(from).put(to).put_text(nonce_from).put_text(nonce_to);
  return base::hmac_sha256(bootstrap.secret(), writer.bytes());
}

// Sends one string to every peer and receives one of the same length from each.
std::vector<std::string> swap_with_all(Link& link, const std::vector<std::string>& give,
                                       Deadline deadline) {
  std::vector<std::string> take(link.size());
  std::vector<std::unique_ptr<Transfer>> transfers;
  for (int peer = 0; peer < link.size(); ++peer) {
    if (peer == link.rank()) continue;
    take[peer].resize(give[peer].size());
    transfers.push_back(link.recv(peer, kProofSlot, take[peer].data(), take[peer].size()));
    transfers.push_back(link.send(peer, kProofSlot, give[peer].data(), give[peer].size()));
  }
  for (const auto& transfer : transfers) {
    if (!transfer->wait(deadline)) throw PeerLost("a peer did not prove the secret in time");
  }
  return take;
}

void prove_to_all(Link& link, const Bootstrap& bootstrap, Deadline deadline) {
  const int self = link.rank();
  std::vector<std::string> nonces(link.size());
  for (auto& nonce : nonces) nonce = base::random_bytes(kNonceBytes);
  const auto theirs = swap_with_all(link, nonces, deadline);
  std::vector<std::string> proofs(link.size());
  for (int peer = 0; peer < link.size(); ++peer) {
    proofs[peer] = proof(bootstrap, self, peer, nonces[peer], theirs[peer]);
  }
  const auto proven = swap_with_all(link, proofs, deadline);
  for (int peer = 0; peer < link.size(); ++peer) {
    if (peer == self) continue;
    if (!base::equal_secrets(proven[peer],
                             proof(bootstrap, peer, self, theirs[peer], nonces[peer]))) {
      throw PeerLost(
          fmt::format("a process that answers as rank {} does not know the secret", peer), {peer});
    }
  }
}

// The keys of an attempt.
std::string prefix_of(int number) {
  return fmt::format("gloo/{}/", number);
}

// An attempt: the link, or why not.
struct Attempt {
  std::shared_ptr<Link> link;
  std::string trouble;
};

Attempt try_to_form(Bootstrap& bootstrap, const CommOptions& options, int number,
                    Deadline deadline) {
  const NoSigpipe no_sigpipe;  // Gloo's own thread, which starts here, inherits it
  auto device = make_device(options.interface_name);
  BootstrapStore store(bootstrap, prefix_of(number), deadline);
  auto context = std::make_shared<gloo::rendezvous::Context>(bootstrap.rank(), bootstrap.size());
  // Gloo waits five times this long for a connection. A spoiled attempt should end soon, but a slow
  // host needs more time. So each attempt waits twice as long as the one before.
  context->setTimeout(std::chrono::milliseconds(400 << number));
  try {
    context->connectFullMesh(store, device);
    auto link = GlooLink::make(std::move(context));
    prove_to_all(*link, bootstrap, earlier(deadline, Deadline::after(std::chrono::seconds(10))));
    return {std::move(link), ""};
  } catch (const PeerLost& error) {
    return {nullptr, error.what()};
  } catch (const Error&) {
    throw;  // the bootstrap itself failed, or its deadline has passed
  } catch (const std::bad_alloc& error) {
    return {nullptr, failure_of(bootstrap.rank(), error).text};
  } catch (const std::system_error& error) {
    if (error.code() != std::errc::resource_unavailable_try_again)
      return {nullptr, failure_of(bootstrap.rank(), error).text};
    return {nullptr, fmt::format("rank {} cannot start a thread ({}); raise `ulimit -u`",
                                 bootstrap.rank(), error.what())};
  } catch (const std::exception& error) {  // Gloo's own: it tells no failures of the network apart
    return {nullptr, error.what()};
  }
}

// The common verdict of all workers, through rank 0: the empty string, or the first trouble. All
// must decide the same: a worker that went on alone would wait for the others on the old ports.
std::string common_verdict(Bootstrap& bootstrap, const std::string& prefix, const std::string& own,
                           Deadline deadline) {
  if (bootstrap.rank() != 0) {
    bootstrap.put(fmt::format("{}verdict/{}", prefix, bootstrap.rank()), own, deadline);
    return bootstrap.get(prefix + "verdict", deadline);
  }
  std::string common = own;
  for (int rank = 1; rank < bootstrap.size(); ++rank) {
    const auto theirs = bootstrap.get(fmt::format("{}verdict/{}", prefix, rank), deadline);
    if (common.empty()) common = theirs;
  }
  bootstrap.put(prefix + "verdict", common, deadline);
  return common;
}

}  // namespace

bool gloo_built() {
  return true;
}

std::shared_ptr<Link> connect_gloo(Bootstrap& bootstrap, const CommOptions& options) {
  const auto deadline = Deadline::after(options.timeout);
  std::string trouble;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    Attempt formed = try_to_form(bootstrap, options, attempt, deadline);
    trouble = common_verdict(bootstrap, prefix_of(attempt), formed.trouble, deadline);
    if (trouble.empty()) return formed.link;
    base::log(base::LogLevel::kWarn, "forming the world again: {}", trouble);
  }
  throw PeerLost(
      fmt::format("the world could not be formed in {} attempts: {}", kAttempts, trouble));
}

}  // namespace lockstep::comm
