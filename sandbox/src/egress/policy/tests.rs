use proptest::prelude::*;

use super::*;

fn policy(text: &str) -> Policy {
    text.parse()
        .unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn name(text: &str) -> DomainName {
    text.parse().unwrap()
}

fn connect(policy: &Policy, to: &str, names: &[&str]) -> Decision {
    let names: Vec<_> = names.iter().map(|text| name(text)).collect();
    policy.decide(&Request::Connect {
        to: to.parse().unwrap(),
        names: &names,
        is_own: false,
    })
}

fn named(policy: &Policy, to: &str, said: &str, names: &[&str]) -> Decision {
    let names: Vec<_> = names.iter().map(|text| name(text)).collect();
    policy.decide(&Request::Named {
        to: to.parse().unwrap(),
        name: &name(said),
        names: &names,
    })
}

fn carry(decision: &Decision) -> Option<Carry> {
    match decision {
        Decision::Allowed { carry, .. } => Some(*carry),
        Decision::Denied(_) => None,
    }
}

fn why(decision: Decision) -> Denied {
    match decision {
        Decision::Denied(denied) => denied,
        Decision::Allowed { rule, .. } => panic!("allowed by {rule}"),
    }
}

#[test]
fn policies_are_shown_as_they_are_read() {
    for text in [
        "none",
        "open",
        "allow example.org",
        "allow *.example.org:443,8000-8100, 10.0.0.0/8:5432; deny 10.1.0.0/16",
        "open; deny ads.example",
        "none; deny example.org",
        "open; allow 127.0.0.1:5432; deny 10.0.0.0/8",
    ] {
        assert_eq!(policy(text).to_string(), text);
    }
    for text in [
        "",
        "open none",
        "none; open",
        "permit a.example",
        "allow",
        "allow a.example,b.example",
    ] {
        assert!(text.parse::<Policy>().is_err(), "{text}");
    }
}

#[test]
fn json_is_strict() {
    let read = |text: &str| serde_json::from_str::<Policy>(text);
    assert_eq!(read("{}").unwrap(), Policy::none());
    assert_eq!(read(r#"{"default":"allow"}"#).unwrap(), Policy::open());
    let some =
        read(r#"{"allow":["B.example","a.example","a.example"],"deny":["10.0.0.0/8"]}"#).unwrap();
    assert_eq!(
        some.to_string(),
        "allow a.example, b.example; deny 10.0.0.0/8"
    );
    assert_eq!(
        serde_json::to_string(&some).unwrap(),
        r#"{"default":"deny","allow":["a.example","b.example"],"deny":["10.0.0.0/8"]}"#
    );
    for text in [
        r#"{"allowed":[]}"#,
        r#"{"default":"maybe"}"#,
        r#"{"allow":["http://a"]}"#,
    ] {
        assert!(read(text).is_err(), "{text}");
    }
    let many: Vec<String> = (0..=MAX_RULES).map(|n| format!("a{n}.example")).collect();
    let error = Policy::from_words(Policy::none(), &many, None::<&str>).unwrap_err();
    assert_eq!(
        error,
        PolicyError::TooMany {
            found: MAX_RULES + 1
        }
    );
}

#[test]
fn lookups_follow_the_names() {
    let some = policy(
        "allow example.org, *.example.org, tcp:db.example.net:5432; deny bad.example.org, odd.example.org:80",
    );
    for (asked, allowed) in [
        ("example.org", true),
        ("a.b.example.org", true),
        ("db.example.net", true),
        ("odd.example.org", true),
        ("bad.example.org", false),
        ("example.net", false),
        ("example.com", false),
    ] {
        let decision = some.decide(&Request::Lookup(&name(asked)));
        assert_eq!(decision.is_allowed(), allowed, "{asked}: {decision:?}");
    }
    let open = policy("open; deny bad.example.org");
    assert!(
        open.decide(&Request::Lookup(&name("a.example")))
            .is_allowed()
    );
    assert!(
        !open
            .decide(&Request::Lookup(&name("bad.example.org")))
            .is_allowed()
    );
    let none = why(Policy::none().decide(&Request::Lookup(&name("a.example"))));
    assert_eq!(none.rule, "the policy `none`");
    assert_eq!(none.destination, "a.example");
    assert!(
        none.how_to_ask
            .ends_with("policy allow <sandbox> a.example`"),
        "{none}"
    );
}

#[test]
fn no_name_leads_to_private_or_guarded_addresses() {
    let resolved = |policy: &Policy, address: &str| {
        policy
            .decide(&Request::Resolved(
                &name("example.org"),
                address.parse().unwrap(),
            ))
            .is_allowed()
    };
    let by_name = policy("allow example.org");
    for address in [
        "10.0.0.1",
        "192.168.1.1",
        "172.31.0.1",
        "127.0.0.1",
        "169.254.169.254",
        "224.0.0.1",
        "0.0.0.0",
        "100.64.0.1",
        "255.255.255.255",
    ] {
        assert!(!resolved(&by_name, address), "{address}");
    }
    assert!(resolved(&by_name, "93.184.216.34"));
    let by_range = policy("allow example.org, 10.0.0.0/8:5432, 127.0.0.1:80; deny 10.9.0.0/16");
    assert!(resolved(&by_range, "10.0.0.1") && resolved(&by_range, "127.0.0.1"));
    assert!(!resolved(&by_range, "10.9.0.1") && !resolved(&by_range, "127.0.0.2"));
    assert!(resolved(&Policy::open(), "10.0.0.1") && !resolved(&Policy::open(), "127.0.0.1"));
}

#[test]
fn connections_go_where_an_allowed_name_led() {
    let some =
        policy("allow example.org, tcp:db.example.org:5432, 10.0.0.0/8:22; deny 10.1.0.0/16");
    let to = "93.184.216.34";
    let table: &[(&str, u16, &[&str], Option<Carry>)] = &[
        (to, 443, &["example.org"], Some(Carry::ByName)),
        (
            to,
            80,
            &["other.example", "example.org"],
            Some(Carry::ByName),
        ),
        (to, 8443, &["example.org"], None),
        (to, 443, &[], None),
        (to, 443, &["other.example"], None),
        (to, 5432, &["db.example.org"], Some(Carry::Blindly)),
        (to, 443, &["db.example.org"], None),
        ("10.0.0.1", 22, &[], Some(Carry::Blindly)),
        ("10.0.0.1", 23, &[], None),
        ("10.1.0.1", 22, &[], None),
        ("10.0.0.1", 443, &["example.org"], Some(Carry::ByName)),
        ("192.168.0.1", 443, &["example.org"], None),
        ("127.0.0.1", 443, &["example.org"], None),
    ];
    for &(address, port, names, expected) in table {
        let decision = connect(&some, &format!("{address}:{port}"), names);
        assert_eq!(
            carry(&decision),
            expected,
            "{address}:{port} {names:?}: {decision:?}"
        );
    }
}

#[test]
fn an_open_policy_keeps_its_guards_and_its_denials() {
    let open = policy("open; allow 127.0.0.1:5432; deny 10.0.0.0/8, ads.example");
    for (to, names, expected) in [
        ("93.184.216.34:22", &[][..], Some(Carry::Blindly)),
        ("93.184.216.34:443", &[], Some(Carry::ByName)),
        ("192.168.0.1:22", &[], Some(Carry::Blindly)),
        ("93.184.216.34:22", &["ads.example"], None),
        (
            "93.184.216.34:443",
            &["ads.example", "good.example"],
            Some(Carry::ByName),
        ),
        ("10.0.0.1:22", &[], None),
        ("127.0.0.1:5432", &[], Some(Carry::Blindly)),
        ("127.0.0.1:80", &[], None),
        ("169.254.169.254:80", &[], None),
    ] {
        let decision = connect(&open, to, names);
        assert_eq!(carry(&decision), expected, "{to} {names:?}: {decision:?}");
    }
    assert!(!named(&open, "93.184.216.34:443", "ads.example", &[]).is_allowed());
    assert!(named(&open, "93.184.216.34:443", "good.example", &[]).is_allowed());
}

#[test]
fn the_node_itself_is_reached_only_by_a_rule_for_one_address() {
    let own = |policy: &Policy| {
        policy
            .decide(&Request::Connect {
                to: "192.168.1.5:5432".parse().unwrap(),
                names: &[],
                is_own: true,
            })
            .is_allowed()
    };
    assert!(!own(&Policy::open()));
    assert!(!own(&policy("allow 192.168.0.0/16")));
    assert!(own(&policy("allow 192.168.1.5:5432")));
}

#[test]
fn what_a_connection_says_must_be_allowed_and_have_led_there() {
    let some = policy("allow example.org, *.cdn.example; deny bad.cdn.example");
    let to = "93.184.216.34:443";
    assert!(named(&some, to, "example.org", &["example.org"]).is_allowed());
    assert!(
        named(
            &some,
            to,
            "a.cdn.example",
            &["example.org", "a.cdn.example"]
        )
        .is_allowed()
    );
    let elsewhere = why(named(&some, to, "a.cdn.example", &["example.org"]));
    assert_eq!(elsewhere.destination, "a.cdn.example:443 at 93.184.216.34");
    assert!(!named(&some, to, "bad.cdn.example", &["bad.cdn.example"]).is_allowed());
    assert!(!named(&some, to, "other.example", &["other.example"]).is_allowed());
    assert!(!named(&some, "93.184.216.34:8443", "example.org", &["example.org"]).is_allowed());
}

fn rule_text() -> impl Strategy<Value = String> {
    let host = prop::sample::select(vec![
        "a.example",
        "*.example",
        "b.a.example",
        "10.0.0.0/8",
        "127.0.0.1",
        "0.0.0.0/0",
        "93.184.216.0/24",
    ]);
    let ports = prop::sample::select(vec!["", ":443", ":80,443", ":1-1024", ":5432"]);
    (host, ports).prop_map(|(host, ports)| format!("{host}{ports}"))
}

fn any_policy() -> impl Strategy<Value = Policy> {
    let rules = || prop::collection::vec(rule_text(), 0..5);
    (any::<bool>(), rules(), rules()).prop_map(|(open, allow, deny)| {
        let base = if open { Policy::open() } else { Policy::none() };
        Policy::from_words(base, allow, deny).unwrap()
    })
}

fn address() -> impl Strategy<Value = Ipv4Addr> {
    prop_oneof![
        any::<u32>().prop_map(Ipv4Addr::from_bits),
        prop::sample::select(vec![
            [10, 1, 2, 3],
            [127, 0, 0, 1],
            [93, 184, 216, 34],
            [169, 254, 169, 254]
        ])
        .prop_map(Ipv4Addr::from),
    ]
}

proptest! {
    #[test]
    fn every_policy_survives_text_and_json(policy in any_policy()) {
        prop_assert_eq!(&policy.to_string().parse::<Policy>().unwrap(), &policy);
        let json = serde_json::to_string(&policy).unwrap();
        prop_assert_eq!(&serde_json::from_str::<Policy>(&json).unwrap(), &policy);
    }

    #[test]
    fn any_text_is_a_policy_or_an_error(text in ".{0,80}") {
        let _ = text.parse::<Policy>();
        let _ = text.parse::<Rule>();
        let _ = DomainName::from_wire(text.as_bytes());
    }

    #[test]
    fn a_deny_rule_never_lets_more_through(
        policy in any_policy(), extra in rule_text(), address in address(), port in 1_u16..,
    ) {
        let stricter = Policy::from_words(policy.clone(), None::<&str>, [extra]).unwrap();
        let names = [name("a.example"), name("b.a.example")];
        let to = SocketAddrV4::new(address, port);
        let request = Request::Connect { to, names: &names, is_own: false };
        prop_assert!(!stricter.decide(&request).is_allowed() || policy.decide(&request).is_allowed());
        for name in &names {
            let request = Request::Named { to, name, names: &names };
            prop_assert!(!stricter.decide(&request).is_allowed() || policy.decide(&request).is_allowed());
        }
    }

    #[test]
    fn nothing_reaches_a_guarded_address_by_a_name(
        open in any::<bool>(), port in 1_u16.., last in any::<u8>(),
    ) {
        let base = if open { Policy::open() } else { Policy::none() };
        let policy = Policy::from_words(base, ["a.example:1-65535", "0.0.0.0/0"], None::<&str>).unwrap();
        let names = [name("a.example")];
        for first in [127, 169, 224, 240] {
            let second = if first == 169 { 254 } else { 0 };
            let to = SocketAddrV4::new(Ipv4Addr::new(first, second, 0, last), port);
            let request = Request::Connect { to, names: &names, is_own: false };
            prop_assert!(!policy.decide(&request).is_allowed());
        }
    }
}
