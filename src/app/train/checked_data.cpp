#include "app/train/checked_data.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <lockstep/errors.h>

#include <utility>

namespace lockstep::app {
namespace {

class CheckedDataset : public Dataset {
 public:
  CheckedDataset(DatasetPtr dataset, DataShape shape, std::string name)
      : dataset_(std::move(dataset)), shape_(std::move(shape)), name_(std::move(name)) {}

  std::int64_t size() const override { return dataset_->size(); }

  Batch batch(std::span<const std::int64_t> indices) const override {
    Batch batch = dataset_->batch(indices);
    const auto sample = batch.data.sizes().slice(1);
    if (sample != at::IntArrayRef(shape_.sample)) {
      throw BadInput(
          fmt::format("samples of {} are {}, and the model was made for {}: give data of one size",
                      name_, spoken(sample), spoken(shape_.sample)));
    }
    if (batch.target.numel() == 0) return batch;
    const auto least = batch.target.min().item<std::int64_t>();
    const auto most = batch.target.max().item<std::int64_t>();
    if (least >= 0 && most < shape_.classes) return batch;
    throw BadInput(fmt::format(
        "a sample of {} has class {}, and the model has {} classes, 0 to {}: correct the data",
        name_, least < 0 ? least : most, shape_.classes, shape_.classes - 1));
  }

 private:
  static std::string spoken(at::IntArrayRef sizes) {
    return fmt::format("{}", fmt::join(sizes, "×"));
  }

  DatasetPtr dataset_;
  DataShape shape_;
  std::string name_;
};

}  // namespace

DatasetPtr checked(DatasetPtr dataset, const DataShape& shape, const std::string& data,
                   const std::string& part) {
  return std::make_shared<CheckedDataset>(std::move(dataset), shape,
                                          fmt::format("the {} data of {}", part, data));
}

}  // namespace lockstep::app
