//! One `host:port`.

use std::{fmt, str::FromStr};

/// Where a task can be reached: a host name or IP address, and a port.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Address {
    host: String,
    port: u16,
}

/// Why a text is not an [`Address`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// Nothing between two commas.
    #[error("an address is empty; expected host:port")]
    Empty,
    /// No colon, so no port.
    #[error("'{0}' has no port; expected host:port, for example {0}:2222")]
    NoPort(String),
    /// A colon with nothing before it.
    #[error("'{0}' has no host; expected host:port")]
    NoHost(String),
    /// The port is not a number from 1 to 65535.
    #[error("'{port}' in '{text}' is not a port; expected a number from 1 to 65535")]
    BadPort {
        /// The whole address.
        text: String,
        /// What stands after the last colon.
        port: String,
    },
    /// A scheme, a space or some other character that no host name has.
    #[error("'{text}' has '{found}' in its host; expected host:port with no scheme or path")]
    BadHost {
        /// The whole address.
        text: String,
        /// The first offending character.
        found: char,
    },
}

impl Address {
    /// The host name, or the IP address without brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The port, never 0.
    pub fn port(&self) -> u16 {
        self.port
    }
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let text = text.trim();
        if text.is_empty() {
            return Err(AddressError::Empty);
        }
        let (host, port) = text.rsplit_once(':').ok_or_else(|| AddressError::NoPort(text.into()))?;
        let bad_port = || AddressError::BadPort { text: text.into(), port: port.into() };
        let port = match port.parse::<u16>() {
            Ok(number) if number > 0 => number,
            _ => return Err(bad_port()),
        };
        let bracketed = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        let allowed = |c: char| {
            c.is_alphanumeric()
                || matches!(c, '.' | '-' | '_')
                || (bracketed.is_some() && matches!(c, ':' | '%'))
        };
        let host = bracketed.unwrap_or(host);
        if host.is_empty() {
            return Err(AddressError::NoHost(text.into()));
        }
        if let Some(found) = host.chars().find(|c| !allowed(*c)) {
            return Err(AddressError::BadHost { text: text.into(), found });
        }
        Ok(Self { host: host.into(), port })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_ipv4_and_ipv6_are_read_and_written_alike() {
        for text in ["tf-ps0:2222", "10.0.0.1:1", "[::1]:65535", "machine_1.lan:80"] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        assert_eq!(" a:1 ".parse::<Address>().unwrap().to_string(), "a:1");
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, word) in [
            ("", "empty"),
            ("host", "no port"),
            (":2222", "no host"),
            ("host:", "not a port"),
            ("host:0", "not a port"),
            ("host:65536", "not a port"),
            ("host:22x", "'22x'"),
            ("http://host:80", "':'"),
            ("a b:80", "' '"),
            ("::1:80", "':'"),
        ] {
            let error = text.parse::<Address>().unwrap_err().to_string();
            assert!(error.contains(word), "{text:?} gave {error:?}");
        }
    }
}
