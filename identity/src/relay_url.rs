//! What the URL of a relay looks like, wherever one is signed or read.

/// The longest URL of a relay, in bytes.
pub const MAX_RELAY_URL_BYTES: usize = 128;

/// Whether `url` can be the URL of a relay: `http` or `https`, a host, printable ASCII.
///
/// Whoever dials it parses it in full; this keeps what is signed short and harmless to show.
pub fn is_relay_url(url: &str) -> bool {
    let host = url
        .strip_prefix("http://")
        .or_else(|| url.strip_prefix("https://"));
    let is_plain = url.bytes().all(|byte| byte.is_ascii_graphic());
    let has_host = host.is_some_and(|host| !host.is_empty() && !host.starts_with(['/', ':']));
    is_plain && has_host && url.len() <= MAX_RELAY_URL_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relays_are_short_plain_urls() {
        for good in [
            "http://10.0.0.2:4583/",
            "https://relay.example.org",
            "http://[::1]:1/",
        ] {
            assert!(is_relay_url(good), "{good}");
        }
        let long = format!("http://{}", "a".repeat(MAX_RELAY_URL_BYTES));
        let bad = [
            "",
            "http://",
            "https:///x",
            "http://:80/",
            "ws://a",
            "http://a b",
            &long,
        ];
        for bad in bad.into_iter().chain(["http://\u{202e}a", "http://a\n"]) {
            assert!(!is_relay_url(bad), "{bad}");
        }
    }
}
