// Writing a file so that a crash, a kill or a full disk at any moment leaves the earlier file or the
// new one, whole, and never half of one.
//
// The bytes go into a file without a name (O_TMPFILE) in the directory of the target, which the
// kernel drops by itself if the process dies. commit() brings them to the disk, gives them the
// hidden name `.NAME.lockstep-tmp-PID`, renames that over the target, and brings the directory to
// the disk. Where the file system knows no files without a name, the hidden name is there from the
// beginning.
//
// A killed writer may leave a file with that hidden name. The next writer of the same target
// removes it; so does remove_unfinished(). A living writer holds a lock on its file. So a writer on another host, or in another
// PID namespace, is never taken for a dead one. Where the file system has no locks, such files stay.
#pragma once

#include <string>
#include <string_view>

#include "base/fd.h"

namespace lockstep::base {

enum class Temporary {
  kUnnamed,  // without a name where the file system can, else as below
  kNamed,    // with the hidden name from the beginning
};

// One file being written.
//
// Threads:   one caller; several files, and several writers of one, are independent: the last
//            commit stays.
// Blocking:  on the disk.
// Failure:   BadInput when the path cannot be written (no such directory, no permission, not a
//            regular file); Unavailable when the disk is full or fails. The earlier file stays.
// Ownership: holds its descriptors; destroyed without commit() it leaves no trace.
class AtomicFile {
 public:
  // A link at `path` is followed: the file it names is replaced. The permissions of an earlier
  // file are kept.
  explicit AtomicFile(std::string path, Temporary temporary = Temporary::kUnnamed);
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  ~AtomicFile();

  void write(std::string_view bytes);

  // When it returns, the new file is there, even after a power cut. It is the last call.
  void commit();

 private:
  bool open_unnamed();
  void open_named();
  void give_name();
  std::string temporary_name(int attempt) const;
  [[noreturn]] void fail(const char* what, int error) const;

  std::string path_;       // as the caller said, for messages
  std::string folder_;     // of the file itself, with links followed
  std::string name_;       // in folder_
  std::string temporary_;  // the hidden name, while there is one
  unsigned mode_ = 0666;   // of an earlier file, or as the umask has it
  bool existed_ = false;
  Fd directory_;
  Fd file_;
};

// Removes what killed writers have left of files whose names begin so, and nothing else.
void remove_unfinished(const std::string& directory, const std::string& prefix);

// The next write of an AtomicFile in this process fails with this error: a full disk, for tests.
void fail_next_file(int error);

// Writes a whole file at once.
void write_file(const std::string& path, std::string_view bytes);

}  // namespace lockstep::base
