#pragma once

// What the parts of the emulator share: the running thread, the arena of shared memory, device buffers. No kernel sees this.

#include "emu.h"
#include "emu_l2.h"

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace emu {

constexpr int    WARP       = 32;
constexpr size_t STACK_SIZE = 256*1024;
constexpr size_t ARENA_SIZE = 1024*1024;
constexpr size_t GUARD      = 4096; // bytes around a device buffer
constexpr size_t SHARED_GAP = 64;   // bytes between two shared arrays

// An access, as the race check remembers it. `block_time` grows at every barrier and every start of a block, `warp_time` at every
// __syncwarp of the warp: two accesses of a block are ordered if their block times differ, or, within a warp, their warp times.
struct access_record { uint64_t block_time = 0; uint32_t warp_time = 0; uint32_t thread = 0; };

struct shared_shadow { access_record write, read, read_other_thread, read_other_warp; };
struct global_shadow { access_record write, read; bool written = false; };

struct buffer {
    uintptr_t lo, hi;
    std::string name;
    bool temporary;           // from the pool: contents are undefined until written
    unsigned char * base;     // of the allocation
    std::vector<global_shadow> shadow;            // a byte each, made at the first access
    std::vector<uint64_t> block_seen[2]; // [write]: last block that touched the byte
    traffic counts;
};

struct async_copy { void * dst; const void * src; size_t size; };

struct fiber {
    void * sp;
    int index, lane, warp; // thread in the block
    bool done;
    std::vector<async_copy> copies; // cp.async not waited for
    std::vector<size_t> groups;     // ends of committed groups in copies
};

extern fiber * current; // null outside of kernels
extern uint64_t block_time, block_began, launch_began, launch_serial, block_serial;
extern l2_cache l2;
extern std::vector<uint32_t> warp_time;
extern unsigned char * stacks;
extern unsigned char * arena;   // below 4 GiB: shared addresses fit 32 bits, as on the device
extern std::vector<shared_shadow> arena_shadow;
extern std::string kernel_name;
extern uintptr_t host_stack_lo;

struct shared_region { size_t lo, hi; std::string name; const void * key; };
extern std::vector<shared_region> regions;

buffer * find_buffer(uintptr_t p, bool with_guard);
void add_fault(const char * kind, const std::string & text);
[[noreturn]] void abandon_launch(); // the thread that calls it is in a state from which it cannot go on

void check_access(uintptr_t p, size_t n, bool write, bool aligned, uintptr_t pc);
void launch_finished();
bool instrumentation_linked();

void * dev_alloc_temporary(size_t n);

} // namespace emu
