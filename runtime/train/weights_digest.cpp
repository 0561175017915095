#include "runtime/train/weights_digest.hpp"

#include <xxhash.h>

#include <array>
#include <cstdio>
#include <map>
#include <memory>

namespace lockstep {
namespace {

std::map<std::string, at::Tensor> tensors_of(const torch::nn::Module& module) {
  std::map<std::string, at::Tensor> tensors;
  for (const auto& item : module.named_parameters()) tensors.emplace(item.key(), item.value());
  for (const auto& item : module.named_buffers()) tensors.emplace(item.key(), item.value());
  return tensors;
}

}  // namespace

std::string weights_digest(const torch::nn::Module& module) {
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state(XXH3_createState(), &XXH3_freeState);
  XXH3_128bits_reset(state.get());
  for (const auto& [name, tensor] : tensors_of(module)) {
    const at::Tensor values = tensor.detach().cpu().contiguous();
    XXH3_128bits_update(state.get(), name.c_str(), name.size() + 1);
    const std::string type = c10::toString(values.scalar_type());
    XXH3_128bits_update(state.get(), type.c_str(), type.size() + 1);
    XXH3_128bits_update(state.get(), values.sizes().data(), values.sizes().size() * sizeof(std::int64_t));
    XXH3_128bits_update(state.get(), values.data_ptr(), values.nbytes());
  }
  const XXH128_hash_t digest = XXH3_128bits_digest(state.get());
  std::array<char, 33> digits{};
  std::snprintf(digits.data(), digits.size(), "%016llx%016llx", static_cast<unsigned long long>(digest.high64),
                static_cast<unsigned long long>(digest.low64));
  return digits.data();
}

}  // namespace lockstep
