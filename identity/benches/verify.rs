//! What a signature costs: one at a time, in a batch, and as plain `ed25519-dalek` does it.

use divan::{Bencher, counter::ItemsCount};
use ed25519_dalek::{Signature, Signer, SigningKey, VerifyingKey};
use rhizome_identity::{Domain, SecretKey, parse, seal, verify_batch};

const DOMAIN: Domain = Domain("rhizome/fragment/1");
/// About the size of a fragment's header.
const PAYLOAD_BYTES: usize = 400;
const BATCH: usize = 256;
/// How many authors the fragments of a batch come from.
const AUTHORS: [usize; 3] = [1, 8, BATCH];

fn main() {
    divan::main();
}

fn envelopes(authors: usize) -> Vec<Vec<u8>> {
    let keys: Vec<SecretKey> = (0..authors).map(|_| SecretKey::generate()).collect();
    (0..BATCH)
        .map(|at| {
            seal(
                &keys[at % authors],
                DOMAIN,
                &vec![u8::try_from(at % 256).unwrap_or(0); PAYLOAD_BYTES],
            )
        })
        .collect()
}

#[divan::bench]
fn single(bencher: Bencher<'_, '_>) {
    let envelope = envelopes(1).remove(0);
    bencher.counter(ItemsCount::new(1_usize)).bench(|| {
        parse(&envelope, 4096)
            .expect("well formed")
            .verify(DOMAIN)
            .expect("signed")
    });
}

#[divan::bench(args = AUTHORS)]
fn batch(bencher: Bencher<'_, '_>, authors: usize) {
    let envelopes = envelopes(authors);
    bencher.counter(ItemsCount::new(BATCH)).bench(|| {
        let items: Vec<_> = envelopes
            .iter()
            .map(|bytes| (parse(bytes, 4096).expect("well formed"), DOMAIN))
            .collect();
        verify_batch(&items).expect("signed");
    });
}

#[divan::bench]
fn dalek_single_strict(bencher: Bencher<'_, '_>) {
    let (messages, signatures, keys) = plain();
    bencher
        .counter(ItemsCount::new(1_usize))
        .bench(|| keys[0].verify_strict(&messages[0], &signatures[0]));
}

#[divan::bench]
fn dalek_batch(bencher: Bencher<'_, '_>) {
    let (messages, signatures, keys) = plain();
    let messages: Vec<&[u8]> = messages.iter().map(Vec::as_slice).collect();
    bencher
        .counter(ItemsCount::new(BATCH))
        .bench(|| ed25519_dalek::verify_batch(&messages, &signatures, &keys));
}

fn plain() -> (Vec<Vec<u8>>, Vec<Signature>, Vec<VerifyingKey>) {
    let mut messages = Vec::new();
    let mut signatures = Vec::new();
    let mut keys = Vec::new();
    for at in 0..BATCH {
        let seed = SecretKey::generate().seed();
        let key = SigningKey::from_bytes(&seed);
        let message = vec![u8::try_from(at % 256).unwrap_or(0); PAYLOAD_BYTES];
        signatures.push(key.sign(&message));
        keys.push(key.verifying_key());
        messages.push(message);
    }
    (messages, signatures, keys)
}
