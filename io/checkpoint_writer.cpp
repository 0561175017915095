#include "io/checkpoint_writer.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <future>

#include "io/bytes.hpp"
#include "io/collective_writer.hpp"
#include "io/digest.hpp"
#include "io/launch_record.hpp"
#include "io/posix_file.hpp"
#include "runtime/plan/copy_past_caches.hpp"

namespace lockstep {

namespace {

// The digest of everything a skeleton depends on.
std::uint64_t schema_of(const Snapshot& snapshot, const std::vector<LaunchRecord>& launches) {
  Digest digest;
  for (const TensorPart& part : snapshot.tensors) {
    digest.add(std::string_view(part.info.section));
    digest.add(std::string_view(part.info.name));
    digest.add(name_of(part.info.type));
    digest.add(static_cast<std::uint64_t>(part.info.shape.size()));
    for (const std::int64_t extent : part.info.shape) digest.add(extent);
    digest.add(part.block_elements);
    digest.add(part.block_phase);
  }
  for (const TensorAlias& alias : snapshot.aliases) {
    digest.add(std::string_view(alias.section));
    digest.add(std::string_view(alias.alias));
    digest.add(std::string_view(alias.name));
  }
  for (const LaunchRecord& launch : launches) {
    digest.add(std::string_view(launch.started));
    digest.add(std::string_view(launch.hosts));
    digest.add(std::string_view(launch.versions));
  }
  return digest.value();
}

std::vector<StoredTensor> tensors_of(const Snapshot& snapshot) {
  std::vector<StoredTensor> tensors;
  for (const TensorPart& part : snapshot.tensors) {
    StoredTensor& tensor = tensors.emplace_back();
    tensor.info = part.info;
    tensor.block_elements = part.block_elements;
    tensor.block_phase = part.block_phase;
  }
  return tensors;
}

// One rank's digests, with the rows they belong to.
std::string pack_digests(const std::vector<FilePart>& parts, const std::vector<std::uint64_t>& digests) {
  ByteWriter writer;
  auto next = digests.begin();
  for (const FilePart& part : parts) {
    writer.add(part.first_row);
    const auto end = next + static_cast<std::ptrdiff_t>(part.num_rows);
    writer.add(std::vector<std::uint64_t>(next, end));
    next = end;
  }
  return writer.take();
}

// Every row's digest, from all ranks. Throws Error when a row came twice or never: the parts do not cover the state.
std::vector<BlockRow> filled_rows(std::vector<BlockRow> rows, const std::vector<std::string>& from_ranks) {
  std::vector<bool> is_filled(rows.size(), false);
  std::size_t num_filled = 0;
  for (const std::string& bytes : from_ranks) {
    for (ByteReader reader(bytes); !reader.at_end();) {
      auto row = reader.take<std::uint64_t>();
      for (const std::uint64_t digest : reader.take_list<std::uint64_t>()) {
        if (is_filled.at(row)) {
          throw Error(ErrorKind::failed, text("two ranks saved the same elements (tensor ", rows[row].tensor,
                                              ", from element ", rows[row].first_element,
                                              "; the parts of a snapshot must be disjoint): mend the snapshot"));
        }
        rows[row].digest = digest;
        is_filled[row++] = true;
        ++num_filled;
      }
    }
  }
  if (num_filled != rows.size()) {
    throw Error(ErrorKind::failed, text("no rank saved ", rows.size() - num_filled, " of ", rows.size(),
                                        " blocks (the parts of a snapshot must cover it): mend the snapshot"));
  }
  return rows;
}

// Reads the file's own account of itself back and compares it with what it should be.
void check_written(const std::string& path, const CheckpointHeader& header, const std::vector<BlockRow>& rows) {
  const PosixFile file(path, FileAccess::read);
  std::string bytes(header_bytes, '\0');
  file.read_at(std::as_writable_bytes(std::span(bytes.data(), bytes.size())), 0);
  std::vector<BlockRow> stored(rows.size());
  file.read_at(std::as_writable_bytes(std::span(stored)), header.blocks_begin);
  if (bytes != encode_header(header) || stored != rows || file.size() != header.file_bytes ||
      metadata_digest(path, header) != header.metadata_digest) {
    throw Error(ErrorKind::failed, text("'", path,
                                        "' does not read back as it was written (the disk or its file "
                                        "system changed it): check the disk"));
  }
}

}  // namespace

struct CheckpointWriter::Save {
  std::string path;
  std::int64_t step = 0;
  AttributeTree attributes;
  std::vector<TensorAlias> aliases;
  std::function<void()> wait_for_bytes;
  CheckpointHeader header;  // rank 0's
  std::vector<FilePart> parts;
  std::vector<std::uint64_t> digests;
  std::vector<std::string> digests_of_ranks;    // as pack_digests() made them
  std::vector<std::string> fragments_of_ranks;  // empty ones where the ranks wrote collectively
  std::optional<Error> failure;
};

CheckpointWriter::CheckpointWriter(Communicator& communicator, Settings settings)
    : communicator_(communicator), settings_(std::move(settings)) {
  const bool takes = communicator_.rank() == 0 && takes_direct_writes(settings_.folder);
  takes_direct_writes_ = broadcast_text(communicator_, takes ? "yes" : "no") == "yes";
}

CheckpointWriter::~CheckpointWriter() {
  if (thread_.joinable()) thread_.join();
}

void CheckpointWriter::reach(SaveStage stage, std::int64_t step) const {
  settings_.fault.reach(stage, communicator_.rank(), step);
}

void CheckpointWriter::prepare(const Snapshot& snapshot, const std::vector<LaunchRecord>& launches) {
  const std::uint64_t schema = schema_of(snapshot, launches);
  const std::vector<std::string> all = gather_texts(communicator_, hexadecimal(schema));
  if (std::any_of(all.begin(), all.end(), [&](const std::string& one) { return one != all.front(); })) {
    throw Error(ErrorKind::failed,
                "the ranks want to save different tensors (names, types and shapes must be the same "
                "everywhere): build the same model on every rank");
  }
  if (schema == schema_) return;
  build_layout(snapshot, launches);
  agree(communicator_, [&] {
    if (settings_.kind == WriterKind::direct && !buffers_) buffers_.emplace();
    if (settings_.timing == SaveTiming::synchronous) return;
    std::uint64_t bytes = 0;
    std::vector<std::span<const std::byte>> state;
    for (const FilePart& part : parts_of(snapshot, layout_)) {
      bytes += part.num_bytes + disk_block_bytes;
      state.emplace_back(part.data, part.num_bytes);
    }
    if (staging_.size() < bytes) staging_ = StagingBuffer(bytes);
    use_large_pages(std::move(state));
  });
  schema_ = schema;
}

void CheckpointWriter::build_layout(const Snapshot& snapshot, const std::vector<LaunchRecord>& launches) {
  std::string word;
  agree(communicator_, [&] {
    if (communicator_.rank() != 0) return;
    skeleton_.emplace(settings_.folder, tensors_of(snapshot), snapshot.aliases, launches);
    Catalogue places;
    places.header = skeleton_->layout();
    places.tensors = skeleton_->tensors();
    word = pack(places);
  });
  Catalogue places = unpack_catalogue(broadcast_text(communicator_, word));
  layout_.header = places.header;
  layout_.tensors = std::move(places.tensors);
  layout_.rows = cut_into_blocks(layout_.tensors);
}

void CheckpointWriter::start(const Snapshot& snapshot, const std::string& path) {
  part_is_done_ = false;
  save_ = std::make_unique<Save>();
  save_->path = path;
  save_->step = snapshot.step;
  agree(communicator_, [&] {
    reach(SaveStage::start, snapshot.step);
    save_->parts = parts_of(snapshot, layout_);
    save_->wait_for_bytes = snapshot.wait_for_bytes;
    if (communicator_.rank() == 0) {
      save_->attributes = snapshot.attributes;
      save_->aliases = snapshot.aliases;
      save_->header = skeleton_->stamp(path, snapshot.step, snapshot.attributes);
    }
  });
  agree(communicator_, [&] { reach(SaveStage::skeleton, snapshot.step); });
  if (settings_.kind == WriterKind::collective) {
    agree(communicator_, snapshot.wait_for_bytes);
    write_collectively(communicator_, path, snapshot);
    agree(communicator_, [&] {
      save_->digests = digests_of(save_->parts, layout_.rows);
      for (const SaveStage stage : {SaveStage::copy, SaveStage::data, SaveStage::written, SaveStage::durable}) {
        reach(stage, snapshot.step);
      }
    });
    part_is_done_ = true;
    return;
  }
  is_copied_ = false;
  begin_work([this] { write_part(*save_); });
}

// Copies the parts, so that each keeps its place within a disk block: then whole runs are written from the copy.
void CheckpointWriter::stage(Save& save) {
  std::byte* next = staging_.data();
  std::uint64_t file_end = 0;
  for (FilePart& part : save.parts) {
    if (part.offset != file_end) {
      const auto place = reinterpret_cast<std::uintptr_t>(next) % disk_block_bytes;
      next += (part.offset % disk_block_bytes + disk_block_bytes - place) % disk_block_bytes;
    }
    copy_past_caches(next, {part.data, part.num_bytes});
    part.data = next;
    next += part.num_bytes;
    file_end = part.offset + part.num_bytes;
  }
}

void CheckpointWriter::announce_copied() noexcept {
  is_copied_ = true;
  is_copied_.notify_all();
}

// Does this rank's share of a save, now or in a thread; what fails is known to all at finish_work().
void CheckpointWriter::begin_work(std::function<void()> work) {
  part_is_done_ = false;
  const auto guarded = [this, work = std::move(work)]() noexcept {
    try {
      work();
    } catch (const Error& error) {
      save_->failure = error;
    } catch (const std::exception& error) {
      save_->failure = Error(ErrorKind::failed, error.what());
    }
    announce_copied();  // what failed before it could: nobody reads the snapshot any more
    part_is_done_ = true;
  };
  try {
    if (settings_.timing == SaveTiming::asynchronous) {
      thread_ = std::thread(guarded);
      return;
    }
  } catch (const std::system_error&) {
    // No thread is to be had: the run waits.
  }
  guarded();
}

void CheckpointWriter::finish_work() {
  if (thread_.joinable()) thread_.join();
  agree(communicator_, [&] {
    if (save_->failure) throw *save_->failure;
  });
}

void CheckpointWriter::write_part(Save& save) {
  reach(SaveStage::copy, save.step);
  save.wait_for_bytes();
  if (settings_.timing == SaveTiming::asynchronous) {
    stage(save);
    announce_copied();
  }
  // Digests take the processor while the writing waits for the disk.
  auto digests = std::async(std::launch::async, [&] { return digests_of(save.parts, layout_.rows); });
  write_directly(
      save.path, whole_blocks_of(save.parts), takes_direct_writes_ ? FileAccess::write_direct : FileAccess::write,
      *buffers_, [&] { reach(SaveStage::data, save.step); }, [&] { reach(SaveStage::written, save.step); });
  save.digests = digests.get();
  reach(SaveStage::durable, save.step);
}

void CheckpointWriter::seal() {
  finish_work();
  std::string digests;
  std::string fragments;
  agree(communicator_, [&] {
    digests = pack_digests(save_->parts, save_->digests);
    if (settings_.kind == WriterKind::direct) fragments = packed_fragments_of(save_->parts);
  });
  save_->digests_of_ranks = gather_texts(communicator_, digests);
  save_->fragments_of_ranks = gather_texts(communicator_, fragments);
  if (communicator_.rank() == 0) begin_work([this] { write_seal(*save_); });
}

void CheckpointWriter::commit(const std::string& name) {
  finish_work();
  agree(communicator_, [&] { reach(SaveStage::header, save_->step); });
  agree(communicator_, [&] {
    if (communicator_.rank() == 0) rename_durably(save_->path, name);
  });
  save_.reset();
}

void CheckpointWriter::write_seal(Save& save) {
  Catalogue catalogue;
  catalogue.header = save.header;
  catalogue.attributes = std::move(save.attributes);
  catalogue.tensors = layout_.tensors;
  catalogue.aliases = std::move(save.aliases);
  catalogue.blocks = filled_rows(layout_.rows, save.digests_of_ranks);
  catalogue.header.state_digest = state_digest(catalogue);
  {
    PosixFile file(save.path, FileAccess::write);
    for (const std::string& of_rank : save.fragments_of_ranks)
      for (const Fragment& fragment : unpack_fragments(of_rank))
        file.write_at(std::as_bytes(std::span(fragment.bytes)), fragment.offset);
    file.write_at(std::as_bytes(std::span(catalogue.blocks)), catalogue.header.blocks_begin);
    const std::string header = encode_header(catalogue.header);
    file.write_at(std::as_bytes(std::span(header.data(), header.size())), 0);
    file.sync();
  }
  check_written(save.path, catalogue.header, catalogue.blocks);
}

void CheckpointWriter::abandon() {
  if (thread_.joinable()) thread_.join();
  if (save_ && communicator_.rank() == 0) ::unlink(save_->path.c_str());
  save_.reset();
  communicator_.barrier();
}

WriterKind resolve_writer(Communicator& communicator, const std::string& folder, WriterKind wanted) {
  if (wanted != WriterKind::automatic) return wanted;
  static constexpr std::array<std::string_view, 8> local = {"ext4",  "xfs",       "btrfs", "tmpfs",
                                                            "ramfs", "overlayfs", "zfs",   "f2fs"};
  std::string type;
  agree(communicator, [&] {
    if (communicator.rank() == 0) type = file_system_type(folder);
  });
  type = broadcast_text(communicator, type);
  const bool is_local = std::find(local.begin(), local.end(), type) != local.end();
  return is_on_one_node(communicator) && is_local ? WriterKind::direct : WriterKind::collective;
}

}  // namespace lockstep
