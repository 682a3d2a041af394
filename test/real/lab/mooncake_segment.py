"""A segment of Mooncake's transfer engine whose metadata is in an etcd.

usage: python mooncake_segment.py etcd://HOST:PORT serve NAME          prints the buffer's address, waits for its input to end
       python mooncake_segment.py etcd://HOST:PORT write NAME PEER ADDRESS TEXT   writes TEXT into the peer's buffer, reads it back
"""
import sys

from mooncake.engine import TransferEngine

SIZE = 1 << 16


def engine(metadata, name):
    e = TransferEngine()
    if (code := e.initialize(name, metadata, "tcp", "")) != 0:
        sys.exit(f"initialize: {code}")
    return e


def main():
    metadata, what, name, *rest = sys.argv[1:]
    e = engine(metadata, name)
    buffer = e.allocate_managed_buffer(SIZE)
    if buffer == 0:
        sys.exit("no buffer")
    if what == "serve":
        print("buffer", buffer, flush=True)
        sys.stdin.read()
        print("holds", e.read_bytes_from_buffer(buffer, 64).split(b"\0")[0].decode(), flush=True)
        return
    peer, address, text = rest
    raw = text.encode() + b"\0"
    if (code := e.write_bytes_to_buffer(buffer, raw, len(raw))) != 0:
        sys.exit(f"write into the own buffer: {code}")
    if (code := e.transfer_sync_write(peer, buffer, int(address), len(raw))) != 0:
        sys.exit(f"write to the peer: {code}")
    e.write_bytes_to_buffer(buffer, b"\0" * len(raw), len(raw))
    if (code := e.transfer_sync_read(peer, buffer, int(address), len(raw))) != 0:
        sys.exit(f"read from the peer: {code}")
    print("read", e.read_bytes_from_buffer(buffer, len(raw)).split(b"\0")[0].decode(), flush=True)


main()
