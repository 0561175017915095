"""What both sides of the comparison compute: models, initial weights, and data that a formula gives.

The C++ side (step_bench.cpp) follows the same formulas. Weights travel as raw little-endian float32 in the order of
named_parameters().
"""

import sys

import torch
from torch import nn
from torch.nn.functional import max_pool2d, relu

IMAGE_SIDE = 28
NUM_FEATURES = IMAGE_SIDE * IMAGE_SIDE
NUM_CLASSES = 10


def mlp(widths):
    """Linear layers with ReLU between them."""
    layers = []
    for inputs, outputs in zip(widths, widths[1:]):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(nn.Flatten(), *layers[:-1])


class Cnn(nn.Module):
    """The built-in model "cnn" of lockstep-train (drivers/train_models.cpp)."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(32)
        self.conv2 = nn.Conv2d(32, 64, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(64)
        self.hidden = nn.Linear(64 * (IMAGE_SIDE // 4) ** 2, 128)
        self.dropout = nn.Dropout(0.25)
        self.output = nn.Linear(128, NUM_CLASSES)

    def forward(self, x):
        x = max_pool2d(relu(self.norm1(self.conv1(x))), 2)
        x = max_pool2d(relu(self.norm2(self.conv2(x))), 2)
        x = relu(self.hidden(x.flatten(1)))
        return self.output(self.dropout(x))


def build_model(name):
    kind, _, widths = name.partition(":")
    if kind == "cnn":
        return Cnn()
    if kind == "mlp" and widths:
        return mlp([int(width) for width in widths.split("-")])
    sys.exit(f"no model {name}: cnn, or mlp:<width>-<width>-...")


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
    return inputs.reshape(num_samples, 1, IMAGE_SIDE, IMAGE_SIDE), targets


def export_weights(model, path):
    with open(path, "wb") as file:
        for parameter in model.parameters():
            file.write(parameter.detach().contiguous().numpy().tobytes())


def import_weights(model, path):
    values = torch.from_file(path, size=sum(p.numel() for p in model.parameters()), dtype=torch.float32)
    with torch.no_grad():
        for parameter, part in zip(model.parameters(), values.split([p.numel() for p in model.parameters()])):
            parameter.copy_(part.view_as(parameter))
