# Run at installation: writes into PARE_GENERATED what PARE_PROGRAM prints of itself, a file for each.
file(MAKE_DIRECTORY "${PARE_GENERATED}")
foreach(what man complete-bash complete-zsh complete-fish)
  execute_process(COMMAND "${PARE_PROGRAM}" --generate ${what} OUTPUT_FILE "${PARE_GENERATED}/${what}"
                  RESULT_VARIABLE status)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "'${PARE_PROGRAM} --generate ${what}' failed (${status}): build the program before installing it")
  endif()
endforeach()
