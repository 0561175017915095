#include "tests/io/made_state.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <random>

#include "runtime/plan/error.hpp"

namespace lockstep::test {

void MadeState::add(const std::string& section, const std::string& name, ElementType type,
                    std::vector<std::int64_t> shape, std::uint64_t seed) {
  TensorInfo info{section, name, type, shape};
  std::vector<std::byte> bytes(static_cast<std::size_t>(info.num_elements()) * size_of(type));
  std::mt19937_64 random(seed * 1000003 + std::hash<std::string>()(section + "/" + name));
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random() & (type == ElementType::boolean ? 1 : 255));
  add(section, name, type, std::move(shape), std::move(bytes));
}

void MadeState::add(const std::string& section, const std::string& name, ElementType type,
                    std::vector<std::int64_t> shape, std::vector<std::byte> bytes) {
  tensors_.push_back({{section, name, type, std::move(shape)}, std::move(bytes)});
}

void MadeState::add_alias(const std::string& section, const std::string& alias, const std::string& name) {
  aliases_.push_back({section, alias, name});
}

Snapshot MadeState::snapshot(std::int64_t step, int rank, int num_ranks) {
  Snapshot out;
  out.step = step;
  out.attributes = attributes;
  out.aliases = aliases_;
  std::map<std::string, std::int64_t> section_elements;
  for (const Tensor& tensor : tensors_) section_elements[tensor.info.section] += tensor.info.num_elements();
  std::map<std::string, std::int64_t> position;
  for (Tensor& tensor : tensors_) {
    const std::int64_t num_blocks = section_elements[tensor.info.section] / block_elements_ + 1;
    const std::int64_t slice_begin = num_blocks * rank / num_ranks * block_elements_;
    const std::int64_t slice_end = num_blocks * (rank + 1) / num_ranks * block_elements_;
    std::int64_t& at = position[tensor.info.section];
    TensorPart part;
    part.info = tensor.info;
    part.begin = std::clamp<std::int64_t>(slice_begin - at, 0, tensor.info.num_elements());
    part.end = std::clamp<std::int64_t>(slice_end - at, 0, tensor.info.num_elements());
    part.data = tensor.bytes.data() + static_cast<std::size_t>(part.begin) * size_of(tensor.info.type);
    part.block_elements = block_elements_;
    part.block_phase = (block_elements_ - at % block_elements_) % block_elements_;
    at += tensor.info.num_elements();
    out.tensors.push_back(part);
  }
  return out;
}

MadeState small_state(std::uint64_t seed) {
  MadeState state;
  for (const char* section : {"weights", "optimizer/exp_avg", "optimizer/exp_avg_sq"}) {
    state.add(section, "fc1.weight", ElementType::float32, {33, 17}, seed);
    state.add(section, "fc1.bias", ElementType::float32, {33}, seed);
    state.add(section, "fc2.weight", ElementType::float32, {5, 33}, seed);
    state.add(section, "scale", ElementType::float32, {}, seed);
  }
  state.add("weights", "frozen", ElementType::bfloat16, {7, 3}, seed);
  state.add("buffers", "bn.running_mean", ElementType::float64, {33}, seed);
  state.add("buffers", "bn.num_batches_tracked", ElementType::int64, {}, seed);
  state.add("buffers", "mask", ElementType::boolean, {5, 5}, seed);
  state.add("buffers", "nothing", ElementType::float32, {0, 4}, seed);
  state.add_alias("weights", "head.weight", "fc2.weight");
  state.attributes["progress"] = {{"epoch", std::int64_t{3}}, {"steps_taken", std::int64_t{40}}};
  state.attributes["schedule"] = {{"kind", std::string("cosine")}, {"learning_rate", 1e-3}};
  state.attributes["options"] = {{"milestones", std::vector<std::int64_t>{10, 20, 30}},
                                 {"betas", std::vector<double>{0.9, 0.999}},
                                 {"files", std::vector<std::string>{"a.h5", "",
                                                                    "gr\xc3\xbc\xc3\x9f"
                                                                    "e.h5"}},
                                 {"none", std::vector<std::string>{}},
                                 {"empty", std::string()}};
  return state;
}

std::string differences(Communicator& communicator, CheckpointReader& reader, MadeState& state) {
  std::string found;
  for (int shift = 0; shift < 2; ++shift) {
    const int rank = (communicator.rank() + shift) % communicator.num_ranks();
    Snapshot wanted = state.snapshot(0, rank, communicator.num_ranks());
    std::vector<std::vector<std::byte>> buffers;
    std::vector<TensorPart> parts = wanted.tensors;
    for (TensorPart& part : parts) {
      buffers.emplace_back(static_cast<std::size_t>(part.end - part.begin) * size_of(part.info.type));
      part.data = buffers.back().data();
    }
    reader.read(parts);
    for (std::size_t i = 0; i < parts.size(); ++i) {
      if (!buffers[i].empty() && std::memcmp(buffers[i].data(), wanted.tensors[i].data, buffers[i].size()) != 0) {
        found += parts[i].info.section + "/" + parts[i].info.name + " ";
      }
    }
  }
  std::string all;
  for (const std::string& one : gather_texts(communicator, found)) all += one;
  return all;
}

std::string make_test_folder(Communicator& communicator, Place place) {
  const std::filesystem::path memory = "/dev/shm";
  const bool is_in_memory = place == Place::memory && std::filesystem::is_directory(memory);
  const std::filesystem::path parent = is_in_memory ? memory : std::filesystem::temp_directory_path();
  std::string name = (parent / "lockstep-test-XXXXXX").string();
  agree(communicator, [&] {
    if (communicator.rank() == 0 && ::mkdtemp(name.data()) == nullptr) {
      throw Error(ErrorKind::failed, "cannot make a folder for a test");
    }
  });
  return broadcast_text(communicator, name);
}

void remove_folder(Communicator& communicator, const std::string& folder) {
  communicator.barrier();
  if (communicator.rank() == 0) std::filesystem::remove_all(folder);
  communicator.barrier();
}

}  // namespace lockstep::test
