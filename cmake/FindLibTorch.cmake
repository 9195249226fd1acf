# LibTorch: where the system has it, or inside the Python package of the python3 on the PATH.
find_package(Torch QUIET)
if(NOT Torch_FOUND)
  execute_process(COMMAND python3 -c "import torch; print(torch.utils.cmake_prefix_path)"
    OUTPUT_VARIABLE _torch_prefix OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  if(_torch_prefix)
    find_package(Torch QUIET PATHS "${_torch_prefix}")
  endif()
endif()
if(Torch_FOUND)
  find_package(OpenMP REQUIRED)  # at::parallel_for is serial without it
  message(STATUS "LibTorch ${Torch_VERSION}: ${TORCH_INSTALL_PREFIX}")
else()
  message(STATUS "LibTorch not found: only the core is built (install libtorch-dev)")
endif()
