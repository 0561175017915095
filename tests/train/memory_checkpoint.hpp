#pragma once

#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/plan/checkpoint_store.hpp"
#include "runtime/plan/communicator.hpp"

namespace lockstep::test {

/// A checkpoint in memory, whole on every rank: what the trainer's tests resume from, so that they need no files.
class MemoryCheckpoint final : public CheckpointReader {
 public:
  /// **Collective.** Gathers the parts of all ranks.
  MemoryCheckpoint(const Snapshot& snapshot, Communicator& communicator) : attributes_(snapshot.attributes) {
    snapshot.wait_for_bytes();
    for (const TensorPart& part : snapshot.tensors) {
      const std::size_t element = size_of(part.info.type);
      const std::string mine = std::to_string(part.begin) + ' ' + std::to_string(part.end);
      std::vector<std::size_t> counts;
      std::size_t total = 0;
      for (const std::string& range : gather_texts(communicator, mine)) {
        const std::size_t space = range.find(' ');
        counts.push_back((std::stoul(range.substr(space + 1)) - std::stoul(range.substr(0, space))) * element);
        total += counts.back();
      }
      std::vector<std::byte> all(total);
      communicator.all_gather({part.data, static_cast<std::size_t>(part.end - part.begin) * element}, counts, all);
      tensors_.push_back(part.info);
      bytes_[{part.info.section, part.info.name}] = std::move(all);
    }
  }

  const std::string& path() const override { return path_; }
  const AttributeTree& attributes() const override { return attributes_; }
  const std::vector<TensorInfo>& tensors() const override { return tensors_; }

  void read(std::span<TensorPart> parts) override {
    for (TensorPart& part : parts) {
      const std::size_t element = size_of(part.info.type);
      const std::vector<std::byte>& all = bytes_.at({part.info.section, part.info.name});
      if (part.begin < part.end)
        std::memcpy(part.data, all.data() + static_cast<std::size_t>(part.begin) * element,
                    static_cast<std::size_t>(part.end - part.begin) * element);
    }
  }

  /// The stored bytes of a tensor, whole.
  const std::vector<std::byte>& bytes(const std::string& section, const std::string& name) const {
    return bytes_.at({section, name});
  }

 private:
  std::string path_ = "memory";
  AttributeTree attributes_;
  std::vector<TensorInfo> tensors_;
  std::map<std::pair<std::string, std::string>, std::vector<std::byte>> bytes_;
};

}  // namespace lockstep::test
