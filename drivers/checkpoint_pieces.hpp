#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "io/checkpoint_file.hpp"

namespace lockstep {

/// The checkpoint that `path` stands for: itself, or the newest (by step) of a folder. Throws Error when there is
/// none.
std::string find_checkpoint(const std::string& path);

/// All checkpoints that `path` stands for, the oldest first. Throws Error when there are none.
std::vector<std::string> find_checkpoints(const std::string& path);

/// Hands a tensor's elements to `visit`, in order and in pieces of a few megabytes. Each block is compared with its
/// digest before its pieces are handed out: throws DamagedCheckpoint at the first one that differs.
void for_each_piece(const CheckpointFile& file, std::size_t tensor,
                    const std::function<void(std::int64_t begin, std::span<const std::byte> elements)>& visit);

}  // namespace lockstep
