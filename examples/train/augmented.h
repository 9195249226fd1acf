// Random crops and flips in front of any data set of pictures. What it draws belongs to the sample: the same crop on any
// number of workers and loader threads, and another one in every epoch.
#pragma once

#include <lockstep/dataset.h>

class Augmented : public lockstep::Dataset {
 public:
  explicit Augmented(lockstep::DatasetPtr pictures) : pictures_(std::move(pictures)) {}
  std::int64_t size() const override { return pictures_->size(); }

  lockstep::Batch batch(std::span<const lockstep::Sample> samples) const override {
    auto batch = pictures_->batch(samples);
    for (std::size_t i = 0; i < samples.size(); ++i) {
      auto picture = batch.data[static_cast<std::int64_t>(i)];  // [channels, height, width]
      picture.copy_(cropped(picture, samples[i].generator()));
    }
    return batch;
  }

 private:
  // Up to two pixels away from its place, and mirrored half of the time.
  static torch::Tensor cropped(const torch::Tensor& picture, at::Generator generator) {
    const auto number = [&](std::int64_t below) {
      return torch::randint(below, {1}, generator, torch::kInt64).item<std::int64_t>();
    };
    const auto wide = torch::constant_pad_nd(picture, {2, 2, 2, 2});
    const auto crop =
        wide.narrow(1, number(5), picture.size(1)).narrow(2, number(5), picture.size(2));
    return number(2) == 1 ? crop.flip(2) : crop;
  }

  lockstep::DatasetPtr pictures_;
};
