# SPDX-License-Identifier: Apache-2.0
# 120a and 121a are kept apart: code for one does not run on the other. 12x needs the "a" form for its own instructions.
set(DDTREE_KNOWN_ARCHS 120a 121a 90 89 86 80)

function(ddtree_parse_archs text out_list out_flags)
  string(REPLACE "," ";" archs "${text}")
  string(REPLACE " " ";" archs "${archs}")
  list(REMOVE_DUPLICATES archs)
  set(flags "")
  foreach(arch IN LISTS archs)
    if(NOT arch IN_LIST DDTREE_KNOWN_ARCHS)
      message(FATAL_ERROR "DDTREE_CUDA_ARCHS: unknown target '${arch}'; choose from ${DDTREE_KNOWN_ARCHS}")
    endif()
    list(APPEND flags "-gencode=arch=compute_${arch},code=sm_${arch}")
  endforeach()
  set(${out_list} "${archs}" PARENT_SCOPE)
  set(${out_flags} "${flags}" PARENT_SCOPE)
endfunction()
