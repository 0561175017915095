#include <unistd.h>

#include <algorithm>
#include <bit>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <ostream>
#include <vector>

#include "drivers/checkpoint_commands.hpp"
#include "drivers/checkpoint_pieces.hpp"
#include "drivers/checkpoint_table.hpp"
#include "io/digest.hpp"
#include "io/posix_file.hpp"
#include "runtime/plan/error.hpp"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

static_assert(std::endian::native == std::endian::little, "safetensors and checkpoints are little-endian");

/// The format's name of an element type; null for one that it does not have.
const char* safetensors_type(ElementType type) {
  switch (type) {
    case ElementType::boolean:
      return "BOOL";
    case ElementType::uint8:
      return "U8";
    case ElementType::int8:
      return "I8";
    case ElementType::int16:
      return "I16";
    case ElementType::int32:
      return "I32";
    case ElementType::int64:
      return "I64";
    case ElementType::float16:
      return "F16";
    case ElementType::bfloat16:
      return "BF16";
    case ElementType::float32:
      return "F32";
    case ElementType::float64:
      return "F64";
    case ElementType::complex64:
      return "C64";
    case ElementType::complex128:
      return nullptr;
  }
  return nullptr;
}

bool is_exported(const std::string& section) { return section == "weights" || section == "buffers"; }

/// The tensors to write, in the format's order: wide types first, so that all are aligned, then by name.
std::vector<std::size_t> exported_tensors(const Catalogue& catalogue) {
  std::map<std::string, std::string> section_of;
  std::vector<std::size_t> chosen;
  for (std::size_t i = 0; i < catalogue.tensors.size(); ++i) {
    const TensorInfo& info = catalogue.tensors[i].info;
    if (!is_exported(info.section)) continue;
    if (safetensors_type(info.type) == nullptr) {
      throw Error(ErrorKind::usage, text("the tensor '", info.name, "' has the type ", name_of(info.type),
                                         " (safetensors has no such type): read it from the checkpoint with h5py"));
    }
    if (!section_of.emplace(info.name, info.section).second) {
      throw Error(ErrorKind::usage, text("the name '", info.name,
                                         "' stands for a weight and for a buffer (a "
                                         "safetensors file has one tensor of a name): rename one in the model"));
    }
    chosen.push_back(i);
  }
  std::sort(chosen.begin(), chosen.end(), [&](std::size_t a, std::size_t b) {
    const TensorInfo& left = catalogue.tensors[a].info;
    const TensorInfo& right = catalogue.tensors[b].info;
    if (size_of(left.type) != size_of(right.type)) return size_of(left.type) > size_of(right.type);
    return left.name < right.name;
  });
  return chosen;
}

/// The length of the table of contents, the table itself, and spaces up to a multiple of eight bytes.
std::string make_header(const Catalogue& catalogue, const std::vector<std::size_t>& tensors) {
  Json table;
  Json& facts = table["__metadata__"];  // texts only, by the format
  facts["format"] = "pt";
  facts["step"] = std::to_string(catalogue.header.step);
  facts["state_digest"] = hexadecimal(catalogue.header.state_digest);
  for (const TensorAlias& alias : catalogue.aliases) {
    if (is_exported(alias.section)) facts[alias.alias] = alias.name;  // as safetensors.torch.save_model does
  }
  std::uint64_t offset = 0;
  for (const std::size_t tensor : tensors) {
    const StoredTensor& stored = catalogue.tensors[tensor];
    table[stored.info.name] = {{"dtype", safetensors_type(stored.info.type)},
                               {"shape", stored.info.shape},
                               {"data_offsets", {offset, offset + stored.num_bytes()}}};
    offset += stored.num_bytes();
  }
  std::string json;
  try {
    json = table.dump();
  } catch (const Json::exception& problem) {
    throw Error(ErrorKind::usage, text("a tensor's name is not UTF-8 (", problem.what(),
                                       "; safetensors stores names as JSON): rename it in the model"));
  }
  json.resize((json.size() + 7) / 8 * 8, ' ');
  std::string header(sizeof(std::uint64_t), '\0');
  for (std::size_t i = 0; i < header.size(); ++i) header[i] = static_cast<char>(json.size() >> (8 * i) & 0xff);
  return header + json;
}

/// A new file that is removed again unless publish() gives it its name.
class NewFile {
 public:
  explicit NewFile(const std::string& target) : target_(target), temporary_(text(target, ".", ::getpid(), ".tmp")) {
    if (!std::ofstream(temporary_, std::ios::binary)) throw_system_failure("create", temporary_, errno);
    file_.emplace(temporary_, FileAccess::write);
  }
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;
  ~NewFile() {
    std::error_code ignored;
    if (file_) fs::remove(temporary_, ignored);
  }

  void append(std::span<const std::byte> bytes) {
    file_->write_at(bytes, size_);
    size_ += bytes.size();
  }

  void publish() {
    file_->sync();
    rename_durably(temporary_, target_);
    file_.reset();
  }

  std::uint64_t size() const { return size_; }

 private:
  std::string target_;
  std::string temporary_;
  std::optional<PosixFile> file_;
  std::uint64_t size_ = 0;
};

}  // namespace

Answer export_safetensors(const ExportOptions& options, std::ostream& out) {
  const CheckpointFile file(find_checkpoint(options.checkpoint));
  if (!options.overwrite && fs::exists(options.target)) {
    throw Error(ErrorKind::usage, text("'", options.target,
                                       "' exists (it would be replaced): name another file with "
                                       "--out, or replace it with --overwrite"));
  }
  const std::vector<std::size_t> tensors = exported_tensors(file.catalogue());
  const std::string header = make_header(file.catalogue(), tensors);
  NewFile target(options.target);
  target.append(std::as_bytes(std::span(header)));
  for (const std::size_t tensor : tensors) {
    for_each_piece(file, tensor, [&](std::int64_t, std::span<const std::byte> elements) { target.append(elements); });
  }
  target.publish();
  out << options.target << ": " << count_text(static_cast<std::int64_t>(tensors.size()))
      << " tensors (weights and buffers) of " << file.path() << ", " << bytes_text(target.size()) << '\n';
  return Answer::yes;
}

}  // namespace lockstep
