//! Tables for people, with colours on a terminal only.

use console::{Alignment, Style, measure_text_width, pad_str, truncate_str};
use leasehold::{Claimant, HolderInfo, LockInfo, Mode, Ttl, WaiterInfo};

use crate::output::{age::age, lock::is_sticky};

const HEADERS: [&str; 9] = [
    "NAME",
    "MODE",
    "HOLDER",
    "HOST",
    "PID",
    "HELD FOR",
    "TIME LEFT",
    "TOKEN",
    "WAITERS",
];

/// Text in columns, each as wide as its widest cell. A cell comes with its style.
#[derive(Debug, Default)]
pub(crate) struct Table {
    rows: Vec<Vec<(String, Style)>>,
}

impl Table {
    /// Adds a row of cells.
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = (String, Style)>) {
        let printable = cells
            .into_iter()
            .map(|(text, style)| (printable(&text), style));
        self.rows.push(printable.collect());
    }

    /// The lines, none wider than `width`.
    pub(crate) fn lines(&self, width: usize) -> Vec<String> {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let widths: Vec<usize> = (0..columns)
            .map(|column| {
                let cells = self.rows.iter().filter_map(|row| row.get(column));
                cells
                    .map(|(text, _)| measure_text_width(text))
                    .max()
                    .unwrap_or(0)
            })
            .collect();
        let lines = self.rows.iter().map(|row| {
            let cells = row.iter().zip(&widths).map(|((text, style), width)| {
                style
                    .apply_to(pad_str(text, *width, Alignment::Left, None))
                    .to_string()
            });
            let line = cells.collect::<Vec<_>>().join("  ");
            truncate_str(line.trim_end(), width, "…").into_owned()
        });
        lines.collect()
    }
}

/// Replaces control characters: text from the store must not control the terminal.
pub(crate) fn printable(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { '?' } else { c })
        .collect()
}

/// The table of `list` and `watch`: a row for each holder.
pub(crate) fn of_locks(locks: &[LockInfo]) -> Table {
    let mut table = Table::default();
    table.row(HEADERS.map(|header| (header.to_owned(), Style::new().bold())));
    for lock in locks {
        let waiters = lock.waiters.len().to_string();
        let name = lock.name.as_str();
        for (nth, holder) in lock.holders.iter().enumerate() {
            let first = nth == 0;
            table.row(holder_cells(
                if first { name } else { "" },
                holder,
                if first { &waiters } else { "" },
            ));
        }
        if lock.holders.is_empty() {
            let mut cells = [(); 9].map(|()| (String::new(), Style::new()));
            cells[0] = (name.to_owned(), Style::new());
            cells[1] = ("free".to_owned(), Style::new().green());
            cells[8] = (waiters, Style::new().yellow());
            table.row(cells);
        }
    }
    table
}

fn holder_cells(name: &str, holder: &HolderInfo, waiters: &str) -> [(String, Style); 9] {
    let plain = Style::new;
    let waiting = match waiters {
        "" | "0" => plain(),
        _ => plain().yellow(),
    };
    // A lease that is renewed has two thirds of its TTL or more; one in its last seconds is likely to expire.
    let left = match holder.time_left.as_secs() {
        0..2 => plain().red(),
        _ => plain(),
    };
    [
        (name.to_owned(), plain().cyan()),
        (mode(holder.mode), plain()),
        (holder.claimant.label.clone(), plain()),
        (holder.claimant.host.clone(), plain()),
        (process(holder), plain()),
        (age(holder.held_for), plain()),
        (time_left(holder), left),
        (holder.token.to_string(), plain()),
        (waiters.to_owned(), waiting),
    ]
}

fn process(holder: &HolderInfo) -> String {
    match is_sticky(holder) {
        true => "sticky".to_owned(),
        false => holder.claimant.pid.to_string(),
    }
}

fn time_left(holder: &HolderInfo) -> String {
    // Less than that is left of one that was held forever for years.
    match is_sticky(holder) && holder.time_left > Ttl::FOREVER.get() / 2 {
        true => "forever".to_owned(),
        false => age(holder.time_left),
    }
}

fn mode(mode: Mode) -> String {
    match mode {
        Mode::Permit { of } => format!("1 of {of}"),
        mode => mode.to_string(),
    }
}

/// The queue of `show`, in its order.
pub(crate) fn of_waiters(waiters: &[WaiterInfo]) -> Table {
    let mut table = Table::default();
    let headers = ["#", "MODE", "WAITER", "HOST", "PID", "WAITED", "REASON"];
    table.row(headers.map(|header| (header.to_owned(), Style::new().bold())));
    for (nth, waiter) in waiters.iter().enumerate() {
        let cells = [
            (nth + 1).to_string(),
            mode(waiter.mode),
            waiter.claimant.label.clone(),
            waiter.claimant.host.clone(),
            waiter.claimant.pid.to_string(),
            age(waiter.waited_for),
            waiter.reason.clone().unwrap_or_default(),
        ];
        table.row(cells.map(|cell| (cell, Style::new())));
    }
    table
}

/// `make on web1 (pid 42)`
pub(crate) fn who(claimant: &Claimant) -> String {
    let Claimant {
        label, host, pid, ..
    } = claimant;
    match pid {
        0 => printable(&format!("{label} on {host}")),
        pid => printable(&format!("{label} on {host} (pid {pid})")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_within_the_width() {
        let mut table = Table::default();
        let row = |cells: [&str; 2]| cells.map(|cell| (cell.to_owned(), Style::new()));
        table.row(row(["NAME", "PID"]));
        table.row(row(["ä long name", "1"]));
        assert_eq!(table.lines(80), ["NAME         PID", "ä long name  1"]);
        assert_eq!(table.lines(6), ["NAME …", "ä lon…"]);
    }

    #[test]
    fn control_characters_are_replaced() {
        let mut table = Table::default();
        table.row([("a\u{1b}[2Jb".to_owned(), Style::new())]);
        assert_eq!(table.lines(80), ["a?[2Jb"]);
    }
}
