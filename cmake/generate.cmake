# Run at installation: writes into PARE_GENERATED what PARE_PROGRAM prints of itself, a file for each. A file that is
# right stays as it is, so that whoever installs after root need not be root.
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
