# shellcheck shell=bash
# Sourced by the scripts of this folder, which compare with Python: installs what is missing, makes a Python environment
# in .venv/ for the peer, which runs on the very LibTorch that Lockstep is built on (the wheel in .libtorch/, so Python
# 3.11), and starts the comparison.

# shellcheck source=examples/environment.sh
source "$(dirname "${BASH_SOURCE[0]}")/../../examples/environment.sh"

if [[ ${1:-} == --help || ${1:-} == -h ]]; then
  sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"
  exit 0
fi

fail() {
  echo "bench: $*" >&2
  exit 1
}

# Both sides on one LibTorch: the wheel's.
unset LOCKSTEP_TORCH_DIR CMAKE_PREFIX_PATH
"$root/examples/setup.sh" --bench

site=$root/.venv/lib/python3.11/site-packages
export PYTHONPATH=$root/.libtorch PYTHONDONTWRITEBYTECODE=1

torch_imports() {
  LD_LIBRARY_PATH=$(cuda_folders) "$root/.venv/bin/python" -c 'import torch.distributed, numpy' >/dev/null 2>&1
}

# Folders of the CUDA libraries in .venv, as the loader wants them.
cuda_folders() { compgen -G "$site/nvidia/*/lib" | paste -s -d : || true; }

# The module of the wheel asks for every CUDA library as soon as it is imported; those that this machine lacks are
# taken as the wheel's own requirements name them.
install_missing_cuda_libraries() {
  local -A requirement=(
    [libcublas]='cuda-toolkit[cublas]==13.0.2' [libcublasLt]='cuda-toolkit[cublas]==13.0.2'
    [libcudart]='cuda-toolkit[cudart]==13.0.2' [libcufft]='cuda-toolkit[cufft]==13.0.2'
    [libcufile]='cuda-toolkit[cufile]==13.0.2' [libcupti]='cuda-toolkit[cupti]==13.0.2'
    [libcurand]='cuda-toolkit[curand]==13.0.2' [libcusolver]='cuda-toolkit[cusolver]==13.0.2'
    [libcusparse]='cuda-toolkit[cusparse]==13.0.2' [libnvJitLink]='cuda-toolkit[nvjitlink]==13.0.2'
    [libcudnn]=nvidia-cudnn-cu13==9.19.0.56 [libcusparseLt]=nvidia-cusparselt-cu13==0.8.0
    [libnccl]=nvidia-nccl-cu13==2.28.9 [libnvshmem_host]=nvidia-nvshmem-cu13==3.4.5
  )
  local library wanted=()
  while read -r library; do
    wanted+=("${requirement[${library%%.so*}]:?no package is known that holds $library}")
  done < <(LD_LIBRARY_PATH=$(cuda_folders) ldd "$root/.libtorch/torch/lib/libtorch_python.so" |
    awk '/not found/ { print $1 }' | sort -u)
  if ((${#wanted[@]})); then
    "$root/.venv/bin/pip" install --quiet "${wanted[@]}"
  fi
}

if ! torch_imports; then
  echo "bench: making .venv for the Python side"
  python3 -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' ||
    fail "python3 is not 3.11, for which the wheel in .libtorch is made: put one first in PATH"
  python3 -m venv "$root/.venv"
  "$root/.venv/bin/pip" install --quiet filelock typing-extensions sympy networkx jinja2 fsspec numpy
  install_missing_cuda_libraries
  torch_imports || fail "torch cannot be imported; see: PYTHONPATH=.libtorch .venv/bin/python -c 'import torch'"
fi

# compare PROGRAM SCRIPT ARGUMENT...: builds our side, and hands over to the script of this folder.
compare() {
  cd "$root" || exit
  cmake --preset release >/dev/null
  cmake --build build/release --parallel "$(build_jobs)" --target "$1"
  LD_LIBRARY_PATH=$(cuda_folders) exec "$root/.venv/bin/python" "tests/bench/$2" \
    "--${1//_/-}" "$root/build/release/bin/$1" "${@:3}"
}
