"""A peer that is libzmq, for events: events.py KIND ENDPOINT COUNT.

PUB and PUBTO (which connects) publish COUNT messages once somebody has subscribed.
SUB and REPLAY, which is a DEALER, print what they get: COUNT messages, and all until
an empty last frame. ROUTER answers each request with COUNT messages and such an end.
A bound socket prints its endpoint first. The script goes when its standard input ends.
"""

import os
import struct
import sys
import threading

import zmq

kind, endpoint, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
kinds = {"PUB": zmq.XPUB, "PUBTO": zmq.XPUB, "SUB": zmq.SUB, "ROUTER": zmq.ROUTER, "REPLAY": zmq.DEALER}


def number(i):
    return struct.pack(">Q", i)


def work(sock):
    if kind in ("PUB", "PUBTO"):
        assert sock.recv() == b"\x01kv", "a subscription to kv"
        for i in range(count):
            sock.send_multipart([b"other", number(i), b"not wanted"])
            sock.send_multipart([b"kv@1", number(i), b"x" * (i * 1000 + 1)])
    elif kind == "ROUTER":
        while True:
            identity, empty, start = sock.recv_multipart()
            assert empty == b""
            for i in range(struct.unpack(">Q", start)[0], count):
                sock.send_multipart([identity, b"", b"kv@1", number(i), b"x" * (i * 1000 + 1)])
            sock.send_multipart([identity, b"", b"", b"\xff" * 8, b""])
    elif kind == "SUB":
        for _ in range(count):
            print(*[len(f) for f in sock.recv_multipart()], flush=True)
    elif kind == "REPLAY":
        sock.send_multipart([b"", number(0)])
        while True:
            frames = sock.recv_multipart()
            print(*[len(f) for f in frames], flush=True)
            if frames[-1] == b"":
                return


context = zmq.Context()
sock = context.socket(kinds[kind])
sock.setsockopt(zmq.LINGER, 10000)
sock.setsockopt(zmq.HEARTBEAT_IVL, 20)
sock.setsockopt(zmq.HEARTBEAT_TIMEOUT, 5000)
if kind == "SUB":
    sock.setsockopt(zmq.SUBSCRIBE, b"kv")
if kind in ("PUB", "ROUTER"):
    sock.bind(endpoint)
    print(sock.getsockopt_string(zmq.LAST_ENDPOINT), flush=True)
else:
    sock.connect(endpoint)
threading.Thread(target=work, args=(sock,), daemon=True).start()
sys.stdin.read()
os._exit(0)
