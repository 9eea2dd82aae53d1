# Run at installation: copies the shared libraries that PARE_PROGRAM needs and the system does not have, LibTorch and
# what that needs, to PARE_LIBRARY_FOLDER, and their licences to PARE_LICENCE_FOLDER, both relative to the prefix.
# Everybody may read the copies, whatever the rights of the originals. Libraries in the system's folders stay there: a
# package names them as dependencies. PARE_OPENMP_FOLDER is that of one_openmp.cmake, or empty.
cmake_policy(VERSION 3.22)
set(system_folders "^/(usr/)?lib(32|64|x32)?/")
file(GET_RUNTIME_DEPENDENCIES EXECUTABLES "${PARE_PROGRAM}"
  RESOLVED_DEPENDENCIES_VAR libraries
  UNRESOLVED_DEPENDENCIES_VAR missing
  CONFLICTING_DEPENDENCIES_PREFIX several
  # The C and C++ libraries are the system's also where another folder has copies.
  PRE_EXCLUDE_REGEXES "^lib(c|m|dl|rt|pthread|util|resolv|stdc\\+\\+|gcc_s)\\.so" "^ld-linux"
  POST_EXCLUDE_REGEXES "${system_folders}")
foreach(name IN LISTS several_FILENAMES)
  # LibTorch's name for an OpenMP library leads to the program's own: the loader has found that one first.
  if(NOT EXISTS "${PARE_OPENMP_FOLDER}/${name}")
    message(FATAL_ERROR "${PARE_PROGRAM} needs ${name}, of which there are several: ${several_${name}}")
  endif()
  list(APPEND libraries "${PARE_OPENMP_FOLDER}/${name}")
endforeach()
if(missing)
  message(FATAL_ERROR "${PARE_PROGRAM} needs libraries that are not found: ${missing}")
endif()

# The licence files of the Python package that a library came in: its list of files names the library.
function(find_licences library found)
  set(${found} "" PARENT_SCOPE)
  get_filename_component(site "${library}" DIRECTORY)
  while(NOT site STREQUAL "/")
    file(GLOB lists "${site}/*.dist-info/RECORD")
    file(RELATIVE_PATH name "${site}" "${library}")
    string(REPLACE "." "\\." pattern "${name}")
    string(REPLACE "+" "\\+" pattern "${pattern}")
    foreach(list IN LISTS lists)
      file(STRINGS "${list}" line REGEX "^${pattern}," LIMIT_COUNT 1)
      if(line)
        get_filename_component(information "${list}" DIRECTORY)
        file(GLOB_RECURSE licences "${information}/LICEN[CS]E*" "${information}/License*" "${information}/NOTICE*")
        set(${found} ${licences} PARENT_SCOPE)
        return()
      endif()
    endforeach()
    if(lists)
      return()
    endif()
    get_filename_component(site "${site}" DIRECTORY)
  endwhile()
endfunction()

set(readable OWNER_READ OWNER_WRITE GROUP_READ WORLD_READ)
set(folder "${CMAKE_INSTALL_PREFIX}/${PARE_LIBRARY_FOLDER}")
set(PARE_FOLDERS "${PARE_LIBRARY_FOLDER}")
include("${CMAKE_CURRENT_LIST_DIR}/make_folders.cmake")
set(copied "")
foreach(library IN LISTS libraries)
  get_filename_component(name "${library}" NAME)
  get_filename_component(real "${library}" REALPATH)
  get_filename_component(real_name "${real}" NAME)
  # Several names may lead to one file (cmake/one_openmp.cmake), and must do so again.
  set(target "${real_name}")
  if(real MATCHES "${system_folders}")
    set(target "${real}")
  endif()
  if(NOT name STREQUAL target)
    message(STATUS "Installing: ${folder}/${name} -> ${target}")
    file(CREATE_LINK "${target}" "$ENV{DESTDIR}${folder}/${name}" SYMBOLIC)
    list(APPEND CMAKE_INSTALL_MANIFEST_FILES "${folder}/${name}")
  endif()
  if(target STREQUAL real OR real IN_LIST copied)
    continue()
  endif()
  list(APPEND copied "${real}")
  file(INSTALL DESTINATION "${folder}" TYPE FILE PERMISSIONS ${readable} FILES "${real}")
  find_licences("${real}" licences)
  if(NOT licences)
    # The archive of LibTorch that is no Python package has none beside it.
    message(WARNING "no licence is found for ${real}: it is copied without one")
  endif()
  foreach(licence IN LISTS licences)
    string(REGEX REPLACE "^.*/([^/]*)-[^/-]*\\.dist-info/.*$" "\\1" package "${licence}")
    set(PARE_FOLDERS "${PARE_LICENCE_FOLDER}/${package}")
    include("${CMAKE_CURRENT_LIST_DIR}/make_folders.cmake")
    cmake_path(ABSOLUTE_PATH PARE_FOLDERS BASE_DIRECTORY "${CMAKE_INSTALL_PREFIX}" OUTPUT_VARIABLE destination)
    file(INSTALL DESTINATION "${destination}" TYPE FILE PERMISSIONS ${readable}
         FILES "${licence}")
  endforeach()
endforeach()
