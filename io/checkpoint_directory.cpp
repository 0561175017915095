#include "io/checkpoint_directory.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "io/launch_record.hpp"
#include "io/posix_file.hpp"

namespace lockstep {

namespace {

std::string named_folder(const std::string& folder) {
  if (folder.empty()) {
    throw Error(ErrorKind::usage, "no folder for checkpoints is named: give --checkpoint-dir FOLDER");
  }
  return folder;
}

// Whether an unfinished save, or a preflight, left a file of this name; others' files are none of ours.
bool is_leftover(const std::string& name) {
  if (!name.ends_with(temporary_suffix)) return false;
  const std::string file = name.substr(0, name.size() - temporary_suffix.size());
  return step_of_file_name(file) || file == "skeleton.h5" || file == "preflight.h5" ||
         (file.starts_with("direct-") && file.ends_with(".h5"));
}

// Points the link at a checkpoint. It is for people: a file system without links does without.
void point_latest(const std::string& folder, const std::string& name) {
  const std::string link = folder + "/latest";
  const std::string fresh = link + std::string(temporary_suffix);
  ::unlink(fresh.c_str());
  if (::symlink(name.c_str(), fresh.c_str()) == 0 && std::rename(fresh.c_str(), link.c_str()) != 0) {
    ::unlink(fresh.c_str());
  }
}

}  // namespace

CheckpointDirectory::CheckpointDirectory(Communicator& communicator, CheckpointOptions options)
    : communicator_(communicator), options_(std::move(options)) {
  agree(communicator_, [&] {
    options_.directory = named_folder(options_.directory);
    check_retention(options_.retention);
    if (options_.timing == SaveTiming::asynchronous && options_.writer == WriterKind::collective) {
      throw Error(ErrorKind::usage,
                  "--async-save goes with the direct writer only (the collective one needs all ranks "
                  "at once): use --checkpoint-writer direct or auto, or save without --async-save");
    }
    if (communicator_.rank() != 0) return;
    make_folder(options_.directory);
    lock_ = std::make_unique<RunLock>(options_.directory);
    if (!lock_->is_held()) {
      report(text("the file system of '", options_.directory,
                  "' has no file locks: nothing keeps a second run out of this folder"));
    }
    remove_leftovers();
  });
  CheckpointWriter::Settings settings;
  settings.folder = options_.directory;
  settings.kind = resolve_writer(communicator_, options_.directory, options_.writer);
  settings.timing = settings.kind == WriterKind::direct ? options_.timing : SaveTiming::synchronous;
  settings.fault = options_.inject;
  writer_ = std::make_unique<CheckpointWriter>(communicator_, settings);
  launches_.push_back(record_of_this_launch(communicator_, options_.versions));
}

CheckpointDirectory::~CheckpointDirectory() = default;

std::unique_ptr<CheckpointReader> CheckpointDirectory::open_newest() { return newest_whole(); }

std::unique_ptr<VerifiedCheckpoint> CheckpointDirectory::newest_whole() {
  std::string word;  // rank 0's list of steps, newest first
  agree(communicator_, [&] {
    if (communicator_.rank() != 0) return;
    std::vector<std::int64_t> steps = steps_in_folder();
    std::sort(steps.rbegin(), steps.rend());
    for (const std::int64_t step : steps) word += std::to_string(step) + "\n";
  });
  std::istringstream steps(broadcast_text(communicator_, word));
  std::string last_damage;
  for (std::int64_t step = 0; steps >> step;) {
    OpenedCheckpoint opened = try_open_checkpoint(communicator_, path_of(step));
    if (opened.checkpoint) {
      take_up(opened.checkpoint->catalogue());
      return std::move(opened.checkpoint);
    }
    damaged_.insert(step);
    last_damage = opened.damage;
    report(text("damaged checkpoint passed over: ", opened.damage));
  }
  if (damaged_.empty()) return nullptr;
  throw Error(ErrorKind::do_not_requeue,
              text("none of the ", damaged_.size(), " checkpoints in '", options_.directory, "' is whole (",
                   last_damage, "): restore one from a copy, or start anew in another folder"));
}

std::unique_ptr<CheckpointReader> CheckpointDirectory::open(const std::string& path) {
  std::unique_ptr<VerifiedCheckpoint> newest = newest_whole();
  const auto go_on = [&] {
    report(text("the run has gone on from '", path, "' already: it goes on from its newest checkpoint"));
    return std::move(newest);
  };
  // By its name at first: retention may have removed it since.
  const auto step_of_name = step_of_file_name(std::filesystem::path(path).filename().string());
  if (newest && step_of_name && has_gone_on_from(*step_of_name)) return go_on();
  std::unique_ptr<VerifiedCheckpoint> named = open_checkpoint(communicator_, path);
  const CheckpointHeader& header = named->catalogue().header;
  if (newest && has_gone_on_from(header.step)) return go_on();
  if (newest && newest->catalogue().header.state_digest != header.state_digest) {
    throw Error(ErrorKind::usage,
                text("'", options_.directory, "' holds '", checkpoint_file_name(newest->catalogue().header.step),
                     "', which does not come from '", path,
                     "' (started again, the run would go on from that one): give another --checkpoint-dir, or move "
                     "what came after step ",
                     header.step, " away"));
  }
  take_up(named->catalogue());
  return named;
}

// Whether one of the launches that led to the newest checkpoint began there.
bool CheckpointDirectory::has_gone_on_from(std::int64_t step) const {
  return std::any_of(launches_.begin(), std::prev(launches_.end()),
                     [step](const LaunchRecord& launch) { return launch.from_step == step; });
}

void CheckpointDirectory::prepare(const Snapshot& snapshot) { writer_->prepare(snapshot, launches_); }

void CheckpointDirectory::start_save(const Snapshot& snapshot) {
  complete_save();
  saving_ = snapshot.step;
  is_sealed_ = false;
  has_failed_ = false;
  try {
    prepare(snapshot);
    writer_->start(snapshot, path_of(snapshot.step) + std::string(temporary_suffix));
  } catch (const Error& failure) {
    handle_failure(failure, snapshot.step);
    return;
  }
  if (options_.timing == SaveTiming::synchronous) complete_save();
}

void CheckpointDirectory::wait_until_copied() noexcept { writer_->wait_until_copied(); }

bool CheckpointDirectory::part_is_durable() { return saving_ >= 0 && writer_->is_part_done(); }

void CheckpointDirectory::commit_save() {
  if (saving_ < 0) return;
  const std::int64_t step = saving_;
  try {
    if (!is_sealed_) {
      writer_->seal();
      is_sealed_ = true;
      return;
    }
    writer_->commit(path_of(step));
  } catch (const Error& failure) {
    handle_failure(failure, step);
    return;
  }
  saving_ = -1;
  damaged_.erase(step);
  agree(communicator_, [&] { options_.inject.reach(SaveStage::renamed, communicator_.rank(), step); });
  if (communicator_.rank() == 0) tidy_up(step);
}

void CheckpointDirectory::complete_save() {
  while (saving_ >= 0) commit_save();
}

bool CheckpointDirectory::finish() {
  complete_save();
  finish_removal();
  return !has_failed_;
}

std::string CheckpointDirectory::path_of(std::int64_t step) const {
  return options_.directory + "/" + checkpoint_file_name(step);
}

std::vector<std::int64_t> CheckpointDirectory::steps_in_folder() const {
  std::vector<std::int64_t> steps;
  for (const auto& entry : std::filesystem::directory_iterator(options_.directory)) {
    const auto step = step_of_file_name(entry.path().filename().string());
    if (step) steps.push_back(*step);
  }
  return steps;
}

void CheckpointDirectory::remove_leftovers() const {
  for (const auto& entry : std::filesystem::directory_iterator(options_.directory)) {
    const std::string name = entry.path().filename().string();
    if (is_leftover(name)) remove_file(entry.path().string());
  }
}

void CheckpointDirectory::take_up(const Catalogue& catalogue) {
  LaunchRecord current = launches_.back();
  current.from_step = catalogue.header.step;
  launches_ = catalogue.launches;
  launches_.push_back(current);
}

// After a checkpoint has come to be: the link, and those that are too many.
void CheckpointDirectory::tidy_up(std::int64_t newest) {
  finish_removal();
  point_latest(options_.directory, checkpoint_file_name(newest));
  try {
    std::vector<std::int64_t> steps = steps_in_folder();
    std::erase_if(steps, [&](std::int64_t one) { return damaged_.count(one) != 0; });
    std::vector<std::string> paths;
    for (const std::int64_t one : steps_to_remove(options_.retention, steps, newest)) paths.push_back(path_of(one));
    removal_ = std::async(std::launch::async, [paths] { std::for_each(paths.begin(), paths.end(), remove_file); });
  } catch (const std::exception& failure) {
    report(text("WARNING: older checkpoints could not be listed: ", failure.what()));
  }
}

void CheckpointDirectory::finish_removal() {
  if (!removal_.valid()) return;
  try {
    removal_.get();
  } catch (const std::exception& failure) {
    report(text("WARNING: an older checkpoint could not be removed: ", failure.what()));
  }
}

void CheckpointDirectory::handle_failure(const Error& failure, std::int64_t step) {
  writer_->abandon();
  saving_ = -1;
  has_failed_ = true;
  if (options_.on_save_failure == OnSaveFailure::abort) {
    throw Error(failure.kind(), text("the checkpoint of step ", step, " could not be saved: ", failure.what()));
  }
  report(text("WARNING: the checkpoint of step ", step,
              " could not be saved, the run goes on without it: ", failure.what()));
}

void CheckpointDirectory::report(const std::string& message) const {
  if (communicator_.rank() != 0) return;
  if (options_.report) {
    options_.report(message);
  } else {
    std::fprintf(stderr, "%s\n", message.c_str());
  }
}

}  // namespace lockstep
