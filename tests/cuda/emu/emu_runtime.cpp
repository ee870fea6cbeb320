// Fibers, barriers, launches, shared and device memory.

#include "cuda_emu.h"
#include "emu_internal.h"

#include <random>
#include <set>

#include <sys/mman.h>
#include <xmmintrin.h>

extern "C" void emu_switch(void ** save, void * to);
asm(R"(.text
.hidden emu_switch
.globl emu_switch
.type emu_switch,@function
emu_switch:
    pushq %rbp; pushq %rbx; pushq %r12; pushq %r13; pushq %r14; pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15; popq %r14; popq %r13; popq %r12; popq %rbx; popq %rbp
    ret
.size emu_switch,.-emu_switch
.section .note.GNU-stack,"",@progbits
.text
)");

uint3 threadIdx, blockIdx;
dim3  blockDim, gridDim;

namespace emu {

device_props device = { EMU_ARCH, 4, 2, false, 4 << 20 };

fiber * current = nullptr;
uint64_t block_time = 0, block_began = 0, launch_began = 0, launch_serial = 0, block_serial = 0;
l2_cache l2;
std::vector<uint32_t> warp_time;
unsigned char * stacks = nullptr;
unsigned char * arena  = nullptr;
std::vector<shared_shadow> arena_shadow;
std::string kernel_name;
uintptr_t host_stack_lo;
std::vector<shared_region> regions;

namespace {

struct barrier {
    unsigned members = 0, arrived = 0; // for a warp: masks of lanes; for the block: counts
    unsigned generation = 0;
    alignas(16) unsigned char rows[2][WARP][64];
};

struct warp_state {
    unsigned alive = 0;
    std::map<unsigned, barrier> barriers; // by mask
};

size_t n_stacks = 0;
std::vector<fiber> fibers;
std::vector<warp_state> warps;
unsigned block_need, block_arrived, block_generation;
bool progress, abandoned;
void * scheduler_sp;
body_t body;
void * body_arg;
order thread_order = order::forward;
std::mt19937 rng(1);

size_t arena_used, dynamic_size;
std::vector<fault> faults;
std::vector<launch_info> launches;

// Kernel, threads and bytes of dynamic shared memory of every form of launch, appended to the file of the variable EMU_LAUNCHES.
struct launch_log {
    std::set<std::string> lines;

    ~launch_log() {
        const char * path = getenv("EMU_LAUNCHES");
        FILE * f = path && !lines.empty() ? fopen(path, "a") : nullptr;
        if (f) {
            for (const auto & line : lines) {
                fprintf(f, "%s\n", line.c_str());
            }
            fclose(f);
        }
    }
} launch_log;

std::map<uintptr_t, std::unique_ptr<buffer>> buffers; // by address of the allocation
traffic pool_counts;
constexpr unsigned char CANARY = 0xFF;

void yield() {
    fiber * f = current;
    emu_switch(&f->sp, scheduler_sp);
}

void release_block() {
    if (block_need < fibers.size()) {
        add_fault("deadlock", "__syncthreads after " + std::to_string(fibers.size() - block_need) + " threads of the block have returned");
    }
    block_arrived = 0;
    block_generation++;
    block_time++;
    progress = true;
}

void release_warp(barrier & b) {
    b.arrived = 0;
    b.generation++;
    progress = true;
}

barrier & meet(unsigned mask, const void * mine, size_t size, unsigned & slot) {
    fiber & f = *current;
    warp_state & w = warps[f.warp];
    const unsigned bit = 1u << f.lane;
    if (!(mask & bit)) {
        add_fault("deadlock", "a thread calls a warp function with a mask that does not name it");
        abandon_launch();
    }
    const unsigned key = mask & w.alive;
    barrier & b = w.barriers[key];
    b.members = key;
    slot = b.generation & 1;
    if (size) {
        __builtin_memcpy(b.rows[slot][f.lane], mine, size);
    }
    const unsigned g = b.generation;
    b.arrived |= bit;
    if (b.arrived == b.members) {
        release_warp(b);
    } else {
        while (b.generation == g) {
            yield();
        }
    }
    return b;
}

void leave() {
    fiber & f = *current;
    warp_state & w = warps[f.warp];
    const unsigned bit = 1u << f.lane;
    // lanes that wait for this one go on without it
    std::map<unsigned, barrier> rest;
    for (auto & [mask, b] : w.barriers) {
        if (b.arrived && (mask & bit)) {
            b.members &= ~bit;
            if (b.arrived == b.members) {
                release_warp(b);
            }
        }
    }
    w.alive &= ~bit;
    if (--block_need > 0 && block_arrived >= block_need) {
        release_block();
    }
}

void trampoline() {
    body(body_arg);
    current->done = true;
    progress = true;
    leave();
    yield();
    abort();
}

void check_canaries() {
    for (auto & [base, b] : buffers) {
        const unsigned char * lo = b->base, * hi = (const unsigned char *) b->hi;
        for (size_t i = 0; i < GUARD; ++i) {
            const bool before = lo[i] != CANARY, after = hi[i] != CANARY;
            if (before || after) {
                add_fault("canary", b->name + ": written " + std::to_string(before ? GUARD - i : i + 1) + " bytes " + (before ? "before its start" : "past its end"));
                memset(b->base, CANARY, GUARD);
                memset((void *) b->hi, CANARY, GUARD);
                break;
            }
        }
    }
}

void run_block(int n) {
    if (n_stacks < (size_t) n) {
        if (stacks) {
            munmap(stacks, n_stacks*STACK_SIZE);
        }
        n_stacks = std::max(n, 1024);
        stacks = (unsigned char *) mmap(nullptr, n_stacks*STACK_SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    }
    fibers.resize(n);
    warps.assign((n + WARP - 1)/WARP, {});
    warp_time.assign(warps.size(), 0);
    block_need = n;
    block_arrived = 0;
    block_began = ++block_time;
    block_serial++;
    memset(arena, 0xFF, std::max(arena_used, dynamic_size) + SHARED_GAP);

    for (int i = 0; i < n; ++i) {
        fiber & f = fibers[i];
        f.index = i;
        f.lane = i % WARP;
        f.warp = i/WARP;
        f.done = false;
        f.copies.clear();
        f.groups.clear();
        warps[f.warp].alive |= 1u << f.lane;
        unsigned char * bottom = stacks + STACK_SIZE*i;
        *(uint64_t *) bottom = 0x5AFE5AFE5AFE5AFEull;
        void ** sp = (void **) (bottom + STACK_SIZE);
        *--sp = nullptr;
        *--sp = (void *) trampoline;
        for (int k = 0; k < 6; ++k) {
            *--sp = nullptr;
        }
        f.sp = sp;
    }

    std::vector<int> turn(n);
    for (int i = 0; i < n; ++i) {
        turn[i] = thread_order == order::reverse ? n - 1 - i : i;
    }
    for (int left = n; left > 0 && !abandoned;) {
        progress = false;
        left = 0;
        if (thread_order == order::shuffled) {
            std::shuffle(turn.begin(), turn.end(), rng);
        }
        for (int i = 0; i < n && !abandoned; ++i) {
            fiber & f = fibers[turn[i]];
            if (f.done) {
                continue;
            }
            current = &f;
            const int x = blockDim.x, y = blockDim.y;
            threadIdx = { (unsigned) (f.index % x), (unsigned) (f.index/x % y), (unsigned) (f.index/(x*y)) };
            emu_switch(&scheduler_sp, f.sp);
            current = nullptr;
            left += !f.done;
        }
        if (left && !progress && !abandoned) {
            add_fault("deadlock", std::to_string(left) + " threads wait at a barrier or shuffle that others never reach");
            abandoned = true;
        }
    }
    for (int i = 0; i < n; ++i) {
        if (*(uint64_t *) (stacks + STACK_SIZE*i) != 0x5AFE5AFE5AFE5AFEull) {
            add_fault("stack-overflow", "a thread's local memory exceeds " + std::to_string(STACK_SIZE) + " bytes");
            break;
        }
    }
}

} // namespace

void abandon_launch() {
    abandoned = true;
    for (;;) {
        yield();
    }
}

void launch(const char * kernel, dim3 grid, dim3 block, size_t smem, body_t b, void * arg) {
    const size_t n = (size_t) block.x*block.y*block.z;
    if (n == 0 || n > 1024 || grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.y > 65535 || grid.z > 65535) {
        add_fault("launch", std::string(kernel) + ": invalid configuration");
        return;
    }
    if (!arena) {
        arena = (unsigned char *) mmap(nullptr, ARENA_SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
        arena_shadow.resize(instrumentation_linked() ? ARENA_SIZE : 0);
    }
    kernel_name = kernel;
    gridDim = grid;
    blockDim = block;
    body = b;
    body_arg = arg;
    launch_serial++;
    launch_began = block_time + 1;
    regions.clear();
    dynamic_size = smem;
    arena_used = 0;
    if (smem) {
        regions.push_back({ 0, smem, "dynamic shared memory", nullptr });
        arena_used = (smem + 2*SHARED_GAP - 1)/SHARED_GAP*SHARED_GAP;
    }
    abandoned = false;
    host_stack_lo = (uintptr_t) __builtin_frame_address(0);

    const unsigned mxcsr = _mm_getcsr();
    if (device.flush_subnormals) {
        _mm_setcsr(mxcsr | 0x8040);
    }
    for (unsigned z = 0; z < grid.z && !abandoned; ++z) {
        for (unsigned y = 0; y < grid.y && !abandoned; ++y) {
            for (unsigned x = 0; x < grid.x && !abandoned; ++x) {
                blockIdx = { x, y, z };
                run_block((int) n);
            }
        }
    }
    _mm_setcsr(mxcsr);
    launch_finished();

    size_t fixed = 0;
    for (const auto & r : regions) {
        fixed += r.key ? r.hi - r.lo : 0;
    }
    launches.push_back({ kernel, { grid.x, grid.y, grid.z }, { block.x, block.y, block.z }, smem, fixed });
    launch_log.lines.insert(kernel_name.substr(0, kernel_name.find('<')) + " " + std::to_string(block.x*block.y*block.z) + " " + std::to_string(smem));
    check_canaries();
}

int lane() { return current->lane; }

exchange_rows exchange(unsigned mask, const void * mine, size_t size) {
    unsigned slot;
    return meet(mask, mine, size, slot).rows[slot];
}

// here, not in the kernel's unit: the rows are no memory of the kernel's
void shuffle(unsigned mask, const void * mine, void * res, size_t size, int src) {
    const exchange_rows r = exchange(mask, mine, size);
    memcpy(res, r[src < 0 ? lane() : src], size);
}

void sync_warp(unsigned mask) {
    unsigned slot;
    const unsigned before = warps[current->warp].barriers[mask & warps[current->warp].alive].generation;
    barrier & b = meet(mask, nullptr, 0, slot);
    // one step of time a rendezvous: whoever comes first after it
    static uint64_t stepped_block; static int stepped_warp = -1; static unsigned stepped_generation; static const barrier * stepped;
    if (stepped != &b || stepped_generation != before || stepped_warp != current->warp || stepped_block != block_serial) {
        stepped = &b; stepped_generation = before; stepped_warp = current->warp; stepped_block = block_serial;
        warp_time[current->warp]++;
    }
}

void sync_block() {
    const unsigned g = block_generation;
    if (++block_arrived >= block_need) {
        release_block();
    } else {
        while (block_generation == g) {
            yield();
        }
    }
}

int sync_block_or(int p) {
    static int any;
    static uint64_t block = 0;
    static unsigned generation;
    if (block != block_serial || generation != block_generation) { // the first thread that comes
        block = block_serial;
        generation = block_generation;
        any = 0;
    }
    any |= p != 0;
    sync_block();
    const int res = any;
    sync_block(); // nobody begins the next one before all have read
    return res;
}

unsigned ballot(unsigned mask, bool p) {
    const unsigned v = p;
    const unsigned members = mask & warps[current->warp].alive;
    const exchange_rows r = exchange(mask, &v, sizeof(v));
    unsigned res = 0;
    for (int i = 0; i < WARP; ++i) {
        if (members >> i & 1) {
            res |= (r[i][0] & 1u) << i;
        }
    }
    return res;
}

void * shared_dynamic() { return arena; }

void * shared_array(const void * key, const char * name, size_t size, size_t align) {
    for (const auto & r : regions) {
        if (r.key == key) {
            return arena + r.lo;
        }
    }
    const size_t lo = (arena_used + align - 1)/align*align;
    if (lo + size + SHARED_GAP > ARENA_SIZE) {
        add_fault("out-of-bounds", "more shared memory than the emulator has");
        abandon_launch();
    }
    regions.push_back({ lo, lo + size, name, key });
    arena_used = lo + size + SHARED_GAP;
    memset(arena + lo, 0xFF, size + SHARED_GAP);
    return arena + lo;
}

float sqrt_approx(float x) {
    const float r = __builtin_sqrtf(x);
    uint32_t b;
    memcpy(&b, &r, 4);
    if (r > 0.0f && b < 0x7F7FFFFF) {
        uint32_t h;
        memcpy(&h, &x, 4);
        b += (h*2654435761u >> 31) ? 1 : -1;
    }
    float res;
    memcpy(&res, &b, 4);
    return res;
}

// device memory

static void * alloc(size_t n, const std::string & name, bool temporary) {
    unsigned char * base = (unsigned char *) aligned_alloc(4096, (n + 3*GUARD - 1)/4096*4096);
    memset(base, CANARY, (n + 3*GUARD - 1)/4096*4096);
    auto b = std::make_unique<buffer>();
    b->base = base;
    b->lo = (uintptr_t) base + GUARD;
    b->hi = b->lo + n;
    b->name = name;
    b->temporary = temporary;
    void * res = (void *) b->lo;
    buffers[(uintptr_t) base] = std::move(b);
    return res;
}

void * dev_alloc(size_t n, const std::string & name) { return alloc(n, name, false); }
void * dev_alloc_temporary(size_t n) { return alloc(n, "temporary", true); }

buffer * find_buffer(uintptr_t p, bool with_guard) {
    static buffer * last = nullptr;
    static uint64_t last_launch = 0;
    if (last && last_launch == launch_serial && p >= last->lo && p < last->hi) {
        return last;
    }
    auto it = buffers.upper_bound(p);
    if (it == buffers.begin()) {
        return nullptr;
    }
    buffer * b = (--it)->second.get();
    if (p >= b->lo && p < b->hi) {
        last = current ? b : nullptr; // buffers do not go away while a kernel runs
        last_launch = launch_serial;
        return b;
    }
    return with_guard && p >= b->lo - GUARD && p < b->hi + GUARD ? b : nullptr;
}

static void add(traffic::direction & a, const traffic::direction & b) {
    a.requested += b.requested;
    a.by_block  += b.by_block;
    a.dram      += b.dram;
}

void dev_free(void * p) {
    auto it = buffers.find((uintptr_t) p - GUARD);
    if (it == buffers.end()) {
        return;
    }
    if (it->second->temporary) {
        add(pool_counts.read,  it->second->counts.read);
        add(pool_counts.write, it->second->counts.write);
    }
    free(it->second->base);
    buffers.erase(it);
}

void dev_free_all() {
    while (!buffers.empty()) {
        dev_free((void *) buffers.begin()->second->lo);
    }
}

void host_wrote(const void * p, size_t n) {
    buffer * b = find_buffer((uintptr_t) p, false);
    if (b && b->temporary && instrumentation_linked()) {
        b->shadow.resize(b->hi - b->lo);
        for (size_t i = 0; i < n; ++i) {
            b->shadow[(uintptr_t) p - b->lo + i].written = true;
        }
    }
}

// results

void set_order(order o, unsigned seed) {
    thread_order = o;
    rng.seed(seed);
}

void add_fault(const char * kind, const std::string & text) {
    const std::string full = kernel_name + ": " + text;
    size_t same = 0;
    for (const auto & f : faults) {
        if (f.kind == kind && ++same >= 5) {
            return;
        }
    }
    faults.push_back({ kind, full });
}

std::vector<fault> take_faults() {
    std::vector<fault> res;
    res.swap(faults);
    return res;
}

void print_faults(const std::vector<fault> & f) {
    for (const auto & x : f) {
        printf("  %s: %s\n", x.kind.c_str(), x.text.c_str());
    }
}

std::vector<launch_info> take_launches() {
    std::vector<launch_info> res;
    res.swap(launches);
    return res;
}

bool instrumented() { return instrumentation_linked(); }

void reset_traffic() {
    for (auto & [base, b] : buffers) {
        b->counts = {};
    }
    pool_counts = {};
    l2.reset(device.l2);
}

traffic traffic_of(const void * p) {
    buffer * b = find_buffer((uintptr_t) p, false);
    return b ? b->counts : traffic {};
}

traffic traffic_of_pool() {
    traffic res = pool_counts;
    for (auto & [base, b] : buffers) {
        if (b->temporary) {
            add(res.read,  b->counts.read);
            add(res.write, b->counts.write);
        }
    }
    return res;
}

} // namespace emu
