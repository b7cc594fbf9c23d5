//! Who broke which lock, a line of JSON each.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use leasehold::{Error, ErrorKind, LockName, Result};
use serde_json::json;

use crate::time::rfc3339;

/// The log; standard error if no file was named.
#[derive(Debug)]
pub(crate) struct Audit(Option<Mutex<File>>);

impl Audit {
    pub(crate) fn open(path: Option<&Path>) -> Result<Self> {
        let Some(path) = path else {
            return Ok(Self(None));
        };
        let file = OpenOptions::new().append(true).create(true).open(path);
        let file = file.map_err(|cause| {
            Error::new(
                ErrorKind::InvalidConfig,
                format!("the audit log {path:?} cannot be opened"),
            )
            .advise("check its name and who may write there")
            .caused_by(cause)
        })?;
        Ok(Self(Some(Mutex::new(file))))
    }

    /// Written before it is answered, so that nothing is broken without a line.
    pub(crate) fn write(
        &self,
        what: &str,
        lock: &LockName,
        by: Option<&str>,
        address: Option<&str>,
        reason: Option<&str>,
    ) {
        let line = json!({
            "at": rfc3339(SystemTime::now()),
            "audit": what,
            "lock": lock.as_str(),
            "by": by,
            "address": address,
            "reason": reason,
        });
        match &self.0 {
            None => eprintln!("leasehold: {line}"),
            Some(file) => {
                let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
                if let Err(cause) = writeln!(file, "{line}").and_then(|()| file.flush()) {
                    eprintln!("leasehold: warning: the audit log cannot be written: {cause}");
                    eprintln!("leasehold: {line}");
                }
            }
        }
    }
}
