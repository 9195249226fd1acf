#include "control/rendezvous/address.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <lockstep/errors.h>

#include <algorithm>

#include "base/environment.h"

namespace lockstep::control {
namespace {

constexpr std::size_t kMostUnixName = 100;  // sun_path holds 108 with the leading zero
constexpr std::size_t kMostHost = 253;      // a DNS name

constexpr std::size_t kMostShown = 60;

[[noreturn]] void refuse(std::string_view text, std::string_view why) {
  throw BadInput(fmt::format(
      "the rendezvous address \"{}{}\" {}; write tcp:HOST:PORT, [IPv6]:PORT or unix:NAME",
      text.substr(0, kMostShown), text.size() > kMostShown ? "…" : "", why));
}

bool is_v6(std::string_view text) {
  in6_addr ignored{};
  return ::inet_pton(AF_INET6, std::string(text).c_str(), &ignored) == 1;
}

bool printable(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c < 0x7f; });
}

Address parse_unix(std::string_view text, std::string_view name) {
  if (name.empty() || name.size() > kMostUnixName) {
    refuse(text, fmt::format("needs a name of 1 to {} bytes", kMostUnixName));
  }
  return {Address::Kind::kUnix, std::string(name), 0};
}

Address parse_tcp(std::string_view text, std::string_view rest) {
  if (is_v6(rest)) refuse(text, fmt::format("needs brackets and a port: write [{}]:PORT", rest));
  const std::size_t colon = rest.rfind(':');
  if (colon == std::string_view::npos || rest.ends_with(']')) refuse(text, "has no port");
  std::string_view host = rest.substr(0, colon);
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != std::string_view::npos) {
    refuse(text, "has colons in its host: put an IPv6 address in brackets");
  }
  if (host.empty()) refuse(text, "has no host");
  if (host.size() > kMostHost)
    refuse(text, fmt::format("has a host of more than {} bytes", kMostHost));
  if (host.find_first_of("[]") != std::string_view::npos) refuse(text, "has stray brackets");
  const auto port = base::parse_number(rest.substr(colon + 1));
  if (!port || *port < 1 || *port > 65535) refuse(text, "has a port that is not 1 to 65535");
  return {Address::Kind::kTcp, std::string(host), static_cast<std::uint16_t>(*port)};
}

}  // namespace

Address parse_address(std::string_view text) {
  if (!printable(text)) refuse("(not shown)", "holds blanks or unprintable bytes");
  if (text.starts_with("unix:")) return parse_unix(text, text.substr(5));
  if (text.starts_with("tcp:")) return parse_tcp(text, text.substr(4));
  return parse_tcp(text, text);
}

std::string to_string(const Address& address) {
  if (address.kind == Address::Kind::kUnix) return "unix:" + address.host;
  const bool v6 = address.host.find(':') != std::string::npos;
  return fmt::format("tcp:{}{}{}:{}", v6 ? "[" : "", address.host, v6 ? "]" : "", address.port);
}

}  // namespace lockstep::control
