//! The address book dials everyone it knows, patiently, for ever.

use std::time::Duration;

use rhizome_identity::NodeId;
use rhizome_mesh::proto::address_book::{AddressBook, Input, Output};

fn node(n: u8) -> NodeId {
    NodeId::from_bytes([n; 32])
}

fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

#[test]
fn a_known_peer_is_dialled_once_at_a_time() {
    let mut book = AddressBook::new(node(0), 1);
    assert_eq!(
        book.handle(secs(0), Input::Known(node(1))),
        [Output::Dial(node(1))]
    );
    assert!(book.handle(secs(1), Input::Known(node(1))).is_empty());
    assert!(book.handle(secs(1), Input::Moved(node(1))).is_empty());
    assert!(
        book.handle(secs(1), Input::Known(node(0))).is_empty(),
        "never itself"
    );
}

#[test]
fn waits_double_up_to_a_cap_and_never_end() {
    let mut book = AddressBook::new(node(0), 2);
    book.handle(secs(0), Input::Known(node(1)));
    let mut now = secs(0);
    let mut waits = Vec::new();
    for _ in 0..40 {
        book.handle(now, Input::DialFailed(node(1)));
        let due = book.next_deadline().expect("it is dialled again");
        waits.push(due - now);
        now = due;
        assert_eq!(book.handle_timeout(now), [Output::Dial(node(1))]);
    }
    assert!(waits[0] < secs(1) && waits[3] > 2 * waits[0]);
    assert!(
        waits[10..]
            .iter()
            .all(|wait| *wait >= secs(48) && *wait <= secs(72))
    );
    assert!(
        waits[10..].windows(2).any(|pair| pair[0] != pair[1]),
        "waits are jittered"
    );
}

#[test]
fn a_connected_peer_is_left_alone_and_missed_when_gone() {
    let mut book = AddressBook::new(node(0), 3);
    book.handle(secs(0), Input::Known(node(1)));
    book.handle(secs(1), Input::Up(node(1)));
    assert_eq!(book.next_deadline(), None);
    book.handle(secs(100), Input::Down(node(1)));
    let due = book.next_deadline().expect("missed");
    assert!(
        due < secs(101),
        "after a lasting session it is dialled at once"
    );
    assert_eq!(book.handle_timeout(due), [Output::Dial(node(1))]);
}

#[test]
fn a_peer_that_hangs_up_at_once_is_not_dialled_in_a_loop() {
    let mut book = AddressBook::new(node(0), 4);
    book.handle(secs(0), Input::Known(node(1)));
    let mut now = secs(0);
    let mut dials = 0;
    while now < secs(600) {
        book.handle(now, Input::Up(node(1)));
        book.handle(now, Input::Down(node(1)));
        now = book.next_deadline().expect("it is dialled again");
        dials += book.handle_timeout(now).len();
    }
    assert!(dials < 25, "{dials} dials in ten minutes");
}

#[test]
fn a_move_is_worth_a_dial_and_the_forgotten_get_none() {
    let mut book = AddressBook::new(node(0), 5);
    book.handle(secs(0), Input::Known(node(1)));
    for _ in 0..8 {
        book.handle(secs(0), Input::DialFailed(node(1)));
        book.handle_timeout(secs(0));
    }
    assert_eq!(
        book.handle(secs(1), Input::Moved(node(1))),
        [Output::Dial(node(1))]
    );
    book.handle(secs(1), Input::Forget(node(1)));
    book.handle(secs(2), Input::DialFailed(node(1)));
    assert_eq!(book.next_deadline(), None);
}

#[test]
fn many_peers_wait_their_turn_and_none_is_left_out() {
    let mut book = AddressBook::new(node(0), 6);
    let mut dialled = Vec::new();
    for n in 1..=100 {
        dialled.extend(book.handle(secs(0), Input::Known(node(n))));
    }
    assert!(dialled.len() <= 16);
    let mut done = 0;
    while done < dialled.len() {
        let Output::Dial(peer) = dialled[done] else {
            panic!("only dials")
        };
        dialled.extend(book.handle(secs(1), Input::Up(peer)));
        done += 1;
    }
    assert_eq!(done, 100);
}

#[test]
fn a_dial_that_the_shell_lost_does_not_block_the_peer() {
    let mut book = AddressBook::new(node(0), 7);
    book.handle(secs(0), Input::Known(node(1)));
    let lost = book.next_deadline().expect("a dial has an end");
    assert!(book.handle_timeout(lost).is_empty());
    let due = book.next_deadline().expect("it is dialled again");
    assert_eq!(book.handle_timeout(due), [Output::Dial(node(1))]);
}

#[test]
fn peers_survive_a_restart() {
    let mut book = AddressBook::new(node(0), 8);
    book.handle(secs(0), Input::Known(node(1)));
    book.handle(secs(0), Input::Known(node(2)));
    for _ in 0..9 {
        book.handle(secs(0), Input::DialFailed(node(2)));
        let due = book.next_deadline().expect("due");
        book.handle_timeout(due);
    }
    let mut again = AddressBook::new(node(0), 9);
    assert_eq!(again.restore(secs(0), book.save()), [Output::Dial(node(1))]);
    assert_eq!(again.peers().count(), 2);
    assert!(
        again.next_deadline().is_some_and(|due| due <= secs(3)),
        "the other one soon"
    );
}
