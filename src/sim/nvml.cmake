# The management library of the simulated card, the tool on top of it, and their tests.
add_library(sim_nvml OBJECT
  nvml_device.cc nvml_modes.cc nvml_processes.cc nvml_sensors.cc nvml_state.cc nvml_system.cc nvml_usage.cc
  ${SLUICE_ABI_GENERATED}/sim/nvml_defaults.cc)
_sluice_common(sim_nvml)
target_compile_options(sim_nvml PRIVATE -fvisibility=hidden)
target_link_libraries(sim_nvml PUBLIC sluice_abi sim_card)

# The bodies, for a harness that links sim_driver too.
add_library(sim_management INTERFACE)
target_link_libraries(sim_management INTERFACE sim_nvml $<TARGET_OBJECTS:sim_nvml> sim_card)

add_library(sim_libnvml SHARED ${SLUICE_ABI_GENERATED}/sim/nvml_exports.S)
_sluice_common(sim_libnvml)
target_link_libraries(sim_libnvml PRIVATE sim_nvml sim_core sim_card Threads::Threads)
target_link_options(sim_libnvml PRIVATE -static-libstdc++ -static-libgcc -Wl,-z,now
  -Wl,--version-script=${SLUICE_ABI_GENERATED}/sim/nvml_exports.map)
set_target_properties(sim_libnvml PROPERTIES OUTPUT_NAME nvidia-ml VERSION 1 SOVERSION 1
  LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/sim LINK_DEPENDS ${SLUICE_ABI_GENERATED}/sim/nvml_exports.map)

sluice_binary(nvidia_smi_bin OUTPUT nvidia-smi
  SOURCES nvidia_smi.cc nvidia_smi_nvml.cc nvidia_smi_table.cc nvidia_smi_query.cc nvidia_smi_details.cc
  DEPS sluice_abi fmt::fmt-header-only ${CMAKE_DL_LIBS})
# As the vendor's tool it needs nothing of an image but the C library: containers get it mounted.
if(NOT SLUICE_SANITIZE)
  target_link_options(nvidia_smi_bin PRIVATE -static-libstdc++ -static-libgcc)
endif()

sluice_test(sim_nvml_test SOURCES nvml_test.cc
  DEPS sim_nvml sim_core sim_create sim_card Threads::Threads)
sluice_test(sim_mem_test SOURCES mem_test.cc DEPS sim_driver sim_create)
