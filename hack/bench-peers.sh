#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Installs the routers that bench gateway --peers compares with, each in an
# environment of its own, and prints the folder that holds them.
set -euo pipefail

cache="${CACHE:-$HOME/.cache/inference-cache}/bench-peers"
command -v python3 >/dev/null || { echo "bench-peers: python3 is missing: install Python 3.10 or newer, with venv" >&2; exit 1; }

# install NAME VERSION PACKAGE...
install() {
	local name="$1" version="$2" place="$cache/$1"
	shift 2
	[ "$(cat "$place/installed" 2>/dev/null)" = "$version $*" ] && return
	echo "bench-peers: installing $name $version" >&2
	rm -rf "$place"
	python3 -m venv "$place"
	"$place/bin/pip" install --quiet --disable-pip-version-check "$@" >&2
	echo "$version $*" >"$place/installed"
}

mkdir -p "$cache"
failed=0
install smg 1.13.0 smg==1.13.0 || failed=1
install vllm-router 0.1.17 vllm-router==0.1.17 || failed=1
echo "$cache"
exit $failed
