// Tree all-reduce, and broadcast along the same tree.
//
//   children  of rank r: r + 1, r + 2, r + 4 … for steps below r's lowest set bit, if the rank
//             exists
//   steps     2 log2(N)
//   bytes     per worker: up to 2 log2(N) times the buffer at the root, twice the buffer at a leaf
//
//   up     a rank adds its children's sums to its own, nearest first, and sends the sum to its
//          parent
//   down   the root's sum goes back along the same edges, in packets, so that the levels overlap
//
// Few messages, but the whole buffer on every edge: for short buffers on slow networks. Adding the
// nearest child first works like the carry of a binary counter. So with one partial per worker the
// order is exactly that of the reduction tree: bit-stable for every N.
#include <algorithm>

#include "comm/algorithms/algorithms.h"
#include "comm/algorithms/working.h"

namespace lockstep::comm {
namespace {

constexpr std::size_t kPassedPacketBytes = std::size_t{1} << 20;

struct TreePlace {
  int parent = -1;
  std::vector<int> children;  // nearest first
};

// The parent and the children of a rank in the tree with this root. Ranks are counted from the
// root.
TreePlace place_in_tree(int rank, int size, int root) {
  const int relative = (rank - root + size) % size;
  TreePlace place;
  for (int bit = 1; bit < size; bit <<= 1) {
    if ((relative & bit) != 0) {
      place.parent = (relative - bit + root) % size;
      break;
    }
    if (relative + bit < size) place.children.push_back((relative + bit + root) % size);
  }
  return place;
}

// Passes the buffer from the parent to the children, each packet as soon as it is there. The
// farthest child comes first, because it has the deepest tree below it.
void pass_down(Exchange& exchange, const TreePlace& place, Buffer data) {
  const std::size_t packet = kPassedPacketBytes / size_of(data.dtype);
  std::vector<Exchange::Ticket> incoming;
  std::vector<Exchange::Ticket> outgoing;
  std::vector<Buffer> packets;
  for (std::size_t first = 0; first < data.count; first += packet) {
    packets.push_back(data.slice(first, std::min(packet, data.count - first)));
  }
  if (place.parent >= 0) {
    for (const Buffer& part : packets) {
      incoming.push_back(exchange.recv(place.parent, part.data, part.bytes(), Stage::kResults));
    }
  }
  for (std::size_t i = 0; i < packets.size(); ++i) {
    if (place.parent >= 0) exchange.wait(incoming[i]);
    for (auto child = place.children.rbegin(); child != place.children.rend(); ++child) {
      outgoing.push_back(
          exchange.send(*child, packets[i].data, packets[i].bytes(), Stage::kResults));
    }
  }
  exchange.wait_all(outgoing);
}

}  // namespace

void tree_all_reduce(Exchange& exchange, Buffer data, ReduceRule rule) {
  const TreePlace place = place_in_tree(exchange.rank(), exchange.size(), 0);
  std::vector<int> neighbours = place.children;
  if (place.parent >= 0) neighbours.push_back(place.parent);
  exchange.meet(neighbours);

  const Working working(exchange, data, data.count);
  const Buffer& sums = working.sums;
  for (const int child : place.children) {
    auto incoming = exchange.recv(child, working.staging, sums.bytes());
    exchange.wait(incoming);
    flat::combine(sums.dtype, rule.op, sums.data, working.staging, sums.data, sums.count);
  }
  if (place.parent >= 0) {
    auto outgoing = exchange.send(place.parent, sums.data, sums.bytes());
    exchange.wait(outgoing);
  } else {
    working.finish(data, 0, data.count, rule.factor);
  }
  pass_down(exchange, place, data);
}

void tree_broadcast(Exchange& exchange, Buffer data, int root) {
  if (exchange.has_board() && broadcast_in_memory(exchange, data, root)) return;
  const TreePlace place = place_in_tree(exchange.rank(), exchange.size(), root);
  if (place.parent >= 0) exchange.expect(place.parent);
  for (const int child : place.children) exchange.greet(child);
  pass_down(exchange, place, data);
}

}  // namespace lockstep::comm
