# SPDX-License-Identifier: Apache-2.0
import json
import os
import signal
import sys
import time
import urllib.request

want = json.loads(os.environ["INFERENCECACHE_GATE"])
address = os.environ["INFERENCECACHE_NODE_IP"]
host = "[" + address + "]" if ":" in address else address
base = "http://%s:%d" % (host, want["http"]["http_port"])
direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def get(path):
    with direct.open(base + path, timeout=2) as answer:
        return json.loads(answer.read(1 << 20))


def obstacle():
    config = get("/config")
    for section in ("mp", "http"):
        shown = config.get(section)
        if not isinstance(shown, dict):
            return "/config has no section %s" % section
        for name, value in want[section].items():
            if shown.get(name) != value:
                return "%s is %r, expected %r" % (name, shown.get(name), value)
    status = get("/healthcheck").get("status")
    if status != "healthy":
        return "its status is %r, expected 'healthy'" % status
    return ""


def write_client(path):
    text = "chunk_size: %d\nmp_host: %s\nmp_port: %d\n" % (
        want["mp"]["chunk_size"], json.dumps(address), want["mp"]["port"])
    with open(path + ".new", "w") as file:
        file.write(text)
    os.replace(path + ".new", path)


def give_up(reason):
    text = "no usable LMCache server at %s within %d s: %s" % (base, want["seconds"], reason)
    text = text[:1000]
    print(text, flush=True)
    with open(os.environ.get("INFERENCECACHE_GATE_LOG", "/dev/termination-log"), "w") as file:
        file.write(text)
    sys.exit(1)


signal.signal(signal.SIGTERM, lambda *_: os._exit(143))
begin = time.monotonic()
said = ""
while True:
    try:
        reason = obstacle()
    except Exception as error:
        reason = "%s: %s" % (type(error).__name__, error)
    if not reason:
        break
    if reason != said:
        print("waiting for the LMCache server at %s: %s" % (base, reason), flush=True)
        said = reason
    left = begin + want["seconds"] - time.monotonic()
    if want["seconds"] > 0 and left <= 0:
        give_up(reason)
    time.sleep(min(2, left) if want["seconds"] > 0 else 2)
if want["client"]:
    write_client(want["client"])
print("the LMCache server at %s is ready" % base, flush=True)
