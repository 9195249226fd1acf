# lockstep_require(PACKAGE DEBIAN_PACKAGE [options of find_package]): a package that the build cannot do without.
# lockstep_require_end(): stops when one of them was not found. It names all of them, and the step that installs them.
set(LOCKSTEP_MISSING "")
macro(lockstep_require name debian)
  find_package(${name} QUIET ${ARGN})
  if(NOT ${name}_FOUND)
    list(APPEND LOCKSTEP_MISSING "${name} (${debian})")
  endif()
endmacro()

function(lockstep_require_end)
  if(LOCKSTEP_MISSING)
    list(JOIN LOCKSTEP_MISSING ", " _missing)
    message(FATAL_ERROR "Not found: ${_missing}.\n"
      "Run `make deps`, which installs the Debian packages in parentheses; elsewhere install them your way.")
  endif()
endfunction()
