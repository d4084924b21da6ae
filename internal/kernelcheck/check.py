# SPDX-License-Identifier: Apache-2.0
import ctypes
import glob
import importlib
import importlib.util
import os
import select
import signal
import sys

SECONDS = 600
log = os.environ.get("KERNEL_CHECK_LOG", "/dev/termination-log")
strict = os.environ.get("KERNEL_CHECK_STRICT") == "1"


def fault():
    spec = importlib.util.find_spec("lmcache")
    if spec is None or not spec.submodule_search_locations:
        return "lmcache is not installed"
    import torch  # noqa: F401, the libraries below need what it loads

    libraries = []
    for folder in spec.submodule_search_locations:
        libraries += sorted(glob.glob(os.path.join(glob.escape(folder), "c_ops*.so")))
    if not libraries:
        return "lmcache has no c_ops library"
    for library in libraries:
        ctypes.CDLL(library, mode=os.RTLD_NOW)
    stable = "vllm._C_stable_libtorch"
    try:
        importlib.import_module(stable)
    except ModuleNotFoundError as error:
        if error.name != stable:
            raise
        importlib.import_module("vllm._C")
    return ""


def child(pipe):
    try:
        text = fault()
    except BaseException as error:
        text = "%s: %s" % (type(error).__name__, error)
    os.write(pipe, (("FAIL: " + text) if text else "OK").encode("utf-8", "replace")[:4000])
    os._exit(0)


def verdict():
    reader, writer = os.pipe()
    process = os.fork()
    if process == 0:
        os.close(reader)
        child(writer)
    os.close(writer)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(143))
    if not select.select([reader], [], [], SECONDS)[0]:
        os.kill(process, signal.SIGKILL)
        return "ERROR: the check did not end within %d s" % SECONDS
    text = os.read(reader, 4096).decode("utf-8", "replace")
    status = os.waitpid(process, 0)[1]
    if text:
        return text
    if os.WIFSIGNALED(status):
        if os.WTERMSIG(status) == signal.SIGKILL:
            return "ERROR: the check was killed, out of memory perhaps"
        return "FAIL: loading the kernels ended with signal %d" % os.WTERMSIG(status)
    return "FAIL: loading the kernels ended the process"


try:
    result = verdict()
except Exception as error:
    result = "ERROR: %s: %s" % (type(error).__name__, error)
result = " ".join(result.split())[:1000]
print(result, flush=True)
try:
    with open(log, "w") as file:
        file.write(result)
except OSError as error:
    print("cannot write %s: %s" % (log, error), flush=True)
sys.exit(1 if strict and result != "OK" else 0)
