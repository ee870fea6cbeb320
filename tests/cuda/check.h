#pragma once

// What the tests share: expectations that are counted, and the count as exit code.

#include "emu.h"

#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <vector>

namespace check {

inline int n = 0, n_failed = 0;

__attribute__((format(printf, 2, 3))) inline bool that(bool ok, const char * format, ...) {
    ++n;
    if (!ok) {
        ++n_failed;
        va_list args;
        va_start(args, format);
        printf("FAIL ");
        vprintf(format, args);
        printf("\n");
        va_end(args);
    }
    return ok;
}

// no fault since the last call
inline bool no_faults(const char * what) {
    const auto f = emu::take_faults();
    if (!that(f.empty(), "%s: %zu faults", what, f.size())) {
        emu::print_faults(f);
    }
    return f.empty();
}

inline int finish(const char * name) {
    printf("%s: %d checks, %d failed%s\n", name, n, n_failed, n == 0 ? ": nothing was checked" : "");
    return n_failed || n == 0 ? 1 : 0;
}

inline double rel_rms(const float * x, const double * y, size_t n) {
    double e = 0.0, s = 0.0;
    for (size_t i = 0; i < n; ++i) {
        if (!std::isfinite(x[i])) {
            return INFINITY;
        }
        e += (x[i] - y[i])*(x[i] - y[i]);
        s += y[i]*y[i];
    }
    return s > 0.0 ? sqrt(e/s) : sqrt(e);
}

} // namespace check
