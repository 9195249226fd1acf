#include "torch/step/tensor_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <lockstep/checkpoint.h>
#include <lockstep/errors.h>

#include <cstdint>
#include <cstring>

#include "base/diagnosis.h"
#include "control/gather_text.h"
#include "torch/replica/model.h"
#include "torch/replica/tensors.h"
#include "torch/step/model_step.h"

namespace lockstep::steps {
namespace {

struct DtypePair {
  c10::ScalarType ours;
  formats::Dtype theirs;
};
constexpr DtypePair kDtypes[] = {
    {c10::ScalarType::Double, formats::Dtype::kF64},
    {c10::ScalarType::Float, formats::Dtype::kF32},
    {c10::ScalarType::Half, formats::Dtype::kF16},
    {c10::ScalarType::BFloat16, formats::Dtype::kBF16},
    {c10::ScalarType::Long, formats::Dtype::kI64},
    {c10::ScalarType::Int, formats::Dtype::kI32},
    {c10::ScalarType::Short, formats::Dtype::kI16},
    {c10::ScalarType::Char, formats::Dtype::kI8},
    {c10::ScalarType::Byte, formats::Dtype::kU8},
    {c10::ScalarType::Bool, formats::Dtype::kBool},
};

formats::Dtype file_dtype(const NamedTensor& named) {
  for (const auto& pair : kDtypes) {
    if (pair.ours == named.tensor.scalar_type()) return pair.theirs;
  }
  throw BadInput(fmt::format("{} is {}, a type that safetensors files cannot hold", named.name,
                             replica::describe(named.tensor)));
}

std::string described(formats::Dtype dtype, const std::vector<std::int64_t>& shape) {
  return fmt::format("{} [{}]", formats::name_of(dtype), fmt::join(shape, ", "));
}

const formats::TensorView& fitting(const formats::SafetensorsFile& file, const NamedTensor& named) {
  const formats::TensorView* view = file.find(named.name);
  if (view == nullptr) {
    throw Mismatch(
        fmt::format("{} has no tensor {}: it is of another model", file.path(), named.name));
  }
  const std::string there = described(view->dtype, view->shape);
  const std::string here = described(file_dtype(named), named.tensor.sizes().vec());
  if (there != here) {
    throw Mismatch(fmt::format("{} in {} is {} and the model's is {}: it is of another model",
                               named.name, file.path(), there, here));
  }
  return *view;
}

std::string kind_digit(ErrorKind kind) {
  return std::string(1, static_cast<char>('0' + static_cast<int>(kind)));
}

// Whether no number has all bits of the exponent, as infinities and NaN have. Not LibTorch's isfinite(): that makes three
// more tensors, and its threads would take the cores of those that train.
template <typename Bits>
bool all_below(const void* data, std::size_t count, Bits exponent) {
  const auto* const numbers = static_cast<const Bits*>(data);
  Bits found = 0;
  for (std::size_t i = 0; i < count; ++i) found |= (numbers[i] & exponent) == exponent ? 1 : 0;
  return found == 0;
}

}  // namespace

void write_tensors(const std::string& path, const std::vector<NamedTensor>& tensors,
                   const formats::Metadata& metadata, const std::function<void()>& began) {
  std::vector<torch::Tensor> hosts;  // keep copies alive while they are written
  std::vector<formats::TensorView> views;
  for (const NamedTensor& named : tensors) {
    hosts.push_back(replica::host_contiguous(named.tensor));
    views.push_back(
        {named.name,
         file_dtype(named),
         named.tensor.sizes().vec(),
         {static_cast<const std::byte*>(hosts.back().data_ptr()), hosts.back().nbytes()}});
  }
  formats::save_safetensors(path, views, metadata, began);
}

void copy_tensors(const std::vector<NamedTensor>& tensors, std::vector<NamedTensor>& copies) {
  const torch::NoGradGuard no_grad;
  copies.resize(tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const torch::Tensor& from = tensors[i].tensor;
    torch::Tensor& copy = copies[i].tensor;
    const bool fits =
        copy.defined() && copy.sizes() == from.sizes() && copy.scalar_type() == from.scalar_type();
    if (!fits) copy = torch::empty(from.sizes(), from.scalar_type());
    copy.copy_(from);
    copies[i].name = tensors[i].name;
  }
}

bool all_finite(const torch::Tensor& tensor) {
  const void* const data = tensor.data_ptr();
  const auto count = static_cast<std::size_t>(tensor.numel());
  switch (tensor.scalar_type()) {
    case c10::ScalarType::Float:
      return all_below<std::uint32_t>(data, count, 0x7f80'0000);
    case c10::ScalarType::Double:
      return all_below<std::uint64_t>(data, count, 0x7ff0'0000'0000'0000);
    case c10::ScalarType::Half:
      return all_below<std::uint16_t>(data, count, 0x7c00);
    case c10::ScalarType::BFloat16:
      return all_below<std::uint16_t>(data, count, 0x7f80);
    default:
      return true;
  }
}

void read_tensors(const formats::SafetensorsFile& file, const std::vector<NamedTensor>& tensors) {
  for (const NamedTensor& named : tensors) fitting(file, named);
  torch::NoGradGuard no_grad;
  for (const NamedTensor& named : tensors) {
    const formats::TensorView& view = fitting(file, named);
    torch::Tensor host = torch::empty(named.tensor.sizes(), named.tensor.scalar_type());
    if (!view.bytes.empty()) std::memcpy(host.data_ptr(), view.bytes.data(), view.bytes.size());
    named.tensor.detach().copy_(host);
  }
}

// The first character says what follows: '+' the text, a digit the kind of the error.
std::string from_leader(Comm& comm, const std::function<std::string()>& read) {
  std::string said;
  if (comm.rank() == 0) {
    try {
      said = "+" + read();
    } catch (const Error& error) {
      said = kind_digit(error.kind()) + error.what();
    } catch (const c10::Error& error) {
      said = kind_digit(ErrorKind::kUnavailable) + error.what_without_backtrace();
    } catch (const std::exception& error) {
      said = kind_digit(ErrorKind::kUnavailable) + base::diagnosis(error);
    }
  }
  said = control::gather_text(comm, said).front();
  if (said.front() != '+') raise(static_cast<ErrorKind>(said.front() - '0'), said.substr(1));
  return said.substr(1);
}

}  // namespace lockstep::steps

// The files of a model alone.
namespace lockstep {

void save(const Replica& model, const std::string& path) {
  steps::write_tensors(path, steps::ModelView(model).everything(), {});
}

void save(const torch::nn::Module& module, const std::string& path) {
  const auto model = replica::sort_all(replica::parameters_of(module), replica::buffers_of(module));
  steps::write_tensors(path, model.everything(), {});
}

void load(Replica& model, const std::string& path) {
  steps::ModelView view(model);
  Comm& comm = view.comm();
  const auto tensors = view.everything();
  comm.barrier().wait();  // all workers have come
  steps::from_leader(comm, [&]() -> std::string {
    const auto file = formats::SafetensorsFile::open(path);
    file.verify();
    steps::read_tensors(file, tensors);
    return "";
  });
  replica::copy_from(comm, 0, tensors);
  view.share_values();
}

void load(torch::nn::Module& module, const std::string& path) {
  const auto model = replica::sort_all(replica::parameters_of(module), replica::buffers_of(module));
  const auto file = formats::SafetensorsFile::open(path);
  file.verify();
  steps::read_tensors(file, model.everything());
}

}  // namespace lockstep
