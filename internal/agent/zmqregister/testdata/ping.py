"""An engine's heartbeat by libzmq: ping.py ENDPOINT HEX sends the bytes every 50 ms.

It ends when its standard input does.
"""

import select
import sys

import zmq

endpoint, payload = sys.argv[1], bytes.fromhex(sys.argv[2])
with zmq.Context() as context, context.socket(zmq.DEALER) as sock:
    sock.setsockopt(zmq.LINGER, 0)
    sock.setsockopt(zmq.SNDTIMEO, 1000)
    sock.connect(endpoint)
    while not select.select([sys.stdin], [], [], 0.05)[0]:
        try:
            sock.send(payload)
        except zmq.Again:
            pass
