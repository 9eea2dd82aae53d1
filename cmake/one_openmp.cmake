# One OpenMP library in a process: with two, each keeps a team of threads, and settings of one are unknown to the other.
# LibTorch brings GCC's under a name of its own (libgomp.so.1, libgomp-98b21ff3.so.1). Where that is the name of the
# compiler's library, the loader takes one for both. Otherwise (clang, whose library knows GCC's calls as well, or a
# LibTorch with another name) the name becomes one of the compiler's library: the programs ask for it first, and find a
# link to that library.
#
# Needs find_package(OpenMP), TORCH_CPU_LIBRARY and the target pare_torch. Programs made after this have the link.
function(pare_dynamic_entries file tag found)
  execute_process(COMMAND ${CMAKE_OBJDUMP} -p "${file}" OUTPUT_VARIABLE text COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX MATCHALL "${tag} +[^ \n]+" entries "${text}")
  list(TRANSFORM entries REPLACE "^${tag} +" "")
  set(${found} "${entries}" PARENT_SCOPE)
endfunction()

list(GET OpenMP_CXX_LIB_NAMES 0 name)
get_filename_component(library "${OpenMP_${name}_LIBRARY}" REALPATH)
pare_dynamic_entries("${library}" SONAME own_name)
pare_dynamic_entries("${TORCH_CPU_LIBRARY}" NEEDED torch_names)
list(FILTER torch_names INCLUDE REGEX "^lib(gomp|omp|iomp5)[.-]")
list(REMOVE_ITEM torch_names ${own_name})
get_filename_component(torch_folder "${TORCH_CPU_LIBRARY}" DIRECTORY)
foreach(name IN LISTS torch_names)
  if(NOT EXISTS "${torch_folder}/${name}")
    message(WARNING "LibTorch needs ${name}, which is not in ${torch_folder}: programs will load it beside ${own_name}")
    continue()
  endif()
  set(PARE_OPENMP_FOLDER ${CMAKE_BINARY_DIR}/openmp)
  file(MAKE_DIRECTORY ${PARE_OPENMP_FOLDER})
  foreach(link ${name} ${own_name})
    file(CREATE_LINK "${library}" ${PARE_OPENMP_FOLDER}/${link} SYMBOLIC)
  endforeach()
  target_link_libraries(pare_torch INTERFACE "-Wl,--push-state,--no-as-needed,${torch_folder}/${name},--pop-state")
endforeach()
if(PARE_OPENMP_FOLDER)
  list(PREPEND CMAKE_BUILD_RPATH ${PARE_OPENMP_FOLDER})  # the first place that the loader looks in
endif()
