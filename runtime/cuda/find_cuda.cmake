# Looks for what the plug-in is built from: a CUDA toolkit with nvcc, NCCL, and the CUDA half of the LibTorch that the
# trainer uses. Sets `cuda_missing` to what is not there, in words; empty: all of it is.
set(cuda_missing "")

if(NOT LOCKSTEP_TRAIN)
  list(APPEND cuda_missing "the trainer (LOCKSTEP_TRAIN is off)")
else()
  get_filename_component(torch_lib_dir ${LOCKSTEP_TORCH_CPU} DIRECTORY)
  foreach(library IN ITEMS torch_cuda c10_cuda)
    string(TOUPPER LOCKSTEP_${library} variable)
    find_library(${variable} ${library} HINTS ${torch_lib_dir} NO_DEFAULT_PATH)
    if(NOT ${variable})
      list(APPEND cuda_missing "lib${library}.so beside ${LOCKSTEP_TORCH_CPU} (a LibTorch with CUDA)")
    endif()
  endforeach()
endif()

find_package(CUDAToolkit QUIET)
if(NOT CUDAToolkit_FOUND OR NOT CUDAToolkit_NVCC_EXECUTABLE)
  list(APPEND cuda_missing "a CUDA toolkit with nvcc (CUDAToolkit_ROOT or PATH may say where)")
endif()

# In NCCL_HOME, with the toolkit, or from the wheel beside LibTorch.
set(nccl_hints $ENV{NCCL_HOME} ${CUDAToolkit_TARGET_DIR} ${CUDAToolkit_LIBRARY_ROOT} ${torch_lib_dir}/../../nvidia/nccl)
find_path(LOCKSTEP_NCCL_INCLUDE nccl.h HINTS ${nccl_hints} PATH_SUFFIXES include)
find_library(LOCKSTEP_NCCL NAMES nccl libnccl.so.2 HINTS ${nccl_hints} PATH_SUFFIXES lib lib64)
if(NOT LOCKSTEP_NCCL_INCLUDE OR NOT LOCKSTEP_NCCL)
  list(APPEND cuda_missing "NCCL, nccl.h and libnccl.so (NCCL_HOME may say where)")
endif()
