//! Host names that the server accepts.
//!
//! A web page of another site can make its own host name resolve to 127.0.0.1 and then read the responses of this
//! server (DNS rebinding). Such requests carry that name in the `Host` header. So the server answers only requests for
//! IP addresses, `localhost`, the names of this machine and the configured names. The names of this machine are its
//! host name, alone and with the domains in `/etc/hosts` and `/etc/resolv.conf`. A name that merely begins with the
//! host name is rejected, because it may belong to another site.

use axum::http::uri::Authority;
use axum::http::{HeaderMap, Uri, header};
use daq_core::config::Problem;
use std::net::Ipv6Addr;

/// Returns the first host name in a request that the server does not accept; `None` if it accepts all names.
///
/// A request without a host name is accepted, because browsers always send a host name.
pub(super) fn refused(uri: &Uri, headers: &HeaderMap, hosts: &[String]) -> Option<String> {
    let in_headers = headers.get_all(header::HOST).iter();
    let in_headers = in_headers.map(|value| String::from_utf8_lossy(value.as_bytes()));
    let in_uri = uri.authority().map(|authority| authority.as_str().into());
    in_uri
        .into_iter()
        .chain(in_headers)
        .find(|name| !is_accepted(name, hosts))
        .map(std::borrow::Cow::into_owned)
}

/// Returns the names of this machine.
pub(super) fn own_names() -> Vec<String> {
    let uname = rustix::system::uname();
    let name = uname.nodename().to_string_lossy();
    let read = |file| std::fs::read_to_string(file).unwrap_or_default();
    names_of(&name, &read("/etc/hosts"), &read("/etc/resolv.conf"))
}

/// Returns the names of the machine with the host name `name`, derived from the texts of `/etc/hosts` and
/// `/etc/resolv.conf`.
fn names_of(name: &str, hosts: &str, resolv: &str) -> Vec<String> {
    let (short, domain) = name.split_once('.').unwrap_or((name, ""));
    // Linux reports "(none)" if the machine has no host name.
    if short.is_empty() || short == "(none)" {
        return Vec::new();
    }
    let full = |domain: &str| match domain.trim_matches('.') {
        "" => short.to_owned(),
        domain => format!("{short}.{domain}"),
    };
    let mut names = vec![short.to_owned(), full(domain)];
    let words = |line: &str| -> Vec<String> {
        let line = line.split('#').next().unwrap_or_default();
        line.split_whitespace().map(str::to_owned).collect()
    };
    for words in hosts.lines().map(words) {
        let own = words.iter().skip(1);
        names.extend(
            own.filter(|word| word.split('.').next() == Some(short))
                .cloned(),
        );
    }
    for words in resolv.lines().map(words) {
        if let Some(("search" | "domain", domains)) = words
            .split_first()
            .map(|(first, rest)| (first.as_str(), rest))
        {
            names.extend(domains.iter().map(|domain| full(domain)));
        }
    }
    names.sort_unstable();
    names.dedup();
    names
}

/// Returns one problem for each configured host name that no request can match.
pub(super) fn problems(hosts: &[String]) -> Vec<Problem> {
    let is_name = |name: &str| {
        let is_in_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
        !name.is_empty() && name.bytes().all(is_in_name)
    };
    let problem = |name: &String| {
        Problem::at("hosts", format!("{name:?} is not a host name"))
            .help("write names without scheme, port and path, such as \"daq.lab.example\"")
    };
    let wrong = hosts.iter().filter(|name| !is_name(name));
    wrong.map(problem).collect()
}

/// Whether `name`, with or without a port, is a host name of this server.
fn is_accepted(name: &str, hosts: &[String]) -> bool {
    let Ok(authority) = name.parse::<Authority>() else {
        return false;
    };
    let host = authority.host();
    if let Some(address) = host.strip_prefix('[') {
        let address = address.strip_suffix(']');
        return address.is_some_and(|address| address.parse::<Ipv6Addr>().is_ok());
    }
    let host = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
    host.parse::<std::net::Ipv4Addr>().is_ok()
        || host == "localhost"
        || host.ends_with(".localhost")
        || hosts
            .iter()
            .any(|known| known.trim_end_matches('.').eq_ignore_ascii_case(&host))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_host_names_are_rejected() {
        let hosts = ["daq.lab.example".to_owned(), "Rooted.example.".to_owned()];
        for accepted in [
            "localhost",
            "LocalHost:9464",
            "page.localhost",
            "127.0.0.1:9464",
            "10.0.0.7",
            "[::1]:9464",
            "[fe80::1]",
            "daq.lab.example:80",
            "DAQ.lab.example.",
            "rooted.example:9464",
        ] {
            assert!(is_accepted(accepted, &hosts), "{accepted}");
        }
        for refused in [
            "",
            "rebind.example",
            "localhost.rebind.example",
            "127.0.0.1.rebind.example:9464",
            "xdaq.lab.example",
            "[rebind.example]",
            "a b",
        ] {
            assert!(!is_accepted(refused, &hosts), "{refused}");
        }
    }

    #[test]
    fn host_names_include_domains_of_local_files() {
        let hosts = "127.0.0.1 localhost\n127.0.1.1 daq1.lab.example daq1 # daq1.no.example\n10.0.0.9 daq2.lab.example\n";
        let resolv = "nameserver 10.0.0.1\nsearch site.example beam.example.\n";
        assert_eq!(
            names_of("daq1", hosts, resolv),
            [
                "daq1",
                "daq1.beam.example",
                "daq1.lab.example",
                "daq1.site.example"
            ]
        );
        assert_eq!(
            names_of("daq1.lab.example", "", ""),
            ["daq1", "daq1.lab.example"]
        );
        assert_eq!(names_of("(none)", hosts, resolv), [""; 0]);
        let own = names_of("daq1", "", resolv);
        assert!(is_accepted("DAQ1:9464", &own) && is_accepted("daq1.site.example", &own));
        assert!(!is_accepted("daq1.rebind.example", &own));
        assert!(
            own_names()
                .iter()
                .all(|name| is_accepted(name, &own_names()))
        );
    }

    #[test]
    fn configured_host_with_scheme_port_or_path_is_rejected() {
        let found = |name: &str| problems(&[name.to_owned()]).len();
        for name in ["daq.lab.example", "DAQ-1.lab.example.", "localhost"] {
            assert_eq!(found(name), 0, "{name}");
        }
        for name in ["", "daq:9464", "http://daq", "daq/metrics", "*.lab.example"] {
            assert_eq!(found(name), 1, "{name}");
        }
    }
}
