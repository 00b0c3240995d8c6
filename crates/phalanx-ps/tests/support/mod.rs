//! A real ps on a port of its own, and workers that talk to it.

#![allow(dead_code)] // Each test binary uses its own part of this.

use bytes::Bytes;
use phalanx_cluster::{ClusterSpec, Placement, Plan, Variable};
use phalanx_ps::{
    Client, ClientConfig, FlatPart, Outcome, PsConfig, PsEvent, RunSpec,
    optimizer::{Optimizer, Rule},
    serve,
    wire::{
        FromPs, Gradient, Hello, PROTOCOL, ToPs, Values, from_ps,
        parameter_server_client::ParameterServerClient, to_ps::Message,
    },
};
use std::{
    net::{SocketAddr, TcpListener},
    sync::{Arc, Mutex},
};
use tokio::{
    sync::{mpsc, watch},
    task::JoinHandle,
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming, transport::Channel};

/// The elements of the model: `a` of 3 and `b` of 2.
pub const LEN: usize = 5;

/// A running ps for a cluster of two workers.
pub struct Ps {
    pub address: SocketAddr,
    pub cluster: ClusterSpec,
    pub events: Arc<Mutex<Vec<PsEvent>>>,
    stop: watch::Sender<bool>,
    running: JoinHandle<std::io::Result<Outcome>>,
}

impl Ps {
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        Self::start_as(listener, ClusterSpec::parse(&address.to_string(), "w:1,v:1").unwrap())
    }

    /// A ps whose workers reach it by other addresses than its own, as through a proxy.
    pub fn start_as(listener: TcpListener, cluster: ClusterSpec) -> Self {
        let address = listener.local_addr().unwrap();
        let events = Arc::new(Mutex::new(Vec::new()));
        let (stop, stopped) = watch::channel(false);
        let on_event = {
            let events = Arc::clone(&events);
            Box::new(move |event| events.lock().unwrap().push(event))
        };
        let config = PsConfig { index: 0, cluster: cluster.clone(), state_dir: None, on_event };
        let running = tokio::spawn(serve(listener, config, stopped));
        Self { address, cluster, events, stop, running }
    }

    pub async fn stop(self) -> Outcome {
        self.stop.send_replace(true);
        self.running.await.unwrap().unwrap()
    }

    pub async fn end(self) -> Outcome {
        self.running.await.unwrap().unwrap()
    }

    pub async fn channel(&self) -> Channel {
        Channel::from_shared(format!("http://{}", self.address)).unwrap().connect().await.unwrap()
    }

    pub fn hello(&self, worker: u32) -> Hello {
        let run = run();
        let variable = |variable: &Variable| phalanx_ps::wire::Variable {
            name: variable.name.clone(),
            shape: variable.shape.iter().map(|&dimension| dimension as u64).collect(),
        };
        Hello {
            protocol: PROTOCOL,
            cluster: self.cluster.to_string(),
            ps: 0,
            worker,
            incarnation: 1,
            origin: "a test".into(),
            run: Some(phalanx_ps::wire::Run {
                variables: run.plan.variables().iter().map(variable).collect(),
                placement: run.plan.placement().to_string(),
                plan_hash: run.plan.hash(),
                optimizer: Some(phalanx_ps::wire::Optimizer {
                    rule: Some(phalanx_ps::wire::optimizer::Rule::Sgd(phalanx_ps::wire::Sgd {})),
                    learning_rate: Some(phalanx_ps::wire::LearningRate { base: 1.0, ..Default::default() }),
                    ..Default::default()
                }),
                train_steps: run.train_steps,
                settings: Default::default(),
            }),
            run_id: 0,
        }
    }

    /// A worker that was let in, speaking in single messages.
    pub async fn raw(&self, worker: u32) -> Raw {
        let mut raw = Raw::open(self.channel().await).await;
        raw.send(Message::Hello(self.hello(worker))).await;
        assert!(matches!(raw.next().await.unwrap(), Some(from_ps::Message::Welcome(_))));
        raw
    }

    pub async fn client(&self, worker: usize) -> Client {
        Client::connect(client_config(self.cluster.clone(), worker)).await.unwrap()
    }
}

pub fn run() -> RunSpec {
    let variable = |name: &str, len| Variable { name: name.into(), shape: vec![len] };
    RunSpec {
        plan: Plan::new(vec![variable("a", 3), variable("b", 2)], Placement::Balanced, 1).unwrap(),
        optimizer: Optimizer::new(Rule::Sgd, 1.0),
        train_steps: 1000,
        settings: Default::default(),
    }
}

pub fn client_config(cluster: ClusterSpec, worker: usize) -> ClientConfig {
    ClientConfig {
        cluster,
        worker,
        incarnation: 1,
        origin: "a test".into(),
        run: run(),
        on_wait: Box::new(|_| {}),
    }
}

pub fn floats(values: &[f32]) -> Bytes {
    Bytes::from(values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>())
}

/// The values that every test begins with.
pub fn zeros() -> phalanx_ps::Values {
    phalanx_ps::ValuePool::default().share(vec![0.0; LEN])
}

/// A gradient that adds 1 to every value.
pub fn one_up() -> [FlatPart; 1] {
    [FlatPart { start: 0, data: floats(&[-1.0; LEN]) }]
}

/// A conversation in single messages, right or wrong.
pub struct Raw {
    to: mpsc::Sender<ToPs>,
    from: Streaming<FromPs>,
}

impl Raw {
    pub async fn open(channel: Channel) -> Self {
        let (to, outbound) = mpsc::channel(8);
        let mut client = ParameterServerClient::new(channel).max_encoding_message_size(usize::MAX);
        let from = client.train(ReceiverStream::new(outbound)).await.unwrap().into_inner();
        Self { to, from }
    }

    pub async fn send(&mut self, message: Message) {
        let _ = self.to.send(ToPs { message: Some(message) }).await;
    }

    pub async fn initialise(&mut self) {
        let data = floats(&[0.0; LEN]);
        self.send(Message::Initial(Values { progress: None, offset: 0, total: data.len() as u64, data }))
            .await;
    }

    pub async fn gradient(&mut self, offset: u64, total: u64, data: Bytes) {
        self.send(Message::Gradient(Gradient { sequence: 1, offset, total, data, ..Gradient::default() }))
            .await;
    }

    pub async fn next(&mut self) -> Result<Option<from_ps::Message>, Status> {
        Ok(self.from.message().await?.and_then(|message| message.message))
    }

    /// The reason for which the ps ended the conversation.
    pub async fn refusal(mut self) -> String {
        loop {
            match self.next().await {
                Ok(Some(_)) => {}
                Ok(None) => panic!("ended without a reason"),
                Err(status) => return status.message().to_owned(),
            }
        }
    }
}
