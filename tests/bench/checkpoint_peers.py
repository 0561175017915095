"""PyTorch's ways to save, timed: the peers of checkpoint_bench.cpp. Started by mpirun.

A state of weights and two moments, replicated on all ranks as under DistributedDataParallel, is saved by torch.save on
rank 0, then fsync; by distributed checkpoint (DCP) on all ranks; and by DCP's async_save, of which what counts is for
how long it stops the caller. (Its stagers that keep their memory from save to save need a GPU.) Prints one line of
JSON.
"""

import argparse
import json
import os
import shutil
import time
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp


def made_state(num_tensors, num_elements):
    """Tensors of the sizes of checkpoint_bench.cpp, of random bits, which no disk packs."""
    torch.manual_seed(1)
    return {f"{section}.layer{i}": torch.randn(num_elements + i)
            for section in ("weights", "exp_avg", "exp_avg_sq") for i in range(num_tensors)}


def timed(work):
    """Seconds of `work` until it has ended on all ranks, and what it returned."""
    dist.barrier()
    start = time.perf_counter()
    result = work()
    dist.barrier()
    return time.perf_counter() - start, result


def save_in_one_process(state, path):
    if dist.get_rank() != 0:
        return
    with open(path, "wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())


def settle(path):
    """Removes what was saved, and lets the disk finish with that, so that nobody pays for what came before."""
    dist.barrier()
    if dist.get_rank() == 0:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        os.sync()
    time.sleep(0.3)
    dist.barrier()


def measure(state, folder, background):
    report = {}
    path = folder / "state.pt"
    report["torch_save"], _ = timed(lambda: save_in_one_process(state, path))
    settle(path)
    path = folder / "dcp"
    report["dcp_save"], _ = timed(lambda: dcp.save(state, storage_writer=dcp.FileSystemWriter(path)))
    settle(path)
    path = folder / "dcp-async"
    report["dcp_stop"], saved = timed(lambda: dcp.async_save(state, storage_writer=dcp.FileSystemWriter(path),
                                                             process_group=background))
    saved.result()
    settle(path)
    return report


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tensors", type=int, required=True, help="tensors of each section")
    parser.add_argument("--elements", type=int, required=True, help="elements of the first; each has one more")
    options = parser.parse_args()

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    rank, num_ranks = int(os.environ["OMPI_COMM_WORLD_RANK"]), int(os.environ["OMPI_COMM_WORLD_SIZE"])
    dist.init_process_group("gloo", rank=rank, world_size=num_ranks)
    background = dist.new_group(backend="gloo")  # for the thread of an async_save, beside the barriers of this one
    state = made_state(options.tensors, options.elements)
    measure(state, options.folder, background)  # what only the first save costs is not counted
    report = measure(state, options.folder, background)
    report["bytes"] = sum(tensor.nbytes for tensor in state.values())
    if rank == 0:
        print(json.dumps(report), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
