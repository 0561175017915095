#include "io/checkpoint_catalogue.hpp"

#include <algorithm>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>

#include "io/bytes.hpp"
#include "io/digest.hpp"

namespace lockstep {

namespace {

void add_value(Digest& digest, const AttributeValue& value) {
  digest.add(static_cast<std::uint64_t>(value.index()));
  std::visit(
      [&](const auto& held) {
        using Held = std::decay_t<decltype(held)>;
        if constexpr (std::is_same_v<Held, std::string>) {
          digest.add(std::string_view(held));
        } else if constexpr (std::is_arithmetic_v<Held>) {
          digest.add(held);
        } else {
          digest.add(static_cast<std::uint64_t>(held.size()));
          for (const auto& one : held) {
            if constexpr (std::is_same_v<Held, std::vector<std::string>>) {
              digest.add(std::string_view(one));
            } else {
              digest.add(one);
            }
          }
        }
      },
      value);
}

void add_tensor(Digest& digest, const StoredTensor& tensor) {
  digest.add(std::string_view(tensor.info.section));
  digest.add(std::string_view(tensor.info.name));
  digest.add(name_of(tensor.info.type));
  digest.add(static_cast<std::uint64_t>(tensor.info.shape.size()));
  for (const std::int64_t extent : tensor.info.shape) digest.add(extent);
}

template <std::size_t index = 0>
AttributeValue take_value(ByteReader& reader, std::size_t wanted) {
  if constexpr (index < std::variant_size_v<AttributeValue>) {
    if (index != wanted) return take_value<index + 1>(reader, wanted);
    using Held = std::variant_alternative_t<index, AttributeValue>;
    if constexpr (std::is_arithmetic_v<Held> || std::is_same_v<Held, std::string>) {
      return reader.take<Held>();
    } else {
      return reader.take_list<typename Held::value_type>();
    }
  }
  throw std::out_of_range("a message between ranks holds an unknown kind of attribute");
}

void pack_attributes(ByteWriter& writer, const AttributeTree& tree) {
  writer.add(tree.size());
  for (const auto& [group, values] : tree) {
    writer.add(group);
    writer.add(values.size());
    for (const auto& [name, value] : values) {
      writer.add(name);
      writer.add(value.index());
      std::visit([&](const auto& held) { writer.add(held); }, value);
    }
  }
}

AttributeTree take_attributes(ByteReader& reader) {
  AttributeTree tree;
  for (std::size_t groups = reader.take<std::size_t>(); groups > 0; --groups) {
    AttributeGroup& group = tree[reader.take<std::string>()];
    for (std::size_t values = reader.take<std::size_t>(); values > 0; --values) {
      const std::string name = reader.take<std::string>();
      const auto kind = reader.take<std::size_t>();
      group[name] = take_value(reader, kind);
    }
  }
  return tree;
}

}  // namespace

std::uint64_t state_digest(const Catalogue& catalogue) {
  Digest digest;
  digest.add(format_version);
  digest.add(catalogue.header.step);
  for (const auto& [group, values] : catalogue.attributes) {
    if (group == provenance_group || values.empty()) continue;
    digest.add(std::string_view(group));
    digest.add(static_cast<std::uint64_t>(values.size()));
    for (const auto& [name, value] : values) {
      digest.add(std::string_view(name));
      add_value(digest, value);
    }
  }
  digest.add(static_cast<std::uint64_t>(catalogue.tensors.size()));
  for (const StoredTensor& tensor : catalogue.tensors) add_tensor(digest, tensor);
  std::vector<std::tuple<std::string_view, std::string_view, std::string_view>> aliases;
  for (const TensorAlias& alias : catalogue.aliases) aliases.emplace_back(alias.section, alias.alias, alias.name);
  std::sort(aliases.begin(), aliases.end());
  for (const auto& [section, alias, name] : aliases) {
    digest.add(section);
    digest.add(alias);
    digest.add(name);
  }
  digest.add_bytes(std::as_bytes(std::span(catalogue.blocks)));
  return digest.value();
}

std::vector<BlockRow> cut_into_blocks(std::vector<StoredTensor>& tensors) {
  std::vector<BlockRow> rows;
  for (std::size_t index = 0; index < tensors.size(); ++index) {
    StoredTensor& tensor = tensors[index];
    tensor.first_block = rows.size();
    const DigestBlocks blocks = tensor.blocks();
    for (std::int64_t i = 0; i < blocks.count(); ++i) {
      BlockRow row;
      row.tensor = index;
      row.first_element = static_cast<std::uint64_t>(blocks.begin(i));
      row.num_bytes = static_cast<std::uint64_t>(blocks.begin(i + 1) - blocks.begin(i)) * size_of(tensor.info.type);
      rows.push_back(row);
    }
  }
  return rows;
}

std::string pack(const Catalogue& catalogue) {
  ByteWriter writer;
  writer.add(catalogue.header);
  pack_attributes(writer, catalogue.attributes);
  writer.add(catalogue.tensors.size());
  for (const StoredTensor& tensor : catalogue.tensors) {
    writer.add(tensor.info.section);
    writer.add(tensor.info.name);
    writer.add(tensor.info.type);
    writer.add(tensor.info.shape);
    writer.add(tensor.offset);
    writer.add(tensor.block_elements);
    writer.add(tensor.block_phase);
    writer.add(tensor.first_block);
  }
  writer.add(catalogue.aliases.size());
  for (const TensorAlias& alias : catalogue.aliases) {
    writer.add(alias.section);
    writer.add(alias.alias);
    writer.add(alias.name);
  }
  writer.add(catalogue.launches.size());
  for (const LaunchRecord& launch : catalogue.launches) {
    writer.add(launch.started);
    writer.add(launch.from_step);
    writer.add(launch.num_ranks);
    writer.add(launch.hosts);
    writer.add(launch.versions);
  }
  writer.add(catalogue.blocks);
  return writer.take();
}

Catalogue unpack_catalogue(std::string_view bytes) {
  ByteReader reader(bytes);
  Catalogue catalogue;
  catalogue.header = reader.take<CheckpointHeader>();
  catalogue.attributes = take_attributes(reader);
  catalogue.tensors.resize(reader.take<std::size_t>());
  for (StoredTensor& tensor : catalogue.tensors) {
    tensor.info.section = reader.take<std::string>();
    tensor.info.name = reader.take<std::string>();
    tensor.info.type = reader.take<ElementType>();
    tensor.info.shape = reader.take_list<std::int64_t>();
    tensor.offset = reader.take<std::uint64_t>();
    tensor.block_elements = reader.take<std::int64_t>();
    tensor.block_phase = reader.take<std::int64_t>();
    tensor.first_block = reader.take<std::uint64_t>();
  }
  catalogue.aliases.resize(reader.take<std::size_t>());
  for (TensorAlias& alias : catalogue.aliases) {
    alias.section = reader.take<std::string>();
    alias.alias = reader.take<std::string>();
    alias.name = reader.take<std::string>();
  }
  catalogue.launches.resize(reader.take<std::size_t>());
  for (LaunchRecord& launch : catalogue.launches) {
    launch.started = reader.take<std::string>();
    launch.from_step = reader.take<std::int64_t>();
    launch.num_ranks = reader.take<std::int64_t>();
    launch.hosts = reader.take<std::string>();
    launch.versions = reader.take<std::string>();
  }
  catalogue.blocks = reader.take_list<BlockRow>();
  return catalogue;
}

}  // namespace lockstep
