#include <fmt/format.h>
#include <lockstep/dataset.h>
#include <lockstep/errors.h>

#include <charconv>
#include <cmath>
#include <cstring>

#include "base/files.h"
#include "formats/cifar10.h"
#include "formats/csv.h"
#include "formats/idx.h"
#include "formats/text.h"
#include "torch/data/tokens.h"

namespace lockstep {
namespace {

constexpr const char* kFashionMnist = "/usr/share/datasets/fashion-mnist";

torch::Tensor index_tensor(std::span<const Sample> samples) {
  torch::Tensor indices = torch::empty(static_cast<std::int64_t>(samples.size()), torch::kInt64);
  auto* next = indices.data_ptr<std::int64_t>();
  for (const Sample& sample : samples) *next++ = sample.index;
  return indices;
}

class TensorDataset : public Dataset {
 public:
  TensorDataset(torch::Tensor data, torch::Tensor target)
      : data_(std::move(data)), target_(std::move(target)) {
    if (data_.dim() < 1 || target_.dim() < 1 || data_.size(0) != target_.size(0)) {
      throw BadInput(
          "a data set of tensors wants as many targets as samples, along their first "
          "dimension");
    }
  }
  std::int64_t size() const override { return data_.size(0); }
  Batch batch(std::span<const Sample> samples) const override {
    const torch::Tensor index = index_tensor(samples);
    return {data_.index_select(0, index), target_.index_select(0, index), index.size(0)};
  }

 private:
  torch::Tensor data_;
  torch::Tensor target_;
};

// Images are kept as bytes, in a quarter of the memory of floats, and normalised when they are read.
class ImageDataset : public Dataset {
 public:
  ImageDataset(torch::Tensor images, torch::Tensor labels, torch::Tensor mean, torch::Tensor scale)
      : images_(std::move(images)),
        labels_(std::move(labels)),
        mean_(std::move(mean)),
        scale_(std::move(scale)) {}
  std::int64_t size() const override { return images_.size(0); }
  Batch batch(std::span<const Sample> samples) const override {
    const torch::Tensor index = index_tensor(samples);
    torch::Tensor data = images_.index_select(0, index).to(torch::kFloat32);
    data.sub_(mean_).mul_(scale_);
    return {data, labels_.index_select(0, index).to(torch::kInt64), index.size(0)};
  }

 private:
  torch::Tensor images_;  // [n, channels, height, width]
  torch::Tensor labels_;
  torch::Tensor mean_;   // per channel
  torch::Tensor scale_;  // 1 / standard deviation
};

// Windows of a text. The target of a window is the same window one character later.
class TextDataset : public Dataset {
 public:
  TextDataset(torch::Tensor tokens, std::int64_t context)
      : tokens_(std::move(tokens)), context_(context) {}
  std::int64_t size() const override { return (tokens_.size(0) - 1) / context_; }
  Batch batch(std::span<const Sample> samples) const override {
    const auto count = static_cast<std::int64_t>(samples.size());
    torch::Tensor windows = torch::empty({count, context_ + 1}, torch::kInt64);
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t first = samples[static_cast<std::size_t>(i)].index * context_;
      windows[i].copy_(tokens_.slice(0, first, first + context_ + 1));
    }
    return {windows.slice(1, 0, context_).contiguous(),
            windows.slice(1, 1, context_ + 1).contiguous(), count};
  }

 private:
  torch::Tensor tokens_;
  std::int64_t context_;
};

torch::Tensor bytes_tensor(const formats::ByteVector& bytes, at::IntArrayRef shape) {
  torch::Tensor tensor = torch::empty(shape, torch::kUInt8);
  std::copy(bytes.begin(), bytes.end(), tensor.data_ptr<std::uint8_t>());
  return tensor;
}

// Mean and 1 / standard deviation of each channel over the training images. They are made from sums of whole numbers,
// which are exact: every machine finds the same bits.
std::pair<torch::Tensor, torch::Tensor> normalisation(const torch::Tensor& images) {
  const std::int64_t channels = images.size(1);
  torch::Tensor mean = torch::empty({channels, 1, 1});
  torch::Tensor scale = torch::empty({channels, 1, 1});
  for (std::int64_t c = 0; c < channels; ++c) {
    const torch::Tensor values = images.select(1, c);
    const torch::Tensor counts = torch::bincount(values.reshape({-1}), {}, 256);
    double sum = 0;
    double squares = 0;
    for (std::int64_t value = 0; value < 256; ++value) {
      const auto count = counts[value].item<double>();
      sum += count * static_cast<double>(value);
      squares += count * static_cast<double>(value * value);
    }
    const auto n = static_cast<double>(values.numel());
    const double variance = squares / n - (sum / n) * (sum / n);
    mean[c] = sum / n;
    scale[c] = variance > 0 ? 1 / std::sqrt(variance) : 1.0;
  }
  return {mean, scale};
}

struct Images {
  torch::Tensor pixels;
  torch::Tensor labels;
};

DataSplits image_splits(const Images& train, const Images& test, std::int64_t classes) {
  const auto [mean, scale] = normalisation(train.pixels);
  return {std::make_shared<ImageDataset>(train.pixels, train.labels, mean, scale),
          std::make_shared<ImageDataset>(test.pixels, test.labels, mean, scale),
          {train.pixels.sizes().slice(1).vec(), classes, false}};
}

DataSplits load_idx(const std::string& directory) {
  std::int64_t classes = 0;
  const auto split = [&](const char* name) -> Images {
    const formats::IdxPair pair = formats::load_idx_pair(directory, name);
    classes = std::max<std::int64_t>(classes, pair.classes);
    const auto& shape = pair.images.shape;
    return {bytes_tensor(pair.images.data, {shape[0], 1, shape[1], shape[2]}),
            bytes_tensor(pair.labels.data, {shape[0]})};
  };
  const Images train = split("train");
  const Images test = split("t10k");
  return image_splits(train, test, classes);
}

DataSplits load_cifar10(const std::string& directory) {
  const auto split = [&](const char* name) -> Images {
    const formats::Cifar10 data = formats::load_cifar10(directory, name);
    const auto count = static_cast<std::int64_t>(data.labels.size());
    return {bytes_tensor(data.images, {count, 3, 32, 32}), bytes_tensor(data.labels, {count})};
  };
  return image_splits(split("train"), split("test"), formats::kCifarClasses);
}

DataSplits load_text(const std::string& path, std::int64_t context) {
  if (context < 1) throw BadInput("the context of a text must be at least 1 character");
  const formats::Text text = formats::load_text(path);
  const auto length = static_cast<std::int64_t>(text.tokens.size());
  const torch::Tensor tokens = bytes_tensor(text.tokens, {length});
  const std::int64_t cut = length - length / 10;
  if (length - cut <= context) {
    throw BadInput(
        fmt::format("{} has {} characters: too few for samples of {}; use a longer text "
                    "or a shorter context",
                    path, length, context));
  }
  return {std::make_shared<TextDataset>(tokens.slice(0, 0, cut), context),
          std::make_shared<TextDataset>(tokens.slice(0, cut), context),
          {{context}, static_cast<std::int64_t>(text.vocabulary.size()), true}};
}

// Every tenth row is for the test.
DataSplits split_rows(const torch::Tensor& data, const torch::Tensor& target,
                      std::int64_t classes) {
  const torch::Tensor number = torch::arange(data.size(0));
  const torch::Tensor is_test = number.remainder(10) == 9;
  const auto rows = [&](const torch::Tensor& chosen) {
    const torch::Tensor index = chosen.nonzero().reshape({-1});
    return tensor_dataset(data.index_select(0, index), target.index_select(0, index));
  };
  return {rows(~is_test), rows(is_test), {data.sizes().slice(1).vec(), classes, false}};
}

DataSplits load_csv(const std::string& path) {
  formats::CsvTable table = formats::load_csv(path);
  if (table.rows < 10)
    throw BadInput(
        fmt::format("{} has {} rows: at least 10 are needed, one to test", path, table.rows));
  torch::Tensor data = torch::from_blob(table.values.data(), {table.rows, table.features}).clone();
  const torch::Tensor target =
      torch::from_blob(table.classes.data(), {table.rows}, torch::kInt64).clone();
  const torch::Tensor mean = data.mean(0, /*keepdim=*/true);
  const torch::Tensor deviation = data.std(0, /*unbiased=*/false, /*keepdim=*/true);
  data = (data - mean) / deviation.clamp_min(1e-6);
  return split_rows(data, target, target.max().item<std::int64_t>() + 1);
}

// One centre per class. For images it is a coarse pattern, which convolutions can see.
torch::Tensor class_centres(const std::vector<std::int64_t>& shape,
                            const at::Generator& generator) {
  if (shape.size() != 4) return 0.1 * torch::randn(shape, generator);
  const torch::Tensor coarse = torch::randn({shape[0], shape[1], 4, 4}, generator);
  return 0.5 * torch::upsample_nearest2d(coarse, {shape[2], shape[3]});
}

DataSplits synthetic(const datasets::LoadOptions& options) {
  if (options.samples < 10 || options.classes < 2)
    throw BadInput("synthetic data wants at least 10 samples and 2 classes");
  const std::vector<std::int64_t> sample =
      options.sample.empty() ? std::vector<std::int64_t>{784} : options.sample;
  auto generator = at::detail::createCPUGenerator(options.seed);
  std::vector<std::int64_t> shape = sample;
  shape.insert(shape.begin(), options.classes);
  const torch::Tensor centres = class_centres(shape, generator);
  shape.front() = options.samples;
  const torch::Tensor target = torch::randint(options.classes, {options.samples}, generator,
                                              torch::TensorOptions().dtype(torch::kInt64));
  const torch::Tensor data = torch::randn(shape, generator) + centres.index_select(0, target);
  return split_rows(data, target, options.classes);
}

bool holds(const std::string& directory, const char* part) {
  const auto names = base::names_in(directory);
  return std::any_of(names.begin(), names.end(), [part](const std::string& name) {
    return name.find(part) != std::string::npos;
  });
}

TokenOptions token_options(const datasets::LoadOptions& options) {
  return {options.context, options.vocabulary, options.token_bytes};
}

DataSplits load_directory(const std::string& path, const datasets::LoadOptions& options) {
  if (holds(path, "data_batch_")) return load_cifar10(path);
  if (holds(path, "images")) return load_idx(path);
  if (data::holds_token_files(path)) return data::load_token_files(path, token_options(options));
  throw BadInput(
      fmt::format("{} holds neither IDX files (train-images-idx3-ubyte …) nor CIFAR-10's "
                  "binary files (data_batch_1.bin …) nor token files (train.bin and val.bin)",
                  path));
}

}  // namespace

DatasetPtr tensor_dataset(torch::Tensor data, torch::Tensor target) {
  return std::make_shared<TensorDataset>(std::move(data), std::move(target));
}

DataSplits datasets::load(const std::string& name_or_path, const LoadOptions& options) {
  if (name_or_path == "synthetic") return synthetic(options);
  if (name_or_path.starts_with("synthetic:")) {
    LoadOptions counted = options;
    const std::string_view count = std::string_view(name_or_path).substr(std::strlen("synthetic:"));
    const char* const end = count.data() + count.size();
    const auto read = std::from_chars(count.data(), end, counted.samples);
    constexpr std::int64_t kMost = std::int64_t{1} << 32;
    if (read.ec != std::errc() || read.ptr != end || counted.samples > kMost) {
      throw BadInput(fmt::format("{}: what follows synthetic: is the number of samples, at most {}",
                                 name_or_path, kMost));
    }
    return synthetic(counted);
  }
  if (name_or_path == "fashion-mnist") {
    if (!base::is_directory(kFashionMnist)) {
      throw BadInput(
          fmt::format("fashion-mnist is not installed ({} is absent): apt install "
                      "dataset-fashion-mnist, or give the path of a directory",
                      kFashionMnist));
    }
    return load_idx(kFashionMnist);
  }
  if (base::is_directory(name_or_path)) return load_directory(name_or_path, options);
  if (!base::exists(name_or_path)) {
    throw BadInput(
        fmt::format("no data at {}: give fashion-mnist, synthetic, a directory of IDX or "
                    "CIFAR-10 or token files, a .csv, a .bin of tokens or a text file",
                    name_or_path));
  }
  if (name_or_path.ends_with(".csv")) return load_csv(name_or_path);
  if (name_or_path.ends_with(".bin"))
    return data::load_token_file(name_or_path, token_options(options));
  return load_text(name_or_path, options.context);
}

}  // namespace lockstep
