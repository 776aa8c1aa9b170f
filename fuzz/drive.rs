//! Drives fuzz targets without a fuzzer: every file of a corpus, then seeded mutations of them.
//!
//! Each crate includes this file in its `tests/fuzz.rs`, so `cargo test` runs what a fuzzer found
//! once and some thousands of new inputs. `FUZZ_ROUNDS` and `FUZZ_SEED` ask for more and others;
//! `FUZZ_WRITE=1` writes seeds that are not in the corpus yet.

use std::{
    fs,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
};

/// Name, target and seeds, as the crates' `fuzz::TARGETS` have them.
pub(crate) type Target = (&'static str, fn(&[u8]), fn() -> Vec<Vec<u8>>);

/// Mutations of one target if nothing else is asked for.
const ROUNDS: u64 = 4_000;
/// The longest input that is made, in bytes.
const MAX_INPUT: usize = 16 * 1024;

/// Runs `targets`, whose corpora lie under `corpus`.
pub(crate) fn run(targets: &[Target], corpus: &Path) {
    let rounds = number("FUZZ_ROUNDS").unwrap_or(ROUNDS);
    let seed = number("FUZZ_SEED").unwrap_or(1);
    let mut failures = Vec::new();
    for (name, target, seeds) in targets {
        let dir = corpus.join(name);
        let mut inputs = read(&dir);
        assert!(
            !inputs.is_empty() || write_is_asked(),
            "no corpus in {}: run with FUZZ_WRITE=1 once",
            dir.display()
        );
        for (at, bytes) in seeds().into_iter().enumerate() {
            if write_is_asked() && !inputs.iter().any(|(_, known)| *known == bytes) {
                fs::create_dir_all(&dir).expect("the corpus can be written");
                fs::write(dir.join(format!("seed-{at}")), &bytes).expect("a seed can be written");
            }
            inputs.push((format!("seed {at}"), bytes));
        }
        for (what, bytes) in &inputs {
            try_one(name, *target, what, bytes, &mut failures);
        }
        let mut dice = Dice(seed ^ hash(name));
        for round in 0..rounds {
            let bytes = mutate(&inputs, &mut dice);
            let what = format!("round {round} of FUZZ_SEED={seed}");
            try_one(name, *target, &what, &bytes, &mut failures);
            if failures.len() >= 8 {
                break;
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

fn try_one(name: &str, target: fn(&[u8]), what: &str, bytes: &[u8], failures: &mut Vec<String>) {
    if catch_unwind(AssertUnwindSafe(|| target(bytes))).is_err() {
        let found = std::env::temp_dir().join(format!("fuzz-{name}-{:016x}", hash_bytes(bytes)));
        let _ = fs::write(&found, bytes);
        failures.push(format!("{name}: {what}, kept as {}", found.display()));
    }
}

fn read(dir: &Path) -> Vec<(String, Vec<u8>)> {
    let Ok(entries) = fs::read_dir(dir) else {
        return Vec::new();
    };
    let mut paths: Vec<PathBuf> = entries.filter_map(|e| Some(e.ok()?.path())).collect();
    // The order of a directory is nobody's promise, and a seed has to mean one run.
    paths.sort();
    paths
        .into_iter()
        .map(|path| {
            let bytes = fs::read(&path).expect("a file of the corpus can be read");
            (path.display().to_string(), bytes)
        })
        .collect()
}

/// Makes a new input of one or two old ones.
fn mutate(inputs: &[(String, Vec<u8>)], dice: &mut Dice) -> Vec<u8> {
    const ODD: [u8; 10] = [0x00, 0x01, 0x7f, 0x80, 0xff, 0x20, 0x41, 0x18, 0x58, 0x9b];
    let mut bytes = dice.pick(inputs).1.clone();
    for _ in 0..=dice.below(4) {
        let at = dice.below(bytes.len() + 1);
        match dice.below(9) {
            0 if at < bytes.len() => bytes[at] ^= 1 << dice.below(8),
            1 if at < bytes.len() => bytes[at] = *dice.pick(&ODD),
            2 => bytes.truncate(at),
            3 => bytes.insert(at, dice.next().to_le_bytes()[0]),
            4 if at < bytes.len() => {
                let len = 1 + dice.below((bytes.len() - at).min(16));
                bytes.drain(at..at + len);
            }
            5 if at < bytes.len() => {
                let len = 1 + dice.below((bytes.len() - at).min(64));
                let part = bytes[at..at + len].to_vec();
                let to = dice.below(bytes.len() + 1);
                bytes.splice(to..to, part);
            }
            6 => {
                let other = &dice.pick(inputs).1;
                let from = dice.below(other.len() + 1);
                bytes.truncate(at);
                bytes.extend_from_slice(&other[from..]);
            }
            7 if at + 4 <= bytes.len() => {
                let odd = [0, 1, u32::MAX, 0x7fff_ffff, 0x0001_0000, 65_537];
                let number = *dice.pick(&odd);
                let coded = if dice.below(2) == 0 {
                    number.to_le_bytes()
                } else {
                    number.to_be_bytes()
                };
                bytes[at..at + 4].copy_from_slice(&coded);
            }
            _ if at < bytes.len() => bytes[at] = dice.next().to_le_bytes()[0],
            _ => bytes.push(0),
        }
    }
    bytes.truncate(MAX_INPUT);
    bytes
}

/// SplitMix64: small, seeded, the same everywhere.
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        let bound = u64::try_from(bound.max(1)).expect("a length fits");
        usize::try_from(self.next() % bound).expect("it is below a length")
    }

    fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len())]
    }
}

fn hash(name: &str) -> u64 {
    hash_bytes(name.as_bytes())
}

fn hash_bytes(bytes: &[u8]) -> u64 {
    let start = 0xcbf2_9ce4_8422_2325;
    bytes.iter().fold(start, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

fn write_is_asked() -> bool {
    std::env::var_os("FUZZ_WRITE").is_some()
}
