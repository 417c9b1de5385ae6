# The four kinds of target that every folder is made of, with the warnings and sanitizers that all of them share.

set(SLUICE_WARNINGS -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Werror)

function(_sluice_common target)
  target_include_directories(${target} PRIVATE ${CMAKE_SOURCE_DIR}/src)
  target_compile_options(${target} PRIVATE ${SLUICE_WARNINGS} -fno-omit-frame-pointer
                         -ffile-prefix-map=${CMAKE_SOURCE_DIR}/=)
  if(SLUICE_FUZZ)  # coverage for libFuzzer in everything; the fuzz programs alone link its main
    target_compile_options(${target} PRIVATE -fsanitize=fuzzer-no-link)
  endif()
  if(SLUICE_SANITIZE)
    target_compile_options(${target} PRIVATE -fsanitize=${SLUICE_SANITIZE} -fno-sanitize-recover=all)
    target_link_options(${target} PRIVATE -fsanitize=${SLUICE_SANITIZE})
  endif()
endfunction()

# sluice_library(NAME SOURCES a.cc b.cc DEPS x y): a static library.
function(sluice_library name)
  cmake_parse_arguments(A "" "" "SOURCES;DEPS" ${ARGN})
  add_library(${name} STATIC ${A_SOURCES})
  _sluice_common(${name})
  target_link_libraries(${name} PUBLIC ${A_DEPS})
endfunction()

# sluice_binary(NAME SOURCES main.cc DEPS x y): a program in build/<preset>/bin. Target names of programs carry the
# suffix _bin where a library of that name exists; OUTPUT sets the file's name.
function(sluice_binary name)
  cmake_parse_arguments(A "" "OUTPUT" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${A_SOURCES})
  _sluice_common(${name})
  target_link_libraries(${name} PRIVATE ${A_DEPS})
  if(A_OUTPUT)
    set_target_properties(${name} PROPERTIES OUTPUT_NAME ${A_OUTPUT})
  endif()
endfunction()

# sluice_test(NAME SOURCES a_test.cc DEPS x y [LABEL unit] [TIMEOUT 60]): a GoogleTest program, one ctest entry.
# Without GoogleTest (SLUICE_BARE) there is no such test.
function(sluice_test name)
  if(SLUICE_BARE)
    return()
  endif()
  cmake_parse_arguments(A "" "LABEL;TIMEOUT" "SOURCES;DEPS" ${ARGN})
  if(NOT A_LABEL)
    set(A_LABEL unit)
  endif()
  if(NOT A_TIMEOUT)
    set(A_TIMEOUT 120)
  endif()
  add_executable(${name} ${A_SOURCES})
  _sluice_common(${name})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  target_link_libraries(${name} PRIVATE ${A_DEPS} GTest::gtest_main)
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES LABELS ${A_LABEL} TIMEOUT ${A_TIMEOUT})
endfunction()

# sluice_script_test(NAME SCRIPT tests/x.sh [ARGS ..] [LABEL end-to-end] [TIMEOUT 120]): a script that gets the build
# folder as SLUICE_BUILD and the source folder as SLUICE_SOURCE; SERIAL keeps others from running beside it.
function(sluice_script_test name)
  cmake_parse_arguments(A "SERIAL" "SCRIPT;LABEL;TIMEOUT" "ARGS" ${ARGN})
  if(NOT A_LABEL)
    set(A_LABEL end-to-end)
  endif()
  if(NOT A_TIMEOUT)
    set(A_TIMEOUT 120)
  endif()
  if(A_SCRIPT MATCHES "[.]py$")
    add_test(NAME ${name} COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/${A_SCRIPT} ${A_ARGS})
  else()
    add_test(NAME ${name} COMMAND bash ${CMAKE_CURRENT_SOURCE_DIR}/${A_SCRIPT} ${A_ARGS})
  endif()
  set_tests_properties(${name} PROPERTIES LABELS ${A_LABEL} TIMEOUT ${A_TIMEOUT}
    SKIP_RETURN_CODE 77 ENVIRONMENT "SLUICE_BUILD=${CMAKE_BINARY_DIR};SLUICE_SOURCE=${CMAKE_SOURCE_DIR}")
  if(A_SERIAL)
    set_tests_properties(${name} PROPERTIES RUN_SERIAL TRUE)
  endif()
endfunction()
