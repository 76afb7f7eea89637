"""What the floors answer: the same bytes each time, as many as topicsd sends for the same request."""

from __future__ import annotations


def http_answer(body: bytes) -> bytes:
    return http_head(len(body)) + body


def http_head(body_bytes: int) -> bytes:
    return (
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nDate: Thu, 01 Jan 2026 00:00:00 GMT\r\n"
        b"Content-Length: %d\r\n\r\n" % body_bytes
    )


def write_answer(records: int) -> bytes:
    """To a write of so many."""
    seqs = b",".join(b"%d" % seq for seq in range(1_000_000, 1_000_000 + records))
    last = 999_999 + records
    return http_answer(
        b'{"topic":"floor","first_seq":1000000,"last_seq":%d,"seqs":[%b],"head_seq":%d,"count":%d,"created":false,'
        b'"deduped":false,"performance":{"server_total_ms":0.500,"wal_append_ms":0.050,"fsync_ms":0}}'
        % (last, seqs, last, records)
    )
