//! libFuzzer over one target, chosen by `FUZZ_TARGET` (`docs/howto/fuzz.md`).
#![no_main]

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use rhizome_fuzz::targets;

static CHOSEN: OnceLock<fn(&[u8])> = OnceLock::new();

fuzz_target!(
    init: {
        let wanted = std::env::var("FUZZ_TARGET").unwrap_or_default();
        let all = targets();
        match all.iter().find(|(name, ..)| *name == wanted) {
            Some((_, target, _)) => CHOSEN.set(*target).expect("libFuzzer begins once"),
            None => {
                let names: Vec<_> = all.iter().map(|(name, ..)| *name).collect();
                eprintln!("FUZZ_TARGET is one of: {}", names.join(" "));
                std::process::exit(2);
            }
        }
    },
    |input: &[u8]| {
        CHOSEN.get().expect("it was chosen at the beginning")(input);
    }
);
