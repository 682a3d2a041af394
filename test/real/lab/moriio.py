"""Reports how vLLM's MoRI-IO code parses our legs, and sends its heartbeat to us.

Reads one JSON object from standard input: "legs", a list of {id, route, mode, role,
params}, and "endpoint". Prints one JSON line: for each leg what the engine knows
about its partner, and what a consumer in READ mode treats as loaded without
transfer params. Then the engine's heartbeat runs until standard input ends.
"""

import json
import sys
from types import SimpleNamespace

from vllm.distributed.kv_transfer.kv_connector.v1.moriio import moriio_common as common
from vllm.distributed.kv_transfer.kv_connector.v1.moriio import (
    moriio_connector as connector,
)

asked = json.loads(sys.stdin.readline())
found = []
for leg in asked["legs"]:
    # The engine's own id: the route's prefix, the header, the prompt's number and a suffix.
    rid = {"completions": "cmpl-%s-0-1a2b3c4d", "chat": "chatcmpl-%s-1a2b3c4d"}.get(
        leg["route"], "resp_0123456789abcdef-1a2b3c4d"
    )
    if "%s" in rid:
        rid = rid % leg["id"]
    meta = common.MoRIIOConnectorMetadata()
    write = leg["mode"] == "WRITE" and leg["role"] == "P"
    meta.add_new_req(rid, [[1]], leg["params"], write_mode=write)
    req = (meta.reqs_to_save if write else meta.reqs_to_recv)[rid]
    found.append(
        {
            "host": req.remote_host,
            "handshake": req.remote_handshake_port,
            "notify": req.remote_notify_port,
            "transfer_id": req.transfer_id,
            "tp_size": req.tp_size,
            "dp_size": req.remote_dp_size,
            "engine": req.remote_engine_id,
            "blocks": req.remote_block_ids,
        }
    )

scheduler = connector.MoRIIOConnectorScheduler.__new__(connector.MoRIIOConnectorScheduler)
scheduler.is_producer = False
scheduler.mode = common.MoRIIOMode.READ
alone = SimpleNamespace(num_prompt_tokens=10, kv_transfer_params=None)
loaded = scheduler.get_num_new_matched_tokens(alone, 0)

print(json.dumps({"found": found, "loaded": list(loaded)}), flush=True)

host, port = asked["endpoint"].rsplit(":", 1)
worker = SimpleNamespace(
    is_producer=True,
    request_address="127.0.0.1:8100",
    local_ip="127.0.0.1",
    handshake_port=6301,
    notify_port=61005,
    moriio_config=SimpleNamespace(dp_size=1, tp_size=8),
    mode=common.MoRIIOMode.WRITE,
    proxy_ip=host,
    proxy_ping_port=int(port),
)
heartbeat = connector.MoRIIOConnectorWorker._start_heartbeat(worker)
sys.stdin.read()
heartbeat.shutdown()
