# Files of one folder are compiled several at a time, since most of a file's time goes into the templates of headers.
# It halves a build. Names in their unnamed namespaces must therefore differ within such a folder: the compiler says
# where they do not. For work on single files, and for tools that ask how each file is compiled: -DPARE_UNITY_BUILD=OFF.
# Sanitizers' builds compile each file by itself, which also finds what a file has from its neighbours alone.
set(PARE_UNITES ON)
if(PARE_SANITIZE)
  set(PARE_UNITES OFF)
endif()
option(PARE_UNITY_BUILD "compile files of one folder several at a time" ${PARE_UNITES})

# As many files at a time. With fewer, more is compiled again; with more, cores are without work at the end.
set(PARE_UNITY_FILES 6)

# pare_unity(TARGET [FOLDERS...]): TARGET's files, or those in its FOLDERS, are compiled several at a time. A file with
# options of its own stays alone. A group is of one folder, so that a new file moves only its folder's groups.
function(pare_unity target)
  if(NOT PARE_UNITY_BUILD)
    return()
  endif()
  get_target_property(sources ${target} SOURCES)
  list(SORT sources)
  foreach(source IN LISTS sources)
    file(RELATIVE_PATH path ${CMAKE_CURRENT_SOURCE_DIR} ${source})
    get_filename_component(folder ${path} DIRECTORY)
    get_source_file_property(options ${source} COMPILE_OPTIONS)
    if((ARGN AND NOT folder IN_LIST ARGN) OR options)
      continue()
    endif()
    string(MAKE_C_IDENTIFIER "${folder}" name)
    list(LENGTH files_of_${name} number)  # of the folder's files before this one
    math(EXPR group "${number} / ${PARE_UNITY_FILES}")
    set_property(SOURCE ${source} PROPERTY UNITY_GROUP "${name}_${group}")
    list(APPEND files_of_${name} ${source})
  endforeach()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  # Types of a file's unnamed namespace lie in a file that another includes, which GCC takes for a header.
  target_compile_options(${target} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>)
endfunction()
