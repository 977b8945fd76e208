use super::*;
use crate::verbs::{Limits, NicEvent, Port, QueuePair, QueuePairOptions};
use daq_core::region::HostOptions;
use daq_testkit::assert_contains;
use daq_testkit::assert_fields;
use std::sync::Mutex;

const GPU: Placement = Placement::Cuda(0);
/// Error numbers that a registration can return; 0 is success.
const ANSWERS: [i32; 13] = [
    0,
    libc::EPERM,
    libc::EIO,
    libc::EAGAIN,
    libc::ENOMEM,
    libc::EACCES,
    libc::EFAULT,
    libc::EINVAL,
    libc::ENOSPC,
    libc::ENOSYS,
    libc::EOPNOTSUPP,
    libc::EPROTONOSUPPORT,
    ENOTSUPP,
];
const MODULES: [Option<&str>; 3] = [None, Some("nvidia_peermem"), Some("nv_peer_mem")];
const MAYBE: [Option<bool>; 3] = [None, Some(false), Some(true)];

fn error(errno: i32) -> VerbsError {
    VerbsError {
        nic: "fake".to_owned(),
        call: "ibv_reg_mr".to_owned(),
        errno,
        why: String::new(),
    }
}

fn all_facts() -> Vec<PeerFacts> {
    let mut all = Vec::new();
    for peer_module in MODULES {
        for open_modules in MAYBE {
            for remaps_peers in MAYBE {
                for rdma in MAYBE {
                    all.extend(MAYBE.map(|dma_buf| PeerFacts {
                        peer_module,
                        open_modules,
                        remaps_peers,
                        rdma,
                        dma_buf,
                    }));
                }
            }
        }
    }
    all
}

#[test]
fn registration_falls_back_to_best_remaining_method() {
    let mut cases = 0;
    for facts in all_facts() {
        for by_buffer in ANSWERS {
            for by_peer in ANSWERS {
                cases += 1;
                let mut tried = Vec::new();
                let result = try_methods(GPU, &facts, |method| {
                    tried.push(method);
                    let errno = match method {
                        RegistrationMethod::DmaBuf => by_buffer,
                        RegistrationMethod::Peer => by_peer,
                        RegistrationMethod::Host => {
                            panic!("GPU memory must not be registered as host memory")
                        }
                    };
                    if errno == 0 {
                        Ok(method)
                    } else {
                        Err(error(errno))
                    }
                });
                let tries_buffer = facts.dma_buf != Some(false);
                let has_buffer = tries_buffer && by_buffer == 0;
                let tries_peer =
                    !has_buffer && facts.peer_module.is_some() && facts.rdma != Some(false);
                let mut wanted = Vec::new();
                wanted.extend(tries_buffer.then_some(RegistrationMethod::DmaBuf));
                wanted.extend(tries_peer.then_some(RegistrationMethod::Peer));
                assert_eq!(tried, wanted, "{facts:?}");
                let mut refusals = Vec::new();
                if !has_buffer {
                    refusals.push((
                        RegistrationMethod::DmaBuf,
                        if tries_buffer { by_buffer } else { 0 },
                    ));
                }
                let has_peer = tries_peer && by_peer == 0;
                if !has_buffer && !has_peer {
                    refusals.push((
                        RegistrationMethod::Peer,
                        if tries_peer { by_peer } else { 0 },
                    ));
                }
                let attempts = match &result {
                    Ok((_, refused)) | Err(refused) => refused,
                };
                let method = result.as_ref().ok().map(|(method, _)| *method);
                let best = has_peer.then_some(RegistrationMethod::Peer);
                assert_eq!(
                    method,
                    has_buffer.then_some(RegistrationMethod::DmaBuf).or(best)
                );
                let found: Vec<_> = attempts.iter().map(|one| (one.method, one.errno)).collect();
                assert_eq!(found, refusals, "{facts:?} {by_buffer} {by_peer}");
                for one in attempts {
                    assert!(!one.why.is_empty() && !one.remedy.is_empty(), "{one}");
                    let answer = std::io::Error::from_raw_os_error(one.errno).to_string();
                    assert!(one.errno == 0 || one.why.contains(&answer), "{one}");
                }
            }
        }
    }
    assert_eq!(cases, 3 * 81 * 169);
}

#[test]
fn dma_buf_refused_with_524_names_error_and_fix() {
    let ask = |open_modules| {
        let facts = PeerFacts {
            open_modules,
            ..PeerFacts::default()
        };
        let refused = try_methods(GPU, &facts, |_| Err::<(), _>(error(524))).unwrap_err();
        assert_fields!(refused[0] => method: RegistrationMethod::DmaBuf, errno: 524);
        refused[0].to_string()
    };
    for (open_modules, remedy) in [
        (Some(false), "install NVIDIA's open kernel modules"),
        (Some(true), "CONFIG_PCI_P2PDMA"),
        (None, "CONFIG_PCI_P2PDMA"),
    ] {
        let text = ask(open_modules);
        assert_contains!(text => "ENOTSUPP", remedy, "modprobe nvidia-peermem");
        assert!(!text.contains("dmesg"), "{text}");
    }
}

#[derive(Debug, Default)]
struct FakeNic {
    answer: i32,
    asked: Mutex<Vec<(RegistrationMethod, Access)>>,
}

impl Nic for FakeNic {
    fn name(&self) -> &'static str {
        "fake"
    }

    fn limits(&self) -> Limits {
        unreachable!("registering memory does not read the limits")
    }

    fn port(&self) -> Result<Port, VerbsError> {
        Err(error(libc::EIO))
    }

    fn register(
        &self,
        region: &Arc<Region>,
        method: RegistrationMethod,
        access: Access,
    ) -> Result<MemoryRegion, VerbsError> {
        self.asked.lock().unwrap().push((method, access));
        if self.answer == 0 {
            Ok(MemoryRegion::new(
                Box::new(()),
                Arc::clone(region),
                method,
                (1, 2),
                3,
            ))
        } else {
            Err(error(self.answer))
        }
    }

    fn create_queue_pair(&self, _: &QueuePairOptions) -> Result<Box<dyn QueuePair>, VerbsError> {
        Err(error(libc::EIO))
    }

    fn event(&self) -> Option<NicEvent> {
        None
    }
}

#[test]
fn host_memory_has_one_method_and_words_never_relaxed_ordering() {
    let region = Region::host(1, HostOptions::default()).unwrap();
    for facts in all_facts() {
        for answer in ANSWERS {
            for bits in 0..8 {
                let access = Access {
                    local_write: bits & 1 > 0,
                    remote_write: bits & 2 > 0,
                    relaxed: bits & 4 > 0,
                };
                let nic = FakeNic {
                    answer,
                    ..FakeNic::default()
                };
                let payload = register_region(&nic, &region, access, &facts);
                let telling = register_words(&nic, &region, access);
                let strict = Access {
                    relaxed: false,
                    ..access
                };
                let asked = nic.asked.into_inner().unwrap();
                assert_eq!(
                    asked,
                    [
                        (RegistrationMethod::Host, access),
                        (RegistrationMethod::Host, strict)
                    ]
                );
                assert_eq!(
                    (payload.is_ok(), telling.is_ok()),
                    (answer == 0, answer == 0)
                );
                if let Err(refused) = payload {
                    assert_eq!(refused.refused.len(), 1);
                    assert_eq!(refused.refused[0].errno, answer);
                    assert!(refused.to_string().contains("host memory"), "{refused}");
                }
            }
        }
    }
}

#[test]
fn fixes_match_findings() {
    let facts = |open, module| PeerFacts {
        open_modules: Some(open),
        peer_module: module,
        remaps_peers: Some(false),
        ..PeerFacts::default()
    };
    let fits = |method, errno, facts: &PeerFacts, word: &str| {
        let text = remedy(method, errno, facts);
        assert!(text.contains(word), "{method} {errno}: {text}");
    };
    fits(
        RegistrationMethod::DmaBuf,
        libc::EOPNOTSUPP,
        &facts(false, None),
        "open kernel modules",
    );
    fits(
        RegistrationMethod::DmaBuf,
        libc::EOPNOTSUPP,
        &facts(true, None),
        "on-demand paging",
    );
    fits(
        RegistrationMethod::DmaBuf,
        libc::EIO,
        &facts(true, None),
        "DmaRemapPeerMmio",
    );
    fits(
        RegistrationMethod::DmaBuf,
        libc::ENOMEM,
        &facts(true, None),
        "BAR1",
    );
    let none = PeerFacts {
        peer_module: Some("nv_peer_mem"),
        ..PeerFacts::default()
    };
    fits(
        RegistrationMethod::Peer,
        libc::EFAULT,
        &none,
        "rmmod nv_peer_mem",
    );
    fits(RegistrationMethod::Host, libc::ENOMEM, &none, "ulimit -l");
    fits(RegistrationMethod::Host, libc::EPERM, &none, "LimitMEMLOCK");
}

#[test]
fn facts_are_read_from_system() {
    let root = tempfile::tempdir().unwrap();
    assert_eq!(PeerFacts::read(root.path()), PeerFacts::default());
    let write = |path: &str, text: &str| {
        let path = root.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    write("sys/module/nv_peer_mem/refcnt", "0\n");
    write(
        "proc/driver/nvidia/version",
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Release Build\n",
    );
    write(
        "proc/driver/nvidia/params",
        "ResmanDebugLevel: 4294967295\nDmaRemapPeerMmio: 1\nRegistryDwords: \"\"\n",
    );
    let mut wanted = PeerFacts {
        peer_module: Some("nv_peer_mem"),
        open_modules: Some(false),
        remaps_peers: Some(true),
        rdma: None,
        dma_buf: None,
    };
    assert_eq!(PeerFacts::read(root.path()), wanted);
    write("sys/module/nvidia_peermem/refcnt", "0\n");
    write(
        "proc/driver/nvidia/version",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05\n",
    );
    write("proc/driver/nvidia/params", "DmaRemapPeerMmio: 0\n");
    wanted.peer_module = Some("nvidia_peermem");
    wanted.open_modules = Some(true);
    wanted.remaps_peers = Some(false);
    assert_eq!(PeerFacts::read(root.path()), wanted);
}
