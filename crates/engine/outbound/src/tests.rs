//! Which URLs and addresses are contacted.

use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::*;

#[test]
fn urls_are_contacted_or_refused() {
    let good = [
        "http://127.0.0.1:9000",
        "http://localhost/a",
        "https://s3.eu-west-1.amazonaws.com/bucket",
        "https://[::1]:1/",
        "http://10.0.0.1",
        "http://[fd00::1]",
        "http://[64:ff9b::a00:1]",
        "https://metadata.example.org",
    ];
    for text in good {
        assert_eq!(check_url(&Url::parse(text).unwrap()), Ok(()), "{text}");
    }
    let bad = [
        "ftp://example.org",
        "file:///etc/passwd",
        "unix:/run/socket",
        "http://169.254.169.254/latest/meta-data/",
        "http://169.254.0.1",
        // That address in other forms.
        "http://2852039166",
        "http://0xa9fea9fe",
        "http://0xa9.0xfe.0xa9.0xfe",
        "http://0251.0376.0251.0376",
        "http://169.254.43518",
        "http://%31%36%39.254.169.254",
        "http://[::ffff:169.254.169.254]",
        "http://[::ffff:a9fe:a9fe]",
        "http://[::169.254.169.254]",
        "http://[::ffff:0:169.254.169.254]",
        "http://[64:ff9b::169.254.169.254]",
        "http://[64:ff9b:1::a9fe:a9fe]",
        "http://[2002:a9fe:a9fe::1]",
        "https://[fe80::1]",
        "https://[febf::1]",
        "http://[fd00:ec2::254]",
        "http://[fd00:ec2::23]",
        "http://[fd20:ce::254]",
        "http://168.63.129.16",
        "http://100.100.100.200",
        "http://192.0.0.192",
        "http://metadata.google.internal/computeMetadata/v1/",
        "http://METADATA.google.INTERNAL./",
        "http://metadata",
        "http://instance-data/latest",
        "http://0.0.0.0",
        "http://0",
        "http://[::]",
        "http://224.0.0.1",
        "http://255.255.255.255",
        "http://[ff02::1]",
    ];
    for text in bad {
        assert!(check_url(&Url::parse(text).unwrap()).is_err(), "{text}");
    }
}

#[test]
fn one_address_that_is_refused_is_enough() {
    let address = |text: &str| text.parse::<IpAddr>().unwrap();
    let good = [address("10.0.0.1"), address("::1")];
    assert_eq!(check_addresses("a", good), Ok(()));
    let mixed = [address("10.0.0.1"), address("::ffff:169.254.169.254")];
    let refused = check_addresses("a", mixed).unwrap_err();
    assert!(matches!(refused, Refused::Resolved { .. }), "{refused}");
    assert!(refused.to_string().contains("169.254.169.254"), "{refused}");
}

/// A name that has a good address when it is asked for first, and that of a metadata service from then on.
struct Rebinding {
    good: SocketAddr,
    asked: AtomicUsize,
}

impl Resolve for Rebinding {
    fn resolve(&self, _: Name) -> Resolving {
        let metadata = SocketAddr::from(([169, 254, 169, 254], 80));
        let found = match self.asked.fetch_add(1, Ordering::SeqCst) {
            0 => vec![self.good],
            _ => vec![metadata],
        };
        Box::pin(async move { Ok(Box::new(found.into_iter()) as Addrs) })
    }
}

/// Answers each connection once and closes it; a redirect leads to a metadata service.
async fn answer(listener: TcpListener) {
    while let Ok((mut stream, _)) = listener.accept().await {
        let mut request = [0; 4096];
        let _ = stream.read(&mut request).await;
        let answer = "HTTP/1.1 302 Found\r\nlocation: http://169.254.169.254/\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
        let _ = stream.write_all(answer.as_bytes()).await;
    }
}

#[tokio::test]
async fn a_name_is_checked_at_each_connection_and_redirects_are_answers() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let good = listener.local_addr().unwrap();
    let answering = tokio::spawn(answer(listener));
    let resolver = Rebinding {
        good,
        asked: AtomicUsize::new(0),
    };
    let builder = reqwest::Client::builder().no_proxy();
    let client = Client::with(builder, Arc::new(resolver)).unwrap();
    let url = Url::parse(&format!("http://store.example:{}/", good.port())).unwrap();
    let ask = || client.to(&url).unwrap().get(url.clone()).send();
    let first = ask().await.unwrap();
    assert_eq!(first.status(), 302);
    let failed = ask().await.unwrap_err();
    let mut told = String::new();
    let mut cause: Option<&dyn std::error::Error> = Some(&failed);
    while let Some(error) = cause {
        told = error.to_string();
        cause = error.source();
    }
    answering.abort();
    assert!(told.contains("169.254.169.254"), "{told}");
}
