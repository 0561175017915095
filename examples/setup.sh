#!/usr/bin/env bash
# Puts on this machine what Lockstep is built from, and nothing that is there already.
#
#   examples/setup.sh              packages, and a LibTorch in .libtorch/ when none is pointed at
#   examples/setup.sh --tests      also what only the tests need
#   examples/setup.sh --bench      also what only the comparison with Python needs
#   examples/setup.sh --cuda       also the libraries that LibTorch's CUDA half lacks on this machine, for --device cuda
#   examples/setup.sh --no-torch   packages alone (lockstep-plan and lockstep-checkpoint need no LibTorch)
#
# LOCKSTEP_TORCH_DIR   a LibTorch >= 2.4 to use (holds include/ and lib/); CMAKE_PREFIX_PATH is searched too
# LOCKSTEP_WHEEL_DIR   folder that keeps downloaded wheels; a wheel found there is not downloaded again
#
# For Debian 12 and Ubuntu 24.04, as root or with sudo. Elsewhere: install the packages below by your own means, then run
# it with --no-torch or with LOCKSTEP_TORCH_DIR set.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
torch_home=$root/.libtorch
torch_version=2.11.0
cuda_version=13.0  # of the two CUDA libraries that libtorch_cpu of that wheel is linked with

packages=(
  build-essential         # the compiler
  ca-certificates         # so that downloads can be checked
  cmake                   # the build
  ninja-build             # the build, in parallel
  ccache                  # a second build in seconds
  libopenmpi-dev          # MPI: the ranks
  openmpi-bin             # mpirun
  libhdf5-openmpi-dev     # HDF5 over MPI: data sets and checkpoints
  hdf5-tools              # h5dump: a look into a checkpoint
  libcli11-dev            # flags and configuration files of the programs
  nlohmann-json3-dev      # metrics.jsonl and --json
  libxxhash-dev           # digests of weights, checksums in checkpoints
  libgtest-dev            # the tests, which the default preset builds
  zlib1g-dev              # reads the gzipped images of Fashion-MNIST
  dataset-fashion-mnist   # the 70,000 images of the quickstart
  python3                 # unpacks LibTorch
)
test_packages=(
  binutils                # readelf: which libraries a program is linked with
  slurmctld               # the tests of slurm/ start a private cluster on the loopback device
  slurmd                  # its nodes
  slurm-client            # sbatch, srun, scontrol
  munge                   # its authentication
  iproute2                # its nodes' names and addresses
  python3-h5py            # reads a checkpoint as users do
)
safetensors_version=0.5.3  # of the Python package that reads what lockstep-checkpoint exports
bench_packages=(
  python3-venv            # a Python of its own for the peer of the comparison
)

# What only LibTorch's CUDA half is linked with, and the wheels that hold it, as torch 2.11.0 names them. A toolkit with
# nvcc and the driver are the machine's own: they are not installed here.
declare -A device_wheels=(
  [libcublas]=nvidia-cublas==13.1.0.3
  [libcublasLt]=nvidia-cublas==13.1.0.3
  [libcudnn]=nvidia-cudnn-cu13==9.19.0.56
  [libcufft]=nvidia-cufft==12.0.0.61
  [libcufile]=nvidia-cufile==1.15.1.6
  [libcurand]=nvidia-curand==10.4.0.35
  [libcusolver]=nvidia-cusolver==12.0.4.66
  [libcusparse]=nvidia-cusparse==12.6.3.3
  [libcusparseLt]=nvidia-cusparselt-cu13==0.8.0
  [libnccl]=nvidia-nccl-cu13==2.28.9
  [libnvJitLink]=nvidia-nvjitlink==13.0.88
  [libnvrtc]=nvidia-cuda-nvrtc==13.0.88
  [libnvshmem_host]=nvidia-nvshmem-cu13==3.4.5
)

say() { printf 'setup: %s\n' "$*"; }
fail() {
  printf 'setup: %s\n' "$*" >&2
  exit 1
}

with_torch=yes
with_cuda=no
with_tests=no
while (($#)); do
  case $1 in
    --no-torch) with_torch=no ;;
    --tests)
      packages+=("${test_packages[@]}")
      with_tests=yes
      ;;
    --cuda) with_cuda=yes ;;
    --bench) packages+=("${bench_packages[@]}") ;;
    --help | -h)
      sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"
      exit 0
      ;;
    *) fail "unknown option $1 (see --help)" ;;
  esac
  shift
done

# --- packages ---------------------------------------------------------------------------------------------------

is_installed() { [[ $(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null) == installed ]]; }

# install PACKAGE...: those that are missing, with one look at the package lists.
install() {
  local missing=() package
  if ! command -v dpkg-query >/dev/null; then
    say "no dpkg on this machine: taking for granted what these packages of Debian hold: $*"
    return
  fi
  for package in "$@"; do
    is_installed "$package" || missing+=("$package")
  done
  if ((${#missing[@]} == 0)); then
    say "all $# packages are there"
    return
  fi
  local as_root=()
  if ((EUID != 0)); then
    command -v sudo >/dev/null || fail "these packages are missing: ${missing[*]} (installing them needs root, and" \
      "there is no sudo). Ask for them, or run this as root."
    as_root=(sudo)
  fi
  say "installing ${missing[*]}"
  local apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -o Acquire::Retries=3
    -o DPkg::Lock::Timeout=600)
  "${apt[@]}" update </dev/null || say "the package lists could not all be renewed; going on with those that are there"
  "${apt[@]}" install -y --no-install-recommends "${missing[@]}" </dev/null ||
    fail "apt-get could not install: ${missing[*]}. Its own message is above."
}

# --- LibTorch ---------------------------------------------------------------------------------------------------

is_libtorch() { compgen -G "$1/lib/libtorch_cpu.*" >/dev/null && [[ -d $1/include/torch ]]; }

# The LibTorch that the caller points at, if any.
given_libtorch() {
  local dir
  if [[ -n ${LOCKSTEP_TORCH_DIR:-} ]]; then
    is_libtorch "$LOCKSTEP_TORCH_DIR" || fail "LOCKSTEP_TORCH_DIR is $LOCKSTEP_TORCH_DIR, but no" \
      "lib/libtorch_cpu.so and include/torch are in it. Point it at a LibTorch, or unset it to get one."
    printf '%s' "$LOCKSTEP_TORCH_DIR"
    return
  fi
  local IFS=':;'
  for dir in ${CMAKE_PREFIX_PATH:-}; do
    if [[ -n $dir ]] && is_libtorch "$dir"; then
      printf '%s' "$dir"
      return
    fi
  done
}

# fetch_wheel REQUIREMENT DIR [PIP-OPTION...]: prints the path of the wheel, downloaded unless DIR holds it.
fetch_wheel() {
  local requirement=$1 dir=$2 name version
  shift 2
  name=${requirement%%==*}
  version=${requirement##*==}
  local pattern="$dir/${name//-/_}-${version}-*.whl"
  if ! compgen -G "$pattern" >/dev/null; then
    say "downloading $requirement" >&2
    python3 -m pip download --quiet --no-deps --only-binary=:all: --dest "$dir" "$@" "$requirement" >&2 </dev/null ||
      fail "pip could not download $requirement. Put that wheel into a folder and name it in LOCKSTEP_WHEEL_DIR, or" \
        "point LOCKSTEP_TORCH_DIR at a LibTorch >= 2.4."
  fi
  compgen -G "$pattern" | head -n 1
}

need_pip() {
  # pip downloads, it installs nothing: the system's Python stays as its packages made it.
  python3 -m pip --version >/dev/null 2>&1 || install python3-pip
}

unpack() { python3 -m zipfile -e "$1" "$2" || fail "$1 could not be unpacked: delete it and run this again."; }

# CUDA libraries that libtorch_cpu asks for and the loader does not find, from a toolkit or from beside it.
missing_cuda_libraries() { ldd "$1/torch/lib/libtorch_cpu.so" | awk '/(cudart|cupti).*not found/ { print $1 }'; }

# Fills .libtorch/: everything is unpacked in a folder beside it and moved into place, `torch` last, so that a
# .libtorch/torch that exists is whole.
install_libtorch() {
  mkdir -p "$torch_home"
  exec 9>"$torch_home/lock"
  flock 9
  rm -rf "$torch_home"/unpack.*
  local wheels stage
  stage=$(mktemp -d "$torch_home/unpack.XXXXXX")
  trap 'rm -rf "$torch_home"/unpack.*' EXIT
  wheels=${LOCKSTEP_WHEEL_DIR:-$stage/wheels}
  mkdir -p "$wheels" "$stage/tree"
  local tree=$stage/tree fresh=no platform wheel
  platform=manylinux_2_28_$(uname -m)

  if is_libtorch "$torch_home/torch"; then
    tree=$torch_home
  else
    fresh=yes
    need_pip
    wheel=$(fetch_wheel "torch==$torch_version" "$wheels" --python-version 3.11 --implementation cp --abi cp311 \
      --platform "$platform")
    say "unpacking $(basename "$wheel") into .libtorch"
    unpack "$wheel" "$tree"
  fi
  if [[ -n $(missing_cuda_libraries "$tree") ]]; then
    need_pip
    local name
    for name in nvidia-cuda-runtime nvidia-cuda-cupti; do
      wheel=$(fetch_wheel "$name==$cuda_version.*" "$wheels" --platform "manylinux_2_25_$(uname -m)" \
        --platform "$platform" --platform "manylinux2014_$(uname -m)")
      say "unpacking $(basename "$wheel") beside it"
      unpack "$wheel" "$stage/cuda"
    done
    mkdir -p "$torch_home/nvidia"
    rm -rf "$torch_home/nvidia/cu13"
    mv "$stage/cuda/nvidia/cu13" "$torch_home/nvidia/cu13"
  fi
  if [[ $fresh == yes ]]; then
    rm -rf "$torch_home/torch"
    local entry
    for entry in "$tree"/*; do
      [[ $entry == */torch ]] && continue
      rm -rf "${torch_home:?}/$(basename "$entry")"
      mv "$entry" "$torch_home/"
    done
    mv "$tree/torch" "$torch_home/torch"
  fi
  if [[ -n $(missing_cuda_libraries "$torch_home") ]]; then
    fail "libtorch_cpu does not find $(missing_cuda_libraries "$torch_home" | tr '\n' ' ')(CUDA $cuda_version). Install" \
      "that CUDA runtime, or point LOCKSTEP_TORCH_DIR at a LibTorch built for CPUs."
  fi
}

ensure_libtorch() {
  local given
  given=$(given_libtorch)
  if [[ -n $given ]]; then
    say "using the LibTorch at $given"
  elif is_libtorch "$torch_home/torch" && [[ -z $(missing_cuda_libraries "$torch_home") ]]; then
    say "LibTorch is in .libtorch/torch"
  else
    install_libtorch
    say "LibTorch $torch_version is in .libtorch/torch"
  fi
}

# Libraries that the CUDA half of the LibTorch in $1 asks for and the loader does not find; the driver's is not meant.
missing_device_libraries() {
  ldd "$1"/lib/lib{torch_cuda,torch_cuda_linalg,caffe2_nvrtc}.so |
    awk '/not found/ && $1 != "libcuda.so.1" { print $1 }' | sort -u
}

# Unpacks what is missing beside LibTorch, where its libraries look.
ensure_device_libraries() {
  local torch
  torch=$(given_libtorch)
  torch=${torch:-$torch_home/torch}
  [[ -e $torch/lib/libtorch_cuda.so ]] ||
    fail "the LibTorch at $torch has no CUDA half (lib/libtorch_cuda.so): point LOCKSTEP_TORCH_DIR at one that has, or" \
      "unset it to get one"
  local missing last='' library wheels stage
  missing=$(missing_device_libraries "$torch")
  if [[ -n $missing && $torch != "$torch_home/torch" ]]; then
    fail "the LibTorch at $torch does not find $(tr '\n' ' ' <<<"$missing")on this machine: install what holds them"
  fi
  stage=$(mktemp -d "$torch_home/unpack.XXXXXX")
  trap 'rm -rf "$torch_home"/unpack.*' EXIT
  wheels=${LOCKSTEP_WHEEL_DIR:-$stage/wheels}
  mkdir -p "$wheels" "$torch_home/nvidia"
  # A library that was missing may ask for others itself.
  while [[ -n $missing && $missing != "$last" ]]; do
    need_pip
    last=$missing
    for library in $missing; do
      local requirement=${device_wheels[${library%%.so*}]:-}
      [[ -n $requirement ]] || fail "no package is known that holds $library: install what holds it"
      [[ -e $stage/${requirement%%==*} ]] && continue
      local wheel
      wheel=$(fetch_wheel "$requirement" "$wheels" --platform "manylinux_2_27_$(uname -m)" \
        --platform "manylinux_2_17_$(uname -m)" --platform "manylinux2014_$(uname -m)")
      say "unpacking $(basename "$wheel") beside LibTorch"
      unpack "$wheel" "$stage/${requirement%%==*}"
      cp -a "$stage/${requirement%%==*}/nvidia/." "$torch_home/nvidia/"
    done
    missing=$(missing_device_libraries "$torch")
  done
  [[ -z $missing ]] || fail "LibTorch still does not find $(tr '\n' ' ' <<<"$missing")"
  say "LibTorch's CUDA half finds all its libraries"
}

# Unpacks the Python package safetensors, which Debian 12 does not have, into .libtorch/python/.
ensure_safetensors() {
  local home=$torch_home/python stage wheel
  [[ -e $home/safetensors/__init__.py ]] && return
  need_pip
  mkdir -p "$home"
  stage=$(mktemp -d "$torch_home/unpack.XXXXXX")
  trap 'rm -rf "$torch_home"/unpack.*' EXIT
  wheel=$(fetch_wheel "safetensors==$safetensors_version" "${LOCKSTEP_WHEEL_DIR:-$stage}" --python-version 3.11 \
    --implementation cp --abi abi3 --platform "manylinux_2_17_$(uname -m)" --platform "manylinux2014_$(uname -m)")
  unpack "$wheel" "$home"
}

install "${packages[@]}"
if [[ $with_torch == yes ]]; then
  ensure_libtorch
fi
if [[ $with_tests == yes ]]; then
  (ensure_safetensors) || say "going on without the Python package safetensors: one test leaves itself out"
fi
if [[ $with_cuda == yes ]]; then
  ensure_device_libraries
fi
