# Every flag of the project, in one interface target.
#
# -ffp-contract=off: a*b+c must not become fma behind our back, or bits would depend on the compiler.
# -fno-math-errno and -fno-trapping-math do not touch results and let the loops of kernels vectorise.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "" FORCE)
endif()
# Line numbers are enough in a backtrace; full debug information would double the time to build.
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O2 -g1 -DNDEBUG")
set(CMAKE_CXX_FLAGS_SANITIZE "-O1 -g1")
find_program(LOCKSTEP_CCACHE ccache)
if(LOCKSTEP_CCACHE)
  # It passes by whatever uses a precompiled header, unless it is told that nobody changes macros before one, nor times.
  # Paths are relative to this tree, so that it finds what another clone has built.
  set(CMAKE_CXX_COMPILER_LAUNCHER env CCACHE_SLOPPINESS=pch_defines,time_macros CCACHE_BASEDIR=${PROJECT_SOURCE_DIR}
    CCACHE_NOHASHDIR=1 ${LOCKSTEP_CCACHE})
endif()

add_library(lockstep_flags INTERFACE)
target_compile_options(lockstep_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wshadow -Wnon-virtual-dtor -Wno-missing-field-initializers
  -ffp-contract=off -fno-math-errno -fno-trapping-math $<$<BOOL:${LOCKSTEP_CCACHE}>:-ffile-prefix-map=${PROJECT_SOURCE_DIR}/=>>
  $<$<COMPILE_LANGUAGE:CUDA>:-fmad=false>)
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  # No garbage collection in the compiler below a heap of 2 GB: a tenth less time for a fifth more memory.
  target_compile_options(lockstep_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:--param=ggc-min-heapsize=2097152>)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL Clang)
  # What a lock guards: base/mutex.h.
  target_compile_options(lockstep_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wthread-safety -Werror=thread-safety>)
endif()
if(CMAKE_UNITY_BUILD AND CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  # A class with members of an anonymous namespace, in a .cpp that is included by another: no other file sees either.
  target_compile_options(lockstep_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-subobject-linkage>)
endif()
if(LOCKSTEP_SANITIZE)
  target_compile_definitions(lockstep_flags INTERFACE LOCKSTEP_SANITIZED)
  target_compile_options(lockstep_flags INTERFACE
    -fsanitize=${LOCKSTEP_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=undefined)
  target_link_options(lockstep_flags INTERFACE -fsanitize=${LOCKSTEP_SANITIZE})
  if(LOCKSTEP_SANITIZE MATCHES undefined)
    # The check of virtual tables opens a pipe each time, and calls it a bug when no descriptors are left: a case that
    # the tests make on purpose.
    target_compile_options(lockstep_flags INTERFACE -fno-sanitize=vptr)
  endif()
  if(LOCKSTEP_SANITIZE MATCHES thread AND CMAKE_CXX_COMPILER_ID STREQUAL GNU)
    # Asio's fences, which GCC says it cannot follow; its queues are under locks besides.
    target_compile_options(lockstep_flags INTERFACE -Wno-tsan)
  endif()
endif()

# What fuzzers run is measured for coverage too; they would be blind without. Tests and the command are not: it costs a
# tenth of the time to compile them.
add_library(lockstep_coverage INTERFACE)
if(LOCKSTEP_WITH_FUZZERS)
  target_compile_options(lockstep_coverage INTERFACE -fsanitize=fuzzer-no-link)
  target_link_options(lockstep_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()
