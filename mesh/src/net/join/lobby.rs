//! Where strangers wait who have not shown an invite yet.
//!
//! A stranger costs a connection and nothing else, so their number is bounded here and never by
//! the places for joins. When the lobby is full the one that has waited longest goes: an honest
//! joiner shows its invite one round trip after the handshake, so whoever wants to push it out
//! has to complete [`MAX_WAITING`] handshakes within that time, again and again.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
};

use tokio_util::sync::CancellationToken;

/// Strangers heard at the same time.
pub(super) const MAX_WAITING: usize = 128;

/// The strangers that are heard, in the order in which they came.
#[derive(Debug, Default)]
pub(super) struct Lobby {
    waiting: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    next: u64,
    seats: BTreeMap<u64, CancellationToken>,
}

/// One stranger's place; given back on drop.
#[derive(Debug)]
pub(super) struct Seat<'a> {
    lobby: &'a Lobby,
    number: u64,
    /// Cancelled when a newcomer needs the place.
    pub(super) taken: CancellationToken,
}

impl Lobby {
    /// Lets a stranger in, and the one that has waited longest out if there is no place left.
    pub(super) fn enter(&self) -> Seat<'_> {
        let taken = CancellationToken::new();
        let mut waiting = self.lock();
        let number = waiting.next;
        waiting.next += 1;
        waiting.seats.insert(number, taken.clone());
        if waiting.seats.len() > MAX_WAITING
            && let Some((_, oldest)) = waiting.seats.pop_first()
        {
            oldest.cancel();
        }
        Seat {
            lobby: self,
            number,
            taken,
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Waiting> {
        // Nothing under the lock can leave it half done.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        self.lobby.lock().seats.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_wait_ends_when_the_lobby_is_full() {
        let lobby = Lobby::default();
        let mut seats: Vec<_> = (0..MAX_WAITING).map(|_| lobby.enter()).collect();
        assert!(seats.iter().all(|seat| !seat.taken.is_cancelled()));
        let newcomer = lobby.enter();
        assert!(seats[0].taken.is_cancelled());
        assert!(seats[1..].iter().all(|seat| !seat.taken.is_cancelled()));
        // Whoever leaves makes room, so the next one pushes nobody out.
        seats.truncate(MAX_WAITING / 2);
        let _another = lobby.enter();
        assert!(seats[1..].iter().all(|seat| !seat.taken.is_cancelled()));
        assert!(!newcomer.taken.is_cancelled());
        drop((seats, newcomer));
        assert_eq!(lobby.lock().seats.len(), 1);
    }
}
