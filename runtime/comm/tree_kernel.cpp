#include "runtime/comm/tree_kernel.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <vector>

namespace lockstep {
namespace {

constexpr std::int64_t block_elements = 1024;

template <class T>
void add(const T* left, const T* right, T* sum, std::int64_t num_elements) {
#pragma GCC ivdep  // `sum` is one of the operands or does not overlap them
  for (std::int64_t i = 0; i < num_elements; ++i) sum[i] = left[i] + right[i];
}

template <class T>
void evaluate(const TreeProgram& program, std::span<const std::byte* const> inputs, std::int64_t num_elements,
              T* out) {
  const auto num_inputs = static_cast<std::size_t>(program.num_inputs);
  const auto num_temporaries = static_cast<std::size_t>(program.num_values) - num_inputs;
  std::vector<T> temporaries(num_temporaries * block_elements);

  // Where the values of a block lie; the root's last addition goes to `out` itself.
  std::vector<const T*> values(static_cast<std::size_t>(program.num_values));
  for (std::int64_t begin = 0; begin < num_elements; begin += block_elements) {
    const std::int64_t size = std::min(block_elements, num_elements - begin);
    for (std::size_t i = 0; i < num_inputs; ++i) values[i] = reinterpret_cast<const T*>(inputs[i]) + begin;
    for (std::size_t i = 0; i < program.additions.size(); ++i) {
      const TreeAddition& addition = program.additions[i];
      const auto target = static_cast<std::size_t>(addition.target);
      T* const sum = i + 1 == program.additions.size() ? out + begin
                                                       : temporaries.data() + (target - num_inputs) * block_elements;
      add(values[static_cast<std::size_t>(addition.left)], values[static_cast<std::size_t>(addition.right)], sum,
          size);
      values[target] = sum;
    }
  }
}

}  // namespace

void evaluate_tree(const TreeProgram& program, ElementType type, std::span<const std::byte* const> inputs,
                   std::int64_t num_elements, std::byte* out) {
  if (inputs.size() != static_cast<std::size_t>(program.num_inputs)) {
    throw std::logic_error("a tree program was given another number of inputs than it has");
  }
  const std::size_t num_bytes = static_cast<std::size_t>(num_elements) * size_of(type);
  if (num_bytes == 0) return;
  if (program.num_inputs == 0) {
    std::memset(out, 0, num_bytes);
  } else if (program.additions.empty()) {
    std::memmove(out, inputs[static_cast<std::size_t>(program.root)], num_bytes);
  } else if (type == ElementType::float32) {
    evaluate(program, inputs, num_elements, reinterpret_cast<float*>(out));
  } else if (type == ElementType::float64) {
    evaluate(program, inputs, num_elements, reinterpret_cast<double*>(out));
  } else {
    throw std::logic_error("gradients are summed in float32 or float64 only");
  }
}

}  // namespace lockstep
