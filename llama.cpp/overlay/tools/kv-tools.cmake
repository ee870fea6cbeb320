# llama-kv-capture and its like, one source each; included by tools/CMakeLists.txt

foreach (name kv-capture kv-condition kv-generate)
    add_executable(llama-${name} ${CMAKE_CURRENT_SOURCE_DIR}/${name}/${name}.cpp)
    target_link_libraries(llama-${name} PRIVATE llama-common llama ${CMAKE_THREAD_LIBS_INIT})
    target_compile_features(llama-${name} PRIVATE cxx_std_17)
    if (LLAMA_TOOLS_INSTALL)
        install(TARGETS llama-${name} RUNTIME)
    endif()
endforeach()
