# lockstep-checkpoint: needs no MPI launcher and no LibTorch.
find_package(nlohmann_json REQUIRED)
add_executable(lockstep-checkpoint
  checkpoint_diff.cpp
  checkpoint_export.cpp
  checkpoint_main.cpp
  checkpoint_numbers.cpp
  checkpoint_pieces.cpp
  checkpoint_prune.cpp
  checkpoint_show.cpp
  checkpoint_table.cpp
  checkpoint_verify.cpp)
target_link_libraries(lockstep-checkpoint PRIVATE lockstep_command_line lockstep::io nlohmann_json::nlohmann_json)
install(TARGETS lockstep-checkpoint)
