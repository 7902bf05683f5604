"""The agent of one server: it sends, receives, verifies and time-stamps collective traffic, as its control channel says.

It needs Python 3.8 and nothing else, since it is carried to real hosts (agents/bundle.py). One epoll loop, no threads.

Control: one JSON object a line. `{"id": 1, "op": "hello"}` is answered `{"id": 1, "ok": true, ...}` or
`{"id": 1, "ok": false, "error": "..."}`; a collective armed earlier ends with `{"event": "done", ...}`.
Times are CLOCK_MONOTONIC nanoseconds of this host, rates are bits per second of payload.

Data: one TCP connection per peer and path, always written by its opener. A transfer is a header, a payload and a trailer;
the receiver answers each with an acknowledgement. Payloads are slices of a keyed pseudo-random block. So the sender hands
the kernel pages instead of copies (sendfile), and the receiver knows every byte it must see and compares all of them (memcmp,
seven times as fast as crc32). Each chunk of 128 KiB starts elsewhere in the block, by a seed that sender, receiver, path,
collective and sequence give. The trailer's checksum chains the crc32 of every chunk, in order; the header's names the block.
"""
