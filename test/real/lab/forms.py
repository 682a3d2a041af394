"""Prints the responses of an installed vLLM to forms on /v1/audio/transcriptions, as a line of JSON for each request.

usage: python forms.py      reads a list of {"name", "type", "body"}, body in latin-1; prints each with "status" and "answer"

The routes are those of vLLM. The model is replaced by a function whose response is what vLLM has parsed.
"""
import asyncio
import json
import sys
from argparse import Namespace

import httpx

from vllm.entrypoints.launchers.app import build_app
from vllm.entrypoints.speech_to_text.transcription.protocol import TranscriptionResponse, TranscriptionUsageAudio

ARGS = Namespace(
    disable_fastapi_docs=True, enable_offline_docs=False, root_path="", allowed_origins=[], allow_credentials=False,
    allowed_methods=["*"], allowed_headers=["*"], api_key=None, enable_request_id_headers=False, middleware=[],
    enable_scale_out=False, tokens_only=False, enable_tokenizer_info_endpoint=False, enable_fault_tolerance=False,
    profiler_config=None, log_error_stack=False,
)


class Echo:
    async def create_transcription(self, audio, request, raw_request):
        read = {"model": request.model, "stream": request.stream, "xargs": request.vllm_xargs, "file": len(audio)}
        return TranscriptionResponse(text=json.dumps(read), usage=TranscriptionUsageAudio(seconds=0))


async def main():
    app = build_app(ARGS, ("transcription",), None)
    app.state.openai_serving_transcription = Echo()
    app.state.enable_server_load_tracking = False
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://engine") as client:
        for request in json.load(sys.stdin):
            header = {"Content-Type": request["type"]} if request["type"] else {}
            answer = await client.post("/v1/audio/transcriptions", content=request["body"].encode("latin-1"), headers=header)
            print(json.dumps({**request, "status": answer.status_code, "answer": answer.text}))


asyncio.run(main())
