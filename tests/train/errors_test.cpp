// How `lockstep train`, and the command as a whole, say what does not work: one line, and a code that is not 0.
#include "tests/train/train.h"

namespace lockstep::testing {
namespace {

class Errors : public Train {
 protected:
  static std::string big_endian(std::uint32_t number) {
    std::string bytes;
    for (int shift = 24; shift >= 0; shift -= 8)
      bytes.push_back(static_cast<char>(number >> shift & 0xff));
    return bytes;
  }

  // IDX files of square images of one grey, with labels 0 and 1 in turn.
  void write_images(const std::string& part, std::uint32_t count, std::uint32_t side) const {
    fs::create_directories(path("images"));
    const std::string name = path("images/" + part);
    std::ofstream(name + "-images-idx3-ubyte", std::ios::binary)
        << big_endian(0x803) << big_endian(count) << big_endian(side) << big_endian(side)
        << std::string(std::size_t{count} * side * side, '\x40');
    std::string labels;
    for (std::uint32_t i = 0; i < count; ++i) labels.push_back(static_cast<char>(i % 2));
    std::ofstream(name + "-labels-idx1-ubyte", std::ios::binary)
        << big_endian(0x801) << big_endian(count) << labels;
  }

  Command in_shell(const std::string& line) const {
    Command command({"/bin/sh", "-c", line}, {marker_});
    EXPECT_TRUE(command.finish(seconds(60)));
    return command;
  }

  Command into_full_disk(const std::string& words) const {
    return in_shell("exec " + quoted(LOCKSTEP_BINARY) + " " + words + " > /dev/full");
  }

  // Its standard output is a pipe whose reader went before the first line; the shell says the code.
  Command into_closed_pipe(const std::string& words) const {
    return in_shell("{ sleep 0.2; " + quoted(LOCKSTEP_BINARY) + " " + words +
                    "; echo code $? >&2; } | true");
  }
};

TEST_F(Errors, ImagesOfTwoSizesAreNamed) {
  write_images("train", 16, 28);
  write_images("t10k", 16, 14);
  expect_refusal(finished({"--data", path("images"), "--quiet"}),
                 path("images") + " has training samples of 1×28×28 and test samples of 1×14×14",
                 2);
}

TEST_F(Errors, AClassThatNoModelCanHaveIsNamed) {
  std::ofstream table(path("table.csv"));
  for (int row = 0; row < 20; ++row) table << row << ",1," << row % 2 << "\n";
  table << "1,2,30000000\n";
  table.close();
  expect_refusal(finished({"--model", "mlp", "--data", path("table.csv"), "--quiet"}),
                 "table.csv has class 30000000, and mlp takes classes from 0 to 1048575", 2);
}

TEST_F(Errors, OutputThatIsLostIsToldAndIsNoSuccess) {
  const std::string job =
      "train --model cnn --data synthetic:100 --global-batch 8 --steps 2 --checkpoint none";
  for (const std::string& words :
       {job + " --workers 1 --quiet", job + " --workers 2", std::string("doctor"),
        std::string("doctor --json"), std::string("bench --help"), std::string("--version")}) {
    SCOPED_TRACE(words);
    expect_refusal(into_full_disk(words), "cannot write to standard output (No space left", 1);
  }
}

// As with `| head` or `| grep -q`: who has gone wanted no more.
TEST_F(Errors, AReaderThatHasGoneIsNoFailure) {
  const std::string job =
      "train --model cnn --data synthetic:100 --global-batch 8 --steps 2 --checkpoint none";
  for (const std::string& words : {job + " --workers 1 --quiet", job + " --workers 2"}) {
    SCOPED_TRACE(words);
    EXPECT_EQ(into_closed_pipe(words).err(), "code 0\n");
  }
}

}  // namespace
}  // namespace lockstep::testing
