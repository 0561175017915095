#include "runtime/train/flat_state.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_sub.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/max.h>
#include <ATen/ops/min.h>
#include <ATen/ops/sub.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <sstream>
#include <utility>

#include "runtime/plan/error.hpp"
#include "runtime/train/copy_for_others.hpp"
#include "runtime/train/device.hpp"
#include "runtime/train/tensor_types.hpp"

namespace lockstep {
namespace {

constexpr std::int64_t boundary_bytes = 64;
constexpr std::int64_t least_block_elements = 1024;
constexpr std::int64_t most_blocks = 2048;

std::int64_t rounded_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

bool is_flat_type(at::ScalarType type) { return type == at::kFloat || type == at::kDouble; }

std::uint32_t version_of(const at::Tensor& tensor) { return static_cast<std::uint32_t>(tensor._version()); }

/// Names, types and shapes: what all ranks must agree on.
std::string signature_of(const std::vector<FlatGroup>& groups, const std::vector<LooseTensor>& loose) {
  std::ostringstream signature;
  for (const FlatGroup& group : groups)
    for (const FlatEntry& entry : group.entries)
      signature << entry.name << ' ' << entry.tensor.scalar_type() << entry.tensor.sizes() << entry.trainable << '\n';
  for (const LooseTensor& item : loose)
    signature << item.name << ' ' << item.tensor.scalar_type() << item.tensor.sizes() << '\n';
  return signature.str();
}

void broadcast_tensor(Communicator& communicator, const at::Tensor& contiguous) {
  communicator.broadcast({static_cast<std::byte*>(contiguous.data_ptr()), contiguous.nbytes()}, 0);
}

}  // namespace

void FlatGroup::publish() {
  const Slice mine = slice();
  if (exchange->is_read_in_place()) copy_for_others(own_weights, weights.narrow(0, mine.begin, mine.size()));
  exchange->publish_weights();
}

Slice FlatGroup::parameter_slice() const {
  const std::int64_t limit = parameter_blocks * layout.block_elements;
  const Slice mine = slice();
  return {std::min(mine.begin, limit), std::min(mine.end, limit)};
}

bool FlatGroup::is_changed(std::size_t entry) const {
  if (!weights.is_cpu()) return true;
  const at::Tensor values = entries[entry].tensor.detach().contiguous();
  return std::memcmp(values.const_data_ptr(), weight_views[entry].const_data_ptr(), values.nbytes()) != 0;
}

at::Tensor FlatGroup::unchanged_elements(std::size_t entry) const {
  const at::ScalarType bits = layout.type == ElementType::float64 ? at::kLong : at::kInt;
  return entries[entry].tensor.detach().view(bits).eq(weight_views[entry].view(bits));
}

FlatState::FlatState(torch::nn::Module& module, Communicator& communicator, int num_slots)
    : device_(device_of(communicator)) {
  std::string signature;
  agree(communicator, [&] {
    collect(module);
    lay_out();
    signature = signature_of(groups_, loose_);
  });
  const std::string of_root = broadcast_text(communicator, signature);
  agree(communicator, [&] {
    if (signature != of_root)
      throw Error(
          ErrorKind::do_not_requeue,
          text("rank ", communicator.rank(),
               " built another model than rank 0 (names, types or shapes "
               "differ, so gradients cannot be added up): build the model from the options alone on every rank"));
  });
  allocate(communicator, num_slots);
}

FlatState::~FlatState() {
  const at::NoGradGuard no_grad;
  const auto for_parameters = [&](const auto& work) {
    for (FlatGroup& group : groups_)
      for (FlatEntry& entry : group.entries)
        if (entry.is_parameter) work(entry.tensor);
  };
  try {
    restore_buffers();
    for_parameters([](at::Tensor& tensor) { tensor.set_data(tensor.detach().clone()); });
  } catch (const std::exception&) {  // a device that has failed, or no memory: nobody may find what goes now
    for_parameters([](at::Tensor& tensor) { tensor.set_data(at::empty({0}, tensor.scalar_type())); });
  }
}

void FlatState::collect(torch::nn::Module& module) {
  std::map<at::ScalarType, std::size_t> group_of_type;
  std::map<const void*, std::string> first_name;
  std::map<std::string, std::vector<std::string>> aliases;
  const auto is_first = [&](const std::string& name, const at::Tensor& tensor) {
    const auto [found, inserted] = first_name.emplace(tensor.unsafeGetTensorImpl(), name);
    if (!inserted) aliases[found->second].push_back(name);
    return inserted;
  };
  const auto group_for = [&](at::ScalarType type) -> FlatGroup& {
    const auto [found, inserted] = group_of_type.emplace(type, groups_.size());
    if (inserted) {
      groups_.emplace_back();
      groups_.back().layout.type = element_type_of(type, "");
    }
    return groups_[found->second];
  };
  const auto add = [&](const std::string& name, const at::Tensor& tensor, bool is_parameter) {
    if (!is_first(name, tensor)) return;
    element_type_of(tensor.scalar_type(), name);
    const bool trainable = is_parameter && tensor.requires_grad();
    if (trainable && !is_flat_type(tensor.scalar_type()))
      throw Error(ErrorKind::do_not_requeue,
                  text("parameter '", name, "' has the type ", c10::toString(tensor.scalar_type()),
                       " (master weights are float32 or float64): keep the model in float32 and choose the precision "
                       "of the computation with --precision, or freeze the parameter"));
    if (is_flat_type(tensor.scalar_type())) {
      group_for(tensor.scalar_type()).entries.push_back({name, {}, tensor, 0, is_parameter, trainable, trainable});
    } else {
      loose_.push_back({name, {}, tensor, is_parameter, 0, {}});
    }
  };
  for (const auto& item : module.named_parameters()) add(item.key(), item.value(), true);
  for (const auto& item : module.named_buffers()) add(item.key(), item.value(), false);
  for (FlatGroup& group : groups_)
    for (FlatEntry& entry : group.entries) entry.aliases = aliases[entry.name];
  for (LooseTensor& item : loose_) item.aliases = aliases[item.name];
}

void FlatState::lay_out() {
  for (FlatGroup& group : groups_) {
    const auto boundary = boundary_bytes / static_cast<std::int64_t>(size_of(group.layout.type));
    std::int64_t total = 0;
    for (const FlatEntry& entry : group.entries) total += rounded_up(entry.tensor.numel(), boundary);
    std::int64_t block = least_block_elements;
    while (block * most_blocks < total) block *= 2;
    std::int64_t end = 0;
    const auto place = [&](bool parameters) {
      for (FlatEntry& entry : group.entries) {
        if (entry.is_parameter != parameters) continue;
        entry.offset = end;
        end += rounded_up(entry.tensor.numel(), boundary);
      }
      end = rounded_up(end, block);
    };
    place(true);
    group.parameter_blocks = end / block;
    place(false);
    group.layout.block_elements = block;
    group.layout.num_blocks = end / block;
  }
}

void FlatState::allocate(Communicator& communicator, int num_slots) {
  const at::NoGradGuard no_grad;
  for (FlatGroup& group : groups_) {
    const at::ScalarType type = scalar_type_of(group.layout.type);
    group.layout.num_slots = num_slots;
    group.exchange = communicator.make_exchange(group.layout);
    group.weights = view_of(group.exchange->weights(), {group.layout.num_elements()}, type, device_);
    const auto views_into = [&](std::byte* base) {
      std::vector<at::Tensor> views;
      for (const FlatEntry& entry : group.entries) {
        std::byte* first = base + static_cast<std::size_t>(entry.offset) * size_of(group.layout.type);
        views.push_back(view_of(first, entry.tensor.sizes(), type, device_));
      }
      return views;
    };
    const Slice mine = group.slice();
    group.own_weights = group.weights.narrow(0, mine.begin, mine.size());
    if (group.exchange->is_read_in_place()) group.own_weights = at::empty_like(group.own_weights);
    group.weight_views = views_into(group.exchange->weights());
    for (int slot = 0; slot < num_slots; ++slot) {
      group.slots.push_back(
          view_of(group.exchange->gradient_slot(slot), {group.layout.num_elements()}, type, device_));
      group.slot_views.push_back(views_into(group.exchange->gradient_slot(slot)));
    }
    // Rank 0's values, put together once; each rank writes its slice and the exchange makes it everybody's.
    at::Tensor values = at::zeros({group.layout.num_elements()}, type);
    for (const FlatEntry& entry : group.entries)
      values.narrow(0, entry.offset, entry.tensor.numel()).view(entry.tensor.sizes()).copy_(entry.tensor.detach());
    broadcast_tensor(communicator, values);
    group.own_weights.copy_(values.narrow(0, mine.begin, mine.size()));
    group.publish();
  }
  for (LooseTensor& item : loose_) {
    at::Tensor values = item.tensor.detach().cpu().contiguous();
    broadcast_tensor(communicator, values);
    item.tensor.detach().copy_(values);
  }
  // Last: when something above throws, the module still owns its tensors.
  for (FlatGroup& group : groups_)
    for (std::size_t i = 0; i < group.entries.size(); ++i) {
      FlatEntry& entry = group.entries[i];
      entry.tensor.set_data(entry.is_parameter ? group.weight_views[i] : entry.tensor.detach().to(device_));
    }
  for (LooseTensor& item : loose_) {
    const bool is_scalar_integer = item.tensor.dim() == 0 && at::isIntegralType(item.tensor.scalar_type(), true);
    item.tensor.set_data(item.tensor.detach().to(is_scalar_integer ? c10::Device(at::kCPU) : device_));
  }
  refresh();
}

void FlatState::refresh() {
  const at::NoGradGuard no_grad;
  for (FlatGroup& group : groups_) {
    for (std::size_t i = 0; i < group.entries.size(); ++i) {
      FlatEntry& entry = group.entries[i];
      if (entry.is_parameter) continue;
      entry.tensor.copy_(group.weight_views[i]);
    }
  }
  for (LooseTensor& item : loose_) {
    if (item.committed.defined() && version_of(item.tensor) == item.version) continue;
    item.committed = item.tensor.detach().cpu().clone(at::MemoryFormat::Contiguous);
    item.version = version_of(item.tensor);
  }
}

bool FlatState::overlaps() const {
  return std::any_of(groups_.begin(), groups_.end(),
                     [](const FlatGroup& group) { return group.exchange->overlaps(); });
}

void FlatState::restore_buffers() {
  const at::NoGradGuard no_grad;
  for (FlatGroup& group : groups_) {
    std::vector<at::Tensor> changed, before;
    for (std::size_t i = 0; i < group.entries.size(); ++i) {
      FlatEntry& entry = group.entries[i];
      if (entry.is_parameter) {
        entry.tensor.mutable_grad().reset();
      } else if (group.is_changed(i)) {
        changed.push_back(entry.tensor);
        before.push_back(group.weight_views[i]);
      }
    }
    if (!changed.empty()) at::_foreach_copy_(changed, before);
  }
  for (LooseTensor& item : loose_) {
    if (version_of(item.tensor) == item.version) continue;
    item.tensor.copy_(item.committed);
    item.version = version_of(item.tensor);
  }
}

void FlatState::deposit_gradient(std::size_t group_index, std::size_t index, const TreeAccumulator::Deposit& where) {
  FlatGroup& group = groups_[group_index];
  const at::Tensor& into = group.slot_views[static_cast<std::size_t>(where.slot)][index];
  at::Tensor& gradient = group.entries[index].tensor.mutable_grad();
  if (!gradient.defined()) {
    if (!where.add) into.zero_();
    return;
  }
  const at::Tensor values = gradient.is_sparse() ? gradient.to_dense() : gradient;
  if (where.add) {
    into.add_(values);
  } else if (group.exchange->is_read_in_place() && values.is_contiguous() && values.dtype() == into.dtype()) {
    const Slice mine = group.slice();
    const std::int64_t offset = group.entries[index].offset;
    copy_for_others(values, into, {mine.begin - offset, mine.end - offset});
  } else {
    into.copy_(values);
  }
  gradient.reset();
}

void FlatState::deposit_buffers(const TreeAccumulator::Deposit& where, double buffer_weight) {
  for (FlatGroup& group : groups_) {
    // A buffer brings what the forward pass added to it, so that one that did not change keeps its bits.
    std::vector<at::Tensor> buffers, before, unchanged, into;
    for (std::size_t i = 0; i < group.entries.size(); ++i) {
      if (group.entries[i].is_parameter) continue;
      const at::Tensor& slot = group.slot_views[static_cast<std::size_t>(where.slot)][i];
      if (!group.is_changed(i)) {
        if (!where.add) slot.zero_();
        continue;
      }
      buffers.push_back(group.entries[i].tensor.detach());
      before.push_back(group.weight_views[i]);
      unchanged.push_back(group.unchanged_elements(i));
      into.push_back(slot);
    }
    if (buffers.empty()) continue;
    const std::vector<at::Tensor> changes = at::_foreach_sub(buffers, before);
    // A mask's minus infinity less itself is no number.
    for (std::size_t i = 0; i < changes.size(); ++i) changes[i].masked_fill_(unchanged[i], 0);
    if (buffer_weight != 1.0) at::_foreach_mul_(changes, buffer_weight);
    where.add ? at::_foreach_add_(into, changes) : at::_foreach_copy_(into, changes);
  }
}

void FlatState::merge(std::size_t group, Slice range, const TreeAccumulator::Deposit& where) {
  for (const int slot : where.merge) {
    const auto left = static_cast<std::size_t>(slot);
    const std::vector<at::Tensor>& slots = groups_[group].slots;
    slots[left].narrow(0, range.begin, range.size()).add_(slots[left + 1].narrow(0, range.begin, range.size()));
  }
}

std::vector<double> FlatState::counts() const {
  std::vector<double> counts;
  for (const LooseTensor& item : loose_) {
    counts.push_back(0.0);
    if (version_of(item.tensor) == item.version) continue;
    const at::Tensor values = item.tensor.detach().cpu();
    if (at::equal(values, item.committed)) continue;
    const bool is_counter = !item.is_parameter && at::isIntegralType(values.scalar_type(), false);
    const at::Tensor change = is_counter ? values - item.committed : at::Tensor();
    if (!is_counter || change.min().item<double>() != change.max().item<double>() ||
        change.max().item<double>() != 1.0)
      throw Error(
          ErrorKind::do_not_requeue,
          text("buffer '", item.name, "' (", c10::toString(item.tensor.scalar_type()),
               ") changed during the forward pass in a way that has no meaning over several micro-batches "
               "(floating buffers are averaged, integer ones may count up by one): keep such state outside of "
               "the module, or make it a floating buffer"));
    counts.back() = 1.0;
  }
  return counts;
}

void FlatState::publish(const std::vector<double>& counts) {
  const at::NoGradGuard no_grad;
  for (FlatGroup& group : groups_) group.publish();
  advance_counters(counts, 1);
}

void FlatState::take_back(const std::vector<double>& counts) {
  const at::NoGradGuard no_grad;
  advance_counters(counts, -1);
}

void FlatState::advance_counters(const std::vector<double>& counts, int by) {
  restore_buffers();
  for (std::size_t i = 0; i < loose_.size(); ++i)
    if (counts[i] != 0.0) loose_[i].tensor.add_(by);
  refresh();
}

}  // namespace lockstep
