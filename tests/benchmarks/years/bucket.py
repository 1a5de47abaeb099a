"""A bucket with hundreds of thousands of objects: the part of S3 that `S3Store` speaks, served from memory.

moto sorts every key of a bucket for each page of a listing, which would be most of what is measured here. What a
condition or a page means is as in moto, and the store's own tests are not run against this.
"""

from __future__ import annotations

import bisect
import hashlib
import threading
import time
import urllib.parse
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from xml.sax.saxutils import escape, unescape

Made = bytes | Callable[[], bytes]  # objects that are like many others are made when they are read
KEYS_A_PAGE = 1000
_DATE = "Wed, 25 Nov 2026 12:00:00 GMT"


class Bucket:
    """Objects by key, and the requests for them; each waits for `delay_seconds`, as on a network."""

    def __init__(self) -> None:
        self.delay_seconds = 0.0
        self.requests: list[str] = []
        self._objects: dict[str, Made] = {}
        self._keys: list[str] = []
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._objects)

    def put(self, key: str, data: bytes) -> None:
        if key not in self._objects:
            bisect.insort(self._keys, key)
        self._objects[key] = data

    def put_all(self, objects: dict[str, Made]) -> None:
        """Add many at once."""
        self._objects |= objects
        self._keys = sorted(self._objects)

    def get(self, key: str) -> bytes | None:
        found = self._objects.get(key)
        return found() if callable(found) else found

    def delete(self, key: str) -> None:
        if self._objects.pop(key, None) is not None:
            del self._keys[bisect.bisect_left(self._keys, key)]

    def page(self, prefix: str, after: str, most: int) -> tuple[list[tuple[str, int]], bool]:
        """Return the next keys with their sizes, and whether there are more."""
        first = max(bisect.bisect_left(self._keys, prefix), bisect.bisect_right(self._keys, after) if after else 0)
        found = []
        for key in self._keys[first : first + most + 1]:
            if not key.startswith(prefix):
                break
            found.append((key, len(self.get(key) or b"")))
        return found[:most], len(found) > most

    def answer(self, method: str, target: str, headers: dict[str, str], body: bytes) -> tuple[int, bytes, str]:
        """Return status, body and ETag."""
        path, _, query = target.partition("?")
        key = urllib.parse.unquote(path).lstrip("/").partition("/")[2]
        asked = dict(urllib.parse.parse_qsl(query, keep_blank_values=True))
        time.sleep(self.delay_seconds)
        with self._lock:
            self.requests.append(f"{method} {urllib.parse.unquote(target)}")
            if "list-type" in asked:
                return 200, self._listed(asked), ""
            if "delete" in asked:
                for part in body.decode().split("<Key>")[1:]:
                    self.delete(unescape(part.partition("</Key>")[0]))
                return 200, b"<DeleteResult/>", ""
            held = self.get(key)
            etag = f'"{hashlib.md5(held).hexdigest()}"' if held is not None else ""
            if method == "PUT":
                if (headers.get("if-none-match") == "*" and held is not None) or headers.get("if-match", etag) != etag:
                    return 412, b"<Error><Code>PreconditionFailed</Code></Error>", ""
                self.put(key, body)
                return 200, b"", f'"{hashlib.md5(body).hexdigest()}"'
            if method == "DELETE":
                self.delete(key)
                return 204, b"", ""
            return (404, b"<Error><Code>NoSuchKey</Code></Error>", "") if held is None else (200, held, etag)

    def _listed(self, asked: dict[str, str]) -> bytes:
        after = asked.get("continuation-token") or asked.get("start-after", "")
        found, more = self.page(asked.get("prefix", ""), after, int(asked.get("max-keys", KEYS_A_PAGE)))
        entries = "".join(
            f"<Contents><Key>{escape(urllib.parse.quote(key))}</Key><LastModified>2026-11-25T12:00:00.000Z"
            f"</LastModified><ETag>&quot;0&quot;</ETag><Size>{size}</Size><StorageClass>STANDARD</StorageClass></Contents>"
            for key, size in found
        )
        token = f"<NextContinuationToken>{escape(found[-1][0])}</NextContinuationToken>" if more else ""
        truncated = f"<IsTruncated>{str(more).lower()}</IsTruncated>{token}"
        return f"<ListBucketResult><EncodingType>url</EncodingType>{truncated}{entries}</ListBucketResult>".encode()


def serve(bucket: Bucket) -> ThreadingHTTPServer:
    """Start the server on a free loopback port."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # head and body in one packet

        def answer(self) -> None:
            body = self._body()
            headers = {name.lower(): value for name, value in self.headers.items()}
            status, data, etag = bucket.answer(self.command, self.path, headers, body)
            self.send_response(status)
            if etag:
                self.send_header("ETag", etag)
            self.send_header("Last-Modified", _DATE)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)
            self.wfile.flush()

        def _body(self) -> bytes:
            if self.headers.get("Expect", "").lower() == "100-continue":
                self.wfile.flush()
            raw = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if "aws-chunked" not in self.headers.get("Content-Encoding", ""):
                return raw
            data = b""
            while raw:
                size, _, raw = raw.partition(b"\r\n")
                length = int(size.partition(b";")[0], 16)
                if not length:
                    break
                data, raw = data + raw[:length], raw[length + 2 :]
            return data

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    for method in ("GET", "PUT", "POST", "DELETE", "HEAD"):
        setattr(Handler, f"do_{method}", Handler.answer)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server
