#include "io/checkpoint_reader.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <optional>
#include <thread>

namespace lockstep {

namespace {

// A new name may reach another node's view of the file system late.
constexpr std::chrono::seconds visibility_timeout(30);

void wait_until_visible(const std::string& path) {
  const auto deadline = std::chrono::steady_clock::now() + visibility_timeout;
  struct stat status = {};
  while (::stat(path.c_str(), &status) != 0 && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

struct BlockRange {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

// The rank's share of the blocks, even in bytes.
BlockRange share_of_blocks(const std::vector<BlockRow>& rows, int rank, int num_ranks) {
  std::uint64_t total = 0;
  for (const BlockRow& row : rows) total += row.num_bytes;
  const std::uint64_t per_rank = total / static_cast<std::uint64_t>(num_ranks) + 1;
  const std::uint64_t first_byte = per_rank * static_cast<std::uint64_t>(rank);
  BlockRange range;
  std::uint64_t at = 0;
  for (const BlockRow& row : rows) {
    if (at < first_byte) ++range.begin;
    if (at < first_byte + per_rank) ++range.end;
    at += row.num_bytes;
  }
  return range;
}

// Runs `check`; returns what it says of damage. Everything else it throws goes on.
template <class Check>
std::string damage_found_by(const Check& check) {
  try {
    check();
  } catch (const DamagedCheckpoint& damage) {
    return damage.what();
  }
  return "";
}

std::string first_of(const std::vector<std::string>& texts) {
  const auto found = std::find_if(texts.begin(), texts.end(), [](const std::string& one) { return !one.empty(); });
  return found == texts.end() ? "" : *found;
}

}  // namespace

VerifiedCheckpoint::VerifiedCheckpoint(Communicator& communicator, CheckpointFile file)
    : communicator_(communicator), file_(std::move(file)) {
  for (const StoredTensor& tensor : file_.catalogue().tensors) tensors_.push_back(tensor.info);
}

void VerifiedCheckpoint::read(std::span<TensorPart> parts) {
  agree(communicator_, [&] {
    for (const TensorPart& part : parts) {
      const auto index = file_.find(part.info.section, part.info.name);
      if (!index) {
        throw Error(ErrorKind::usage, text("'", path(), "' holds no tensor '", part.info.name, "' in section '",
                                           part.info.section, "': take a checkpoint of this model"));
      }
      const TensorInfo& stored = tensors_[*index];
      if (stored.type != part.info.type || stored.shape != part.info.shape) {
        throw Error(ErrorKind::usage,
                    text("tensor '", part.info.name, "' of section '", part.info.section, "' in '", path(),
                         "' has another type or shape than the model's (", name_of(stored.type), " there, ",
                         name_of(part.info.type), " here): take a checkpoint of this model"));
      }
      if (part.begin < part.end) file_.read(*index, part.begin, part.end, part.data);
    }
  });
}

OpenedCheckpoint try_open_checkpoint(Communicator& communicator, const std::string& path) {
  const bool is_first = communicator.rank() == 0;
  std::optional<CheckpointFile> file;
  std::string damage;
  std::string word;  // rank 0's: how the file is called and, when it is whole so far, what it holds
  agree(communicator, [&] {
    if (!is_first) return;
    damage = damage_found_by([&] { file.emplace(path); });
    if (file) word = pack(file->catalogue());
  });
  damage = broadcast_text(communicator, damage);
  if (!damage.empty()) return {nullptr, damage};
  const std::string name = broadcast_text(communicator, path);
  word = broadcast_text(communicator, word);
  agree(communicator, [&] {
    if (is_first) return;
    wait_until_visible(name);
    file.emplace(name, unpack_catalogue(word));
  });
  agree(communicator, [&] {
    const BlockRange share = share_of_blocks(file->catalogue().blocks, communicator.rank(), communicator.num_ranks());
    damage = damage_found_by([&] { file->verify(share.begin, share.end); });
  });
  damage = first_of(gather_texts(communicator, damage));
  if (!damage.empty()) return {nullptr, damage};
  return {std::make_unique<VerifiedCheckpoint>(communicator, std::move(*file)), ""};
}

std::unique_ptr<VerifiedCheckpoint> open_checkpoint(Communicator& communicator, const std::string& path) {
  agree(communicator, [&] {
    if (communicator.rank() == 0 && std::filesystem::is_directory(path)) {
      throw Error(ErrorKind::usage, text("'", path, "' is a folder: name one of the checkpoints in it"));
    }
  });
  OpenedCheckpoint opened = try_open_checkpoint(communicator, path);
  if (opened.checkpoint) return std::move(opened.checkpoint);
  throw Error(ErrorKind::usage, text(opened.damage, " (it is no whole checkpoint): name another one"));
}

}  // namespace lockstep
