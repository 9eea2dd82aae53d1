# Run at installation: makes PARE_FOLDERS, relative to the prefix, with those above them. Those that are new can be
# entered by everybody, whatever the umask; those that are there stay as they are.
foreach(folder IN LISTS PARE_FOLDERS)
  cmake_path(ABSOLUTE_PATH folder BASE_DIRECTORY "${CMAKE_INSTALL_PREFIX}" NORMALIZE OUTPUT_VARIABLE path)
  set(path "$ENV{DESTDIR}${path}")
  set(new "")
  while(NOT EXISTS "${path}")
    list(PREPEND new "${path}")
    get_filename_component(path "${path}" DIRECTORY)
  endwhile()
  foreach(path IN LISTS new)
    file(MAKE_DIRECTORY "${path}")
    file(CHMOD "${path}" PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ
      WORLD_EXECUTE)
  endforeach()
endforeach()
