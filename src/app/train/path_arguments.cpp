#include "app/train/path_arguments.h"

#include <fmt/format.h>
#include <lockstep/errors.h>
#include <sys/stat.h>

#include <string>
#include <utility>

#include "app/train/arguments.h"
#include "base/files.h"
#include "formats/checkpoint_file.h"

namespace lockstep::app {
namespace {

// Under one name or two.
bool is_same_file(const std::string& one, const std::string& other) {
  struct stat its {};
  struct stat others {};
  return ::stat(one.c_str(), &its) == 0 && ::stat(other.c_str(), &others) == 0 &&
         its.st_dev == others.st_dev && its.st_ino == others.st_ino;
}

}  // namespace

void check_paths(const TrainArguments& arguments) {
  const bool named = arguments.data.starts_with("synthetic") || arguments.data == "fashion-mnist";
  if (!named && !base::exists(arguments.data)) {
    throw BadInput(fmt::format(
        "--data {}: there is no such file or directory, and no data of that name", arguments.data));
  }
  const std::string order = arguments.local_given.order.value_or("");
  const std::string replay = arguments.local_given.replay.value_or("");
  for (const auto& [option, path] :
       {std::pair{"--report", arguments.report}, std::pair{"--hashes", arguments.hashes},
        std::pair{"--order", order}}) {
    if (path.empty()) continue;
    if (path == arguments.data)
      throw BadInput(fmt::format("{} {}: that is the data", option, path));
    const std::string file = path.substr(path.rfind('/') + 1);
    if (base::parent_path(path) == arguments.checkpoint &&
        (file.starts_with("checkpoint.") || file.starts_with(formats::kCheckpointPrefix)))
      throw BadInput(fmt::format("{} {}: the job's own files have such names", option, path));
    const std::string why = base::why_not_writable(path);
    if (!why.empty()) throw BadInput(fmt::format("{} {}: {}", option, path, why));
  }
  if (!arguments.verify.empty() && !base::exists(arguments.verify))
    throw BadInput(fmt::format("--verify {}: there is no such file", arguments.verify));
  if (!replay.empty() && !base::exists(replay))
    throw BadInput(fmt::format("--replay {}: there is no such file", replay));
  if (!order.empty() && is_same_file(order, replay))
    throw BadInput("--order and --replay name the same file: it would be overwritten");
  if (!order.empty() && (order == arguments.report || order == arguments.hashes))
    throw BadInput("--order names the same file as --report or --hashes");
  for (const std::string& path : {arguments.report, arguments.hashes}) {
    if (!path.empty() && is_same_file(path, replay))
      throw BadInput(
          "--replay names the same file as --report or --hashes: it would be overwritten");
  }
  if (!arguments.report.empty() && arguments.report == arguments.hashes)
    throw BadInput("--report and --hashes name the same file");
  if (!arguments.verify.empty() && arguments.verify == arguments.hashes)
    throw BadInput("--verify and --hashes name the same file: it would be overwritten");
  if (arguments.verify.empty() && arguments.until >= 0)
    throw BadInput("--until says where --verify ends: add --verify FILE");
}

}  // namespace lockstep::app
