"""Every internal maximum, with its unit and what happens beyond it.

What an operator may change is a setting (shared/settings.py), and some of those take their default
from here. The rest are constants because another part relies on the exact value, or because nobody
could choose a better one without reading the code.
"""

from __future__ import annotations

from typing import Final

KiB: Final = 1 << 10
MiB: Final = 1 << 20
GiB: Final = 1 << 30

# --- the link between processes ---------------------------------------------------------------

LINK_MAX_FRAME_BYTES: Final = 96 * MiB
"""Bytes of one frame on a Unix-socket link; a longer one is a protocol error and ends the link.
Holds the largest body a setting allows (MAX_BODY_BYTES_CEILING) plus envelopes and answers."""

LINK_CREDITS: Final = 16_384
"""Requests in flight per link; the sender answers 429 itself rather than queue beyond it."""

MAX_BODY_BYTES_CEILING: Final = 80 * MiB
"""Bytes; the highest `max_body_bytes` an operator may set. Below the frame limit by enough for the
per-record `$seq`, `$ts` and columns that a batch of the largest allowed count gains on its way."""

# --- write-ahead log and seqs -----------------------------------------------------------------

WAL_FILE_BYTES: Final = 64 * MiB
"""Bytes after which the active WAL file is rotated; a larger single frame gets a file of its own."""

WAL_MAX_FILES_BEFORE_SEAL: Final = 8
"""WAL files; with more than this a sealing pass starts whatever the topics' own bounds say."""

SEQ_RESERVE_MIN: Final = 1024
"""Seqs reserved ahead of use at the least, so that an acked seq is never given out twice after a
power cut that lost the unsynced tail."""

SEQ_RESERVE_MAX: Final = 1 << 20
"""Seqs reserved ahead of use at the most: what a crash may skip in one topic."""

SYNC_INTERVAL_MS: Final = 200
"""Milliseconds between background syncs of `disk` data; the default of `sync_interval_ms`."""

# --- segments and snapshots -------------------------------------------------------------------

BLOCK_MAX_RECORDS: Final = 2048
"""Records in one compressed block of a segment."""

BLOCK_TARGET_BYTES: Final = 512 * KiB
"""Uncompressed bytes at which a block is closed; a single larger record makes a block of its own."""

BLOCK_CACHE_BYTES: Final = 64 * MiB
"""Bytes of decompressed blocks and indexes cached per shard; the default of `cache_bytes`."""

SNAPSHOT_SLICE_TOPICS: Final = 32
"""Topics written to a snapshot per turn, so that a snapshot never stalls the loop."""

COLD_WATCH_MS: Final = 2000  # how often a worker looks for a staged compaction
SNAPSHOT_EVERY_WAL_BYTES: Final = 256 * MiB
"""WAL bytes since the last snapshot after which the next one is taken: bounds replay. What a start had to replay
counts, so that a shard that is killed again and again does not have more to replay every time."""

SNAPSHOT_EVERY_WAL_FRAMES: Final = 1_000_000
"""WAL frames since the last snapshot after which the next one is taken: of small frames replay costs time by the
frame, not by the byte."""

SNAPSHOT_LARGE_BYTES: Final = 4 * MiB
SNAPSHOT_MANY_TOPICS: Final = 16_384
"""While the last snapshot was smaller than this, and there are fewer topics, the two bounds above are lower in
proportion. The larger share of the two counts: topics take time to look at, and idempotency keys or jobs make a
snapshot large with one topic."""

SNAPSHOT_SOONEST_WAL_BYTES: Final = 32 * MiB
SNAPSHOT_SOONEST_WAL_FRAMES: Final = 125_000
"""But not below these, however small it is: each snapshot is a handful of syncs, too."""

SEAL_REST_S: Final = 1.0
"""Seconds between two sealing passes: what becomes due by its records or bytes meanwhile is sealed together. Shorter
in proportion with a `segment_max_events` below its default: that asks for smaller segments."""

SEAL_GATHER_MAX_BYTES: Final = 64 * MiB
"""WAL bytes since the last pass that end the rest early; `segment_max_bytes` does if it is lower."""

SEAL_GATHER_MAX_FRAMES: Final = 100_000
"""WAL frames since the last pass that end the rest early: 38 bytes of memory each, and some work between two turns
when they are sealed."""

# --- memory per shard -------------------------------------------------------------------------

EPHEMERAL_MAX_BYTES: Final = 256 * MiB
"""Bytes of `ephemeral` records held by one shard; beyond it the oldest go, as with a cap."""

DEDUPE_MAX_KEYS_PER_SHARD: Final = 1_000_000
"""Idempotency keys remembered by one shard; beyond it the oldest are forgotten first."""

# --- reads ------------------------------------------------------------------------------------

READ_DEFAULT_LIMIT: Final = 256
"""Records per read when the caller names no limit (or 0)."""

READ_DEFAULT_BYTES: Final = 1 * MiB
"""Bytes per read when the caller names no `max_bytes`."""

READ_MAX_BYTES: Final = 8 * MiB
"""Bytes per read at the most; a larger `max_bytes` is clamped. One record is always returned."""

WAIT_MAX_MS: Final = 30_000
"""Milliseconds of long poll at the most; a larger `wait_ms` is clamped."""

EXTENTS_MAX_PER_ANSWER: Final = 64
"""File extents in one answer; a read touching more of them is answered with bytes instead."""

SENDFILE_MIN_BYTES: Final = 16 * KiB
"""Bytes below which an answer is copied: a sendfile call costs more than the copy it saves."""

STITCHED_MIN_EXTENTS: Final = 3
"""Extents of an answer from which on a copy in one piece is worth keeping."""

STITCHED_FILE_BYTES: Final = 4 * MiB
"""Bytes of one file of such copies; a shard has at most two."""

STITCHED_SEEN_MAX: Final = 4096
"""Ranges remembered because they were asked for once."""

KEPT_READS_MAX: Final = 256
"""Answers from extents that a shard keeps for whoever asks the same again; with one more it starts all over."""

KEPT_READS_MAX_QUESTION_BYTES: Final = 256
"""Bytes of the question to such an answer; a longer one is worked out each time."""

# --- requests ---------------------------------------------------------------------------------

IDEMPOTENCY_KEY_MAX_CHARS: Final = 256
"""Characters of an `idempotency_key`; longer is 400."""

META_MAX_KEYS: Final = 64
"""Keys of one record's `meta`; more is 400."""

MATCH_VALUE_MAX_BYTES: Final = 4 * KiB
"""UTF-8 bytes of the value of a match predicate; longer is 400. As long as the longest tag, key or
node that a setting allows, with room for the star: a longer value could never match."""

LABEL_BYTES_CEILING: Final = MATCH_VALUE_MAX_BYTES - 1
"""Bytes; the highest `max_tag_bytes`, `max_node_bytes` and `max_key_bytes` an operator may set."""

QUEUE_SEQS_MAX: Final = 1000
"""Seqs in one ack, nack or extend; more is 400 batch_too_large."""

PAGE_SIZE_DEFAULT: Final = 100
"""Entries on one page of a list."""

PAGE_SIZE_MAX: Final = 1000
"""Entries on one page of a list at the most; a larger `page_size` is clamped."""

# --- lifecycle --------------------------------------------------------------------------------

DRAIN_TIMEOUT_MS: Final = 10_000
"""Milliseconds that work in flight gets at shutdown; the default of `drain_timeout_ms`."""

RETRY_AFTER_DEFAULT_MS: Final = 1000
"""Milliseconds a client is told to wait when nothing better is known (429 at a cap, 503)."""

READ_SCAN_MAX_RECORDS: Final = 20_000
"""Records that one filtered read looks at; then it answers with the cursor where it stopped."""

UNSYNCED_MAX_BYTES: Final = 64 * MiB
"""Bytes of writes that may wait for a sync; the default of `max_unsynced_bytes`. Beyond it writes are answered 429
until the disk catches up."""

# --- pressure ---------------------------------------------------------------------------------

PRESSURE_CALM_MS: Final = 500
"""Milliseconds of calm after which the pressure level falls by one."""

PRESSURE_SAMPLE_MS: Final = 20
"""Milliseconds between two looks at the signs of pressure, at the least."""

COMMIT_WINDOW_MIN_MS: Final = 0.5
COMMIT_WINDOW_MAX_MS: Final = 10.0
"""Milliseconds that a sync waits for company under pressure: at first, and at the most."""

COMMIT_WINDOW_MAX_BYTES: Final = 4 * MiB
"""Bytes that wait for a sync; with more than this it waits for no company."""

PUSHES_PER_ROUND: Final = 256
"""Topics whose subscribers are told in one round under pressure; the others wait for the next."""

THROTTLE_WAIT_MAX_MS: Final = 30_000
"""Milliseconds that a write with `disable_backpressure` waits for room; then it is answered 429 like all others."""

THROTTLED_MAX_BYTES: Final = 64 * MiB
"""Bytes of writes that wait for room, per worker, and per link in the gateway; more are answered 429 at once."""

THROTTLED_MAX_REQUESTS: Final = 4096
"""Writes that wait for room, per worker, and per link in the gateway; more are answered 429 at once."""

THROTTLE_RETRY_MIN_MS: Final = 50
THROTTLE_RETRY_MAX_MS: Final = 10_000
"""Milliseconds that `detail.retry_after_ms` of a full shard is held to."""

RESERVE_IDLE_MS: Final = 60_000
"""Milliseconds without a write after which a topic gives its reserved seqs back: a power cut then costs it no
gap, and its next write waits for one sync."""

SEAL_PASS_MAX_BYTES: Final = 256 * MiB
"""Bytes of hot records that one sealing pass takes; what is due beyond that waits for the next pass."""

MOVE_PASS_TOPICS: Final = 1000
"""Topics that move to another shard in one pass, when the number of shards has changed."""

SWEEP_TOPICS_PER_TICK: Final = 1000
"""Topics whose age and TTL are looked at in one maintenance tick."""

LINK_UNSENT_MAX_BYTES: Final = 64 * MiB
"""Bytes of answers that may wait for a link's socket; beyond it no more requests are read from that link."""

LINK_SEND_AT_BYTES: Final = 64 * KiB
"""Bodies of requests that leave for a worker before the gateway's turn is over: it can begin with them meanwhile."""

WORKER_MAX_LINKS: Final = 1024
"""Links that one worker serves; more are closed at once."""

PUSH_MAX_BYTES: Final = 64 * KiB
"""Bytes of records in one push to subscribers; more is only announced, and read by whoever wants it."""

TOPIC_SERIES_MAX: Final = 1000
"""Topics that one worker reports with metrics of their own."""

JOB_DELAY_MAX_MS: Final = 366 * 86_400_000
"""Milliseconds by which the first delivery of a job can be put off."""

JOB_GROUP_MAX_BYTES: Final = 256
"""UTF-8 bytes of a job's group; longer is 400."""

MOVE_RETRY_MS: Final = 1000
"""Milliseconds before a job that its dead letters could not take is tried again."""

MOVE_MAX_BYTES: Final = 8 * MiB
"""Bytes of records that move to another topic together; the rest waits for the next try. One always fits."""

CLAIM_MAX_BYTES: Final = 8 * MiB
"""Bytes of jobs in one claim; the others stay ready. One job is always handed out."""

CLAIMS_BEHIND_MAX_BYTES: Final = 4 * MiB
"""About so many bytes of answers to claims wait for the writes of their turn; more claims have those written first."""

REDRIVE_DEFAULT_LIMIT: Final = 100
"""Dead letters moved back by one call that does not say how many."""

REDRIVE_MAX_LIMIT: Final = 1000
"""Dead letters moved back by one call at the most."""

PEER_MAX_WAITING: Final = 4096
"""Requests to one other worker that may wait for their link; more are answered 503 at once."""

PEER_SILENCE_S: Final = 15.0
"""Seconds without an answer after which a link to another worker is given up."""

# --- watch ------------------------------------------------------------------------------------

WATCH_SESSION_TTL_MS: Final = 300_000
"""Milliseconds that a watch session lives without an open stream."""

WATCH_BATCH_BYTES: Final = 256 * KiB
"""Bytes of records in one frame when the watcher names no `max_batch_bytes`."""

WATCH_HEARTBEAT_MS: Final = 15_000
"""Milliseconds of silence before a heartbeat, unless the watcher says otherwise."""

WATCH_HEARTBEAT_MIN_MS: Final = 1_000
WATCH_HEARTBEAT_MAX_MS: Final = 60_000
"""What a watcher's `heartbeat_ms` is clamped to."""

WATCH_STALL_MS: Final = 30_000
"""Milliseconds in which a stream that has something to send must take at least one byte; then it is closed."""

WATCH_PREFIX_TOPICS_MAX: Final = 10_000
"""Topics that one watch follows by prefix; at creation more are 429, later ones are told as an `error` frame."""

WATCH_ID_MAX_BYTES: Final = 16 * KiB
"""JSON bytes of the cursors in one `id:`. It comes back in a request header, which has 64 KiB with all the others;
what does not fit is left out, oldest first, and a reconnect then repeats some records of those topics."""

WATCH_LINGER_MS: Final = 5_000
"""Milliseconds that a subscription outlives its last reader: between POST and GET, and while one reconnects."""

WATCH_RETRY_MS: Final = 1_000
"""Milliseconds before a read or subscription that a shard refused is tried again."""

WATCH_SUBSCRIBES_IN_FLIGHT: Final = 512
"""Subscriptions under way to one shard; after a restart the others follow as these are answered."""

WEBSOCKET_UNSENT_MAX: Final = 256
"""Answers that wait for a WebSocket client to read; then nothing more is read from it."""

SEGMENT_MAX_OPEN_FILES: Final = 256
"""Segment files that one worker keeps open; beyond it the least recently used is closed."""

RELEASES_PER_TICK: Final = 1000
"""Topics that are asked in one tick whether they can give their reserved seqs back."""

MOVED_IDENTITIES_MAX: Final = 10_000
"""Identities of moved records that a topic remembers, so that a repeated move appends nothing; the oldest go first."""

LINK_TURN_MAX_BYTES: Final = 16 * MiB
"""Bytes of answers to one link in one turn; requests beyond that wait for the next turn."""

# --- routers ----------------------------------------------------------------------------------

FORWARD_MAX_BYTES: Final = 1 * MiB
"""Bytes of records that a router copies in one step; one record always fits."""

FORWARD_MAX_RECORDS: Final = 1000
"""Records that a router copies in one step."""

FORWARD_SCAN_MAX_RECORDS: Final = 20_000
"""Records that a router looks at in one step; a filter that matches nothing goes on from there in the next."""

FORWARDS_IN_FLIGHT_MAX: Final = 64
"""Steps of routers that one worker has under way to other workers; each router has at most one."""

FORWARD_CACHE_BYTES: Final = 8 * MiB
"""Bytes of copies kept for other routers of the same source that stand at the same place."""

FORWARD_RETRY_MIN_MS: Final = 100
FORWARD_RETRY_MAX_MS: Final = 5_000
"""Milliseconds before a destination that refused is tried again: doubled with every refusal."""

FORWARD_SLICE_S: Final = 0.0005
"""Seconds that a worker forwards before it looks for requests again."""

FORWARD_REST: Final = 4
"""How many times as long as it forwarded a worker then leaves to requests, while any come."""

FORWARD_BUSY_S: Final = 0.05
"""Seconds since the last request after which a worker counts as having nothing better to do."""

ROUTER_MAX_HOPS: Final = 8
"""Routers with `allow_cycle` that a record passes; the next one leaves it where it is."""

ROUTES_REMEMBERED_MAX: Final = 10_000
"""Routers whose progress a destination remembers; beyond it the oldest goes, which may repeat copies if it lives."""

CURSOR_TOPICS_PER_TICK: Final = 1_000
"""Topics whose routers' cursors are written down in one tick."""

ROUTER_CHANGES_WAITING_MAX: Final = 1_000
"""Changes of routers that wait for their turn at the gateway; more are answered 429."""

FENCE_TRIES: Final = 8
"""How often the gateway begins a change of routers anew because another one came in between; then it is 503."""

INSPECT_MAX_BYTES: Final = 1 * MiB
"""Bytes of records or log that one answer to an inspection looks at; the rest is for the next page."""

# --- backups ----------------------------------------------------------------------------------

BACKUP_HOLD_MAX_S: Final = 1.0
"""Seconds that a shard writes nothing because a backup asked for it; then it goes on, and the backup starts anew."""

RESTORE_SEQ_GAP: Final = 1_000_000_000_000
"""Seqs that a restored topic leaves out behind its last record, so that none that was given out after the backup is
given out again. Eleven days of a million records per second."""

ARCHIVE_RETRY_MAX_S: Final = 30.0
"""Seconds between two attempts to reach the archive, at the most."""
