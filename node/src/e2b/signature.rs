//! Signed URLs: whoever holds one may read or write one file of a sandbox, for some time.
use ring::digest::{SHA256, digest};

/// What a URL says about itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Signed<'a> {
    pub(crate) path: &'a str,
    pub(crate) user: &'a str,
    pub(crate) signature: &'a str,
    /// Unix seconds.
    pub(crate) expires: Option<&'a str>,
}

/// Why a URL opens nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unsigned {
    /// It is not what the sandbox's token makes of it.
    Wrong,
    /// Its time is over.
    Expired,
}

impl Signed<'_> {
    /// Checks it against the token of a sandbox.
    pub(crate) fn check(&self, token: &str, writes: bool, now_secs: u64) -> Result<(), Unsigned> {
        let expected = signature(self.path, writes, self.user, token, self.expires);
        if !constant_time_eq(expected.as_bytes(), self.signature.as_bytes()) {
            return Err(Unsigned::Wrong);
        }
        match self.expires.map(str::parse::<u64>) {
            None => Ok(()),
            Some(Ok(until)) if until >= now_secs => Ok(()),
            Some(_) => Err(Unsigned::Expired),
        }
    }
}

/// Returns what a client makes of a token for one file.
pub(crate) fn signature(
    path: &str,
    writes: bool,
    user: &str,
    token: &str,
    expires: Option<&str>,
) -> String {
    let operation = if writes { "write" } else { "read" };
    let mut text = format!("{path}:{operation}:{user}:{token}");
    if let Some(expires) = expires {
        text.push(':');
        text.push_str(expires);
    }
    let hash = digest(&SHA256, text.as_bytes());
    format!("v1_{}", data_encoding::BASE64_NOPAD.encode(hash.as_ref()))
}

/// Compares secrets without telling by the time it takes where they differ.
pub(crate) fn constant_time_eq(left: &[u8], right: &[u8]) -> bool {
    // Of equal length whatever they are, so that not even that shows.
    let (left, right) = (digest(&SHA256, left), digest(&SHA256, right));
    let differing = left
        .as_ref()
        .iter()
        .zip(right.as_ref())
        .fold(0, |differing, (l, r)| differing | (l ^ r));
    differing == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_opens_one_file_for_one_purpose_and_a_time() {
        let made = signature("/a", false, "", "token", Some("100"));
        let url = Signed {
            path: "/a",
            user: "",
            signature: &made,
            expires: Some("100"),
        };
        assert_eq!(url.check("token", false, 100), Ok(()));
        assert_eq!(url.check("token", false, 101), Err(Unsigned::Expired));
        assert_eq!(url.check("token", true, 100), Err(Unsigned::Wrong));
        assert_eq!(url.check("other", false, 100), Err(Unsigned::Wrong));
        let longer = Signed {
            expires: Some("999"),
            ..url.clone()
        };
        assert_eq!(longer.check("token", false, 100), Err(Unsigned::Wrong));
        let endless = Signed {
            expires: None,
            ..url
        };
        assert_eq!(endless.check("token", false, 100), Err(Unsigned::Wrong));
    }

    /// As their Python client 2.63.0 computes them, with a clock at 1,700,000,000.
    #[test]
    fn signatures_are_those_of_their_client() {
        for (path, writes, user, token, expires, theirs) in [
            (
                "/a",
                false,
                "",
                "token",
                None,
                "v1_aplmC4NkJq68ZefW7XTqyoyNGwWxiO32wjsTlW+LEX4",
            ),
            (
                "/home/ada/p.png",
                true,
                "ada",
                "token",
                Some("1700003600"),
                "v1_JPERYJJthn29t/PsDnUGOjNccnXJdD0LVqjOxsaGPaw",
            ),
            (
                "记忆.txt",
                false,
                "root",
                "s3cret",
                Some("1700000060"),
                "v1_0ZzDOwDkPPqd+s393asqt8xoOMg4U6Zg8Tw15ns4kdw",
            ),
        ] {
            assert_eq!(signature(path, writes, user, token, expires), theirs);
            let url = Signed {
                path,
                user,
                signature: theirs,
                expires,
            };
            assert_eq!(url.check(token, writes, 1_700_000_000), Ok(()));
            assert_eq!(url.check(token, !writes, 0), Err(Unsigned::Wrong));
            let late = expires.map_or(Ok(()), |_| Err(Unsigned::Expired));
            assert_eq!(url.check(token, writes, 1_700_009_999), late);
        }
    }
}
