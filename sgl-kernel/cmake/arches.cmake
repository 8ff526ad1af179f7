# SPDX-License-Identifier: Apache-2.0
# 90a, 120a and 121a: moving registers between warps needs the "a" form, and code for 120a does not run on 12.1.
set(DDTREE_KNOWN_ARCHS 120a 121a 90a 89 86 80)

function(ddtree_parse_archs text out_list out_flags)
  string(REPLACE "," ";" archs "${text}")
  string(REPLACE " " ";" archs "${archs}")
  list(REMOVE_ITEM archs "cpu")  # a way to say "none" where an empty value is hard to pass
  list(TRANSFORM archs REPLACE "^(90|120|121)$" "\\1a")
  list(REMOVE_DUPLICATES archs)
  set(flags "")
  foreach(arch IN LISTS archs)
    if(NOT arch IN_LIST DDTREE_KNOWN_ARCHS)
      message(FATAL_ERROR "DDTREE_CUDA_ARCHS: unknown target '${arch}'; choose from ${DDTREE_KNOWN_ARCHS}, or cpu")
    endif()
    list(APPEND flags "-gencode=arch=compute_${arch},code=sm_${arch}")
  endforeach()
  set(${out_list} "${archs}" PARENT_SCOPE)
  set(${out_flags} "${flags}" PARENT_SCOPE)
endfunction()
