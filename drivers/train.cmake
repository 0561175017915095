# The built-in models, for lockstep-train and the benchmarks.
add_library(lockstep_models STATIC train_models.cpp)
target_link_libraries(lockstep_models PUBLIC lockstep::train)

find_package(nlohmann_json REQUIRED)
add_executable(lockstep-train
  checkpoint_table.cpp
  metrics_file.cpp
  option_rules.cpp
  run_options.cpp
  train_data.cpp
  train_main.cpp
  train_options.cpp
  train_report.cpp
  train_run.cpp)
target_link_libraries(lockstep-train PRIVATE lockstep_models lockstep_command_line lockstep::comm lockstep::io
                                             lockstep::launch nlohmann_json::nlohmann_json)
target_compile_definitions(lockstep-train PRIVATE LOCKSTEP_VERSION="${PROJECT_VERSION}")
install(TARGETS lockstep-train)
