#include "runtime/train/state_snapshot.hpp"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <map>
#include <set>
#include <sstream>
#include <utility>

#include "runtime/plan/shape_text.hpp"
#include "runtime/train/tensor_types.hpp"

namespace lockstep {
namespace {

constexpr std::int64_t loose_block_elements = 1 << 16;

using TensorKey = std::pair<std::string, std::string>;  // section, name

TensorInfo info_of(std::string section, const std::string& name, const at::Tensor& tensor) {
  return {std::move(section), name, element_type_of(tensor.scalar_type(), name), tensor.sizes().vec()};
}

/// The part of an entry that lies in this rank's slice. `of_slice` is where the slice's first element lies.
TensorPart flat_part(const FlatGroup& group, const FlatEntry& entry, std::string section, std::byte* of_slice) {
  const Slice slice = group.slice();
  const std::int64_t numel = entry.tensor.numel();
  TensorPart part;
  part.info = info_of(std::move(section), entry.name, entry.tensor);
  part.begin = std::clamp<std::int64_t>(slice.begin - entry.offset, 0, numel);
  part.end = std::clamp<std::int64_t>(slice.end - entry.offset, part.begin, numel);
  const std::int64_t in_slice = entry.offset + part.begin - slice.begin;
  if (part.begin < part.end) part.data = of_slice + static_cast<std::size_t>(in_slice) * size_of(group.layout.type);
  part.block_elements = group.layout.block_elements;
  part.block_phase =
      (group.layout.block_elements - entry.offset % group.layout.block_elements) % group.layout.block_elements;
  return part;
}

std::byte* first_of(const at::Tensor& slice) { return static_cast<std::byte*>(slice.data_ptr()); }

/// A tensor that is whole on every rank: its blocks are dealt, so that no rank writes all of them.
TensorPart loose_part(const LooseTensor& item, const Communicator& communicator) {
  TensorPart part;
  part.info = info_of(item.is_parameter ? "weights" : "buffers", item.name, item.tensor);
  part.block_elements = loose_block_elements;
  const std::int64_t numel = item.tensor.numel();
  const std::int64_t blocks = (numel + loose_block_elements - 1) / loose_block_elements;
  const LeafRange mine = share_of(blocks, communicator.num_ranks(), communicator.rank());
  part.begin = std::min(mine.begin * loose_block_elements, numel);
  part.end = std::min(mine.end * loose_block_elements, numel);
  part.data = static_cast<std::byte*>(item.committed.data_ptr()) +
              static_cast<std::size_t>(part.begin) * size_of(part.info.type);
  return part;
}

std::string type_text(const TensorInfo& info) { return std::string(name_of(info.type)) + shape_text(info.shape); }

/// Every difference between what is wanted and what is stored, one a line.
struct Differences {
  std::vector<std::string> missing;
  std::vector<std::string> unexpected;
  std::vector<std::string> changed;

  /// `advice` says what to do.
  std::string text_of(const std::string& path, const char* advice) const {
    constexpr std::size_t most = 20;
    std::ostringstream out;
    out << path << " holds another model (its tensors are not those of the model built here):";
    std::size_t shown = 0;
    const auto list = [&](const char* what, const std::vector<std::string>& names) {
      for (const std::string& name : names)
        if (shown++ < most) out << "\n  " << what << ' ' << name;
    };
    list("not in the checkpoint:", missing);
    list("not in the model:", unexpected);
    list("differs:", changed);
    if (shown > most) out << "\n  and " << shown - most << " more";
    out << '\n' << advice;
    return out.str();
  }
};

Differences compare(const std::vector<TensorInfo>& wanted, const std::vector<TensorInfo>& stored) {
  std::map<TensorKey, const TensorInfo*> by_key;
  for (const TensorInfo& info : stored) by_key.emplace(TensorKey{info.section, info.name}, &info);
  Differences differences;
  for (const TensorInfo& info : wanted) {
    const auto found = by_key.find({info.section, info.name});
    const std::string title = info.section + " '" + info.name + "'";
    if (found == by_key.end()) {
      differences.missing.push_back(title + " " + type_text(info));
      continue;
    }
    if (found->second->type != info.type || found->second->shape != info.shape)
      differences.changed.push_back(title + ": " + type_text(*found->second) + " stored, " + type_text(info) +
                                    " here");
    by_key.erase(found);
  }
  for (const auto& [key, info] : by_key)
    differences.unexpected.push_back(key.first + " '" + key.second + "' " + type_text(*info));
  return differences;
}

}  // namespace

std::vector<TensorPart> state_parts(FlatState& state, const ShardedOptimizer& optimizer, HostSlices& slices,
                                    const Communicator& communicator) {
  std::vector<TensorPart> parts;
  for (const bool parameters : {true, false}) {
    const std::string section = parameters ? "weights" : "buffers";
    for (std::size_t g = 0; g < state.groups().size(); ++g)
      for (const FlatEntry& entry : state.groups()[g].entries)
        if (entry.is_parameter == parameters)
          parts.push_back(flat_part(state.groups()[g], entry, section, first_of(slices.weights(g))));
    for (const LooseTensor& item : state.loose())
      if (item.is_parameter == parameters) parts.push_back(loose_part(item, communicator));
  }
  for (std::size_t m = 0; m < optimizer.moment_names().size(); ++m)
    for (std::size_t g = 0; g < state.groups().size(); ++g)
      for (const FlatEntry& entry : state.groups()[g].entries)
        if (entry.has_moments)
          parts.push_back(flat_part(state.groups()[g], entry, "optimizer/" + optimizer.moment_names()[m],
                                    first_of(slices.moment(g, m))));
  return parts;
}

std::vector<TensorAlias> state_aliases(const FlatState& state) {
  std::vector<TensorAlias> aliases;
  for (const FlatGroup& group : state.groups())
    for (const FlatEntry& entry : group.entries)
      for (const std::string& alias : entry.aliases)
        aliases.push_back({entry.is_parameter ? "weights" : "buffers", alias, entry.name});
  for (const LooseTensor& item : state.loose())
    for (const std::string& alias : item.aliases)
      aliases.push_back({item.is_parameter ? "weights" : "buffers", alias, item.name});
  return aliases;
}

void store_updates(const FlatState& state, std::int64_t steps_applied, AttributeGroup& group) {
  std::vector<std::string> names;
  std::vector<std::int64_t> updates;
  for (const FlatGroup& flat : state.groups())
    for (const FlatEntry& entry : flat.entries)
      if (entry.has_moments && entry.updates != steps_applied) {
        names.push_back(entry.name);
        updates.push_back(entry.updates);
      }
  group["updates"] = steps_applied;
  if (names.empty()) return;
  group["parameters_with_other_updates"] = names;
  group["their_updates"] = updates;
}

void restore_state(CheckpointReader& reader, FlatState& state, ShardedOptimizer& optimizer, HostSlices& slices,
                   Communicator& communicator) {
  const AttributeTree& stored = reader.attributes();
  const auto& stored_kind = attribute<std::string>(stored, "optimizer", "kind");
  if (stored_kind != name_of(optimizer.options().kind))
    throw Error(ErrorKind::usage, text(reader.path(), " was trained with the optimizer ", stored_kind,
                                       ", the options say ", name_of(optimizer.options().kind),
                                       " (its moments have no meaning for another one): use --optimizer ",
                                       stored_kind, ", or start anew from the weights with --finetune-from"));

  // A parameter that is frozen now keeps the moments it has; one that was frozen then starts without.
  std::set<TensorKey> keys;
  for (const TensorInfo& info : reader.tensors()) keys.insert({info.section, info.name});
  for (FlatGroup& group : state.groups())
    for (FlatEntry& entry : group.entries)
      if (entry.is_parameter && !optimizer.moment_names().empty())
        entry.has_moments = keys.count({"optimizer/" + optimizer.moment_names().front(), entry.name}) != 0;

  slices.start_fetch();  // what no part covers keeps its value
  slices.wait_for_fetch()();
  std::vector<TensorPart> parts = state_parts(state, optimizer, slices, communicator);
  std::vector<TensorInfo> wanted;
  for (const TensorPart& part : parts) wanted.push_back(part.info);
  const Differences differences = compare(wanted, reader.tensors());
  if (!differences.missing.empty() || !differences.unexpected.empty() || !differences.changed.empty())
    throw Error(ErrorKind::usage,
                differences.text_of(reader.path(),
                                    "Build the model that the checkpoint was trained with, or choose another "
                                    "--checkpoint-dir, or start anew from its weights with --finetune-from"));

  // Loose tensors are whole on every rank.
  std::map<TensorKey, LooseTensor*> loose;
  for (LooseTensor& item : state.loose()) loose[{item.is_parameter ? "weights" : "buffers", item.name}] = &item;
  for (TensorPart& part : parts) {
    const auto found = loose.find({part.info.section, part.info.name});
    if (found == loose.end()) continue;
    part.begin = 0;
    part.end = part.info.num_elements();
    part.data = static_cast<std::byte*>(found->second->committed.data_ptr());
  }
  reader.read(parts);
  slices.store();

  const at::NoGradGuard no_grad;
  for (LooseTensor& item : state.loose()) item.tensor.copy_(item.committed);
  for (FlatGroup& group : state.groups()) group.publish();
  state.refresh();

  const auto updates = attribute<std::int64_t>(stored, "optimizer", "updates");
  std::map<std::string, std::int64_t> exceptions;
  if (has_attribute(stored, "optimizer", "their_updates")) {
    const auto& names = attribute<std::vector<std::string>>(stored, "optimizer", "parameters_with_other_updates");
    const auto& numbers = attribute<std::vector<std::int64_t>>(stored, "optimizer", "their_updates");
    for (std::size_t i = 0; i < std::min(names.size(), numbers.size()); ++i) exceptions[names[i]] = numbers[i];
  }
  for (FlatGroup& group : state.groups())
    for (FlatEntry& entry : group.entries) {
      if (!entry.is_parameter) continue;
      const auto exception = exceptions.find(entry.name);
      entry.updates = !entry.has_moments ? 0 : exception != exceptions.end() ? exception->second : updates;
      entry.has_moments = entry.has_moments || entry.trainable;
    }
}

std::vector<std::string> load_weights(CheckpointReader& reader, torch::nn::Module& module,
                                      const WeightsMatch& match) {
  std::vector<std::pair<at::Tensor, at::Tensor>> targets;  // the module's tensor, what is read
  std::vector<TensorPart> parts;
  std::set<const void*> seen;
  const auto want = [&](const std::string& section, const std::string& name, const at::Tensor& tensor) {
    if (!seen.insert(tensor.unsafeGetTensorImpl()).second) return;
    at::Tensor values = tensor.detach().cpu().clone(at::MemoryFormat::Contiguous);
    TensorPart part;
    part.info = info_of(section, name, tensor);
    part.end = tensor.numel();
    part.data = static_cast<std::byte*>(values.data_ptr());
    parts.push_back(part);
    targets.emplace_back(tensor, values);
  };
  for (const auto& item : module.named_parameters()) want("weights", item.key(), item.value());
  for (const auto& item : module.named_buffers()) want("buffers", item.key(), item.value());

  std::vector<TensorInfo> wanted;
  for (const TensorPart& part : parts) wanted.push_back(part.info);
  std::vector<TensorInfo> stored;
  std::set<TensorKey> stored_keys;
  for (const TensorInfo& info : reader.tensors())
    if (info.section == "weights" || info.section == "buffers") {
      stored.push_back(info);
      stored_keys.insert({info.section, info.name});
    }
  const Differences differences = compare(wanted, stored);
  const bool lacks = !differences.missing.empty() && !match.allow_missing;
  const bool exceeds = !differences.unexpected.empty() && !match.allow_unexpected;
  if (!differences.changed.empty())
    throw Error(ErrorKind::usage,
                differences.text_of(reader.path(),
                                    "Build the model with the shapes and types of the file, or take another file: "
                                    "tensors that differ cannot be passed over"));
  if (lacks || exceeds)
    throw Error(ErrorKind::usage,
                differences.text_of(reader.path(),
                                    lacks && exceeds ? "Build the model of the file, or pass over these tensors with "
                                                       "--allow-missing and --allow-unexpected"
                                    : lacks ? "Build the model of the file, or let these tensors keep their values "
                                              "with --allow-missing"
                                            : "Build the model of the file, or pass over these tensors with "
                                              "--allow-unexpected"));

  std::vector<TensorPart> present;
  std::vector<std::size_t> index;
  for (std::size_t i = 0; i < parts.size(); ++i)
    if (stored_keys.count({parts[i].info.section, parts[i].info.name})) {
      present.push_back(parts[i]);
      index.push_back(i);
    }
  reader.read(present);
  const at::NoGradGuard no_grad;
  for (const std::size_t i : index) targets[i].first.detach().copy_(targets[i].second);

  std::vector<std::string> passed_over = differences.missing;
  passed_over.insert(passed_over.end(), differences.unexpected.begin(), differences.unexpected.end());
  return passed_over;
}

}  // namespace lockstep
