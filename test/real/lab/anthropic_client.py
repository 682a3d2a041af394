"""Uses Anthropic's client as an application does, and prints each result as a line of JSON.

usage: python anthropic_client.py BASE_URL MODEL

Its output with one vLLM server and with the proxy must be equal.
"""
import json
import sys

import anthropic

base, model = sys.argv[1:]
client = anthropic.Anthropic(base_url=base, api_key="none", max_retries=0, timeout=300)
hello = [{"role": "user", "content": "What may I do with the work?"}]
greedy = {"extra_body": {"temperature": 0}}  # the client has no argument for it
print("anthropic", anthropic.__version__, file=sys.stderr)


def show(what, value):
    print(json.dumps([what, value], sort_keys=True))


a = client.messages.create(model=model, max_tokens=16, messages=hello, **greedy)
show("message", [[c.text for c in a.content if c.type == "text"], a.stop_reason, a.usage.output_tokens])

with client.messages.stream(model=model, max_tokens=16, messages=hello, system="Be brief.", **greedy) as stream:
    text = "".join(stream.text_stream)
    final = stream.get_final_message()
show("stream", [text, final.stop_reason, final.usage.output_tokens])

show("count", client.messages.count_tokens(model=model, messages=hello).input_tokens)

for name, kind, more in (("no such model", anthropic.NotFoundError, {"model": "other"}),
                         ("bad temperature", anthropic.BadRequestError, {"extra_body": {"temperature": -1}})):
    try:
        client.messages.create(**{"model": model, "messages": hello, "max_tokens": 4, **more})
        show(name, "no error")
    except anthropic.APIStatusError as e:
        show(name, [type(e).__name__, e.status_code, isinstance(e, kind)])
