#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <ostream>
#include <vector>

#include "drivers/checkpoint_commands.hpp"
#include "drivers/checkpoint_numbers.hpp"
#include "drivers/checkpoint_pieces.hpp"
#include "drivers/checkpoint_table.hpp"
#include "io/digest.hpp"
#include "runtime/plan/error.hpp"
#include "runtime/plan/shape_text.hpp"

namespace lockstep {
namespace {

using Json = nlohmann::ordered_json;

/// The subjects in the order in which people ask for them; others follow by name.
constexpr std::array kFirstSubjects = {"progress", "plan", "schedule", "loss_scaler", "sampler"};

struct TensorRow {
  const StoredTensor* stored = nullptr;
  TensorSummary summary;
  std::string damage;  ///< the sentence that says which elements; empty when the tensor is whole
};

std::vector<TensorRow> summarise(const CheckpointFile& file) {
  std::vector<TensorRow> rows;
  for (std::size_t i = 0; i < file.catalogue().tensors.size(); ++i) {
    TensorRow row{&file.catalogue().tensors[i], {}, {}};
    SummaryBuilder builder(row.stored->info.type);
    try {
      for_each_piece(file, i, [&](std::int64_t, std::span<const std::byte> elements) { builder.add(elements); });
    } catch (const DamagedCheckpoint& damage) {
      row.damage = damage.what();
    }
    row.summary = builder.summary();
    rows.push_back(std::move(row));
  }
  return rows;
}

std::vector<std::string> subjects_of(const AttributeTree& tree) {
  std::vector<std::string> subjects;
  for (const char* first : kFirstSubjects) {
    if (tree.count(first) != 0) subjects.emplace_back(first);
  }
  for (const auto& [subject, values] : tree) {
    if (std::find(subjects.begin(), subjects.end(), subject) == subjects.end()) subjects.push_back(subject);
  }
  return subjects;
}

/// "loss_scaler" as a heading: "Loss scaler".
std::string heading(std::string subject) {
  std::replace(subject.begin(), subject.end(), '_', ' ');
  if (!subject.empty() && subject.front() >= 'a' && subject.front() <= 'z') subject.front() -= 'a' - 'A';
  return subject;
}

void print_attributes(const AttributeTree& tree, std::ostream& out) {
  for (const std::string& subject : subjects_of(tree)) {
    const AttributeGroup& group = tree.at(subject);
    std::size_t width = 0;
    for (const auto& [name, value] : group) width = std::max(width, name.size());
    out << '\n' << heading(subject) << '\n';
    for (const auto& [name, value] : group) {
      out << "  " << name << std::string(width - name.size(), ' ') << "  " << value_text(value) << '\n';
    }
  }
}

void print_launches(const std::vector<LaunchRecord>& launches, std::ostream& out) {
  AlignedTable table({{"started", Side::left},
                      {"from step", Side::right},
                      {"ranks", Side::right},
                      {"hosts", Side::left},
                      {"versions", Side::left}});
  for (const LaunchRecord& launch : launches) {
    table.add(
        {launch.started, count_text(launch.from_step), count_text(launch.num_ranks), launch.hosts, launch.versions});
  }
  if (!table.empty()) out << "\nLaunches\n" << table.text();
}

void print_tensors(const std::vector<TensorRow>& rows, const std::vector<TensorAlias>& aliases, std::ostream& out) {
  AlignedTable table({{"section", Side::left},
                      {"name", Side::left},
                      {"type", Side::left},
                      {"shape", Side::left},
                      {"min", Side::right},
                      {"max", Side::right},
                      {"norm", Side::right},
                      {"", Side::left}});
  std::int64_t num_elements = 0;
  std::uint64_t num_bytes = 0;
  for (const TensorRow& row : rows) {
    const TensorInfo& info = row.stored->info;
    num_elements += info.num_elements();
    num_bytes += row.stored->num_bytes();
    std::vector<std::string> cells{info.section, info.name, std::string(name_of(info.type)), shape_text(info.shape)};
    const bool has_values = row.damage.empty() && row.summary.num_elements > row.summary.num_not_finite;
    for (const double value : {row.summary.min, row.summary.max, row.summary.norm}) {
      cells.push_back(has_values ? number_text(value) : "-");
    }
    cells.push_back(!row.damage.empty()              ? "damaged"
                    : row.summary.num_not_finite > 0 ? count_text(row.summary.num_not_finite) + " not finite"
                                                     : "");
    table.add(std::move(cells));
  }
  out << "\nTensors\n" << table.text();
  for (const TensorAlias& alias : aliases) {
    out << "  " << alias.section << "  " << alias.alias << "  is another name of " << alias.name << '\n';
  }
  out << "  " << count_text(static_cast<std::int64_t>(rows.size())) << " tensors, " << count_text(num_elements)
      << " elements, " << bytes_text(num_bytes) << '\n';
}

Json json_of(const AttributeTree& tree) {
  Json subjects = Json::object();
  for (const std::string& subject : subjects_of(tree)) {
    Json& group = subjects[subject] = Json::object();
    for (const auto& [name, value] : tree.at(subject)) {
      std::visit([&](const auto& held) { group[name] = held; }, value);
    }
  }
  return subjects;
}

Json json_of(const TensorRow& row) {
  const TensorInfo& info = row.stored->info;
  Json tensor{{"section", info.section},
              {"name", info.name},
              {"type", name_of(info.type)},
              {"shape", info.shape},
              {"whole", row.damage.empty()}};
  if (!row.damage.empty()) return tensor;
  tensor["min"] = row.summary.min;
  tensor["max"] = row.summary.max;
  tensor["norm"] = row.summary.norm;
  tensor["not_finite"] = row.summary.num_not_finite;
  return tensor;
}

Json json_of(const CheckpointFile& file, const std::vector<TensorRow>& rows) {
  const Catalogue& catalogue = file.catalogue();
  Json answer{{"path", file.path()},
              {"step", catalogue.header.step},
              {"bytes", catalogue.header.file_bytes},
              {"state_digest", hexadecimal(catalogue.header.state_digest)},
              {"attributes", json_of(catalogue.attributes)}};
  answer["launches"] = Json::array();
  for (const LaunchRecord& launch : catalogue.launches) {
    answer["launches"].push_back({{"started", launch.started},
                                  {"from_step", launch.from_step},
                                  {"ranks", launch.num_ranks},
                                  {"hosts", launch.hosts},
                                  {"versions", launch.versions}});
  }
  answer["tensors"] = Json::array();
  for (const TensorRow& row : rows) answer["tensors"].push_back(json_of(row));
  answer["aliases"] = Json::array();
  for (const TensorAlias& alias : catalogue.aliases) {
    answer["aliases"].push_back({{"section", alias.section}, {"alias", alias.alias}, {"name", alias.name}});
  }
  return answer;
}

}  // namespace

Answer show_checkpoint(const std::string& path, OutputFormat format, std::ostream& out) {
  const CheckpointFile file(find_checkpoint(path));
  const Catalogue& catalogue = file.catalogue();
  const std::vector<TensorRow> rows = summarise(file);
  const auto damaged =
      std::find_if(rows.begin(), rows.end(), [](const TensorRow& row) { return !row.damage.empty(); });
  if (format == OutputFormat::json) {
    out << json_of(file, rows).dump(2, ' ', false, Json::error_handler_t::replace) << '\n';
  } else {
    out << file.path() << ": step " << count_text(catalogue.header.step) << ", "
        << bytes_text(catalogue.header.file_bytes) << ", " << (damaged == rows.end() ? "whole" : "damaged")
        << ", state digest " << hexadecimal(catalogue.header.state_digest) << '\n';
    print_attributes(catalogue.attributes, out);
    print_launches(catalogue.launches, out);
    print_tensors(rows, catalogue.aliases, out);
    if (damaged != rows.end()) out << damaged->damage << '\n';
  }
  return damaged == rows.end() ? Answer::yes : Answer::no;
}

}  // namespace lockstep
