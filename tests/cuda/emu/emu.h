#pragma once

// The emulator's interface to tests: device memory, faults, traffic, the order of threads. See README.md.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace emu {

// In which order the threads of a block run between two barriers. A correct kernel gives the same bits in every order.
enum class order { forward, reverse, shuffled };
void set_order(order o, unsigned seed = 1);

// Device properties that kernels' launch code reads: by default EMU_ARCH, 4 multiprocessors, 2 resident blocks on each. Whether kernels
// flush subnormal floats to zero, as those do that nvcc compiles with -use_fast_math: by default no. And the bytes of the L2 cache.
struct device_props { int cc, nsm, blocks_per_sm; bool flush_subnormals; size_t l2; };
extern device_props device;

// Device memory: 256-byte aligned, filled with 0xFF (NaN as f16 and f32), guard zones on both sides. It ends exactly at n bytes.
void * dev_alloc(size_t n, const std::string & name);
void   dev_free (void * p);
void   dev_free_all();

// Host code wrote to device memory (memcpy, memset): those bytes are initialised.
void host_wrote(const void * p, size_t n);

// What a kernel did wrong. kind is one of:
//   out-of-bounds, misaligned, race, uninitialised, deadlock, read-only, canary, stack-overflow
struct fault { std::string kind, text; };
std::vector<fault> take_faults(); // and forgets them
void print_faults(const std::vector<fault> & f);

// Whether kernels were compiled with instrumentation; without it only deadlock, canary and stack-overflow are seen.
bool instrumented();

// Traffic of one buffer since reset_traffic(), instrumented builds only.
//   requested: bytes of all loads or stores of all threads
//   by_block:  bytes that a block touches at least once, summed over blocks: what reaches the multiprocessors if a block's repeats hit its L1
//   dram:      bytes that an L2 cache of device.l2 bytes, empty at reset_traffic(), reads from DRAM and writes back to it (emu_l2.h); what it
//              still holds in the end will be written back, and is counted. It sees the accesses of device.nsm x device.blocks_per_sm blocks in
//              turns, as they run at once on a device
struct traffic {
    struct direction { uint64_t requested = 0, by_block = 0, dram = 0; } read, write;
};
void    reset_traffic();
traffic traffic_of(const void * p); // p anywhere in the buffer
traffic traffic_of_pool();          // all temporaries that launch code took from the pool

struct launch_info { std::string kernel; unsigned grid[3], block[3]; size_t dynamic_shared, static_shared; };
std::vector<launch_info> take_launches();

} // namespace emu
