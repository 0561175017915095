#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "runtime/plan/checkpoint_store.hpp"

namespace lockstep::test {

enum class Reading { at_once, as_late_as_it_may };

/// Keeps the bytes of this rank's parts, step by step; it reads them at the first or at the last moment it may.
class ReadingStore final : public CheckpointStore {
 public:
  explicit ReadingStore(Reading reading) : reading_(reading) {}

  const std::map<std::int64_t, std::string>& read() const { return read_; }

  std::unique_ptr<CheckpointReader> open_newest() override { return nullptr; }
  void start_save(const Snapshot& snapshot) override {
    wait_until_copied();
    ++num_saves;
    unread_ = snapshot;
    if (reading_ == Reading::at_once) wait_until_copied();
  }
  void wait_until_copied() noexcept override {
    if (!unread_) return;
    unread_->wait_for_bytes();
    std::string& bytes = read_[unread_->step];
    for (const TensorPart& part : unread_->tensors)
      bytes.append(reinterpret_cast<const char*>(part.data),
                   static_cast<std::size_t>(part.end - part.begin) * size_of(part.info.type));
    unread_.reset();
  }
  bool is_saving() const override { return false; }
  bool part_is_durable() override { return false; }
  void commit_save() override {}
  bool finish() override {
    wait_until_copied();
    if (num_failures == 0) return true;
    --num_failures;
    return false;
  }

  int num_saves = 0;
  int num_failures = 0;  ///< of the coming calls of finish(): how many come to nothing

 private:
  Reading reading_;
  std::optional<Snapshot> unread_;
  std::map<std::int64_t, std::string> read_;
};

}  // namespace lockstep::test
