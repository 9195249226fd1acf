# lockstep_library(NAME SOURCES ... DEPENDS ... PRIVATE_DEPENDS ...)
#   One folder, one target, its dependencies declared.
# lockstep_test(NAME [COMPUTES] [ONE_THREAD] SOURCES ... DEPENDS ... LABELS ... TIMEOUT seconds)
#   One GoogleTest program; every case becomes a ctest case with a time limit. COMPUTES: it is optimised under the
#   address sanitizer, too, because its own code takes longer to run without than to optimise. ONE_THREAD: neither it
#   nor what it tests starts a thread, so the thread sanitizer could see nothing; not built there.
function(lockstep_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPENDS;PRIVATE_DEPENDS" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  target_include_directories(${name}
    PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:include>
    PRIVATE ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(${name} PUBLIC ${ARG_DEPENDS}
    PRIVATE ${ARG_PRIVATE_DEPENDS} $<BUILD_INTERFACE:lockstep_flags> $<BUILD_INTERFACE:lockstep_coverage>)
  set_property(GLOBAL APPEND PROPERTY LOCKSTEP_LIBRARIES ${name})
endfunction()

# lockstep_torch_library(...): the same for a folder that sees LibTorch. <torch/torch.h> costs 14 seconds and a gigabyte
# per file, so a folder is compiled as one; a precompiled header of that size fails now and then in GCC 12 on aarch64
# ("PCH allocation failure").
function(lockstep_torch_library name)
  lockstep_library(${name} ${ARGN})
  set_target_properties(${name} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 0)
  target_compile_definitions(${name} PUBLIC LOCKSTEP_WITH_TORCH)
  target_link_libraries(${name} PUBLIC ${TORCH_LIBRARIES} PRIVATE $<BUILD_INTERFACE:lockstep_torch_fmt> $<LINK_ONLY:fmt::fmt> OpenMP::OpenMP_CXX)
  target_compile_options(${name} PRIVATE -Wno-maybe-uninitialized)  # LibTorch's own, inlined
endfunction()

# lockstep_as_one(NAME): compiled as one file, unless LOCKSTEP_FILES_ALONE asks whether each includes what it needs.
function(lockstep_as_one name)
  if(NOT LOCKSTEP_FILES_ALONE)
    set_target_properties(${name} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 0)
  endif()
endfunction()

# How a test's own code is optimised; what it tests is as ever. Under the address sanitizer optimising it takes most of
# the time to build.
set(LOCKSTEP_TEST_OPTIMISATION -O1)
if(LOCKSTEP_SANITIZE MATCHES address)
  set(LOCKSTEP_TEST_OPTIMISATION -O0)
endif()

if(LOCKSTEP_WITH_TESTS)
  file(WRITE ${CMAKE_BINARY_DIR}/test_headers.cpp "// Owns the precompiled headers of the tests.\n")
  add_library(lockstep_test_headers STATIC ${CMAKE_BINARY_DIR}/test_headers.cpp)
  target_precompile_headers(lockstep_test_headers PRIVATE
    <gmock/gmock.h> <gtest/gtest.h> <chrono> <functional> <random> <string> <thread> <vector>)
  target_link_libraries(lockstep_test_headers PRIVATE lockstep_flags GTest::gtest GTest::gmock)
  target_compile_options(lockstep_test_headers PRIVATE ${LOCKSTEP_TEST_OPTIMISATION} -fPIE
    $<$<CXX_COMPILER_ID:Clang>:SHELL:-Xclang -fno-pch-timestamp>)  # one that ccache kept is good in another tree
  set_target_properties(lockstep_test_headers PROPERTIES POSITION_INDEPENDENT_CODE OFF)
endif()

# Under the address sanitizer the tests beside their sources become one program, unit_test: the search for leaks at the end of
# a program takes three seconds on aarch64, whatever it did.
function(lockstep_test_program name)
  if(LOCKSTEP_SANITIZE MATCHES address AND CMAKE_CURRENT_SOURCE_DIR MATCHES "^${PROJECT_SOURCE_DIR}/src/")
    add_library(${name} OBJECT ${ARGN})
    set_target_properties(${name} PROPERTIES POSITION_INDEPENDENT_CODE OFF)  # as the precompiled headers
    target_compile_options(${name} PRIVATE -fPIE)
    if(NOT TARGET unit_test)
      add_executable(unit_test $<TARGET_OBJECTS:lockstep_test_headers>)
      set_target_properties(unit_test PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/src)
      gtest_discover_tests(unit_test DISCOVERY_TIMEOUT 60 PROPERTIES TIMEOUT 60)
    endif()
    target_link_libraries(unit_test PRIVATE ${name})
  else()
    add_executable(${name} ${ARGN})
  endif()
endfunction()

function(lockstep_test name)
  cmake_parse_arguments(ARG "COMPUTES;ONE_THREAD" "TIMEOUT" "SOURCES;DEPENDS;LABELS" ${ARGN})
  if(NOT LOCKSTEP_WITH_TESTS OR (ARG_ONE_THREAD AND LOCKSTEP_SANITIZE MATCHES thread))
    return()
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 60)
  endif()
  lockstep_test_program(${name} ${ARG_SOURCES})
  if(ARG_COMPUTES AND LOCKSTEP_SANITIZE MATCHES address)
    target_compile_options(${name} PRIVATE -O1)
  else()
    # GoogleTest's headers cost more to compile than most tests do: once for all that are optimised alike.
    target_precompile_headers(${name} REUSE_FROM lockstep_test_headers)
    target_compile_options(${name} PRIVATE ${LOCKSTEP_TEST_OPTIMISATION})
  endif()
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR})
  target_link_libraries(${name} PRIVATE ${ARG_DEPENDS} lockstep_flags GTest::gtest_main GTest::gmock)
  get_target_property(_type ${name} TYPE)
  if(_type STREQUAL EXECUTABLE)
    gtest_discover_tests(${name} DISCOVERY_TIMEOUT 60
      PROPERTIES TIMEOUT ${ARG_TIMEOUT} LABELS "${ARG_LABELS}")
  endif()
endfunction()

# lockstep_torch_test(...): the same for tests that see LibTorch.
function(lockstep_torch_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "SOURCES;DEPENDS;LABELS" ${ARGN})
  if(NOT LOCKSTEP_WITH_TESTS)
    return()
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  add_executable(${name} ${ARG_SOURCES})
  set_target_properties(${name} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 0)
  target_compile_options(${name} PRIVATE ${LOCKSTEP_TEST_OPTIMISATION} -Wno-maybe-uninitialized)
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR})
  target_link_libraries(${name} PRIVATE ${ARG_DEPENDS} lockstep_flags lockstep_torch_fmt GTest::gtest_main GTest::gmock)
  # A program with LibTorch takes half a second to start: a case of ctest is a program here, not a case of GoogleTest.
  add_test(NAME ${name} COMMAND ${name} --gtest_brief=1)
  # The longest begin first.
  set_tests_properties(${name} PROPERTIES TIMEOUT ${ARG_TIMEOUT} COST ${ARG_TIMEOUT} LABELS "torch;${ARG_LABELS}"
    ENVIRONMENT "OMP_NUM_THREADS=1;OPENBLAS_NUM_THREADS=1")
endfunction()
