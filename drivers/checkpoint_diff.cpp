#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <map>
#include <ostream>
#include <tuple>
#include <vector>

#include "drivers/checkpoint_commands.hpp"
#include "drivers/checkpoint_numbers.hpp"
#include "drivers/checkpoint_pieces.hpp"
#include "drivers/checkpoint_table.hpp"
#include "runtime/plan/error.hpp"
#include "runtime/plan/shape_text.hpp"

namespace lockstep {
namespace {

/// The subjects that make two states different. What was asked for, how the work was cut and who wrote the file may
/// differ between two launches that hold the same state.
constexpr std::array kStateSubjects = {"progress", "schedule", "loss_scaler"};

using TensorKey = std::pair<std::string, std::string>;  // section, name

std::map<TensorKey, std::size_t> index_of(const Catalogue& catalogue) {
  std::map<TensorKey, std::size_t> index;
  for (std::size_t i = 0; i < catalogue.tensors.size(); ++i) {
    index[{catalogue.tensors[i].info.section, catalogue.tensors[i].info.name}] = i;
  }
  return index;
}

bool same_bits(double left, double right) { return std::memcmp(&left, &right, sizeof left) == 0; }
template <class T>
bool same_bits(const T& left, const T& right) {
  return left == right;
}
bool same_bits(const std::vector<double>& left, const std::vector<double>& right) {
  return std::equal(left.begin(), left.end(), right.begin(), right.end(),
                    [](double a, double b) { return same_bits(a, b); });
}

bool same_value(const AttributeValue& left, const AttributeValue& right) {
  if (left.index() != right.index()) return false;
  return std::visit(
      [&](const auto& value) { return same_bits(value, std::get<std::decay_t<decltype(value)>>(right)); }, left);
}

/// Reads the same elements of two tensors, piece by piece.
TensorDifference compare_elements(const CheckpointFile& left, std::size_t left_tensor, const CheckpointFile& right,
                                  std::size_t right_tensor) {
  DifferenceBuilder builder(left.catalogue().tensors[left_tensor].info.type);
  std::vector<std::byte> other;
  // Both files may be cut into blocks differently: the right one is verified as a whole first.
  const StoredTensor& stored = right.catalogue().tensors[right_tensor];
  right.verify(stored.first_block, stored.first_block + static_cast<std::uint64_t>(stored.blocks().count()));
  for_each_piece(left, left_tensor, [&](std::int64_t begin, std::span<const std::byte> elements) {
    other.resize(elements.size());
    const auto count = static_cast<std::int64_t>(elements.size() / size_of(stored.info.type));
    right.read(right_tensor, begin, begin + count, other.data());
    builder.add(elements, other);
  });
  return builder.difference();
}

/// What a comparison found, in the order in which it is told.
class Comparison {
 public:
  Comparison(const CheckpointFile& left, const CheckpointFile& right)
      : left_(left),
        right_(right),
        values_({{"section", Side::left},
                 {"name", Side::left},
                 {"elements", Side::right},
                 {"differ", Side::right},
                 {"first at", Side::right},
                 {"largest |a-b|", Side::right},
                 {"norm of a-b", Side::right}}),
        kinds_({{"section", Side::left}, {"name", Side::left}, {"a", Side::left}, {"b", Side::left}}),
        facts_({{"attribute", Side::left}, {"a", Side::left}, {"b", Side::left}}),
        other_facts_({{"attribute", Side::left}, {"a", Side::left}, {"b", Side::left}}) {
    compare_tensors();
    compare_attributes();
    compare_aliases();
  }

  bool same() const { return values_.empty() && kinds_.empty() && facts_.empty() && lines_.empty(); }

  void print(std::ostream& out) const {
    if (!kinds_.empty()) out << "\nTensors of another type or shape, or missing\n" << kinds_.text();
    if (!values_.empty()) out << "\nTensors with other elements\n" << values_.text();
    if (!facts_.empty()) out << "\nAttributes of the state that differ\n" << facts_.text();
    if (!lines_.empty()) out << "\nOther names of tensors that differ\n" << lines_;
    if (!other_facts_.empty()) out << "\nOther attributes that differ (they do not count)\n" << other_facts_.text();
  }

 private:
  static std::string describe(const TensorInfo& info) {
    return text(name_of(info.type), " ", shape_text(info.shape));
  }

  void compare_tensors() {
    const auto left = index_of(left_.catalogue());
    auto right = index_of(right_.catalogue());
    for (const auto& [key, tensor] : left) {
      const TensorInfo& info = left_.catalogue().tensors[tensor].info;
      const auto match = right.find(key);
      if (match == right.end()) {
        kinds_.add({info.section, info.name, describe(info), "missing"});
        continue;
      }
      const TensorInfo& other = right_.catalogue().tensors[match->second].info;
      if (info.type != other.type || info.shape != other.shape) {
        kinds_.add({info.section, info.name, describe(info), describe(other)});
      } else {
        add_difference(info, compare_elements(left_, tensor, right_, match->second));
      }
      right.erase(match);
    }
    for (const auto& [key, tensor] : right) {
      const TensorInfo& info = right_.catalogue().tensors[tensor].info;
      kinds_.add({info.section, info.name, "missing", describe(info)});
    }
  }

  void add_difference(const TensorInfo& info, const TensorDifference& difference) {
    if (difference.equal()) return;
    values_.add({info.section, info.name, count_text(difference.num_elements), count_text(difference.num_different),
                 count_text(difference.first_different), number_text(difference.largest),
                 number_text(difference.norm)});
  }

  void compare_attributes() {
    AttributeTree names = left_.catalogue().attributes;  // of both: insert() keeps what is there
    for (const auto& [subject, group] : right_.catalogue().attributes)
      names[subject].insert(group.begin(), group.end());
    names.erase(provenance_group);  // like the launches: no part of the state
    for (const auto& [subject, group] : names) {
      const bool counts = std::find(kStateSubjects.begin(), kStateSubjects.end(), subject) != kStateSubjects.end();
      for (const auto& [name, value] : group) {
        const AttributeValue* left = find(left_.catalogue().attributes, subject, name);
        const AttributeValue* right = find(right_.catalogue().attributes, subject, name);
        if (left != nullptr && right != nullptr && same_value(*left, *right)) continue;
        std::string left_text = told(left);
        std::string right_text = told(right);
        if (left_text == right_text) {  // long lists that differ further on
          left_text = told(left, std::numeric_limits<std::size_t>::max());
          right_text = told(right, std::numeric_limits<std::size_t>::max());
        }
        (counts ? facts_ : other_facts_).add({subject + "/" + name, left_text, right_text});
      }
    }
  }

  static std::string told(const AttributeValue* held, std::size_t most = 8) {
    return held == nullptr ? "missing" : value_text(*held, most);
  }

  static const AttributeValue* find(const AttributeTree& tree, const std::string& subject, const std::string& name) {
    return has_attribute(tree, subject, name) ? &tree.at(subject).at(name) : nullptr;
  }

  void compare_aliases() {
    const auto sorted = [](std::vector<TensorAlias> aliases) {
      std::vector<std::string> lines;
      for (const TensorAlias& alias : aliases) {
        lines.push_back(text(alias.section, "  ", alias.alias, "  is another name of ", alias.name));
      }
      std::sort(lines.begin(), lines.end());
      return lines;
    };
    const auto add_missing = [&](const auto& all, const auto& others, const char* side) {
      for (const std::string& line : all) {
        if (!std::binary_search(others.begin(), others.end(), line))
          lines_ += text("  ", line, ", only in ", side, "\n");
      }
    };
    const auto left = sorted(left_.catalogue().aliases);
    const auto right = sorted(right_.catalogue().aliases);
    add_missing(left, right, "a");
    add_missing(right, left, "b");
  }

  const CheckpointFile& left_;
  const CheckpointFile& right_;
  AlignedTable values_;
  AlignedTable kinds_;
  AlignedTable facts_;
  AlignedTable other_facts_;
  std::string lines_;  // about aliases
};

}  // namespace

Answer diff_checkpoints(const std::string& left_path, const std::string& right_path, std::ostream& out) {
  const CheckpointFile left(find_checkpoint(left_path));
  const CheckpointFile right(find_checkpoint(right_path));
  out << "a: " << left.path() << ", step " << count_text(left.catalogue().header.step) << '\n'
      << "b: " << right.path() << ", step " << count_text(right.catalogue().header.step) << '\n';
  const Comparison comparison(left, right);
  comparison.print(out);
  if (!comparison.same()) {
    out << "\ndifferent\n";
    return Answer::no;
  }
  out << "\nthe same to the last bit: " << count_text(static_cast<std::int64_t>(left.catalogue().tensors.size()))
      << " tensors (weights, buffers, moments), progress, schedule, loss scaler\n";
  return Answer::yes;
}

}  // namespace lockstep
