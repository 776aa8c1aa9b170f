//! What is said where, and what counts.
use super::*;

fn load(file: Option<&str>, flags: UpFlags) -> Result<Config, ConfigError> {
    let temp = tempfile::tempdir().unwrap();
    if let Some(file) = file {
        fs::write(temp.path().join("config.json"), file).unwrap();
    }
    Config::load(temp.path(), flags)
}

#[test]
fn defaults_need_no_file() {
    let config = load(None, UpFlags::default()).unwrap();
    assert_eq!(config.bind, "0.0.0.0:4580".parse().unwrap());
    assert!(config.mdns && config.sandboxes);
    assert_eq!(config.images_dir, config.data_dir.join("images"));
    assert_eq!(config.accel, Accel::Auto);
}

#[test]
fn flags_beat_the_file_and_the_file_beats_defaults() {
    let file = r#"{"name":"file","bind":"127.0.0.1:1","mdns":false,"images_dir":"shared"}"#;
    let flags = UpFlags {
        name: Some("flag".into()),
        ..UpFlags::default()
    };
    let config = load(Some(file), flags).unwrap();
    assert_eq!(config.name, "flag");
    assert_eq!(config.bind, "127.0.0.1:1".parse().unwrap());
    assert!(!config.mdns);
    assert_eq!(config.images_dir, config.data_dir.join("shared"));
    let settings = config.settings();
    let from = |name: &str| &settings.iter().find(|s| s.name == name).unwrap().from[..];
    assert_eq!(
        ["name", "bind", "mdns", "images_dir", "kernel"].map(from),
        ["flag", "file", "file", "file", "default"]
    );
}

#[test]
fn a_relay_listens_beside_the_node_unless_told_otherwise() {
    let file = r#"{"bind":"127.0.0.1:7","relay":{"url":"https://relay.example.org/"}}"#;
    let config = load(Some(file), UpFlags::default()).unwrap();
    let relay = config.relay.as_ref().unwrap().config(config.bind);
    assert_eq!(relay.listen, config.bind);
    assert_eq!(relay.url.as_deref(), Some("https://relay.example.org/"));
    let relay = RelayFlags {
        serve: true,
        listen: Some("127.0.0.1:8".parse().unwrap()),
        url: None,
    };
    let flags = UpFlags {
        relay,
        ..UpFlags::default()
    };
    let config = load(Some(file), flags.clone()).unwrap();
    let relay = config.relay.as_ref().unwrap().config(config.bind);
    assert_eq!(relay.listen, "127.0.0.1:8".parse().unwrap());
    assert_eq!(relay.url.as_deref(), Some("https://relay.example.org/"));
    assert_eq!(load(None, UpFlags::default()).unwrap().relay, None);
    let args = flags.to_args().join(std::ffi::OsStr::new(" "));
    assert_eq!(args, "--relay --relay-listen 127.0.0.1:8");
    let bad = load(
        Some(r#"{"relay":{"url":"relay.example.org"}}"#),
        UpFlags::default(),
    );
    assert!(matches!(bad, Err(ConfigError::RelayUrl { .. })));
}

#[test]
fn what_cannot_be_used_is_refused() {
    let unknown = load(Some(r#"{"nmae":"x"}"#), UpFlags::default());
    assert!(matches!(unknown, Err(ConfigError::Parse { .. })));
    let name = load(Some(r#"{"name":"a\nb"}"#), UpFlags::default());
    assert!(matches!(name, Err(ConfigError::Name { .. })));
    let flags = UpFlags {
        advertise: vec!["0.0.0.0:1".parse().unwrap()],
        ..UpFlags::default()
    };
    assert!(matches!(
        load(None, flags),
        Err(ConfigError::Advertise { .. })
    ));
}

#[test]
fn shares_are_set_one_by_one_and_never_to_nothing() {
    let shares = |text: &str| {
        let file = format!(r#"{{"memory":{{"shares":{text}}}}}"#);
        load(Some(&file), UpFlags::default()).map(|config| config.memory.shares)
    };
    let set = shares(r#"{"author":{"bytes_a_day":9,"fragments_a_minute":3}}"#).unwrap();
    let default = ShareLimits::default();
    assert_eq!(
        (set.author.bytes_a_day, set.author.fragments_a_minute),
        (9, 3)
    );
    assert_eq!((set.node, set.refuse_at), (default.node, default.refuse_at));
    for nothing in [
        r#"{"refuse_at":0}"#,
        r#"{"space":{"bytes_a_day":1,"fragments_a_minute":0}}"#,
    ] {
        assert!(
            matches!(shares(nothing), Err(ConfigError::Shares)),
            "{nothing}"
        );
    }
    let half = shares(r#"{"author":{"bytes_a_day":9}}"#);
    assert!(matches!(half, Err(ConfigError::Parse { .. })), "{half:?}");
}
