#include "runtime/train/subnormals.hpp"

#include <cmath>
#include <cstdint>
#include <limits>

namespace lockstep {
namespace {

template <class T>
[[gnu::always_inline]] inline void clear(T* values, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i)
    values[i] = std::abs(values[i]) < std::numeric_limits<T>::min() ? T{0} : values[i];
}

[[gnu::target_clones("avx2", "default")]] void clear_all(float* values, std::int64_t count) { clear(values, count); }

[[gnu::target_clones("avx2", "default")]] void clear_all(double* values, std::int64_t count) { clear(values, count); }

}  // namespace

void clear_subnormals(const at::Tensor& tensor) {
  if (tensor.scalar_type() == at::kFloat)
    clear_all(tensor.data_ptr<float>(), tensor.numel());
  else
    clear_all(tensor.data_ptr<double>(), tensor.numel());
}

}  // namespace lockstep
