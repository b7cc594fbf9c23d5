//! The network between the members of an etcd cluster: one of them can be cut off from all others.
//!
//! Each member has a proxy of its own, to which all others connect. Who connects, etcd does not say in all of its requests, so the
//! process at the other end of the connection is looked for.

use std::net::TcpListener;
use std::sync::{Arc, Mutex};

use tokio::sync::watch;

use super::proxy::{Link, connect};

pub struct Links {
    peer_ports: Vec<u16>,
    members: Arc<Mutex<Vec<Option<Member>>>>,
    /// From the first to the second.
    between: Arc<Vec<Vec<watch::Sender<Link>>>>,
}

#[derive(Clone, Copy)]
struct Member {
    port: u16,
    process: u32,
}

impl Links {
    /// For so many members. It has to be called on a runtime with threads to spare.
    pub fn between(count: usize) -> Self {
        let open = || watch::Sender::new(Link::Open);
        let row = || (0..count).map(|_| open()).collect();
        let links = Self {
            peer_ports: Vec::new(),
            members: Arc::new(Mutex::new(vec![None; count])),
            between: Arc::new((0..count).map(|_| row()).collect()),
        };
        let peer_ports = (0..count).map(|nth| links.open_proxy(nth)).collect();
        Self {
            peer_ports,
            ..links
        }
    }

    pub fn peer_ports(&self) -> Vec<u16> {
        self.peer_ports.clone()
    }

    /// Where a member listens, and which process it is.
    pub fn lead_to(&self, nth: usize, port: u16, process: u32) {
        self.members.lock().unwrap()[nth] = Some(Member { port, process });
    }

    /// Nothing gets from it to the others, or back.
    pub fn cut_off(&self, nth: usize) {
        self.set_all_of(nth, Link::Swallow);
    }

    pub fn heal(&self, nth: usize) {
        self.set_all_of(nth, Link::Open);
    }

    fn set_all_of(&self, nth: usize, link: Link) {
        for other in 0..self.peer_ports.len() {
            self.between[nth][other].send_replace(link);
            self.between[other][nth].send_replace(link);
        }
    }

    fn open_proxy(&self, to: usize) -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let peer_port = listener.local_addr().unwrap().port();
        let listener = tokio::net::TcpListener::from_std(listener).unwrap();
        let (members, between) = (Arc::clone(&self.members), Arc::clone(&self.between));
        tokio::spawn(async move {
            while let Ok((client, address)) = listener.accept().await {
                let (members, between) = (Arc::clone(&members), Arc::clone(&between));
                tokio::spawn(async move {
                    let members = members.lock().unwrap().clone();
                    // Who is unknown is sent away, and comes again.
                    if let Some(from) = who_is_at(address.port(), &members)
                        && let Some(member) = members[to]
                    {
                        connect(client, member.port, between[from][to].subscribe()).await;
                    }
                });
            }
        });
        peer_port
    }
}

/// The member whose process has a socket on this local port.
fn who_is_at(port: u16, members: &[Option<Member>]) -> Option<usize> {
    let socket = format!("socket:[{}]", inode_of(port)?);
    let has = |member: &Member| {
        let files = std::fs::read_dir(format!("/proc/{}/fd", member.process));
        let mut files = files.into_iter().flatten().flatten();
        files.any(|file| {
            std::fs::read_link(file.path()).is_ok_and(|to| to.to_string_lossy() == socket)
        })
    };
    members
        .iter()
        .position(|member| member.as_ref().is_some_and(has))
}

/// Of the socket that is connected from this port of the loopback.
fn inode_of(port: u16) -> Option<String> {
    let sockets = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let local = format!("0100007F:{port:04X}");
    let mut lines = sockets.lines().map(|line| line.split_whitespace());
    let mut fields = lines.find(|line| line.clone().nth(1) == Some(&local))?;
    fields.nth(9).map(str::to_owned)
}
