"""A peer that is libzmq: peer.py KIND ENDPOINT COUNT sends COUNT messages.

It prints "sent" after them and goes when its standard input ends. With KIND DEALER
the first message has two frames.
"""

import sys

import zmq

kind, endpoint, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
with zmq.Context() as context, context.socket(getattr(zmq, kind)) as sock:
    sock.setsockopt(zmq.IPV6, 1)
    sock.setsockopt(zmq.LINGER, 10000)
    sock.setsockopt(zmq.HEARTBEAT_IVL, 50)
    sock.setsockopt(zmq.HEARTBEAT_TIMEOUT, 1000)
    if kind == "DEALER":
        sock.setsockopt(zmq.IDENTITY, b"p-1")
    sock.connect(endpoint)
    for i in range(count):
        frames = [b"%d" % i]
        if i == 0 and kind == "DEALER":
            frames.append(b"x" * 300)
        sock.send_multipart(frames)
    print("sent", flush=True)
    sys.stdin.read()
