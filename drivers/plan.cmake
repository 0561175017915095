# What all programs share: option values, help, the options of a plan.
find_package(CLI11 REQUIRED)
find_package(nlohmann_json REQUIRED)
add_library(lockstep_command_line STATIC
  command_line.cpp
  plan_flags.cpp)
target_link_libraries(lockstep_command_line PUBLIC lockstep::plan CLI11::CLI11)
target_compile_definitions(lockstep_command_line PRIVATE LOCKSTEP_VERSION="${PROJECT_VERSION}")

# Shows a plan before it costs a node-hour: on a login node, without a launcher, without LibTorch.
add_executable(lockstep-plan
  checkpoint_pieces.cpp
  checkpoint_table.cpp
  plan_axis.cpp
  plan_course.cpp
  plan_csv.cpp
  plan_facts.cpp
  plan_json.cpp
  plan_main.cpp
  plan_picture.cpp
  plan_report.cpp
  plan_request.cpp
  plan_svg.cpp)
target_link_libraries(lockstep-plan PRIVATE lockstep_command_line lockstep::io nlohmann_json::nlohmann_json)
install(TARGETS lockstep-plan)
