"""Passes the legs of our golden data to the code of the installed vLLM that reads them.

usage: python contract.py <internal/connector/testdata>

Prints one JSON object: the connectors that vLLM registers, and for each dialect and case what vLLM
parsed. It needs no GPU, since the methods run on substitutes of their schedulers.
"""
import collections
import json
import pathlib
import sys
import types

from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.pull_scheduler import NixlPullConnectorScheduler
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.push_scheduler import NixlPushConnectorScheduler
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.v1.kv_offload.tiering.p2p import manager as p2p

KINDS = {"chat": ChatCompletionRequest, "completion": CompletionRequest}


def params(case, leg):
    """kv_transfer_params of a leg, as parsed by vLLM's request model."""
    body = json.loads((case / (leg + ".json")).read_bytes())
    request = KINDS[case.name.split("-")[0]].model_validate(body)
    return request.kv_transfer_params, request


def scheduler():
    """Substitute of a NIXL scheduler, of a decode instance with an empty cache."""
    config = types.SimpleNamespace(parallel_config=types.SimpleNamespace(tensor_parallel_size=1))
    return types.SimpleNamespace(
        use_host_buffer=False, is_bidirectional_kv_xfer_enabled=False, vllm_config=config, engine_id="d",
        side_channel_host="127.0.0.1", side_channel_port=5601, _push_registration_timeout=480,
        _reqs_in_batch=set(), _reqs_need_save={}, _reqs_need_recv={}, _push_pending_registrations={},
        _push_registration_deadlines=collections.defaultdict(float), get_exchange_clipped_blocks=lambda b: b)


def scheduled(cls, kv):
    """What the scheduler of a NIXL connector does with a request."""
    s = scheduler()
    request = types.SimpleNamespace(kv_transfer_params=kv, request_id="r", prompt_token_ids=[1] * 9)
    blocks = types.SimpleNamespace(blocks=((),), get_unhashed_block_ids_all_groups=lambda: ((7,),))
    cls.update_state_after_alloc(s, request, blocks, 9)
    return {"produces": "r" in s._reqs_in_batch, "receives": "r" in s._reqs_need_recv,
            "registers": s._push_pending_registrations.get("r")}


def nixl(cls):
    def read(case):
        prefill, request = params(case, "prefill")
        decode, _ = params(case, "decode")
        out = {"tokens": request.max_tokens, "streams": bool(request.stream), "prefill": scheduled(cls, prefill)}
        if decode is not None:
            out["same"] = decode == json.loads((case / "prefill_reply.json").read_bytes())["kv_transfer_params"]
            out["decode"] = scheduled(cls, dict(decode))
        return out
    return read


def tier(case):
    prefill, request = params(case, "prefill")
    decode, _ = params(case, "decode")
    source, dest = p2p._parse_source(decode), p2p._parse_dest(prefill)
    return {"tokens": request.max_tokens, "streams": bool(request.stream), "keeps": dest.kv_request_id,
            "fetches": source.kv_request_id, "from": source.peer_id, "probes": source.do_probe}


READERS = {"nixl": nixl(NixlPullConnectorScheduler), "nixl_push": nixl(NixlPushConnectorScheduler), "p2p": tier}

root = pathlib.Path(sys.argv[1])
legs = {}
for dialect, read in READERS.items():
    legs[dialect] = {case.name: read(case) for case in sorted((root / dialect).iterdir())
                     if case.is_dir() and case.name.split("-")[0] in KINDS and "0.1" not in case.name}
json.dump({"names": sorted(KVConnectorFactory._registry), "legs": legs}, sys.stdout)
