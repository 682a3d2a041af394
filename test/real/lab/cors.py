"""Prints the responses of the CORS middleware that vLLM uses (Starlette's), as a line of JSON for each request.

usage: python cors.py      reads a list of {"name", "options", "method", "header"}; prints each with "status", "body"
                           and "answer": its CORS headers, in lower case
"""
import asyncio
import json
import sys

from starlette.middleware.cors import CORSMiddleware
from starlette.responses import PlainTextResponse


async def ask(request):
    options = request["options"]
    app = CORSMiddleware(
        PlainTextResponse("served"), allow_origins=options["origins"], allow_credentials=options["credentials"],
        allow_methods=options["methods"], allow_headers=options["headers"],  # as vLLM's register.py calls it
    )
    sent = []

    async def receive():
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message):
        sent.append(message)

    headers = [(k.lower().encode(), v.encode()) for k, v in request["header"].items()]
    await app({"type": "http", "method": request["method"], "path": "/", "headers": headers}, receive, send)
    answer = {k.decode(): v.decode() for k, v in sent[0]["headers"]}
    answer = {k: v for k, v in sorted(answer.items()) if k == "vary" or k.startswith("access-control-")}
    print(json.dumps({**request, "status": sent[0]["status"], "body": sent[1]["body"].decode(), "answer": answer}))


for r in json.load(sys.stdin):
    asyncio.run(ask(r))
