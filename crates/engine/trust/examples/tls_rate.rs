//! What encryption costs between two nodes: messages of 1 MiB and round trips of 4 KiB over loopback, with TLS as nodes
//! use it, without encryption and with keyed checksums, and over plain TCP. Both ends are in this process, so the processor time is that of both.
//!
//! ```text
//! cargo run --release -p cairn-trust --example tls_rate [-- --rounds N] [--gib N] [--trips N]
//! ```

use std::io;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cairn_base::env::BoxFuture;
use cairn_base::{NodeId, PoolId};
use cairn_trust::{
    Authority, ClusterFolder, Encryption, EtcdSource, HandleKey, Handler, Listener,
    ListenerSettings, Membership, NodeStream, PeerIdentity, Protocol, Stage, Trust, TrustSettings,
};
use serde_json::json;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const MESSAGE_LEN_BYTES: usize = 1 << 20;
const TRIP_LEN_BYTES: usize = 4096;
const CLUSTER: PoolId = PoolId(1);

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// What a connection is for: its first byte.
const STREAM: u8 = 1;
const TRIPS: u8 = 2;

/// Takes messages and answers the last one, or sends each back.
async fn serve(mut stream: impl AsyncRead + AsyncWrite + Unpin) -> io::Result<()> {
    let kind = stream.read_u8().await?;
    let count = stream.read_u64_le().await?;
    let mut bytes = match kind {
        STREAM => vec![0; MESSAGE_LEN_BYTES],
        _ => vec![0; TRIP_LEN_BYTES],
    };
    for _ in 0..count {
        stream.read_exact(&mut bytes).await?;
        if kind == TRIPS {
            stream.write_all(&bytes).await?;
            stream.flush().await?;
        }
    }
    if kind == STREAM {
        stream.write_u8(1).await?;
        stream.flush().await?;
    }
    Ok(())
}

struct Serve;

impl Handler for Serve {
    fn serve(self: Arc<Self>, _: PeerIdentity, stream: NodeStream) -> BoxFuture<()> {
        Box::pin(async move {
            if let Err(error) = serve(stream).await {
                eprintln!("tls_rate: the other end: {error}");
            }
        })
    }
}

#[derive(Clone, Copy)]
struct Cost {
    wall: Duration,
    processor: Duration,
}

fn processor_time() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

async fn measure(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    kind: u8,
    count: u64,
) -> io::Result<Cost> {
    let (began, used) = (Instant::now(), processor_time());
    stream.write_u8(kind).await?;
    stream.write_u64_le(count).await?;
    if kind == STREAM {
        let message = vec![0x5a; MESSAGE_LEN_BYTES];
        for _ in 0..count {
            stream.write_all(&message).await?;
        }
        stream.flush().await?;
        stream.read_u8().await?;
    } else {
        let message = vec![0x5a; TRIP_LEN_BYTES];
        let mut back = vec![0; TRIP_LEN_BYTES];
        for _ in 0..count {
            stream.write_all(&message).await?;
            stream.flush().await?;
            stream.read_exact(&mut back).await?;
        }
    }
    Ok(Cost {
        wall: began.elapsed(),
        processor: processor_time() - used,
    })
}

struct Nodes {
    client: Arc<Trust>,
    listener: Listener,
    clear_client: Arc<Trust>,
    clear_listener: Listener,
    plain: std::net::SocketAddr,
    _folder: tempfile::TempDir,
}

async fn nodes() -> Outcome<Nodes> {
    let env = cairn_base::real::env(tokio::runtime::Handle::current());
    let authority = Authority::create(CLUSTER, env.clock.now())?;
    let folder = tempfile::tempdir()?;
    let trust = |node: u128, encryption: Encryption| -> Outcome<Arc<Trust>> {
        let name = format!("{node}-{encryption:?}");
        let opened = ClusterFolder::create(&folder.path().join(name))?;
        let membership = Membership {
            format: 1,
            cluster: CLUSTER,
            cluster_name: "rate".to_owned(),
            node: NodeId(node),
            node_name: format!("n{node}"),
            internal_address: "127.0.0.1:7700".to_owned(),
            external_address: "127.0.0.1".to_owned(),
            handle_key: HandleKey(1),
            etcd: EtcdSource::Given {
                endpoints: vec!["http://127.0.0.1:2379".to_owned()],
                insecure: false,
            },
            stage: Stage::Member,
        };
        opened.establish(&membership, &authority)?;
        let settings = TrustSettings {
            encryption,
            ..TrustSettings::default()
        };
        Ok(Trust::open(env.clone(), Arc::new(opened), settings)?)
    };
    let listen = async |server| -> Outcome<Listener> {
        let settings = ListenerSettings::default();
        let listener = Listener::bind(server, "127.0.0.1:0", settings).await?;
        listener.handle(Protocol::Forward, Arc::new(Serve));
        Ok(listener)
    };
    let listener = listen(trust(2, Encryption::On)?).await?;
    let clear_listener = listen(trust(2, Encryption::Off)?).await?;
    let accepting = TcpListener::bind("127.0.0.1:0").await?;
    let plain = accepting.local_addr()?;
    tokio::spawn(async move {
        while let Ok((tcp, _)) = accepting.accept().await {
            let _ = tcp.set_nodelay(true);
            tokio::spawn(serve(tcp));
        }
    });
    Ok(Nodes {
        client: trust(1, Encryption::On)?,
        listener,
        clear_client: trust(1, Encryption::Off)?,
        clear_listener,
        plain,
        _folder: folder,
    })
}

impl Nodes {
    async fn tls(&self, kind: u8, count: u64) -> io::Result<Cost> {
        let address = self.listener.address().to_string();
        let connecting = self.client.connect(&address, NodeId(2), Protocol::Forward);
        measure(connecting.await?, kind, count).await
    }

    async fn clear(&self, kind: u8, count: u64) -> io::Result<Cost> {
        let address = self.clear_listener.address().to_string();
        let connecting = self
            .clear_client
            .connect(&address, NodeId(2), Protocol::Forward);
        measure(connecting.await?, kind, count).await
    }

    async fn plain(&self, kind: u8, count: u64) -> io::Result<Cost> {
        let tcp = TcpStream::connect(self.plain).await?;
        tcp.set_nodelay(true)?;
        measure(tcp, kind, count).await
    }

    async fn handshakes(&self, count: u64) -> io::Result<Cost> {
        let address = self.listener.address().to_string();
        let (began, used) = (Instant::now(), processor_time());
        for _ in 0..count {
            let connecting = self.client.connect(&address, NodeId(2), Protocol::Forward);
            let mut stream = connecting.await?;
            // No trips: the other end is done at once.
            stream.write_u8(TRIPS).await?;
            stream.write_u64_le(0).await?;
            stream.flush().await?;
        }
        Ok(Cost {
            wall: began.elapsed(),
            processor: processor_time() - used,
        })
    }
}

fn flag(name: &str, default: u64) -> u64 {
    let mut arguments = std::env::args().skip_while(|argument| argument != name);
    let given = arguments.nth(1);
    given.map_or(default, |text| {
        text.parse().unwrap_or_else(|_| {
            eprintln!("tls_rate: {name} {text} is no number");
            std::process::exit(2)
        })
    })
}

async fn run() -> Outcome<()> {
    let (rounds, gib, trips) = (
        flag("--rounds", 3),
        flag("--gib", 4),
        flag("--trips", 50_000),
    );
    let handshakes = 500;
    let nodes = nodes().await?;
    let messages = gib * 1024;
    let bytes = (messages * MESSAGE_LEN_BYTES as u64) as f64;
    for round in 1..=rounds {
        let plain = nodes.plain(STREAM, messages).await?;
        let tls = nodes.tls(STREAM, messages).await?;
        let clear = nodes.clear(STREAM, messages).await?;
        let rate = |cost: Cost| bytes / 1e6 / cost.wall.as_secs_f64();
        let per_gb = |cost: Cost| cost.processor.as_secs_f64() / (bytes / 1e9);
        let plain_trip = nodes.plain(TRIPS, trips).await?;
        let tls_trip = nodes.tls(TRIPS, trips).await?;
        let clear_trip = nodes.clear(TRIPS, trips).await?;
        let us = |time: Duration| time.as_secs_f64() * 1e6 / trips as f64;
        let shaken = nodes.handshakes(handshakes).await?;
        let result = json!({
            "round": round,
            "messages_1mib": {
                "plain_mb_per_s": rate(plain),
                "tls_mb_per_s": rate(tls),
                "clear_mb_per_s": rate(clear),
                "ratio": rate(tls) / rate(plain),
                "clear_ratio": rate(clear) / rate(plain),
                "plain_processor_s_per_gb": per_gb(plain),
                "tls_processor_s_per_gb": per_gb(tls),
                "clear_processor_s_per_gb": per_gb(clear),
            },
            "trips_4kib": {
                "plain_us": us(plain_trip.wall),
                "tls_us": us(tls_trip.wall),
                "clear_us": us(clear_trip.wall),
                "ratio": us(tls_trip.wall) / us(plain_trip.wall),
                "plain_processor_us": us(plain_trip.processor),
                "tls_processor_us": us(tls_trip.processor),
                "clear_processor_us": us(clear_trip.processor),
            },
            "handshakes": {
                "ms": shaken.wall.as_secs_f64() * 1e3 / handshakes as f64,
                "processor_ms": shaken.processor.as_secs_f64() * 1e3 / handshakes as f64,
            },
        });
        println!("{result:#}");
    }
    Ok(())
}

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tls_rate: {error}");
            ExitCode::FAILURE
        }
    }
}
