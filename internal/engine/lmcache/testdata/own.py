"""LMCache's own code over what we say: own.py WHEEL_DIR PREFILL_LEG DECODE_LEG.

WHEEL_DIR is the unpacked package. Only the definitions that are needed are taken out of
it: the rest wants a GPU's libraries. Prints ProxyNotif(req_id="7") as hex.
"""

import ast
import json
import pathlib
import sys
from collections.abc import Mapping
from typing import Any

import msgspec

wheel = pathlib.Path(sys.argv[1]) / "lmcache"


def definitions(path, names, scope):
    nodes = [n for n in ast.parse((wheel / path).read_text()).body if getattr(n, "name", None) in names]
    assert len(nodes) == len(names), f"{path} has not all of {names}"
    exec(compile(ast.Module(nodes, []), path, "exec"), scope)
    return scope


messages = definitions("v1/storage_backend/pd_backend.py", ["PDMsgBase", "ProxyNotif"], {"msgspec": msgspec})
name = "extract_request_configs_from_sampling_params"
extract = definitions("integration/vllm/utils.py", [name], {"Mapping": Mapping, "Any": Any})[name]


class Params:
    def __init__(self, leg):
        self.extra_args = {"kv_transfer_params": json.load(open(leg))["kv_transfer_params"]}


prefill, decode = Params(sys.argv[2]), Params(sys.argv[3])
assert extract(prefill) == extract(decode) and len(extract(prefill)) == 1, "the legs have not the same tag"
spec = prefill.extra_args["kv_transfer_params"]["disagg_spec"]
assert isinstance(spec["req_id"], str) and isinstance(spec["receiver_host"], str)
assert len(spec["receiver_init_port"]) == len(spec["receiver_alloc_port"]) == 2
print(msgspec.msgpack.encode(messages["ProxyNotif"](req_id="7")).hex())
