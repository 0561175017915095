# Finds a LibTorch >= 2.4 and makes the target lockstep::torch: its CPU half only.
#
# find_package(Torch) of the CUDA wheels insists on a CUDA toolkit and links every CUDA library; a CPU program needs
# libtorch_cpu and libc10 alone, starts twice as fast and holds a quarter of the memory.
# Looked for in LOCKSTEP_TORCH_DIR (variable or environment), CMAKE_PREFIX_PATH, and the folder that
# examples/setup.sh fills (.libtorch).
set(LOCKSTEP_TORCH_DIR "$ENV{LOCKSTEP_TORCH_DIR}" CACHE PATH "Folder of a LibTorch: holds include/ and lib/")
set(torch_hints ${LOCKSTEP_TORCH_DIR} ${CMAKE_PREFIX_PATH} ${PROJECT_SOURCE_DIR}/.libtorch/torch)
find_path(LOCKSTEP_TORCH_INCLUDE torch/csrc/api/include/torch/version.h HINTS ${torch_hints} PATH_SUFFIXES include)
find_library(LOCKSTEP_TORCH_CPU torch_cpu HINTS ${torch_hints} PATH_SUFFIXES lib)
find_library(LOCKSTEP_TORCH_C10 c10 HINTS ${torch_hints} PATH_SUFFIXES lib)
if(NOT LOCKSTEP_TORCH_INCLUDE OR NOT LOCKSTEP_TORCH_CPU OR NOT LOCKSTEP_TORCH_C10)
  message(FATAL_ERROR "No LibTorch was found (the trainer is built on it). Run examples/setup.sh, or point "
                      "LOCKSTEP_TORCH_DIR at a LibTorch >= 2.4, or build the tools alone with -DLOCKSTEP_TRAIN=OFF.")
endif()

file(STRINGS ${LOCKSTEP_TORCH_INCLUDE}/torch/csrc/api/include/torch/version.h torch_version_lines
     REGEX "#define TORCH_VERSION_(MAJOR|MINOR) ")
if(NOT torch_version_lines)  # newer wheels keep the numbers in a header of their own
  file(STRINGS ${LOCKSTEP_TORCH_INCLUDE}/torch/headeronly/version.h torch_version_lines
       REGEX "#define TORCH_VERSION_(MAJOR|MINOR) ")
endif()
string(REGEX REPLACE ".*MAJOR ([0-9]+).*MINOR ([0-9]+).*" "\\1.\\2" LOCKSTEP_TORCH_VERSION "${torch_version_lines}")
if(LOCKSTEP_TORCH_VERSION VERSION_LESS 2.4)
  message(FATAL_ERROR "LibTorch ${LOCKSTEP_TORCH_VERSION} at ${LOCKSTEP_TORCH_INCLUDE} is too old (2.4 is the first "
                      "with the fused CPU optimizers): run examples/setup.sh or set LOCKSTEP_TORCH_DIR.")
endif()
message(STATUS "LibTorch ${LOCKSTEP_TORCH_VERSION}: ${LOCKSTEP_TORCH_CPU}")

if(NOT TARGET lockstep::torch)  # an installed package may be looked for twice
  add_library(lockstep::torch INTERFACE IMPORTED GLOBAL)
endif()
target_include_directories(lockstep::torch SYSTEM INTERFACE
  ${LOCKSTEP_TORCH_INCLUDE} ${LOCKSTEP_TORCH_INCLUDE}/torch/csrc/api/include)
target_link_libraries(lockstep::torch INTERFACE ${LOCKSTEP_TORCH_CPU} ${LOCKSTEP_TORCH_C10})
# Wheels before 2.6 used the old C++ string ABI; the package's own file tells.
set(torch_config ${LOCKSTEP_TORCH_INCLUDE}/../share/cmake/Torch/TorchConfig.cmake)
if(EXISTS ${torch_config})
  file(STRINGS ${torch_config} torch_abi REGEX "_GLIBCXX_USE_CXX11_ABI=0")
  if(torch_abi)
    target_compile_definitions(lockstep::torch INTERFACE _GLIBCXX_USE_CXX11_ABI=0)
  endif()
endif()
# libtorch_cpu of a CUDA wheel needs libcudart and libcupti at run time: from a toolkit, or from the wheels that
# setup.sh puts beside it (its own run path finds those).
get_filename_component(torch_lib_dir ${LOCKSTEP_TORCH_CPU} DIRECTORY)
target_link_options(lockstep::torch INTERFACE -Wl,-rpath,${torch_lib_dir} -Wl,--allow-shlib-undefined)
