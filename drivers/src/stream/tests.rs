use super::*;

fn spec(text: &str) -> Result<Box<dyn SourceSpec>, String> {
    daq_testkit::source::parse(&ENTRY, &format!("[source.far]\n{text}"))
}

fn context(spec: &dyn SourceSpec) -> SourceContext {
    daq_testkit::source::context(spec.frames(4096).unwrap().geometry)
}

const LISTEN: &str = "transport = \"rdma\"\nlisten = \"127.0.0.1:0\"\n";

#[test]
fn contradicting_keys_are_reported() {
    let cases = [
        ("nics = []", "no NIC is named"),
        ("nics = [\"auto\", \"mlx5_0\"]", "`auto` cannot be combined"),
        ("nics = [\"mlx5_0\"]\nqueue_pairs = 0", "queue pairs is 0"),
        (
            "nics = [\"mlx5_0\"]\nqueue_pairs = 256",
            "queue pairs is 256",
        ),
        ("nics = [\"mlx5_0\", \"emulated\"]", "cannot be combined"),
        (
            "nics = [\"emulated:127.0.0.1\"]\nconnection = \"cm\"",
            "rdma_cm does not support",
        ),
        (
            "nics = [\"mlx5_0\"]\nconnection = \"cm\"\nservice = \"uc\"",
            "only reliable connections",
        ),
        (
            "nics = [\"mlx5_0\", \"mlx5_1\"]\nconnection = \"cm\"",
            "only one NIC",
        ),
        (
            "nics = [\"mlx5_0\"]\npackets_per_frame = 1048577",
            "the maximum is 1048576",
        ),
        (
            "nics = [\"mlx5_0\"]\nservice = \"ud\"",
            "writes are not supported on ud",
        ),
        (
            "nics = [\"mlx5_0\"]\nmode = \"send\"\nservice = \"uc\"",
            "only on rc and ud",
        ),
        (
            "nics = [\"a\", \"b\"]\nmode = \"send\"\nservice = \"ud\"",
            "one queue pair",
        ),
        (
            "nics = [\"mlx5_0\"]\npackets_per_frame = 0",
            "must be at least 1",
        ),
        ("nics = [\"mlx5_0\"]\ncores = [1, 2]", "2 cores"),
        (
            "nics = [\"mlx5_0\"]\npackets_per_frmae = 1",
            "packets_per_frame",
        ),
    ];
    for (text, expected) in cases {
        let error = spec(&format!("{LISTEN}{text}")).err().unwrap_or_default();
        assert!(error.contains(expected), "{text}: {error}");
    }
}

#[test]
fn plan_gets_requirements_of_nics() {
    let card = spec(&format!(
        "{LISTEN}nics = [\"mlx5_1:2@3\"]\npackets_per_frame = 3"
    ))
    .unwrap();
    let facts = card.facts();
    let needs = facts.engine.unwrap();
    assert_eq!(
        (needs.device.as_deref(), needs.writer),
        (Some("mlx5_1"), Writer::Nic)
    );
    assert!(
        needs.host_only.is_none()
            && needs.faults.contains(&"bad-record")
            && facts.supports_backpressure
    );
    let geometry = card.frames(100).unwrap().geometry;
    assert_eq!((geometry.packets_per_frame, geometry.frame_bytes), (3, 100));
    assert!(card.frames(2).is_err());
    assert_eq!(
        facts.claims,
        [Claim::TcpPort("127.0.0.1:0".parse().unwrap())]
    );

    let software = spec(&format!("{LISTEN}nics = [\"emulated\"]\nservice = \"uc\"")).unwrap();
    let facts = software.facts();
    let needs = facts.engine.unwrap();
    assert!(needs.device.is_none() && needs.host_only.is_some() && !facts.supports_backpressure);
    let datagrams = spec(&format!(
        "{LISTEN}nics = [\"emulated\"]\nmode = \"send\"\nservice = \"ud\""
    ))
    .unwrap();
    let slot = datagrams.facts().preferred_slot.unwrap();
    assert!(datagrams.frames(slot).is_ok() && datagrams.frames(1 << 20).is_err());
}

#[test]
fn engine_is_built_from_nics_and_listen_address() {
    let text = format!("{LISTEN}nics = [\"emulated\", \"emulated\"]\nqueue_pairs = 2");
    let spec = spec(&text).unwrap();
    let Producers::Engine(engine) = spec.build(&context(&*spec)).unwrap() else {
        panic!("it is an engine")
    };
    assert_eq!(
        (engine.info().name, engine.info().faults),
        ("stream", receiver::INFO.faults)
    );
    assert!(engine.caps().supports_backpressure);
}

#[test]
fn tcp_needs_no_nic_and_rejects_keys_of_rdma() {
    const TCP: &str = "transport = \"tcp\"\nlisten = \"127.0.0.1:0\"\n";
    let tcp = spec(&format!("{TCP}connections = 3")).unwrap();
    let facts = tcp.facts();
    let needs = facts.engine.unwrap();
    assert!(needs.device.is_none() && facts.supports_backpressure);
    assert!(needs.host_only.is_some_and(|why| why.contains("TCP")));
    assert!(facts.origins[0].ends_with("received by tcp"));
    assert!(
        facts
            .notes
            .iter()
            .any(|note| note.contains("3 TCP connections"))
    );
    let Producers::Engine(engine) = tcp.build(&context(&*tcp)).unwrap() else {
        panic!("it is an engine")
    };
    assert_eq!(engine.device().name(), "tcp");
    let cases = [
        ("nics = [\"mlx5_0\"]", "remove `nics`"),
        ("queue_pairs = 2", "set `connections`"),
        ("connection = \"cm\"", "remove `connection`"),
        ("mode = \"send\"", "remove `mode`"),
        ("service = \"rc\"", "remove `service`"),
        ("path = \"direct\"", "remove `path`"),
        ("relaxed_ordering = true", "remove `relaxed_ordering`"),
        ("connections = 0", "1 to 32, not 0"),
    ];
    for (text, expected) in cases {
        let error = spec(&format!("{TCP}{text}")).err().unwrap_or_default();
        assert!(error.contains(expected), "{text}: {error}");
    }
    let error = spec(&format!("{LISTEN}connections = 2"))
        .err()
        .unwrap_or_default();
    assert!(error.contains("set `queue_pairs`"), "{error}");
    let auto = spec(LISTEN).unwrap();
    assert_eq!(auto.facts().engine.unwrap().device.as_deref(), Some("auto"));
    let unknown = LISTEN.replace("rdma", "udp");
    let error = spec(&unknown).err().unwrap_or_default();
    assert!(error.contains("`transport` cannot be \"udp\""), "{error}");
}

#[test]
fn missing_nic_is_named() {
    let nic = spec(&format!("{LISTEN}nics = [\"nosuch0\"]")).unwrap();
    let error = nic.build(&context(&*nic)).err().unwrap().to_string();
    assert!(error.contains("nosuch0"), "{error}");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let second = spec(&format!(
        "transport = \"rdma\"\nlisten = \"{address}\"\nnics = [\"emulated\"]"
    ))
    .unwrap();
    let error = second.build(&context(&*second)).err().unwrap().to_string();
    assert!(error.contains(&address.to_string()), "{error}");
}

#[test]
fn auto_uses_planned_nic() {
    let auto = spec(&format!("{LISTEN}nics = \"auto\"")).unwrap();
    assert_eq!(auto.facts().engine.unwrap().device.as_deref(), Some("auto"));
    let mut context = context(&*auto);
    context.nic = Some("nosuch0".to_owned());
    let error = auto.build(&context).err().unwrap().to_string();
    assert!(error.contains("nosuch0"), "{error}");
    context.nic = None;
    let error = auto.build(&context).err().unwrap().to_string();
    assert!(error.contains("nics = [\"emulated\"]"), "{error}");
}
