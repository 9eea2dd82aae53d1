# Run at installation: writes into PARE_GENERATED what PARE_PROGRAM prints of itself, a file for each. A file that is
# right stays as it is, so that whoever installs after root need not be root. The completions of zsh are installed here.
foreach(what man complete-bash complete-zsh complete-fish)
  execute_process(COMMAND "${PARE_PROGRAM}" --generate ${what} OUTPUT_VARIABLE text RESULT_VARIABLE status)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR
      "'${PARE_PROGRAM} --generate ${what}' failed (${status}): build the program before installing it")
  endif()
  set(written "")
  if(EXISTS "${PARE_GENERATED}/${what}")
    file(READ "${PARE_GENERATED}/${what}" written)
  endif()
  if(NOT written STREQUAL text)
    file(MAKE_DIRECTORY "${PARE_GENERATED}")
    file(WRITE "${PARE_GENERATED}/${what}" "${text}")
  endif()
endforeach()

# Below /usr, Debian's zsh looks for what packages bring in another folder than zsh does elsewhere.
set(PARE_FOLDERS "${PARE_ZSH_FOLDER}/site-functions")
if(CMAKE_INSTALL_PREFIX MATCHES "/usr$" AND EXISTS /etc/debian_version)
  set(PARE_FOLDERS "${PARE_ZSH_FOLDER}/vendor-completions")
endif()
include("${CMAKE_CURRENT_LIST_DIR}/make_folders.cmake")
cmake_path(ABSOLUTE_PATH PARE_FOLDERS BASE_DIRECTORY "${CMAKE_INSTALL_PREFIX}" OUTPUT_VARIABLE folder)
cmake_path(GET PARE_PROGRAM FILENAME name)
file(INSTALL DESTINATION "${folder}" TYPE FILE RENAME "_${name}" FILES "${PARE_GENERATED}/complete-zsh")
