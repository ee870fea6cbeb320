// What an instrumented kernel does to memory. Kernel sources are compiled with -fsanitize=thread and without its runtime: every load
// and store calls one of the functions at the end of this file, which check it. Seen are accesses outside of buffers, misaligned
// ones (the device faults), reads of shared memory that the block never wrote, and pairs of accesses that no barrier orders.

#include "cuda_emu.h"
#include "emu_internal.h"

#include <cinttypes>

#include <link.h>

namespace emu {

bool instrumentation_linked() { return true; }

namespace {

struct span { uintptr_t lo = ~(uintptr_t) 0, hi = 0; };

// where the program's code and data are loaded
span program_image() {
    span res;
    dl_iterate_phdr([](dl_phdr_info * info, size_t, void * p) {
        span & s = *(span *) p;
        for (int i = 0; i < info->dlpi_phnum; ++i) {
            const ElfW(Phdr) & h = info->dlpi_phdr[i];
            if (h.p_type == PT_LOAD) {
                s.lo = std::min<uintptr_t>(s.lo, info->dlpi_addr + h.p_vaddr);
                s.hi = std::max<uintptr_t>(s.hi, info->dlpi_addr + h.p_vaddr + h.p_memsz);
            }
        }
        return 1; // the first is the program
    }, &res);
    return res;
}

access_record now() { return { block_time, warp_time[current->warp], (uint32_t) current->index }; }

// a happened before the running thread's access
bool ordered(const access_record & a) {
    if (a.block_time < block_began || a.thread == (uint32_t) current->index || a.block_time != block_time) {
        return true;
    }
    return a.thread/WARP == (uint32_t) current->warp && a.warp_time != warp_time[current->warp];
}

bool of_other_block(const access_record & a) { return a.block_time >= launch_began && a.block_time < block_began; }

std::string where(uintptr_t pc) {
    char s[128];
    snprintf(s, sizeof(s), ", block (%u,%u,%u) thread (%u,%u,%u), addr2line -Cfe PROGRAM %" PRIxPTR, blockIdx.x, blockIdx.y, blockIdx.z, threadIdx.x, threadIdx.y, threadIdx.z, pc - 1);
    return s;
}

std::string range(const char * verb, size_t n, const std::string & name, ptrdiff_t at) {
    return std::string(verb) + " of " + std::to_string(n) + " bytes, " + name + " + " + std::to_string(at);
}

// Two threads may store the same value: the conflict counts only if the bytes have changed when the next access is seen.
struct { uintptr_t p; size_t n; unsigned char old[64]; std::string text; } pending;

void settle_pending() {
    if (pending.n) {
        if (memcmp((const void *) pending.p, pending.old, pending.n) != 0) {
            add_fault("race", pending.text);
        }
        pending.n = 0;
    }
}

void write_conflict(uintptr_t p, size_t n, const std::string & text) {
    if (pending.n == 0 && n <= sizeof(pending.old)) {
        pending.p = p;
        pending.n = n;
        memcpy(pending.old, (const void *) p, n);
        pending.text = text;
    }
}

void check_shared(uintptr_t p, size_t n, bool write, uintptr_t pc) {
    const size_t at = p - (uintptr_t) arena;
    const shared_region * r = nullptr;
    for (const auto & x : regions) {
        if (at >= x.lo && at < x.hi + SHARED_GAP) {
            r = &x;
        }
    }
    if (!r || at + n > r->hi) {
        add_fault("out-of-bounds", range(write ? "store" : "load", n, r ? r->name : "shared memory", r ? (ptrdiff_t) (at - r->lo) : (ptrdiff_t) at) + where(pc));
        return;
    }
    const char * verb = nullptr;
    bool same_value_ok = false;
    for (size_t i = at; i < at + n; ++i) {
        shared_shadow & s = arena_shadow[i];
        if (!write && s.write.block_time < block_began) {
            add_fault("uninitialised", range("load", n, r->name, at - r->lo) + where(pc));
            s.write = now(); // once
            return;
        }
        if (write) {
            if (!ordered(s.read) || !ordered(s.read_other_thread) || !ordered(s.read_other_warp)) {
                verb = "store after an unordered load";
                same_value_ok = false;
            } else if (!ordered(s.write)) {
                verb = "store after an unordered store";
                same_value_ok = true;
            }
            s.write = now();
        } else {
            if (!ordered(s.write)) {
                verb = "load after an unordered store";
                same_value_ok = false;
            }
            const access_record a = now();
            if (s.read.thread != a.thread) {
                if (s.read.thread/WARP != a.thread/WARP) {
                    s.read_other_warp = s.read;
                }
                s.read_other_thread = s.read;
            }
            s.read = a;
        }
    }
    if (verb) {
        const std::string text = range(verb, n, r->name, at - r->lo) + where(pc);
        if (same_value_ok) {
            write_conflict(p, n, text);
        } else {
            add_fault("race", text);
        }
    }
}

// Blocks run one after the other here, and as many as fit on the multiprocessors at once on a device: L2 is shown the accesses of such a wave in
// turns, one sector of each block at a time.
struct sector_access { uintptr_t p; buffer * b; bool write; };
std::vector<std::vector<sector_access>> wave; // of each block
uint64_t wave_block = 0;                      // block_serial of the last

void settle_wave() {
    size_t longest = 0;
    for (const auto & block : wave) {
        longest = std::max(longest, block.size());
    }
    for (size_t i = 0; i < longest; ++i) {
        for (const auto & block : wave) {
            if (i < block.size()) {
                const sector_access & a = block[i];
                traffic::direction & c = a.write ? a.b->counts.write : a.b->counts.read;
                c.dram += (a.write ? l2.store(a.p) : l2.load(a.p)) ? l2_cache::SECTOR : 0;
            }
        }
    }
    wave.clear();
}

void to_l2(buffer & b, uintptr_t p, size_t n, bool write) {
    if (wave.empty() || wave_block != block_serial) {
        if (wave.size() == (size_t) device.nsm*device.blocks_per_sm) {
            settle_wave();
        }
        wave.emplace_back();
        wave_block = block_serial;
    }
    auto & block = wave.back();
    for (uintptr_t s = p/l2_cache::SECTOR*l2_cache::SECTOR; s < p + n; s += l2_cache::SECTOR) {
        if (block.empty() || block.back().p != s || block.back().write != write) { // a repeat changes nothing
            block.push_back({ s, &b, write });
        }
    }
}

void check_global(buffer & b, uintptr_t p, size_t n, bool write, uintptr_t pc) {
    const size_t size = b.hi - b.lo, at = p - b.lo;
    if (b.shadow.empty()) {
        b.shadow.resize(size);
    }
    auto & seen = b.block_seen[write];
    seen.resize(size);
    traffic::direction & c = write ? b.counts.write : b.counts.read;
    c.requested += n;
    for (size_t i = at; i < at + n; ++i) {
        if (seen[i] != block_serial) {
            seen[i] = block_serial;
            c.by_block++;
        }
    }
    to_l2(b, p, n, write);

    const char * verb = nullptr;
    bool same_value_ok = false;
    for (size_t i = at; i < at + n; ++i) {
        global_shadow & s = b.shadow[i];
        if (write) {
            if (!ordered(s.read) || of_other_block(s.read)) {
                verb = "store after an unordered load";
                same_value_ok = false;
            } else if (!ordered(s.write) || of_other_block(s.write)) {
                verb = "store after an unordered store";
                same_value_ok = true;
            }
            s.write = now();
            s.written = true;
        } else {
            if (!ordered(s.write) || of_other_block(s.write)) {
                verb = "load after an unordered store";
                same_value_ok = false;
            }
            if (b.temporary && !s.written) {
                add_fault("uninitialised", range("load", n, b.name, at) + where(pc));
                s.written = true; // once
            }
            s.read = now();
        }
    }
    if (verb) {
        const std::string text = range(verb, n, b.name, at) + where(pc);
        if (same_value_ok) {
            write_conflict(p, n, text);
        } else {
            add_fault("race", text);
        }
    }
}

} // namespace

void check_access(uintptr_t p, size_t n, bool write, bool aligned, uintptr_t pc) {
    if (!current || n == 0) {
        return;
    }
    const uintptr_t stack = (uintptr_t) stacks + STACK_SIZE*current->index;
    if (p >= stack && p < stack + STACK_SIZE) {
        return;
    }
    settle_pending();
    static const span image = program_image();
    const bool in_arena = p >= (uintptr_t) arena && p < (uintptr_t) arena + ARENA_SIZE;
    if (!in_arena) {
        // tables of the program, and the arguments of the kernel
        if ((p >= image.lo && p < image.hi) || (p >= host_stack_lo && p < host_stack_lo + (8u << 20))) {
            if (write) {
                add_fault("read-only", range("store", n, "host memory", 0) + where(pc));
                abandon_launch();
            }
            return;
        }
    }
    if (aligned && p % n != 0) {
        buffer * b = in_arena ? nullptr : find_buffer(p, true);
        add_fault("misaligned", range(write ? "store" : "load", n, b ? b->name : "shared memory", b ? (ptrdiff_t) (p - b->lo) : (ptrdiff_t) (p - (uintptr_t) arena)) + where(pc));
    }
    if (in_arena) {
        check_shared(p, n, write, pc);
        return;
    }
    buffer * b = find_buffer(p, true);
    if (b && p >= b->lo && p + n <= b->hi) {
        check_global(*b, p, n, write, pc);
        return;
    }
    char address[32];
    snprintf(address, sizeof(address), "0x%" PRIxPTR, p);
    add_fault("out-of-bounds", (b ? range(write ? "store" : "load", n, b->name, p - b->lo) + " of " + std::to_string(b->hi - b->lo) : range(write ? "store" : "load", n, address, 0)) + where(pc));
    if (!b || write) {
        abandon_launch(); // it would crash, or break the next buffer
    }
}

void launch_finished() {
    settle_pending();
    settle_wave();
}

void atomic_access(const void * p, size_t n) {
    // atomics do not race with each other: only bounds are checked
    const uintptr_t a = (uintptr_t) p;
    if (a >= (uintptr_t) arena && a < (uintptr_t) arena + ARENA_SIZE) {
        for (size_t i = a - (uintptr_t) arena; i < a - (uintptr_t) arena + n; ++i) {
            arena_shadow[i].write = now();
        }
        return;
    }
    buffer * b = find_buffer(a, true);
    if (!b || a < b->lo || a + n > b->hi) {
        add_fault("out-of-bounds", range("atomic", n, b ? b->name : "?", 0));
        abandon_launch();
    }
    b->counts.read.requested  += n;
    b->counts.write.requested += n;
}

} // namespace emu

#define PC ((uintptr_t) __builtin_return_address(0))
extern "C" {
#define X(N) \
    void __tsan_read##N           (void * p) { emu::check_access((uintptr_t) p, N, false, true,  PC); } \
    void __tsan_write##N          (void * p) { emu::check_access((uintptr_t) p, N, true,  true,  PC); } \
    void __tsan_unaligned_read##N (void * p) { emu::check_access((uintptr_t) p, N, false, false, PC); } \
    void __tsan_unaligned_write##N(void * p) { emu::check_access((uintptr_t) p, N, true,  false, PC); }
X(1) X(2) X(4) X(8) X(16)
#undef X
void __tsan_read_range (void * p, long n) { emu::check_access((uintptr_t) p, n, false, false, PC); }
void __tsan_write_range(void * p, long n) { emu::check_access((uintptr_t) p, n, true,  false, PC); }
// guards of static variables, in launch code
char __tsan_atomic8_load(const volatile char * p, int order) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
void __tsan_init() {}
void __tsan_func_entry(void *) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void **, void *) {}
void __tsan_vptr_read(void **) {}

// calls that the compiler did not turn into loads and stores (linked with --wrap)
void * __wrap_memcpy(void * d, const void * s, size_t n) {
    emu::check_access((uintptr_t) s, n, false, false, PC);
    emu::check_access((uintptr_t) d, n, true,  false, PC);
    return memcpy(d, s, n);
}
void * __wrap_memset(void * d, int v, size_t n) {
    emu::check_access((uintptr_t) d, n, true, false, PC);
    return memset(d, v, n);
}
}
