#!/usr/bin/env python3
"""A foretype for the tests of nginx/serve: it listens on its socket file, and tells what it was asked and started with."""

import json
import os
import socketserver
import sys
import time
from http.server import BaseHTTPRequestHandler

HELP = [
    "FORETYPE_MODEL",
    "FORETYPE_SOCKET",
    "FORETYPE_CACHE",
    "FORETYPE_MAX_BODY_BYTES",
    "FORETYPE_MODELS_MIB",
    "FORETYPE_BACKEND",
    "FORETYPE_BEAMS",
]


# Requests for /invocations/slow and /ping?slow that have come so far.
SLOW = []


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self):
        size = int(self.headers.get("Content-Length") or 0)
        while size:
            size -= len(self.rfile.read(min(size, 65536)))
        if self.path in ("/invocations/slow", "/ping?slow"):
            SLOW.append(self)
            time.sleep(4)
        seen = {name: value for name, value in os.environ.items() if name.startswith("FORETYPE_")}
        body = json.dumps(seen | {"slow": len(SLOW)}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = answer  # noqa: N815

    def address_string(self):
        return "nginx"

    def log_message(self, *_):
        pass


class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    request_queue_size = 1024


if sys.argv[1:] == ["serve", "--help"]:
    print("\n".join(f"      --flag <X>  some words [env: {name}={os.environ.get(name, '')}]" for name in HELP))
elif "STANDIN_FAILS" in os.environ:
    sys.exit(3)
else:
    server = Server(os.environ["FORETYPE_SOCKET"], Handler)
    server.serve_forever()
