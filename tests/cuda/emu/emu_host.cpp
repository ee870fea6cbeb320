// The CUDA runtime and what ggml-cuda.cu gives the kernels' launch code: one device, whose memory is the emulator's; everything is synchronous.

#include "cuda_emu.h"
#include "emu_internal.h"

#include "common.cuh"

extern "C" {
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes * a, const void *) { memset(a, 0, sizeof(*a)); return cudaSuccess; } // ptxVersion 0: no programmatic dependent launch
cudaError_t cudaFuncSetAttribute(const void *, cudaFuncAttribute, int) { return cudaSuccess; }
const char * cudaGetErrorString(cudaError_t) { return "error of the emulator"; }
cudaError_t cudaGetLastError() { return cudaSuccess; }
cudaError_t cudaPeekAtLastError() { return cudaSuccess; }
cudaError_t cudaGetDevice(int * id) { *id = 0; return cudaSuccess; }
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *, const void *, void **) { abort(); }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t * s, unsigned) { *s = (cudaStream_t) 8; return cudaSuccess; }
cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaMemcpyAsync(void * d, const void * s, size_t n, cudaMemcpyKind, cudaStream_t) {
    memcpy(d, s, n);
    emu::host_wrote(d, n);
    return cudaSuccess;
}
cudaError_t cudaMemcpy2DAsync(void * d, size_t dp, const void * s, size_t sp, size_t w, size_t h, cudaMemcpyKind, cudaStream_t) {
    for (size_t i = 0; i < h; ++i) {
        memcpy((char *) d + i*dp, (const char *) s + i*sp, w);
        emu::host_wrote((char *) d + i*dp, w);
    }
    return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void * d, int v, size_t n, cudaStream_t) {
    memset(d, v, n);
    emu::host_wrote(d, n);
    return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int * n, const void *, int, size_t) { *n = emu::device.blocks_per_sm; return cudaSuccess; }
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int * n, const void *, int, size_t, unsigned) { *n = emu::device.blocks_per_sm; return cudaSuccess; }
}

int  ggml_cuda_get_device() { return 0; }
void ggml_cuda_set_device(int) {}
[[noreturn]] void ggml_cuda_error(const char * statement, const char * function, const char * file, int line, const char * message) {
    fprintf(stderr, "%s: %s in %s, %s:%d\n", statement, message, function, file, line);
    abort();
}

const ggml_cuda_device_info & ggml_cuda_info() {
    static ggml_cuda_device_info info = {};
    info.device_count = 1;
    auto & d = info.devices[0];
    d.cc = emu::device.cc;
    d.nsm = emu::device.nsm;
    d.smpb = 48*1024;
    d.smpbo = 227*1024;
    d.warp_size = 32;
    d.total_vram = 1ull << 33;
    return info;
}

struct emulated_pool : ggml_cuda_pool {
    void * alloc(size_t n, size_t * actual) override { *actual = n; return emu::dev_alloc_temporary(n); }
    void free(void * p, size_t) override { emu::dev_free(p); }
};
std::unique_ptr<ggml_cuda_pool> ggml_backend_cuda_context::new_pool_for_device(int, int) { return std::make_unique<emulated_pool>(); }
ggml_backend_cuda_context::~ggml_backend_cuda_context() {}
