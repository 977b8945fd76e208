//! Tokens, credentials and TLS, with servers that require them.

use super::errors::{CONFIGURATION, UNAVAILABLE};
use super::server::{Server, nats, sink_config, source_config};
use daq_testkit::{Daq, assert_contains, assert_counts, program, skip};
use data_encoding::BASE64URL_NOPAD;
use nkeys::KeyPair;
use serde_json::{Value, json};
use std::io::Write;
use std::path::Path;
use std::process::Command;

const FRAMES: u64 = 3;

/// Publishes frames with the sink and receives them with the source, both with the further keys `keys`.
fn exchange(server: &Server, keys: &str, files: &[(&str, &str)]) {
    let sender = Daq::new(&sink_config(server.port, "events", keys));
    let receiver = Daq::new(&source_config(server.port, keys));
    for (name, text) in files {
        sender.write(name, text);
        receiver.write(name, text);
    }
    let frames = format!("source.adc.frames={FRAMES}");
    let sent = sender.run(&["--set", &frames]).ok();
    assert_counts!(sent, "sinks.tx" => acknowledged: FRAMES);
    let mut live = receiver.spawn(&[]);
    live.wait_count("sources.rx.delivered", FRAMES);
    let received = live.stop().ok();
    assert_counts!(received, "sources.rx" => delivered: FRAMES);
}

/// Returns the log of a sink with the further keys `keys` that cannot start, and checks its exit code.
fn failure(server: &Server, keys: &str, code: i32) -> String {
    let outcome = Daq::new(&sink_config(server.port, "events", keys)).run(&["--for", "5 s"]);
    assert_eq!(outcome.code, code, "{}", outcome.stderr);
    outcome.stderr
}

#[test]
fn token_is_accepted() {
    nats!();
    let server = Server::new("authorization { token: s3cret }");
    let keys = "login = { token_file = \"token\" }";
    exchange(&server, keys, &[("token", "s3cret\n")]);
}

/// Returns a JSON web token about the key `subject`, signed with `issuer`.
fn token(issuer: &KeyPair, subject: &KeyPair, nats: &Value) -> String {
    let part = |value: &Value| BASE64URL_NOPAD.encode(value.to_string().as_bytes());
    let header = json!({ "typ": "JWT", "alg": "ed25519-nkey" });
    let claims = json!({
        "iss": issuer.public_key(),
        "sub": subject.public_key(),
        "name": subject.public_key(),
        "iat": 1_700_000_000,
        "nats": nats,
    });
    let signed = format!("{}.{}", part(&header), part(&claims));
    let signature = issuer.sign(signed.as_bytes()).unwrap();
    format!("{signed}.{}", BASE64URL_NOPAD.encode(&signature))
}

/// Returns lines for the configuration of a server that trusts an operator, and the credentials of a user.
fn operator_and_credentials() -> (String, String) {
    let (operator, user) = (KeyPair::new_operator(), KeyPair::new_user());
    let (account, system) = (KeyPair::new_account(), KeyPair::new_account());
    let limits = json!({
        "subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "wildcards": true, "conn": -1, "leaf": -1,
    });
    let mut stores = limits.clone();
    for limit in ["mem_storage", "disk_storage", "streams", "consumer"] {
        stores[limit] = json!(-1);
    }
    let account_claims = |limits| json!({ "type": "account", "version": 2, "limits": limits });
    let user_claims =
        json!({ "type": "user", "version": 2, "subs": -1, "data": -1, "payload": -1 });
    let lines = format!(
        "operator: {}\nsystem_account: {}\nresolver: MEMORY\nresolver_preload {{\n{}: {}\n{}: {}\n}}",
        token(
            &operator,
            &operator,
            &json!({ "type": "operator", "version": 2 })
        ),
        system.public_key(),
        account.public_key(),
        token(&operator, &account, &account_claims(stores)),
        system.public_key(),
        token(&operator, &system, &account_claims(limits)),
    );
    let credentials = format!(
        "-----BEGIN NATS USER JWT-----\n{}\n------END NATS USER JWT------\n\n\
         -----BEGIN USER NKEY SEED-----\n{}\n------END USER NKEY SEED------\n",
        token(&account, &user, &user_claims),
        user.seed().unwrap(),
    );
    (lines, credentials)
}

#[test]
fn credentials_are_accepted() {
    nats!();
    let (lines, credentials) = operator_and_credentials();
    let server = Server::new(&lines);
    let keys = "login = { credentials_file = \"daq.creds\" }";
    exchange(&server, keys, &[("daq.creds", &credentials)]);
    assert_contains!(failure(&server, "", UNAVAILABLE) => "set `login`");
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(b"no credentials\n").unwrap();
    let keys = format!(
        "login = {{ credentials_file = \"{}\" }}",
        file.path().display()
    );
    assert_contains!(
        failure(&server, &keys, CONFIGURATION) =>
        "login.credentials_file",
        "nsc generate creds"
    );
}

/// Makes certificates for a server on 127.0.0.1 and for a client in `directory`: `ca.pem`, `NAME.pem` and `NAME.key`.
fn make_certificates(directory: &Path) {
    let openssl = |arguments: &str| {
        let output = Command::new("openssl")
            .args(arguments.split(' '))
            .current_dir(directory)
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
    };
    let new_key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
    openssl(&format!(
        "req -x509 {new_key} -keyout ca.key -out ca.pem -subj /CN=ca"
    ));
    std::fs::write(directory.join("names"), "subjectAltName=IP:127.0.0.1").unwrap();
    for name in ["server", "client"] {
        openssl(&format!(
            "req {new_key} -keyout {name}.key -out {name}.csr -subj /CN={name}"
        ));
        openssl(&format!(
            "x509 -req -in {name}.csr -CA ca.pem -CAkey ca.key -CAcreateserial -extfile names -out {name}.pem"
        ));
    }
}

#[test]
fn certificates_are_checked_on_both_sides() {
    nats!();
    if program("openssl").is_none() {
        skip!("no program openssl");
    }
    let directory = tempfile::tempdir().unwrap();
    make_certificates(directory.path());
    let file = |name: &str| directory.path().join(name).display().to_string();
    let server = Server::new(&format!(
        "tls {{ cert_file: \"{}\", key_file: \"{}\", ca_file: \"{}\", verify: true }}",
        file("server.pem"),
        file("server.key"),
        file("ca.pem")
    ));
    let tls = |key: &str| {
        format!(
            "tls = {{ ca_file = \"{}\", certificate_file = \"{}\", key_file = \"{}\" }}",
            file("ca.pem"),
            file("client.pem"),
            file(key)
        )
    };
    exchange(&server, &tls("client.key"), &[]);
    let ca_only = format!("tls = {{ ca_file = \"{}\" }}", file("ca.pem"));
    for (keys, fix, code) in [
        ("tls = {}".to_owned(), "set `tls.ca_file`", UNAVAILABLE),
        (String::new(), "set `tls.ca_file`", UNAVAILABLE),
        (ca_only, "set `tls.certificate_file`", UNAVAILABLE),
        (tls("absent.key"), "tls.key_file", CONFIGURATION),
        (tls("client.pem"), "must be PEM files", CONFIGURATION),
    ] {
        assert_contains!(failure(&server, &keys, code) => fix);
    }
}
