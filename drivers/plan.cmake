# What all programs share: option values, help, the options of a plan.
find_package(CLI11 REQUIRED)
add_library(lockstep_command_line STATIC
  command_line.cpp
  plan_flags.cpp)
target_link_libraries(lockstep_command_line PUBLIC lockstep::plan CLI11::CLI11)
target_compile_definitions(lockstep_command_line PRIVATE LOCKSTEP_VERSION="${PROJECT_VERSION}")
