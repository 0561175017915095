#include "runtime/comm/one_process_communicator.hpp"

#include <algorithm>
#include <utility>

#include "runtime/comm/flat_memory.hpp"
#include "runtime/comm/tree_kernel.hpp"

namespace lockstep {
namespace {

class OneProcessExchange final : public FlatExchange {
 public:
  OneProcessExchange(const FlatLayout& layout, std::vector<int> num_slots)
      : layout_(layout), num_slots_(std::move(num_slots)), memory_(layout) {}

  Slice slice() const override { return {0, layout_.num_elements()}; }
  std::byte* weights() override { return memory_.weights(); }
  std::byte* gradient_slot(int slot) override { return memory_.gradient_slot(slot); }

  void reduce_slice(const TreeProgram& program, std::byte* out) override {
    check_program(program, num_slots_);
    std::vector<const std::byte*> inputs;
    for (int slot = 0; slot < program.num_inputs; ++slot) inputs.push_back(memory_.gradient_slot(slot));
    evaluate_tree(program, layout_.type, inputs, layout_.num_elements(), out);
  }

  void publish_weights() override {}

 private:
  FlatLayout layout_;
  std::vector<int> num_slots_;
  PrivateFlatMemory memory_;
};

}  // namespace

void OneProcessCommunicator::broadcast(std::span<std::byte>, int) {}

void OneProcessCommunicator::all_gather(std::span<const std::byte> mine, std::span<const std::size_t>,
                                        std::span<std::byte> all) {
  std::copy(mine.begin(), mine.end(), all.begin());
}

std::unique_ptr<FlatExchange> OneProcessCommunicator::make_exchange(const FlatLayout& layout) {
  return std::make_unique<OneProcessExchange>(layout, gather_num_slots(*this, layout));
}

}  // namespace lockstep
