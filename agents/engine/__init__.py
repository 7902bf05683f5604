"""The agent of one server: sends, receives, verifies and time-stamps collective traffic.

It needs only Python 3.8 and its standard library, because it is copied to real hosts as one file
(`moefabric.agents.remote.bundle`). It runs on one epoll loop without threads.

Control: each line is a JSON object. A request `{"id": 1, "op": "hello"}` gets the reply
`{"id": 1, "ok": true, ...}` or `{"id": 1, "ok": false, "error": "..."}`. The event
`{"event": "done", ...}` reports the end of an armed collective, and `{"event": "rank", ...}` the
death or return of a rank. What programs of PyTorch ask for by the port of ranks
(`moefabric.agents.engine.rank_port`) is reported by events, too. Instants are CLOCK_MONOTONIC
nanoseconds of the agent's host, rates are payload bits per second.

Data: there is one TCP connection per peer and path. Its opener sends transfers and the other end
acknowledges them. A transfer is a header, a payload and a trailer. Payloads are slices of one
pseudo-random block that all agents know. So the sender passes pages to the kernel without copying
(sendfile), and the receiver compares every byte with the expected one (memcmp, seven times as fast
as crc32). Each chunk of 128 KiB starts at another place in the block, which follows from a seed of
sender, receiver, path, collective and sequence number. The trailer's checksum combines the crc32 of
all chunks; the checksum in the header identifies the block.

Programs (`moefabric.agents.engine.programs`) send other payloads by the same connections: messages,
whose bytes come from the memory of ranks. The receiver grants a message before it leaves, and
results are verified at the end.

Exchanges of ranks (`moefabric.agents.engine.exchanges`) send the bytes of their shared memory; the
trailer has the crc32 of all of them. A transfer that comes too early waits in its connection.

A connection may lead over a relay: the agent of another server, which receives and sends it on
(`moefabric.agents.engine.relays`). Its two ends see a connection as any other.
"""
