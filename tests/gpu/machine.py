"""What a machine has of what a run on devices needs: driver, GPUs, CUDA, NCCL, LibTorch."""

import ctypes
import glob
import importlib.util
import os
import platform
import re
import subprocess
import sys


def version_text(number, thousands=1000):
    """13000 -> "13.0" as CUDA counts; 22809 -> "2.28.9" as NCCL counts, with thousands=10000."""
    if thousands == 1000:
        return f"{number // 1000}.{number % 1000 // 10}"
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"


COMPUTE_MODE = 20  # CU_DEVICE_ATTRIBUTE_COMPUTE_MODE
EXCLUSIVE_PROCESS = 3  # CU_COMPUTEMODE_EXCLUSIVE_PROCESS


class Driver:
    """The driver's own answers, asked without any part of a CUDA toolkit."""

    def __init__(self, library="libcuda.so.1"):
        self.cuda_version = 0
        self.names = []
        self.is_exclusive = False  # the first device takes one process only
        self.why_no_device = ""
        try:
            cuda = ctypes.CDLL(library)
        except OSError as error:
            self.why_no_device = f"there is no driver of NVIDIA on this machine ({error})"
            return
        number = ctypes.c_int()
        if cuda.cuDriverGetVersion(ctypes.byref(number)) == 0:
            self.cuda_version = number.value
        code = cuda.cuInit(0)
        if code != 0:
            self.why_no_device = f"the driver does not start, or sees no GPU (cuInit gave {code})"
            return
        cuda.cuDeviceGetCount(ctypes.byref(number))
        name = ctypes.create_string_buffer(256)
        for index in range(number.value):
            device = ctypes.c_int()
            cuda.cuDeviceGet(ctypes.byref(device), index)
            cuda.cuDeviceGetName(name, len(name), device)
            self.names.append(name.value.decode())
            if index == 0 and cuda.cuDeviceGetAttribute(ctypes.byref(number), COMPUTE_MODE, device) == 0:
                self.is_exclusive = number.value == EXCLUSIVE_PROCESS
        if not self.names:
            self.why_no_device = "the driver sees no GPU"

    @staticmethod
    def version():
        """The driver's own version, "580.159.03"; empty where it cannot be read."""
        try:
            with open("/proc/driver/nvidia/version", encoding="utf-8") as lines:
                found = re.search(r"\b(\d+\.\d+(\.\d+)?)\b", lines.read())
        except OSError:
            found = None
        if found:
            return found.group(1)
        return output_of("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader").split("\n")[0]


def output_of(*command):
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, timeout=30,
                              check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def torch_folder(built_with=None):
    """The LibTorch that is used: LOCKSTEP_TORCH_DIR, that of the build where it is here, or the Python module torch."""
    if os.environ.get("LOCKSTEP_TORCH_DIR"):
        return os.environ["LOCKSTEP_TORCH_DIR"]
    if built_with and os.path.isdir(built_with):
        return str(built_with)
    module = importlib.util.find_spec("torch")
    return list(module.submodule_search_locations)[0] if module and module.submodule_search_locations else ""


def torch_version(folder):
    """"2.11.0+cu130"; empty where the folder holds no LibTorch."""
    for name, pattern in (("version.py", r"__version__ = '([^']+)'"), ("build-version", r"(\S+)"),
                          (os.path.join("..", "build-version"), r"(\S+)")):
        try:
            with open(os.path.join(folder, name), encoding="utf-8") as file:
                found = re.search(pattern, file.read())
        except OSError:
            continue
        if found:
            return found.group(1)
    return ""


def torch_libraries(folder):
    """Folders in which the loader finds LibTorch and the CUDA libraries of the wheels beside it."""
    if not folder:
        return []
    return [os.path.join(folder, "lib"), *sorted(glob.glob(os.path.join(folder, "..", "nvidia", "*", "lib")))]


def nccl_version(folders):
    for folder in [*folders, ""]:
        try:
            nccl = ctypes.CDLL(os.path.join(folder, "libnccl.so.2"))
        except OSError:
            continue
        number = ctypes.c_int()
        if nccl.ncclGetVersion(ctypes.byref(number)) == 0:
            return version_text(number.value, thousands=10000)
    return ""


def facts(driver, torch, libraries):
    """For the report; what is not there is an empty text."""
    memory = output_of("nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader").split("\n")[0]
    return {
        "gpus": driver.names, "gpu_memory": memory, "driver": driver.version(),
        "cuda_of_driver": version_text(driver.cuda_version) if driver.cuda_version else "",
        "nccl": nccl_version(libraries), "libtorch": torch_version(torch), "libtorch_folder": torch,
        "python": platform.python_version(), "python_program": sys.executable, "kernel": platform.release(),
        "libc": " ".join(platform.libc_ver()), "cores": len(os.sched_getaffinity(0)),
    }
