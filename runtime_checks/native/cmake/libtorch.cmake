# The target torchferry_libtorch: libtorch's headers and libraries below ${TORCHFERRY_TORCH}.
if(NOT EXISTS "${TORCHFERRY_TORCH}/include/torch/script.h")
  message(FATAL_ERROR
    "There is no libtorch in '${TORCHFERRY_TORCH}'.\n"
    "Set TORCHFERRY_TORCH to the folder that python -c 'import torch; print(torch.__path__[0])' prints.")
endif()
if(NOT TARGET torchferry_libtorch)
  add_library(torchferry_libtorch INTERFACE IMPORTED GLOBAL)
  # The C++ that torch's headers need stands in their own check: 17, and 20 from torch 2.14.
  file(STRINGS "${TORCHFERRY_TORCH}/include/ATen/ATen.h" _check REGEX "C\\+\\+[0-9]+ or later")
  string(REGEX REPLACE ".*C\\+\\+([0-9]+) or later.*" "\\1" _standard "${_check}")
  if(NOT _standard MATCHES "^[0-9]+$")
    set(_standard 17)
  endif()
  # As a property: a client may enable C++ later.
  set_target_properties(torchferry_libtorch PROPERTIES
    INTERFACE_COMPILE_FEATURES cxx_std_${_standard}
    INTERFACE_INCLUDE_DIRECTORIES "${TORCHFERRY_TORCH}/include;${TORCHFERRY_TORCH}/include/torch/csrc/api/include"
    INTERFACE_SYSTEM_INCLUDE_DIRECTORIES "${TORCHFERRY_TORCH}/include;${TORCHFERRY_TORCH}/include/torch/csrc/api/include")
  # libtorch.so pulls in the CUDA backend where there is one; nothing refers to it, so the linker must be told.
  set(_libraries "")
  foreach(_name torch torch_cpu c10)
    list(APPEND _libraries "${TORCHFERRY_TORCH}/lib/${CMAKE_SHARED_LIBRARY_PREFIX}${_name}${CMAKE_SHARED_LIBRARY_SUFFIX}")
  endforeach()
  target_link_libraries(torchferry_libtorch INTERFACE
    "-Wl,--no-as-needed" ${_libraries} "-Wl,--as-needed")
  if(NOT TORCHFERRY_WHEEL)
    # What goes to another machine finds torch from where it lies itself.
    target_link_libraries(torchferry_libtorch INTERFACE "-Wl,-rpath,${TORCHFERRY_TORCH}/lib")
  endif()
endif()
