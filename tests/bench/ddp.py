"""Steps of Python's DistributedDataParallel, timed: the peer of step_bench.cpp. On the CPU over gloo, on devices over
NCCL. Started by mpirun, or with RANK and WORLD_SIZE set.

Prints one line of JSON: seconds_per_step, cpu_seconds_per_step (of this rank), and first_loss (of the first global
batch, in evaluation mode, before any step), by which the two sides are seen to compute the same thing.
"""

import argparse
import json
import os
import time

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import workloads


def measure(options, device, rank, num_ranks):
    on_device = device.type == "cuda"
    model = workloads.build_model(options.model)
    workloads.import_weights(model, options.weights)
    model.to(device)
    global_batch = options.samples_per_rank * num_ranks
    num_batches = options.num_samples // global_batch
    inputs, targets = workloads.synthetic_data(num_batches * global_batch)

    model.eval()
    with torch.no_grad():
        outputs = model(inputs[:global_batch].to(device))
        first_loss = cross_entropy(outputs, targets[:global_batch].to(device)).item()
    model.train()

    # This rank's part of every global batch, cut beforehand: the timed loop handles no data, but brings it to a device
    # as a loader with pinned memory does.
    shape = (num_batches, num_ranks, options.samples_per_rank)
    parts = [(x[rank], y[rank]) for x, y in zip(inputs.unflatten(0, shape), targets.unflatten(0, shape))]
    if on_device:
        parts = [(x.pin_memory(), y.pin_memory()) for x, y in parts]
    ddp = DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=1e-3, weight_decay=0.01, fused=True)
    for step in range(options.warmup_steps + options.steps):
        if step == options.warmup_steps:
            finish(on_device)
            dist.barrier()
            start, cpu_start = time.perf_counter(), time.process_time()
        x, y = (part.to(device, non_blocking=True) for part in parts[step % num_batches])
        optimizer.zero_grad(set_to_none=True)
        cross_entropy(ddp(x), y).backward()
        optimizer.step()
    finish(on_device)
    cpu_seconds = time.process_time() - cpu_start
    dist.barrier()
    return {"seconds_per_step": (time.perf_counter() - start) / options.steps,
            "cpu_seconds_per_step": cpu_seconds / options.steps, "first_loss": first_loss}


def finish(on_device):
    if on_device:
        torch.cuda.synchronize()


def variable(*names):
    return int(next(os.environ[name] for name in names if name in os.environ))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--samples-per-rank", type=int, default=64)
    parser.add_argument("--num-samples", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=200, help="timed steps")
    parser.add_argument("--warmup-steps", type=int, default=20, help="steps before them")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--weights", required=True, help="file of the initial weights")
    parser.add_argument("--export-weights", action="store_true", help="write that file, and leave")
    options = parser.parse_args()

    torch.set_num_threads(1)
    if options.export_weights:
        torch.manual_seed(1)
        workloads.export_weights(workloads.build_model(options.model), options.weights)
        return
    rank, num_ranks = variable("OMPI_COMM_WORLD_RANK", "RANK"), variable("OMPI_COMM_WORLD_SIZE", "WORLD_SIZE")
    device = torch.device("cpu")
    if options.device == "cuda":
        device = torch.device("cuda", rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo", rank=rank, world_size=num_ranks)
    report = measure(options, device, rank, num_ranks)
    if rank == 0:
        print(json.dumps(report), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
