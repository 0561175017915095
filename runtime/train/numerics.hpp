#pragma once

#include <c10/core/Device.h>

#include <string>
#include <vector>

#include "runtime/plan/attributes.hpp"
#include "runtime/train/precision.hpp"

namespace lockstep {

/// What must be equal for equal bits, beside the plan: LibTorch, instruction set, threads inside a rank, precision,
/// the kind of device, and whether the calling thread flushes subnormal numbers.
AttributeGroup numerics_of(Precision precision, c10::Device device);

/// Lets the calling thread, and those that it starts from now on, take subnormal numbers (nearer to zero than the
/// smallest normal one) for zero, where the processor can.
///
/// Most processors compute with them many times more slowly, and training meets them: a moment whose gradient stays
/// zero, as that of a unit which ReLU has switched off, shrinks until it is subnormal, and rounding keeps it there.
/// For whole threads, so it is the program's choice and not the trainer's: call it first in main.
void flush_subnormals();

/// Makes LibTorch use the algorithms alone that give the same bits whenever they are run, and refuse operations that
/// have none: on a device they are not its first choice. To be called before a device is used.
void use_deterministic_algorithms();

/// One sentence for everything of `today` that differs from the group "numerics" of a checkpoint.
std::vector<std::string> numerics_notes(const AttributeTree& stored, const AttributeGroup& today);

}  // namespace lockstep
