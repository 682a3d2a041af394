"""Two tensor-parallel ranks of an LMCache prefill: rank.py ENDPOINT REQ_ID.

With lmcache or msgspec installed the message is made by the very type of LMCache's PD
backend, or by one declared like it; else by hand, byte for byte the same.
"""

import sys

import zmq


def notification(req_id):
    try:
        from lmcache.v1.storage_backend.pd_backend import ProxyNotif
    except ImportError:
        try:
            import msgspec
        except ImportError:
            name = req_id.encode()
            return b"\x82\xa4type\xaaProxyNotif\xa6req_id" + bytes([0xA0 + len(name)]) + name

        class Base(msgspec.Struct, tag=True):
            pass

        class ProxyNotif(Base):
            req_id: str

    import msgspec

    return msgspec.msgpack.encode(ProxyNotif(req_id=req_id))


endpoint, req_id = sys.argv[1:]
context = zmq.Context()
ranks = []
for _ in range(2):
    rank = context.socket(zmq.PUSH)
    rank.connect(endpoint)
    ranks.append(rank)
ranks[0].send(notification(req_id))
ranks[0].send(notification(req_id))
ranks[1].send(notification(req_id))
sys.stdin.read()  # until the test ends
context.destroy(linger=0)
