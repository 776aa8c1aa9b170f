//! Control streams between whole nodes: both ways, bounded, for members alone.

#![allow(clippy::unwrap_used, reason = "what a test prepares has to work")]

#[path = "support/net.rs"]
mod support;

use rhizome_identity::NodeKey;
use rhizome_mesh::net::{CtlError, CtlStream};
use support::{Node, addr_of, close_code, pair, raw_endpoint, stop_all, within};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Answers every stream with what it said, in upper case.
fn shout(node: &Node) -> tokio::task::JoinHandle<()> {
    let mut streams = node.mesh.ctl_streams().unwrap();
    tokio::spawn(async move {
        while let Some(mut stream) = streams.recv().await {
            tokio::spawn(async move {
                let mut said = Vec::new();
                stream.read_to_end(&mut said).await.unwrap();
                said.make_ascii_uppercase();
                stream.write_all(&said).await.unwrap();
                stream.shutdown().await.unwrap();
            });
        }
    })
}

async fn ask(stream: &mut CtlStream, words: &[u8]) -> Vec<u8> {
    let asking = async {
        stream.write_all(words).await.unwrap();
        stream.shutdown().await.unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.unwrap();
        answer
    };
    within("no answer on a control stream", asking).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_carry_bytes_both_ways_and_name_the_peer() {
    let (a, b, _) = pair().await;
    let shouting = shout(&b);
    assert!(b.mesh.ctl_streams().is_none(), "the streams have one taker");
    for _ in 0..3 {
        let mut stream = a.mesh.open_ctl(b.id()).await.unwrap();
        assert_eq!(stream.peer(), b.id());
        assert_eq!(ask(&mut stream, b"hello").await, b"HELLO");
    }
    // More than any buffer on the way holds, so that flow control takes part.
    let mut stream = a.mesh.open_ctl(b.id()).await.unwrap();
    let long = vec![b'x'; 3 << 20];
    assert_eq!(ask(&mut stream, &long).await, vec![b'X'; 3 << 20]);

    // The other way, the peer is the one that was proved, whatever it may say.
    let mut streams = a.mesh.ctl_streams().unwrap();
    let mut from_b = b.mesh.open_ctl(a.id()).await.unwrap();
    from_b.write_all(b"I am somebody else").await.unwrap();
    let seen = within("no stream arrived", streams.recv()).await.unwrap();
    assert_eq!(seen.peer(), b.id());
    drop((seen, from_b));
    shouting.abort();
    stop_all([a, b]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_peer_cannot_hold_more_than_its_share_of_streams() {
    let (a, b, _) = pair().await;
    let mut streams = b.mesh.ctl_streams().unwrap();
    let mut open = Vec::new();
    let mut taken = Vec::new();
    for _ in 0..32 {
        let mut stream = a.mesh.open_ctl(b.id()).await.unwrap();
        stream.write_all(b"?").await.unwrap();
        open.push(stream);
        taken.push(
            within("a stream within the bound", streams.recv())
                .await
                .unwrap(),
        );
    }
    // The next one waits for a place, and gets it when one is free.
    let waiting = {
        let mesh = a.mesh.clone();
        let to = b.id();
        tokio::spawn(async move {
            let mut stream = mesh.open_ctl(to).await?;
            stream.write_all(b"!").await.expect("the stream is open");
            Ok::<_, CtlError>(stream)
        })
    };
    let early = tokio::time::timeout(std::time::Duration::from_millis(300), streams.recv()).await;
    assert!(early.is_err(), "the bound holds");
    drop((open.pop(), taken.pop()));
    let mut late = within("the waiting stream", streams.recv()).await.unwrap();
    let mut said = [0; 1];
    late.read_exact(&mut said).await.unwrap();
    assert_eq!(&said, b"!");
    drop((waiting.await.unwrap().unwrap(), late, open, taken));
    stop_all([a, b]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strangers_get_no_stream_and_none_is_opened_to_them() {
    let (a, b, _) = pair().await;
    let stranger = NodeKey::generate();
    let refused = a.mesh.open_ctl(stranger.id()).await.unwrap_err();
    assert!(matches!(refused, CtlError::NotAMember { node } if node == stranger.id()));
    let itself = a.mesh.open_ctl(a.id()).await.unwrap_err();
    assert!(matches!(itself, CtlError::NotAMember { .. }));

    let endpoint = raw_endpoint(&stranger).await;
    let dialled = endpoint.connect(addr_of(&a), b"/rhizome/ctl/1").await;
    if let Ok(connection) = dialled {
        assert_eq!(close_code(&connection).await, 1);
    }
    endpoint.close().await;

    // A member that is gone is named, in bounded time.
    let (name, dir, key, agent) = b.stop().await;
    let gone = within("an answer", a.mesh.open_ctl(key.id()))
        .await
        .unwrap_err();
    assert!(
        matches!(
            gone,
            CtlError::Unreachable { .. } | CtlError::TimedOut { .. } | CtlError::Closed { .. }
        ),
        "{gone:?}"
    );
    assert!(gone.hint().is_some());
    // Back on another port, it is found by what the address book has learned since.
    let b = Node::start_in(&name, dir, key, agent).await;
    a.sees(b.id(), rhizome_mesh::net::PeerState::Connected)
        .await;
    let shouting = shout(&b);
    let mut stream = within("a stream after the restart", async {
        loop {
            if let Ok(stream) = a.mesh.open_ctl(b.id()).await {
                break stream;
            }
        }
    })
    .await;
    assert_eq!(ask(&mut stream, b"back").await, b"BACK");
    shouting.abort();
    stop_all([a, b]).await;
}
