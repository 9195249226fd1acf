// Windows of token files (formats/token_file.h).
#include "torch/data/tokens.h"

#include <fmt/format.h>
#include <lockstep/errors.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "base/files.h"
#include "formats/token_file.h"

namespace lockstep {
namespace data {
namespace {

// A stretch of a file.
struct Stretch {
  std::shared_ptr<const formats::TokenFile> file;
  std::int64_t first = 0;
  std::int64_t tokens = 0;
};

class TokenDataset : public Dataset {
 public:
  TokenDataset(std::vector<Stretch> stretches, std::int64_t context, std::int64_t vocabulary)
      : stretches_(std::move(stretches)), context_(context), vocabulary_(vocabulary) {
    for (const Stretch& stretch : stretches_) {
      const std::int64_t windows = std::max<std::int64_t>(stretch.tokens - 1, 0) / context_;
      ends_.push_back(windows + size());
    }
  }
  std::int64_t size() const override { return ends_.empty() ? 0 : ends_.back(); }

  Batch batch(std::span<const Sample> samples) const override {
    const auto count = static_cast<std::int64_t>(samples.size());
    torch::Tensor windows = torch::empty({count, context_ + 1}, torch::kInt64);
    const auto length = static_cast<std::size_t>(context_ + 1);
    auto* window = windows.data_ptr<std::int64_t>();
    for (const Sample& sample : samples) {
      read(sample.index, {window, length});
      window += length;
    }
    return {windows.slice(1, 0, context_).contiguous(),
            windows.slice(1, 1, context_ + 1).contiguous(), count};
  }

 private:
  void read(std::int64_t index, std::span<std::int64_t> window) const {
    const auto end = std::upper_bound(ends_.begin(), ends_.end(), index);
    if (index < 0 || end == ends_.end()) {
      throw BadInput(
          fmt::format("there is no sample {}: samples are numbered 0 to {}", index, size() - 1));
    }
    const auto& [file, first, tokens] = stretches_[static_cast<std::size_t>(end - ends_.begin())];
    const std::int64_t before = end == ends_.begin() ? 0 : *(end - 1);
    const std::int64_t at = first + (index - before) * context_;
    file->read(at, window);
    const auto large = std::find_if(window.begin(), window.end(),
                                    [&](std::int64_t token) { return token >= vocabulary_; });
    if (large == window.end()) return;
    formats::refuse(file->path(),
                    fmt::format("token {} is {}, outside a vocabulary of {}",
                                at + (large - window.begin()), *large, vocabulary_),
                    "give a larger vocabulary, or check how many bytes a token has");
  }

  std::vector<Stretch> stretches_;
  std::int64_t context_;
  std::int64_t vocabulary_;
  std::vector<std::int64_t> ends_;  // of the samples of each stretch
};

void check(const TokenOptions& options) {
  if (options.context < 1) throw BadInput("the context of tokens must be at least 1");
  if (options.token_bytes != 2 && options.token_bytes != 4)
    throw BadInput(fmt::format("tokens of {} bytes: give 2 or 4", options.token_bytes));
  if (options.vocabulary < 0) throw BadInput("a vocabulary has at least one token");
}

std::vector<Stretch> opened(const std::vector<std::string>& files, const TokenOptions& options) {
  check(options);
  if (files.empty()) throw BadInput("a data set of tokens wants at least one file");
  std::vector<Stretch> all;
  for (const std::string& path : files) {
    auto file = std::make_shared<formats::TokenFile>(path, options.token_bytes);
    const std::int64_t tokens = file->layout().tokens;
    all.push_back({std::move(file), 0, tokens});
  }
  return all;
}

std::int64_t vocabulary_of(const std::vector<Stretch>& stretches, const TokenOptions& options) {
  if (options.vocabulary > 0) return options.vocabulary;
  std::int64_t most = 0;
  for (const Stretch& stretch : stretches) {
    const std::int64_t said = stretch.file->layout().vocabulary;
    if (said == 0) {
      formats::refuse(stretch.file->path(), "does not say how large its vocabulary is",
                      "give it (TokenOptions::vocabulary, lockstep train --vocabulary)");
    }
    most = std::max(most, said);
  }
  return most;
}

DatasetPtr dataset_of(std::vector<Stretch> stretches, std::int64_t context,
                      std::int64_t vocabulary) {
  const std::string first = stretches.front().file->path();
  auto dataset = std::make_shared<TokenDataset>(std::move(stretches), context, vocabulary);
  if (dataset->size() > 0) return dataset;
  formats::refuse(first, fmt::format("has too few tokens for a sample of {}", context),
                  "use a longer file or a shorter context");
}

// The .bin files of a directory whose names have a word in them.
std::vector<std::string> files_with(const std::string& directory, const char* word) {
  std::vector<std::string> files;
  for (const std::string& name : base::names_in(directory)) {
    if (name.ends_with(".bin") && name.find(word) != std::string::npos)
      files.push_back(base::join_path(directory, name));
  }
  return files;
}

}  // namespace

DataSplits load_token_file(const std::string& path, const TokenOptions& options) {
  const auto whole = opened({path}, options);
  const std::int64_t vocabulary = vocabulary_of(whole, options);
  const std::int64_t tokens = whole.front().tokens;
  const std::int64_t cut = tokens - tokens / 10;
  const auto& file = whole.front().file;
  return {dataset_of({{file, 0, cut}}, options.context, vocabulary),
          dataset_of({{file, cut, tokens - cut}}, options.context, vocabulary),
          {{options.context}, vocabulary, true}};
}

bool holds_token_files(const std::string& directory) {
  return !files_with(directory, "train").empty();
}

DataSplits load_token_files(const std::string& directory, const TokenOptions& options) {
  const auto test = files_with(directory, "val");
  if (test.empty()) {
    throw BadInput(fmt::format(
        "{} has token files to train on (…train….bin), and none to test (…val….bin): add one",
        directory));
  }
  auto train_files = opened(files_with(directory, "train"), options);
  auto test_files = opened(test, options);
  const std::int64_t vocabulary =
      std::max(vocabulary_of(train_files, options), vocabulary_of(test_files, options));
  return {dataset_of(std::move(train_files), options.context, vocabulary),
          dataset_of(std::move(test_files), options.context, vocabulary),
          {{options.context}, vocabulary, true}};
}

}  // namespace data

DatasetPtr token_dataset(const std::vector<std::string>& files, const TokenOptions& options) {
  auto stretches = data::opened(files, options);
  const std::int64_t vocabulary = data::vocabulary_of(stretches, options);
  return data::dataset_of(std::move(stretches), options.context, vocabulary);
}

}  // namespace lockstep
