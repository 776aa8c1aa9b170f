//! Keeping a panic inside the fence, and quiet.

use std::{
    cell::Cell,
    panic::{self, AssertUnwindSafe},
    sync::Once,
};

thread_local! {
    static FENCED: Cell<bool> = const { Cell::new(false) };
}

/// Runs `work`; a panic in it becomes an error that carries the panic's message.
///
/// What `work` changed must be thrown away after an error: automerge promises nothing about a
/// document that has panicked. The panic is not printed: it was caused by foreign bytes, and
/// whoever sent them shall not fill our logs.
pub(crate) fn fenced<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    quiet_fenced_panics();
    let before = FENCED.replace(true);
    let result = panic::catch_unwind(AssertUnwindSafe(work));
    FENCED.set(before);
    result.map_err(|payload| {
        let message = payload
            .downcast_ref::<&str>()
            .map(|text| (*text).to_owned())
            .or_else(|| payload.downcast_ref::<String>().cloned())
            .unwrap_or_else(|| "panic".to_owned());
        message.chars().take(200).collect()
    })
}

fn quiet_fenced_panics() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !FENCED.get() {
                before(info);
            }
        }));
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_an_error_with_its_message() {
        assert_eq!(fenced(|| 7), Ok(7));
        let fell = fenced(|| -> u8 { panic!("nothing there") });
        assert_eq!(fell, Err("nothing there".to_owned()));
        assert!(!FENCED.get());
    }
}
