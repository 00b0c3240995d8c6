//! Public mirrors that serve the files gzipped over HTTP.

use std::io::BufReader;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ureq::Agent;
use ureq::http::Uri;
use ureq::tls::TlsConfig;

use super::Source;
use super::store::{KnownFile, Setback, Shelf};
use crate::data::gzip;

/// How long to wait for a name, and then for a connection: a machine without internet should know soon.
const CONNECT: Duration = Duration::from_secs(5);
/// How long a mirror may say nothing.
const SILENCE: Duration = Duration::from_secs(20);
/// How long one file may take in all.
const WHOLE_FILE: Duration = Duration::from_secs(600);
/// How much longer than its content a gzipped file may be; without an end to it, a stream of empty
/// blocks would keep us busy and never exceed the plain length.
const GZIP_OVERHEAD: u64 = 64 << 10;

/// One mirror, by the address of its folder.
pub(super) struct Mirror {
    address: String,
}

impl Mirror {
    pub fn new(address: &str) -> Self {
        Self { address: address.to_owned() }
    }

    fn agent(&self) -> Agent {
        // Handed to this agent alone: the process-wide default is for the program to choose, not for us.
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = Agent::config_builder()
            .tls_config(TlsConfig::builder().unversioned_rustls_crypto_provider(provider).build())
            .timeout_resolve(Some(CONNECT))
            .timeout_connect(Some(CONNECT))
            .timeout_recv_response(Some(SILENCE))
            .timeout_per_read(Some(SILENCE))
            .timeout_global(Some(WHOLE_FILE));
        if is_loopback(&self.address) {
            // The proxy of the environment cannot reach a mirror on this machine.
            config = config.proxy(None);
        }
        config.build().new_agent()
    }
}

impl Source for Mirror {
    fn name(&self) -> &str {
        &self.address
    }

    fn deliver(&self, wanted: &[&KnownFile], shelf: &Shelf) -> Result<(), Setback> {
        let agent = self.agent();
        for file in wanted {
            let url = format!("{}/{}.gz", self.address.trim_end_matches('/'), file.name);
            let setback =
                |reason: &dyn std::fmt::Display| Setback::Source(format!("{}.gz: {reason}", file.name));
            let response = agent.get(url).call().map_err(|error| setback(&error))?;
            let limit = file.length + GZIP_OVERHEAD;
            let body = response.into_body().into_with_config().limit(limit).reader();
            let mut plain = gzip::plain(BufReader::new(body)).map_err(|error| setback(&error))?;
            shelf.store(file, &mut plain.reader)?;
        }
        Ok(())
    }
}

fn is_loopback(address: &str) -> bool {
    let uri: Option<Uri> = address.parse().ok();
    let host = uri.as_ref().and_then(Uri::host).unwrap_or_default().trim_matches(['[', ']']);
    host == "localhost" || host.parse().is_ok_and(|ip: IpAddr| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mirrors_on_this_machine_are_told_from_others() {
        for address in ["http://localhost/x", "http://127.0.0.1:80/", "http://[::1]:8080"] {
            assert!(is_loopback(address), "{address}");
        }
        for address in ["https://example.org/mnist/", "http://10.0.0.1/", "not an address", ""] {
            assert!(!is_loopback(address), "{address}");
        }
    }
}
