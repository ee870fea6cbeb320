// What llama-kv-capture and llama-kv-condition share: their arguments, a quiet log, errors that are one line.

#pragma once

#include "llama.h"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>

// throws what the user is told before the program ends with 1
#ifdef __GNUC__
__attribute__((format(printf, 1, 2)))
#endif
[[noreturn]] inline void kv_fail(const char * fmt, ...) {
    char buf[1024];
    va_list args;
    va_start(args, fmt);
    vsnprintf(buf, sizeof(buf), fmt, args);
    va_end(args);
    throw std::runtime_error(buf);
}

inline std::string kv_read_text(const std::string & path) {
    std::ifstream f(path, std::ios::binary);
    std::stringstream text;
    if (!f || !(text << f.rdbuf())) {
        kv_fail("the text %s cannot be read, or is empty", path.c_str());
    }
    return text.str();
}

// warnings and errors only
inline void kv_quiet_log() {
    llama_log_set([](ggml_log_level level, const char * text, void *) {
        if (level >= GGML_LOG_LEVEL_WARN && level != GGML_LOG_LEVEL_CONT) {
            fputs(text, stderr);
        }
    }, nullptr);
}

// The arguments one after the other. What cannot be used ends the program with 2.
class kv_arguments {
public:
    kv_arguments(int argc, char ** argv, const char * usage) : argc(argc), argv(argv), usage(usage) {}

    bool next() {
        if (++i >= argc) {
            return false;
        }
        arg = argv[i];
        if (is("-h", "--help")) {
            printf("%s", usage);
            exit(0);
        }
        return true;
    }

    bool is(const char * name)                        const { return arg == name; }
    bool is(const char * name, const char * long_name) const { return arg == name || arg == long_name; }

    std::string value() {
        if (i + 1 >= argc) {
            error(arg + " needs a value");
        }
        return argv[++i];
    }

    int number(int min) {
        const std::string s = value();
        char * end = nullptr;
        const long v = strtol(s.c_str(), &end, 10);
        if (s.empty() || *end != '\0' || v < min || v > 1 << 24) {
            error(arg + ": '" + s + "' is no number it can use");
        }
        return (int) v;
    }

    // whether the value is a; else it must be b
    bool choice(const char * a, const char * b) {
        const std::string s = value();
        if (s != a && s != b) {
            error(arg + ": '" + s + "' is neither " + a + " nor " + b);
        }
        return s == a;
    }

    [[noreturn]] void unknown() const { error("unknown argument " + arg); }

    [[noreturn]] void error(const std::string & what) const {
        fprintf(stderr, "error: %s\n\n%s", what.c_str(), usage);
        exit(2);
    }

private:
    const int    argc;
    char ** const argv;
    const char * const usage;

    int i = 0;
    std::string arg;
};
