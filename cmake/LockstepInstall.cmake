# The installed package: headers of include/lockstep, static libraries, the command, and a CMake
# package with two targets to link: lockstep::lockstep, and lockstep::core without LibTorch.
include(CMakePackageConfigHelpers)
if(TARGET torch)
  set(LOCKSTEP_HAS_TORCH 1)
else()
  set(LOCKSTEP_HAS_TORCH 0)
endif()

get_property(_libraries GLOBAL PROPERTY LOCKSTEP_LIBRARIES)
add_library(lockstep_core INTERFACE)
set_target_properties(lockstep_core PROPERTIES EXPORT_NAME core)
target_link_libraries(lockstep_core INTERFACE lockstep_control lockstep_comm)
add_library(lockstep::core ALIAS lockstep_core)
add_library(lockstep_all INTERFACE)
set_target_properties(lockstep_all PROPERTIES EXPORT_NAME lockstep)
target_link_libraries(lockstep_all INTERFACE ${_libraries})
add_library(lockstep::lockstep ALIAS lockstep_all)

install(TARGETS ${_libraries} lockstep_core lockstep_all EXPORT lockstepTargets
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
if(TARGET lockstep)
  install(TARGETS lockstep RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
if(TARGET lockstep_train_program)
  install(TARGETS lockstep_train_program RUNTIME DESTINATION ${CMAKE_INSTALL_LIBEXECDIR}/lockstep)
endif()
install(DIRECTORY include/lockstep DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT lockstepTargets NAMESPACE lockstep::
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/lockstep)
configure_package_config_file(cmake/lockstepConfig.cmake.in lockstepConfig.cmake
        INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/lockstep)
write_basic_package_version_file(lockstepConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/lockstepConfig.cmake
              ${CMAKE_CURRENT_BINARY_DIR}/lockstepConfigVersion.cmake
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/lockstep)
