"""Serves one file as an object in S3, as fast as the system can: `python s3_store.py PORT FILE CRC32`.

moto's server would be the bottleneck: it copies the whole object for each range.
"""

from __future__ import annotations

import os
import re
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

BUCKET, KEY = "bench", "m/model.safetensors"
_ETAG = '"0-0"'


class Store(BaseHTTPRequestHandler):
    """Answers what boto3's downloads ask for. Requests need no signature."""

    protocol_version = "HTTP/1.1"
    file: Path
    crc32: str

    def do_GET(self) -> None:
        """Send the listing, or a range of the object."""
        if "list-type=2" in self.path:
            self._list()
            return
        size = self.file.stat().st_size
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers["Range"] or "")
        first, last = (int(asked[1]), int(asked[2] or size - 1)) if asked else (0, size - 1)
        last = min(last, size - 1)
        self.send_response(206 if asked else 200)
        self.send_header("Content-Length", str(last - first + 1))
        self.send_header("ETag", _ETAG)
        if asked:
            self.send_header("Content-Range", f"bytes {first}-{last}/{size}")
        else:
            self.send_header("x-amz-checksum-crc32", self.crc32)
            self.send_header("x-amz-checksum-type", "FULL_OBJECT")
        self.end_headers()
        if self.command == "HEAD":
            return
        with self.file.open("rb") as file:
            while first <= last:
                first += os.sendfile(self.connection.fileno(), file.fileno(), first, last - first + 1)

    do_HEAD = do_GET  # noqa: N815  http.server's name

    def _list(self) -> None:
        contents = f"<Key>{KEY}</Key><Size>{self.file.stat().st_size}</Size><ETag>{_ETAG}</ETag>"
        xmlns = "http://s3.amazonaws.com/doc/2006-03-01/"
        body = f'<ListBucketResult xmlns="{xmlns}"><Contents>{contents}</Contents></ListBucketResult>'.encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


if __name__ == "__main__":
    Store.file, Store.crc32 = Path(sys.argv[2]), sys.argv[3]
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Store).serve_forever()
