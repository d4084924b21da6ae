# SPDX-License-Identifier: Apache-2.0
"""One libzmq peer for the Go tests: `zmq_peer.py ROLE ENDPOINT [ARGS]`.

Every message received, and first of all the endpoint in use, is printed as one
JSON line; frames are hex. Lines on standard input make the peer act.
"""

import json
import struct
import sys

import msgpack
import zmq

END = struct.pack(">Q", 2**64 - 1)


def say(value):
    print(json.dumps(value), flush=True)


def batch(seq):
    return msgpack.packb([seq + 0.5, [["AllBlocksCleared"]], 0])


def open_socket(kind, endpoint, bind):
    socket = zmq.Context.instance().socket(kind)
    socket.linger = 2000
    socket.set_hwm(100000)
    if bind:
        socket.bind(endpoint)
        say(socket.getsockopt_string(zmq.LAST_ENDPOINT))
    else:
        socket.connect(endpoint)
        say(endpoint)
    return socket


def pub(endpoint, mode="bind"):
    """Each input line `TOPIC SEQ SIZE` sends one batch padded to SIZE."""
    kind = zmq.XPUB if mode == "xpub" else zmq.PUB
    socket = open_socket(kind, endpoint, bind=mode != "connect")
    if mode == "xpub":
        say([socket.recv().hex()])
    for line in sys.stdin:
        topic, seq, size = line.rstrip("\n").split(" ")
        payload = batch(int(seq)).ljust(int(size), b"\0")
        socket.send_multipart([topic.encode(), struct.pack(">Q", int(seq)), payload])


def router(endpoint, layout, count):
    """Answers replay requests from a ring of COUNT batches."""
    socket = open_socket(zmq.ROUTER, endpoint, bind=True)
    while True:
        frames = socket.recv_multipart()
        say([f.hex() for f in frames[1:]])
        if len(frames) != 3 or frames[1]:
            continue
        peer, _, start = frames
        topic = [b"kv"] if layout == "new" else []
        for seq in range(struct.unpack(">Q", start)[0], int(count)):
            socket.send_multipart([peer, b"", *topic, struct.pack(">Q", seq), batch(seq)])
        socket.send_multipart([peer, b"", *([b""] if topic else []), END, b""])


def sub(endpoint, topic, heartbeat="0"):
    """Prints what it receives; heartbeat is in milliseconds."""
    socket = zmq.Context.instance().socket(zmq.SUB)
    socket.setsockopt(zmq.HEARTBEAT_IVL, int(heartbeat))
    socket.setsockopt_string(zmq.SUBSCRIBE, topic)
    socket.connect(endpoint)
    say(endpoint)
    while True:
        say([f.hex() for f in socket.recv_multipart()])


def dealer(endpoint, start):
    """Asks for a replay and prints the answers up to the end marker."""
    socket = open_socket(zmq.DEALER, endpoint, bind=False)
    socket.send_multipart([b"", struct.pack(">Q", int(start))])
    while True:
        frames = socket.recv_multipart()
        say([f.hex() for f in frames])
        if not frames[-1]:
            return


if __name__ == "__main__":
    {"pub": pub, "router": router, "sub": sub, "dealer": dealer}[sys.argv[1]](*sys.argv[2:])
