#pragma once

#include <c10/core/Device.h>

#include <string>
#include <vector>

#include "runtime/plan/attributes.hpp"
#include "runtime/train/precision.hpp"

namespace lockstep {

/// What must be equal for equal bits, beside the plan: LibTorch, instruction set, threads inside a rank, precision,
/// and the kind of device.
AttributeGroup numerics_of(Precision precision, c10::Device device);

/// Makes LibTorch use the algorithms alone that give the same bits whenever they are run, and refuse operations that
/// have none: on a device they are not its first choice. To be called before a device is used.
void use_deterministic_algorithms();

/// One sentence for everything of `today` that differs from the group "numerics" of a checkpoint.
std::vector<std::string> numerics_notes(const AttributeTree& stored, const AttributeGroup& today);

}  // namespace lockstep
