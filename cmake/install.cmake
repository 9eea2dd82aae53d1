# What `cmake --install` copies, and the packages that `cpack` makes of it. Three components:
#   runtime      pare-runtime, which needs the system's libraries alone
#   full         pare with the libraries of LibTorch that it needs, recipes and documentation
#   development  the library pare::runtime with its header, for find_package(pare)
include(GNUInstallDirs)
set(PARE_PRIVATE_LIBRARIES lib/pare)  # below the prefix
set(PARE_INSTALLED_PROGRAMS pare-runtime)
if(TARGET pare)
  list(APPEND PARE_INSTALLED_PROGRAMS pare)
endif()
set(PARE_COMPONENT_OF_pare full)
set(PARE_COMPONENT_OF_pare-runtime runtime)

# Makes folders below the prefix that everybody may enter, whatever the umask of whoever installs.
function(pare_install_folders component)
  install(CODE "set(PARE_FOLDERS \"${ARGN}\")" COMPONENT ${component})
  install(SCRIPT ${CMAKE_SOURCE_DIR}/cmake/make_folders.cmake COMPONENT ${component})
endfunction()

# Manual page and completions are printed by the programs themselves.
foreach(program IN LISTS PARE_INSTALLED_PROGRAMS)
  set(component ${PARE_COMPONENT_OF_${program}})
  pare_install_folders(${component} ${CMAKE_INSTALL_BINDIR} ${CMAKE_INSTALL_MANDIR}/man1
    ${CMAKE_INSTALL_DATADIR}/bash-completion/completions
    ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d ${CMAKE_INSTALL_DATADIR}/doc/${program}/licences)
  install(TARGETS ${program} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT ${component})
  set(generated ${CMAKE_BINARY_DIR}/generated/${program})
  install(CODE "set(PARE_PROGRAM \"$<TARGET_FILE:${program}>\")
    set(PARE_GENERATED \"${generated}\")
    set(PARE_ZSH_FOLDER \"${CMAKE_INSTALL_DATADIR}/zsh\")" COMPONENT ${component})
  install(SCRIPT ${CMAKE_SOURCE_DIR}/cmake/generate.cmake COMPONENT ${component})
  install(FILES ${generated}/man DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 RENAME ${program}.1 COMPONENT ${component})
  install(FILES ${generated}/complete-bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions
          RENAME ${program} COMPONENT ${component})
  install(FILES ${generated}/complete-fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d
          RENAME ${program}.fish COMPONENT ${component})
  install(FILES LICENSE THIRD_PARTY.md ${CMAKE_SOURCE_DIR}/cmake/copyright
          DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/${program} COMPONENT ${component})
  install(DIRECTORY licences DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/${program} COMPONENT ${component})
endforeach()

if(TARGET pare)
  pare_install_folders(full ${CMAKE_INSTALL_DATADIR}/pare)
  # LibTorch lies beside the program, wherever the prefix is moved to.
  file(RELATIVE_PATH from_bin "${CMAKE_INSTALL_FULL_BINDIR}" "${CMAKE_INSTALL_PREFIX}/${PARE_PRIVATE_LIBRARIES}")
  set_target_properties(pare PROPERTIES INSTALL_RPATH "$ORIGIN/${from_bin}")
  install(CODE "set(PARE_PROGRAM \"$<TARGET_FILE:pare>\")
    set(PARE_LIBRARY_FOLDER \"${PARE_PRIVATE_LIBRARIES}\")
    set(PARE_OPENMP_FOLDER \"${PARE_OPENMP_FOLDER}\")
    set(PARE_LICENCE_FOLDER \"${CMAKE_INSTALL_DATADIR}/doc/pare/licences\")" COMPONENT full)
  install(SCRIPT ${CMAKE_SOURCE_DIR}/cmake/install_libtorch.cmake COMPONENT full)

  file(GLOB pages CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/*.md)
  install(FILES ${pages} DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/pare COMPONENT full)
  install(DIRECTORY docs DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/pare COMPONENT full)
  # A recipe looks for its texts beside itself.
  install(DIRECTORY recipes DESTINATION ${CMAKE_INSTALL_DATADIR}/pare COMPONENT full)
  install(DIRECTORY calibration_data DESTINATION ${CMAKE_INSTALL_DATADIR}/pare/recipes COMPONENT full)
endif()

# The library. Its archive of CUDA kernels would need CUDA's toolkit at the user's, so builds with CUDA have none.
if(NOT PARE_CUDA)
  include(CMakePackageConfigHelpers)
  set_target_properties(pare_runtime_library PROPERTIES OUTPUT_NAME pare_runtime)
  set(PARE_PACKAGE_DIRECTORY ${CMAKE_INSTALL_LIBDIR}/cmake/pare)
  pare_install_folders(development ${CMAKE_INSTALL_LIBDIR} ${CMAKE_INSTALL_INCLUDEDIR} ${PARE_PACKAGE_DIRECTORY}
    ${CMAKE_INSTALL_DATADIR}/doc/pare-dev)
  install(TARGETS pare_runtime_library ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT development)
  install(FILES runtime/api/pare.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT development)
  set(PARE_ARCHIVE ${CMAKE_INSTALL_LIBDIR}/${CMAKE_STATIC_LIBRARY_PREFIX}pare_runtime${CMAKE_STATIC_LIBRARY_SUFFIX})
  configure_package_config_file(cmake/pareConfig.cmake.in ${CMAKE_BINARY_DIR}/generated/pareConfig.cmake
    INSTALL_DESTINATION ${PARE_PACKAGE_DIRECTORY} PATH_VARS PARE_ARCHIVE CMAKE_INSTALL_INCLUDEDIR)
  # Before 1.0 any minor version may change the header.
  write_basic_package_version_file(${CMAKE_BINARY_DIR}/generated/pareConfigVersion.cmake COMPATIBILITY SameMinorVersion)
  install(FILES ${CMAKE_BINARY_DIR}/generated/pareConfig.cmake ${CMAKE_BINARY_DIR}/generated/pareConfigVersion.cmake
          DESTINATION ${PARE_PACKAGE_DIRECTORY} COMPONENT development)
  install(FILES cmake/copyright LICENSE DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/pare-dev COMPONENT development)
  install(DIRECTORY docs/examples DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/pare-dev COMPONENT development)
endif()

include(${CMAKE_SOURCE_DIR}/cmake/packages.cmake)
