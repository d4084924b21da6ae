# SPDX-License-Identifier: Apache-2.0
"""Records the KV event frames of a fresh vLLM engine into a JSON file.

The engine serves the tiny offline model (ids are byte values). One request
wakes the subscription up, and the replay socket tells all that was published
until then. Each step sends one request and takes the live frames that follow;
at the end the last batches are asked for again over the replay socket. The
file states the token ids of every prompt as the engine's tokenizer gave them.

Needs pyzmq. Usage: see --help.
"""

import argparse
import json
import urllib.request

import zmq

TEXT = "Ships carry grain along the coast while gulls follow them home. "
QUIET_MILLIS = 3000
REPLAYED_BATCHES = 3


def filler(number):
    """A prompt of 480 bytes that shares no block with another number's."""
    return (f"{number:02d} " * 160)[:480]


STEPS = [
    {"name": "a root run", "body": {"prompt": TEXT + "Evening"}},
    {"name": "a run under a known parent", "body": {"prompt": TEXT + "Evening comes and the lamps are lit on the pier, one by one."}},
    {"name": "a prompt that is held whole", "body": {"prompt": TEXT}},
    {"name": "generated tokens fill a block", "body": {"prompt": "Count the boats:", "max_tokens": 40}},
    {"name": "a salted root run", "body": {"prompt": TEXT, "cache_salt": "blue"}},
    {"name": "a chat", "body": {"messages": [{"role": "user", "content": "How many boats are on the water tonight?"}]}},
    *({"name": f"a prompt of 15 blocks, number {n}", "body": {"prompt": filler(n)}} for n in range(7)),
    {"name": "the first prompt again after a reset", "reset": True, "body": {"prompt": TEXT + "Evening"}},
]


class Engine:
    def __init__(self, url):
        self.url = url

    def post(self, path, body):
        data = json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=120) as response:
            text = response.read()
        return json.loads(text) if text.startswith(b"{") else None

    def get(self, path):
        with urllib.request.urlopen(self.url + path, timeout=30) as response:
            return json.load(response)

    def run(self, body):
        path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
        options = {"model": "tiny", "max_tokens": 1, "ignore_eos": True, "temperature": 0}
        usage = self.post(path, {**options, **body})["usage"]
        return {
            "promptTokens": usage["prompt_tokens"],
            "cachedTokens": (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0,
        }

    def tokens(self, body):
        asked = {"model": "tiny"}
        for key in ("prompt", "messages"):
            if key in body:
                asked[key] = body[key]
        return self.post("/tokenize", asked)["tokens"]


def received(socket):
    """All messages until the socket is quiet, frames in hex."""
    messages = []
    while socket.poll(QUIET_MILLIS):
        messages.append([frame.hex() for frame in socket.recv_multipart()])
    return messages


def replay(context, endpoint, start):
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.LINGER, 0)
    socket.connect(endpoint)
    request = [b"", start.to_bytes(8, "big")]
    socket.send_multipart(request)
    messages = received(socket)
    socket.close()
    return {"request": [frame.hex() for frame in request], "messages": messages}


def record(arguments):
    engine = Engine(arguments.http)
    context = zmq.Context()
    subscriber = context.socket(zmq.SUB)
    subscriber.setsockopt(zmq.LINGER, 0)
    subscriber.connect(arguments.events)
    subscriber.setsockopt(zmq.SUBSCRIBE, b"")
    engine.run({"prompt": "A word to wake the subscription up, long enough."})
    received(subscriber)
    first = replay(context, arguments.replay, 0)
    steps, last = [], None
    for step in STEPS[: arguments.steps]:
        if step.get("reset"):
            engine.post("/reset_prefix_cache", {})
        usage = engine.run(step["body"])
        frames = received(subscriber)
        last = frames or last
        steps.append(
            {
                "name": step["name"],
                "salt": step["body"].get("cache_salt", ""),
                "tokens": " ".join(map(str, engine.tokens(step["body"]))),
                **usage,
                "messages": frames,
            }
        )
    sequence = int(last[-1][-2], 16)
    return {
        "engine": "vllm",
        "version": engine.get("/version")["version"],
        "first": first,
        "steps": steps,
        "last": replay(context, arguments.replay, max(0, sequence - REPLAYED_BATCHES + 1)),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--http", required=True, help="URL of the engine")
    parser.add_argument("--events", required=True, help="endpoint of its PUB socket")
    parser.add_argument("--replay", required=True, help="endpoint of its ROUTER socket")
    parser.add_argument("--steps", type=int, default=len(STEPS), help="how many steps to record")
    parser.add_argument("--out", required=True, help="file to write")
    arguments = parser.parse_args()
    recording = record(arguments)
    with open(arguments.out, "w", encoding="utf-8") as file:
        json.dump(recording, file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main()
