//! The configuration keys that the sink and the source share: servers, login and encryption.

use crate::NatsError;
use daq_core::check::{FileUse, NamedFile};
use daq_core::config::{List, Listed, Problem};
use schemars::JsonSchema;
use serde::Deserialize;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// The port of NATS servers.
const PORT: u16 = 4222;

/// Host and port of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// Host name or IP address; IPv6 addresses are in brackets.
    pub host: String,
    /// TCP port.
    pub port: u16,
}

impl FromStr for Server {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong =
            || format!("\"{text}\" is not a server; try \"127.0.0.1:{PORT}\" or \"nats.example\"");
        let (host, port) = match text.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => {
                let port = port.parse::<u16>().ok().filter(|port| *port > 0);
                (host, port.ok_or_else(wrong)?)
            }
            _ => (text, PORT),
        };
        let is_bracketed = host.starts_with('[') && host.ends_with(']');
        let has_wrong_character = host
            .chars()
            .any(|c| c.is_whitespace() || "/@?#".contains(c));
        if host.is_empty() || has_wrong_character || (host.contains(':') && !is_bracketed) {
            return Err(wrong());
        }
        Ok(Self {
            host: host.to_owned(),
            port,
        })
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

impl Server {
    /// Whether the server is on this host.
    pub fn is_local(&self) -> bool {
        ["127.0.0.1", "localhost", "[::1]"].contains(&self.host.as_str())
    }
}

impl Listed for Server {
    const NAME: &'static str = "Servers";
    const WHAT: &'static str = "a server such as \"127.0.0.1:4222\"";
    const EXAMPLES: [&'static str; 2] = ["127.0.0.1:4222", "nats.example:4222"];
}

/// Returns the default servers: one on this host.
pub fn default_servers() -> List<Server> {
    List(vec![Server {
        host: "127.0.0.1".to_owned(),
        port: PORT,
    }])
}

/// How daq logs in to the servers. Secrets are in files that only daq can read; a file may contain an end of line.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Login {
    /// User name; needs `password_file`.
    pub user: Option<String>,
    /// A file that contains the password of `user`.
    pub password_file: Option<PathBuf>,
    /// A file that contains a token.
    pub token_file: Option<PathBuf>,
    /// A credentials file (JWT and seed), as `nsc generate creds` writes it.
    pub credentials_file: Option<PathBuf>,
}

/// Encryption of the connection.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Tls {
    /// A file with the certificates (PEM) that sign the server's certificate. By default, those of the system.
    pub ca_file: Option<PathBuf>,
    /// A file with daq's own certificate (PEM), for servers that verify clients; needs `key_file`.
    pub certificate_file: Option<PathBuf>,
    /// A file with the private key (PEM) of `certificate_file`.
    pub key_file: Option<PathBuf>,
}

/// Where and how to connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connection {
    /// The servers; with several servers of a cluster, the client connects to one of them.
    pub servers: Vec<Server>,
    /// How to log in.
    pub login: Login,
    /// Encryption; `None` for connections without it.
    pub tls: Option<Tls>,
    /// The base directory of relative paths.
    pub directory: PathBuf,
}

/// A secret that the client sends.
#[derive(Clone, PartialEq, Eq)]
pub enum Secret {
    /// No login.
    None,
    /// User and password.
    Password(String, String),
    /// A token.
    Token(String),
    /// The content of a credentials file.
    Credentials(String),
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

impl Login {
    /// Returns every problem of the keys.
    pub fn problems(&self) -> Vec<Problem> {
        let ways = [
            self.user.is_some() || self.password_file.is_some(),
            self.token_file.is_some(),
            self.credentials_file.is_some(),
        ];
        let mut problems = Vec::new();
        if ways.iter().filter(|way| **way).count() > 1 {
            let message = "`user`, `token_file` and `credentials_file` cannot be combined";
            problems.push(Problem::at("login", message).help("keep one of them"));
        }
        if self.user.is_some() != self.password_file.is_some() {
            let message = "`user` and `password_file` belong together";
            problems.push(Problem::at("login", message).help("set both, or none of them"));
        }
        problems
    }

    fn files(&self) -> [(&'static str, Option<&PathBuf>); 3] {
        [
            ("login.password_file", self.password_file.as_ref()),
            ("login.token_file", self.token_file.as_ref()),
            ("login.credentials_file", self.credentials_file.as_ref()),
        ]
    }

    /// Reads the secret.
    pub fn read(&self, directory: &Path) -> Result<Secret, NatsError> {
        let read = |key: &str, file: &Path| {
            let path = directory.join(file);
            let what = || format!("{key} {}", path.display());
            let bytes = read_file(key, &path)?;
            let text = String::from_utf8(bytes)
                .map_err(|_| NatsError::configuration(what(), "the file must contain text"))?;
            match text.trim() {
                "" => Err(NatsError::configuration(
                    what(),
                    "the file is empty; write the secret into it",
                )),
                secret => Ok(secret.to_owned()),
            }
        };
        Ok(match self {
            Self {
                user: Some(user),
                password_file: Some(file),
                ..
            } => Secret::Password(user.clone(), read("login.password_file", file)?),
            Self {
                token_file: Some(file),
                ..
            } => Secret::Token(read("login.token_file", file)?),
            Self {
                credentials_file: Some(file),
                ..
            // The client requires an end of the last line.
            } => Secret::Credentials(read("login.credentials_file", file)? + "\n"),
            _ => Secret::None,
        })
    }
}

impl Tls {
    /// Checks that the files can be read, because errors of the client do not name them.
    pub fn check(&self, directory: &Path) -> Result<(), NatsError> {
        for (key, file) in self.files() {
            let Some(file) = file else { continue };
            read_file(key, &directory.join(file))?;
        }
        Ok(())
    }

    /// Returns whether a key names a file.
    pub fn names_file(&self) -> bool {
        self.files().iter().any(|(_, file)| file.is_some())
    }

    fn files(&self) -> [(&'static str, Option<&PathBuf>); 3] {
        [
            ("tls.ca_file", self.ca_file.as_ref()),
            ("tls.certificate_file", self.certificate_file.as_ref()),
            ("tls.key_file", self.key_file.as_ref()),
        ]
    }
}

/// Reads the file `path`, which `key` names.
fn read_file(key: &str, path: &Path) -> Result<Vec<u8>, NatsError> {
    daq_core::file::read(path).map_err(|error| NatsError {
        is_configuration: daq_core::file::is_configuration(&error),
        ..NatsError::new(format!("{key} {}", path.display()), error.to_string())
    })
}

/// Returns every problem of the keys `servers`, `login` and `tls`.
pub fn problems(servers: &List<Server>, login: &Login, tls: Option<&Tls>) -> Vec<Problem> {
    let mut problems = login.problems();
    if servers.0.is_empty() {
        let message = "`servers` must name at least one server";
        problems.push(Problem::at("servers", message).help("try servers = \"127.0.0.1:4222\""));
    }
    if let Some(tls) = tls
        && tls.certificate_file.is_some() != tls.key_file.is_some()
    {
        let message = "`certificate_file` and `key_file` belong together";
        problems.push(Problem::at("tls", message).help("set both, or none of them"));
    }
    problems
}

/// Returns the files that the keys name.
pub fn files(login: &Login, tls: Option<&Tls>) -> Vec<NamedFile> {
    let tls = tls.map(Tls::files).into_iter().flatten();
    let all = login.files().into_iter().chain(tls);
    all.filter_map(|(key, file)| Some(NamedFile::new(key, file?, FileUse::Reads)))
        .collect()
}

/// Returns what the plan should show about the connection.
pub fn notes(servers: &List<Server>, login: &Login, tls: Option<&Tls>) -> Vec<String> {
    let mut notes = Vec::new();
    let has_login = *login != Login::default();
    if has_login && tls.is_none() && servers.0.iter().any(|server| !server.is_local()) {
        notes.push(
            "the login is sent unencrypted; set `tls` if others can read this network".to_owned(),
        );
    }
    if !crate::HAS_CLIENT {
        notes.push(NatsError::no_client().why);
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_have_a_default_port() {
        for (text, shown) in [
            ("nats.example", "nats.example:4222"),
            ("127.0.0.1:5222", "127.0.0.1:5222"),
            ("[::1]", "[::1]:4222"),
            ("[::1]:7", "[::1]:7"),
        ] {
            assert_eq!(
                text.parse::<Server>().map(|server| server.to_string()),
                Ok(shown.to_owned())
            );
        }
        for wrong in [
            "",
            ":4222",
            "host:0",
            "host:x",
            "::1",
            "nats://host:4222",
            "user@host",
        ] {
            assert!(wrong.parse::<Server>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn secrets_are_read_from_files_and_never_shown() {
        let directory = std::env::temp_dir();
        let name = format!("daq-nats-secret-{}", std::process::id());
        std::fs::write(directory.join(&name), "s3cret\n").unwrap();
        let login = Login {
            user: Some("daq".to_owned()),
            password_file: Some(name.clone().into()),
            ..Login::default()
        };
        let secret = login.read(&directory).unwrap();
        assert_eq!(
            secret,
            Secret::Password("daq".to_owned(), "s3cret".to_owned())
        );
        assert!(!format!("{secret:?}").contains("s3cret"));
        std::fs::remove_file(directory.join(&name)).unwrap();
        let error = login.read(&directory).unwrap_err();
        assert!(error.is_configuration);
        let error = error.to_string();
        assert!(
            error.contains("login.password_file") && error.contains(&name),
            "{error}"
        );
        let both = Login {
            token_file: Some("t".into()),
            ..login
        };
        assert_eq!(both.problems().len(), 1);
    }
}
