// The two kinds of bytes that workers send each other before payload: headers and notices of
// failure.
#include "comm/core/failure.h"
#include "comm/core/header.h"
#include "fuzz.h"

using lockstep::fuzz::require;
namespace comm = lockstep::comm;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto text = lockstep::fuzz::as_text(data, size);
  if (const auto header = comm::decode_header({text.data(), text.size()})) {
    require(comm::decode_header(comm::encode_header(*header)) == header,
            "a header survives the wire");
    require(!comm::describe(*header).empty(), "a header can be put in words");
  }
  if (const auto failure = comm::decode_notice(text)) {
    const std::string bytes = comm::encode_notice(*failure);
    require(bytes.size() == comm::kNoticeBytes, "a notice has one size");
    const auto again = comm::decode_notice(bytes);
    require(again && again->kind == failure->kind && again->ranks == failure->ranks &&
                again->text == failure->text,
            "a notice survives the wire");
  }
  return 0;
}
