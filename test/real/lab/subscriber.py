"""Prints the KV-cache events of engines, decoded with vLLM's types as in the subscriber of vLLM's example.

usage: python subscriber.py REPLAY_ENDPOINT...    one line "--- REPLAY_ENDPOINT" before each engine's
"""
import sys

import msgspec
import zmq
from vllm.distributed.kv_events import KVEventBatch

decoder = msgspec.msgpack.Decoder(type=KVEventBatch)
for endpoint in sys.argv[1:]:
    print("---", endpoint)
    asker = zmq.Context.instance().socket(zmq.DEALER)
    asker.setsockopt(zmq.LINGER, 0)
    asker.connect(endpoint)
    asker.send_multipart((b"", (0).to_bytes(8, "big")))
    while True:
        if not asker.poll(30_000):
            sys.exit(f"{endpoint} does not answer")
        payload = asker.recv_multipart()[-1]
        if not payload:
            break
        batch = decoder.decode(payload)
        print(f"Received event batch at {batch.ts}:")
        for event in batch.events:
            print(f"  - {event}")
    asker.close()
