#!/bin/sh
# A report in headless Chromium, phone and desktop, light and dark: no accessibility violation (axe-core), nothing wider
# than the page, nothing loaded, no script. Needs node, npm and chromium (CHROMIUM names another).
#
#   ci/report-check.sh [REPORT.html [SCREENSHOTS]]      without REPORT: one made from the example of the tests
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
browser=${CHROMIUM:-$(command -v chromium || command -v chromium-browser || command -v google-chrome || true)}
if [ -z "$browser" ] || ! command -v node >/dev/null || ! command -v npm >/dev/null; then
    echo "report-check: needs chromium, node and npm (Debian: apt install chromium nodejs npm)" >&2
    exit 3
fi
work=$root/build/report-check
mkdir -p "$work"
cp "$root/ci/report-check.mjs" "$work/check.mjs"
[ -d "$work/node_modules/axe-core" ] ||
    npm install --prefix "$work" --no-save --no-audit --no-fund --silent axe-core@4.10.3 playwright-core@1.50.1
report=${1:-$work/report.html}
if [ $# -eq 0 ]; then
    "$root/.venv/bin/turbokv-eval" report "$root/tests/data/compare-1.json" -o "$report" >&2
fi
shots=${2:-$work}
mkdir -p "$shots"
# Five minutes are ten times what it takes.
exec timeout 300 node "$work/check.mjs" "$browser" "$(realpath "$report")" "$(realpath "$shots")"
