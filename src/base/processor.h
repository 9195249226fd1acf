// Which processor this is.
#pragma once

#include <string>
#include <string_view>

namespace lockstep::base {

// What libraries choose their code by besides instruction sets: vendor, family and model on x86-64; implementer, variant and
// part on ARM. Every kind once where cores differ. "unknown" where the kernel does not say.
std::string processor_identity();

// The same, out of a text such as /proc/cpuinfo.
std::string processor_identity_in(std::string_view cpuinfo);

}  // namespace lockstep::base
