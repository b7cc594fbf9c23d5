//! Waiting, and leaving the queue.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use super::sandbox::{Running, Sandbox, until};
use super::support::postgres_server::PostgresServer;
use super::support::redis_server::RedisServer;

#[test]
fn a_signal_while_waiting_leaves_the_queue_at_once() {
    let sandbox = Sandbox::new();
    let (_holder, _) = sandbox.start_in(&["a"], "exec sleep 60", "in");
    let table = [
        (Signal::SIGINT, 130),
        (Signal::SIGTERM, 143),
        (Signal::SIGHUP, 129),
    ];
    for (signal, code) in table {
        for command in [
            &["run", "a", "--wait", "forever", "--", "touch", "ran"] as &[_],
            &["acquire", "a", "--wait", "forever"],
        ] {
            let waiter = sandbox.start(command);
            until("it waits", || sandbox.waiters("a") == 1);
            waiter.signal(signal);
            let done = waiter.wait();
            assert_eq!((done.code, done.stderr.as_str()), (code, ""));
            assert_eq!(sandbox.waiters("a"), 0, "{signal} {command:?}");
        }
    }
    assert!(!sandbox.has("ran"));
}

#[test]
fn waiters_enter_in_the_order_they_came() {
    let sandbox = Sandbox::new();
    let (holder, _) = sandbox.start_in(&["a"], "while [ ! -e go ]; do sleep 0.02; done", "in");
    let mut waiters = Vec::new();
    for nth in 1..=4 {
        let script = format!("echo {nth} >> order");
        waiters.push(sandbox.start(&["run", "a", "--wait", "forever", "--", "sh", "-c", &script]));
        until("it waits", || sandbox.waiters("a") == nth);
    }
    std::fs::write(sandbox.path("go"), "").unwrap();
    assert_eq!(holder.wait().code, 0);
    for waiter in waiters {
        assert_eq!(waiter.wait().code, 0);
    }
    assert_eq!(
        std::fs::read_to_string(sandbox.path("order")).unwrap(),
        "1\n2\n3\n4\n"
    );
}

#[test]
fn nothing_is_shown_off_a_terminal() {
    let sandbox = Sandbox::new();
    let (_holder, _) = sandbox.start_in(&["a"], "sleep 1", "in");
    let done = sandbox.run(&["run", "a", "--wait", "forever", "--", "true"]);
    assert_eq!(
        (done.code, done.stdout.as_str(), done.stderr.as_str()),
        (0, "", "")
    );
}

/// `run` at a server that takes no more connections: it waits for one as for the lock, and no longer. Strangers have all there are, until
/// `make_room`.
fn run_waits_for_room(url: &str, make_room: impl FnOnce()) {
    let sandbox = Sandbox::new();
    let began = Instant::now();
    let brief = sandbox.on(url, &["run", "a", "--wait", "500ms", "--", "touch", "ran"]);
    let done = sandbox.start_command(brief).wait();
    assert_eq!(done.code, 69, "{}", done.stderr);
    assert!(began.elapsed() >= Duration::from_millis(500), "too soon");
    assert!(!sandbox.has("ran"));

    let long = sandbox.on(url, &["run", "a", "--wait", "60s", "--", "touch", "ran"]);
    let mut long = sandbox.start_command(long);
    std::thread::sleep(Duration::from_secs(1));
    assert!(long.child().try_wait().unwrap().is_none(), "it gave up");
    assert!(!sandbox.has("ran"));
    make_room();
    let done = long.wait();
    assert_eq!(done.code, 0, "{}", done.stderr);
    assert!(sandbox.has("ran"));
}

#[test]
fn run_waits_for_a_postgres_without_room() {
    // Three are the superuser's.
    let server = PostgresServer::with(&["max_connections=8"]);
    server.sql("CREATE ROLE app LOGIN; GRANT CREATE ON DATABASE postgres TO app");
    let url = format!("postgres://app@127.0.0.1:{}/postgres", server.port);
    let stranger = || {
        let mut psql = Command::new("psql");
        psql.args([&url, "-X", "-c", "SELECT pg_sleep(600)"]);
        psql.stdin(Stdio::null());
        psql.stdout(Stdio::null()).stderr(Stdio::null());
        Running::start(psql)
    };
    let mut strangers: Vec<Running> = Vec::new();
    let theirs = "FROM pg_stat_activity WHERE query LIKE '%pg_sleep%' AND usename = 'app'";
    until("they have all there are", || {
        // One is refused if a connection of this test has not quite ended.
        strangers.retain_mut(|psql| psql.child().try_wait().unwrap().is_none());
        if strangers.len() < 5 {
            strangers.resize_with(5, stranger);
            std::thread::sleep(Duration::from_millis(500));
        }
        server.sql(&format!("SELECT count(*) {theirs}")) == "5"
    });
    run_waits_for_room(&url, || {
        server.sql(&format!("SELECT pg_terminate_backend(pid) {theirs}"));
    });
}

#[test]
fn run_waits_for_a_redis_without_room() {
    let server = RedisServer::with(&["--maxclients", "4"]);
    let stranger = |_| {
        let mut stream = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
        stream.write_all(b"PING\r\n").unwrap();
        let mut said = String::new();
        BufReader::new(&stream).read_line(&mut said).unwrap();
        assert_eq!(said, "+PONG\r\n");
        stream
    };
    let strangers: Vec<_> = (0..4).map(stranger).collect();
    run_waits_for_room(&server.url(), || drop(strangers));
}
