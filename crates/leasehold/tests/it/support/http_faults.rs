//! Between a client and a server that speaks HTTP: each request is passed on, answered otherwise, or cut off, as a test says.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// One request, as it came.
pub struct Asked {
    pub method: String,
    pub path: String,
    /// In lower case.
    pub head: String,
    pub body: String,
}

impl Asked {
    /// The call of DynamoDB, or the method.
    pub fn call(&self) -> &str {
        let target = self.head.split("x-amz-target: dynamodb_20120810.").nth(1);
        target
            .and_then(|rest| rest.split("\r\n").next())
            .unwrap_or(&self.method)
    }

    pub fn writes(&self) -> bool {
        ["putitem", "updateitem", "PUT"].contains(&self.call())
    }
}

/// What becomes of it.
pub enum Fate {
    Passes,
    /// It is answered so, and the server does not see it.
    IsTold(u16, String),
    /// The server sees it; the client does not see the answer.
    IsCutAfterwards,
    /// The server sees it twice; the client sees the second answer.
    IsSentTwice,
}

type Decide = Box<dyn Fn(&Asked) -> Fate + Send + Sync>;

pub struct HttpFaults {
    pub port: u16,
    decide: Arc<Mutex<Arc<Decide>>>,
    asked: Arc<AtomicUsize>,
    accepting: JoinHandle<()>,
}

impl HttpFaults {
    pub async fn before(server: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let passes: Decide = Box::new(|_| Fate::Passes);
        let decide = Arc::new(Mutex::new(Arc::new(passes)));
        let asked = Arc::new(AtomicUsize::new(0));
        let accepting = tokio::spawn({
            let (decide, asked) = (Arc::clone(&decide), Arc::clone(&asked));
            async move {
                while let Ok((client, _)) = listener.accept().await {
                    let (decide, asked) = (Arc::clone(&decide), Arc::clone(&asked));
                    tokio::spawn(async move {
                        let _ = one(client, server, &decide, &asked).await;
                    });
                }
            }
        });
        Self {
            port,
            decide,
            asked,
            accepting,
        }
    }

    pub fn set(&self, decide: impl Fn(&Asked) -> Fate + Send + Sync + 'static) {
        *self.decide.lock().unwrap() = Arc::new(Box::new(decide));
    }

    pub fn pass(&self) {
        self.set(|_| Fate::Passes);
    }

    /// How many requests have come.
    pub fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }
}

impl Drop for HttpFaults {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn one(
    mut client: TcpStream,
    server: u16,
    decide: &Mutex<Arc<Decide>>,
    asked: &AtomicUsize,
) -> std::io::Result<()> {
    let mut bytes = Vec::new();
    let end = loop {
        if client.read_buf(&mut bytes).await? == 0 {
            return Ok(());
        }
        if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            break end + 4;
        }
    };
    let raw_head = String::from_utf8_lossy(&bytes[..end]).into_owned();
    let head = raw_head.to_lowercase();
    let length = head.split("content-length: ").nth(1);
    let length = length.and_then(|rest| rest.split("\r\n").next()?.trim().parse().ok());
    while bytes.len() < end + length.unwrap_or(0) {
        if client.read_buf(&mut bytes).await? == 0 {
            return Ok(());
        }
    }
    let mut words = raw_head.split(' ');
    let mut word = || words.next().unwrap_or("").to_owned();
    let request = Asked {
        method: word(),
        path: word(),
        body: String::from_utf8_lossy(&bytes[end..]).into_owned(),
        head,
    };
    asked.fetch_add(1, Ordering::SeqCst);
    let decide = Arc::clone(&decide.lock().unwrap());
    let fate = decide(&request);
    if let Fate::IsTold(status, body) = fate {
        let length = body.len();
        let answer = format!(
            "HTTP/1.1 {status} Told\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
        );
        return client.write_all(answer.as_bytes()).await;
    }
    let times = match fate {
        Fate::IsSentTwice => 2,
        _ => 1,
    };
    let mut answer = Vec::new();
    for _ in 0..times {
        let mut server = TcpStream::connect(("127.0.0.1", server)).await?;
        let (first, rest) = raw_head.split_once("\r\n").unwrap_or(("", ""));
        server
            .write_all(format!("{first}\r\nconnection: close\r\n{rest}").as_bytes())
            .await?;
        server.write_all(&bytes[end..]).await?;
        answer.clear();
        server.read_to_end(&mut answer).await?;
    }
    match fate {
        Fate::IsCutAfterwards => Ok(()),
        _ => client.write_all(&answer).await,
    }
}
