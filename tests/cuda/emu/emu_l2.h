#pragma once

// A model of the L2 cache, to tell the bytes that leave DRAM from those that a multiprocessor asks for: lines of 128 bytes in 4 sectors, which are
// fetched one by one and written back when their line goes (CUDA C++ Best Practices Guide, "Coalesced access to global memory"). Fully
// associative, the line used least recently goes first. A store fetches nothing: the cache masks bytes.

#include <cstddef>
#include <cstdint>
#include <list>
#include <unordered_map>

namespace emu {

class l2_cache {
public:
    static constexpr uintptr_t LINE = 128, SECTOR = 32;

    // Forgets everything, and writes nothing back. bytes: how much it holds.
    void reset(size_t bytes) {
        lines.clear();
        index.clear();
        capacity = bytes/LINE;
    }

    // The sector of address p: true when it has to come from DRAM.
    bool load(uintptr_t p) {
        line & x = find(p);
        const bool miss = !(x.present & bit(p));
        x.present |= bit(p);
        return miss;
    }

    // True when this is the first store into the sector since it came, so that it will be written back once.
    bool store(uintptr_t p) {
        line & x = find(p);
        const bool first = !(x.dirty & bit(p));
        x.present |= bit(p);
        x.dirty   |= bit(p);
        return first;
    }

private:
    struct line { uintptr_t tag; unsigned present, dirty; };

    static unsigned bit(uintptr_t p) { return 1u << p%LINE/SECTOR; }

    line & find(uintptr_t p) {
        const uintptr_t tag = p/LINE;
        const auto it = index.find(tag);
        if (it != index.end()) {
            lines.splice(lines.begin(), lines, it->second);
            return lines.front();
        }
        if (lines.size() >= capacity && !lines.empty()) {
            index.erase(lines.back().tag);
            lines.pop_back();
        }
        lines.push_front({ tag, 0, 0 });
        index[tag] = lines.begin();
        return lines.front();
    }

    size_t capacity = 0;
    std::list<line> lines; // the one used last comes first
    std::unordered_map<uintptr_t, std::list<line>::iterator> index;
};

} // namespace emu
