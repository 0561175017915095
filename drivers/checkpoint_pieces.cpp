#include "drivers/checkpoint_pieces.hpp"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "io/checkpoint_format.hpp"
#include "runtime/plan/error.hpp"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kPieceBytes = std::size_t{4} << 20;

}  // namespace

std::vector<std::string> find_checkpoints(const std::string& path) {
  std::error_code failure;
  if (!fs::is_directory(path, failure)) return {path};
  std::vector<std::pair<std::int64_t, std::string>> found;
  for (fs::directory_iterator entry(path, failure), end; !failure && entry != end; entry.increment(failure)) {
    if (const auto step = step_of_file_name(entry->path().filename().string())) {
      found.emplace_back(*step, entry->path().string());
    }
  }
  if (failure) {
    throw Error(ErrorKind::usage,
                text("cannot list the folder '", path, "' (", failure.message(), "): check its permissions"));
  }
  if (found.empty()) {
    throw Error(ErrorKind::usage, text("the folder '", path, "' holds no checkpoint (no file is named like ",
                                       checkpoint_file_name(100), "): name another folder or a file"));
  }
  std::sort(found.begin(), found.end());
  std::vector<std::string> paths;
  for (auto& [step, file] : found) paths.push_back(std::move(file));
  return paths;
}

std::string find_checkpoint(const std::string& path) { return find_checkpoints(path).back(); }

void for_each_piece(const CheckpointFile& file, std::size_t tensor,
                    const std::function<void(std::int64_t, std::span<const std::byte>)>& visit) {
  const StoredTensor& stored = file.catalogue().tensors[tensor];
  const std::size_t element_bytes = size_of(stored.info.type);
  const auto most = static_cast<std::int64_t>(kPieceBytes / element_bytes);
  const DigestBlocks blocks = stored.blocks();
  std::vector<std::byte> piece;
  for (std::int64_t block = 0; block < blocks.count(); ++block) {
    const std::uint64_t row = stored.first_block + static_cast<std::uint64_t>(block);
    file.verify(row, row + 1);
    const std::int64_t block_end = blocks.begin(block + 1);
    for (std::int64_t begin = blocks.begin(block); begin < block_end; begin += most) {
      const std::int64_t end = std::min(begin + most, block_end);
      piece.resize(static_cast<std::size_t>(end - begin) * element_bytes);
      file.read(tensor, begin, end, piece.data());
      visit(begin, piece);
    }
  }
}

}  // namespace lockstep
