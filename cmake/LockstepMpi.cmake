# LOCKSTEP_WITH_MPI: AUTO builds the mpi engine for each MPI that is found, OpenMPI and MPICH (or one that is built on it);
# ON demands one. Sets LOCKSTEP_MPIS, the names of those found, and for each of them
#   LOCKSTEP_MPI_<name>_FOLDERS    where its mpi.h is
#   LOCKSTEP_MPI_<name>_LINK       what to link a program with. The engine does not: it loads the library when it is used
#   LOCKSTEP_MPIEXEC_<name>        its launcher
# What is found is asked from the compiler wrapper, not from FindMPI, which knows one MPI at a time. Where the wrapper has
# another name, set LOCKSTEP_WRAPPER_<name>.
set(LOCKSTEP_WITH_MPI AUTO CACHE STRING "Build the mpi engine: AUTO, ON or OFF")
set_property(CACHE LOCKSTEP_WITH_MPI PROPERTY STRINGS AUTO ON OFF)
set(LOCKSTEP_MPIS "")

# lockstep_find_mpi(NAME MACRO): MACRO is defined by this MPI's mpi.h and by no other.
function(lockstep_find_mpi name macro)
  find_program(LOCKSTEP_WRAPPER_${name} NAMES mpicxx.${name} mpicxx)
  if(NOT LOCKSTEP_WRAPPER_${name})
    return()
  endif()
  execute_process(COMMAND ${LOCKSTEP_WRAPPER_${name}} -show OUTPUT_VARIABLE words OUTPUT_STRIP_TRAILING_WHITESPACE
    RESULT_VARIABLE failed ERROR_QUIET)
  file(WRITE ${CMAKE_BINARY_DIR}/which_mpi.cpp "#include <mpi.h>\n")
  execute_process(COMMAND ${LOCKSTEP_WRAPPER_${name}} -E -dM ${CMAKE_BINARY_DIR}/which_mpi.cpp OUTPUT_VARIABLE macros ERROR_QUIET)
  separate_arguments(words UNIX_COMMAND "${words}")
  list(FILTER words EXCLUDE REGEX "^[^-/]")  # the compiler
  set(folders ${words})
  list(FILTER folders INCLUDE REGEX "^-I")
  list(TRANSFORM folders REPLACE "^-I" "")
  list(FILTER words INCLUDE REGEX "^-[Ll]|^-Wl|^/.*\\.(so|a)$")
  if(failed OR NOT macros MATCHES "#define ${macro} ")
    return()
  endif()
  get_filename_component(folder ${LOCKSTEP_WRAPPER_${name}} DIRECTORY)
  find_program(LOCKSTEP_MPIEXEC_${name} NAMES mpiexec.${name} mpiexec HINTS ${folder})
  set(LOCKSTEP_MPIS ${LOCKSTEP_MPIS} ${name} PARENT_SCOPE)
  set(LOCKSTEP_MPI_${name}_FOLDERS ${folders} PARENT_SCOPE)
  set(LOCKSTEP_MPI_${name}_LINK ${words} PARENT_SCOPE)
endfunction()

# Under sanitizers only on demand: they find much in the MPIs themselves.
if(NOT LOCKSTEP_WITH_MPI STREQUAL OFF AND (NOT LOCKSTEP_SANITIZE OR LOCKSTEP_WITH_MPI STREQUAL ON))
  lockstep_find_mpi(openmpi OMPI_MAJOR_VERSION)
  lockstep_find_mpi(mpich MPICH_NUMVERSION)
  if(NOT LOCKSTEP_MPIS)
    if(LOCKSTEP_WITH_MPI STREQUAL ON)
      message(FATAL_ERROR "LOCKSTEP_WITH_MPI=ON needs OpenMPI (libopenmpi-dev) or MPICH (libmpich-dev)")
    endif()
    message(STATUS "No OpenMPI or MPICH: the mpi engine becomes a stub")
  endif()
endif()
