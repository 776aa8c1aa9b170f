//! Connections of programs in the guest, carried to their node.
#![allow(clippy::unwrap_used, reason = "what a test prepares has to work")]

#[path = "channel_support/guest.rs"]
mod support;

use rhizome_sandbox::channel::ChannelLimits;
use support::Guest;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

async fn connect(guest: &Guest) -> TcpStream {
    TcpStream::connect(("127.0.0.1", guest.door_port))
        .await
        .unwrap()
}

#[tokio::test]
async fn a_request_goes_out_and_its_answer_comes_back() {
    let mut guest = Guest::start().await;
    let mut client = connect(&guest).await;
    client.write_all(b"question").await.unwrap();
    let mut door = guest.doors.recv().await.unwrap();
    let mut question = [0; 8];
    door.read_exact(&mut question).await.unwrap();
    assert_eq!(&question, b"question");
    door.write_all(b"answer").await.unwrap();
    door.shutdown().await.unwrap();
    let mut answer = Vec::new();
    client.read_to_end(&mut answer).await.unwrap();
    assert_eq!(answer, b"answer");
}

#[tokio::test]
async fn each_direction_ends_on_its_own() {
    let mut guest = Guest::start().await;
    let mut client = connect(&guest).await;
    client.write_all(b"all of it").await.unwrap();
    client.shutdown().await.unwrap();
    let mut door = guest.doors.recv().await.unwrap();
    let mut request = Vec::new();
    door.read_to_end(&mut request).await.unwrap();
    assert_eq!(request, b"all of it");
    // The client's end does not end ours.
    door.write_all(&[b'x'; 300_000]).await.unwrap();
    door.shutdown().await.unwrap();
    let mut answer = Vec::new();
    client.read_to_end(&mut answer).await.unwrap();
    assert_eq!(answer.len(), 300_000);
}

#[tokio::test]
async fn much_data_passes_both_ways_at_once() {
    const LEN: usize = 3_000_000;
    let mut guest = Guest::start().await;
    let client = connect(&guest).await;
    let (mut client_in, mut client_out) = client.into_split();
    let sending = tokio::spawn(async move {
        client_out.write_all(&vec![b'a'; LEN]).await.unwrap();
        client_out.shutdown().await.unwrap();
    });
    let receiving = tokio::spawn(async move {
        let mut bytes = Vec::new();
        client_in.read_to_end(&mut bytes).await.unwrap();
        bytes
    });
    let door = guest.doors.recv().await.unwrap();
    let (mut door_in, mut door_out) = tokio::io::split(door);
    let echo = async {
        tokio::io::copy(&mut door_in, &mut door_out).await.unwrap();
        door_out.shutdown().await.unwrap();
    };
    echo.await;
    sending.await.unwrap();
    assert!(receiving.await.unwrap() == vec![b'a'; LEN]);
}

#[tokio::test]
async fn a_node_that_hangs_up_is_seen_by_the_client() {
    let mut guest = Guest::start().await;
    let mut client = connect(&guest).await;
    let door = guest.doors.recv().await.unwrap();
    drop(door);
    let mut rest = Vec::new();
    // An end or a reset, but not a wait.
    let _ = client.read_to_end(&mut rest).await;
    assert!(rest.is_empty());
}

#[tokio::test]
async fn a_client_that_hangs_up_is_seen_by_the_node() {
    let mut guest = Guest::start().await;
    let client = connect(&guest).await;
    let mut door = guest.doors.recv().await.unwrap();
    drop(client);
    let mut rest = Vec::new();
    door.read_to_end(&mut rest).await.unwrap();
    assert!(rest.is_empty());
}

#[tokio::test]
async fn a_connection_that_is_not_read_holds_up_only_itself() {
    let mut guest = Guest::start().await;
    let mut stuck = connect(&guest).await;
    let writing = tokio::spawn(async move {
        loop {
            if stuck.write_all(&[0; 65_536]).await.is_err() {
                return;
            }
        }
    });
    let unread = guest.doors.recv().await.unwrap();
    let mut client = connect(&guest).await;
    client.write_all(b"hi").await.unwrap();
    let mut door = guest.doors.recv().await.unwrap();
    let mut hi = [0; 2];
    door.read_exact(&mut hi).await.unwrap();
    guest.channel.ping().await.unwrap();
    drop(unread);
    writing.await.unwrap();
}

#[tokio::test]
async fn too_many_connections_are_closed_and_room_comes_back() {
    let limits = ChannelLimits {
        max_door_streams: 4,
        ..ChannelLimits::default()
    };
    let mut guest = Guest::start_with(limits).await;
    let mut open = Vec::new();
    for _ in 0..4 {
        let client = connect(&guest).await;
        open.push((client, guest.doors.recv().await.unwrap()));
    }
    let mut refused = connect(&guest).await;
    let _ = refused.read(&mut [0; 1]).await;
    drop(open);
    // The streams end on their own time.
    loop {
        let mut client = connect(&guest).await;
        let taken = tokio::select! {
            door = guest.doors.recv() => door.is_some(),
            _ = client.read_u8() => false,
        };
        if taken {
            break;
        }
    }
    assert!(!guest.channel.is_closed());
}

#[tokio::test]
async fn a_node_without_a_door_refuses() {
    let mut guest = Guest::start().await;
    guest.doors.close();
    let mut client = connect(&guest).await;
    let mut rest = Vec::new();
    let _ = client.read_to_end(&mut rest).await;
    assert!(rest.is_empty());
    guest.channel.ping().await.unwrap();
}
