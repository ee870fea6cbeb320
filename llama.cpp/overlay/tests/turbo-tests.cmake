# Tests of the turbo types; `ctest -L turbo` runs them. Included by tests/CMakeLists.txt.

set(TURBO_VECTORS_DIR "${PROJECT_SOURCE_DIR}/../../tests/vectors" CACHE PATH "turbo: folder of the JSON test vectors")

llama_build(test-turbo-codec.cpp)
target_include_directories(test-turbo-codec PRIVATE ${PROJECT_SOURCE_DIR}/vendor)

llama_test(test-turbo-codec LABEL turbo ARGS ${TURBO_VECTORS_DIR})

# every level this build has, forced; a level that the processor lacks aborts with the list of those it has
set(TURBO_LEVELS scalar)
if (GGML_SYSTEM_ARCH STREQUAL "x86" OR CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    list(APPEND TURBO_LEVELS avx2)
endif()
foreach (level ${TURBO_LEVELS})
    llama_test(test-turbo-codec NAME test-turbo-codec-${level} LABEL turbo ARGS ${TURBO_VECTORS_DIR} ${level})
    set_tests_properties(test-turbo-codec-${level} PROPERTIES ENVIRONMENT GGML_TURBO_ISA=${level})
endforeach()

# upstream's own tests, with the turbo types in their lists
llama_test(test-quantize-fns NAME test-turbo-quantize-fns LABEL turbo)
llama_test(test-backend-ops  NAME test-turbo-backend-ops  LABEL turbo ARGS test -b CPU -p "turbo")
