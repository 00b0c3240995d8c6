//! How a connection is accepted and made. TLS and tokens belong here and nowhere else.

use crate::framing::{Carrier, Incoming, Outgoing};
use futures_util::Stream;
use phalanx_cluster::Address;
use std::{
    io,
    net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, ToSocketAddrs},
    time::Duration,
};
use tonic::{
    Status,
    body::Body,
    codegen::{Service, http},
    metadata::GRPC_CONTENT_TYPE,
    transport::{Channel, Endpoint, Server, server::TcpIncoming},
};

/// A whole piece and more may be under way before the other side must say that it has read it.
const WINDOW_BYTES: u32 = 16 << 20;
/// Fewer, larger frames than HTTP/2's default of 16 kB.
const FRAME_BYTES: u32 = 1 << 20;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The kernel, not our event loop, finds out that a machine is gone: it answers while a worker computes.
const KEEPALIVE: Duration = Duration::from_secs(10);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_RETRIES: u32 = 3;

/// Why a task cannot listen.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Others could reach the port, and nothing protects it.
    #[error(
        "{0} is not known to be a loopback address, and without TLS and a token anyone who reaches the port could read \
         and change the parameters; pass --insecure if the network itself is trusted"
    )]
    Insecure(Address),
    /// The port is taken.
    #[error("port {} is in use (by another task?): cannot listen on {address}", .address.port())]
    InUse {
        /// Where it was to listen.
        address: Address,
    },
    /// Something else.
    #[error("cannot listen on {address}: {source}")]
    Other {
        /// Where it was to listen.
        address: Address,
        /// What the system said.
        source: io::Error,
    },
}

/// Binds the port of `address`: on loopback if that is where the address is, else on all interfaces, since
/// the name by which others reach a container or a virtual machine is often not one of its own.
pub fn listen(address: &Address, insecure: bool) -> Result<TcpListener, ListenError> {
    let resolved = (address.host(), address.port()).to_socket_addrs().map(Vec::from_iter).unwrap_or_default();
    let loopback: Vec<_> = resolved.iter().copied().filter(|to| to.ip().is_loopback()).collect();
    let candidates = if !loopback.is_empty() && loopback.len() == resolved.len() {
        loopback
    } else if insecure {
        let any = |ip: IpAddr| SocketAddr::new(ip, address.port());
        vec![any(Ipv6Addr::UNSPECIFIED.into()), any(std::net::Ipv4Addr::UNSPECIFIED.into())]
    } else {
        return Err(ListenError::Insecure(address.clone()));
    };
    let mut failure = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for candidate in candidates {
        match TcpListener::bind(candidate) {
            Ok(listener) => return Ok(listener),
            // The same name with another address is not another port.
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                return Err(ListenError::InUse { address: address.clone() });
            }
            Err(error) => failure = error,
        }
    }
    Err(ListenError::Other { address: address.clone(), source: failure })
}

/// The connections of a listener, as the server wants them.
pub(crate) fn incoming(listener: TcpListener) -> io::Result<TcpIncoming> {
    listener.set_nonblocking(true)?;
    let listener = tokio::net::TcpListener::from_std(listener)?;
    Ok(TcpIncoming::from(listener)
        .with_nodelay(Some(true))
        .with_keepalive(Some(KEEPALIVE))
        .with_keepalive_interval(Some(KEEPALIVE_INTERVAL))
        .with_keepalive_retries(Some(KEEPALIVE_RETRIES)))
}

/// A server with nothing on it yet.
pub(crate) fn server() -> Server {
    Server::builder()
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(4 * WINDOW_BYTES)
        .max_frame_size(FRAME_BYTES)
}

/// Connects to a task; the error is a reason for people, and always one that may pass.
pub(crate) async fn connect(address: &Address) -> Result<Channel, String> {
    // Looked up here, and not only by the connector, to tell a missing name from a refused connection.
    let _addresses = tokio::net::lookup_host((address.host(), address.port()))
        .await
        .map_err(|_| format!("the name '{}' does not resolve (yet)", address.host()))?;
    let endpoint = Endpoint::from_shared(format!("http://{address}")).map_err(|error| error.to_string())?;
    endpoint
        .connect_timeout(CONNECT_TIMEOUT)
        .tcp_nodelay(true)
        .tcp_keepalive(Some(KEEPALIVE))
        .tcp_keepalive_interval(Some(KEEPALIVE_INTERVAL))
        .tcp_keepalive_retries(Some(KEEPALIVE_RETRIES))
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(4 * WINDOW_BYTES)
        .max_frame_size(FRAME_BYTES)
        .connect()
        .await
        .map_err(|error| root_cause(&error))
}

/// Opens a stream of messages both ways.
pub(crate) async fn call<M, R>(
    mut channel: Channel,
    path: &'static str,
    messages: impl Stream<Item = Result<M, Status>> + Send + 'static,
) -> Result<Incoming<R>, Status>
where
    M: Carrier + 'static,
    R: prost::Message + Default,
{
    let lost = |error: tonic::transport::Error| Status::unavailable(root_cause(&error));
    let mut request = http::Request::new(Body::new(Outgoing::of_client(messages)));
    *request.method_mut() = http::Method::POST;
    *request.uri_mut() = http::Uri::from_static(path);
    *request.version_mut() = http::Version::HTTP_2;
    request.headers_mut().insert(http::header::CONTENT_TYPE, GRPC_CONTENT_TYPE);
    request.headers_mut().insert(http::header::TE, http::HeaderValue::from_static("trailers"));
    std::future::poll_fn(|context| channel.poll_ready(context)).await.map_err(lost)?;
    let response = channel.call(request).await.map_err(lost)?;
    // A call that is refused as a whole has its status in the head of the reply.
    match Status::from_header_map(response.headers()).filter(|status| status.code() != tonic::Code::Ok) {
        Some(status) => Err(status),
        None if response.status() != http::StatusCode::OK => {
            Err(Status::unimplemented(format!("the answer is HTTP {}", response.status())))
        }
        None => Ok(Incoming::new(response.into_body())),
    }
}

/// The innermost error, which says what really happened.
pub(crate) fn root_cause(error: &(dyn std::error::Error + 'static)) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    match error.downcast_ref::<io::Error>().map(io::Error::kind) {
        Some(io::ErrorKind::ConnectionRefused) => "connection refused, nobody listens there (yet)".into(),
        Some(io::ErrorKind::TimedOut) => "no answer, the connection timed out".into(),
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> Address {
        text.parse().unwrap()
    }

    #[test]
    fn beyond_loopback_only_on_request() {
        for text in ["0.0.0.0:1", "192.0.2.1:1", "no-such-host.invalid:1", "[::]:1"] {
            let error = listen(&address(text), false).unwrap_err().to_string();
            assert!(error.contains(text) && error.contains("--insecure"), "{error}");
        }
    }

    #[test]
    fn a_port_in_use_is_named() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = taken.local_addr().unwrap().port();
        for insecure in [false, true] {
            let error = listen(&address(&format!("127.0.0.1:{port}")), insecure).unwrap_err().to_string();
            assert!(error.contains(&format!("port {port} is in use")), "{error}");
        }
    }
}
