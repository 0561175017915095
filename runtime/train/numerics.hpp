#pragma once

#include <string>
#include <vector>

#include "runtime/plan/attributes.hpp"
#include "runtime/train/precision.hpp"

namespace lockstep {

/// What must be equal for equal bits, beside the plan: LibTorch, instruction set, threads inside a rank, precision.
AttributeGroup numerics_of(Precision precision);

/// One sentence for everything of `today` that differs from the group "numerics" of a checkpoint.
std::vector<std::string> numerics_notes(const AttributeTree& stored, const AttributeGroup& today);

}  // namespace lockstep
