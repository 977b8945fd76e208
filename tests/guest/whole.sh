# Shell functions for cases with two daemons, a sender and a receiver. Include them with `. tests/guest/whole.sh`; cases
# run in the repository root.
. tests/guest/lib.sh
# Bytes per frame. The next variable is the number of frames of a complete run.
frame=512
frames=20000

# Prints the numbers of the JSON document on stdin, one per line, as PATH NUMBER, for example `sources.link.delivered
# 7`.
numbers() {
    grep -oE '"([^"\\]|\\.)*"|[][{}:,]|[^][{}:," ]+' | awk '
        function path(  i, all) { for (i = 1; i <= depth; i++) all = all (i > 1 ? "." : "") key[i]; return all }
        $0 == "{" || $0 == "[" { depth++; key[depth] = ($0 == "[") ? 0 : ""; list[depth] = ($0 == "["); next }
        $0 == "}" || $0 == "]" { depth--; next }
        $0 == "," { if (list[depth]) key[depth]++; next }
        $0 == ":" { if (!list[depth]) key[depth] = last; next }
        /^"/ { last = substr($0, 2, length($0) - 2); next }
        /^-?[0-9]/ { print path(), $0 }'
}

# count FOLDER PATH: prints one number of a final report; 0 if it is absent.
count() {
    numbers <"$1/report" | awk -v path="$2" '$1 == path { found = $2 } END { print found + 0 }'
}

# now FOLDER PATH: prints one number of the status of a running daemon.
now() {
    "$DAQ_GUEST_KERNEL/bin/busybox" wget -q -O - "http://$(<"$1/http")/status" 2>/dev/null | numbers |
        awk -v path="report.$2" '$1 == path { found = $2 } END { print found + 0 }'
}

# add_up FOLDER: prints every ledger equation that a final report violates. Returns 1 if there is one.
add_up() {
    numbers <"$1/report" | awk '
        function wrong(why) { print why; bad = 1 }
        { any = 1; n = split($1, key, "."); name = key[1] "." key[2]; names[name] = key[1]; at[name "." key[3]] += $2 }
        n == 4 { split_up[name "." key[3]] += $2 }
        END {
            if (!any) wrong("there is no report")
            for (name in names) {
                part = names[name]; own = name "."
                if (part == "sources" && at[own "expected"] != at[own "delivered"] + at[own "pending"] + at[own "lost"])
                    wrong(name ": what was expected is not what was delivered and lost")
                if (part == "rings" && at[own "produced"] != at[own "published"] + at[own "ring_full"])
                    wrong(name ": what was made is not what was published and dropped")
                if (part == "readers" && at[own "published"] != at[own "read"] + at[own "overrun"] + at[own "discarded"])
                    wrong(name ": what was published is not what was read, overrun and discarded")
                if (at[own "pending"] != 0) wrong(name ": " at[own "pending"] " are pending at the end")
                if (part == "sinks") {
                    reader = "readers." substr(name, 7) "."
                    if (at[own "frames"] + at[own "dropped"] != at[reader "read"] + at[reader "discarded"])
                        wrong(name ": what was read is not what was written and dropped")
                }
            }
            exit bad
        }'
}

# far FOLDER LISTEN HTTP KEYS: writes the configuration of a receiver.
far() {
    mkdir -p "$1"
    echo "$3" >"$1/http"
    cat >"$1/daq.toml" <<TOML
[source.link]
driver = "stream"
transport = "rdma"
ring = "raw"
listen = "$2"
nics = ["rxe0"]
packets_per_frame = 8
$4
[ring.raw]
slot = $frame
slots = 128
[sink.disk]
driver = "file"
input = "raw"
guarantee = true
path = "out"
buffer = "64 KiB"
[http]
listen = "$3"
TOML
}

# near FOLDER TO FRAMES PACE KEYS: writes the configuration of a sender. FRAMES is the number of frames, or `endless`.
near() {
    mkdir -p "$1"
    cat >"$1/daq.toml" <<TOML
$(counting "$3" "$4")
[sink.far]
driver = "stream"
transport = "rdma"
input = "raw"
to = "$2"
nics = ["rxe0"]
guarantee = true
$5
TOML
}
counting() {
    cat <<TOML
[source.adc]
driver = "sim"
ring = "raw"
pattern = "counter"
packet = 64
backpressure = true
$([ "$1" = endless ] || echo "frames = $1")
pace = "$2"
[ring.raw]
slot = $frame
slots = 128
TOML
}

# run FOLDER: replaces this shell by the run of a folder. Use it in a background subshell.
run() {
    cd "$1" && exec "$DAQ_BIN/daq" run daq.toml --report json >report 2>>log
}

# await WHAT COMMAND...: waits until a command succeeds, at most four minutes or `timeout` seconds. On a busy machine, the
# timers of soft-RoCE need more than one minute.
await() {
    local what=$1 end=$((SECONDS + ${timeout:-240}))
    shift
    until "$@"; do
        if [ $SECONDS -ge $end ]; then
            echo "FAIL waiting for $what: timed out after ${timeout:-240} s"
            tail -n 12 "$work"/*/log
            return 1
        fi
        sleep 0.1
    done
}
has_come() { [ "$(now "$1" sources.link.delivered)" -ge "$2" ]; }
listens() { grep -qs 'serving http' "$1/log"; }
logged() { [ "$(grep -c "$2" "$1/log")" -ge "${3:-1}" ]; }

# alone FRAMES FILE: writes the frames of a run without a network to a file.
alone() {
    mkdir -p /tmp/alone
    printf '%s\n[sink.disk]\ndriver = "file"\ninput = "raw"\nguarantee = true\npath = "out"\n' \
        "$(counting "$1" free)" >/tmp/alone/daq.toml
    (run /tmp/alone) || { tail -n 5 /tmp/alone/log; return 1; }
    cat /tmp/alone/out/*.sigmf-data >"$2"
    rm -r /tmp/alone
}

# Writes all data that is sent to /tmp/reference, and compares it with a known checksum. The data consists of 64-bit
# little-endian words that count from 0 to frames * frame / 8.
reference() {
    alone $frames /tmp/reference || return 1
    echo "e69ecaafd3ecf1b2d01121cc37bfbc6ff9f8641081fe6180d9998bdffae8ceed  /tmp/reference" | sha256sum -c --quiet
}

# Prints the data that a receiver has written, including the file that it has not closed.
written() { cat "$1"/out/*.sigmf-data* 2>/dev/null; }

# Creates a soft-RoCE NIC on a dummy interface with address $address, and the reference data. If this fails, the case
# ends.
address=10.79.0.1
bed() {
    modprobe dummy && ip link add d0 type dummy && ip link set d0 mtu 4300 up && ip address add $address/24 dev d0
    soft_roce rxe0 d0 || { echo "FAIL card: soft-RoCE is not available"; exit 0; }
    reference || { echo "FAIL reference: sim does not produce the counter pattern"; exit 0; }
}
remove_bed() {
    rdma link delete rxe0
    ip link delete d0
}

# start CONNECTION MODE PACE [FRAMES]: starts a receiver, then a sender in $work. Sets far_pid and near_pid.
start() {
    keys="connection = \"$1\"
mode = \"$2\""
    far "$work/far" $address:7471 127.0.0.1:7480 "$keys"
    near "$work/near" $address:7471 "${4:-$frames}" "$3" "$keys"
    run "$work/far" &
    far_pid=$!
    await "a receiver" listens "$work/far"
    run "$work/near" &
    near_pid=$!
}
is_running() { kill -0 "$1" 2>/dev/null; }

# finish NAME: waits for the sender to end, then stops the receiver.
finish() {
    local status
    wait $near_pid
    status=$?
    check "$1-ended" "status $status" [ $status = 0 ]
    kill -INT $far_pid
    wait $far_pid
    status=$?
    check "$1-stopped" "status $status" [ $status = 0 ]
}

# check NAME WHY COMMAND...: prints the result of a check, and the end of both logs if the check failed.
check() {
    local name=$1 why=$2
    shift 2
    if "$@"; then
        echo "ok $name"
    else
        echo "FAIL $name: $why"
        tail -n 12 "$work"/*/log
        grep -H . "$work"/*/report
    fi
}

# checks NAME: checks a run without loss. Every frame must be sent once, received once and be unchanged.
checks() {
    local sent come
    sent=$(count "$work/near" sinks.far.frames) come=$(count "$work/far" sources.link.delivered)
    check "$1-sent" "$sent of $frames frames" [ "$sent/$(count "$work/near" sinks.far.dropped)" = "$frames/0" ]
    check "$1-come" "$come of $(count "$work/far" sources.link.expected) expected" \
        [ "$come/$(count "$work/far" sources.link.expected)/$(count "$work/far" sources.link.duplicates)" = "$frames/$frames/0" ]
    check "$1-accounted" "a ledger equation does not hold" accounted
    check "$1-content" "received bytes differ from sent bytes" same
}
same() { written "$work/far" | cmp - /tmp/reference; }
accounted() { add_up "$work/near" && add_up "$work/far"; }

# Creates one soft-RoCE NIC in each of two guests. If this fails, the case ends.
two_beds() {
    await_peer || { echo "FAIL peer: the second guest does not reply"; exit 0; }
    [ -e /sys/class/infiniband/rxe0 ] || soft_roce rxe0 eth0 || { echo "FAIL card: soft-RoCE is not available"; exit 0; }
    on_peer '. tests/guest/lib.sh; [ -e /sys/class/infiniband/rxe0 ] || soft_roce rxe0 eth0 && echo up' | grep -q up ||
        { echo "FAIL card: the second guest has no soft-RoCE NIC"; exit 0; }
    reference || { echo "FAIL reference: sim does not produce the counter pattern"; exit 0; }
}
on_peer_bash() { on_peer "bash -c '. tests/guest/whole.sh; $1'"; }

# begin CONNECTION MODE PACE: starts the receiver in this guest and the sender in the second one.
begin() {
    keys="connection = \"$1\"
mode = \"$2\""
    work=/tmp/two-$1-$2
    far "$work/far" 10.77.0.1:7471 127.0.0.1:7480 "$keys"
    mkdir -p "$work/near"
    run "$work/far" &
    far_pid=$!
    await "a receiver" listens "$work/far"
    on_peer_bash "near $work/near 10.77.0.1:7471 $frames \"$3\" \"connection = \\\"$1\\\"
mode = \\\"$2\\\"\"; ( (run $work/near); echo \$? >$work/near/status ) >/dev/null 2>&1 &"
}
has_ended() { [ -n "$(on_peer "cat $work/near/status 2>/dev/null")" ]; }
has_links() { [ "$(now "$work/far" sources.link.counts.links)" -ge "$1" ]; }
is_done() { [ "$(now "$work/far" sources.link.delivered)" -ge $frames ]; }
# Waits for both daemons to end, and copies the sender's report to this guest.
end() {
    local status
    await "the last frame" is_done
    await "the sender's end" has_ended
    status=$(on_peer "cat $work/near/status")
    on_peer "cat $work/near/report" >"$work/near/report"
    on_peer "cat $work/near/log" >"$work/near/log"
    check "$1-ended" "status $status" [ "$status" = 0 ]
    kill -INT $far_pid
    wait $far_pid
    status=$?
    check "$1-stopped" "status $status" [ $status = 0 ]
    checks "$1"
    echo "$1: $(count "$work/far" sources.link.delivered) frames over $(count "$work/near" sinks.far.connections) connections"
    rm -r "$work"
}
