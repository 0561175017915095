#include "runtime/train/numerics.hpp"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <torch/version.h>

#include <cstdlib>
#include <limits>
#include <optional>

namespace lockstep {
namespace {

std::string printed(const AttributeValue& value) {
  if (const auto* words = std::get_if<std::string>(&value)) return *words;
  if (const auto* number = std::get_if<std::int64_t>(&value)) return std::to_string(*number);
  return "?";
}

bool flushes_subnormals() {
  volatile float smallest = std::numeric_limits<float>::min();  // so that no compiler knows the answer
  return smallest * 0.5F == 0.0F;
}

}  // namespace

AttributeGroup numerics_of(Precision precision, c10::Device device) {
  return {{"libtorch", std::string(TORCH_VERSION)},
          {"cpu_capability", at::get_cpu_capability()},
          {"intra_op_threads", std::int64_t{at::get_num_threads()}},
          {"precision", name_of(precision)},
          {"device", c10::DeviceTypeName(device.type(), /*lower_case=*/true)},
          {"subnormals", std::string(flushes_subnormals() ? "flushed" : "kept")}};
}

void flush_subnormals() { at::globalContext().setFlushDenormal(true); }

void use_deterministic_algorithms() {
  // cuBLAS reads it when it is first used; without a workspace of its own it may choose by what is free.
  ::setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);
  at::Context& context = at::globalContext();
  context.setDeterministicAlgorithms(/*b=*/true, /*warn_only=*/false);
  // Or every new tensor would be filled, a kernel each, to show who reads one before it is written.
  context.setDeterministicFillUninitializedMemory(false);
  context.setDeterministicCuDNN(true);
  context.setBenchmarkCuDNN(false);
  context.setAllowTF32CuBLAS(false);
  context.setAllowTF32CuDNN(false);
}

std::vector<std::string> numerics_notes(const AttributeTree& stored, const AttributeGroup& today) {
  std::vector<std::string> notes;
  const auto group = stored.find("numerics");
  if (group == stored.end()) return notes;
  for (const auto& [name, value] : today) {
    const auto found = group->second.find(name);
    std::optional<AttributeValue> before;
    if (found != group->second.end())
      before = found->second;
    else if (name == "subnormals")
      before = std::string("kept");  // by the versions that did not say so
    if (before && *before != value)
      notes.push_back(text(name, " was ", printed(*before), ", is ", printed(value),
                           ": the run goes on, but its bits may differ from those of an unbroken one"));
  }
  return notes;
}

}  // namespace lockstep
