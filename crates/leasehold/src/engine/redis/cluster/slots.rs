//! Which primary has which slot.

use redis::Value;

use crate::engine::redis::keys::SLOTS;
use crate::url::Server;

/// Ranges of slots, each with its primary.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Slots(Vec<(usize, usize, Server)>);

impl Slots {
    /// From the answer to CLUSTER SLOTS. `asked` is the node that has given it: it leaves out the host if it does not know
    /// under which it is reached.
    pub(super) fn read(answer: &Value, asked: &Server) -> Option<Self> {
        let Value::Array(ranges) = answer else {
            return None;
        };
        let mut slots = Vec::new();
        for range in ranges {
            let Value::Array(parts) = range else {
                return None;
            };
            let [
                Value::Int(first),
                Value::Int(last),
                Value::Array(primary),
                ..,
            ] = &parts[..]
            else {
                return None;
            };
            let [host, Value::Int(port), ..] = &primary[..] else {
                return None;
            };
            let primary = Server {
                host: known_host(&text(host), asked),
                port: u16::try_from(*port).ok()?,
            };
            let (first, last) = (usize::try_from(*first).ok()?, usize::try_from(*last).ok()?);
            slots.push((first, last, primary));
        }
        slots.sort_by_key(|(first, ..)| *first);
        Some(Self(slots))
    }

    pub(super) fn owner(&self, slot: usize) -> Option<&Server> {
        let at = self.0.partition_point(|(first, ..)| *first <= slot);
        let (_, last, primary) = self.0.get(at.checked_sub(1)?)?;
        (slot <= *last).then_some(primary)
    }

    /// A node has said that another has this slot.
    pub(super) fn assign(&mut self, slot: usize, primary: Server) {
        if self.owner(slot) == Some(&primary) {
            return;
        }
        let mut slots = Vec::with_capacity(self.0.len() + 2);
        for (first, last, owner) in self.0.drain(..) {
            if !(first..=last).contains(&slot) {
                slots.push((first, last, owner));
                continue;
            }
            if first < slot {
                slots.push((first, slot - 1, owner.clone()));
            }
            if slot < last {
                slots.push((slot + 1, last, owner));
            }
        }
        slots.push((slot, slot, primary));
        slots.sort_by_key(|(first, ..)| *first);
        self.0 = slots;
    }

    /// Each once.
    pub(super) fn primaries(&self) -> Vec<Server> {
        let mut primaries: Vec<Server> = Vec::new();
        for (_, _, primary) in &self.0 {
            if !primaries.contains(primary) {
                primaries.push(primary.clone());
            }
        }
        primaries
    }

    /// The ranges that nobody has: `0-5, 7`.
    pub(super) fn uncovered(&self) -> String {
        let mut next = 0;
        let mut gaps = Vec::new();
        let end = (SLOTS, SLOTS);
        let ranges = self.0.iter().map(|(first, last, _)| (*first, *last));
        for (first, last) in ranges.chain([end]) {
            match first.saturating_sub(next) {
                0 => {}
                1 => gaps.push(next.to_string()),
                _ => gaps.push(format!("{next}-{}", first - 1)),
            }
            next = next.max(last + 1);
        }
        gaps.join(", ")
    }
}

/// `host:port`, as a node names another one.
pub(super) fn read_address(text: &str, asked: &Server) -> Option<Server> {
    let (host, port) = text.rsplit_once(':')?;
    Some(Server {
        host: known_host(host, asked),
        port: port.parse().ok()?,
    })
}

fn known_host(host: &str, asked: &Server) -> String {
    match host {
        "" | "?" => asked.host.clone(),
        host => host.to_owned(),
    }
}

fn text(value: &Value) -> String {
    redis::from_redis_value_ref(value).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(port: u16) -> Server {
        Server {
            host: "h".to_owned(),
            port,
        }
    }

    fn slots(ranges: &[(usize, usize, u16)]) -> Slots {
        let ranges = ranges.iter();
        Slots(
            ranges
                .map(|(first, last, port)| (*first, *last, server(*port)))
                .collect(),
        )
    }

    #[test]
    fn ranges_of_an_answer_are_found_by_slot() {
        let node = |host: Value, port| Value::Array(vec![host, Value::Int(port)]);
        let range = |first, last, node: &Value| {
            Value::Array(vec![
                Value::Int(first),
                Value::Int(last),
                node.clone(),
                node.clone(),
            ])
        };
        let answer = Value::Array(vec![
            range(100, 16383, &node(Value::BulkString(b"i".to_vec()), 2)),
            range(0, 99, &node(Value::Nil, 1)),
        ]);
        let read = Slots::read(&answer, &server(9)).unwrap();
        assert_eq!(read.owner(99), Some(&server(1)));
        assert_eq!(read.owner(100).unwrap().host, "i");
        assert_eq!(read.uncovered(), "");
        assert_eq!(read.primaries().len(), 2);
        assert!(Slots::read(&Value::Okay, &server(9)).is_none());
        assert!(Slots::read(&Value::Array(vec![Value::Nil]), &server(9)).is_none());
    }

    #[test]
    fn slots_that_nobody_has_are_told() {
        assert_eq!(slots(&[]).uncovered(), "0-16383");
        assert_eq!(slots(&[]).owner(0), None);
        let some = slots(&[(0, 4, 1), (6, 6, 2), (9, 16382, 1)]);
        assert_eq!(some.uncovered(), "5, 7-8, 16383");
        assert_eq!((some.owner(5), some.owner(6)), (None, Some(&server(2))));
    }

    #[test]
    fn slot_that_has_moved_leaves_the_others() {
        for slot in [0, 3, 9] {
            let mut map = slots(&[(0, 9, 1), (10, 19, 2)]);
            map.assign(slot, server(2));
            for other in 0..20 {
                let owner = if other == slot || other > 9 { 2 } else { 1 };
                assert_eq!(map.owner(other), Some(&server(owner)), "{other}");
            }
        }
        let mut map = slots(&[(0, 9, 1)]);
        map.assign(4, server(1));
        assert_eq!(map, slots(&[(0, 9, 1)]));
        map.assign(20, server(2));
        assert_eq!(map.owner(20), Some(&server(2)));
    }

    #[test]
    fn address_without_a_host_is_that_of_the_node_asked() {
        assert_eq!(read_address(":7", &server(9)), Some(server(7)));
        assert_eq!(read_address("i:7", &server(9)).unwrap().host, "i");
        assert_eq!(read_address("::1:7", &server(9)).unwrap().host, "::1");
        assert_eq!(read_address("7", &server(9)), None);
    }
}
