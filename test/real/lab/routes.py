"""Prints the routes of an installed vLLM, a line for each: METHOD, path, and what enables it.

usage: python routes.py [FOLDER]     FOLDER has a folder vllm of another release; default is the installed one

vLLM's build_app is called once without options, and once for each task, option and variable that may add routes, each
in a process of its own, because routers keep what an earlier call has added. A route that no call shows is found in
the source (the package that it needs is not installed), and must be named in READ. HEAD, which the pages of the
documentation accept in addition to GET, is left out.
"""
import ast
import json
import os
import sys
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace

if len(sys.argv) > 1:
    sys.path.insert(0, sys.argv[1])

import fastapi.routing as routing                       # noqa: E402
from starlette.routing import Mount, WebSocketRoute     # noqa: E402

import vllm                                             # noqa: E402
from vllm.config import ProfilerConfig               # noqa: E402
from vllm.entrypoints.launchers.app import build_app    # noqa: E402

ARGS = dict(
    disable_fastapi_docs=False, enable_offline_docs=False, root_path="", allowed_origins=[], allow_credentials=False,
    allowed_methods=["*"], allowed_headers=["*"], api_key=None, enable_request_id_headers=False, middleware=[],
    enable_scale_out=False, tokens_only=False, enable_tokenizer_info_endpoint=False, enable_fault_tolerance=False,
    profiler_config=None, log_error_stack=False,
)
# What may add routes, as printed in the file: tasks of the model, options, variables.
TASKS = ["generate", "transcription", "realtime", "embed", "classify", "token_embed", "token_classify"]
OPTIONS = {
    "--enable-scale-out": dict(enable_scale_out=True),
    "--tokens-only": dict(tokens_only=True),
    "--enable-tokenizer-info-endpoint": dict(enable_tokenizer_info_endpoint=True),
    "--enable-fault-tolerance": dict(enable_fault_tolerance=True),
    "--enable-offline-docs": dict(enable_offline_docs=True),
    "--profiler-config": dict(profiler_config=ProfilerConfig(profiler="torch", torch_profiler_dir="/")),
}
VARIABLES = ["VLLM_SERVER_DEV_MODE", "VLLM_ALLOW_RUNTIME_LORA_UPDATING"]
# Routes that only the source shows, by their folder.
READ = {"cohere": "VLLM_ENABLE_COHERE_API=1 and the package cohere"}
READ_SCALE_OUT = " and --enable-scale-out"
# Not of the API server: the supervisor of data-parallel ranks, and a server that only loads a model.
OTHER_PROGRAMS = ["launchers/dp_supervisor.py", "cli/preload.py"]


def routes_of(app_routes, prefix=""):
    for route in app_routes:
        inner = getattr(route, "original_router", None)
        if inner is not None:  # FastAPI keeps an included router as one route
            yield from routes_of(inner.routes, prefix)
        elif isinstance(route, WebSocketRoute):
            yield "WEBSOCKET", prefix + route.path
        elif isinstance(route, Mount):
            yield "ANY", prefix + (route.path or "/") + ("" if route.path == "/metrics" else "/*")
        else:
            for method in sorted((route.methods or set()) - {"HEAD"}):
                yield method, prefix + route.path


def ask(tasks, options, variable):
    """Returns the routes of one server, which runs in a process of its own."""
    back, out = os.pipe()
    if (pid := os.fork()) == 0:
        code = 1
        try:
            os.close(back)
            if variable:
                os.environ[variable] = "1"
            pooling = next((t for t in tasks if t not in TASKS[:3] and t != "render"), None)
            model = SimpleNamespace(  # what routers ask of a model: a pooling model takes the first of its tasks
                get_pooling_task=lambda supported: pooling, io_processor_plugin=None, architecture="",
                hf_config=SimpleNamespace(num_labels=1), is_cross_encoder=True,
            )
            app = build_app(Namespace(**{**ARGS, **options}), tuple(tasks), model)
            os.write(out, json.dumps(sorted(set(routes_of(app.routes)))).encode())
            code = 0
        except BaseException as e:
            print(f"tasks {tasks}, options {list(options)}, {variable}: {e!r}", file=sys.stderr)
        finally:
            os._exit(code)
    os.close(out)
    with os.fdopen(back) as f:
        text = f.read()
    if os.waitpid(pid, 0)[1]:
        sys.exit("the routes of a server could not be read")
    return {tuple(r) for r in json.loads(text)}


def read_sources(folder):
    """Returns the routes that decorators and add_api_route name in the source, with their files."""
    for path in sorted(folder.rglob("*.py")):
        name = str(path.relative_to(folder))
        if name in OTHER_PROGRAMS:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args):
                continue
            first = node.args[0]
            if not (isinstance(first, ast.Constant) and isinstance(first.value, str) and first.value.startswith("/")):
                continue
            if node.func.attr in ("get", "post", "put", "delete", "patch", "websocket"):
                yield node.func.attr.upper(), first.value, name
            elif node.func.attr == "add_api_route":
                for method in next(k.value for k in node.keywords if k.arg == "methods").elts:
                    yield method.value, first.value, name


def main():
    always = ask([], {}, "")
    generate = ask(["generate"], {}, "")
    when = {r: ["always"] for r in always}

    def note(routes, without, condition):
        for r in routes - without:
            when.setdefault(r, []).append(condition)

    for task in TASKS:
        note(ask([task], {}, ""), always, "task " + task)
    for name, option in OPTIONS.items():
        note(ask(["generate"], option, ""), generate, name)
    render = ask(["render"], {}, "")
    note(render, always, "vllm launch render")
    for name in VARIABLES:
        note(ask(["generate"], {}, name), generate, name + "=1")
    for method, path in generate:
        if path.endswith(("/render", "/derender")) or path.startswith("/inference/"):
            # Without these options the routes are there as well, and answer 403.
            too = " or vllm launch render" if (method, path) in render else ""
            when[method, path] = ["--enable-scale-out, --tokens-only" + too + "; else 403"]
    for method, path, name in read_sources(Path(vllm.__file__).parent / "entrypoints"):
        if (method, path) not in when:
            folder = name.split("/")[0]
            if folder not in READ:
                sys.exit(f"{method} {path} of {name} is in no server that was asked")
            when[method, path] = [READ[folder] + (READ_SCALE_OUT if path.endswith("/render") else "")]
    for (method, path), conditions in sorted(when.items(), key=lambda i: (i[0][1], i[0][0])):
        print(f"{method} {path} {words(conditions)}")


def words(conditions):
    tasks = [c.removeprefix("task ") for c in conditions if c.startswith("task ")]
    rest = [c for c in conditions if not c.startswith("task ")]
    if tasks:
        rest.insert(0, "task " + ", ".join(tasks))
    return "; ".join(rest)


main()
