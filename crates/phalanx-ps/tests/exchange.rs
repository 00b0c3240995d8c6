//! Pushes and pulls over real connections, whole and broken.

#![allow(clippy::unwrap_used)]

mod support;

use phalanx_cluster::ClusterSpec;
use phalanx_ps::{Client, ClientError, Farewell, Outcome};
use std::{
    net::TcpListener,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};
use support::{LEN, Ps, client_config, one_up, zeros};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

#[tokio::test]
async fn the_reply_to_a_push_has_the_new_values_and_the_run_ends_exactly_at_its_last_step() {
    let ps = Ps::start();
    let mut workers = vec![ps.client(0).await, ps.client(1).await];
    let running = workers.drain(..).enumerate().map(|(index, mut client)| async move {
        let mut values = [0.0; LEN];
        let mut step = client.begin(&zeros(), &mut values).await.unwrap();
        let mut pushes = 0;
        while !step.over {
            let before = values[0];
            step = client.push(0, &one_up(), &mut values).await.unwrap();
            assert!(step.over || values[0] > before);
            assert_eq!(values, [step.global_step as f32; LEN]);
            pushes += 1;
        }
        assert_eq!(step.global_step, 1000);
        assert_eq!(step.chief, index == 0);
        client.leave(if step.chief { Farewell::Saved } else { Farewell::Over }).await;
        pushes
    });
    let mut running: Vec<_> = running.collect();
    let (second, first) = (running.pop().unwrap(), running.pop().unwrap());
    let (first, second) = tokio::join!(first, second);
    // Whoever was under way when the last step was made pushed in vain.
    assert!((1000..=1001).contains(&(first + second)), "{first} + {second}");
    assert_eq!(ps.end().await, Outcome::Finished { updates: 1000 });
}

#[tokio::test]
async fn a_late_worker_hears_that_the_run_is_over() {
    let ps = Ps::start();
    let mut client = ps.client(0).await;
    let mut values = [0.0; LEN];
    client.begin(&zeros(), &mut values).await.unwrap();
    while !client.push(0, &one_up(), &mut values).await.unwrap().over {}
    client.leave(Farewell::Saved).await;
    let late = Client::connect(client_config(ps.cluster.clone(), 1)).await;
    assert!(matches!(late, Err(ClientError::Over { updates: 1000 })));
    assert_eq!(ps.end().await, Outcome::Finished { updates: 1000 });
}

/// Passes bytes on, and cuts each connection once it has passed on some thousands of them.
async fn cutting_proxy(listener: tokio::net::TcpListener, to: std::net::SocketAddr, cuts: Arc<AtomicUsize>) {
    let mut length = 700;
    loop {
        let Ok((worker, _)) = listener.accept().await else { return };
        let Ok(ps) = tokio::net::TcpStream::connect(to).await else { return };
        // Other lengths each time, so that the cut falls into every part of an exchange.
        length = 700 + (length * 31 + 17) % 1500;
        let (mut from_worker, mut to_worker) = worker.into_split();
        let (mut from_ps, mut to_ps) = ps.into_split();
        let up = async {
            let mut buffer = [0; 64];
            let mut passed = 0;
            while let Ok(count @ 1..) = from_worker.read(&mut buffer).await {
                passed += count;
                if passed > length || to_ps.write_all(&buffer[..count]).await.is_err() {
                    return;
                }
            }
        };
        let down = async { drop(tokio::io::copy(&mut from_ps, &mut to_worker).await) };
        tokio::select! { () = up => {} () = down => {} }
        cuts.fetch_add(1, Ordering::Relaxed);
    }
}

#[tokio::test]
async fn a_push_whose_connection_broke_is_applied_exactly_once() {
    let (listener, proxy) =
        (TcpListener::bind("127.0.0.1:0").unwrap(), TcpListener::bind("127.0.0.1:0").unwrap());
    let real = listener.local_addr().unwrap();
    let cluster = ClusterSpec::parse(&proxy.local_addr().unwrap().to_string(), "w:1,v:1").unwrap();
    proxy.set_nonblocking(true).unwrap();
    let proxy = tokio::net::TcpListener::from_std(proxy).unwrap();
    let cuts = Arc::new(AtomicUsize::new(0));
    let proxy = tokio::spawn(cutting_proxy(proxy, real, Arc::clone(&cuts)));
    let ps = Ps::start_as(listener, cluster);

    let mut client = ps.client(0).await;
    let mut values = [0.0; LEN];
    client.begin(&zeros(), &mut values).await.unwrap();
    for push in 1..=800u64 {
        let step = client.push(0, &one_up(), &mut values).await.unwrap();
        assert_eq!(step.global_step, push);
        assert_eq!(values, [push as f32; LEN]);
    }
    assert!(cuts.load(Ordering::Relaxed) > 5, "the test is only worth something if connections were cut");
    client.leave(Farewell::Early).await;
    proxy.abort();
    ps.stop().await;
}

#[tokio::test]
async fn health_can_be_asked_for_by_any_grpc_client() {
    let ps = Ps::start();
    let mut health = tonic_health::pb::health_client::HealthClient::new(ps.channel().await);
    let request = tonic_health::pb::HealthCheckRequest { service: "phalanx.v1.ParameterServer".into() };
    let reply = health.check(request).await.unwrap().into_inner();
    assert_eq!(reply.status(), tonic_health::pb::health_check_response::ServingStatus::Serving);
    ps.stop().await;
}
