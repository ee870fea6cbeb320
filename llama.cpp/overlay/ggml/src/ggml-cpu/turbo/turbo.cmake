# Sources of the turbo types in the CPU backend, one translation unit an instruction-set level. Included by
# ggml-cpu/CMakeLists.txt, which names the target in GGML_CPU_NAME.

set(GGML_TURBO_DIR ${CMAKE_CURRENT_SOURCE_DIR}/ggml-cpu/turbo)

target_sources(${GGML_CPU_NAME} PRIVATE
    ${GGML_TURBO_DIR}/turbo.cpp
    ${GGML_TURBO_DIR}/turbo.h
    ${GGML_TURBO_DIR}/turbo-fattn.cpp
    ${GGML_TURBO_DIR}/turbo-fattn-lanes.inc
    ${GGML_TURBO_DIR}/turbo-fattn-rows.inc
    ${GGML_TURBO_DIR}/turbo-kernels.h
    ${GGML_TURBO_DIR}/turbo-scalar.cpp)

# the encoder's sums are rounded as the format says: no contraction, no reassociation
set(GGML_TURBO_FLAGS -ffp-contract=off)

if (GGML_SYSTEM_ARCH STREQUAL "x86" AND NOT MSVC)
    target_sources(${GGML_CPU_NAME} PRIVATE
        ${GGML_TURBO_DIR}/turbo-avx2.cpp ${GGML_TURBO_DIR}/turbo-avx2-lanes.inc ${GGML_TURBO_DIR}/turbo-avx2-rows.inc ${GGML_TURBO_DIR}/turbo-avx512.cpp)
    target_compile_definitions(${GGML_CPU_NAME} PRIVATE GGML_TURBO_X86)
    set_source_files_properties(${GGML_TURBO_DIR}/turbo-avx2.cpp
        PROPERTIES COMPILE_OPTIONS "${GGML_TURBO_FLAGS};-march=x86-64-v3")
    set_source_files_properties(${GGML_TURBO_DIR}/turbo-avx512.cpp
        PROPERTIES COMPILE_OPTIONS "${GGML_TURBO_FLAGS};-march=x86-64-v4;-mavx512vbmi;-mavx512vnni")
    include(CheckCXXCompilerFlag)
    check_cxx_compiler_flag(-mavxvnni GGML_TURBO_COMPILER_AVXVNNI) # GCC 11, Clang 12
    if (GGML_TURBO_COMPILER_AVXVNNI)
        target_sources(${GGML_CPU_NAME} PRIVATE ${GGML_TURBO_DIR}/turbo-avxvnni.cpp)
        target_compile_definitions(${GGML_CPU_NAME} PRIVATE GGML_TURBO_AVXVNNI)
        set_source_files_properties(${GGML_TURBO_DIR}/turbo-avxvnni.cpp
            PROPERTIES COMPILE_OPTIONS "${GGML_TURBO_FLAGS};-march=x86-64-v3;-mavxvnni")
    endif()
endif()

if (GGML_SYSTEM_ARCH STREQUAL "ARM" AND CMAKE_SIZEOF_VOID_P EQUAL 8 AND NOT MSVC)
    target_sources(${GGML_CPU_NAME} PRIVATE ${GGML_TURBO_DIR}/turbo-neon.cpp ${GGML_TURBO_DIR}/turbo-dotprod.cpp ${GGML_TURBO_DIR}/turbo-neon-rows.inc)
    target_compile_definitions(${GGML_CPU_NAME} PRIVATE GGML_TURBO_NEON)
    set_source_files_properties(${GGML_TURBO_DIR}/turbo-neon.cpp ${GGML_TURBO_DIR}/turbo-dotprod.cpp PROPERTIES COMPILE_OPTIONS "${GGML_TURBO_FLAGS}")
    # a library for a named processor names it for every unit, and a second -march would contradict it
    if (NOT GGML_NATIVE AND NOT GGML_CPU_ARM_ARCH AND NOT GGML_CPU_ALL_VARIANTS)
        set_source_files_properties(${GGML_TURBO_DIR}/turbo-dotprod.cpp PROPERTIES COMPILE_OPTIONS "${GGML_TURBO_FLAGS};-march=armv8.2-a+dotprod")
    endif()
endif()
