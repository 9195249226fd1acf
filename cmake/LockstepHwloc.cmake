# hwloc::hwloc, if it is found: the launcher then knows NUMA nodes and hardware threads.
find_path(LOCKSTEP_HWLOC_INCLUDE hwloc.h)
find_library(LOCKSTEP_HWLOC_LIBRARY hwloc)
mark_as_advanced(LOCKSTEP_HWLOC_INCLUDE LOCKSTEP_HWLOC_LIBRARY)
if(LOCKSTEP_HWLOC_INCLUDE AND LOCKSTEP_HWLOC_LIBRARY)
  add_library(hwloc::hwloc UNKNOWN IMPORTED)
  set_target_properties(hwloc::hwloc PROPERTIES
    IMPORTED_LOCATION "${LOCKSTEP_HWLOC_LIBRARY}" INTERFACE_INCLUDE_DIRECTORIES "${LOCKSTEP_HWLOC_INCLUDE}")
endif()
