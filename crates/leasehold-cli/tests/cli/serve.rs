//! `serve`, `token` and `elect --http`: real servers, killed and ended.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold::{ClaimId, Locks};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::Signal;
use serde_json::Value;

use super::sandbox::{Running, Sandbox, until};
use super::support::redis_server::RedisServer;
use super::support::zookeeper_cluster::ZooKeeperCluster;

/// A server of its own, and its URL.
struct Served {
    running: Running,
    url: String,
}

fn serve(sandbox: &Sandbox, engine: &str, more: &[&str]) -> Served {
    let args = [&["serve", "--json", "--listen", "127.0.0.1:0"], more].concat();
    let mut running = sandbox.start_command(sandbox.on(engine, &args));
    let said = first_line(&mut running);
    let said: Value = serde_json::from_str(&said).unwrap();
    let url = said["url"].as_str().unwrap().to_owned();
    Served { running, url }
}

fn first_line(running: &mut Running) -> String {
    let mut line = String::new();
    let stdout = running.child().stdout.as_mut().unwrap();
    BufReader::new(stdout).read_line(&mut line).unwrap();
    line
}

/// A request, and the connection that its answer comes over.
fn begin(url: &str, line: &str, headers: &str, body: &str) -> TcpStream {
    let host = url.strip_prefix("http://").unwrap();
    let mut stream = TcpStream::connect(host).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    let length = body.len();
    let request = format!(
        "{line} HTTP/1.1\r\nHost: {host}\r\n{headers}Connection: close\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).unwrap();
    stream
}

/// A request of the nth claim.
fn of_claim(url: &str, nth: u8, path: &str, body: &str) -> TcpStream {
    let claim = ClaimId::from_bytes([nth; 16]).reveal();
    let line = format!("POST /v1/locks/{path}");
    begin(url, &line, &format!("Leasehold-Claim: {claim}\r\n"), body)
}

fn answer(mut stream: TcpStream) -> (u16, String) {
    let mut text = String::new();
    let _ = stream.read_to_string(&mut text);
    let status = text.split(' ').nth(1).unwrap_or("0").parse().unwrap();
    (status, text)
}

fn get(url: &str, path: &str) -> (u16, String) {
    answer(begin(url, &format!("GET {path}"), "", ""))
}

#[test]
fn run_works_through_a_server_that_ends_in_order() {
    let sandbox = Sandbox::new();
    let served = serve(&sandbox, &sandbox.url(), &[]);
    let args = ["run", "demo", "--", "sh", "-c", "echo $LEASEHOLD_TOKEN"];
    let done = sandbox.start_command(sandbox.on(&served.url, &args)).wait();
    assert_eq!(done.code, 0, "{}", done.stderr);
    let first: u64 = done.stdout.trim().parse().unwrap();
    // Those who go to the file itself share the locks.
    let direct = sandbox.run(&args);
    assert!(direct.stdout.trim().parse::<u64>().unwrap() > first);
    assert_eq!(get(&served.url, "/readyz").0, 200);
    served.running.signal(Signal::SIGTERM);
    let done = served.running.wait();
    assert_eq!(done.code, 0, "{}", done.stderr);
    let refused = sandbox
        .start_command(sandbox.on(&served.url, &["list"]))
        .wait();
    assert_eq!(refused.code, 69, "{}", refused.stderr);
}

#[test]
fn link_in_place_of_the_server_file_is_not_followed() {
    let sandbox = Sandbox::new();
    let (victim, beside) = (sandbox.path("victim"), sandbox.path("locks.db-server"));
    let refused = || {
        let done = sandbox.run(&["serve", "--listen", "127.0.0.1:0"]);
        assert_eq!(done.code, 64, "{}", done.stderr);
        assert!(done.stderr.contains("cannot be used"), "{}", done.stderr);
    };
    assert_eq!(sandbox.run(&["list"]).code, 0);
    std::os::unix::fs::symlink(&victim, &beside).unwrap();
    refused();
    assert!(!victim.exists());
    std::fs::remove_file(&beside).unwrap();
    // Nobody reads from it: whoever opened it as a file would wait for ever.
    nix::unistd::mkfifo(&beside, nix::sys::stat::Mode::S_IRWXU).unwrap();
    refused();
    std::fs::remove_file(&beside).unwrap();
    std::fs::create_dir(&beside).unwrap();
    refused();
}

#[test]
fn a_second_server_over_one_file_is_refused() {
    let sandbox = Sandbox::new();
    let mut one = serve(&sandbox, &sandbox.url(), &[]);
    let args = ["serve", "--listen", "127.0.0.1:0"];
    let refused = sandbox.run(&args);
    assert_ne!(refused.code, 0);
    assert!(
        refused.stderr.contains("another server"),
        "{}",
        refused.stderr
    );
    // By another name of the file as well.
    std::os::unix::fs::symlink(sandbox.path("locks.db"), sandbox.path("other.db")).unwrap();
    let other = format!("sqlite:{}", sandbox.path("other.db").display());
    let refused = sandbox.start_command(sandbox.on(&other, &args)).wait();
    assert!(
        refused.stderr.contains("another server"),
        "{}",
        refused.stderr
    );
    let shows = serve(&sandbox, &sandbox.url(), &["--read-only"]);
    assert_eq!(get(&shows.url, "/v1/locks").0, 200);
    one.running.signal(Signal::SIGKILL);
    one.running.child().wait().unwrap();
    let next = serve(&sandbox, &sandbox.url(), &[]);
    assert_eq!(get(&next.url, "/readyz").0, 200);
}

#[test]
fn history_in_a_file_outlives_the_server() {
    let sandbox = Sandbox::new();
    let file = sandbox.path("history.db");
    let file = file.to_str().unwrap();
    let ended = |url: &str, query: &str| -> Vec<String> {
        let (status, text) = get(url, &format!("/v1/history{query}"));
        assert_eq!(status, 200, "{text}");
        let body: Value = serde_json::from_str(text.split("\r\n\r\n").last().unwrap()).unwrap();
        assert_eq!(body["kept"], "file");
        let holds = body["holds"].as_array().unwrap().iter();
        holds
            .map(|hold| hold["lock"].as_str().unwrap().to_owned())
            .collect()
    };
    let one = serve(&sandbox, "memory:", &["--history", file]);
    for (nth, name) in [(1, "a"), (2, "b"), (3, "a")] {
        for action in ["acquire", "release"] {
            let done = of_claim(&one.url, nth, &format!("{name}/{action}"), "{}");
            assert_eq!(answer(done).0, 200);
        }
    }
    assert_eq!(ended(&one.url, ""), ["a", "b", "a"]);
    one.running.signal(Signal::SIGTERM);
    assert_eq!(one.running.wait().code, 0);
    let two = serve(&sandbox, "memory:", &["--history", file]);
    assert_eq!(ended(&two.url, ""), ["a", "b", "a"]);
    assert_eq!(ended(&two.url, "?lock=a"), ["a", "a"]);
    assert_eq!(ended(&two.url, "?prefix=b&end=released"), ["b"]);
    assert_eq!(ended(&two.url, "?end=expired"), [""; 0]);
    assert_eq!(ended(&two.url, "?holder=nobody"), [""; 0]);
    assert_eq!(ended(&two.url, "?limit=1"), ["a"]);
    std::fs::write(
        sandbox.path("text"),
        "no database, but a text of some length",
    )
    .unwrap();
    let text = sandbox.path("text");
    let args = ["serve", "--listen", "127.0.0.1:0", "--history"];
    let refused = sandbox.run(&[&args[..], &[text.to_str().unwrap()]].concat());
    assert!(
        refused.stderr.contains("history file"),
        "{}",
        refused.stderr
    );
}

#[test]
fn thousands_of_connections_are_served() {
    let sandbox = Sandbox::new();
    // It has the limit that this process has begun with, and raises it by itself.
    let served = serve(&sandbox, "memory:", &["--observe", "0s"]);
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, most, most).unwrap();
    let count = usize::try_from(most)
        .unwrap()
        .saturating_sub(1_000)
        .min(10_000);
    println!("{count} connections");
    let host = served.url.strip_prefix("http://").unwrap();
    let connect = |_| TcpStream::connect(host).unwrap();
    // Most of them say nothing: ten thousand requests would keep a small machine busy for too long.
    let silent: Vec<_> = (0..count - 1_000).map(connect).collect();
    let acquire = |nth: usize, body: &str| {
        let claim = ClaimId::from_bytes((nth as u128 + 1).to_be_bytes()).reveal();
        let line = format!("POST /v1/locks/x{}/acquire", nth % 100);
        let claim = format!("Leasehold-Claim: {claim}\r\n");
        begin(&served.url, &line, &claim, body)
    };
    for nth in 0..100 {
        assert_eq!(answer(acquire(nth, "{\"ttl\": \"1h\"}")).0, 200);
    }
    let wait = "{\"wait\": \"5m\"}";
    let waiting: Vec<_> = (100..1_000).map(|nth| acquire(nth, wait)).collect();
    let places = || -> usize {
        let (_, text) = get(&served.url, "/metrics");
        let mut lines = text.lines();
        let places = lines.find_map(|line| line.strip_prefix("leasehold_places "));
        places.unwrap().parse().unwrap()
    };
    until("all wait", || places() == 900);
    assert_eq!(get(&served.url, "/healthz").0, 200);
    drop((silent, waiting));
    until("all have left", || places() == 0);
    assert_eq!(get(&served.url, "/readyz").0, 200);
}

#[test]
fn it_prints_where_it_is_and_a_first_request() {
    let sandbox = Sandbox::new();
    let args = ["serve", "--listen", "127.0.0.1:0"];
    let mut running = sandbox.start(&args);
    let stdout = running.child().stdout.as_mut().unwrap();
    let lines: Vec<_> = BufReader::new(stdout)
        .lines()
        .take(2)
        .map(Result::unwrap)
        .collect();
    assert!(lines[0].starts_with("serving sqlite:"), "{lines:?}");
    assert!(
        lines[1].contains("curl -N -X POST http://127.0.0.1:"),
        "{lines:?}"
    );
}

#[test]
fn server_over_sessions_warns_of_load_balancers() {
    let (sandbox, zookeeper) = (Sandbox::new(), ZooKeeperCluster::start(1));
    let mut served = serve(&sandbox, &zookeeper.url(), &[]);
    let stderr = served.running.child().stderr.as_mut().unwrap();
    // The engine has warnings of its own, since it is a single server.
    let mut warnings = BufReader::new(stderr).lines().map(Result::unwrap);
    assert!(warnings.any(|warning| warning.contains("load balancer")));
}

#[test]
fn others_are_served_only_if_they_are_known() {
    let sandbox = Sandbox::new();
    let refused = sandbox.run(&["serve", "--listen", "0.0.0.0:0"]);
    assert_eq!(refused.code, 64);
    assert!(refused.stderr.contains("--tokens"), "{}", refused.stderr);
    let insecure = ["serve", "--json", "--listen", "0.0.0.0:0", "--insecure"];
    let mut insecure = sandbox.start(&insecure);
    assert!(first_line(&mut insecure).contains("\"url\""));
    for bad in [
        &["serve", "--tokens", "/none"][..],
        &["serve", "--tls-cert", "/none", "--tls-key", "/none"],
        &["serve", "--tls-cert", "/none"],
        &["serve", "--client-ca", "/none"],
        &["serve", "--listen", "nowhere"],
        &["serve", "--listen", "203.0.113.1:1", "--insecure"],
        &["serve", "--audit", "/none/audit.log"],
    ] {
        let refused = sandbox.run(bad);
        assert_eq!(refused.code, 64, "{bad:?}: {}", refused.stderr);
    }
}

#[test]
fn tokens_are_made_and_asked_for() {
    let sandbox = Sandbox::new();
    let new = |args: &[&str]| sandbox.run(&[&["token", "new"], args].concat());
    let made = new(&[
        "bot",
        "--scope",
        "hold",
        "--scope",
        "read",
        "--prefix",
        "a/",
        "--file",
        "tokens.toml",
    ]);
    assert_eq!(made.code, 0, "{}", made.stderr);
    let token = made.stdout.trim().to_owned();
    let file = sandbox.path("tokens.toml");
    let mode = std::fs::metadata(&file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert!(!std::fs::read_to_string(&file).unwrap().contains(&token));
    let printed = new(&["root", "--scope", "admin", "--expires", "90days"]);
    assert!(
        printed.stdout.contains("[[token]]\nname = \"root\""),
        "{}",
        printed.stdout
    );
    for bad in [
        &["x"][..],
        &["x", "--scope", "all"],
        &["", "--scope", "read"],
    ] {
        assert_eq!(new(bad).code, 64, "{bad:?}");
    }
    let served = serve(&sandbox, &sandbox.url(), &["--tokens", "tokens.toml"]);
    let host = served.url.strip_prefix("http://").unwrap();
    let list = |url: &str| sandbox.start_command(sandbox.on(url, &["list"])).wait();
    assert_eq!(list(&served.url).code, 77);
    assert_eq!(list(&format!("http://:wrong@{host}")).code, 77);
    let known = list(&format!("http://:{token}@{host}"));
    assert_eq!(known.code, 0, "{}", known.stderr);
    std::fs::write(sandbox.path("token"), &token).unwrap();
    let from_file = format!(
        "http://{host}?token_file={}",
        sandbox.path("token").display()
    );
    let run = |name: &str| {
        let args = ["run", name, "--", "true"];
        sandbox.start_command(sandbox.on(&from_file, &args)).wait()
    };
    assert_eq!(run("a/1").code, 0);
    let denied = run("b/1");
    assert_eq!(denied.code, 77);
    assert!(!denied.stderr.contains(&token), "{}", denied.stderr);
}

#[test]
fn readiness_follows_leadership() {
    let sandbox = Sandbox::new();
    let candidate = |work: &str| {
        let args = [
            "elect",
            "leader",
            "--ttl",
            "1s",
            "--http",
            "127.0.0.1:0",
            "--",
            "sh",
            "-c",
            work,
        ];
        let mut running = sandbox.start(&args);
        let stderr = running.child().stderr.take().unwrap();
        let lines = BufReader::new(stderr).lines().map(Result::unwrap);
        let mut lines = lines.filter_map(|line| {
            line.split_once("who leads at ")
                .map(|(_, url)| url.to_owned())
        });
        let url = lines.next().unwrap();
        // Whatever else it says is read, so that it never waits for a reader.
        std::thread::spawn(move || lines.for_each(drop));
        Served { running, url }
    };
    let one = candidate("sleep 1000");
    until("it leads", || get(&one.url, "/readyz").0 == 200);
    let two = candidate("sleep 1000");
    assert_eq!(get(&two.url, "/healthz").0, 200);
    until("both are known", || {
        get(&one.url, "/").1.contains("\"candidates\":1")
    });
    assert_eq!(get(&two.url, "/readyz").0, 503);
    let said = get(&two.url, "/").1;
    assert!(
        said.contains("\"leading\":false") && said.contains("\"label\":\"sh\""),
        "{said}"
    );
    one.running.signal(Signal::SIGTERM);
    until("the other leads", || get(&two.url, "/readyz").0 == 200);
    assert!(get(&two.url, "/").1.contains("\"leading\":true"));
}

#[test]
fn a_killed_server_costs_no_exclusion_and_no_claim() {
    let (sandbox, redis) = (Sandbox::new(), RedisServer::start());
    let one = serve(&sandbox, &redis.url(), &[]);
    let two = serve(&sandbox, &redis.url(), &[]);
    let hosts = [&one.url, &two.url].map(|url| url.strip_prefix("http://").unwrap());
    let url = format!("http://{},{}", hosts[0], hosts[1]);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let direct = runtime.block_on(Locks::connect(redis.url())).unwrap();

    // Load: workers that check that they are alone, and that tokens rise.
    let (inside, over) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicBool::new(false)),
    );
    let last = Arc::new(AtomicU64::new(0));
    let entries = Arc::new(Mutex::new(vec![0_u32; 8]));
    let workers: Vec<_> = (0..8)
        .map(|nth| {
            let (inside, over, last) = (inside.clone(), over.clone(), last.clone());
            let (entries, url) = (entries.clone(), url.clone());
            runtime.spawn(async move {
                let locks = Locks::connect(&url).await.unwrap();
                while !over.load(Ordering::SeqCst) {
                    let request = locks
                        .lock("load")
                        .ttl(Duration::from_secs(5))
                        .wait_forever();
                    // A request that was under way when the server was killed fails; the next one goes to the other server.
                    let Ok(lease) = request.acquire().await else {
                        continue;
                    };
                    assert!(!inside.swap(true, Ordering::SeqCst), "two are inside");
                    let token = lease.token().get();
                    assert!(
                        last.swap(token, Ordering::SeqCst) < token,
                        "a token went back"
                    );
                    tokio::time::sleep(Duration::from_millis(2)).await;
                    let valid = lease.is_valid();
                    inside.store(false, Ordering::SeqCst);
                    assert!(valid);
                    entries.lock().unwrap()[nth] += 1;
                    let _ = lease.release().await;
                }
            })
        })
        .collect();
    let entered = |more: u32| {
        let before = entries.lock().unwrap().clone();
        until("all workers enter", || {
            let now = entries.lock().unwrap();
            before
                .iter()
                .zip(&*now)
                .all(|(before, now)| *now >= before + more)
        });
    };
    entered(5);

    // Places: three claims queue through the first server.
    let held = runtime.block_on(direct.lock("queue").acquire()).unwrap();
    let wait = "{\"wait\": \"50s\", \"keep_place\": true, \"ttl\": \"20s\"}";
    let waiters = || {
        runtime
            .block_on(direct.inspect("queue"))
            .unwrap()
            .waiters
            .len()
    };
    let mut through_one = Vec::new();
    for nth in 1..4 {
        through_one.push(of_claim(&one.url, nth, "queue/acquire", wait));
        until("it waits", || waiters() == usize::from(nth));
    }
    one.running.signal(Signal::SIGKILL);
    for stream in through_one {
        assert_eq!(answer(stream).0, 0, "an answer of the dead");
    }
    // They come back through the second server in another order, and each has its place there.
    let events = begin(&two.url, "GET /v1/events?prefix=queue", "", "");
    let mut events = BufReader::new(events).lines().map(Result::unwrap);
    assert!(events.any(|line| line.contains("text/event-stream")));
    let back: Vec<_> = [3, 1, 2]
        .map(|nth| {
            let waiting = of_claim(&two.url, nth, "queue/acquire", wait);
            assert!(events.any(|line| line.contains("event: waiting")));
            let url = two.url.clone();
            std::thread::spawn(move || {
                let (status, text) = answer(waiting);
                assert_eq!(status, 200, "{text}");
                let released = of_claim(&url, nth, "queue/release", "{}");
                assert_eq!(answer(released).0, 200);
                let body = text.split("\r\n\r\n").last().unwrap();
                let body: Value = serde_json::from_str(body).unwrap();
                // It was handed over for half a second, and confirmed before it was told.
                assert!(body["valid_ms"].as_u64().unwrap() > 10_000, "{body}");
                body["token"].as_u64().unwrap()
            })
        })
        .into();
    let before = held.token().get();
    runtime.block_on(held.release()).unwrap();
    let tokens: Vec<_> = back.into_iter().map(|one| one.join().unwrap()).collect();
    let [third, first, second] = tokens[..] else {
        panic!("{tokens:?}")
    };
    assert!(
        before < first && first < second && second < third,
        "not in the order of the queue: {tokens:?}"
    );

    entered(5);
    over.store(true, Ordering::SeqCst);
    for worker in workers {
        runtime.block_on(worker).unwrap();
    }
}
