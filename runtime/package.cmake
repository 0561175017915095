# What an installation gives to other projects: find_package(lockstep) and the libraries that it makes known. A project
# that includes this one as a part of itself installs its own programs, and nothing of ours.
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/lockstep)
# Installed programs find the plug-in for devices, and the libraries that are outside of this project.
set(CMAKE_INSTALL_RPATH $ORIGIN/../${CMAKE_INSTALL_LIBDIR})
set(CMAKE_INSTALL_RPATH_USE_LINK_PATH ON)

# A library of the house: lockstep_<room> to us, lockstep::<room> to its users, here and where it is installed.
function(lockstep_add_library room)
  add_library(lockstep_${room} STATIC ${ARGN})
  add_library(lockstep::${room} ALIAS lockstep_${room})
  set_target_properties(lockstep_${room} PROPERTIES EXPORT_NAME ${room})
endfunction()

# Libraries, headers, job scripts, and what find_package() reads. To be called when all libraries are made.
function(lockstep_install_package)
  set(libraries lockstep_plan lockstep_launch lockstep_comm lockstep_io)
  if(TARGET lockstep_train)
    list(APPEND libraries lockstep_train)
  endif()
  install(TARGETS ${libraries} EXPORT lockstep)
  if(TARGET lockstep_cuda)
    install(TARGETS lockstep_cuda)
  endif()
  install(DIRECTORY runtime io DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/lockstep
          FILES_MATCHING PATTERN "*.hpp" PATTERN cuda EXCLUDE)
  install(DIRECTORY slurm DESTINATION ${CMAKE_INSTALL_DATADIR}/lockstep)
  install(EXPORT lockstep NAMESPACE lockstep:: FILE lockstep-targets.cmake DESTINATION ${package_dir})
  if(LOCKSTEP_TRAIN)
    get_filename_component(torch_dir ${LOCKSTEP_TORCH_INCLUDE} DIRECTORY)
    install(FILES runtime/train/libtorch.cmake DESTINATION ${package_dir} RENAME lockstep-libtorch.cmake)
  endif()
  configure_package_config_file(runtime/lockstep-config.cmake.in ${PROJECT_BINARY_DIR}/lockstep-config.cmake
                                INSTALL_DESTINATION ${package_dir})
  write_basic_package_version_file(${PROJECT_BINARY_DIR}/lockstep-config-version.cmake COMPATIBILITY SameMinorVersion)
  install(FILES ${PROJECT_BINARY_DIR}/lockstep-config.cmake ${PROJECT_BINARY_DIR}/lockstep-config-version.cmake
          DESTINATION ${package_dir})
endfunction()
