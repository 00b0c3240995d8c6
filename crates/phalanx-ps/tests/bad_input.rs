//! Whatever a peer sends, a ps answers with a reason, keeps its parameters, and goes on serving others.

#![allow(clippy::unwrap_used)]

mod support;

use bytes::{Buf, BufMut, Bytes};
use phalanx_ps::{
    Farewell, PsEvent,
    wire::{Goodbye, Pull, Values, to_ps::Message},
};
use support::{LEN, Ps, Raw, floats, one_up};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tonic::{
    Status,
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
};

/// Checks that the ps still works, with parameters that only good pushes have changed.
async fn assert_unharmed(ps: &Ps, pushes_before: u64) {
    let mut client = ps.client(1).await;
    let mut values = [0.0; LEN];
    assert_eq!(client.pull_last(&mut values).await.unwrap().global_step, pushes_before);
    assert_eq!(values, [pushes_before as f32; LEN]);
    let step = client.push(0, &one_up(), &mut values).await.unwrap();
    assert_eq!(step.global_step, pushes_before + 1);
    assert_eq!(values, [pushes_before as f32 + 1.0; LEN]);
    client.leave(Farewell::Early).await;
}

async fn initialised() -> (Ps, Raw) {
    let ps = Ps::start();
    let chief = initialise(&ps).await;
    (ps, chief)
}

async fn initialise(ps: &Ps) -> Raw {
    let mut chief = ps.raw(0).await;
    chief.initialise().await;
    chief.send(Message::Pull(Pull {})).await;
    chief.next().await.unwrap().unwrap();
    chief
}

#[tokio::test]
async fn a_gradient_of_the_wrong_length_is_refused_with_both_lengths() {
    let (ps, mut chief) = initialised().await;
    chief.gradient(0, 16, floats(&[1.0; 4])).await;
    assert_eq!(chief.refusal().await, "the gradient has 16 bytes, the shard has 20");
    assert_unharmed(&ps, 0).await;
    ps.stop().await;
}

#[tokio::test]
async fn pieces_that_do_not_fit_are_refused() {
    for (offset, data, words) in [
        (4, floats(&[1.0; 4]), "begins at byte 4, expected was byte 0"),
        (0, floats(&[1.0; 6]), "has 24 bytes at byte 0, 20 are missing"),
        (0, Bytes::from_static(&[1, 2, 3]), "has 3 bytes"),
        (0, Bytes::new(), "has 0 bytes"),
        (u64::MAX, floats(&[1.0]), "begins at byte 18446744073709551615"),
    ] {
        let (ps, mut chief) = initialised().await;
        chief.gradient(offset, 20, data).await;
        let refusal = chief.refusal().await;
        assert!(refusal.contains(words), "{refusal}");
        assert_unharmed(&ps, 0).await;
        ps.stop().await;
    }
}

#[tokio::test]
async fn a_value_that_is_no_number_is_refused_with_the_variables_name() {
    for (bad, words) in [(f32::NAN, "the gradient has NaN at b[0]"), (f32::INFINITY, "has inf at b[0]")] {
        let (ps, mut chief) = initialised().await;
        chief.gradient(0, 20, floats(&[1.0, 1.0])).await;
        chief.gradient(8, 20, floats(&[1.0, bad, 1.0])).await;
        let refusal = chief.refusal().await;
        assert!(refusal.contains(words) && refusal.contains("parameters are untouched"), "{refusal}");
        assert_unharmed(&ps, 0).await;
        ps.stop().await;
    }
}

#[tokio::test]
async fn a_push_that_breaks_off_changes_nothing() {
    let (ps, mut chief) = initialised().await;
    chief.gradient(0, 20, floats(&[1.0; 3])).await;
    drop(chief);
    assert_unharmed(&ps, 0).await;
    ps.stop().await;
}

#[tokio::test]
async fn messages_out_of_order_are_refused() {
    let ps = Ps::start();
    let mut early = Raw::open(ps.channel().await).await;
    early.send(Message::Pull(Pull {})).await;
    assert_eq!(early.refusal().await, "the first message is not a hello");

    let mut twice = ps.raw(0).await;
    twice.send(Message::Hello(ps.hello(0))).await;
    assert_eq!(twice.refusal().await, "a second hello");

    let mut hasty = ps.raw(0).await;
    hasty.gradient(0, 20, floats(&[1.0; 5])).await;
    assert_eq!(hasty.refusal().await, "a gradient came before there were values");

    let mut usurper = ps.raw(1).await;
    usurper.initialise().await;
    assert_eq!(usurper.refusal().await, "worker 1 sent initial values; only worker 0 may");

    let mut polite = ps.raw(0).await;
    polite.send(Message::Goodbye(Goodbye { over: false, saved: false })).await;
    ps.stop().await;
}

#[tokio::test]
async fn a_message_larger_than_a_piece_may_be_is_refused() {
    let (ps, mut chief) = initialised().await;
    chief.gradient(0, 20, Bytes::from(vec![0; 8 << 20])).await;
    let refusal = chief.refusal().await;
    assert!(refusal.contains("too large"), "{refusal}");
    assert_unharmed(&ps, 0).await;
    ps.stop().await;
}

#[tokio::test]
async fn a_huge_model_on_paper_costs_nothing() {
    let ps = Ps::start();
    let mut raw = Raw::open(ps.channel().await).await;
    let mut hello = ps.hello(0);
    let run = hello.run.as_mut().unwrap();
    run.variables[0].shape = vec![1 << 50];
    let variable = |variable: &phalanx_ps::wire::Variable| phalanx_cluster::Variable {
        name: variable.name.clone(),
        shape: variable.shape.iter().map(|&dimension| dimension as usize).collect(),
    };
    let variables = run.variables.iter().map(variable).collect();
    run.plan_hash = phalanx_cluster::Plan::new(variables, Default::default(), 1).unwrap().hash();
    raw.send(Message::Hello(hello)).await;
    raw.next().await.unwrap().unwrap();
    // It is let in, and what it sends is taken as it comes: four bytes of four quadrillion.
    let total = ((1u64 << 50) + 2) * 4;
    let data = floats(&[1.0]);
    raw.send(Message::Initial(Values { progress: None, offset: 0, total, data })).await;
    drop(raw);
    while !ps.events.lock().unwrap().iter().any(|event| matches!(event, PsEvent::Left { .. })) {
        tokio::task::yield_now().await;
    }
    drop(initialise(&ps).await);
    assert_unharmed(&ps, 0).await;
    ps.stop().await;
}

/// Bytes as they are, where messages should be.
struct Garbage;

impl Codec for Garbage {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Garbage;
    type Decoder = Garbage;
    fn encoder(&mut self) -> Garbage {
        Garbage
    }
    fn decoder(&mut self) -> Garbage {
        Garbage
    }
}

impl Encoder for Garbage {
    type Item = Bytes;
    type Error = Status;
    fn encode(&mut self, bytes: Bytes, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        to.put(bytes);
        Ok(())
    }
}

impl Decoder for Garbage {
    type Item = Bytes;
    type Error = Status;
    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining())))
    }
}

#[tokio::test]
async fn garbage_in_a_grpc_message_is_refused() {
    let (ps, chief) = initialised().await;
    let mut grpc = tonic::client::Grpc::new(ps.channel().await);
    for garbage in [vec![0xff; 100], vec![0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f], (0..=255).collect()] {
        grpc.ready().await.unwrap();
        let request = tonic::Request::new(tokio_stream::once(Bytes::from(garbage)));
        let path = "/phalanx.v1.ParameterServer/Train".parse().unwrap();
        let mut reply = grpc.streaming(request, path, Garbage).await.unwrap().into_inner();
        let status = reply.message().await.unwrap_err();
        assert!(!status.message().is_empty(), "{status:?}");
    }
    drop(chief);
    assert_unharmed(&ps, 0).await;
    ps.stop().await;
}

#[tokio::test]
async fn bytes_that_are_not_even_http_are_hung_up_on() {
    let (ps, chief) = initialised().await;
    for garbage in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0; 1000], &[0xff; 1000]] {
        let mut socket = tokio::net::TcpStream::connect(ps.address).await.unwrap();
        socket.write_all(garbage).await.unwrap();
        // Whether it says something first is its own affair.
        let _ = socket.read_to_end(&mut Vec::new()).await;
    }
    drop(chief);
    assert_unharmed(&ps, 0).await;
    ps.stop().await;
}
