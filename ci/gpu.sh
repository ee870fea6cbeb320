#!/bin/sh
# The turbo types on an NVIDIA GPU, in under 8 minutes: operations against the CPU backend, CPU/GPU parity of a tiny model,
# compute-sanitizer where it is installed, then speed and peak memory at depth on a Llama-3-8B-shaped model.
#
#   gpu.sh [--dry-run] BIN_DIR          run; --dry-run: on a CPU build, tiny sizes, proves this script
#   gpu.sh --pack BIN_DIR OUT.tar.gz    programs, libraries, this script and the model writer for a machine without the sources
#
# The machine needs the driver and python3, no packages and no toolkit. Results: gpu-results/ in the current folder.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
die() { echo "error: $2" >&2; exit "$1"; }
usage() { die 2 "usage: gpu.sh [--dry-run] BIN_DIR | gpu.sh --pack BIN_DIR OUT.tar.gz"; }
PROGRAMS="llama-bench llama-perplexity test-backend-ops"

mode=run
case ${1:-} in
    --pack) mode=pack; shift ;;
    --dry-run) mode=dry; shift ;;
    -*) usage ;;
esac
[ $# -ge 1 ] || usage
[ -d "$1" ] || die 2 "no folder $1"
command -v python3 >/dev/null || die 3 "no python3: install it"
if [ $mode = pack ]; then
    [ $# -eq 2 ] || usage
    [ -f "$here/gpu_pack.py" ] || die 2 "a package cannot be packed again: use the sources"
    exec python3 "$here/gpu_pack.py" "$1" "$2" $PROGRAMS
fi
bin=$(cd "$1" && pwd)
for p in $PROGRAMS; do [ -x "$bin/$p" ] || die 2 "$bin has no $p: build it ($PROGRAMS)"; done

out=$(pwd)/gpu-results
rm -rf "$out"; mkdir -p "$out"
libraries=$bin
# A package has no cuBLAS: the machine's, as PyTorch brings it, else one that says so. Nothing below calls it.
for stub in "$bin"/no-cublas/libcublas.so.*; do
    [ -f "$stub" ] || continue
    found=$(python3 - "$(basename "$stub")" <<'P'
import glob, os, site, sys
folders = [p for root in {*sys.path, site.getusersitepackages()} for p in glob.glob(os.path.join(root, "nvidia", "*", "lib"))]
folders += glob.glob("/usr/local/cuda*/lib64")
print(next((p for p in folders if os.path.exists(os.path.join(p, sys.argv[1]))), ""))
P
    )
    libraries=$libraries:${found:-$bin/no-cublas}
    echo "cuBLAS: ${found:-not on this machine, and not needed}"
done
export LD_LIBRARY_PATH="$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
began=$(date +%s)
limit=460
left() { echo $((limit - $(date +%s) + began)); }
failed=0
step() { # name, command...
    name=$1; shift
    t=$(date +%s)
    if timeout "$(left)" "$@" >"$out/$name.log" 2>&1; then result=ok; else result="FAILED (exit $?)"; failed=1; fi
    echo "$name: $result, $(($(date +%s) - t)) s"
}

if [ $mode = dry ]; then
    ngl=0 device= depths=0,64 layers=1 shape=tiny backend=CPU prompt=16 generate=4 repeat=500 # long enough for a sample of its memory
    sampler() { while sleep 0.02; do for p in $(pgrep -x llama-bench); do awk '/VmHWM/ {print int($2/1024)}' "/proc/$p/status"; done; done; }
else
    command -v nvidia-smi >/dev/null || die 3 "no nvidia-smi: this machine has no NVIDIA driver (--dry-run needs none)"
    nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader >"$out/gpu.txt" || die 3 "nvidia-smi finds no GPU"
    ngl=99 device="-dev CUDA0" depths=0,8192,32768,131072 layers=2 shape=8b backend=CUDA0 prompt=512 generate=32 repeat=2
    sampler() { while sleep 0.2; do nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits -i 0; done; }
fi

# 1. operations
ops='type.*=turbo|TURBO_ROTATE'
step ops "$bin/test-backend-ops" test -b $backend -o 'TURBO_ROTATE,SET_ROWS,GET_ROWS,CPY,FLASH_ATTN_EXT' -p "$ops"
if ! grep -Eq '[1-9][0-9]*/[0-9]+ tests passed' "$out/ops.log"; then echo "ops: FAILED, nothing ran"; failed=1; fi
if command -v compute-sanitizer >/dev/null && [ $mode = run ]; then
    step sanitizer compute-sanitizer --error-exitcode 1 "$bin/test-backend-ops" test -b $backend -o SET_ROWS -p 'type=turbo3'
else
    echo "sanitizer: not run (no compute-sanitizer, or a dry run)"
fi

# 2. parity: the GPU's logits against the CPU's, with the same cache type
python3 "$here/gpu_model.py" tiny "$out/tiny.gguf"
python3 -c 'import random; random.seed(1); print("".join(chr(random.randint(97, 122)) for _ in range(2600)))' >"$out/text.txt"
for type in turbo4 turbo3 turbo2; do
    common="-m $out/tiny.gguf -f $out/text.txt -c 512 --chunks 2 -fa on -ctk $type -ctv $type --kv-condition off"
    # shellcheck disable=SC2086
    step "parity-$type-cpu" env CUDA_VISIBLE_DEVICES= "$bin/llama-perplexity" $common -ngl 0 --save-all-logits "$out/$type.logits"
    # shellcheck disable=SC2086
    step "parity-$type" "$bin/llama-perplexity" $common $device -ngl $ngl --kl-divergence --kl-divergence-base "$out/$type.logits"
    kld=$(awk '/^Mean +KLD:/ {print $3}' "$out/parity-$type.log")
    if [ -n "$kld" ] && awk -v k="$kld" 'BEGIN { exit !(k < 0.01) }'; then echo "parity-$type: KLD $kld"; else echo "parity-$type: FAILED, KLD ${kld:-missing}"; failed=1; fi
    rm -f "$out/$type.logits"
done

# 3. speed and peak memory
python3 "$here/gpu_model.py" $shape "$out/bench.gguf" $layers
for type in f16 q8_0 q4_0 turbo4 turbo3 turbo2; do
    sampler >"$out/memory-$type.txt" 2>/dev/null & pid=$!
    # shellcheck disable=SC2086
    step "bench-$type" "$bin/llama-bench" -m "$out/bench.gguf" $device -ngl $ngl -fa 1 -ctk $type -ctv $type --kv-condition off -p $prompt -n $generate -d $depths -r $repeat -o jsonl
    kill $pid 2>/dev/null || true
    wait $pid 2>/dev/null || true
    python3 - "$out/bench-$type.log" "$type" "$out/memory-$type.txt" $depths <<'P' || failed=1
import json, sys
log, kind, memory, depths = sys.argv[1:]
peak = max((int(x) for x in open(memory).read().split()), default=0)
rows = [json.loads(line) for line in open(log) if line.startswith("{")]
for r in rows:
    what = f"pp{r['n_prompt']}" if r["n_prompt"] else f"tg{r['n_gen']}"
    print(f"  {kind:7} {what:6} depth {r['n_depth']:6}: {r['avg_ts']:10.1f} t/s  +- {r['stddev_ts']:.1f}")
print(f"  {kind:7} peak memory {peak} MiB")
want = {(int(d), part) for d in depths.split(",") for part in ("prompt", "generation")}
missing = want - {(r["n_depth"], "prompt" if r["n_prompt"] else "generation") for r in rows if r["avg_ts"] > 0}
wrong = {r["type_k"] for r in rows} | {r["type_v"] for r in rows}
faults = [f"no {part} at depth {d}" for d, part in sorted(missing)]
faults += [f"ran with {other}" for other in sorted(wrong - {kind})] + ["no memory was seen"] * (peak == 0)
if faults:
    sys.exit(f"bench-{kind}: FAILED, " + ", ".join(faults))
P
done
rm -f "$out"/*.gguf
echo "gpu.sh: $([ $failed = 0 ] && echo ok || echo FAILED), $(($(date +%s) - began)) s$([ $mode = dry ] && echo ', dry run on the CPU: no figure here says anything about a GPU')"
exit $failed
