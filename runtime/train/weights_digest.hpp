#pragma once

#include <string>

#include <torch/nn/module.h>

namespace lockstep {

/// 32 hexadecimal digits (XXH3, 128 bits) over the names, types, shapes and bits of all parameters and buffers of
/// `module`, in the order of their names. Equal digests mean equal models, whatever ranks trained them.
std::string weights_digest(const torch::nn::Module& module);

}  // namespace lockstep
