//! The scenarios of `netsim/scenarios`, built in.

/// A scenario that is built in.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Shipped {
    /// Its name: that of its file, without the ending.
    pub name: &'static str,
    /// The text of its file.
    pub text: &'static str,
}

macro_rules! shipped {
    ($($name:literal),* $(,)?) => {
        &[$(Shipped {
            name: $name,
            text: include_str!(concat!("../../../scenarios/", $name, ".toml")),
        }),*]
    };
}

/// All scenarios that are built in, by name.
pub const SHIPPED: &[Shipped] = shipped![
    "byzantine",
    "churn",
    "clocks",
    "eclipse",
    "forks",
    "halved",
    "large",
    "nat",
    "newcomer",
    "relay-lost",
    "revoked",
    "slow-peer",
    "storm",
    "thousand",
    "two-days",
];
