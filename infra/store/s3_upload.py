"""Conditional upload of one file, in pieces if it is large; boto3's own transfers support no conditions."""

import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

PIECE_BYTES = 8 * 2**20
AT_ONCE = 10
_MOST_PIECES = 10_000  # S3's limit
_SUM = "ChecksumCRC32"


def upload(client: Any, bucket: str, name: str, source: Path, condition: dict[str, str]) -> None:
    """Upload a file; the object appears only when it is complete. Raises ClientError, also if the condition fails."""
    size = source.stat().st_size
    if size <= PIECE_BYTES:
        with source.open("rb") as body:
            client.put_object(Bucket=bucket, Key=name, Body=body, **condition)
        return
    asked = {"Bucket": bucket, "Key": name}
    begun = client.create_multipart_upload(**asked, ChecksumAlgorithm="CRC32")
    asked["UploadId"] = begun["UploadId"]
    length = max(PIECE_BYTES, -(-size // _MOST_PIECES))

    def send(number: int) -> dict[str, Any]:
        with source.open("rb") as handle:
            handle.seek((number - 1) * length)
            piece = handle.read(length)
        reply = client.upload_part(**asked, PartNumber=number, Body=piece, ChecksumAlgorithm="CRC32")
        sums = {_SUM: reply[_SUM]} if _SUM in reply else {}
        return {"PartNumber": number, "ETag": reply["ETag"], **sums}

    try:
        parts = _all(send, -(-size // length))
        client.complete_multipart_upload(**asked, MultipartUpload={"Parts": parts}, **condition)
    except BaseException:
        with contextlib.suppress(Exception):  # the first error counts; a lifecycle rule removes leftover pieces
            client.abort_multipart_upload(**asked)
        raise


def _all(send: Callable[[int], dict[str, Any]], count: int) -> list[dict[str, Any]]:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        sent = [pool.submit(send, number) for number in range(1, count + 1)]
        try:
            return [each.result() for each in sent]
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise
