//! The command line on Redis: everything on one server, and `run` on five while nodes come and go.

use std::time::Duration;

use serde_json::Value;

use super::sandbox::{Done, Sandbox, is_alive, until};
use super::support::deployment::Deployment;
use super::support::redis_sentinels::{SERVICE, sentinel, url as sentinels_at};
use super::support::redis_server::RedisServer;

/// Runs `leasehold` on this engine.
fn on(sandbox: &Sandbox, url: &str, args: &[&str]) -> Done {
    sandbox.run(&[&["--url", url], args].concat())
}

#[track_caller]
fn json(done: &Done) -> Value {
    assert_eq!((done.code, done.stderr.as_str()), (0, ""));
    serde_json::from_str(&done.stdout).unwrap()
}

#[test]
fn a_claim_on_one_server_from_acquire_to_release() {
    let (sandbox, server) = (Sandbox::new(), RedisServer::start());
    let leasehold = |args: &[&str]| on(&sandbox, &server.url(), args);
    let first = json(&leasehold(&["acquire", "a/1", "--owner", "me", "--json"]));
    let claim = first["claim"].as_str().unwrap();
    assert_eq!(leasehold(&["acquire", "a/1", "--wait", "0"]).code, 75);

    let shown = json(&leasehold(&["show", "a/1", "--json"]));
    assert_eq!(shown["holders"][0]["owner"], "me");
    assert_eq!(shown["holders"][0]["token"], first["token"]);
    let listed = json(&leasehold(&["list", "a/", "--json"]));
    assert_eq!(
        (&listed["name"], &listed["held"]),
        (&"a/1".into(), &true.into())
    );
    assert_eq!(leasehold(&["list", "b/", "--json"]).stdout, "");

    let renewed = json(&leasehold(&["renew", "a/1", "--claim", claim, "--json"]));
    assert_eq!(renewed["token"], first["token"]);
    let released = leasehold(&["release", "a/1", "--claim", claim]);
    assert_eq!((released.code, released.stdout.as_str()), (0, "released\n"));
    assert_eq!(leasehold(&["renew", "a/1", "--claim", claim]).code, 76);

    let second = json(&leasehold(&["acquire", "a/1", "--json"]));
    assert!(second["token"].as_u64() > first["token"].as_u64());
    assert_eq!(leasehold(&["break", "a/1"]).stdout, "broken\n");
    assert_eq!(leasehold(&["break", "a/1"]).stdout, "not held\n");
    assert_eq!(leasehold(&["list", "--json"]).stdout, "");
}

#[test]
fn bench_tells_what_a_cycle_costs_the_server() {
    let (sandbox, server) = (Sandbox::new(), RedisServer::start());
    let bench = ["bench", "--seconds", "1", "--waiters", "2", "--json"];
    let report = json(&on(&sandbox, &server.url(), &bench));
    for side in ["ours_us", "baseline_us", "ratio"] {
        let figure = report["processor"][side].as_f64();
        assert!(figure > Some(0.0), "{side}: {}", report["processor"]);
    }
    assert_eq!(report["handoff"]["ours"]["overlaps"], 0);
}

#[test]
fn lock_of_another_program_is_respected_and_breakable() {
    let (sandbox, server) = (Sandbox::new(), RedisServer::start());
    let url = format!("{}?prefix=", server.url());
    server.command("SET job theirs PX 60000");
    let refused = on(&sandbox, &url, &["run", "job", "--wait", "0", "--", "true"]);
    assert_eq!(refused.code, 75, "{}", refused.stderr);
    assert!(
        refused.stderr.contains("another program"),
        "{}",
        refused.stderr
    );
    let shown = json(&on(&sandbox, &url, &["show", "job", "--json"]));
    assert_eq!(shown["holders"][0]["owner"], "another program");
    assert_eq!(on(&sandbox, &url, &["break", "job"]).stdout, "broken\n");
    assert_eq!(on(&sandbox, &url, &["run", "job", "--", "true"]).code, 0);
}

#[test]
fn the_exit_code_tells_what_is_wrong() {
    let sandbox = Sandbox::new();
    let secret = RedisServer::with(&["--requirepass", "s3cret-word"]);
    let cluster = RedisServer::with(&["--cluster-enabled", "yes"]);
    let gone = RedisServer::start();
    gone.kill();
    let denied = format!("redis://:s3cret-word-not@127.0.0.1:{}", secret.port);
    let table = [
        (gone.url(), 69),
        (denied, 77),
        (cluster.url(), 78),
        ("redis://h:x".to_owned(), 64),
        ("redis://me:s3cret-word/x@h".to_owned(), 64),
    ];
    for (url, code) in table {
        let done = on(&sandbox, &url, &["run", "a", "--", "true"]);
        assert_eq!(done.code, code, "{url}: {}", done.stderr);
        assert_eq!(done.stderr.lines().count(), 1, "{}", done.stderr);
        assert!(!done.stderr.contains("s3cret-word"), "{}", done.stderr);
    }
}

/// Each as a message of one line that says what is wrong, and with the code of its kind.
#[test]
fn the_exit_code_tells_what_is_wrong_with_a_cluster_or_with_sentinels() {
    let sandbox = Sandbox::new();
    let servers = [RedisServer::start(), RedisServer::start()];
    let without_slots = RedisServer::with(&["--cluster-enabled", "yes"]);
    let sentinels = servers.each_ref().map(|server| sentinel(server.port, &[]));
    let secretive = sentinel(servers[0].port, &["requirepass s3cret-word"]);
    let [one, other] = sentinels.each_ref().map(|sentinel| sentinel.port);
    let cluster = |port: u16| format!("redis+cluster://127.0.0.1:{port}");
    let table = [
        (cluster(servers[0].port), 78, "not in cluster mode"),
        (without_slots.url(), 78, "redis+cluster://"),
        (cluster(without_slots.port), 78, "slots 0-16383"),
        (sentinels_at([one], "orders"), 64, SERVICE),
        (sentinels_at([one, other], SERVICE), 69, "disagree"),
        (
            sentinels_at([secretive.port], SERVICE),
            77,
            "sentinel_password",
        ),
        (
            sentinels_at(
                [secretive.port],
                &format!("{SERVICE}?sentinel_password=wrong"),
            ),
            77,
            "sentinel_password",
        ),
        (
            sentinels_at([servers[0].port], SERVICE),
            78,
            "not a sentinel",
        ),
        (format!("redis://127.0.0.1:{one}"), 78, "redis+sentinel://"),
    ];
    for (url, code, says) in table {
        let done = on(&sandbox, &url, &["run", "a", "--wait", "1s", "--", "true"]);
        assert_eq!(done.code, code, "{url}: {}", done.stderr);
        assert_eq!(done.stderr.lines().count(), 1, "{}", done.stderr);
        assert!(done.stderr.contains(says), "{url}: {}", done.stderr);
        assert!(!done.stderr.contains("s3cret-word"), "{}", done.stderr);
    }
}

#[test]
fn warnings_go_to_stderr() {
    let sandbox = Sandbox::new();
    let server = RedisServer::with(&["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"]);
    let done = on(
        &sandbox,
        &server.url(),
        &["run", "a", "--", "echo", "result"],
    );
    assert_eq!((done.code, done.stdout.as_str()), (0, "result\n"));
    assert!(done.stderr.contains("allkeys-lru"), "{}", done.stderr);
    assert!(done.stderr.contains("noeviction"), "{}", done.stderr);
}

#[test]
fn five_nodes_of_which_some_die_and_one_returns() {
    let sandbox = Sandbox::new();
    let deployment = Deployment::with(5, Duration::from_secs(1), "node_timeout=500ms");
    let url = deployment.url();
    let address = |node: usize| format!("127.0.0.1:{}", deployment.nodes[node].port);
    let run = |wait: &str| {
        let args = [
            "run", "x", "--ttl", "1s", "--wait", wait, "--", "echo", "in",
        ];
        on(&sandbox, &url, &args)
    };
    // New nodes have no memory; they vote once they have been up for the max_ttl.
    let done = run("20s");
    done.assert_prints("in\n");
    assert_eq!(done.stderr, "");

    for dead in 0..2 {
        deployment.nodes[dead].kill();
        let done = run("5s");
        done.assert_prints("in\n");
        assert!(done.stderr.contains(&address(dead)), "{}", done.stderr);
    }

    deployment.nodes[2].kill();
    let done = run("1s");
    assert!([69, 75].contains(&done.code), "{done:?}");
    assert_eq!(done.stdout, "");
    for dead in 0..3 {
        assert!(done.stderr.contains(&address(dead)), "{}", done.stderr);
    }
    assert!(done.stderr.contains("only 2 of 5"), "{}", done.stderr);

    // Without its memory: it votes again after the max_ttl.
    deployment.nodes[2].revive();
    let done = run("20s");
    done.assert_prints("in\n");
}

/// The same holder all the time.
#[test]
fn a_run_goes_on_while_two_of_five_nodes_die() {
    let sandbox = Sandbox::new();
    let deployment = Deployment::with(5, Duration::from_secs(2), "node_timeout=500ms");
    deployment.has_stood_a_while();
    let url = deployment.url();
    let script =
        "echo $$ > in.new; mv in.new in; while ! test -e go; do sleep 0.05; done; echo done";
    let running = sandbox.start(&[
        "--url", &url, "run", "x", "--ttl", "2s", "--", "sh", "-c", script,
    ]);
    until("it is in", || sandbox.has("in"));
    for node in &deployment.nodes[..2] {
        node.kill();
    }
    // Longer than its TTL: it must have been renewed by the others.
    std::thread::sleep(Duration::from_secs(4));
    let other = on(
        &sandbox,
        &url,
        &["run", "x", "--ttl", "2s", "--wait", "0", "--", "true"],
    );
    assert_eq!(other.code, 75, "{}", other.stderr);
    std::fs::write(sandbox.path("go"), "").unwrap();
    let done = running.wait();
    done.assert_prints("done\n");
}

/// Three nodes gone: the command must not outlive the lease.
#[test]
fn a_run_ends_when_three_of_five_nodes_die() {
    let sandbox = Sandbox::new();
    let deployment = Deployment::with(5, Duration::from_secs(1), "node_timeout=500ms");
    deployment.has_stood_a_while();
    let script = "echo $$ > in.new; mv in.new in; exec sleep 60";
    let args = [
        "--url",
        &deployment.url(),
        "run",
        "x",
        "--ttl",
        "1s",
        "--",
        "sh",
        "-c",
        script,
    ];
    let running = sandbox.start(&args);
    let pid = sandbox.pid_in("in");
    for node in &deployment.nodes[..3] {
        node.kill();
    }
    let done = running.wait();
    assert_eq!(done.code, 76, "{}", done.stderr);
    assert!(!is_alive(pid));
    assert!(done.stderr.contains("of 5 nodes"), "{}", done.stderr);
}
