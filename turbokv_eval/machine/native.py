"""What `-march=native` must leave out because it would crash: AMX, where the compiler or the machine gets it wrong.

GCC before 12.4 and 13.3 drops the stores to what `_tile_loadconfig` reads (GCC bug 114098), so that optimised code dies
with an illegal instruction, ggml's matrix products among it. A virtual machine may also name AMX and refuse it.
"""

import os
import shlex
import subprocess
import tempfile
from pathlib import Path

# Asks the kernel for the tile registers (arch_prctl ARCH_REQ_XCOMP_PERM, component 18), as ggml does, then uses one.
_AMX_PROBE = r"""
#ifdef __AMX_TILE__
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
int main(void) {
    struct { unsigned char palette, start, reserved[14]; unsigned short colsb[16]; unsigned char rows[16]; } c = {1};
    if (syscall(SYS_arch_prctl, 0x1023, 18) != 0) return 1;
    c.colsb[0] = 64;
    c.rows[0] = 16;
    _tile_loadconfig(&c);
    _tile_zero(0);
    _tile_release();
    return 0;
}
#else
int main(void) { return 0; }
#endif
"""
_NO_AMX = ("-mno-amx-tile", "-mno-amx-int8", "-mno-amx-bf16")


def unusable_isa_flags() -> list[str]:
    """Compiler flags that switch off what `-march=native` would use and this compiler or machine gets wrong.

    Where the compiler cannot say (no `-march=native`, no such header) there is nothing to switch off.
    """
    compiler = shlex.split(os.environ.get("CC", "")) or ["cc"]
    with tempfile.TemporaryDirectory() as folder:
        source, program = Path(folder) / "amx.c", Path(folder) / "amx"
        source.write_text(_AMX_PROBE, encoding="utf-8")
        try:
            argv = [*compiler, "-O2", "-march=native", str(source), "-o", str(program)]
            if subprocess.run(argv, capture_output=True, timeout=60).returncode != 0:
                return []
            return [] if subprocess.run([program], capture_output=True, timeout=60).returncode == 0 else [*_NO_AMX]
        except (OSError, subprocess.TimeoutExpired):
            return []
