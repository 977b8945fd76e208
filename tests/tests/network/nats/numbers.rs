//! Numbers of frames that other programs and the limits of a stream put out of order, repeat or skip.

use super::server::{Server, nats, script, source_config};
use daq_testkit::{Daq, Python, assert_contains, assert_counts, python};

/// Functions of the script that publishes: `publish(run, numbers)` sends a frame of 64 bytes for each number.
const PUBLISH: &str = "\
async def publish(run, numbers, **more):
    for n in numbers:
        headers = {'Daq-Number': str(n), 'Daq-Window': '8', 'Daq-Packets': '1', **more}
        if run: headers |= {'Daq-Run': run, 'Nats-Msg-Id': f'{run}:{n}'}
        await js.publish('obs.a', bytes([n % 256]) * 64, headers=headers)
async def chunks(run, numbers, delete=()):
    for n in numbers:
        for i in range(4):
            headers = {'Daq-Run': run, 'Daq-Number': str(n), 'Daq-Window': '8', 'Daq-Length': '64', 'Daq-Packets': '1',
                       'Daq-Chunk': f'{i}/4', 'Daq-Offset': str(16 * i), 'Nats-Msg-Id': f'{run}:{n}:{i}'}
            stored = await js.publish('obs.a', bytes([n]) * 16, headers=headers)
            if n in delete: await js.delete_msg('OBS', stored.seq)
async def last(): return str((await js.stream_info('OBS')).state.last_seq)
";

/// Runs a script against `server`.
fn run(python: &Python, server: &Server, body: &str) {
    let text = script(&(PUBLISH.to_owned() + body));
    let _ = python.run(&text, &[server.port.to_string()]);
}

const CREATE: &str = "await js.add_stream(name='OBS', subjects=['obs.>'])\n";

/// Receives `frames` frames, and returns the first byte of each.
fn receive(daq: &Daq, frames: u64, publish: impl FnOnce()) -> (Vec<u8>, daq_testkit::Outcome) {
    let mut live = daq.spawn(&[]);
    live.wait_ready();
    publish();
    live.wait_count("sources.rx.delivered", frames);
    let outcome = live.stop().ok();
    let data = daq.data("out");
    (data.chunks(64).map(|frame| frame[0]).collect(), outcome)
}

/// The stream of a sink was full: the server stored frame 3 first. The source receives all frames, wherever it began.
#[test]
fn run_is_complete_in_any_stored_order() {
    nats!();
    let python = python!("nats");
    let begins = [
        ("fresh", CREATE, ""),
        (
            "purged",
            "await js.add_stream(name='OBS', subjects=['obs.>'])\nawait publish('r1', range(5))\nawait js.purge_stream('OBS')",
            "",
        ),
        (
            "new",
            "await js.add_stream(name='OBS', subjects=['obs.>'])\nawait publish('r1', range(5))",
            "begin = \"new\"",
        ),
    ];
    for (name, prepare, keys) in begins {
        for after in ["", ", **{'Daq-After': await last()}"] {
            let server = Server::new("");
            run(&python, &server, prepare);
            let daq = Daq::new(&source_config(server.port, keys));
            let (mut numbers, outcome) = receive(&daq, 6, || {
                let body = format!("await publish('r2', [3, 1, 0, 2, 4, 5]{after})");
                run(&python, &server, &body);
            });
            assert_counts!(outcome, "sources.rx" => expected: 6, delivered: 6, counts.late: 0, counts.duplicates: 0);
            if after.is_empty() {
                numbers.sort_unstable();
            }
            assert_eq!(numbers, [0, 1, 2, 3, 4, 5], "{name} {after}");
        }
    }
}

#[test]
fn resumed_source_receives_a_run_in_any_stored_order() {
    nats!();
    let python = python!("nats");
    let server = Server::new("");
    run(&python, &server, CREATE);
    let daq = Daq::new(&source_config(server.port, ""));
    let _ = receive(&daq, 4, || {
        run(&python, &server, "await publish('r1', range(4))");
    });
    let second = Daq::new(&source_config(server.port, ""));
    let (mut numbers, outcome) = receive(&second, 6, || {
        run(&python, &server, "await publish('r2', [3, 1, 0, 2, 4, 5])");
    });
    numbers.sort_unstable();
    assert_eq!(numbers, [0, 1, 2, 3, 4, 5]);
    assert_counts!(outcome, "sources.rx" => expected: 6, delivered: 6);
    // The position of the next process is that of frame 6, which is stored after frames 7 to 9.
    let third = Daq::new(&source_config(server.port, ""));
    let _ = receive(&third, 4, || {
        run(&python, &server, "await publish('r2', [7, 8, 9, 6])");
    });
    let fourth = Daq::new(&source_config(server.port, ""));
    let (numbers, outcome) = receive(&fourth, 30, || {
        run(&python, &server, "await publish('r2', range(10, 40))");
    });
    assert_eq!(numbers, (10..40).collect::<Vec<u8>>());
    assert_counts!(outcome, "sources.rx" => expected: 30, delivered: 30);
}

#[test]
fn deleted_frame_of_several_messages_is_one_loss() {
    nats!();
    let python = python!("nats");
    let server = Server::new("");
    run(
        &python,
        &server,
        &format!("{CREATE}await chunks('r1', range(4))"),
    );
    let daq = Daq::new(&source_config(server.port, ""));
    let _ = receive(&daq, 4, || {});
    run(
        &python,
        &server,
        "await chunks('r1', [4, 7, 5, 6, 8, 9], delete=[4])",
    );
    let second = Daq::new(&source_config(server.port, ""));
    let mut live = second.spawn(&[]);
    live.wait_count("sources.rx.expected", 6);
    let outcome = live.stop().ok();
    assert_counts!(outcome, "sources.rx" => expected: 6, delivered: 5, lost.expired: 1, lost.wire_gap: 0, counts.late: 0);
}

#[test]
fn repeated_numbers_of_other_programs_are_new_frames() {
    nats!();
    let python = python!("nats");
    for (run_header, epochs) in [("{}", 1), ("{'Daq-Run': 'detector'}", 2)] {
        let server = Server::new("");
        let body =
            format!("{CREATE}for _ in range(2): await publish('', range(10), **{run_header})");
        run(&python, &server, &body);
        let daq = Daq::new(&source_config(server.port, ""));
        let (numbers, outcome) = receive(&daq, 20, || {});
        let expected: Vec<u8> = (0..10).chain(0..10).collect();
        assert_eq!(numbers, expected);
        assert_counts!(outcome, "sources.rx" => expected: 20, delivered: 20, epochs: epochs, counts.duplicates: 0);
        if epochs > 1 {
            assert_contains!(outcome.stderr => "of run detector arrived before", "Set another `Daq-Run`");
        }
    }
}

#[test]
fn wrong_number_is_rejected() {
    nats!();
    let python = python!("nats");
    let server = Server::new("");
    let body = format!(
        "{CREATE}for numbers in (range(5), [2**63 - 1], range(5, 10)): await publish('r1', numbers)"
    );
    run(&python, &server, &body);
    let daq = Daq::new(&source_config(server.port, ""));
    let mut live = daq.spawn(&[]);
    live.wait_count("sources.rx.rejected", 1);
    live.wait_count("sources.rx.delivered", 10);
    let outcome = live.stop().ok();
    assert_counts!(outcome, "sources.rx" => expected: 10, delivered: 10, rejected: 1, counts.invalid: 1);
    assert_contains!(outcome.stderr => "9223372036854775807, which no second frame confirms");
}
