"""Uses the official OpenAI client as an application does, and prints each result as a line of JSON.

usage: python openai_client.py BASE_URL MODEL

Its output with one vLLM server and with the proxy must be equal.
"""
import asyncio
import json
import sys

import openai
import pydantic

base, model = sys.argv[1:]
client = openai.OpenAI(base_url=base + "/v1", api_key="none", max_retries=0, timeout=300)
hello = [{"role": "user", "content": "What may I do with the work?"}]
print("openai", openai.__version__, file=sys.stderr)


def show(what, value):
    print(json.dumps([what, value], sort_keys=True))


class Answer(pydantic.BaseModel):
    ok: bool


show("models", [m.id for m in client.models.list()])

a = client.chat.completions.create(model=model, messages=hello, max_tokens=16, temperature=0)
show("chat", [a.choices[0].message.content, a.choices[0].finish_reason, a.usage.completion_tokens])

text, usage = "", None
for chunk in client.chat.completions.create(model=model, messages=hello, max_tokens=16, temperature=0, stream=True,
                                            stream_options={"include_usage": True}):
    for choice in chunk.choices:
        text += choice.delta.content or ""
    usage = chunk.usage or usage
show("stream", [text, usage.prompt_tokens, usage.completion_tokens])

with client.chat.completions.stream(model=model, messages=hello, max_tokens=16, temperature=0) as stream:
    deltas = "".join(e.delta for e in stream if e.type == "content.delta")
    try:
        stream.get_final_completion()
        how = "whole"
    except openai.LengthFinishReasonError as e:
        how = e.completion.choices[0].message.content
show("stream helper", [deltas, how])

a = client.chat.completions.create(model=model, messages=hello, max_tokens=8, temperature=0, logprobs=True, top_logprobs=2)
show("logprobs", [[t.token, len(t.top_logprobs)] for t in a.choices[0].logprobs.content])

tool = {"type": "function", "function": {"name": "look", "parameters": {
    "type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"], "additionalProperties": False}}}
a = client.chat.completions.create(model=model, messages=hello, max_tokens=120, temperature=0, tools=[tool], tool_choice="required")
show("tools", [[c.function.name, c.function.arguments] for c in a.choices[0].message.tool_calls or []])

try:
    a = client.chat.completions.parse(model=model, messages=hello, max_tokens=100, temperature=0, response_format=Answer)
    show("parse", [type(a.choices[0].message.parsed).__name__, a.choices[0].message.content])
except openai.LengthFinishReasonError as e:  # spaces are JSON, too, and a model with random weights likes them
    show("parse", e.completion.choices[0].message.content)

a = client.completions.create(model=model, prompt=["The license", "You may"], max_tokens=8, temperature=0.7, seed=3, n=2, logprobs=1)
show("completions", [[c.index, c.text, len(c.logprobs.tokens)] for c in a.choices])

a = client.responses.create(model=model, input="The license?", max_output_tokens=8, temperature=0)
show("responses", a.output_text)

for name, kind, more in (("no such model", openai.NotFoundError, {"model": "other"}),
                         ("bad n", openai.BadRequestError, {"n": 0}),
                         ("bad temperature", openai.BadRequestError, {"temperature": -1}),
                         ("no messages", openai.BadRequestError, {"messages": []})):
    try:
        client.chat.completions.create(**{"model": model, "messages": hello, "max_tokens": 4, **more})
        show(name, "no error")
    except kind as e:
        show(name, [type(e).__name__, e.status_code, e.code, e.param])


async def several():
    many = openai.AsyncOpenAI(base_url=base + "/v1", api_key="none", max_retries=0, timeout=300)
    answers = await asyncio.gather(*(many.completions.create(model=model, prompt=f"Number {i}", max_tokens=8, temperature=0)
                                     for i in range(8)))
    await many.close()
    return [a.choices[0].text for a in answers]

show("eight at once", asyncio.run(several()))
