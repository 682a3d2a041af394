"""Records what an engine answers to the requests of a list.

usage: python record.py 127.0.0.1:8000 LIST.json > RECORDED.json

Each entry of the list has name, method, path, and body (text) or body_base64; content_type is JSON if it is not given.
The answer is added as status, answer_type and answer; of an answer that is a success only the status is kept.
"""
import base64, http.client, json, sys

host, path = sys.argv[1:]
entries = json.load(open(path, encoding="utf-8"))
for e in entries:
    body = base64.b64decode(e["body_base64"]) if "body_base64" in e else e.get("body", "").encode()
    kind = e.get("content_type", "application/json")
    header = {"Content-Type": kind} if kind and ("body" in e or "body_base64" in e) else {}
    connection = http.client.HTTPConnection(host, timeout=300)
    connection.request(e["method"], e["path"], body, header)
    answer = connection.getresponse()
    text = answer.read().decode()
    e["status"] = answer.status
    e.pop("answer", None), e.pop("answer_type", None)
    if answer.status >= 400:
        e["answer"], e["answer_type"] = text, answer.getheader("Content-Type", "")
    connection.close()
print("[\n" + ",\n".join(json.dumps(e, ensure_ascii=False) for e in entries) + "\n]")
