#include "runtime/cuda/tree_kernel.hpp"

#include <algorithm>
#include <cstdint>
#include <stdexcept>

#include "runtime/cuda/cuda_error.hpp"
#include "runtime/plan/error.hpp"

namespace lockstep {
namespace {

constexpr int few_inputs = 64;       // the usual case: a launch of a kilobyte
constexpr int most_inputs = 2048;    // a launch carries up to 32,764 bytes
constexpr int max_temporaries = 32;  // as many as the tree has levels
constexpr int block_threads = 256;
constexpr int blocks_a_processor = 8;

struct KernelAddition {
  std::uint16_t target;  // a temporary
  std::uint16_t left;    // an input, or num_inputs + a temporary
  std::uint16_t right;
};

template <int capacity>
struct KernelProgram {
  const void* inputs[capacity];
  KernelAddition additions[capacity];
  int num_inputs;
  int num_additions;
};

template <class T, int capacity>
__global__ void __launch_bounds__(block_threads)
    run_program(const __grid_constant__ KernelProgram<capacity> program, std::int64_t num_elements, T* out) {
  T temporaries[max_temporaries];
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  for (std::int64_t i = first; i < num_elements; i += stride) {
    const auto value = [&](int index) {
      return index < program.num_inputs ? static_cast<const T*>(program.inputs[index])[i]
                                        : temporaries[index - program.num_inputs];
    };
    T sum = 0;
    for (int a = 0; a < program.num_additions; ++a) {
      const KernelAddition addition = program.additions[a];
      sum = value(addition.left) + value(addition.right);
      temporaries[addition.target] = sum;
    }
    out[i] = sum;  // the last addition is the root
  }
}

int num_blocks_for(std::int64_t num_elements) {
  int device = 0;
  int num_processors = 0;
  check_cuda(cudaGetDevice(&device), "cudaGetDevice");
  check_cuda(cudaDeviceGetAttribute(&num_processors, cudaDevAttrMultiProcessorCount, device),
             "cudaDeviceGetAttribute");
  const std::int64_t wanted = (num_elements + block_threads - 1) / block_threads;
  return static_cast<int>(std::min<std::int64_t>(wanted, std::int64_t{num_processors} * blocks_a_processor));
}

template <class T, int capacity>
void launch(const TreeProgram& program, std::span<const std::byte* const> inputs, std::int64_t num_elements,
            std::byte* out, cudaStream_t stream) {
  KernelProgram<capacity> carried;
  carried.num_inputs = program.num_inputs;
  carried.num_additions = static_cast<int>(program.additions.size());
  std::copy(inputs.begin(), inputs.end(), carried.inputs);
  std::transform(
      program.additions.begin(), program.additions.end(), carried.additions, [&](const TreeAddition& addition) {
        return KernelAddition{static_cast<std::uint16_t>(addition.target - program.num_inputs),
                              static_cast<std::uint16_t>(addition.left), static_cast<std::uint16_t>(addition.right)};
      });
  run_program<T, capacity>
      <<<num_blocks_for(num_elements), block_threads, 0, stream>>>(carried, num_elements, reinterpret_cast<T*>(out));
  check_cuda(cudaGetLastError(), "the kernel of the gradient tree");
}

template <class T>
void launch(const TreeProgram& program, std::span<const std::byte* const> inputs, std::int64_t num_elements,
            std::byte* out, cudaStream_t stream) {
  if (program.num_inputs <= few_inputs) {
    launch<T, few_inputs>(program, inputs, num_elements, out, stream);
  } else {
    launch<T, most_inputs>(program, inputs, num_elements, out, stream);
  }
}

}  // namespace

void launch_tree(const TreeProgram& program, ElementType type, std::span<const std::byte* const> inputs,
                 std::int64_t num_elements, std::byte* out, cudaStream_t stream) {
  if (inputs.size() != static_cast<std::size_t>(program.num_inputs)) {
    throw std::logic_error("a tree program was given another number of inputs than it has");
  }
  if (program.num_inputs > most_inputs) {
    throw Error(ErrorKind::usage,
                text("the gradients of a step come in ", program.num_inputs, " parts, but a device adds up at most ",
                     most_inputs,
                     " in exact order: choose a --global-batch-size and --micro-batch-size that give "
                     "each rank a power of two of micro-batches, use fewer ranks, or use --reduction fast"));
  }
  if (program.num_values - program.num_inputs > max_temporaries) {
    throw std::logic_error("a tree program has more temporaries than a tree of its size can need");
  }
  const std::size_t num_bytes = static_cast<std::size_t>(num_elements) * size_of(type);
  if (num_bytes == 0) return;
  if (program.num_inputs == 0) {
    check_cuda(cudaMemsetAsync(out, 0, num_bytes, stream), "cudaMemsetAsync");
  } else if (program.additions.empty()) {
    check_cuda(cudaMemcpyAsync(out, inputs[static_cast<std::size_t>(program.root)], num_bytes,
                               cudaMemcpyDeviceToDevice, stream),
               "cudaMemcpyAsync");
  } else if (type == ElementType::float32) {
    launch<float>(program, inputs, num_elements, out, stream);
  } else if (type == ElementType::float64) {
    launch<double>(program, inputs, num_elements, out, stream);
  } else {
    throw std::logic_error("gradients are summed in float32 or float64 only");
  }
}

}  // namespace lockstep
