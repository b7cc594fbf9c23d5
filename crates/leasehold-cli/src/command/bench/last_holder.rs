//! The last holder: a small file that all waiters share, whether they are threads or processes.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

#[derive(Debug)]
pub(super) struct LastHolder(File);

impl LastHolder {
    pub(super) fn create(path: &Path) -> io::Result<()> {
        Self::open_at(path, true)?.set(0)
    }

    pub(super) fn open(path: &Path) -> io::Result<Self> {
        Self::open_at(path, false)
    }

    fn open_at(path: &Path, create: bool) -> io::Result<Self> {
        let mut options = File::options();
        options.read(true).write(true).create_new(create);
        options.open(path).map(Self)
    }

    /// To be called by the holder alone.
    pub(super) fn set(&self, id: u64) -> io::Result<()> {
        self.0.write_all_at(&id.to_ne_bytes(), 0)
    }

    pub(super) fn get(&self) -> io::Result<u64> {
        let mut id = [0; 8];
        self.0.read_exact_at(&mut id, 0)?;
        Ok(u64::from_ne_bytes(id))
    }
}
