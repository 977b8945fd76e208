#!/usr/bin/env bash
# pyzmq 27.3.0 (libzmq 4.3.5): a full PUB socket drops messages until the subscriber has read half of the queue
#
# Guess:   the queue is full at SNDHWM + RCVHWM messages. When the subscriber reads one message, there is room for one, so a
#          subscriber that keeps up again loses only what did not fit during its pause.
# Instead: the publisher is informed about free space in steps of half the queue. With 100 + 100, the subscriber pauses for 400
#          messages and then reads one for each message sent. It loses the 200 messages that did not fit, and also about
#          100 more, although it reads as fast as they are sent. With 100 + 10 it loses about 55 more.
# Matters: a larger queue against short pauses makes the loss after a longer pause larger. A queue of a few frames limits it.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
need pyzmq==27.3.0
check <<'END'
import time

import zmq

context = zmq.Context()


def lost(send_limit, receive_limit):
    """Returns the numbers of messages lost during and after a pause of the subscriber."""
    queue = send_limit + receive_limit
    address = f"inproc://{send_limit}-{receive_limit}"
    with context.socket(zmq.PUB) as publisher, context.socket(zmq.SUB) as subscriber:
        publisher.sndhwm, subscriber.rcvhwm, subscriber.rcvtimeo = send_limit, receive_limit, 5000
        publisher.bind(address)
        subscriber.connect(address)
        subscriber.subscribe(b"")
        publisher.send(b"warm-up")  # the subscription arrives with this call at the latest
        while subscriber.poll(100):
            subscriber.recv()
        for number in range(2 * queue):
            publisher.send(b"%d" % number)
        received = []
        for number in range(2 * queue, 4 * queue):
            received.append(int(subscriber.recv()))
            time.sleep(0.003)  # libzmq checks for free space at most once per millisecond or so
            publisher.send(b"%d" % number)
        gaps = [(a + 1, b) for a, b in zip(received, received[1:]) if b != a + 1]
    ((start, end),) = gaps
    return 2 * queue - start, end - 2 * queue


print(zmq.zmq_version())
for limits in (100, 100), (100, 10):
    during, after = lost(*limits)
    queue = sum(limits)
    print(limits, "lost during the pause", during, "after it", after)
    assert abs(during - queue) <= 3 and 0.4 * queue < after < 0.6 * queue
END
