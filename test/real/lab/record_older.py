"""Records events of a newer vLLM in the format of an older vLLM's publisher: vLLM up to 0.23 sends arrays.

usage: python record_older.py KV_EVENTS.PY NEWER.frames OLDER    writes OLDER.frames and OLDER-replay.frames

KV_EVENTS.PY is vllm/distributed/kv_events.py of the older version's wheel; what it imports is the installed vLLM's.
"""
import importlib.util
import struct
import sys

import msgspec
import zmq
from vllm.distributed import kv_events as newer

spec = importlib.util.spec_from_file_location("older_kv_events", sys.argv[1])
older = importlib.util.module_from_spec(spec)
spec.loader.exec_module(older)


def read(path):
    """The batches of a recording."""
    data, at = open(path, "rb").read(), 0

    def number():
        nonlocal at
        at += 4
        return struct.unpack_from(">I", data, at - 4)[0]

    decoder = msgspec.msgpack.Decoder(type=newer.KVEventBatch)
    while at < len(data):
        frames = []
        for _ in range(number()):
            size = number()
            frames.append(data[at:at + size])
            at += size
        yield decoder.decode(frames[-1])


def write(path, messages):
    with open(path, "wb") as f:
        for frames in messages:
            f.write(struct.pack(">I", len(frames)))
            for part in frames:
                f.write(struct.pack(">I", len(part)) + part)


def convert(event):
    kind = getattr(older, type(event).__name__)
    return kind(**{name: getattr(event, name) for name in kind.__struct_fields__})


batches = list(read(sys.argv[2]))
publisher = older.ZmqEventPublisher(0, endpoint="inproc://events*", replay_endpoint="inproc://replay", topic="kv-events")
subscriber = zmq.Context.instance().socket(zmq.SUB)
subscriber.connect("inproc://events*")
subscriber.subscribe("kv-events")
subscriber.poll(500)  # until the publisher has taken the subscription in
for batch in batches:
    publisher.publish(older.KVEventBatch(ts=batch.ts, events=[convert(e) for e in batch.events]))
write(sys.argv[3] + ".frames", [subscriber.recv_multipart() for _ in batches])
asker = zmq.Context.instance().socket(zmq.DEALER)
asker.connect("inproc://replay")
asker.send_multipart((b"", bytes(8)))
answers = []
while not answers or answers[-1][-1]:
    answers.append(asker.recv_multipart())
write(sys.argv[3] + "-replay.frames", answers)
publisher.shutdown()
