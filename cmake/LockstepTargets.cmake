# lockstep_library(NAME SOURCES ... DEPENDS ... PRIVATE_DEPENDS ...)
#   One folder, one target, its dependencies declared.
# lockstep_test(NAME SOURCES ... DEPENDS ... LABELS ... TIMEOUT seconds)
#   One GoogleTest program; every case becomes a ctest case with a time limit.
function(lockstep_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPENDS;PRIVATE_DEPENDS" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  target_include_directories(${name}
    PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:include>
    PRIVATE ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(${name} PUBLIC ${ARG_DEPENDS}
    PRIVATE ${ARG_PRIVATE_DEPENDS} $<BUILD_INTERFACE:lockstep_flags>)
  set_property(GLOBAL APPEND PROPERTY LOCKSTEP_LIBRARIES ${name})
endfunction()

if(LOCKSTEP_WITH_TESTS)
  file(WRITE ${CMAKE_BINARY_DIR}/test_headers.cpp "// Owns the precompiled headers of the tests.\n")
  add_library(lockstep_test_headers STATIC ${CMAKE_BINARY_DIR}/test_headers.cpp)
  target_precompile_headers(lockstep_test_headers PRIVATE
    <gmock/gmock.h> <gtest/gtest.h> <chrono> <functional> <random> <string> <thread> <vector>)
  target_link_libraries(lockstep_test_headers PRIVATE lockstep_flags GTest::gtest GTest::gmock)
  target_compile_options(lockstep_test_headers PRIVATE -O1 -fPIE)
  set_target_properties(lockstep_test_headers PROPERTIES POSITION_INDEPENDENT_CODE OFF)
endif()

function(lockstep_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "SOURCES;DEPENDS;LABELS" ${ARGN})
  if(NOT LOCKSTEP_WITH_TESTS)
    return()
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 60)
  endif()
  add_executable(${name} ${ARG_SOURCES})
  # GoogleTest's headers cost more to compile than most tests do: once for all.
  target_precompile_headers(${name} REUSE_FROM lockstep_test_headers)
  target_compile_options(${name} PRIVATE -O1)
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR})
  target_link_libraries(${name} PRIVATE ${ARG_DEPENDS} lockstep_flags GTest::gtest_main GTest::gmock)
  gtest_discover_tests(${name} DISCOVERY_TIMEOUT 60
    PROPERTIES TIMEOUT ${ARG_TIMEOUT} LABELS "${ARG_LABELS}")
endfunction()
