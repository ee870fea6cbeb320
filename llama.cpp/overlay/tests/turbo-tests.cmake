# Tests of the turbo types; `ctest -L turbo` runs them. Included by tests/CMakeLists.txt.

set(TURBO_VECTORS_DIR "${PROJECT_SOURCE_DIR}/../../tests/vectors" CACHE PATH "turbo: folder of the JSON test vectors")

# these need ggml only, so that a sanitizer build and a cross build of them stay small
foreach (program test-turbo-codec test-turbo-fattn count-turbo-kernels)
    add_executable(${program} ${program}.cpp)
    target_link_libraries(${program} PRIVATE ggml)
    target_include_directories(${program} PRIVATE ${PROJECT_SOURCE_DIR}/vendor)
    target_compile_features(${program} PRIVATE cxx_std_17)
endforeach()

llama_test(test-turbo-codec LABEL turbo ARGS ${TURBO_VECTORS_DIR})

# every level this build has, forced; a level that the processor lacks aborts with the list of those it has
set(TURBO_LEVELS scalar)
if (GGML_SYSTEM_ARCH STREQUAL "x86" OR CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    list(APPEND TURBO_LEVELS avx2) # avx512 is in the run without a name, where the processor has it
elseif (CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64|ARM64")
    list(APPEND TURBO_LEVELS neon) # as avx2, dotprod as avx512
endif()
foreach (level ${TURBO_LEVELS})
    llama_test(test-turbo-codec NAME test-turbo-codec-${level} LABEL turbo ARGS ${TURBO_VECTORS_DIR} ${level})
    set_tests_properties(test-turbo-codec-${level} PROPERTIES ENVIRONMENT GGML_TURBO_ISA=${level})
endforeach()

# upstream's own tests, with the turbo types in their lists
llama_test(test-quantize-fns NAME test-turbo-quantize-fns LABEL turbo)
llama_test(test-backend-ops  NAME test-turbo-backend-ops  LABEL turbo ARGS test -b CPU -p "turbo")

# attention on compressed keys and values: every level that the processor has, each in a process of its own
llama_test(test-turbo-fattn LABEL turbo)

# not a test: speed of the kernels against memcpy and the f16 kernel
llama_build(bench-turbo-kernels.cpp)

# not a test: speed of cache types on a real model at depth
llama_build(bench-turbo-depth.cpp)

# every architecture, on the random models that upstream's test-llama-archs writes
if (TARGET test-llama-archs)
    llama_build(test-turbo-archs.cpp)
    set(TURBO_MODEL_DIR "${CMAKE_CURRENT_BINARY_DIR}/turbo-models")
    file(MAKE_DIRECTORY "${TURBO_MODEL_DIR}/cache")
    llama_test(test-llama-archs NAME test-turbo-generate-models LABEL turbo ARGS -o "${TURBO_MODEL_DIR}")
    llama_test(test-turbo-archs LABEL turbo ARGS "${TURBO_MODEL_DIR}")
    set_tests_properties(test-turbo-generate-models PROPERTIES FIXTURES_SETUP turbo-models)
    set_tests_properties(test-turbo-archs           PROPERTIES FIXTURES_REQUIRED turbo-models
        ENVIRONMENT "XDG_CACHE_HOME=${TURBO_MODEL_DIR}/cache")

    # on the same models: a device that lacks kernels
    llama_build(test-turbo-fallback.cpp)
    target_include_directories(test-turbo-fallback PRIVATE ${PROJECT_SOURCE_DIR}/ggml/src)
    llama_test(test-turbo-fallback LABEL turbo ARGS "${TURBO_MODEL_DIR}/llama-dense.gguf")
    set_tests_properties(test-turbo-fallback PROPERTIES FIXTURES_REQUIRED turbo-models
        ENVIRONMENT "XDG_CACHE_HOME=${TURBO_MODEL_DIR}/cache")
endif()

# not a test by itself: the cells of one model, for tests/matrix
llama_build(turbo-matrix.cpp)
target_include_directories(turbo-matrix PRIVATE ${PROJECT_SOURCE_DIR}/vendor)

# not a test: context shift on a real model, type by type
llama_build(turbo-shift.cpp)
