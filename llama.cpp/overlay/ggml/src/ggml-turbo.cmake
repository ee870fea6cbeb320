# The reference's sums are rounded as docs/FORMAT.md says: no contraction to FMA.
if (NOT MSVC)
    set_source_files_properties(ggml-turbo.cpp PROPERTIES COMPILE_OPTIONS "-ffp-contract=off")
endif()
