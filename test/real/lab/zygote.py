"""Starts many vLLM servers quickly: imports vLLM once, which takes most of a minute, then forks a process for each.

usage: python zygote.py SOCKET     prints "ready" when it has imported vLLM

bin/vllm is the client: it sends its command line and its output files here, and exits with the server's exit code.
Only for tests: vLLM as released spawns its processes and does not fork.
"""
import array
import json
import os
import selectors
import signal
import socket
import sys

os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "fork")

import vllm.entrypoints.cli.main as cli            # noqa: E402  (the slow part)
import vllm.benchmarks.serve                        # noqa: E402,F401
import vllm.entrypoints.cli.serve                   # noqa: E402,F401
import vllm.entrypoints.openai.api_server           # noqa: E402,F401
import vllm.model_executor.models.llama             # noqa: E402,F401
import vllm.v1.engine.core                          # noqa: E402,F401
import vllm.v1.worker.cpu_worker                    # noqa: E402,F401
import vllm.distributed.kv_transfer.kv_connector.v1.nixl  # noqa: E402,F401

# The CPU platform insists on spawn, which imports everything again in each process. Fork works as well here, because
# neither a thread nor an OpenMP region has been started before.
import ctypes                                       # noqa: E402
import multiprocessing                              # noqa: E402
import vllm.utils.system_utils                      # noqa: E402
import vllm.v1.engine.coordinator                   # noqa: E402
import vllm.v1.engine.utils                         # noqa: E402
import vllm.v1.executor.multiproc_executor          # noqa: E402
import vllm.entrypoints.launchers.launcher          # noqa: E402

# When it ends, the API server warns of other processes that listen on its port, and fails if one of them is ending.
# A forked child inherits the listening socket, so there would always be one.
vllm.entrypoints.launchers.launcher.find_process_using_port = lambda port: None

for module in (vllm.utils.system_utils, vllm.v1.engine.coordinator, vllm.v1.engine.utils,
               vllm.v1.executor.multiproc_executor):
    module.get_mp_context = lambda: multiprocessing.get_context("fork")

PR_SET_PDEATHSIG = 1


def die_with_parent():
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


# Also for the processes that a server forks: none of them outlives the tests.
os.register_at_fork(after_in_child=die_with_parent)


def run(order, output):
    """Runs the vllm command in the process group of the client. Does not return."""
    try:
        os.setpgid(0, order["group"])
    except OSError:
        os.setsid()  # the client is of another session, so it cannot share its group
    signal.set_wakeup_fd(-1)
    for n in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
        signal.signal(n, signal.SIG_DFL if n != signal.SIGINT else signal.default_int_handler)
    for fd, copy in zip(output, (1, 2)):
        os.dup2(fd, copy)
        os.close(fd)
    os.environ.clear()
    os.environ.update(order["env"])
    os.chdir(order["cwd"])
    sys.argv = ["vllm", *order["argv"]]
    code = 1
    try:
        cli.main()
        code = 0
    except SystemExit as e:
        code = e.code if isinstance(e.code, int) else (0 if e.code is None else 1)
        if isinstance(e.code, str):
            print(e.code, file=sys.stderr)
    except BaseException:
        import traceback
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def receive(conn):
    """Receives an order: a line of JSON, with the client's stdout and stderr."""
    data, output = b"", array.array("i")
    while not data.endswith(b"\n"):
        part, fds, _, _ = socket.recv_fds(conn, 1 << 16, 2)
        if not part:
            return None, []
        data += part
        output.extend(fds)
    return json.loads(data), list(output)


def main(path):
    wakeup, woken = socket.socketpair()
    for s in (wakeup, woken):
        s.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakeup.fileno())
    listener = socket.socket(socket.AF_UNIX)
    if os.path.exists(path):
        os.unlink(path)
    listener.bind(path)
    listener.listen(16)
    selector = selectors.DefaultSelector()
    selector.register(listener, selectors.EVENT_READ)
    selector.register(woken, selectors.EVENT_READ)
    clients = {}  # connection -> process
    print("ready", flush=True)
    while True:
        for key, _ in selector.select():
            if key.fileobj is woken:
                woken.recv(4096)
                while True:
                    try:
                        pid, status = os.waitpid(-1, os.WNOHANG)
                    except ChildProcessError:
                        break
                    if pid == 0:
                        break
                    for conn, process in list(clients.items()):
                        if process == pid:
                            selector.unregister(conn)
                            del clients[conn]
                            try:
                                conn.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
                            except OSError:
                                pass
                            conn.close()
            elif key.fileobj is listener:
                conn, _ = listener.accept()
                order, output = receive(conn)
                if order is None:
                    conn.close()
                    continue
                pid = os.fork()
                if pid == 0:
                    for s in (listener, conn, wakeup, woken, *clients):
                        s.close()
                    run(order, output)
                for fd in output:
                    os.close(fd)
                clients[conn] = pid
                selector.register(conn, selectors.EVENT_READ)
                conn.sendall(f"{pid}\n".encode())
            else:  # the client was killed, so the server is killed, too
                conn = key.fileobj
                if conn not in clients:
                    continue
                selector.unregister(conn)
                try:
                    os.killpg(os.getpgid(clients.pop(conn)), signal.SIGKILL)
                except OSError:
                    pass  # it has ended, too
                conn.close()


main(sys.argv[1])
