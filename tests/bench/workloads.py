"""What both sides of the comparison compute: models, initial weights, and data that a formula gives.

The C++ side (step_bench.cpp) follows the same formulas. Weights travel as raw little-endian float32 in the order of
named_parameters().
"""

import sys

import torch
from torch import nn

NUM_FEATURES = 784
NUM_CLASSES = 10


def mlp(widths):
    """Linear layers with ReLU between them."""
    layers = []
    for inputs, outputs in zip(widths, widths[1:]):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def build_model(name):
    kind, _, widths = name.partition(":")
    if kind == "mlp" and widths:
        return mlp([int(width) for width in widths.split("-")])
    sys.exit(f"no model {name}: mlp:<width>-<width>-...")


def scramble(numbers):
    """A 32-bit hash of 32-bit numbers (held in int64, so that products do not overflow before they are cut)."""
    mask = 0xFFFFFFFF
    x = (numbers * 2654435761) & mask
    x = x ^ (x >> 16)
    x = (x * 0x45D9F3B) & mask
    return x ^ (x >> 15)


def synthetic_data(num_samples):
    """Inputs uniform in [0, 1) and classes, each a hash of its index: the same bits on every machine."""
    indices = torch.arange(num_samples * NUM_FEATURES, dtype=torch.int64)
    inputs = (scramble(indices) >> 8).to(torch.float32) * 2.0**-24
    targets = scramble(torch.arange(num_samples, dtype=torch.int64) + 0x5BD1E995) % NUM_CLASSES
    return inputs.reshape(num_samples, NUM_FEATURES), targets


def export_weights(model, path):
    with open(path, "wb") as file:
        for parameter in model.parameters():
            file.write(parameter.detach().contiguous().numpy().tobytes())


def import_weights(model, path):
    values = torch.from_file(path, size=sum(p.numel() for p in model.parameters()), dtype=torch.float32)
    with torch.no_grad():
        for parameter, part in zip(model.parameters(), values.split([p.numel() for p in model.parameters()])):
            parameter.copy_(part.view_as(parameter))
