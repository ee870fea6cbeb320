# llama-kv-capture and its like; included by tools/CMakeLists.txt

set(kv-capture_PARTS kv-capture/capture-file.cpp kv-capture/collector.cpp)

foreach (name kv-capture kv-condition kv-generate)
    set(sources ${name}/${name}.cpp ${${name}_PARTS})
    list(TRANSFORM sources PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/)
    add_executable(llama-${name} ${sources})
    target_link_libraries(llama-${name} PRIVATE llama-common llama ${CMAKE_THREAD_LIBS_INIT})
    target_compile_features(llama-${name} PRIVATE cxx_std_17)
    if (LLAMA_TOOLS_INSTALL)
        install(TARGETS llama-${name} RUNTIME)
    endif()
endforeach()
