//! The scripts: what is sent to a server, and what it answers.

use std::borrow::Cow;
use std::str::FromStr;
use std::sync::LazyLock;
use std::time::Duration;

use redis::{Cmd, FromRedisValue, ParsingError, Script, ToRedisArgs, Value};

use super::failure;
use super::keys::Keys;
use crate::claim::{Claim, Mode};
use crate::engine::meta::Meta;
use crate::engine::{Attempt, Contention, Released, Renew};
use crate::error::{Error, ErrorKind, Result};
use crate::name::LockName;
use crate::token::FencingToken;

/// A script of several files: the way that most calls go, the head, what the scripts share, and the rest.
macro_rules! script {
    ($($file:literal),+) => {
        LazyLock::new(|| Script::new(concat!($(include_str!($file)),+)))
    };
}
pub(crate) use script;

/// Attempts to hold a lock alone.
#[rustfmt::skip]
static ACQUIRE: LazyLock<Script> =
    script!("scripts/acquire.quick.lua", "scripts/acquire.queue.quick.lua", "scripts/head.lua", "scripts/common.lua", "scripts/acquire.lua");
/// The same on a server that keeps a mark.
#[rustfmt::skip]
pub(crate) static ACQUIRE_MARKED: LazyLock<Script> =
    script!("scripts/acquire.marked.quick.lua", "scripts/acquire.queue.quick.lua", "scripts/head.lua", "scripts/common.lua", "scripts/acquire.lua");
/// Any other attempt.
#[rustfmt::skip]
pub(crate) static ACQUIRE_MANY: LazyLock<Script> =
    script!("scripts/acquire.many.quick.lua", "scripts/head.lua", "scripts/common.lua", "scripts/acquire.lua");
pub(crate) static RENEW_QUICKLY: LazyLock<Script> = script!("scripts/renew.quick.lua");
static RENEW: LazyLock<Script> = script!(
    "scripts/head.lua",
    "scripts/common.lua",
    "scripts/renew.lua"
);
#[rustfmt::skip]
pub(crate) static RELEASE: LazyLock<Script> =
    script!("scripts/release.quick.lua", "scripts/release.offer.quick.lua", "scripts/head.lua", "scripts/common.lua", "scripts/release.lua");
pub(crate) static MARK: LazyLock<Script> =
    script!("scripts/head.lua", "scripts/common.lua", "scripts/mark.lua");
pub(crate) static BREAK: LazyLock<Script> = script!(
    "scripts/head.lua",
    "scripts/common.lua",
    "scripts/break.lua"
);
pub(crate) static INSPECT: LazyLock<Script> = script!(
    "scripts/head.lua",
    "scripts/common.lua",
    "scripts/inspect.lua"
);

/// One call of a script.
pub(crate) struct Call {
    pub(super) script: &'static Script,
    /// All but the mark, which is another one for each run of a server.
    command: Cmd,
    /// Zero if no mark is kept.
    max_ttl: Duration,
}

impl Call {
    pub(super) fn new(script: &'static Script, keys: &[impl ToRedisArgs]) -> Self {
        let mut command = Cmd::with_capacity(3 + keys.len() + 6, 512);
        command
            .arg("EVALSHA")
            .arg(script.get_hash())
            .arg(keys.len())
            .arg(keys);
        Self {
            script,
            command,
            max_ttl: Duration::ZERO,
        }
    }

    /// The first argument begins with the claim id and `=`.
    fn on(keys: &Keys, name: &LockName, script: &'static Script, claim: impl ToRedisArgs) -> Self {
        let call = match keys.has_many_registers() {
            true => Self::new(script, &keys.all_of(name)),
            false => {
                let of = keys.of(name);
                Self::new(script, &[&of.lock, &of.queue])
            }
        };
        call.arg(claim)
    }

    pub(crate) fn arg(mut self, argument: impl ToRedisArgs) -> Self {
        self.command.arg(argument);
        self
    }

    /// With the mark as the last argument, unless `max_ttl` is zero.
    pub(crate) fn marked(self, max_ttl: Duration) -> Self {
        Self { max_ttl, ..self }
    }

    /// What is sent to a server in this run of it.
    pub(super) fn command(&self, run: &str) -> Cow<'_, Cmd> {
        if self.max_ttl.is_zero() {
            return Cow::Borrowed(&self.command);
        }
        let mut command = self.command.clone();
        command.arg(format!("mark:{}:{run}", self.max_ttl.as_millis()));
        Cow::Owned(command)
    }
}

/// Without its arguments: the claim's id is one of them.
impl std::fmt::Debug for Call {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Call").finish_non_exhaustive()
    }
}

/// Where a waiter is notified.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Address<'a> {
    pub(crate) channel: &'a str,
    pub(crate) number: u64,
}

/// What an attempt proposes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Proposal {
    /// Of a lock that is free: what the server raises if it is alone and this is behind.
    pub(crate) token: FencingToken,
    /// In microseconds.
    pub(crate) now: u64,
    /// Each attempt of a claim has a greater number than those before, and that of another process one of another range: what one takes
    /// back, a later one keeps, and so does another process. `None` if one server decides alone, which takes nothing back.
    pub(crate) attempt: Option<u64>,
}

/// The number of an attempt that a claim has after its renewal: no attempt gives it back any more.
pub(crate) const RENEWED: u64 = FencingToken::MAX.get();

/// With a `max_ttl` of zero the server keeps no mark.
pub(crate) fn acquire(
    keys: &Keys,
    claim: &Claim,
    address: Option<Address<'_>>,
    max_ttl: Duration,
    proposal: Proposal,
) -> Call {
    let script = match claim.mode {
        Mode::Exclusive if max_ttl.is_zero() => &ACQUIRE,
        Mode::Exclusive => &ACQUIRE_MARKED,
        _ => &ACQUIRE_MANY,
    };
    attempt(script, keys, claim, address, max_ttl, proposal)
}

/// A script that is told what an attempt is told.
pub(crate) fn attempt(
    script: &'static Script,
    keys: &Keys,
    claim: &Claim,
    address: Option<Address<'_>>,
    max_ttl: Duration,
    Proposal {
        token,
        now,
        attempt,
    }: Proposal,
) -> Call {
    let value = format!(
        "{}{token}:{now}:{}:{}",
        beginning(claim, attempt.unwrap_or(0)),
        keys.prefix_mark,
        Meta::of(claim).to_json(),
    );
    let of = keys.of(&claim.name);
    let call = match keys.has_many_registers() {
        true => Call::new(script, &keys.all_of(&claim.name)),
        false => Call::new(script, &[&of.lock, &of.queue, &of.register]),
    };
    let call = call
        .arg(value)
        .arg(millis(claim.ttl.get()))
        .arg(token.get())
        .arg(of.stripe);
    let (mode, alone) = (claim.mode.to_number(), u8::from(attempt.is_none()));
    let call = match address {
        None if (mode, alone, claim.queues) == (0, 1, false) && max_ttl.is_zero() => call,
        None => {
            // One that queues attempts again when its process listens.
            let queues = if claim.queues { 2 } else { 0 };
            call.arg(format!("{mode}:{queues}:{alone}:0:"))
        }
        Some(Address { channel, number }) => {
            call.arg(format!("{mode}:1:{alone}:{number}:{channel}"))
        }
    };
    call.marked(max_ttl)
}

/// How the value of a lock's key begins that a claim holds alone: up to the token.
fn beginning(claim: &Claim, attempt: u64) -> String {
    let (id, ttl) = (claim.id.reveal(), millis(claim.ttl.get()));
    format!("{id}={attempt}:{ttl}:")
}

/// Lets a server vote that has no mark, and has been up for `max_ttl`.
pub(crate) fn mark(keys: &Keys, name: &LockName, max_ttl: Duration) -> Call {
    Call::on(keys, name, &MARK, "").marked(max_ttl)
}

/// Renews many claims that have the same TTL, were granted it before, and hold their locks alone; their tokens have equally many digits. The
/// answer are the numbers of those, from 1 on, for which there is more to do.
pub(crate) fn renew_quickly(
    keys: &Keys,
    held: &[(&Claim, FencingToken)],
    max_ttl: Duration,
    attempt: u64,
) -> Option<Call> {
    let (first, _) = held.first()?;
    let locks = held.iter().map(|(claim, _)| keys.lock(&claim.name));
    // Without a mark the register is not looked at, and a call on one key is served by every node that has it.
    let register = match max_ttl.is_zero() {
        true => keys.lock(&first.name),
        false => keys.register_of(&first.name),
    };
    let locks: Vec<_> = locks.chain([register]).collect();
    let beginning =
        |(claim, token): &(&Claim, FencingToken)| format!("{}{token}:", beginning(claim, attempt));
    let beginnings: Vec<_> = held.iter().map(beginning).collect();
    let call = Call::new(&RENEW_QUICKLY, &locks)
        .arg(millis(first.ttl.get()))
        .arg(beginnings[0].len() - 1)
        .arg(beginnings);
    Some(call.marked(max_ttl))
}

pub(crate) fn renew(keys: &Keys, renew: &Renew<'_>, max_ttl: Duration) -> Call {
    renewal(&RENEW, keys, renew, 0).marked(max_ttl)
}

/// A script that is told what a renewal is told, without the mark.
pub(crate) fn renewal(
    script: &'static Script,
    keys: &Keys,
    renew: &Renew<'_>,
    attempt: u64,
) -> Call {
    let claim = renew.claim;
    on_claim(keys, script, claim)
        .arg(millis(claim.ttl.get()))
        .arg(u8::from(renew.shorten))
        .arg(attempt)
}

pub(crate) fn release(keys: &Keys, claim: &Claim) -> Call {
    on_claim(keys, &RELEASE, claim)
}

fn on_claim(keys: &Keys, script: &'static Script, claim: &Claim) -> Call {
    Call::on(keys, &claim.name, script, format!("{}=", claim.id.reveal()))
}

pub(crate) fn break_lock(keys: &Keys, name: &LockName) -> Call {
    Call::on(keys, name, &BREAK, "")
}

pub(super) fn inspect(keys: &Keys, name: &LockName) -> Call {
    Call::on(keys, name, &INSPECT, "")
}

/// What a script answers: a number where there is no more to say, else words.
#[derive(Debug)]
pub(crate) enum Reply {
    Number(i64),
    Words(Vec<String>),
}

impl FromRedisValue for Reply {
    fn from_redis_value(value: Value) -> std::result::Result<Self, ParsingError> {
        match value {
            Value::Int(number) => Ok(Reply::Number(number)),
            words => Vec::from_redis_value(words).map(Reply::Words),
        }
    }
}

impl Reply {
    pub(crate) fn is(&self, word: &str) -> bool {
        matches!(self, Reply::Words(words) if words == &[word])
    }

    fn words(&self) -> Vec<&str> {
        match self {
            Reply::Number(_) => Vec::new(),
            Reply::Words(words) => words.iter().map(String::as_str).collect(),
        }
    }

    fn nonsense(&self) -> Error {
        match self {
            Reply::Number(number) => failure::nonsense(&[number.to_string()]),
            Reply::Words(words) => failure::nonsense(words),
        }
    }
}

/// The answer to an attempt.
#[derive(Debug)]
pub(crate) enum Answer {
    Granted(FencingToken),
    Held {
        /// `None`: for ever, since another program holds it without a limit.
        left: Option<Duration>,
        rank: usize,
        holders: usize,
        /// By the server's clock, in microseconds.
        now: u64,
    },
    /// The proposed token is not greater than this one.
    Behind(u64),
    Blank(Blank),
}

/// The server has been restarted, has lost its memory, or is new: it may not vote yet.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Blank {
    /// When it votes by itself.
    pub(crate) votes_in: Duration,
    pub(crate) uptime: Duration,
}

impl Blank {
    /// Whether it has been up for so long that nothing counts any more that it can have forgotten.
    pub(crate) fn may_be_marked(&self, max_ttl: Duration) -> bool {
        self.uptime >= max_ttl
    }

    /// How long until it votes, or may be marked.
    pub(crate) fn wait(&self, max_ttl: Duration) -> Duration {
        // Uptimes are told in whole seconds.
        let up_in = max_ttl.saturating_sub(self.uptime);
        self.votes_in.min(up_in.max(Duration::from_millis(100)))
    }
}

/// The answer to a renewal.
#[derive(Debug)]
pub(crate) enum Renewed {
    Yes(FencingToken),
    /// The server has the claim, and may not vote yet: it has been restarted, and may have forgotten that the claim has ended.
    Blank,
    Lost,
}

/// A lock that is granted for longer than a server without memory is kept from voting could be granted twice.
pub(crate) fn check_max_ttl(claim: &Claim, max_ttl: Duration) -> Result<()> {
    if max_ttl.is_zero() || claim.ttl.get() <= max_ttl {
        return Ok(());
    }
    let max = humantime::format_duration(max_ttl);
    let (what, advice) = match claim.name.is_beside() {
        // A recipe remembers something by it.
        true => (
            "the period",
            "use a shorter period, or no max_ttl and a server that keeps its memory (appendonly yes)",
        ),
        false => (
            "the TTL",
            "use a shorter TTL (keep-alive renews it), or the same greater max_ttl for all clients",
        ),
    };
    let what = format!("{what} is longer than the max_ttl, {max}");
    Err(Error::new(ErrorKind::InvalidConfig, what).advise(advice))
}

/// The servers must wait before they grant anything; so does a claim that queues.
pub(crate) fn quarantine(claim: &Claim, wait: Duration) -> Result<Attempt> {
    let votes_in = humantime::format_duration(Duration::from_secs(wait.as_secs() + 1));
    let what = format!(
        "the server has just been started, may have forgotten locks, and grants again in {votes_in}"
    );
    if !claim.queues {
        return Err(Error::new(ErrorKind::Unreachable, what)
            .advise("wait: until then such a lock may still be held"));
    }
    Ok(Attempt::Held(Contention {
        look_again_in: Some(wait),
        because: Some(what),
        ..Contention::default()
    }))
}

impl Answer {
    /// The answer to an attempt with this proposal.
    pub(crate) fn read(reply: &Reply, claim: &Claim, proposal: Proposal) -> Result<Self> {
        let words = match reply {
            // The token that was proposed.
            Reply::Number(1) => return Ok(Answer::Granted(proposal.token)),
            Reply::Number(token) => return token_from(token).map(Answer::Granted),
            Reply::Words(_) => reply.words(),
        };
        match words.as_slice() {
            ["granted", token] => token_from(token).map(Answer::Granted),
            ["held", left, rank, holders, now] => Ok(Answer::Held {
                left: u64::try_from(parse::<i64>(left)?)
                    .ok()
                    .map(Duration::from_millis),
                rank: parse(rank)?,
                holders: parse(holders)?,
                now: parse(now)?,
            }),
            ["behind", register] => parse(register).map(Answer::Behind),
            ["blank", votes_in, uptime] => Ok(Answer::Blank(Blank {
                votes_in: Duration::from_millis(parse(votes_in)?),
                uptime: Duration::from_secs(parse(uptime)?),
            })),
            ["mismatch", there] => {
                let there = Mode::from_number(parse(there)?);
                claim.mode.agrees_with(there)?;
                claim.mode.is_still(there)?;
                Err(reply.nonsense())
            }
            ["other max_ttl", there] => Err(other_max_ttl(parse(there)?)),
            ["other layout"] => Err(failure::other_layout()),
            _ => Err(reply.nonsense()),
        }
    }
}

impl Renewed {
    pub(crate) fn read(reply: &Reply) -> Result<Self> {
        match reply.words().as_slice() {
            ["granted", token] => token_from(token).map(Renewed::Yes),
            ["blank", _, _] => Ok(Renewed::Blank),
            ["other max_ttl", there] => Err(other_max_ttl(parse(there)?)),
            ["lost"] => Ok(Renewed::Lost),
            _ => Err(reply.nonsense()),
        }
    }
}

pub(crate) fn read_released(reply: &Reply) -> Result<Released> {
    match reply {
        Reply::Number(1) => Ok(Released::Yes),
        Reply::Number(0) => Ok(Released::WasNotHeld),
        _ => Err(reply.nonsense()),
    }
}

fn other_max_ttl(there: u64) -> Error {
    let there = humantime::format_duration(Duration::from_millis(there));
    Error::new(
        ErrorKind::InvalidConfig,
        format!("this deployment is in use with max_ttl={there}"),
    )
    .advise(format!("let all clients say ?max_ttl={there}"))
}

fn millis(time: Duration) -> u64 {
    time.as_millis() as u64
}

fn parse<T: FromStr>(word: &str) -> Result<T> {
    word.parse()
        .map_err(|_| failure::nonsense(&[word.to_owned()]))
}

fn token_from(word: impl ToString) -> Result<FencingToken> {
    let word = word.to_string();
    FencingToken::new(parse(&word)?)
        .filter(|token| *token != FencingToken::NONE)
        .ok_or_else(|| failure::nonsense(&[word]))
}
