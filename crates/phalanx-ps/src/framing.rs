//! gRPC's framing of messages, without copies of their payload.
//!
//! On the wire this is plain gRPC, and any client or server may be at the other end. Tonic's own codecs copy
//! every message twice on each side, between the frames of HTTP/2 and a buffer of one message; for messages that
//! are a short head and some hundred kilobytes of numbers that is most of the work of a ps. Here a payload is
//! handed to HTTP/2 as it lies in memory, and what arrives is a slice of the frame it came in.

use crate::wire::{FromPs, MESSAGE_BYTES, ToPs, from_ps, to_ps};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use futures_util::Stream;
use http_body::{Body as HttpBody, Frame};
use prost::{
    Message,
    encoding::{WireType, encode_key, encode_varint, encoded_len_varint, key_len},
};
use std::{
    collections::VecDeque,
    future::poll_fn,
    marker::PhantomData,
    pin::Pin,
    task::{Context, Poll, ready},
};
use tonic::{Status, body::Body, codegen::http::HeaderMap};

/// A flag and the length, before every message.
const PREFIX: usize = 5;

/// A message that may carry a payload in the last place of one of its kinds.
pub(crate) trait Carrier: Message + Default {
    /// Takes the payload out of the message.
    fn take_payload(&mut self) -> Option<Payload>;
}

/// A payload, and what stands before it.
pub(crate) struct Payload {
    /// The field of the message that has it.
    kind: u32,
    /// That field's content without the payload.
    head: Vec<u8>,
    /// The field of that content that is the payload.
    field: u32,
    data: Bytes,
}

impl Payload {
    fn new(kind: u32, field: u32, head: &impl Message, data: Bytes) -> Option<Self> {
        (!data.is_empty()).then(|| Self { kind, head: head.encode_to_vec(), field, data })
    }
}

impl Carrier for ToPs {
    fn take_payload(&mut self) -> Option<Payload> {
        match self.message.as_mut()? {
            to_ps::Message::Initial(values) => {
                let data = std::mem::take(&mut values.data);
                Payload::new(2, 4, values, data)
            }
            to_ps::Message::Gradient(gradient) => {
                let data = std::mem::take(&mut gradient.data);
                Payload::new(4, 5, gradient, data)
            }
            _ => None,
        }
    }
}

impl Carrier for FromPs {
    fn take_payload(&mut self) -> Option<Payload> {
        match self.message.as_mut()? {
            from_ps::Message::Values(values) => {
                let data = std::mem::take(&mut values.data);
                Payload::new(2, 4, values, data)
            }
            from_ps::Message::Welcome(_) | from_ps::Message::Progress(_) => None,
        }
    }
}

/// A message as it travels: its head, and its payload if it has one.
fn frame<M: Carrier>(mut message: M) -> (Bytes, Option<Bytes>) {
    let Some(Payload { kind, head, field, data }) = message.take_payload() else {
        let len = message.encoded_len();
        let mut bytes = BytesMut::with_capacity(PREFIX + len);
        put_prefix(&mut bytes, len);
        message.encode_raw(&mut bytes);
        return (bytes.freeze(), None);
    };
    let content = head.len() + key_len(field) + encoded_len_varint(data.len() as u64) + data.len();
    let len = key_len(kind) + encoded_len_varint(content as u64) + content;
    let mut bytes = BytesMut::with_capacity(PREFIX + len - data.len());
    put_prefix(&mut bytes, len);
    encode_key(kind, WireType::LengthDelimited, &mut bytes);
    encode_varint(content as u64, &mut bytes);
    bytes.put_slice(&head);
    encode_key(field, WireType::LengthDelimited, &mut bytes);
    encode_varint(data.len() as u64, &mut bytes);
    (bytes.freeze(), Some(data))
}

fn put_prefix(bytes: &mut BytesMut, len: usize) {
    bytes.put_u8(0);
    bytes.put_u32(len as u32);
}

/// The messages of a body that arrives.
pub(crate) struct Incoming<M> {
    body: Body,
    arrived: Rope,
    trailers: Option<HeaderMap>,
    message: PhantomData<fn() -> M>,
}

impl<M: Message + Default> Incoming<M> {
    pub fn new(body: Body) -> Self {
        Self { body, arrived: Rope::default(), trailers: None, message: PhantomData }
    }

    /// The next message; nothing at the end; the status that the other side ended with, or what is wrong with
    /// what it sent.
    pub async fn message(&mut self) -> Result<Option<M>, Status> {
        loop {
            if let Some(message) = self.take_message()? {
                return Ok(Some(message));
            }
            match poll_fn(|context| Pin::new(&mut self.body).poll_frame(context)).await {
                Some(frame) => self.add(frame?),
                None if self.arrived.remaining() > 0 => {
                    return Err(Status::invalid_argument("a message breaks off"));
                }
                None => {
                    let status = self.trailers.take().and_then(|trailers| Status::from_header_map(&trailers));
                    return status.filter(|status| status.code() != tonic::Code::Ok).map_or(Ok(None), Err);
                }
            }
        }
    }

    fn add(&mut self, frame: Frame<Bytes>) {
        match frame.into_data() {
            Ok(data) => self.arrived.push(data),
            Err(frame) => self.trailers = frame.into_trailers().ok(),
        }
    }

    fn take_message(&mut self) -> Result<Option<M>, Status> {
        let Some([flag, length @ ..]) = self.arrived.peek::<PREFIX>() else { return Ok(None) };
        let len = u32::from_be_bytes(length) as usize;
        if flag != 0 {
            return Err(Status::unimplemented("compressed messages are not understood"));
        }
        if len > MESSAGE_BYTES {
            let limit = MESSAGE_BYTES;
            return Err(Status::out_of_range(format!(
                "a message of {len} bytes is too large; {limit} is the limit"
            )));
        }
        if self.arrived.remaining() < PREFIX + len {
            return Ok(None);
        }
        self.arrived.advance(PREFIX);
        let mut bytes = (&mut self.arrived).take(len);
        let message = M::decode(&mut bytes);
        message.map(Some).map_err(|error| Status::invalid_argument(format!("not a message: {error}")))
    }
}

/// Bytes as they arrived, in pieces.
#[derive(Default)]
struct Rope {
    pieces: VecDeque<Bytes>,
    len: usize,
}

impl Rope {
    fn push(&mut self, piece: Bytes) {
        if !piece.is_empty() {
            self.len += piece.len();
            self.pieces.push_back(piece);
        }
    }

    fn peek<const N: usize>(&self) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        let mut arrived = self.pieces.iter().flatten();
        for byte in &mut bytes {
            *byte = *arrived.next()?;
        }
        Some(bytes)
    }
}

impl Buf for Rope {
    fn remaining(&self) -> usize {
        self.len
    }

    fn chunk(&self) -> &[u8] {
        self.pieces.front().map_or(&[], |piece| piece)
    }

    fn advance(&mut self, mut count: usize) {
        assert!(count <= self.len, "advanced past the end");
        self.len -= count;
        while let Some(front) = self.pieces.front_mut() {
            if count < front.len() {
                return front.advance(count);
            }
            count -= front.len();
            self.pieces.pop_front();
        }
    }

    fn copy_to_bytes(&mut self, count: usize) -> Bytes {
        match self.pieces.front_mut() {
            // As it lies there: this is what spares the copy.
            Some(front) if count < front.len() => {
                self.len -= count;
                front.split_to(count)
            }
            Some(front) if count == front.len() => {
                self.len -= count;
                self.pieces.pop_front().unwrap_or_default()
            }
            _ => {
                let mut bytes = BytesMut::with_capacity(count);
                bytes.put(self.take(count));
                bytes.freeze()
            }
        }
    }
}

/// A body that is made of messages.
pub(crate) struct Outgoing<S> {
    messages: Pin<Box<S>>,
    payload: Option<Bytes>,
    /// A server ends with a status, a client just ends.
    status_at_end: bool,
    ended: bool,
}

impl<S> Outgoing<S> {
    pub fn of_client(messages: S) -> Self {
        Self { messages: Box::pin(messages), payload: None, status_at_end: false, ended: false }
    }

    pub fn of_server(messages: S) -> Self {
        Self { status_at_end: true, ..Self::of_client(messages) }
    }

    fn end(&mut self, status: &Status) -> Option<Frame<Bytes>> {
        self.ended = true;
        let mut trailers = HeaderMap::new();
        let added = status.add_header(&mut trailers);
        (self.status_at_end && added.is_ok()).then(|| Frame::trailers(trailers))
    }
}

impl<M: Carrier, S: Stream<Item = Result<M, Status>>> HttpBody for Outgoing<S> {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        if let Some(payload) = self.payload.take() {
            return Poll::Ready(Some(Ok(Frame::data(payload))));
        }
        let frame = match ready!(self.messages.as_mut().poll_next(context)) {
            Some(Ok(message)) => {
                let (head, payload) = frame(message);
                self.payload = payload;
                Some(Frame::data(head))
            }
            Some(Err(status)) => self.end(&status),
            None => self.end(&Status::ok("")),
        };
        Poll::Ready(frame.map(Ok))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Gradient, Progress, Values, Welcome};
    use futures_util::stream;

    fn messages() -> Vec<FromPs> {
        let values = |len: usize| Values {
            progress: Some(Progress { version: 7, ..Progress::default() }),
            offset: 3,
            total: 9,
            data: Bytes::from(vec![42; len]),
        };
        let welcome = from_ps::Message::Welcome(Welcome { initialised: true, ..Welcome::default() });
        let messages = [welcome, from_ps::Message::Values(values(0)), from_ps::Message::Values(values(300))];
        messages.map(|message| FromPs { message: Some(message) }).into()
    }

    /// A body of these bytes, in pieces of this size.
    fn body(bytes: &[u8], size: usize) -> Body {
        struct Pieces(VecDeque<Bytes>);
        impl HttpBody for Pieces {
            type Data = Bytes;
            type Error = Status;
            fn poll_frame(
                mut self: Pin<&mut Self>,
                _: &mut Context<'_>,
            ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
                Poll::Ready(self.0.pop_front().map(|piece| Ok(Frame::data(piece))))
            }
        }
        Body::new(Pieces(bytes.chunks(size).map(Bytes::copy_from_slice).collect()))
    }

    #[test]
    fn a_framed_message_is_what_any_grpc_peer_would_send() {
        for message in messages() {
            let (head, payload) = frame(message.clone());
            let bytes = [head, payload.unwrap_or_default()].concat();
            assert_eq!(bytes[0], 0);
            assert_eq!(u32::from_be_bytes(bytes[1..5].try_into().unwrap()) as usize, bytes.len() - PREFIX);
            assert_eq!(FromPs::decode(&bytes[PREFIX..]).unwrap(), message);
        }
        let gradient =
            Gradient { sequence: 1, data: Bytes::from_static(&[1, 2, 3, 4]), ..Gradient::default() };
        let message = ToPs { message: Some(to_ps::Message::Gradient(gradient)) };
        let (head, payload) = frame(message.clone());
        assert_eq!(ToPs::decode(&[head, payload.unwrap()].concat()[PREFIX..]).unwrap(), message);
    }

    #[tokio::test]
    async fn messages_arrive_however_the_bytes_are_cut() {
        let bytes: Vec<u8> = messages()
            .iter()
            .flat_map(|message| {
                let mut bytes = vec![0];
                bytes.extend((message.encoded_len() as u32).to_be_bytes());
                bytes.extend(message.encode_to_vec());
                bytes
            })
            .collect();
        for size in [1, 2, 5, 7, 100, 10_000] {
            let mut incoming = Incoming::<FromPs>::new(body(&bytes, size));
            for message in messages() {
                assert_eq!(incoming.message().await.unwrap(), Some(message));
            }
            assert_eq!(incoming.message().await.unwrap(), None);
        }
        let mut incoming = Incoming::<FromPs>::new(body(&bytes[..bytes.len() - 1], 50));
        incoming.message().await.unwrap();
        incoming.message().await.unwrap();
        assert!(incoming.message().await.unwrap_err().message().contains("breaks off"));
    }

    #[tokio::test]
    async fn what_one_side_makes_the_other_reads_with_the_status_at_the_end() {
        let mut sent: Vec<Result<FromPs, Status>> = messages().into_iter().map(Ok).collect();
        sent.push(Err(Status::invalid_argument("enough")));
        let mut incoming = Incoming::<FromPs>::new(Body::new(Outgoing::of_server(stream::iter(sent))));
        for message in messages() {
            assert_eq!(incoming.message().await.unwrap(), Some(message));
        }
        assert_eq!(incoming.message().await.unwrap_err().message(), "enough");
    }

    #[test]
    fn a_payload_is_not_copied_when_it_came_in_one_piece() {
        let data = Bytes::from(vec![1; 1000]);
        let gradient = Gradient { data: data.clone(), ..Gradient::default() };
        let (head, payload) = frame(ToPs { message: Some(to_ps::Message::Gradient(gradient)) });
        let mut incoming = Incoming::<ToPs>::new(Body::empty());
        incoming.add(Frame::data(head));
        incoming.add(Frame::data(payload.unwrap()));
        let Some(to_ps::Message::Gradient(gradient)) = incoming.take_message().unwrap().unwrap().message
        else {
            panic!("another message");
        };
        assert_eq!(gradient.data.as_ptr(), data.as_ptr());
    }

    #[tokio::test]
    async fn a_length_beyond_the_limit_is_refused_before_anything_arrives() {
        let mut incoming = Incoming::<ToPs>::new(body(&[0, 0xff, 0xff, 0xff, 0xff], 5));
        assert!(incoming.message().await.unwrap_err().message().contains("too large"));
        let mut incoming = Incoming::<ToPs>::new(body(&[1, 0, 0, 0, 1, 0], 6));
        assert!(incoming.message().await.unwrap_err().message().contains("compressed"));
    }
}
