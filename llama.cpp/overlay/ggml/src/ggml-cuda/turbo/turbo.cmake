# Sources of the turbo types in the CUDA backend. Included by ggml-cuda/CMakeLists.txt after the target is made.

set(GGML_TURBO_CUDA_DIR ${CMAKE_CURRENT_SOURCE_DIR}/turbo)

file(GLOB GGML_TURBO_CUDA_HEADERS CONFIGURE_DEPENDS "${GGML_TURBO_CUDA_DIR}/*.cuh" "${GGML_TURBO_CUDA_DIR}/*.h")
file(GLOB GGML_TURBO_CUDA_SOURCES CONFIGURE_DEPENDS "${GGML_TURBO_CUDA_DIR}/*.cu")

target_sources(ggml-cuda PRIVATE ${GGML_TURBO_CUDA_HEADERS} ${GGML_TURBO_CUDA_SOURCES})

# The backend is built with -use_fast_math. Packed bytes are the format's only with denormals kept (docs/FORMAT.md); the rounding of the
# encoder's operations is in its sources. Later options win.
set_source_files_properties(${GGML_TURBO_CUDA_SOURCES} PROPERTIES COMPILE_OPTIONS "-ftz=false;-prec-div=true;-prec-sqrt=true")
